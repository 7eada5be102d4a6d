"""MQTT load generator: loads as fast as windows let through, or by the clock, that prove what
arrived.

`mix.run_mix` carries a `mixture.MixSpec` out. Beside it: `Probe`, one client that notes when single
messages arrive, and `packets`, the codec of all that generates load (independent of the broker's
own; the clients of scenarios and of tests/chaos use it, too).
"""

from mqttree.bench.load.histogram import Histogram
from mqttree.bench.load.outcome import LoadError, Tally
from mqttree.bench.load.probe import Probe

__all__ = ["Histogram", "LoadError", "Probe", "Tally"]
