"""`inspect_section` finds in a property section what `decode_properties` does, and nothing that it
refuses."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from mqttree.broker.wire.constants import PacketType
from mqttree.broker.wire.errors import WireError
from mqttree.broker.wire.properties import (
    ALIASED,
    EXPIRES,
    MAX_INSPECTED,
    MAX_REPEATED,
    PROMISES_TEXT,
    UNSOUND,
    Property,
    decode_properties,
    encode_properties,
    inspect_alone,
    inspect_section,
    property_end,
)
from mqttree.broker.wire.varint import encode_varint, read_length

TEXTS = st.one_of(st.sampled_from(("", "a/b", "+", "a#", "\u00e4")), st.text(max_size=5))
VALUES: dict[int, st.SearchStrategy[Any]] = {
    Property.PAYLOAD_FORMAT_INDICATOR: st.integers(0, 2),
    Property.MESSAGE_EXPIRY_INTERVAL: st.integers(0, 0xFFFFFFFF),
    Property.CONTENT_TYPE: TEXTS,
    Property.RESPONSE_TOPIC: TEXTS,
    Property.CORRELATION_DATA: st.binary(max_size=5),
    Property.SUBSCRIPTION_IDENTIFIER: st.lists(st.integers(0, 300), min_size=1, max_size=2),
    Property.TOPIC_ALIAS: st.integers(0, 3),
    Property.USER_PROPERTY: st.lists(st.tuples(TEXTS, TEXTS), max_size=4),
    Property.REASON_STRING: TEXTS,
    Property.MAXIMUM_QOS: st.integers(0, 1),
}
ONE = st.sampled_from(sorted(VALUES)).flatmap(
    lambda ident: st.tuples(st.just(ident), VALUES[ident])
)


def section_of(properties: dict[int, Any]) -> bytes:
    whole = encode_properties(properties)
    return whole[read_length(whole, 0)[1] :]


def decoded(section: bytes) -> int:
    """Return what the decoder says, in the form of `inspect_section`."""
    try:
        data = encode_varint(len(section)) + section
        found = decode_properties(data, 0, PacketType.PUBLISH)[0] or {}
    except WireError:
        return UNSOUND
    if Property.SUBSCRIPTION_IDENTIFIER in found:
        return UNSOUND
    bits = sum(1 << ident for ident in found)
    return bits | PROMISES_TEXT if found.get(Property.PAYLOAD_FORMAT_INDICATOR) else bits


@given(
    st.lists(ONE, max_size=5),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 1), st.binary(max_size=2)), max_size=3),
)
@example([(Property.TOPIC_ALIAS, 0)], [])
@example([(Property.CONTENT_TYPE, "a"), (Property.CONTENT_TYPE, "a")], [])
@example([(Property.USER_PROPERTY, [("", "")])], [(4, 1, b"")])
@example([(Property.USER_PROPERTY, [("a", "b")])], [(3, 1, b"\0")])
@example([(Property.USER_PROPERTY, [("a", "\u00e4")])], [(7, 1, b"")])
def test_inspection_agrees_with_the_decoder(
    properties: list[tuple[int, Any]], damage: list[tuple[int, int, bytes]]
) -> None:
    section = b"".join(section_of({ident: value}) for ident, value in properties)
    assert inspect_section(section) == decoded(section)
    for at, removed, put in damage:
        section = section[:at] + put + section[at + removed :]
        assert inspect_section(section) == decoded(section), section


@given(st.binary(max_size=12))
def test_inspection_of_noise_agrees_with_the_decoder(section: bytes) -> None:
    assert inspect_section(section) == decoded(section)


def test_every_beginning_of_a_section_is_seen_to_be_cut() -> None:
    whole = section_of(
        {
            Property.PAYLOAD_FORMAT_INDICATOR: 1,
            Property.MESSAGE_EXPIRY_INTERVAL: 9,
            Property.CONTENT_TYPE: "text/plain",
            Property.RESPONSE_TOPIC: "a/b",
            Property.CORRELATION_DATA: b"\0\1\2",
            Property.TOPIC_ALIAS: 3,
            Property.USER_PROPERTY: [("name", "value"), ("", "\u00e4")],
        }
    )
    for size in range(len(whole) + 1):
        assert inspect_section(whole[:size]) == decoded(whole[:size])
    seen = inspect_section(whole)
    assert seen & PROMISES_TEXT
    assert seen & EXPIRES
    assert seen & ALIASED


def test_very_long_sections_are_left_to_the_decoder() -> None:
    assert inspect_section(b"\x26\0\0\0\0" * MAX_REPEATED) == 1 << Property.USER_PROPERTY
    assert inspect_section(b"\x26\xff\xff" + b"a" * 0xFFFF + b"\0\0") > 0
    assert inspect_section(b"\x09\xff\xff" + b"a" * 0xFFFF + b"\x26\0\0\xff\xff" * 9) == UNSOUND
    assert inspect_section(b"\x26\0\0\0\0" * (MAX_REPEATED + 1)) == UNSOUND
    assert len(b"\x26\0\0\0\0" * MAX_REPEATED) == MAX_INSPECTED


def test_a_section_alone_is_found_with_any_length() -> None:
    """The section is read with its length; what is too long, cut off or written with more bytes
    than needed is left to others."""
    for size in (5, 127 - 127 % 5, 130, 16_380):
        section = b"\x26\0\0\0\0" * (size // 5)
        length = encode_varint(len(section))
        data = b"xx" + length + section + b"text"
        behind = len(data) - 4
        assert inspect_alone(data, 2, len(data)) == (len(section), behind)
        assert inspect_alone(data, 2, behind) == (len(section), behind)
        for end in range(3, behind):
            assert inspect_alone(data, 2, end)[1] > end
    for length in (b"\x85\0", b"\x80\x80\1", b"\xff\xff", b"\x85\x80\0"):
        data = length + b"\x26\0\0\0\0" * 4000
        assert inspect_alone(data, 0, len(data))[1] > len(data)


def test_a_section_alone_may_promise_text_that_is_ascii() -> None:
    for payload, taken in ((b"abc", True), (b"", True), (b"\xc3\xa4", False), (b"\xff", False)):
        data = b"\2\1\1" + payload
        assert (inspect_alone(data, 0, len(data)) == (2, 3)) == taken


@given(st.lists(ONE, max_size=5))
def test_each_property_of_a_section_is_found(properties: list[tuple[int, Any]]) -> None:
    values = [
        (ident, [one] if isinstance(value, list) else one)
        for ident, value in properties
        for one in (value if isinstance(value, list) else [value])
    ]
    pieces = [section_of({ident: value}) for ident, value in values]
    section = b"".join(pieces)
    if inspect_section(section) != UNSOUND:
        at, found = 0, []
        while at < len(section):
            found.append(section[at : property_end(section, at)])
            at = property_end(section, at)
        assert found == pieces
