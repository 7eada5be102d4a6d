"""Who publishes and subscribes where, and what all of a run may be, drawn from its seed. Only
values."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.chaos.world import SHAPES

GROUPS = 5
ROUTINGS = ("topic", "interest", "flood")
SLOW = 20.0
"""messages a second of publishers for sessions that roam: the backlog of one that is away has to
fit its queue (10,000)."""
SELDOM = 0.1
"""large messages a second."""
LARGEST = 50 << 20
"""bytes."""
SIZE = 48
"""bytes of the payload of all other messages."""
ROVERS = 4
MEMBERS = 4
SHARE = 0.25
"""How much of the rate is for the shared subscription."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """A publisher; `large`: most bytes of its messages, 0 for small ones."""

    number: int
    broker: int
    qos: int
    topic: bytes
    rate: float
    large: int = 0


@dataclass(frozen=True, slots=True)
class Listener:
    """A subscriber; `kind`: plain (new with each connection), rover (its session roams), stayer
    (its session stays at its broker), member (of the group)."""

    number: int
    kind: str
    broker: int
    filter: str
    hears: tuple[int, ...]

    @property
    def name(self) -> str:
        """What the tables call it."""
        return f"{'subscriber' if self.kind == 'plain' else self.kind} {self.number}"


@dataclass(frozen=True, slots=True)
class Plan:
    """All clients."""

    ports: tuple[int, ...]
    speakers: tuple[Speaker, ...]
    listeners: tuple[Listener, ...]
    homes: tuple[int, ...]
    """Where sessions roam, members are, and publishers for both."""
    present: tuple[int, ...]
    """Brokers that are there from the beginning."""
    processes: int = 2


@dataclass(slots=True)
class Draw:
    """What a run is like."""

    brokers: int
    clients: int
    rate: float
    shape: str
    routing: str
    large: bool
    roam: bool
    shared: bool
    late: int
    slow: bool
    diskless: bool = False
    stay: bool = False

    def __str__(self) -> str:
        words = [
            word
            for word in ("large", "roam", "shared", "stay", "slow", "diskless")
            if getattr(self, word)
        ]
        words += [f"{self.late} late"] if self.late else []
        return (
            f"{self.brokers} brokers, {self.shape}, {self.routing}, {self.rate:g}/s, "
            f"{' '.join(words) or 'plain'}"
        )


def draw(rng: random.Random, clients: int, rate: float) -> Draw:
    """Return a run."""
    # The fifth is not used: the others stay what they were with a seed.
    maybe = [rng.random() < 0.5 for _ in range(5)]
    return Draw(
        brokers=rng.choice((3, 5, 7)),
        clients=clients,
        rate=rate,
        shape=rng.choice(SHAPES),
        routing=rng.choice(ROUTINGS),
        large=maybe[0],
        roam=maybe[1],
        shared=maybe[2],
        late=int(maybe[3]),
        slow=rng.random() < 0.5,
    )


def plan(draw: Draw, ports: list[int], publishers: int, subscribers: int) -> Plan:
    """Return who is where."""
    count = len(ports)
    homes = () if draw.diskless else tuple(range(count - draw.late))
    speakers: list[Speaker] = []
    share = SHARE if draw.shared else 0.0
    for p in range(publishers):
        topic = b"chaos/%d/%d" % (p % GROUPS, p)
        speakers.append(
            Speaker(p, p % count, 1 + p % 2, topic, (1 - share) * draw.rate / publishers)
        )
    plain = len(speakers)

    def extra(topic: bytes, rate: float, large: int = 0) -> tuple[int, ...]:
        """Two more publishers, one for each QoS."""
        first = len(speakers)
        for qos in (1, 2):
            broker = homes[(first + qos) % len(homes)]
            speakers.append(
                Speaker(first + qos - 1, broker, qos, topic + b"/%d" % qos, rate, large)
            )
        return first, first + 1

    listeners: list[Listener] = []
    groups = min(GROUPS, publishers)
    for s in range(subscribers):
        group = None if s < count else s % groups
        hears = tuple(p for p in range(plain) if group in (None, p % GROUPS))
        topics = "chaos/#" if group is None else f"chaos/{group}/#"
        listeners.append(Listener(s, "plain", -(s + 1) % count, topics, hears))
    if draw.large:
        hears = extra(b"large", SELDOM, LARGEST)
        listeners += [
            Listener(len(listeners) + n, "plain", n % count, "large/#", hears) for n in range(2)
        ]
    if draw.roam:
        hears = extra(b"rove", SLOW)
        listeners += [
            Listener(n, "rover", homes[n % len(homes)], "rove/#", hears) for n in range(ROVERS)
        ]
    if draw.stay:
        hears = tuple(range(len(speakers), len(speakers) + len(homes)))
        speakers += [
            Speaker(number, home, 1 + number % 2, b"stay/%d" % number, SLOW / 2)
            for number, home in zip(hears, homes, strict=True)
        ]
        listeners += [Listener(home, "stayer", home, "stay/#", hears) for home in homes]
    if draw.shared:
        hears = extra(b"work", share * draw.rate / 2)
        listeners += [
            Listener(n, "member", homes[n % len(homes)], "$share/g/work/#", hears)
            for n in range(MEMBERS)
        ]
    return Plan(
        tuple(ports), tuple(speakers), tuple(listeners), homes, tuple(range(count - draw.late))
    )
