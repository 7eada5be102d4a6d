"""A link: the connection to another broker, from its handshake to its end.

What it may know: `core` (its connection, messages), `config`, `discovery` (who is a member) and all
below these. The cluster above it is known to it by Protocols (`link.LinkHost`,
`ports.HandshakeHost`): a link parses and encodes, the cluster decides what follows.

A link is an MQTT 5 connection whose CONNECT says that a broker calls. It carries batches of
messages with their origin and sequence numbers, and PINGREQ with records;
docs/reference/link-protocol.md describes each byte.

* `handshake` proves to each end that the other one has the cluster secret and its id; `peer` is
  what a broker says of itself; `peering` refuses to start where that would let strangers in.
* `admission` says which brokers may link, and which of two links to one broker stays.
* `link` takes packets and sends records; with a secret `record_layer` encrypts all of its bytes.
* `control_records` is the codec of records, `message_batch` that of messages, `origin_keys` that of
  their origins, `stream_packets` that of streams to standbys; `version_vector` says what has been
  at a broker.

The states of a link (`link_states` has the table, `Link.step` carries it out):

    DIALLED, CALLED -(CONNECT)-> PROVING -(no secret and no key)-> AGREEING
    PROVING, AGREEING -(both agree)-> BLOCKED -(the tree)-> FORWARDING -(replay sent)-> LIVE
    FORWARDING, LIVE  -(the tree)-> BLOCKED
    LIVE -(this broker drains)-> FORWARDING
    BLOCKED -(too much is queued)-> BLOCKED_BEHIND -(queue empty)-> BLOCKED
    FORWARDING, LIVE -(too much is queued)-> FORWARDING_BEHIND -(queue empty)-> FORWARDING
    any -(the connection is gone)-> CLOSED
"""
