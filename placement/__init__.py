"""Which broker each client should connect to, so that few messages cross between brokers. Pure.

What it may know: nothing but Python. A message crosses to every broker that has a subscriber of its
topic and not its publisher. So clients that want the same topics belong together, as far as the
brokers' loads allow; a client may be split over several brokers, with a connection to each. Rates
are messages/s, and whoever uses this package says what they are.

* `traffic`: the model of clients that connect to random brokers (equations 1 to 15 of Detti et
  al., "Sub-linear Scalability of MQTT Clusters").
* `state`: what is placed where, and the traffic that follows from it, kept up with each change.
* `greedy`, `optimum`, `strategies`: where one client that comes is placed.
* `clients`: the clients that are placed, and those that a failed broker leaves.

Nothing here decides about delivery: a placement that is wrong costs traffic, not messages.

`controller` answers where clients should connect: a `question` becomes a `case`, which is decided
by `broker_table`, `figures` (what a placement costs) and `pending_load` (answers that loads do not
show yet). `redirection` decides whom to send elsewhere.
"""
