"""What is placed where, and the traffic that follows: the model that placements are computed with.

What it may know: `mqttree.placement`, and nothing else but Python. A client may be split over
several brokers, with a connection to each. Rates are messages/s.

* `traffic`: the model of clients that connect to random brokers (equations 1 to 15 of Detti et
  al., "Sub-linear Scalability of MQTT Clusters").
* `state`: what is placed where, and its traffic, kept up with each change.
* `greedy`, `optimum`, `strategies`: where one client that comes is placed.
* `clients`: the clients that are placed, and those that a failed broker leaves.
"""
