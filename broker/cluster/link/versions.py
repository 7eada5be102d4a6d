"""Versions of the link protocol, so that brokers of two releases can be one federation
(docs/decisions/0017).

    1  BPDU, MEMBERS, SEEN, ASK_SEEN, ORIGINS, WANT, DONE; every PUBLISH above QoS 0 says where it
       comes from
    2  runs of QoS 1 and 2 (decision 5); stamps on retained messages and their comparison (0014);
       the directory, messages to one broker, and with them all that needs to know who is where and
       wants what (0013)

Each broker says the newest version that it speaks and the oldest. A link has the newest that both
speak. What is made for a newer version is put into the words of an older one in one place, the
outbox of such a link, so that all others cost nothing more.
"""

from __future__ import annotations

from broker.cluster.link.codec import (
    MARK,
    ORIGIN,
    SIZE,
    STAMP_MARK,
    STAMP_SIZE,
    decode_sequence,
    decode_stamp,
    explicit,
)
from broker.cluster.link.control_records import DONE
from broker.cluster.link.receiver_assignment import FOR_ALL
from broker.wire.varint import encode_varint, read_length

OLDEST, NEWEST = 1, 2
"""Versions that this release speaks."""

SELECTIVE = 2
"""The oldest version in which numbers can be skipped: without it there is no routing by
interest."""

LAST_KIND = {1: DONE}
"""The highest type of a record that a version knows; later versions know all of ours."""


def common(ours: tuple[int, int], theirs: tuple[int, int]) -> int:
    """Return the version of a link between two that speak (oldest, newest) each; 0 when there is
    none."""
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
        if (
            data[0] >> 4 == 3
            and (data[0] != 0x30 or names_receivers(data))
            and not (data := for_version_1(data))
        ):
            return
        super().append(data)


def names_receivers(data: bytes) -> bool:
    """Whether a PUBLISH at QoS 0 says who of shared subscriptions gets it."""
    body = read_length(data, 1)[1]
    at = read_length(data, body + 2 + (data[body] << 8 | data[body + 1]))[1]
    return data.startswith(ORIGIN, at) and not data.startswith(MARK, at)


def for_version_1(data: bytes) -> bytes:
    """Return PUBLISH packets, the first of which says where it comes from, as version 1 has them:
    each of them says it, and nothing else of ours. What is for one group of subscribers alone, and
    what comes of comparing retained messages, has no place in its stream and is left out."""
    packets = []
    position = 0
    # origin and sequence as they stand in the last packet that has them, and how many came behind
    # it
    text = b""
    behind = 0
    while position < len(data):
        length, body = read_length(data, position + 1)
        end = body + length
        start = body + 2 + (data[body] << 8 | data[body + 1]) + (2 if data[position] & 0x06 else 0)
        size, at = read_length(data, start)
        if data.startswith(ORIGIN, at):
            text, behind = data[at + len(MARK) : at + SIZE], 0
            after = at + len(MARK) + (data[at + len(ORIGIN)] << 8 | data[at + len(ORIGIN) + 1])
            alone = after > at + SIZE and data[at + SIZE : at + SIZE + 1] not in FOR_ALL
            if data.startswith(STAMP_MARK, after):
                stamp = decode_stamp(data[after : at + size])
                alone = alone or stamp is None or stamp.restored
                after += STAMP_SIZE
            if not alone:
                section = MARK + text + data[after : at + size]
                rest = (
                    data[body:start] + encode_varint(len(section)) + section + data[at + size : end]
                )
                packets.append(data[position : position + 1] + encode_varint(len(rest)) + rest)
        else:
            behind += 1
            packets.append(
                explicit(data[position:end], text[:16], decode_sequence(text[16:]) + behind)
            )
        position = end
    return b"".join(packets)
