"""A leg: one outgoing MQTT session at a foreign broker, whose clients are part of the federation by
it.

MQTT's exchange of PUBLISH and its acknowledgements is symmetrical. So a leg is a client on both of
its sides, and passes these packets on as they are: what the foreign broker publishes to its client
is what a client publishes here, and the other way round. All state that must last is in the two
sessions. Here are the rules (which topics cross, under which names), the state machine, and what
happens to packets between the sides. All of it is pure.
"""
