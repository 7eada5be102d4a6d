"""Versions of the link protocol, so that brokers of two releases can be one federation (docs/decisions/0017).

    1  BPDU, MEMBERS, SEEN, ASK_SEEN, ORIGINS, WANT, DONE; every PUBLISH above QoS 0 says where it comes from
    2  runs of QoS 1 and 2 (decision 5); stamps on retained messages and their comparison (0014); the directory, messages to one
       broker, and with them all that needs to know who is where and wants what (0013)

Each broker says the newest version that it speaks and the oldest. A link has the newest that both speak. What is made for a newer
version is put into the words of an older one in one place, the outbox of such a link, so that all others cost nothing more.
"""

from __future__ import annotations

from broker.origin import MARK, SIZE, STAMP_MARK, STAMP_SIZE, decode_sequence, decode_stamp, explicit
from broker.records import DONE
from broker.wire.varint import encode_varint, read_length

OLDEST, NEWEST = 1, 2
"""Versions that this release speaks."""

SELECTIVE = 2
"""The oldest version in which numbers can be skipped: without it there is no routing by interest."""

LAST_KIND = {1: DONE}
"""The highest type of a record that a version knows; later versions know all of ours."""


def common(ours: tuple[int, int], theirs: tuple[int, int]) -> int:
    """Return the version of a link between two that speak (oldest, newest) each; 0 when there is none."""
    version = min(ours[1], theirs[1])
    return version if version >= max(ours[0], theirs[0]) else 0


def named(versions: tuple[int, int]) -> str:
    """Return how log lines call a range of versions."""
    oldest, newest = versions
    return str(newest) if oldest == newest else f"{oldest} to {newest}"


class OldOutbox(list[bytes]):
    """The outbox of a link of version 1."""

    __slots__ = ()

    def append(self, data: bytes) -> None:
        """Queue whole packets in the words of version 1; what it has none for is not sent."""
        if data[0] >> 4 == 3 and data[0] != 0x30 and not (data := for_version_1(data)):
            return
        super().append(data)


def for_version_1(data: bytes) -> bytes:
    """Return PUBLISH packets, the first of which says where it comes from, as version 1 has them: each of them says it, and
    none says when it was written. What comes of comparing retained messages is left out: it has no place in the stream."""
    packets = []
    position = 0
    key = b""
    sequence = 0
    while position < len(data):
        length, body = read_length(data, position + 1)
        end = body + length
        start = body + 2 + (data[body] << 8 | data[body + 1]) + (2 if data[position] & 0x06 else 0)
        size, at = read_length(data, start)
        if data.startswith(MARK, at):
            key = data[at + len(MARK) : at + len(MARK) + 16]
            sequence = decode_sequence(data[at + len(MARK) + 16 : at + SIZE])
            if data.startswith(STAMP_MARK, at + SIZE):
                stamp = decode_stamp(data[at + SIZE : at + size])
                if stamp is None or not stamp.restored:
                    section = encode_varint(size - STAMP_SIZE) + data[at : at + SIZE] + data[at + SIZE + STAMP_SIZE : at + size]
                    rest = data[body:start] + section + data[at + size : end]
                    packets.append(data[position : position + 1] + encode_varint(len(rest)) + rest)
            else:
                packets.append(data[position:end])
        else:
            sequence += 1
            packets.append(explicit(data[position:end], key, sequence))
        position = end
    return b"".join(packets)
