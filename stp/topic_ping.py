"""The topic PINGREQ and PINGRESP of Overlays 4.1.2, and their bytes.

A topic PINGREQ says what the paper lists: the topic, the sender's capability, its path cost to the
root of the topic's overlay, of how many overlays it is the root (R), and how many clients it has.
What follows is what the paper has only in the PINGREQ of the single overlay (the root), or does not
say: the root's sequence number, the sender's parent, and flags.

Layout of one topic PINGREQ, big endian; a record has one or more of them::

    topic length u16 | topic (UTF-8) | flags u8
    sender capability u32 (tenths) | path cost u32 (microseconds) | R u32 | clients u32
    root id 8 | root boot u32 | root merit u32 (tenths) | root seq u32 | parent id 8
    root port u16 | root host length u8 | root host (UTF-8)

A topic PINGRESP is the topic alone: length u16 | topic.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from mqttree.broker.base.address import Address
from mqttree.broker.base.broker_id import ID_BYTES
from mqttree.stp.priority_vector import MAX_COST_US, RootVector

FORMING: Final = 1
"""The sender still collects answers: it is a member, and its claim does not count yet."""
LEAVING: Final = 2
"""The sender has no publisher and no subscriber of the topic any more."""
ASKS: Final = 4
"""The sender knows of a better root that it may not follow yet: that root is to number its claim
again."""

_U32 = 0xFFFFFFFF
_BODY = struct.Struct(f"!BIIII{ID_BYTES}sIII{ID_BYTES}sHB")


class TopicPingError(ValueError):
    """The bytes, or the values to encode, are no topic PINGREQ or PINGRESP."""


class TopicPing(NamedTuple):
    """One broker's topic PINGREQ."""

    topic: bytes
    """UTF-8."""
    root: RootVector
    """The root that the sender follows. Its `tenths` are its merit by the root policy."""
    seq: int
    """Newest sequence number of the root that reached the sender (u32)."""
    path_cost_us: int
    """Pt: cost of the sender's path to the root (microseconds)."""
    parent: bytes
    """Id of the neighbour through which that path leads; the sender's own: it is the root."""
    tenths: int
    """C: the sender's own capability, in tenths."""
    rooted: int
    """R: the overlays of which the sender is the root, without this one."""
    clients: int
    """Clients that are connected to the sender."""
    flags: int = 0
    """`FORMING`, `LEAVING`, `ASKS`."""


def encode_ping(ping: TopicPing) -> bytes:
    """Return the bytes of a topic PINGREQ. Raises TopicPingError for values out of range."""
    root = ping.root
    host = root.address[0].encode("utf-8", "surrogatepass")
    if len(root.id) != ID_BYTES or len(ping.parent) != ID_BYTES:
        raise TopicPingError(f"a broker id has {ID_BYTES} bytes")
    if not 0 <= ping.path_cost_us <= MAX_COST_US:
        raise TopicPingError(f"path cost out of range: {ping.path_cost_us} us")
    try:
        return _topic(ping.topic) + (
            _BODY.pack(
                ping.flags,
                ping.tenths,
                ping.path_cost_us,
                min(ping.rooted, _U32),
                min(ping.clients, _U32),
                root.id,
                root.boot,
                root.tenths,
                ping.seq,
                ping.parent,
                root.address[1],
                len(host),
            )
            + host
        )
    except struct.error as error:
        raise TopicPingError(f"topic PINGREQ field out of range: {error}") from None


def _topic(topic: bytes) -> bytes:
    if not 0 < len(topic) < 65536:
        raise TopicPingError(f"topic of {len(topic)} bytes")
    return len(topic).to_bytes(2, "big") + topic


def decode_pings(data: bytes) -> list[TopicPing]:
    """Return the topic PINGREQs of a record. Raises TopicPingError for anything short or not
    believable; nothing else."""
    pings: list[TopicPing] = []
    at = 0
    while at < len(data):
        topic, at = _read_topic(data, at)
        if len(data) < at + _BODY.size:
            raise TopicPingError("topic PINGREQ is cut short")
        fields = _BODY.unpack_from(data, at)
        flags, tenths, cost, rooted, clients, root_id, boot, merit, seq, parent, port, size = fields
        at += _BODY.size
        if len(data) < at + size:
            raise TopicPingError("topic PINGREQ is cut short")
        if cost > MAX_COST_US:
            raise TopicPingError(f"path cost of {cost} us is over an hour")
        try:
            address = Address(data[at : at + size].decode(), port)
        except UnicodeDecodeError:
            raise TopicPingError("root host is not UTF-8") from None
        at += size
        root = RootVector(root_id, boot, merit, address)
        pings.append(TopicPing(topic, root, seq, cost, parent, tenths, rooted, clients, flags))
    return pings


def _read_topic(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the topic that begins `at` there, and where it ends."""
    begin = at + 2
    end = begin + int.from_bytes(data[at:begin], "big")
    if begin == end or end > len(data):
        raise TopicPingError("topic is empty or cut short")
    return data[begin:end], end


def encode_topics(topics: Iterable[bytes]) -> bytes:
    """Return topic PINGRESPs for `topics`. Raises TopicPingError: a topic is empty or too long."""
    return b"".join([_topic(topic) for topic in topics])


def decode_topics(data: bytes) -> list[bytes]:
    """Return the topics of a record of topic PINGRESPs. Raises TopicPingError: it is cut short."""
    topics: list[bytes] = []
    at = 0
    while at < len(data):
        topic, at = _read_topic(data, at)
        topics.append(topic)
    return topics
