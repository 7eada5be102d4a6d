"""MQTT load generator: saturating and open-loop loads that prove what arrived.

run_throughput keeps a broker saturated behind subscriber-driven windows, run_latency publishes by
the clock, run_connections opens many connections. Each takes a LoadSpec. Beside them: `Probe`, one
client that notes when single messages arrive, and `packets`, the codec of all that generates load
(independent of the broker's own; the clients of scenarios and of tests/chaos use it, too).
"""

from mqttree.bench.load.histogram import Histogram
from mqttree.bench.load.probe import Probe
from mqttree.bench.load.run import run_connections, run_latency, run_throughput
from mqttree.bench.load.spec import (
    ConnectionsResult,
    LatencyResult,
    LoadError,
    LoadResult,
    LoadSpec,
    Tally,
)

__all__ = [
    "ConnectionsResult",
    "Histogram",
    "LatencyResult",
    "LoadError",
    "LoadResult",
    "LoadSpec",
    "Probe",
    "Tally",
    "run_connections",
    "run_latency",
    "run_throughput",
]
