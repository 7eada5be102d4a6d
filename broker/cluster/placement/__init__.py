"""Where clients should connect: one broker of the federation, the root of the tree, decides; the
others pass questions on to it. The decision itself is in the package `placement`.

* `placement_messages`: what brokers tell each other.
* `traffic_entry`: this broker's traffic in the link-state database.
* `topic_knowledge`: what is known of brokers and topics.
* `decider`: answers questions, as long as this broker is the root (`decider_states`: its table).
* `redirector`: sends clients to other brokers, once (`redirect_table` has which, `redirect_states`
  its table, `client_interest` what they subscribe to).
* `rebalancer`: moves clients when the load changes, as long as this broker is the root.
* `client_question`: reads what a client asks by MQTT.
* `placement_service`: takes questions here, and passes them on.
* `ports`: what these modules ask of their broker.

Nothing of delivery depends on it: messages reach every client wherever it is connected.
"""
