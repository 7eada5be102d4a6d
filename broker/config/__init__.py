"""The configuration: files, flags, environment and defaults, read and checked.

What it may know: `base`, and the settings of `stp` and `discovery`. It starts nothing, and opens
only the files that it is told to read.

* `model` has the one set of defaults. `options` reads flags, environment and file (in this order of
  precedence) into `RunSettings`, and works out `FederationSettings`; `node_config.NodeConfig` is
  what a node is given.
* `yaml_file` reads YAML and remembers the line of each key, for errors.
* `mqtt_options`, `listener_section` and `listener_options` are the sections about MQTT and
  listeners.
* `data_dir` keeps a broker's key and boot number from one start to the next.
* `listener_model` is what the broker reads of listeners, ours or amqtt's configuration of them;
  `leg_options` are options of legs, `broker_url` addresses of foreign brokers, `mosquitto_bridges`
  reads a file of Mosquitto; `routing_modes` has the values of `--routing`, `secret_file` reads
  secrets.

All errors of a user are ConfigError with one line that names the flag, the variable, or the file
and line.
"""
