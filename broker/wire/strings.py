"""Strings, binary data, topic names and topic filters as they stand in packets (MQTT 5, 1.5.4,
1.5.6, 4.7, 4.8)."""

from __future__ import annotations

from typing import Final

from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.errors import MalformedPacket, ProtocolViolation

SHARE_PREFIX: Final = "$share/"
"""How the Topic Filter of a Shared Subscription begins (MQTT-4.8.2-1)."""


OWN: Final = frozenset(("$SYS", "$share", "$mqttree"))
"""First levels of the topics that are a broker's own."""


def is_own(topic: str) -> bool:
    """Return whether a topic name or filter is of this broker alone (MQTT-4.7.2): no client
    publishes there, and nothing of it crosses a link. All others are the clients', also those that
    begin with `$`."""
    return topic[:1] == "$" and topic.partition("/")[0] in OWN


def is_own_name(topic: bytes) -> bool:
    """Return the same for a topic in UTF-8."""
    return topic[:1] == b"$" and is_own(topic.decode(errors="replace"))


def decode_utf8(raw: bytes) -> str:
    """Text of ``raw``. Raises MalformedPacket for ill-formed UTF-8, surrogates and U+0000
    (MQTT-1.5.4-1, 1.5.4-2)."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise MalformedPacket(f"ill-formed UTF-8 at byte {error.start} of a string") from None
    if "\0" in text:
        raise MalformedPacket("string contains U+0000")
    return text


def read_binary(data: bytes, pos: int) -> tuple[bytes, int]:
    """Read Binary Data (a two-byte length, then that many bytes) at ``pos``: (value, position
    behind it).

    Raises MalformedPacket when it is truncated.
    """
    start = pos + 2
    if start > len(data):
        raise MalformedPacket("length of a field is truncated")
    end = start + (data[pos] << 8 | data[pos + 1])
    if end > len(data):
        raise MalformedPacket("field is truncated")
    return data[start:end], end


def read_string(data: bytes, pos: int) -> tuple[str, int]:
    """Read a UTF-8 Encoded String at ``pos``: (value, position behind it). Raises
    MalformedPacket."""
    raw, end = read_binary(data, pos)
    return decode_utf8(raw), end


def encode_binary(value: bytes) -> bytes:
    """Binary Data with its length. Raises ValueError beyond 65,535 bytes."""
    if len(value) > 0xFFFF:
        raise ValueError(f"field of {len(value)} bytes exceeds 65535")
    return len(value).to_bytes(2, "big") + value


def encode_string(value: str) -> bytes:
    """UTF-8 Encoded String with its length. Raises ValueError beyond 65,535 bytes and for lone
    surrogates or U+0000."""
    if "\0" in value:
        raise ValueError("string contains U+0000")
    return encode_binary(value.encode())


def check_topic_name(topic: str) -> None:
    """Raise ProtocolViolation (0x90) for an empty Topic Name or one with wildcards (MQTT-4.7.3-1,
    MQTT-3.3.2-2)."""
    if not topic:
        raise ProtocolViolation("Topic Name is empty", ReasonCode.TOPIC_NAME_INVALID)
    if "+" in topic or "#" in topic:
        raise ProtocolViolation(
            f"Topic Name {shorten(topic)} contains a wildcard", ReasonCode.TOPIC_NAME_INVALID
        )


def check_topic_filter(topic_filter: str, *, shared: bool = True) -> None:
    """Raise MalformedPacket for a Topic Filter that is not well formed.

    A filter is not empty (MQTT-4.7.3-1), "#" is the whole last level (MQTT-4.7.1-1), "+" a whole
    level
    (MQTT-4.7.1-2), and "$share/group/filter" has a group without wildcards and a filter
    (MQTT-4.8.2-1, 4.8.2-2): with `shared`, as before MQTT 5 "$share" is a level as any other. (0x8F
    is for filters that are well formed and not accepted.)
    """
    plain = topic_filter
    if shared and topic_filter.startswith(SHARE_PREFIX):
        group, _, plain = topic_filter[len(SHARE_PREFIX) :].partition("/")
        if not group or "+" in group or "#" in group:
            raise _bad_filter(topic_filter, "has a share name that is empty or contains a wildcard")
    if not plain:
        raise _bad_filter(topic_filter, "is empty")
    if "#" in plain and plain != "#" and (not plain.endswith("/#") or plain.count("#") != 1):
        raise _bad_filter(topic_filter, "has '#' elsewhere than as its last level")
    if "+" in plain:
        for level in plain.split("/"):
            if "+" in level and level != "+":
                raise _bad_filter(topic_filter, "has '+' beside other characters in a level")


def shorten(text: str) -> str:
    """``text`` quoted for a message, cut to 60 characters: received strings can be 65,535 bytes
    long."""
    return repr(text) if len(text) <= 60 else repr(text[:60]) + "..."


def _bad_filter(topic_filter: str, why: str) -> MalformedPacket:
    return MalformedPacket(f"Topic Filter {shorten(topic_filter)} {why}")
