"""Messages between federators as bytes, as the public implementations write them.

`bincode`, of the one in Rust: numbers are little endian, without names and without lengths but for
the payload's::

    core announcement   core u32 | seq u32 | dist u32 | sender u32
    membership          core u32 | seq u32 | sender u32
    data                origin u32 | number u32 | sender u32 | payload length u64 | payload

`json`, of those in Go: objects with the keys `CoreId`, `SenderId`, `Seqn`, `Dist`, and data as
`{"PubId": {"OriginId", "Seqn"}, "SenderId", "Payload"}` with the payload in base64.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from typing import Any

from mqttree.bench.federator.messages import (
    CoreAnnouncement,
    Data,
    Membership,
    Message,
    PublicationId,
)
from mqttree.bench.federator.settings import MAX_ID, Codec
from mqttree.bench.federator.topics import MessageError

MAX_DISTANCE = 65_535
"""The greatest distance that is believed. What comes from farther is made up, and has no room for
the hops to come."""

_ANNOUNCEMENT = struct.Struct("<IIII")
_MEMBERSHIP = struct.Struct("<III")
_DATA = struct.Struct("<IIIQ")


def encode(message: Message, codec: Codec) -> bytes:
    """Return the message's bytes. The numbers in it must be from 0 to 4294967295."""
    if codec is Codec.JSON:
        return json.dumps(_as_json(message), separators=(",", ":")).encode()
    if isinstance(message, CoreAnnouncement):
        return _ANNOUNCEMENT.pack(*message)
    if isinstance(message, Membership):
        return _MEMBERSHIP.pack(*message)
    return _DATA.pack(*message.id, message.sender, len(message.payload)) + message.payload


def decode_announcement(data: bytes, codec: Codec) -> CoreAnnouncement:
    """Read a core announcement. Raises MessageError for anything else, and no other error."""
    if codec is Codec.JSON:
        read = _object(data)
        found = CoreAnnouncement(
            _number(read, "CoreId"),
            _number(read, "Seqn"),
            _number(read, "Dist"),
            _number(read, "SenderId"),
        )
    else:
        found = CoreAnnouncement(*_fields(_ANNOUNCEMENT, data, "core announcement"))
    if found.dist > MAX_DISTANCE:
        raise MessageError(f"a core at a distance of {found.dist}")
    return found


def decode_membership(data: bytes, codec: Codec) -> Membership:
    """Read a membership. Raises MessageError for anything else, and no other error."""
    if codec is Codec.JSON:
        read = _object(data)
        return Membership(_number(read, "CoreId"), _number(read, "Seqn"), _number(read, "SenderId"))
    return Membership(*_fields(_MEMBERSHIP, data, "membership"))


def decode_data(data: bytes, codec: Codec) -> Data:
    """Read a publication. Raises MessageError for anything else, and no other error."""
    if codec is Codec.JSON:
        read = _object(data)
        name = read.get("PubId")
        if not isinstance(name, dict):
            raise MessageError("PubId is missing, or no object")
        id_ = PublicationId(_number(name, "OriginId"), _number(name, "Seqn"))
        return Data(id_, _number(read, "SenderId"), _payload(read))
    if len(data) < _DATA.size:
        raise MessageError(f"a publication of {len(data)} bytes is too short")
    origin, number, sender, size = _DATA.unpack_from(data)
    if len(data) - _DATA.size != size:
        raise MessageError(f"a payload of {len(data) - _DATA.size} bytes, {size} announced")
    return Data(PublicationId(origin, number), sender, data[_DATA.size :])


def _fields(layout: struct.Struct, data: bytes, what: str) -> tuple[Any, ...]:
    if len(data) != layout.size:
        raise MessageError(f"a {what} of {len(data)} bytes, not {layout.size}")
    return layout.unpack(data)


def _as_json(message: Message) -> dict[str, Any]:
    """Return the message's fields in the order in which Go writes them."""
    if isinstance(message, CoreAnnouncement):
        return {
            "CoreId": message.core,
            "SenderId": message.sender,
            "Seqn": message.seq,
            "Dist": message.dist,
        }
    if isinstance(message, Membership):
        return {"CoreId": message.core, "SenderId": message.sender, "Seqn": message.seq}
    return {
        "PubId": {"OriginId": message.id.origin, "Seqn": message.id.number},
        "SenderId": message.sender,
        "Payload": base64.b64encode(message.payload).decode(),
    }


def _object(data: bytes) -> dict[str, Any]:
    try:
        read = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise MessageError(f"no JSON: {type(error).__name__}") from None
    if not isinstance(read, dict):
        raise MessageError("the JSON is no object")
    return read


def _number(read: dict[str, Any], key: str) -> int:
    value = read.get(key)
    # True is an int in Python.
    if type(value) is not int or not 0 <= value <= MAX_ID:
        raise MessageError(f"{key} is missing, or no number from 0 to {MAX_ID}")
    return value


def _payload(read: dict[str, Any]) -> bytes:
    text = read.get("Payload", "")
    # Go writes null for a payload that it never had.
    if text is None:
        return b""
    if not isinstance(text, str):
        raise MessageError("Payload is no text")
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        raise MessageError("Payload is no base64") from None
