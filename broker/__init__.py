"""The broker: the pure `Node` (`mqttree.broker.node`) and the drivers around it.

The packages are floors; each may import from those below it only, and import-linter checks that
(docs/decisions/0032-floors.md). From top to bottom:

* `cli` is the command line, `service` makes a broker of its options, `compat` is all that knows
  amqtt, `io` the drivers: sockets, files, threads, HTTP. These four may wait, read clocks and open
  sockets.
* `node` puts one broker together of what is below. From here on downwards all is pure: bytes,
  answers and the time are handed in; bytes and effects (`core.effects`) come out.
* `persistence` is what survives a restart; `cluster` is the broker as a member of a federation;
  `core` is one broker for its own clients.
* `auth` says who may do what, `config` reads options, `base` has limits, counters and time, `wire`
  turns MQTT packets into bytes and back.

Three packages beside this one, below `config`, know nothing of a broker: `routing` (filters and
paths), `stp` (the spanning tree), `discovery` (finding brokers). Read `core` first, then `cluster`.

`leg`, a session at a foreign broker, stands beside these floors, below `config`.
"""

import os

from mqttree.broker.base.core_build import choose

CORE = choose(os.environ.get("MQTTREE_CORE"))
"""Which code runs: compiled, or the sources."""
