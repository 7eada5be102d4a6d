"""Measurements beside the scenarios, each a command of its own behind `mqttree bench`.

What they may know: all of `bench` but `cli` and `report`, and the modules of the broker that they
measure. `compare` loads several brokers in turn (`targets` starts them, `sketch` is the least that
forwards MQTT). `micro` times inner parts, `growth` subscriptions up to a million. `converge`,
`paths` and `restart` time real processes: trees that form and repair, links, a broker that is
back. `overlays` computes trees without any broker; `capacity` says what a lab can carry here.

`comparison` has the arguments of `compare`, `configurations` the files of the brokers that it
starts, `certificate` what they show; `mixed` is their mixed loads, `mixed_table` prints these.
"""
