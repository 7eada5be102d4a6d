"""What brokers tell each other besides messages: typed records in the payload of a PINGREQ.

A record is u8 type, u24 length, body. Types that a broker does not know are skipped.
"""

from __future__ import annotations

from typing import NamedTuple

from mqttree.broker.wire.errors import MalformedPacket


class RecordType(NamedTuple):
    """What a kind of record is called, who sends it, and what it costs its receiver."""

    number: int
    name: str
    answers: str = ""
    """The name of the record that it answers; "": either end sends it by itself."""
    costly: bool = False
    """Its receiver walks through tables to answer it."""
    paced: bool = False
    """Honest neighbours send it often, on behalf of all behind them; each broker paces how many it
    sends itself."""


MAX_PING_PAYLOAD = 1024 * 1024
"""bytes of records in one PINGREQ on a link; all origins with their gaps fit twice (SEEN, ORIGINS),
and the members. Larger: garbage [link_garbage]."""

PING, BPDU, MEMBERS, SEEN, ASK_SEEN, ORIGINS = 1, 2, 3, 4, 5, 6
DIRECTORY, ROUTED, UPTO, TOLD, HEARD = 9, 10, 11, 12, 13
DIGEST, PARTS, LIST, FETCH = 16, 17, 18, 19
AGES = 24
PUBADV, FILTERS = 25, 26
TOPIC_PINGREQ, TOPIC_PINGRESP = 27, 28

RECORDS = (
    RecordType(PING, "PING"),
    RecordType(BPDU, "BPDU"),
    RecordType(MEMBERS, "MEMBERS", costly=True),
    RecordType(SEEN, "SEEN", costly=True),
    RecordType(ASK_SEEN, "ASK_SEEN", costly=True),
    RecordType(ORIGINS, "ORIGINS", costly=True),
    RecordType(DIRECTORY, "DIRECTORY", paced=True),
    RecordType(ROUTED, "ROUTED", paced=True),
    RecordType(UPTO, "UPTO"),
    RecordType(TOLD, "TOLD", paced=True),
    RecordType(HEARD, "HEARD", answers="TOLD", paced=True),
    RecordType(DIGEST, "DIGEST", costly=True),
    RecordType(PARTS, "PARTS"),
    RecordType(LIST, "LIST"),
    RecordType(FETCH, "FETCH"),
    RecordType(AGES, "AGES"),
    RecordType(PUBADV, "PUBADV", paced=True),
    RecordType(FILTERS, "FILTERS", paced=True),
    RecordType(TOPIC_PINGREQ, "TOPIC_PINGREQ", paced=True),
    RecordType(TOPIC_PINGRESP, "TOPIC_PINGRESP", answers="TOPIC_PINGREQ", paced=True),
)
"""All records; their fields are in docs/reference/link-protocol.md. `Cluster` has the table of who
takes which; PING brings the number that the PINGRESP repeats."""

COSTLY = frozenset(record.number for record in RECORDS if record.costly)
PACED = frozenset(record.number for record in RECORDS if record.paced)


def encode_record(kind: int, body: bytes) -> bytes:
    """Encode one record of a PINGREQ."""
    return bytes((kind,)) + len(body).to_bytes(3, "big") + body


def decode_records(data: bytes) -> list[tuple[int, bytes]]:
    """Split the payload of a PINGREQ into (type, body).

    Raises:
        MalformedPacket: truncated or too large.
    """
    if len(data) > MAX_PING_PAYLOAD:
        raise MalformedPacket("PINGREQ on a link is too large")
    records = []
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at + 1 : at + 4], "big")
        if at + 4 > len(data) or end > len(data):
            raise MalformedPacket("record in PINGREQ is truncated")
        records.append((data[at], data[at + 4 : end]))
        at = end
    return records


def work(kind: int, size: int) -> float:
    """Return what it costs to answer a record of `size` bytes, in units of
    `Limits.link_requests`;
    SEEN costs a `walk` besides."""
    # Most of it is passed on, or is messages, which cost no more than in a PUBLISH.
    if kind == ROUTED:
        return 0.1 + size / 500_000
    if kind in PACED:
        return 0.1 + size / 50_000
    return 1.0 + size // 1000 + (9 if kind in COSTLY else 0)


def walk(kept: int) -> float:
    """Return what it costs to go through a log of so many entries, in the same units."""
    return 1.0 + kept / 2000
