"""What all packages of the broker use. It knows nothing of clients, links and federations.

What it may know: `wire` (its errors) and nothing else. All of it is pure but `machine` (what the
machine has), `version` and `core_build` (whether the compiled core runs).

* `limits`: what the limits of all packages have in common (each has a `limits.py`).
* `counters`: what `/metrics` and `/api/v1/federation` show; `log_limit` keeps peers from filling
  logs; `log_format` makes lines or JSON of them.
* Time: `timers`, `timer_wheel`, `deadlines`, `hybrid_clock` (time of day and order of events in one
  number, also where the clocks of brokers differ), `rate_limit`, `turns` (how much is done in one
  turn of the event loop).
* Names and keys: `address`, `broker_id`, `broker_key` (proves an id), `link_keys` (what the cluster
  secret becomes).
* `sequence_set`: sets of sequence numbers as ranges.
* `state_table`: what all state machines that are tables have in common.
* `costs`: bytes and steps of work that things cost; `record`: classes of fields that start fast.
"""
