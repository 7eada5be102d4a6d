"""The HTTP interface `/api/v1`: what a dashboard, or a program of an operator, asks a broker.

`routes` has every route as data, and `schemas` what answers look like; `openapi` makes the document
of both that users read, `service` finds the handler of a request. Handlers read the node and never
change it, but for `clients` (disconnect, end a session). What may take long is searched in pieces
(`search`), so that a million topics do not stop the broker. `monitor` looks at the broker once a
second (`alarm_history` remembers its alarms), and `event_stream` sends to readers what it finds
(server-sent events).

The start of a broker does not wait for these modules: they are imported a few seconds later, one in
each turn of the event loop, or with the first request under /api/v1 (`admin_http`).

`other_brokers` has requests answered by other brokers of the federation, and answers theirs.

`federation` describes all brokers and links as this one knows them, `delivery_tree` the links that
messages of one broker take, `link_rates` the traffic of each link.
"""
