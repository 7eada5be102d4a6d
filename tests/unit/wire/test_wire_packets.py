"""Encoding and decoding are each other's inverse, and no bytes raise anything but WireError."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.wire.constants import V5, V31, V311, WILL, PacketType
from mqttree.broker.wire.decode import decode_packet
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.errors import WireError
from mqttree.broker.wire.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqttree.broker.wire.properties import (
    TABLE,
    Kind,
    Property,
    decode_properties,
    encode_properties,
)
from tests.kit.decoder import Decoder
from tests.kit.effort import examples
from tests.unit.wire.wire_vectors import GOLDEN

TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=6)
TOPICS = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="\0+#"), min_size=1, max_size=8
)
FILTERS = st.one_of(
    TOPICS.filter(lambda topic: not topic.startswith("$share/")),
    st.sampled_from(["#", "+", "a/+/b", "/#", "+/+/#", "$share/g/#", "$share/group/a/+"]),
)
PAYLOADS = st.one_of(st.binary(max_size=20), st.integers(100, 300).map(bytes))
IDS = st.integers(1, 0xFFFF)
QOS = st.integers(0, 2)
POSITIVE = (Property.RECEIVE_MAXIMUM, Property.MAXIMUM_PACKET_SIZE, Property.TOPIC_ALIAS)
VALUES: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.BYTE: st.integers(0, 1),
    Kind.TWO_BYTES: st.integers(0, 0xFFFF),
    Kind.FOUR_BYTES: st.integers(0, 0xFFFFFFFF),
    Kind.STRING: TEXT,
    Kind.BINARY: st.binary(max_size=6),
}


def value_of(ident: int, packet_type: int) -> st.SearchStrategy[Any]:
    if ident == Property.USER_PROPERTY:
        return st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3)
    if ident == Property.SUBSCRIPTION_IDENTIFIER:
        most = 1 if packet_type == PacketType.SUBSCRIBE else 3
        return st.lists(st.integers(1, 268435455), min_size=1, max_size=most)
    if ident == Property.RESPONSE_TOPIC:
        return TOPICS
    if ident in POSITIVE:
        return VALUES[TABLE[ident][0]].filter(bool)
    return VALUES[TABLE[ident][0]]


@st.composite
def some_properties(draw: st.DrawFn, packet_type: int) -> dict[int, Any] | None:
    allowed = [ident for ident, (_, types) in TABLE.items() if packet_type in types]
    chosen = set(draw(st.lists(st.sampled_from(allowed), max_size=4, unique=True)))
    if Property.AUTHENTICATION_DATA in chosen:
        chosen.add(Property.AUTHENTICATION_METHOD)
    return {ident: draw(value_of(ident, packet_type)) for ident in sorted(chosen)} or None


def properties_for(packet_type: int, version: int) -> st.SearchStrategy[dict[int, Any] | None]:
    return some_properties(packet_type) if version == V5 else st.none()


def connects(version: int) -> st.SearchStrategy[Connect]:
    wills = st.builds(Will, TOPICS, PAYLOADS, QOS, st.booleans(), properties_for(WILL, version))
    connects = st.builds(
        Connect,
        st.just("MQIsdp" if version == V31 else "MQTT"),
        st.just(version),
        st.booleans(),
        st.integers(0, 0xFFFF),
        TEXT,
        st.none() | TEXT,
        st.none() | st.binary(max_size=6),
        st.none() | wills,
        properties_for(PacketType.CONNECT, version),
        st.booleans(),
    )
    if version == V5:
        return connects
    return connects.filter(lambda packet: packet.password is None or packet.username is not None)


def publishes(version: int) -> st.SearchStrategy[Publish]:
    properties = properties_for(PacketType.PUBLISH, version)
    at_0 = st.builds(Publish, TOPICS, PAYLOADS, st.just(0), st.booleans(), properties=properties)
    above = st.builds(
        Publish, TOPICS, PAYLOADS, st.integers(1, 2), st.booleans(), st.booleans(), IDS, properties
    )
    return at_0 | above


def connacks(version: int) -> st.SearchStrategy[Packet]:
    """CONNACK, accepting or not."""
    v5 = version == V5
    refused = st.builds(
        Connack,
        st.just(False),
        st.sampled_from([0x80, 0x87, 0x9F] if v5 else [1, 2, 3, 4, 5]),
        properties_for(PacketType.CONNACK, version),
    )
    accepted = st.builds(
        Connack,
        st.just(False) if version == V31 else st.booleans(),
        st.just(0),
        properties_for(PacketType.CONNACK, version),
    )
    return accepted | refused


def packets(version: int) -> st.SearchStrategy[Packet]:
    """Every packet that ``version`` can express."""
    v5 = version == V5
    received = (
        st.sampled_from([0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99]) if v5 else st.just(0)
    )
    released = st.sampled_from([0, 0x92]) if v5 else st.just(0)
    requests = (
        st.builds(
            SubscriptionRequest, FILTERS, QOS, st.booleans(), st.booleans(), st.integers(0, 2)
        )
        if v5
        else st.builds(SubscriptionRequest, FILTERS, QOS)
    )
    requests = requests.filter(
        lambda request: not (request.no_local and request.filter.startswith("$share/"))
    )
    codes = st.sampled_from([0, 1, 2, 0x80, 0x87, 0xA2] if v5 else [0, 1, 2, 0x80])
    unsubscribed = (
        st.lists(st.sampled_from([0, 0x11, 0x80]), min_size=1, max_size=4) if v5 else st.just([])
    )
    kinds: list[st.SearchStrategy[Any]] = [
        connects(version),
        connacks(version),
        publishes(version),
        st.builds(Puback, IDS, received, properties_for(PacketType.PUBACK, version)),
        st.builds(Pubrec, IDS, received, properties_for(PacketType.PUBREC, version)),
        st.builds(Pubrel, IDS, released, properties_for(PacketType.PUBREL, version)),
        st.builds(Pubcomp, IDS, released, properties_for(PacketType.PUBCOMP, version)),
        st.builds(
            Subscribe,
            IDS,
            st.lists(requests, min_size=1, max_size=4),
            properties_for(PacketType.SUBSCRIBE, version),
        ),
        st.builds(
            Suback,
            IDS,
            st.lists(codes, min_size=1, max_size=4),
            properties_for(PacketType.SUBACK, version),
        ),
        st.builds(
            Unsubscribe,
            IDS,
            st.lists(FILTERS, min_size=1, max_size=4),
            properties_for(PacketType.UNSUBSCRIBE, version),
        ),
        st.builds(Unsuback, IDS, unsubscribed, properties_for(PacketType.UNSUBACK, version)),
        st.builds(Pingreq, PAYLOADS),
        st.builds(Pingresp, PAYLOADS),
        st.builds(
            Disconnect,
            st.sampled_from([0, 4, 0x8E]) if v5 else st.just(0),
            properties_for(PacketType.DISCONNECT, version),
        ),
    ]
    if v5:
        kinds.append(
            st.builds(
                Auth, st.sampled_from([0, 0x18, 0x19]), properties_for(PacketType.AUTH, version)
            )
        )
    return st.one_of(kinds)


@pytest.mark.parametrize("version", [V31, V311, V5])
@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_encode_then_decode_is_identity(version: int, data: st.DataObject) -> None:
    packet = data.draw(packets(version))
    encoded = encode_packet(packet, version)
    assert Decoder(version, ping_payload=True).receive(encoded) == [packet]


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_damaged_packets_raise_only_wire_errors(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from([V31, V311, V5]))
    small = [raw for _, versions, _, raw in GOLDEN if version in versions and len(raw) < 128]
    raw = bytearray(data.draw(st.sampled_from(small)))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        packet = decode_packet(raw[0], bytes(raw[2:]), version)
    except WireError:
        return
    version = packet.version if isinstance(packet, Connect) else version
    assert Decoder(version).receive(encode_packet(packet, version)) == [packet]


@settings(max_examples=examples(200), deadline=None)
@given(st.data(), st.sampled_from([*PacketType, WILL]), st.binary(max_size=3))
def test_properties_are_read_where_they_stand(
    data: st.DataObject, packet_type: int, around: bytes
) -> None:
    bare = packet_type in (PacketType.PINGREQ, PacketType.PINGRESP)
    properties = None if bare else data.draw(some_properties(packet_type))
    encoded = encode_properties(properties)
    raw = around + encoded + around
    assert decode_properties(raw, len(around), packet_type) == (
        properties,
        len(around) + len(encoded),
    )
    for cut in range(len(encoded)):
        with pytest.raises(WireError):
            decode_properties((around + encoded)[: len(around) + cut], len(around), packet_type)


@pytest.mark.parametrize("packet_type", [*PacketType, WILL])
@pytest.mark.parametrize("ident", list(Property))
def test_property_is_refused_in_other_packets(ident: Property, packet_type: int) -> None:
    kind, types = TABLE[ident]
    value: Any = {
        Kind.STRING: "a",
        Kind.BINARY: b"a",
        Kind.PAIR: [("a", "b")],
        Kind.VARINT: [1],
    }.get(kind, 1)
    properties = {ident: value}
    if ident == Property.AUTHENTICATION_DATA:
        properties[Property.AUTHENTICATION_METHOD] = "m"
    encoded = encode_properties(properties)
    if packet_type in types:
        assert decode_properties(encoded, 0, packet_type) == (properties, len(encoded))
    else:
        with pytest.raises(WireError) as caught:
            decode_properties(encoded, 0, packet_type)
        assert caught.value.reason == 0x81


@pytest.mark.statement("MQTT-2.2.2-1")
def test_empty_properties_are_none() -> None:
    assert encode_properties(None) == encode_properties({}) == b"\x00"
    assert decode_properties(b"\x00", 0, PacketType.PUBLISH) == (None, 1)
