"""The few MQTT packets that a load generator sends, encoded once before the run.

Independent of the broker's own codec on purpose: a mistake there must not cancel out here. Layouts:
MQTT 3.1.1 and 5, chapters 2 and 3.
"""

from __future__ import annotations

import struct

# fmt: off
(
    CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT,
) = (
    2,       3,       4,      5,      6,      7,       9,      11,       14,
)
# fmt: on
PUBACK_HEAD, PUBREC_HEAD, PUBREL_HEAD, PUBCOMP_HEAD = (
    b"\x40\x02",
    b"\x50\x02",
    b"\x62\x02",
    b"\x70\x02",
)
"""What is before the packet identifier in an acknowledgement without reason code."""
PINGREQ_BYTES = b"\xc0\x00"
DISCONNECT_BYTES = b"\xe0\x00"

_USER_PROPERTY = 0x26
_SESSION_NEVER_EXPIRES = b"\x05\x11\xff\xff\xff\xff"


def varint(value: int) -> bytes:
    """Encode a Variable Byte Integer (MQTT 5, 1.5.5); ValueError beyond 268,435,455."""
    if not 0 <= value <= 268_435_455:
        raise ValueError(f"{value} does not fit a Variable Byte Integer")
    out = bytearray()
    while True:
        value, digit = divmod(value, 128)
        out.append(digit | 0x80 if value else digit)
        if not value:
            return bytes(out)


def string(text: str | bytes) -> bytes:
    """Encode a UTF-8 string or binary data with its two-byte length (1.5.4)."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("!H", len(raw)) + raw


def packet(first: int, body: bytes) -> bytes:
    """Put the fixed header before a body."""
    return bytes((first,)) + varint(len(body)) + body


def connect(client_id: str, version: int, keep_alive: int = 0, *, clean: bool = True) -> bytes:
    """Return a CONNECT of `client_id` in protocol `version` 4 or 5; `keep_alive` is in seconds, 0
    switches it off. With `clean` there is no session, else it goes on with one that never
    expires."""
    body = string("MQTT") + bytes((version, 0x02 if clean else 0)) + struct.pack("!H", keep_alive)
    properties = b"" if version < 5 else b"\x00" if clean else _SESSION_NEVER_EXPIRES
    return packet(0x10, body + properties + string(client_id))


def subscribe(topic_filter: str, qos: int, version: int, packet_id: int = 1) -> bytes:
    """Return a SUBSCRIBE to one `topic_filter` at `qos`, for protocol `version` 4 or 5, with the
    packet identifier `packet_id`."""
    properties = b"\x00" if version == 5 else b""
    return packet(
        0x82, struct.pack("!H", packet_id) + properties + string(topic_filter) + bytes((qos,))
    )


def unsubscribe(topic_filter: str, version: int, packet_id: int = 2) -> bytes:
    """Return an UNSUBSCRIBE from one `topic_filter`, for protocol `version` 4 or 5, with the packet
    identifier `packet_id`."""
    properties = b"\x00" if version == 5 else b""
    return packet(0xA2, struct.pack("!H", packet_id) + properties + string(topic_filter))


def publish(
    topic: str, payload: bytes, qos: int, version: int, user_properties: int = 0
) -> tuple[bytes, int, int]:
    """Encode a PUBLISH of `payload` to `topic` at `qos`, for protocol `version` 4 or 5, with so
    many `user_properties` and the packet identifier 0, which is to be filled in.

    Returns the packet, the offset of the packet identifier (0 where there is none) and the offset
    of the payload.
    """
    pairs = b"".join(
        bytes((_USER_PROPERTY,)) + string(f"key-{i:04d}") + string(f"value-{i:04d}")
        for i in range(user_properties)
    )
    properties = varint(len(pairs)) + pairs if version == 5 else b""
    body = string(topic) + (b"\x00\x00" if qos else b"") + properties + payload
    whole = packet(0x30 | qos << 1, body)
    id_offset = len(whole) - len(body) + 2 + len(topic.encode()) if qos else 0
    return whole, id_offset, len(whole) - len(payload)


def header(data: bytes | bytearray, pos: int, end: int) -> tuple[int, int] | None:
    """Read the fixed header of the packet at `data[pos:end]`: return (start of its body, end of the
    packet), or None while the header is incomplete. `end` is where the data end, not the packet.

    Raises ValueError for a remaining length of more than four bytes.
    """
    length = shift = 0
    for at in range(pos + 1, min(pos + 5, end)):
        byte = data[at]
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return at + 1, at + 1 + length
        shift += 7
    if end - pos >= 5:
        raise ValueError("remaining length of more than four bytes")
    return None
