"""What a mixed load publishes: which topics, which sizes, in which order. Pure.

One cycle of messages is drawn and encoded once. Message k of it has a random topic and a random
size; every publisher goes through the cycle from a place of its own, again and again, so that
neighbouring packets of a connection differ in topic and length. Only a few bytes of a message are
not in the encoded cycle: who published it, in which turn through the cycle, and when. They stand
together behind a mark, so that one `bytes.join` with these bytes as its separator makes a batch.

Payload: MARK, publisher (4 hex digits), turn (4), send time (13, ns of the monotonic clock),
place in the cycle (5), then filler. No other byte of a PUBLISH at QoS 0 equals MARK.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Literal

from mqttree.bench.load import packets
from mqttree.bench.load.outcome import LoadError

CYCLE = 1 << 17
"""Messages that are drawn: 93 % of 50,000 topics are among them."""
MARK = b"\x1b"
FILLER = b"x"
LABEL_BYTES = 27
"""MARK, publisher, turn, send time and place."""
MIN_PAYLOAD, MAX_PAYLOAD = 32, 2000
"""bytes: filler enough to be recognised, and no byte of the length that equals MARK."""
MAX_PUBLISHERS = 4096
MAX_SUBSCRIBERS = 200
MAX_TOPICS = 99_999
_IDENTIFIERS = 1 << 15
_TURNS = 1 << 16


@dataclass(frozen=True, slots=True)
class MixSpec:
    """One mixed load: each message from some publisher to a random one of the topics, with a random
    size.

    port, subscriber_port: where publishers and subscribers connect (None: at the same broker).
    subscribers: number i has the filter `topic/i/+`; topics are dealt out to them in turn.
    window: messages in flight for each publisher, at QoS 0 on average over all of them.
    rate: messages a second of all publishers together, by the clock, each from a random publisher;
        None: as many as the windows let through.
    least, most: payload, bytes.
    expiry: Message Expiry Interval of each message, s; 0: they do not expire.
    clean: whether sessions end with their connection.
    settle: s between the last subscription and the first message.
    warmup, seconds, drain: s; drain is how long without any progress the end waits for the rest.
    processes: of the generator.
    cores: one for each process to run on, in turn (empty: wherever the kernel likes).
    trusted: file with the certificate of the brokers (TLS).
    """

    host: str = "127.0.0.1"
    port: int = 1883
    subscriber_port: int | None = None
    publishers: int = 100
    subscribers: int = 20
    topics: int = 50_000
    qos: int = 0
    window: int = 100
    rate: float | None = None
    least: int = 32
    most: int = 256
    version: int = 4
    user_properties: int = 0
    expiry: int = 0
    transport: Literal["tcp", "tls", "ws"] = "tcp"
    trusted: str = ""
    clean: bool = True
    settle: float = 0.0
    warmup: float = 0.5
    seconds: float = 3.0
    drain: float = 5.0
    processes: int = 1
    cores: tuple[int, ...] = ()
    topic: str = "mix"
    seed: int = 1

    def check(self) -> None:
        """Raise ValueError, in one clear line, for a load that cannot be run."""
        for name, least, most in (
            ("publishers", 1, MAX_PUBLISHERS),
            ("subscribers", 1, MAX_SUBSCRIBERS),
            ("topics", self.subscribers, MAX_TOPICS),
            ("qos", 0, 2),
            ("window", 1, _IDENTIFIERS - 1),
            ("least", MIN_PAYLOAD, self.most),
            ("most", self.least, MAX_PAYLOAD),
            ("version", 4, 5),
            ("user_properties", 0, 100 if self.version == 5 else 0),
            ("expiry", 0, 0xFFFFFFFF if self.version == 5 else 0),
            ("processes", 1, 64),
        ):
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be {least:,} to {most:,}")
        if self.seconds <= 0 or self.warmup < 0 or self.drain < 0 or self.settle < 0:
            raise ValueError("seconds must be positive, warmup, drain and settle not negative")
        if self.rate is not None and self.rate <= 0:
            raise ValueError("rate must be positive")
        if not re.fullmatch("[a-z]{1,8}", self.topic):
            raise ValueError("topic must be one to eight letters from a to z")
        if self.transport not in ("tcp", "tls", "ws"):
            raise ValueError("transport must be tcp, tls or ws")

    def filter(self, subscriber: int) -> str:
        """Return the topic filter of a subscriber."""
        return f"{self.topic}/{subscriber:03d}/+"

    @property
    def properties(self) -> bytes:
        """The properties of each PUBLISH as bytes, their length included; empty before MQTT 5."""
        if self.version < 5:
            return b""
        pairs = b"".join(
            b"\x26" + packets.string(f"key-{i:04d}") + packets.string(f"value-{i:04d}")
            for i in range(self.user_properties)
        )
        expiry = b"\x02" + self.expiry.to_bytes(4, "big") if self.expiry else b""
        return packets.varint(len(expiry + pairs)) + expiry + pairs


class Mixture:
    """The encoded cycle of one load; the same for all processes that are given the same spec."""

    def __init__(self, spec: MixSpec) -> None:
        """Draw and encode the messages that `spec` asks for."""
        self._spec = spec
        draw = random.Random(spec.seed)
        names = [
            packets.string(f"{spec.topic}/{number % spec.subscribers:03d}/{number:05d}~")
            for number in range(spec.topics)
        ]
        topics = draw.choices(range(spec.topics), k=CYCLE)
        sizes = draw.choices(range(spec.least, spec.most + 1), k=CYCLE)
        self.owner = bytes(topic % spec.subscribers for topic in topics)
        """Which subscriber gets message k."""
        self._starts = draw.choices(range(CYCLE), k=spec.publishers)
        first, properties = bytes((0x30 | spec.qos << 1,)), spec.properties
        beside = len(names[0]) + (2 if spec.qos else 0) + len(properties)
        lengths = {
            size: first + packets.varint(beside + size) for size in range(spec.least, spec.most + 1)
        }
        fillers = {size: FILLER * (size - LABEL_BYTES) for size in range(spec.least, spec.most + 1)}
        if spec.qos:
            self._heads = [
                lengths[size] + names[topic] + identifier(place) + properties
                for place, (topic, size) in enumerate(zip(topics, sizes, strict=True))
            ]
        else:
            self._heads = [
                lengths[size] + names[topic] + properties
                for topic, size in zip(topics, sizes, strict=True)
            ]
        self._tails = [b"%05x" % place + fillers[size] for place, size in enumerate(sizes)]
        # What is between two stamps: the end of one message and the beginning of the next one.
        self._between = (
            [
                tail + head
                for tail, head in zip(self._tails, self._heads[1:] + self._heads[:1], strict=True)
            ]
            if spec.rate is None
            else []
        )

    def start(self, publisher: int) -> int:
        """Return the number of the first message of a publisher; the next ones are counted up."""
        return self._starts[publisher]

    def one(self, publisher: int, number: int, stamp: int) -> bytes:
        """Return message `number` of `publisher`, sent at `stamp` (ns)."""
        place = number % CYCLE
        return self._heads[place] + stamped(publisher, number, stamp) + self._tails[place]

    def batch(self, publisher: int, number: int, count: int, stamp: int) -> bytes:
        """Return `count` messages of `publisher` from `number` on, all sent at `stamp` (ns); they
        must not go beyond the end of the cycle (`room`)."""
        place = number % CYCLE
        last = place + count - 1
        return stamped(publisher, number, stamp).join(
            [self._heads[place], *self._between[place:last], self._tails[last]]
        )

    def next_own(self, subscriber: bytes, number: int) -> int:
        """Return the number of the next message after `number` of the same publisher that goes to
        the subscriber whose index is the byte `subscriber`. Raises LoadError if it gets none."""
        turn, place = divmod(number, CYCLE)
        found = self.owner.find(subscriber, place + 1)
        if found >= 0:
            return turn * CYCLE + found
        found = self.owner.find(subscriber)
        if found < 0:
            raise LoadError(f"subscriber {subscriber[0]} has no topic")
        return (turn + 1) * CYCLE + found

    def first_own(self, subscriber: bytes, publisher: int) -> int:
        """Return the number of the first message of `publisher` that goes to the subscriber whose
        index is the byte `subscriber`. Raises LoadError if it gets none."""
        return self.next_own(subscriber, self.start(publisher) - 1 + CYCLE) - CYCLE


def room(number: int) -> int:
    """Return how many messages from `number` on are left in this turn through the cycle."""
    return CYCLE - number % CYCLE


def identifier(place: int) -> bytes:
    """Return the packet identifier of the message at a place of the cycle."""
    return (place % _IDENTIFIERS + 1).to_bytes(2, "big")


def stamped(publisher: int, number: int, stamp: int) -> bytes:
    """Return what all messages of a batch have in common: MARK, `publisher`, the turn through the
    cycle that `number` belongs to, and the send time `stamp` (ns)."""
    return b"\x1b%04x%04x%013x" % (publisher, number // CYCLE % _TURNS, stamp)
