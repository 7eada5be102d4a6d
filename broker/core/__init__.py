"""One broker for its own clients, pure: connections, sessions, subscriptions, retained messages.

What it may know: `auth`, `config`, `routing`, `base` and `wire`. The cluster and the journal are
above it and known to it by the Protocols in `ports` alone; what it offers to them in turn is in
`local_broker`, what its own modules share in `core_broker` and `serving_broker`. A broker that is
alone and keeps nothing has `ports.NullJournal`.

* Bytes come to `connection`, whose owner takes the packets: first `connect` (the handshake), then
  `client` with `client_packets` (of a leg `leg_packets`), or a link of the cluster.
  `session_opening`, `connack`, `predecessor` and `reauthentication` belong to CONNECT and AUTH.
  `connect` is where a client is refused: too many connections, or too many in a second
  (`connection_rate`).
* `publish` takes one PUBLISH with all its checks, `publisher` carries it to subscribers here and to
  the cluster. Nearly all messages go a shorter way, as runs of packets that look alike:
  `client_packets` at QoS 0, `qos_fast_path` with `publish_run` at QoS 1 and 2.
* `dispatcher` finds who gets a topic (No Local, Retain As Published) and keeps that as a `route`;
  `message` is encoded once for each version, and for each receiver with its Subscription
  Identifiers. `subscribe` changes who gets what (Retain Handling); `retained_store` and
  `retained_feed` add what was retained, `retained_index` is what brokers compare of it.
* `session` has what is kept for one client id: subscriptions, owner, will, the identifiers of QoS 2
  messages that the client publishes. `delivery_queue` has its messages: queued, in flight, and the
  send window (Receive Maximum, Maximum Packet Size, expiry, DUP after a reconnect).
  `session_registry` ends sessions, `session_owner` says whose one is, `unsent` what it was not
  sent. `wills` publishes what a client left; after a crash `mqttree.broker.persistence.recovery`
  has it published when the broker is back.
* `output` sends at the end of a turn what was appended to outboxes; `flow_control` decides who is
  not read meanwhile; `memory_limit` refuses and drops when memory is short.
* `effects` is what a driver is asked to do, `effect_answers` who takes its answers. `shutdown` ends
  all. The registries (`connection_registry`, `client_registry`) and `access_control` keep what is
  connected and which rules hold; `client_registry` closes silent clients (Keep Alive). `sys_topics`
  publishes counters.
* What a PUBLISH needs on its way: `topic_resolution` and `topic_alias` (aliases from and to a
  client), `receiver_assignment` (which broker serves a shared subscription), `receipts` (who got
  it, for the journal), `responses` (answers of the broker itself), `reason_string` and
  `capabilities` (MQTT 5). `bridge` detects bridges that close a ring.
* `route_cache` keeps routes, `wildcard_forms` bounds the filters of a session, `start_point` is
  where a subscription begins. `topic_rates`, `topic_tally` and `traffic_meter` measure traffic.

The states of a connection (`connection_states` has the table, a test goes through all pairs):

    READING -(a packet needs the answer to an effect)-> WAITING -(answer)-> READING
    READING -(subscribers or a limit are behind)-> HELD -(they have caught up)-> READING
    WAITING -(the peer is gone)-> ENDED_WAITING, until what it sent is handled
    any     -(closed here)-> CLOSING -(the transport is gone)-> CLOSED
"""
