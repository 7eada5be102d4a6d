"""Publishers and subscribers of a mixed load, each on a channel of its own."""

from __future__ import annotations

import select
import time

from mqttree.bench.load import packets, scan
from mqttree.bench.load.channel import Channel
from mqttree.bench.load.histogram import Histogram
from mqttree.bench.load.mixture import MixSpec, Mixture, room
from mqttree.bench.load.sequence import Sequence

_SAMPLED = 100
"""Messages of a chunk that are read one by one, if it is looked at,"""
_RARELY = 32
"""and for each of them so many are counted only."""


class MixPublisher:
    """One publisher: what is in flight, and which message is next."""

    __slots__ = ("_acknowledged", "_mixture", "channel", "done", "index", "next", "start")

    def __init__(self, channel: Channel, mixture: Mixture, index: int) -> None:
        """Publish on `channel` what `mixture` has for the publisher with this `index`."""
        self.channel, self._mixture, self.index = channel, mixture, index
        self.start = self.next = mixture.start(index)
        self.done = 0
        """QoS 1 and 2: messages whose handshake has ended."""
        self._acknowledged = scan.Acknowledged()

    @property
    def sent(self) -> int:
        """How many messages it has sent."""
        return self.next - self.start

    @property
    def in_flight(self) -> int:
        """How many messages wait for the end of their handshake (QoS 1 and 2)."""
        return self.next - self.start - self.done

    def publish(self, count: int) -> None:
        """Send the next `count` messages. Raises LoadError when the connection is lost."""
        while count > 0:
            size = min(count, room(self.next))
            now = time.monotonic_ns()
            if size == 1:
                self.channel.send(self._mixture.one(self.index, self.next, now))
            else:
                self.channel.send(self._mixture.batch(self.index, self.next, size, now))
            self.next += size
            count -= size

    def publish_at(self, due: int) -> None:
        """Send one message that says it was sent when it should have been: at `due` (ns). Raises
        LoadError."""
        self.channel.send(self._mixture.one(self.index, self.next, due))
        self.next += 1

    def ready(self, events: int) -> None:
        """Serve the channel after epoll reported these events: count what is acknowledged. Raises
        LoadError, and ValueError for what a publisher is not sent."""
        if events & select.EPOLLOUT:
            self.channel.flush()
        if events & ~select.EPOLLOUT:
            done, answer = self._acknowledged.take(self.channel.receive())
            self.done += done
            if answer:
                self.channel.send(answer)


class MixSubscriber:
    """One subscriber: counts all that comes, acknowledges it, and reads some of it."""

    __slots__ = ("_before", "_qos", "_scanner", "_since", "channel", "latency", "received", "seen")

    def __init__(self, channel: Channel, spec: MixSpec, mixture: Mixture, index: int) -> None:
        """Receive on `channel` what `spec` has for the subscriber with this `index`, checked
        against `mixture`."""
        self.channel, self._qos = channel, spec.qos
        topic = f"{spec.topic}/{index:03d}/".encode()
        self.seen = Sequence(mixture, index, spec.publishers, topic)
        self.latency: Histogram | None = None
        """Where delays go; None: they are not wanted."""
        self.received = 0
        self._scanner = scan.scanner(spec)
        # From the start of a PUBLISH's body to the stamp.
        self._before = 2 + len(topic) + 6 + (2 if spec.qos else 0) + len(spec.properties)
        self._since = _RARELY * _SAMPLED

    def ready(self, events: int) -> int:
        """Serve the channel after epoll reported these events; return how many messages came.
        Raises LoadError, and ValueError for messages that were not published so."""
        if events & select.EPOLLOUT:
            self.channel.flush()
        if not events & ~select.EPOLLOUT:
            return 0
        data = self.channel.receive()
        count, answer = self._scanner.take(data)
        if answer:
            self.channel.send(answer)
        self.received += count
        self._since += count
        if self._since > _RARELY * _SAMPLED:
            self._sample(data)
        return count

    def _sample(self, data: bytes) -> None:
        pos = scan.first_packet(data, self._before)
        if pos < 0:
            return
        self._since = 0
        now = time.monotonic_ns()
        # What was between this sample and the one before is not known; within it nothing is left
        # out.
        met: set[int] = set()
        # 2 KiB are a message at most.
        found, _ = scan.walk(data[pos : pos + _SAMPLED * 200], 0)
        for first, start, stop in found[:_SAMPLED]:
            if first & 0xF0 == 0x30:
                message = scan.read(data, pos + start, pos + stop, self._qos)
                self.seen.see(message, gap=message.publisher not in met)
                met.add(message.publisher)
                if self.latency is not None:
                    self.latency.add(now - message.stamp)


class PacedSubscriber(MixSubscriber):
    """One subscriber of a paced load: reads every message, and notes its delay."""

    __slots__ = ("_rest", "span")

    def __init__(self, channel: Channel, spec: MixSpec, mixture: Mixture, index: int) -> None:
        """As every `MixSubscriber`: on `channel`, what `spec` has for the one with this `index`,
        checked against `mixture`."""
        super().__init__(channel, spec, mixture, index)
        self._rest = b""
        self.span = (0, 1 << 62)
        """From when to when a message was sent (ns) whose delay counts."""

    def ready(self, events: int) -> int:
        """Serve the channel after epoll reported these events; return how many messages came.
        Raises LoadError, and ValueError for messages that were not published so."""
        if events & select.EPOLLOUT:
            self.channel.flush()
        if not events & ~select.EPOLLOUT:
            return 0
        data = self._rest + self.channel.receive()
        now = time.monotonic_ns()
        found, rest = scan.walk(data, 0)
        self._rest = data[rest:]
        answers, count, (begin, end) = [], 0, self.span
        for first, start, stop in found:
            if first & 0xF0 != 0x30:
                if first == 0x62:
                    answers.append(packets.PUBCOMP_HEAD + data[start : start + 2])
                continue
            count += 1
            message = scan.read(data, start, stop, self._qos)
            self.seen.see(message, gap=False)
            if self._qos:
                head = packets.PUBACK_HEAD if self._qos == 1 else packets.PUBREC_HEAD
                answers.append(head + message.identifier)
            if self.latency is not None and begin <= message.stamp < end:
                self.latency.add(now - message.stamp)
        if answers:
            self.channel.send(b"".join(answers))
        self.received += count
        return count
