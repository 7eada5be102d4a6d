"""Tests: where one is found, and what to write one with.

Where: `unit/<package>/test_<module>.py` tests `broker/<package>/<module>.py`; the modules of
`broker/cluster/*/` have theirs in `unit/cluster/`, packages beside `broker/` a folder of their own.
What a module is part of may be in a file with the behaviour's name: `grep -rl MODULE tests/unit`.
`sim` has what takes several brokers, `process` what takes sockets, processes or files, `text` what
sources and pages say. How to run them is in CONTRIBUTING.md, in "Test".

With what, in `kit`:

* one broker without sockets: `node_harness.World`, whose clients send and get packets on a virtual
  clock; `journal_harness` adds a journal that survives a kill.
* one broker and neighbours that send what the test says: `link_harness`, with a cluster secret and
  an attacker `protected_links`; `leg_harness` is a leg between two brokers, `overlay_harness`
  brokers with overlays, `federator_harness` federators; `heads` has sessions as brokers send them.
* `decoder` makes packets of what a broker sends;
* brokers as processes: `brokers`, with `clients`, `raw_client` (packets one by one), `relay` (the
  network between them), `foreign` (other products), `scram_client`, `api` (requests to `/api/v1`),
  `command` (`mqttree` as users run it) and `browser`. `admin_server` is an admin port alone,
  `loop_harness` an event loop and a transport whose clock is moved by hand.
* `state_tables` walks through a state machine's table, `waiting` waits for what comes true.
  `placement` and `report` have results to compare with, `source` parses. `effort` says
  how much a test tries, `core` skips what only the Python core passes.

A federation on a virtual clock, which splits and heals:

    from tests.sim.test_takeover import Row

    row = Row(3)                        # b0 is linked to b1 and b2
    subscriber = row.connect(1, "sub")
    subscriber.subscribe("t")
    publisher = row.connect(0, "pub")
    row.world.partition([[1]])          # b1 alone, the others together
    row.run(3.0)
    publisher.publish("t", b"missed", qos=1)
    row.run(1.0)
    row.world.heal()
    row.join()                          # until all agree again
    row.until(lambda: subscriber.payloads == [b"missed"])

`World.block` cuts two brokers apart, `World.limit_rate` makes a link slow, `Host.kill`, `pause` and
`leave` do what their names say; a schedule with drawn faults and all checkers is `sim.schedule`.

A mutant is a fault that a test plants in brokers, to show that a checker finds it: `sim.mutants`
plants it, `sim.test_mutants` has examples.
"""
