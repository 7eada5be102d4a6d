"""Messages between brokers: each crosses a broker once, and local subscribers get the messages of
one origin in order.

This package may use links (`link`), the routing strategy (`strategy`), the link-state database and
messages to one broker (`directory`), and of this broker its dispatcher and its sessions (`core`).
Shared subscriptions, moving sessions, retained messages and the log's tail on the disk are above
it: it reaches them by the Protocols in `ports`.

* `forwarder` takes messages from clients and links and passes them on; `origins` knows which
  sequence numbers of each origin have been here.
* `replay_log` keeps the recent messages at QoS 1 and 2; `replay` walks it, `link_acks` says how
  much of it the neighbours have.
* `resync` replays to a neighbour what it lacks before its link is live; `orphans` says which
  origins are gone.
* `ordered_feed` is one origin as local subscribers get it (`feed_states`: its table),
  `origin_feeds` are all of them; `gap_recovery` finds out when messages may be missing
  (`tree_paths`: which link leads to a broker), `origin_questions` asks the origin for them,
  `answers` answers such questions (`pull_messages`: as bytes), `paced_release` delivers what a feed
  held back; `low_watermarks` says up to where nothing is missing.
* `pulls` asks others than the origin: neighbours, and those that offer the log's tail to a broker
  that is back.
* `subscription_start` says behind which sequence number of each origin a subscription begins.
* `unordered_forwarder` is the forwarder where each topic has paths of its own (`ort`).
* `remote_flow_control` carries backpressure from a slow subscriber to its publishers elsewhere.
* `incoming_batch` and `outgoing_batch` carry many messages of one origin at once; `local_window` is
  which numbers of an origin have been here.

States of a link, as `resync` sees it:

    blocked -(the tree: forwards)-> telling -(SEEN of both, introductions done)-> gathering
            -(the brokers behind it are known)-> joining -(the replay has nothing left)-> live
    any     -(the tree: blocked; too much is queued; the link is lost)-> blocked

States of an ordered feed: a table, in `feed_states`.
"""
