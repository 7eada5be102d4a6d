"""What each broker posts of itself, known to all, and messages to one broker.

* `link_state_directory` drives the link-state database (`mqttree.routing.link_state`), which other
  modules ask for what brokers post; they post, and watch for changes, in the directory.
* `unicast_bus` carries messages to one broker over the paths that the database knows;
  `questions` are those that are answered.

This package may use links (`link`). The routing strategies are above it.
"""
