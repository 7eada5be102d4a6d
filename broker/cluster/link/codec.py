"""Where a message on a link was published: (broker id, boot, sequence), and which of them have been
here.

On a link the first property of a PUBLISH is a User Property "o" of 24 characters: 16 for id and
boot, 8 for the sequence (base64 without padding), so that it is legal MQTT 5 and can be read and
compared as it stands. A PUBLISH without it continues its predecessor on the link: same origin, next
sequence. At QoS 0 such a one has no properties at all; at QoS 1 and 2 it may, but none that could
be taken for an origin. A longer "o" goes on with who of shared subscriptions gets the message
(`receiver_assignment`). Retained messages have a User Property "h" of 20 characters behind it,
their `Stamp`.
"""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from typing import TYPE_CHECKING

from broker.base import limits
from broker.base.counters import Counters
from broker.base.sequence_set import (
    LAST,
    Ranges,
    decode_pairs,
    encode_pairs,
    find,
    intersect,
    merge,
    roughly,
    subtract,
)
from broker.core.message import LINK_ID, ORIGIN, Message, Stamp
from broker.wire.errors import MalformedPacket
from broker.wire.publish_header import PACKET_IDS, PUBLISH, QOS_BITS, topic_end
from broker.wire.varint import encode_varint, read_length

if TYPE_CHECKING:
    from broker.cluster.delivery.ordered_feed import OrderedFeed
    from broker.core.publish_run import PublishRun

__all__ = ["LAST", "Ranges", "intersect", "merge", "roughly", "subtract"]
"""Of sets of numbers, for those who work with windows."""

MARK = ORIGIN + b"\x00\x18"
SIZE = len(MARK) + 24
STAMP_MARK = b"\x26\x00\x01h\x00\x14"
STAMP_SIZE = len(STAMP_MARK) + 20


def origin_key(broker_id: bytes, boot: int) -> bytes:
    """Return the 16 characters that name (8-byte id, boot number)."""
    return b2a_base64(broker_id + boot.to_bytes(4, "big"), newline=False)


def split_key(key: bytes) -> tuple[bytes, int]:
    """Return (id, boot) of an origin's 16 characters.

    Raises:
        MalformedPacket: not base64.
    """
    try:
        raw = a2b_base64(key)
    except Base64Error:
        raise MalformedPacket("origin is not base64") from None
    if len(raw) != 12:
        raise MalformedPacket("origin has the wrong length")
    return raw[:8], int.from_bytes(raw[8:], "big")


def encode_origin(key: bytes, sequence: int, choice: bytes = b"") -> bytes:
    """Return the property (30 bytes, and `choice`)."""
    if choice:
        number = b2a_base64(sequence.to_bytes(6, "big"), newline=False)
        return ORIGIN + (24 + len(choice)).to_bytes(2, "big") + key + number + choice
    return MARK + key + b2a_base64(sequence.to_bytes(6, "big"), newline=False)


def decode_sequence(text: bytes) -> int:
    """Return the sequence number of its 8 characters.

    Raises:
        MalformedPacket: not base64.
    """
    try:
        raw = a2b_base64(text)
    except Base64Error:
        raise MalformedPacket("sequence is not base64") from None
    if len(raw) != 6:
        raise MalformedPacket("sequence has the wrong length")
    return int.from_bytes(raw, "big")


def encode_stamp(stamp: Stamp) -> bytes:
    """Return the property (26 bytes)."""
    raw = stamp.time.to_bytes(8, "big") + stamp.death.to_bytes(6, "big") + bytes((stamp.restored,))
    return STAMP_MARK + b2a_base64(raw, newline=False)


def decode_stamp(properties: bytes) -> Stamp | None:
    """Return the stamp that a property section begins with; None when it does not.

    Raises:
        MalformedPacket: not base64, or a time that cannot be.
    """
    if not properties.startswith(STAMP_MARK):
        return None
    try:
        raw = a2b_base64(properties[len(STAMP_MARK) : STAMP_SIZE])
    except Base64Error:
        raise MalformedPacket("stamp is not base64") from None
    if len(raw) != 15 or raw[0] & 0x80:
        raise MalformedPacket("stamp has the wrong length, or a time that cannot be")
    return Stamp(
        int.from_bytes(raw[:8], "big"), int.from_bytes(raw[8:14], "big"), bool(raw[14] & 1)
    )


def encode_link_publish(
    topic: bytes,
    payload: bytes,
    qos: int,
    retain: bool,
    properties: bytes,
    expiry: int | None,
    key: bytes,
    sequence: int,
    stamp: Stamp | None = None,
    choice: bytes = b"",
) -> bytes:
    """Encode a PUBLISH for links, once for all of them: the bytes stay the same on every hop;
    `expiry`: s left, or None; `stamp`: of a retained message; `choice`: who of shared subscriptions
    gets it, encoded."""
    section = encode_origin(key, sequence, choice)
    if stamp is not None:
        section += encode_stamp(stamp)
    if expiry is not None:
        section += b"\x02" + expiry.to_bytes(4, "big")
    section += properties
    middle = LINK_ID if qos else b""
    middle += encode_varint(len(section)) + section
    length = 2 + len(topic) + len(middle) + len(payload)
    return b"".join(
        (
            bytes((PUBLISH | qos << 1 | retain,)),
            encode_varint(length),
            PACKET_IDS[len(topic)],
            topic,
            middle,
            payload,
        )
    )


def encode_for_links(
    message: Message, key: bytes, sequence: int, now: float, choice: bytes = b""
) -> bytes:
    """Encode a message for links; `now` (s) gives the time that it has left; `choice` as in
    `encode_link_publish`."""
    return encode_link_publish(
        message.topic,
        message.payload,
        message.qos,
        message.retain,
        message.properties,
        remaining(message, now),
        key,
        sequence,
        message.stamp if message.retain else None,
        choice,
    )


def remaining(message: Message, now: float) -> int | None:
    """Return the s that a message has left at `now`, as its expiry interval (MQTT-3.3.2-6); None:
    it does not expire."""
    return (
        None
        if message.expires_at is None
        else max(0, min(0xFFFFFFFF, round(message.expires_at - now)))
    )


def explicit(packet: bytes, key: bytes, sequence: int) -> bytes:
    """Return a PUBLISH (MQTT 5) that continues another one as one that says itself where it comes
    from."""
    length, body = read_length(packet, 1)
    start = topic_end(packet, body) + (2 if packet[0] & QOS_BITS else 0)
    size, properties = read_length(packet, start)
    section = encode_origin(key, sequence)
    middle = encode_varint(len(section) + size) + section
    length += len(middle) - (properties - start)
    return b"".join(
        (packet[:1], encode_varint(length), packet[body:start], middle, packet[properties:])
    )


class OriginWindow:
    """Which sequence numbers of one origin have been here: all up to `top` except those in `gaps`
    (inclusive pairs).

    What was published before this broker met the origin, up to `begin`, is not delivered here.
    `history` is the part of it that is not missed either, and what nobody here or behind here
    wanted. It is taken all the same if it comes, to be passed on.
    """

    __slots__ = ("begin", "counters", "gaps", "heard", "history", "owed", "stream", "top")

    def __init__(self, top: int, heard: float, counters: Counters | None = None) -> None:
        """`counters`: where holes that are given up are counted; None for a neighbour's word."""
        self.top = top
        self.begin = 0
        self.gaps: Ranges = []
        self.history: Ranges = []
        # up to `begin`, but for sessions that are older than we are: they had all the rest
        self.owed: Ranges = []
        # Where somebody routes by interest: what those here have had.
        self.stream: OrderedFeed | None = None
        self.heard = heard  # s, for forgetting origins that are long gone
        self.counters = counters

    @property
    def lacks(self) -> Ranges:
        """All numbers that have not been here, those to come included."""
        return [*self.gaps, (self.top + 1, LAST)]

    def accept(self, first: int, count: int, *, skipped: bool = False) -> int:
        """Take `count` numbers from `first` on as seen; returns how many were new. Either all,
        none, or (then ask one by one) -1 and nothing is taken. `skipped`: those between were not
        wanted here, as the neighbour knows."""
        top = self.top
        if first == top + 1:
            self.top = top + count
            return count
        last = first + count - 1
        if first > top:
            if skipped:
                self.skip(top + 1, first - 1)
            else:
                self.gaps.append((top + 1, first - 1))
                if len(self.gaps) > limits.MAX_GAPS:
                    self.limit()
            self.top = last
            return count
        if last > top:
            return -1
        for ranges in (self.gaps, self.history):
            index = find(ranges, first, last)
            if index < 0:
                continue
            low, high = ranges[index]
            if first < low or last > high:
                return -1
            ranges[index : index + 1] = [
                g for g in ((low, first - 1), (last + 1, high)) if g[0] <= g[1]
            ]
            if ranges is self.gaps:
                self.limit()
            else:
                self._limit_history()
            return count
        return 0

    def skip(self, first: int, last: int) -> None:
        """Note numbers above all others as not wanted here: history, should somebody behind this
        broker want them."""
        history = self.history
        if history and history[-1][1] == first - 1:
            history[-1] = (history[-1][0], last)
            return
        history.append((first, last))
        self._limit_history()

    def _limit_history(self, most: int = limits.MAX_SKIPS) -> None:
        """Give up the oldest of too many: they are not passed on any more, should they come."""
        history = self.history
        if len(history) > most:
            beyond = len(history) - most + most // 4
            old = history[:beyond]
            del history[:beyond]
            if self.stream is not None and old[-1][1] > self.stream.done:
                self.stream.owe(intersect(old, [(self.stream.done + 1, LAST)]))

    def limit(self) -> None:
        """Give up the oldest of too many gaps: what is in them counts as seen from now on."""
        beyond = len(self.gaps) - limits.MAX_GAPS
        if beyond > 0:
            del self.gaps[:beyond]
            if self.counters is not None:
                self.counters.gaps_forgotten += beyond

    @property
    def ranges(self) -> int:
        """How many ranges are kept of it."""
        count = len(self.gaps) + len(self.history) + len(self.owed)
        return (
            count if self.stream is None else count + len(self.stream.owed) + len(self.stream.kept)
        )

    def give_up(self, most: int) -> int:
        """Keep `most` ranges of each kind, the newest, and those gaps that it may have; return how
        many are given up."""
        before = self.ranges
        self._limit_history(most)
        del self.owed[:-most]
        if self.stream is not None:
            del self.stream.owed[:-most]
            del self.stream.kept[:-most]
        return before - self.ranges

    def miss(self, theirs: OriginWindow) -> Ranges:
        """Miss from now on, and return, the history that a neighbour lacks too: who asks for it
        again finds none. It is from before we met the origin, so that it is not for those here when
        it comes (`begin`)."""
        if not self.history or not self.begin:
            return []
        found = intersect(
            intersect([*theirs.gaps, (theirs.top + 1, LAST)], self.history), [(1, self.begin)]
        )
        if found:
            self.history = subtract(self.history, found)
            self.gaps = merge(self.gaps + found)
            self.limit()
        return found

    def for_those_here(self, sequence: int) -> bool:
        """Whether a number that has just come is for those here, with flooding."""
        return sequence > self.begin or find(self.owed, sequence, sequence) >= 0

    def missing(self, sequence: int) -> bool:
        """Whether this number has not been here."""
        return sequence > self.top or find(self.gaps, sequence, sequence) >= 0


Vector = dict[bytes, OriginWindow]
"""origin key -> what has been here"""


def encode_vector(vector: Vector) -> bytes:
    """Encode what has been here, for a neighbour (record SEEN)."""
    parts = []
    most = limits.MAX_GAPS
    if (
        len(vector) * most > limits.MAX_VECTOR_GAPS
        and sum(len(w.gaps) for w in vector.values()) > limits.MAX_VECTOR_GAPS
    ):
        # The newest of each; of the others we say no more.
        most = max(1, limits.MAX_VECTOR_GAPS // len(vector))
    for key, window in vector.items():
        gaps = window.gaps[-most:]
        parts.append(a2b_base64(key) + window.top.to_bytes(6, "big") + bytes((len(gaps),)))
        parts.append(encode_pairs(gaps))
    return b"".join(parts)


def decode_vector(data: bytes, now: float) -> Vector:
    """Decode a SEEN record.

    Raises:
        MalformedPacket: truncated, or beyond the limits.
    """
    vector: Vector = {}
    at = 0
    while at < len(data):
        if at + 19 > len(data):
            raise MalformedPacket("SEEN record is truncated")
        key = b2a_base64(data[at : at + 12], newline=False)
        window = OriginWindow(int.from_bytes(data[at + 12 : at + 18], "big"), now)
        gaps = data[at + 18]
        at += 19
        if (
            gaps > limits.MAX_GAPS
            or at + 12 * gaps > len(data)
            or len(vector) >= limits.MAX_ORIGINS
        ):
            raise MalformedPacket("SEEN record is truncated or too large")
        window.gaps = decode_pairs(data[at : at + 12 * gaps], "SEEN record")
        if gaps and window.gaps[-1][1] > window.top:
            raise MalformedPacket("SEEN record is out of order")
        at += 12 * gaps
        vector[key] = window
    return vector


def encode_run_for_links(batch: PublishRun, key: bytes, sequence: int) -> bytes:
    """Return the packets of a run (of MQTT 5) for links: the first names its origin, the others,
    `batch.size` bytes each, continue it."""
    size, start = batch.size, batch.start
    packets = bytearray(batch.data)
    packets[start::size] = LINK_ID[:1] * batch.count
    packets[start + 1 :: size] = LINK_ID[1:] * batch.count
    payload = batch.data[batch.payload : size]
    packets[:size] = encode_link_publish(
        batch.topic, payload, batch.qos, False, batch.properties, None, key, sequence
    )
    return bytes(packets)
