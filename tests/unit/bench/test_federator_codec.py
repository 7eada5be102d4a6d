"""Messages between federators as bytes, and the names of their topics."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mqttree.bench.federator.codec import (
    MAX_DISTANCE,
    decode_announcement,
    decode_data,
    decode_membership,
    encode,
)
from mqttree.bench.federator.messages import (
    CoreAnnouncement,
    Data,
    Membership,
    Message,
    PublicationId,
)
from mqttree.bench.federator.settings import Codec
from mqttree.bench.federator.topics import FILTERS, MAX_TOPIC, Kind, MessageError, parse

Reader = Callable[[bytes, Codec], Message]
READERS: dict[type[Message], Reader] = {
    CoreAnnouncement: decode_announcement,
    Membership: decode_membership,
    Data: decode_data,
}

VECTORS: list[tuple[Message, str, str]] = [
    (
        CoreAnnouncement(core=2, seq=5, dist=1, sender=4),
        "02000000 05000000 01000000 04000000",
        '{"CoreId":2,"SenderId":4,"Seqn":5,"Dist":1}',
    ),
    (
        Membership(core=2, seq=5, sender=7),
        "02000000 05000000 07000000",
        '{"CoreId":2,"SenderId":7,"Seqn":5}',
    ),
    (
        Data(PublicationId(6, 258), 7, b"hi\xff"),
        "06000000 02010000 07000000 03000000 00000000 6869ff",
        '{"PubId":{"OriginId":6,"Seqn":258},"SenderId":7,"Payload":"aGn/"}',
    ),
    (
        Data(PublicationId(4294967295, 0), 0, b""),
        "ffffffff 00000000 00000000 00000000 00000000",
        '{"PubId":{"OriginId":4294967295,"Seqn":0},"SenderId":0,"Payload":""}',
    ),
]


@pytest.mark.parametrize(("message", "bincode", "text"), VECTORS)
def test_messages_are_written_as_the_public_implementations_do(
    message: Message, bincode: str, text: str
) -> None:
    read = READERS[type(message)]
    assert encode(message, Codec.BINCODE) == bytes.fromhex(bincode)
    assert encode(message, Codec.JSON) == text.encode()
    assert read(bytes.fromhex(bincode), Codec.BINCODE) == message
    assert read(text.encode(), Codec.JSON) == message


NUMBER = st.integers(0, 0xFFFFFFFF)
MESSAGE = st.one_of(
    st.builds(CoreAnnouncement, NUMBER, NUMBER, st.integers(0, MAX_DISTANCE), NUMBER),
    st.builds(Membership, NUMBER, NUMBER, NUMBER),
    st.builds(Data, st.builds(PublicationId, NUMBER, NUMBER), NUMBER, st.binary(max_size=200)),
)


@given(MESSAGE, st.sampled_from(Codec))
def test_what_is_written_is_read_again(message: Message, codec: Codec) -> None:
    assert READERS[type(message)](encode(message, codec), codec) == message


def only_message_errors(read: Reader, data: bytes, codec: Codec) -> None:
    try:
        found = read(data, codec)
    except MessageError as error:
        assert 0 < len(str(error)) < 200
    else:
        assert read(encode(found, codec), codec) == found


@given(st.sampled_from(list(READERS.values())), st.sampled_from(Codec), st.binary(max_size=80))
@example(decode_data, Codec.BINCODE, bytes(12) + b"\xff" * 8)
@example(decode_data, Codec.JSON, b"[" * 100_000)
@example(decode_data, Codec.JSON, b"9" * 5_000)
@example(decode_membership, Codec.JSON, b'{"CoreId":1e400,"Seqn":NaN,"SenderId":true}')
@example(decode_announcement, Codec.JSON, b"\xff\xfe{\x00}\x00")
def test_bytes_that_are_no_message_bring_one_error(read: Reader, codec: Codec, data: bytes) -> None:
    only_message_errors(read, data, codec)


@given(MESSAGE, st.sampled_from(Codec), st.data())
def test_bent_messages_bring_one_error(message: Message, codec: Codec, data: st.DataObject) -> None:
    whole = bytearray(encode(message, codec))
    for _ in range(data.draw(st.integers(1, 3))):
        if whole:
            whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    for read in READERS.values():
        only_message_errors(read, bytes(whole), codec)
        only_message_errors(read, cut, codec)


JSON_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
KEYS = ("CoreId", "SenderId", "Seqn", "Dist", "PubId", "Payload", "OriginId")


@given(
    st.sampled_from(list(READERS.values())),
    st.dictionaries(
        st.sampled_from(KEYS), JSON_VALUE | st.dictionaries(st.sampled_from(KEYS), JSON_VALUE)
    ),
)
def test_json_that_is_no_message_brings_one_error(read: Reader, value: object) -> None:
    only_message_errors(read, json.dumps(value).encode(), Codec.JSON)


def test_a_payload_that_go_never_had_is_empty() -> None:
    text = b'{"PubId":{"OriginId":6,"Seqn":1},"SenderId":7,"Payload":null}'
    assert decode_data(text, Codec.JSON) == Data(PublicationId(6, 1), 7, b"")


def test_a_core_from_too_far_is_refused() -> None:
    """Its distance would leave the 32 bits on the way."""
    for dist in (MAX_DISTANCE + 1, 0xFFFFFFFF):
        with pytest.raises(MessageError, match="distance"):
            decode_announcement(
                encode(CoreAnnouncement(1, 2, dist, 3), Codec.BINCODE), Codec.BINCODE
            )


@pytest.mark.parametrize(
    ("topic", "kind", "name"),
    [
        ("federator/beacon/t", Kind.BEACON, "t"),
        ("federator/core_ann/a/b", Kind.CORE_ANN, "a/b"),
        ("federator/memb_ann//", Kind.MEMB_ANN, "/"),
        ("federator/routing/beacon/t", Kind.ROUTING, "beacon/t"),
        ("federated/\u00fc", Kind.FEDERATED, "\u00fc"),
        ("federated/" + "x" * MAX_TOPIC, Kind.FEDERATED, "x" * MAX_TOPIC),
    ],
)
def test_a_topic_has_a_kind_and_a_name(topic: str, kind: Kind, name: str) -> None:
    assert parse(topic) == (kind, name)
    assert kind.topic(name) == topic


@pytest.mark.parametrize(
    "topic",
    [
        "federated",
        "federated/",
        "federator",
        "federator/beacon",
        "federator/beacon/",
        "federator/core_ann",
        "federator/other/t",
        "Federated/t",
        "federated/+",
        "federated/a/#",
        "federated/" + "x" * (MAX_TOPIC + 1),
        "federated/" + "\u00fc" * (MAX_TOPIC // 2 + 1),
        "",
    ],
)
def test_a_topic_without_a_name_is_refused(topic: str) -> None:
    """Filters that end in "/#" match the name before it, too."""
    with pytest.raises(MessageError):
        parse(topic)


@given(
    st.text(max_size=40) | st.sampled_from(FILTERS).flatmap(lambda f: st.text().map(f[:-1].__add__))
)
def test_any_topic_is_read_or_refused(topic: str) -> None:
    try:
        kind, name = parse(topic)
    except MessageError:
        return
    assert kind.topic(name) == topic and name
