"""What each broker posts of itself, known to all, and messages to one broker.

* `link_state_directory` is the link-state database.
* `unicast_bus` carries messages to one broker over the paths that the database knows.

This package may use links (`link`). The routing strategies are above it.
"""
