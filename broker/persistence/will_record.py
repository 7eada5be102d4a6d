"""A session's will as bytes, in the record of the session."""

from __future__ import annotations

from mqttree.broker.wire.constants import WILL
from mqttree.broker.wire.packets import Will
from mqttree.broker.wire.properties import decode_properties, encode_properties


def encode_will(will: Will | None) -> bytes:
    """Encode a will; b"" for none."""
    if will is None:
        return b""
    topic = will.topic.encode()
    head = bytes((will.qos | will.retain << 2,)) + len(topic).to_bytes(2, "big")
    return head + topic + encode_properties(will.properties) + will.payload


def decode_will(data: bytes) -> Will | None:
    """Decode a will. Raises WireError, IndexError, UnicodeDecodeError."""
    if not data:
        return None
    end = 3 + int.from_bytes(data[1:3], "big")
    properties, payload = decode_properties(data, end, WILL)
    return Will(data[3:end].decode(), data[payload:], data[0] & 3, data[0] & 4 != 0, properties)
