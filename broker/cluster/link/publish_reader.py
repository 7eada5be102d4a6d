"""Reads the PUBLISH packets of one link, whose format is in `codec`, and hands them to the modules
that take messages."""

from __future__ import annotations

from typing import Final, Generic, Protocol, TypeVar

from mqttree.broker.base.counters import Counters
from mqttree.broker.cluster.link.codec import (
    MARK,
    RUNS,
    SIZE,
    decode_sequence,
    forwardable_whole,
    origin_end,
    run_of,
    sound_properties,
    split_stamp,
)
from mqttree.broker.cluster.link.message_batch import TOPIC_FIELD as BATCH
from mqttree.broker.core.message import LINK_ID, ORIGIN, Message, encode_halves
from mqttree.broker.core.publish_run import PublishRun
from mqttree.broker.core.receiver_assignment import ReceiverAssignment, decode_choice
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.broker.wire.publish_header import (
    QOS_BITS,
    RETAIN,
)
from mqttree.broker.wire.varint import read_length

BATCH_SIZE: Final = len(BATCH)

L = TypeVar("L")
L_contra = TypeVar("L_contra", contravariant=True)


class Receiver(Protocol[L_contra]):
    """Takes the messages that are read from a link."""

    def check(
        self, topic: bytes, first: int, sequence: int, count: int, often: bool = True
    ) -> None:
        """Refuse a PUBLISH before it is passed on. `topic`: its topic; `first`: its first byte;
        `sequence`: its number, or that of the first of `count`; `often`: more of its topic may
        come.

        Raises:
            MalformedPacket, ProtocolViolation: QoS 3, no topic name, or numbers that no broker
                reaches.
        """

    def accept(self, key: bytes, first: int, count: int, now: float, late: bool = True) -> int:
        """Take `count` sequence numbers from `first` on of the origin `key`, at `now` (s); returns
        how many are new, -1 for some. `late`: they may come after newer ones."""

    def received(
        self,
        link: L_contra,
        message: Message,
        key: bytes,
        sequence: int,
        data: bytes,
        now: float,
        choice: ReceiverAssignment | None = None,
    ) -> None:
        """Deliver here, and pass on, the `message` that came over `link` at `now` (s): number
        `sequence` of the origin `key`. `data`: the PUBLISH as it came; `choice`: its receiver
        assignment."""

    def run_received(
        self, link: L_contra, batch: PublishRun, key: bytes, sequence: int, data: bytes, now: float
    ) -> None:
        """Deliver here, and pass on, a run of QoS 1 or 2 packets (`batch`) that came over `link` at
        `now` (s): its first message is number `sequence` of the origin `key`. `data`: the packets
        as they came if the first one names the origin, else b""."""


class BatchReceiver(Protocol[L_contra]):
    """What takes batches of messages."""

    def received(self, link: L_contra, data: bytes, body: int, now: float) -> None:
        """Deliver here, and pass on, a batch (`data`) that came over `link` at `now` (s). `body`:
        where it begins behind its length.

        Raises:
            MalformedPacket, ProtocolViolation: no broker sends such a batch.
        """


class Restorer(Protocol[L_contra]):
    """Takes retained messages that a comparison of two brokers brought."""

    def restored(
        self, link: L_contra, message: Message, key: bytes, sequence: int, data: bytes, now: float
    ) -> None:
        """Take the `message` that a comparison brought over `link` at `now` (s): number `sequence`
        of the origin `key`. `data`: the PUBLISH as it came."""


class PublishReader(Generic[L]):
    """Reads the PUBLISH packets of one link and hands them to a `Receiver`.

    Every message that crosses a link goes through it. So what every message needs is written out in
    `read` (where the topic ends, the origin), and the receiver is called from here: a call more for
    each message costs 1 to 2 % of a hop.
    """

    __slots__ = ("_counters", "_key", "_link", "_receiver", "_restorer", "_sequence", "_take_batch")

    def __init__(
        self,
        link: L,
        receiver: Receiver[L],
        batches: BatchReceiver[L],
        restorer: Restorer[L],
        counters: Counters,
    ) -> None:
        """`link`: where they come from; `receiver`, `batches`, `restorer`: take what is read;
        `counters`: of the broker."""
        self._link = link
        self._take_batch = batches.received
        self._receiver = receiver
        self._restorer = restorer
        self._counters = counters
        # Of the last message, which the next one may continue.
        self._key = b""
        self._sequence = 0

    def read(self, data: bytes, position: int, body: int, end: int, now: float) -> int:
        """Read the PUBLISH in `data` from `position` to `end`, with the run of packets like it
        behind it; returns where the next packet begins. `body`: where it begins behind its length;
        `now`: s.

        Raises:
            MalformedPacket, ProtocolViolation: no broker sends such a PUBLISH.
        """
        if data[body : body + BATCH_SIZE] == BATCH:
            self._take_batch(self._link, data[position:end], body - position, now)
            self._key = b""
            return end
        first = data[position]
        if end - body < 3:
            raise MalformedPacket("PUBLISH is truncated")
        start = body + 2 + (data[body] << 8 | data[body + 1])
        topic = data[body + 2 : start]
        if first & QOS_BITS:
            start += 2
        length, at = read_length(data, start)
        payload = at + length
        if at < 0 or payload > end:
            raise MalformedPacket("PUBLISH is truncated")
        choice: ReceiverAssignment | None = None
        behind = at + SIZE
        if length < SIZE or not data.startswith(MARK, at):
            if length <= SIZE or not data.startswith(ORIGIN, at):
                return self._continued(data, position, payload, end, data[at:payload], now)
            behind = origin_end(data, at)
            if not at + SIZE < behind <= payload:
                raise MalformedPacket("origin has the wrong length")
            choice = decode_choice(data[at + SIZE : behind])
        key = data[at + SIZE - 24 : at + SIZE - 8]
        sequence = decode_sequence(data[at + SIZE - 8 : at + SIZE])
        properties = data[behind:payload]
        if choice is not None:
            choice.of(key, sequence)
        if first & RETAIN:
            packet = data[position:end]
            at = payload - position
            self._retained(packet, topic, at, properties, key, sequence, choice, now)
            return end
        receiver = self._receiver
        receiver.check(topic, first, sequence, 1)
        self._key, self._sequence = key, sequence
        expires_at: float | None = None
        if properties:
            expires_at, properties = sound_properties(properties, now)
        if (
            first in RUNS
            and end < len(data) - 2
            and data[end] == first
            # What continues this one is shorter: most likely more of the same.
            and data[end + 1] != data[position + 1]
            and expires_at is None
            and choice is None
        ):
            same = encode_halves(topic, data[payload:end], 5, first >> 1 & 3, False, properties)
            one = LINK_ID.join(same)
            after = self._run(data, position, payload, end, one, properties, now)
            if after > end:
                return after
        # Only what is whole and legal counts as having been here, and is passed on.
        if not receiver.accept(key, sequence, 1, now, bool(first & QOS_BITS)):
            self._counters.duplicates += 1
            return end
        content = data[payload:end]
        message = Message(topic, content, first >> 1 & 3, False, properties, expires_at, None)
        receiver.received(self._link, message, key, sequence, data[position:end], now, choice)
        return end

    def _retained(
        self,
        packet: bytes,
        topic: bytes,
        payload: int,
        properties: bytes,
        key: bytes,
        sequence: int,
        choice: ReceiverAssignment | None,
        now: float,
    ) -> None:
        """Take a retained message; `payload`: where in its `packet` the payload begins. One that a
        comparison brought does not follow its origin's order: its number may be 0, or old."""
        receiver, first = self._receiver, packet[0]
        stamp, properties = split_stamp(properties)
        restored = stamp.restored
        receiver.check(topic, first, sequence or restored, 1, not restored)
        if not restored:
            self._key = key
            self._sequence = sequence
        expires_at: float | None = None
        if properties:
            expires_at, properties = sound_properties(properties, now)
        if not restored and not receiver.accept(key, sequence, 1, now):
            self._counters.duplicates += 1
            return
        content, qos = packet[payload:], first >> 1 & 3
        message = Message(topic, content, qos, True, properties, expires_at, None)
        message.stamp = stamp
        if restored:
            self._restorer.restored(self._link, message, key, sequence, packet, now)
        else:
            receiver.received(self._link, message, key, sequence, packet, now, choice)

    def _continued(
        self, data: bytes, position: int, payload: int, end: int, properties: bytes, now: float
    ) -> int:
        """Read a QoS 1 or 2 packet that continues its predecessor, and the run that begins with
        it."""
        if data[position] not in RUNS or not self._key:
            raise MalformedPacket("PUBLISH on a link without its origin")
        if not forwardable_whole(properties):
            raise MalformedPacket(
                "PUBLISH on a link with properties that do not continue its predecessor"
            )
        self._sequence += 1
        return self._run(data, position, payload, end, data[position:end], properties, now)

    def _run(
        self,
        data: bytes,
        position: int,
        payload: int,
        end: int,
        one: bytes,
        properties: bytes,
        now: float,
    ) -> int:
        """Read the run of QoS 1 or 2 packets that begins at `position` with number `_sequence`;
        returns where it ends, `end` and nothing is done when the first one names its origin and
        none follows. `one`: that packet as it were without an origin."""
        packet = len(one)
        prefix = one[: packet - (end - payload)]
        last = len(data) - packet
        after = end
        startswith = data.startswith
        while after <= last and startswith(prefix, after):
            after += packet
        explicit = packet != end - position
        if explicit and after == end:
            return end
        run = run_of(one, data[end:after], len(prefix), properties)
        sequence, count = self._sequence, run.count
        self._receiver.check(run.topic, one[0], sequence, count)
        self._sequence = sequence + count - 1
        self._receiver.run_received(
            self._link, run, self._key, sequence, data[position:after] if explicit else b"", now
        )
        return after
