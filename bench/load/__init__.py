"""MQTT load generator: loads as fast as windows let through, or by the clock, that prove what
arrived.

`mix.run_mix` carries a `mixture.MixSpec` out. Beside it: `client`, a client in asyncio, also of
tests/chaos; `probe`, one that notes when single messages arrive; and `packets`, the codec of all
that generates load (independent of the broker's own; the clients of scenarios use it, too).

`process` carries out what a worker is asked for; `channel` is a connection, `scan` reads streams in
bulk. `mix_worker` is one process of a mixed load, `mix_peers` its clients. Results: `histogram`,
`sequence` (order and losses), `cpu`, `outcome`, and `limit`: whether a rate is the broker's or the
generator's.
"""

from mqttree.bench.load.histogram import Histogram
from mqttree.bench.load.outcome import LoadError, Tally
from mqttree.bench.load.probe import Probe

__all__ = ["Histogram", "LoadError", "Probe", "Tally"]
