"""The spanning tree of MQTT-ST: one loop-free tree over the links of a federation, pure.

What it may know: broker ids, boot numbers and addresses, costs of links, the clock that it is
given; nothing of MQTT sessions, messages, sockets or discovery. In: links that come and go
(`port_up`, `port_down`), BPDUs as objects, costs, time. Out: BPDUs to send, and which links carry
messages (`ForwardingChanged`).

* `tree.Tree` is the whole of it. Below it: `priority_vector` (who is the better root; feasibility,
  which keeps parent pointers free of loops at every moment), `claims` (what neighbours say of a
  root, and whether it is believed), `ports` (one neighbour: its role here and there), `transmit`
  (when a BPDU may be sent), `changes` (topology changes, each passed on once), `bpdu` (the bytes),
  `capability` (how much a broker can do: the best one becomes root), `config`.
* `topic_overlays.TopicOverlays` has one more tree for each topic, over the brokers with a client of
  it, as published in the Overlays paper (t-ORT): `topic_overlay` (one of them), `root_policy` (whom
  its members elect), `topic_ping` (the bytes). They have nothing to do with the spanning tree.
* Its state machine is per port: a link carries messages when both ends have the same role for it
  (`ports.Port`), a role that only one end has yet is echoed in the next BPDU.
* Invariants: parent pointers never form a loop; a broker believes a claim about a root only if it
  is feasible (DSDV, Babel: RFC 8966, 3.5.1); an incarnation of a root that was outdated is not
  believed again.
"""
