"""Over which links a message goes, and what brokers tell each other for that.

There is one routing strategy for each value of `--routing` behind the Protocols of
`routing_strategy`; no other module asks which one it is. This package may use links (`link`), the
link-state database (`directory`) and this broker's dispatcher (`core`). What is above it, from the
replay log to sessions, is known to it by the Protocols in `ports`.

* `routing_strategy` has a Protocol for each subject; `selection` chooses `flood`, `interest`,
  `topic`, `srt_prt` or `ort`.
* `spanning_tree` has what all of them share, `published_topics` what `srt_prt` and `ort` do;
  `interest_table` knows the filters of all brokers; `source_trees` finds the paths of each origin
  for `topic`, with `path_costs` (what is posted of links), `astray_brokers` (lost by the spanning
  tree) and `new_filters` (who may lack messages); `path_change` tells a broker that messages to
  it take another path.
* `subscription_barrier` delays SUBACK until all brokers know of a subscription.

States of a subscription in the barrier:

    posted -(a wave goes over the tree)-> sent -(all brokers have answered)-> known: SUBACK
           -(some have not answered)-> posted, another wave after a pause
           -(WAIT is over)-> SUBACK, and messages of all origins are asked for again
"""
