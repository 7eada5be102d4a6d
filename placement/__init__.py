"""Which broker each client should connect to, so that few messages cross between brokers. Pure.

What it may know: nothing but Python. A message crosses to every broker that has a subscriber of its
topic and not its publisher. So clients that want the same topics belong together, as far as the
brokers' loads allow; a client may be split over several brokers, with a connection to each. Rates
are messages/s, and whoever uses this package says what they are.

`controller` answers where clients should connect: a `question` becomes a `case`, which `greedy`
decides by `broker_table`, `figures` (what a placement costs) and `pending_load` (answers that loads
do not show yet). `redirection` decides whom to send elsewhere. Placements of many clients are
computed by `mqttree.bench.model`.

Nothing here decides about delivery: a placement that is wrong costs traffic, not messages.
"""
