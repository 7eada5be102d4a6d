"""The federator of Spohn's paper: what stands beside an unmodified broker and makes one federation
of it and its neighbours, topic by topic. Pure, but for `driver` and `client_connection` (a client
of a broker, by paho, that connects again), which `command`, `mqttree federate --protocol spohn`,
starts.

What it may know: ids of brokers, MQTT topics and payloads, the clock that it is given; nothing of
connections, sessions or packets, and nothing of the rest of this project's federation. In: what its
broker's clients and neighbours' federators published at its broker (`received`), and time. Out:
publications to make, at its own broker or at a neighbour's.

* `federator.Federator` is the whole of it: one `mesh.Mesh` a topic, and their bounds. Below it:
  `mesh_states` (a mesh's state machine, a table), `duplicate_log` (which publications were here),
  `messages`, `codec` (their bytes, as the public implementations write them), `topics` (where they
  are published), `settings`.
* Each topic has its own mesh. The first broker with interest in it becomes its core and announces
  itself; brokers with interest tell the neighbours nearest to the core, their parents, that they
  are children. A publication goes along the mesh, and each broker takes it once.

The protocol is the paper's, with its losses: a restart, a lost core and a log that is too short
cost publications. `tests/unit/bench/test_federator_grid.py` shows how many.
"""
