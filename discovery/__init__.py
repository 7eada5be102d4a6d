"""Discovery: which other brokers there are, where they can be dialled, and when to dial them.

What it may know: addresses, broker ids and boot numbers, the clock that it is given; nothing of
MQTT, links, messages or the spanning tree (it is informed when a link stands and when the tree is
settled). Everything but `drivers/` is pure: bytes and times in, effects out.

* `membership.Membership` is the whole of it: feed it datagrams, gossip, links and the clock, take
  its effects (`effects`). Below it: `announcement` (the datagram), `announcement_filter` (which of
  them to believe), `beacon` (when to announce), `member_table` (who is known, and tombstones of
  those that left), `dialler` (addresses, and when to try them again), `neighbour_selection` (whom
  to link to when there are many), `gossip` (what brokers tell each other over links), `seeds`.
* `states` is its state machine, as a table: DISCOVERY, FORMING, RUNTIME, LEFT.
* `drivers/`: `multicast` (sockets of the group), `dns` (names of seeds).
"""
