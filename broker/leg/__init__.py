"""A leg: one outgoing MQTT session at a foreign broker, whose clients are part of the federation by
it.

MQTT's exchange of PUBLISH and its acknowledgements is symmetrical. So a leg is a client on both of
its sides, and passes these packets on as they are: what the foreign broker publishes to its client
is what a client publishes here, and the other way round. All state that must last is in the two
sessions. Here are the rules (which topics cross, under which names), the state machine, and what
happens to packets between the sides. All of it is pure.

* `effects` is what a leg asks its driver to do, `leg_settings` what is configured, `leg_states` the
  state machine.
* Connecting: `addresses` (which address is next), `backoff` (when), `connect` (CONNECT to both
  brokers), `protocol_level` (which version of MQTT), `session_pair` (the two sessions),
  `subscriptions` (what is subscribed to on both sides), `takeover_alarm` (another client has the
  name of the leg).
* Messages: `relay` passes PUBLISH and its acknowledgements on; `crossing` renames topics and drops
  echoes; `lower_qos` knows the highest QoS that the foreign broker takes, `repeats` what it sends
  again, `poison` what it closes the connection for, `unmatched` which rules send what it has no
  subscriber for; `own_topics` never cross, `own_traffic` is what a leg publishes itself.
* Rings: `marks` are the marks of federations in messages, `rings` finds messages that come back,
  `ring_alarm` logs it.
* Retained messages: `retained_rules` (which topics belong together), `retained_packets` (PUBLISH
  with RETAIN that crosses), `retained_exchange` with `retained_history`, `retained_merge`,
  `retained_values` and `retained_watch` (how both sides become equal); `sync_session` with
  `sync_states` reads what the foreign broker has retained.
"""
