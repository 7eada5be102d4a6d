"""One broker as a member of a federation, pure: no module here waits, reads a clock or opens a
socket.

`composition` puts the packages together, bottom first; a module knows those above it only by
Protocols. `cluster` is what the node and its driver call, `event_order` says which module hears of
what, `agenda` when something is due.

* `link` is the connection to another broker: handshake, admission, records, messages as bytes.
* `events` tells all modules, in one table's order, what happens to links, members and paths.
* `directory` has the link-state database, and carries messages to one broker.
* `strategy` decides over which links a message goes.
* `delivery` forwards each message once, keeps it for neighbours, and recovers what is missing.
* `sharing` gives each message of a shared subscription to one member, at whichever broker.
* `sessions` moves a client's session to the broker to which the client connects, and merges two.
* `link_registry` knows the links, and how each begins and ends.
* `topology` carries out what discovery and the spanning tree decide, `id_conflict` finds a second
  broker with the same id, `gone_brokers` raises an alarm for one that ended without a goodbye.
* `retained_sync` and `retained_comparison` keep retained messages equal at all brokers, `drain`
  empties a broker that is about to stop, `state_view` is the cluster as JSON.
* `ports` has the Protocols that several of these packages use.
* `placement` answers where clients should connect, and moves them.

This package may use one broker (`mqttree.broker.core`), the tree (`stp`), `discovery`, `routing`
and what is below these. The journal and the log's tail on the disk are above it
(`mqttree.broker.persistence`).
"""
