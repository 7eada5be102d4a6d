from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.wire.errors import MalformedPacket, ProtocolViolation
from mqttree.broker.wire.strings import (
    check_topic_filter,
    check_topic_name,
    decode_utf8,
    encode_binary,
    encode_string,
    read_binary,
    read_string,
    shorten,
)
from mqttree.broker.wire.varint import decode_varint, encode_varint, read_length
from tests.kit.effort import examples

GOOD_FILTERS = [
    *(
        "a",
        "/",
        "//",
        "#",
        "/#",
        "a/#",
        "+",
        "+/+",
        "/+",
        "+/#",
        "a/+/b",
        "$SYS/#",
        "\u00e9/+",
        " ",
        "+/",
    ),
    *("$share", "$shared/a", "$share/g/a", "$share/g/#", "$share/g/+/b", "$share/g//"),
]
BAD_FILTERS = [
    *("", "##", "a#", "#a", "#/", "a/#/", "/#/#", "+#", "#+", "++", "a+/b", "a/+b", "+/b+"),
    *(
        "$share/",
        "$share//",
        "$share/g",
        "$share/g/",
        "$share/#",
        "$share/+/x",
        "$share/g+/x",
        "$share/g/x+",
    ),
]


@pytest.mark.parametrize("topic_filter", GOOD_FILTERS)
def test_a_good_filter_is_accepted(topic_filter: str) -> None:
    check_topic_filter(topic_filter)


@pytest.mark.parametrize("topic_filter", BAD_FILTERS)
def test_a_bad_filter_is_refused(topic_filter: str) -> None:
    with pytest.raises(MalformedPacket) as caught:
        check_topic_filter(topic_filter)
    assert caught.value.reason == 0x81


@pytest.mark.parametrize(
    "topic_filter", ["$share/", "$share//", "$share/g", "$share/g/", "$share/#", "$share/+/x"]
)
def test_before_mqtt_5_shared_subscriptions_have_no_form_of_their_own(topic_filter: str) -> None:
    check_topic_filter(topic_filter, shared=False)
    with pytest.raises(MalformedPacket):
        check_topic_filter(topic_filter + "/a#", shared=False)


@pytest.mark.parametrize("topic", ["a", "/", "$SYS/x", "$share/g/a", " ", "\U0001f332"])
def test_a_good_topic_is_accepted(topic: str) -> None:
    check_topic_name(topic)


@pytest.mark.parametrize("topic", ["", "+", "#", "a/#", "a+b"])
def test_a_bad_topic_is_refused(topic: str) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        check_topic_name(topic)
    assert caught.value.reason == 0x90


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=12), st.binary(max_size=4))
def test_binary_and_string_are_read_where_they_stand(value: bytes, around: bytes) -> None:
    data = around + encode_binary(value) + around
    assert read_binary(data, len(around)) == (value, len(around) + 2 + len(value))
    try:
        text = value.decode("utf-8", "strict")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        with pytest.raises(MalformedPacket):
            read_string(data, len(around))
    else:
        assert read_string(data, len(around)) == (text, len(around) + 2 + len(value))
        assert encode_string(text) == encode_binary(value)


@pytest.mark.statement("MQTT-1.5.4-2")
def test_utf8_limits() -> None:
    assert (
        decode_utf8(b"\xef\xbb\xbf\x01\x7f\xef\xbf\xbf\xf4\x8f\xbf\xbf")
        == "\ufeff\x01\x7f\uffff\U0010ffff"
    )
    for raw in (b"\xed\xbf\xbf", b"\xf4\x90\x80\x80", b"\xc1\xbf", b"\x80", b"\0"):
        with pytest.raises(MalformedPacket):
            decode_utf8(raw)


# MQTT 5, table 1-1
@pytest.mark.statement("MQTT-1.5.5-1")
@pytest.mark.parametrize(
    ("value", "data"),
    [
        (0, b"\x00"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (16383, b"\xff\x7f"),
        (16384, b"\x80\x80\x01"),
        (2097151, b"\xff\xff\x7f"),
        (2097152, b"\x80\x80\x80\x01"),
        (268435455, b"\xff\xff\xff\x7f"),
    ],
)
def test_varint_limits(value: int, data: bytes) -> None:
    assert encode_varint(value) == data
    assert decode_varint(b"." + data + b".", 1) == (value, 1 + len(data))
    for cut in range(len(data)):
        with pytest.raises(MalformedPacket):
            decode_varint(data[:cut], 0)


@pytest.mark.parametrize("value", [-1, 268435456])
def test_a_varint_out_of_range_is_refused(value: int) -> None:
    with pytest.raises(ValueError):
        encode_varint(value)


@pytest.mark.statement("MQTT-1.5.5-1")
@pytest.mark.parametrize(
    "data", [b"\x80\x00", b"\xff\x80\x00", b"\x80\x80\x80\x00", b"\x80\x80\x80\x80\x01"]
)
def test_a_varint_that_is_too_long_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedPacket, match="longer"):
        decode_varint(data, 0)


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 268435455))
def test_an_encoded_varint_decodes_to_the_same(value: int) -> None:
    data = encode_varint(value)
    assert decode_varint(data, 0) == (value, len(data))


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 268435455), st.binary(max_size=3))
def test_length_is_read_once_it_is_whole(value: int, behind: bytes) -> None:
    data = b"\x30" + encode_varint(value)
    assert read_length(data + behind, 1) == (value, len(data))
    for cut in range(1, len(data)):
        assert read_length(data[:cut], 1) == (0, -1)


@pytest.mark.statement("MQTT-1.5.5-1", "choice/padded Remaining Length")
def test_length_may_be_padded_but_not_beyond_four_bytes() -> None:
    assert read_length(b"\x80\x80\x80\x00", 0) == (0, 4)
    assert read_length(b"\x80\x80\x80", 0) == (0, -1)
    for data in (b"\x80\x80\x80\x80", b"\xff\xff\xff\xff\x01"):
        with pytest.raises(MalformedPacket):
            read_length(data, 0)


def test_messages_stay_short() -> None:
    assert shorten("a\nb") == r"'a\nb'"
    assert len(shorten("x" * 65535)) == 65
