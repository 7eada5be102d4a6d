"""Topics, filters and paths: which subscriptions a topic matches, and which way a message takes.
Pure.

What it may know: nothing but Python. The broker keeps clients by these structures, and the cluster
its knowledge of other brokers; neither is known here.

* `topic_filter`: whether names and filters are well formed, and what matches or covers what.
  `subscription_trie` finds all filters that match a topic. `filter_aggregation` keeps the filters
  that no other one covers. `sharded` is a dict of very many entries that grows without a pause.
* `link_state`: what each broker has posted about itself, known to all (as OSPF's database); a
  `listing` is the part of one broker, in the version that is known. `shortest_paths` finds each
  broker's tree in it.
* `group_selection`: which broker's members of a shared subscription get the next message.

A broker is reachable while its neighbours in the tree and it name each other in their listings;
else its listing is kept for a while. Brokers ask neighbours for newer versions of listings, and get
changes or, after a long absence, whole listings in parts.

`topic_tree` holds topic names and is searched by filters; `advertised_routes` has the tables of SRT
and PRT, `filter_units` groups filters that can match a common topic.
"""
