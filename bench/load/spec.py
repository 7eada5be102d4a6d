"""What to measure and what came of it: plain values that cross process borders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mqttree.bench.load.histogram import Histogram

MESH_LIMIT = 256  # a mesh identifies its publishers by one payload byte
HEADER_BYTES = 8  # publisher (2 bytes) and sequence number (6 bytes) at the start of every payload
STAMP_BYTES = 8  # latency runs: when the message should have been sent (ns, monotonic)


class LoadError(Exception):
    """The load could not be carried out: no broker listens, a refusal, a lost connection, a broken
    stream."""


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """One load.

    pattern: "pairs": publisher i -> topic i -> subscriber i. "mesh": every publisher -> one topic
        -> every subscriber (one to many and many to one are meshes with one publisher or one
        subscriber).
    window: messages that a publisher may be ahead of its slowest subscriber.
    payload: bytes.
    rate: messages a second of all publishers together (latency runs).
    warmup, seconds, drain: s; drain is how long without any progress the end of the run waits for
        what is missing.
    topics: how many each publisher uses in turn, which shows what a broker saves where neighbours
        have one topic.
    pid: the broker, to account for its CPU time (None: not known).
    """

    host: str = "127.0.0.1"
    port: int = 1883
    pattern: Literal["pairs", "mesh"] = "pairs"
    publishers: int = 10
    subscribers: int = 10
    payload: int = 64
    qos: int = 0
    version: int = 4
    subscriber_version: int | None = None
    subscriber_port: int | None = None
    """Where the subscribers connect, when that is another broker than the publishers' (None: the
    same)."""
    user_properties: int = 0
    window: int = 1000
    rate: float = 1000.0
    warmup: float = 1.0
    seconds: float = 5.0
    drain: float = 2.0
    processes: int = 1
    pid: int | None = None
    topic: str = "load"
    topics: int = 1
    filters: int = 0
    """Wildcard subscriptions of one more client, whose topics are not published to."""

    def check(self, latency: bool = False) -> None:
        """Raise ValueError, in one clear line, for a load that cannot be run."""
        if self.pattern not in ("pairs", "mesh"):
            raise ValueError(f"pattern must be pairs or mesh, not {self.pattern!r}")
        if self.publishers < 1 or self.subscribers < 1:
            raise ValueError("at least one publisher and one subscriber are needed")
        if self.pattern == "pairs" and self.publishers != self.subscribers:
            raise ValueError(
                f"pairs need as many subscribers as publishers, not {self.subscribers}"
            )
        if self.pattern == "mesh" and self.publishers > MESH_LIMIT:
            raise ValueError(f"a mesh has at most {MESH_LIMIT} publishers")
        if self.publishers > 65_535:
            raise ValueError("at most 65,535 publishers")
        least = HEADER_BYTES + (STAMP_BYTES if latency else 0)
        if not least <= self.payload <= 200_000_000:
            raise ValueError(f"payload must be {least} to 200,000,000 bytes")
        if self.qos not in (0, 1, 2):
            raise ValueError("qos must be 0, 1 or 2")
        if self.version not in (4, 5) or self.subscriber_version not in (None, 4, 5):
            raise ValueError("version must be 4 (MQTT 3.1.1) or 5")
        if not 0 <= self.user_properties <= 1000 or (self.user_properties and self.version != 5):
            raise ValueError("user properties (at most 1,000) need version 5")
        if not 1 <= self.window <= 30_000:
            raise ValueError("window must be 1 to 30,000")
        if self.seconds <= 0 or self.warmup < 0 or self.drain < 0 or self.rate <= 0:
            raise ValueError("seconds and rate must be positive, warmup and drain not negative")
        if not 1 <= self.topics <= 1000:
            raise ValueError("topics must be 1 to 1,000")
        if not self.topic or any(character in self.topic for character in "+#\0"):
            raise ValueError("topic must be a topic name without wildcards")
        if not 1 <= self.processes <= 64:
            raise ValueError("processes must be 1 to 64")


@dataclass(slots=True)
class Tally:
    """What subscribers saw, by sequence numbers; every message of every run is looked at."""

    received: int = 0
    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0

    def add(self, other: Tally) -> None:
        """Add the numbers of another subscriber to these."""
        self.received += other.received
        self.lost += other.lost
        self.duplicated += other.duplicated
        self.out_of_order += other.out_of_order


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What every run proves.

    seconds: the measured time.
    sent: messages published in the whole run.
    expected: how many arrivals they call for.
    unacknowledged: QoS 1 and 2 messages whose handshake did not end.
    """

    seconds: float
    sent: int
    expected: int
    tally: Tally
    unacknowledged: int

    @property
    def complete(self) -> bool:
        """Everything arrived exactly once and in order, and was acknowledged."""
        tally = self.tally
        return (
            tally.received == self.expected
            and not (tally.lost or tally.duplicated or tally.out_of_order)
            and not self.unacknowledged
        )

    def proof(self) -> str:
        """Return one line: how many messages were sent, received, lost, repeated and out of
        order."""
        tally = self.tally
        return (
            f"sent {self.sent:,} expected {self.expected:,} received {tally.received:,} "
            f"lost {tally.lost:,} duplicated {tally.duplicated:,} "
            f"out of order {tally.out_of_order:,} "
            f"unacknowledged {self.unacknowledged:,}"
        )


@dataclass(slots=True, kw_only=True)
class LoadResult(Outcome):
    """What a throughput run came to.

    rate: PUBLISH arrivals a second in the measured time.
    published_rate: messages sent a second in it.
    generator_cpu, broker_cpu: CPUs used while measuring (1.0: one core full; broker None without a
        pid).
    """

    rate: float
    published_rate: float
    generator_cpu: float
    broker_cpu: float | None


@dataclass(slots=True, kw_only=True)
class LatencyResult(Outcome):
    """What an open-loop run came to.

    rate: arrivals a second.
    latency: from the time a message should have been sent to its arrival (ns), so a stall is
        counted against every message that it delays.
    lag: how late the generator itself handed messages over (ns).
    """

    rate: float
    latency: Histogram = field(default_factory=Histogram)
    lag: Histogram = field(default_factory=Histogram)

    def percentiles(self) -> dict[str, float]:
        """p50, p90, p99, p99.9 and max, ms."""
        points = {f"p{p:g}": self.latency.percentile(p) for p in (50, 90, 99, 99.9)}
        return points | {"max": self.latency.maximum / 1e6}


@dataclass(slots=True)
class ConnectionsResult:
    """Connections a second (CONNECT to CONNACK) and what an idle one costs in the broker's resident
    memory (bytes)."""

    connections: int
    seconds: float
    rate: float
    rss_before: int | None
    rss_after: int | None

    @property
    def bytes_each(self) -> float | None:
        """Resident bytes for each idle connection, None without a pid."""
        if self.rss_before is None or self.rss_after is None:
            return None
        return (self.rss_after - self.rss_before) / self.connections
