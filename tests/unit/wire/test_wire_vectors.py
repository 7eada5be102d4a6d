from __future__ import annotations

import pytest

from mqttree.broker.wire.constants import V5, V31, V311, PacketType, ReasonCode
from mqttree.broker.wire.decode import decode_packet
from mqttree.broker.wire.encode import encode_packet, publish_bytes, return_code
from mqttree.broker.wire.errors import MalformedPacket, WireError
from mqttree.broker.wire.packets import (
    Auth,
    Connack,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
)
from mqttree.broker.wire.properties import TABLE, Property
from tests.kit.decoder import Decoder
from tests.unit.wire.wire_vectors import BAD, GOLDEN, LENIENT


def each_version(table):
    """One parameter set for each version of each row; versions take the place of their tuple."""
    return [
        pytest.param(*row[:1], v, *row[2:], id=f"{row[0]} v{v}") for row in table for v in row[1]
    ]


@pytest.mark.statement("MQTT-2.2.1-2", "MQTT-3.1.3-1", "3.1.1/MQTT-2.2.2-1", "3.1.1/MQTT-3.1.3-1")
@pytest.mark.parametrize(("name", "version", "packet", "data"), each_version(GOLDEN))
def test_packets_have_the_golden_bytes(
    name: str, version: int, packet: Packet, data: bytes
) -> None:
    assert encode_packet(packet, version) == data
    assert Decoder(version).receive(data) == [packet]


@pytest.mark.statement("3.1/user name, password", "3.1/will flags, reserved bit", "3.1/DUP")
@pytest.mark.parametrize(("name", "version", "data", "packet"), each_version(LENIENT))
def test_unusual_packets_are_accepted(name: str, version: int, data: bytes, packet: Packet) -> None:
    assert Decoder(version).receive(data) == [packet]


@pytest.mark.statement("MQTT-3.2.2-6", "MQTT-3.2.2-8", "MQTT-3.3.1-4", "MQTT-3.3.2-14")
@pytest.mark.statement("MQTT-3.4.2-1", "MQTT-3.5.2-1", "MQTT-3.6.2-1", "MQTT-3.7.2-1")
@pytest.mark.statement("MQTT-3.9.3-2", "MQTT-3.11.3-2", "MQTT-3.14.2-1", "MQTT-3.15.2-1")
@pytest.mark.statement("3.1.1/MQTT-3.1.2-22", "3.1.1/MQTT-3.2.2-4", "3.1/name")
@pytest.mark.statement("3.1/other flags of these")
@pytest.mark.parametrize(("name", "version", "data", "reason"), each_version(BAD))
def test_wrong_packets_are_refused_with_their_reason(
    name: str, version: int, data: bytes, reason: ReasonCode
) -> None:
    with pytest.raises(WireError) as caught:
        Decoder(version).receive(data)
    assert caught.value.reason == reason
    assert caught.value.message == str(caught.value)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 200


def test_vectors_cover_every_packet_type_and_version() -> None:
    seen = {(data[0] >> 4, version) for _, versions, _, data in GOLDEN for version in versions}
    everything = {(int(kind), version) for kind in PacketType for version in (V31, V311, V5)}
    assert everything - seen == {(PacketType.AUTH, V31), (PacketType.AUTH, V311)}


def test_vectors_cover_every_property_in_every_packet() -> None:
    seen = set()
    for _, versions, packet, data in GOLDEN:
        if V5 in versions and (properties := getattr(packet, "properties", None)):
            seen |= {(int(ident), data[0] >> 4) for ident in properties}
        if (will := getattr(packet, "will", None)) and will.properties:
            seen |= {(int(ident), 16) for ident in will.properties}
    assert seen == {
        (int(ident), int(kind)) for ident, (_, kinds) in TABLE.items() for kind in kinds
    }


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_every_truncation_of_a_golden_body_is_an_error_or_a_shorter_packet(version: int) -> None:
    for _, versions, packet, data in GOLDEN:
        if version not in versions or len(data) > 200:
            continue
        body = data[2:]
        for cut in range(len(body)):
            try:
                shorter = decode_packet(data[0], body[:cut], version)
            except WireError:
                continue
            assert type(shorter) is type(packet)
            assert shorter != packet
            assert not isinstance(shorter, Subscribe) or len(shorter.filters) < len(packet.filters)


@pytest.mark.statement("3.1.1/MQTT-3.9.3-2")
@pytest.mark.parametrize("version", [V31, V311])
def test_old_versions_leave_out_what_they_do_not_have(version: int) -> None:
    extra = {Property.USER_PROPERTY: [("a", "b")]}
    assert encode_packet(Publish("a", b"x", properties=extra), version) == b"\x30\x04\x00\x01ax"
    assert encode_packet(Puback(1, 0x10, extra), version) == b"\x40\x02\x00\x01"
    request = SubscriptionRequest("a", 1, True, True, 2)
    assert (
        encode_packet(Subscribe(1, [request], extra), version) == b"\x82\x06\x00\x01\x00\x01a\x01"
    )
    assert encode_packet(Suback(1, [2, 0x87], extra), version) == b"\x90\x04\x00\x01\x02\x80"
    assert encode_packet(Unsuback(1, [0x11], extra), version) == b"\xb0\x02\x00\x01"
    assert encode_packet(Disconnect(0x8E, extra), version) == b"\xe0\x00"
    assert (
        encode_packet(Connack(True, ReasonCode.NOT_AUTHORIZED, extra), version)
        == b"\x20\x02\x00\x05"
    )
    with pytest.raises(ValueError, match="MQTT 5"):
        encode_packet(Auth(), version)


@pytest.mark.statement("3.1.1/MQTT-3.2.2-6")
@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (0, 0),
        (3, 3),
        (0x84, 1),
        (0x85, 2),
        (0x86, 4),
        (0x8C, 4),
        (0x87, 5),
        (0x8A, 5),
        (0x88, 3),
        (0x89, 3),
        (0x9F, 3),
    ],
)
def test_each_reason_has_its_return_code(reason: int, code: int) -> None:
    assert return_code(reason) == code


@pytest.mark.parametrize("version", [V31, V311, V5])
@pytest.mark.parametrize("packet", [Pingreq(b"\x00bpdu"), Pingresp(b"x" * 200)])
def test_ping_payload_on_links_only(version: int, packet: Pingreq | Pingresp) -> None:
    data = encode_packet(packet, version)
    assert Decoder(version, ping_payload=True).receive(data) == [packet]
    with pytest.raises(MalformedPacket):
        Decoder(version).receive(data)
    empty = encode_packet(type(packet)(), version)
    assert Decoder(version, ping_payload=True).receive(empty) == [type(packet)()]


@pytest.mark.parametrize(
    "packet",
    [
        Publish("x" * 65536, b""),
        Publish("\ud800", b""),
        Publish("a", b"", 1, packet_id=65536),
        Publish("a", b"", 1),
        Publish("a", b"", properties={0x7F: 1}),
        Publish("a", b"", properties={Property.TOPIC_ALIAS: 65536}),
        Publish("a", b"", properties={Property.MESSAGE_EXPIRY_INTERVAL: -1}),
        Publish("a", b"", properties={Property.SUBSCRIPTION_IDENTIFIER: [268435456]}),
        Publish("a", b"", properties={Property.CONTENT_TYPE: "x" * 65536}),
        Publish("a", b"", properties={Property.CONTENT_TYPE: "a\0"}),
        Puback(65536),
        Puback(1, 256),
        Suback(1, [256]),
    ],
)
def test_a_value_that_does_not_fit_raises_value_error(packet: Packet) -> None:
    with pytest.raises(ValueError):
        encode_packet(packet, V5)


def test_publish_bytes_from_encoded_parts() -> None:
    assert publish_bytes(b"a", b"x") == b"\x30\x04\x00\x01ax"
    assert (
        publish_bytes(b"a", b"x", 2, retain=True, dup=True, packet_id=5)
        == b"\x3d\x06\x00\x01a\x00\x05x"
    )
    assert publish_bytes(b"a", b"x", properties=b"\x00") == b"\x30\x05\x00\x01a\x00x"


def test_password_stays_out_of_the_representation() -> None:
    packet = next(
        packet for _, _, packet, _ in GOLDEN if getattr(packet, "password", None) == b"\xff\x00"
    )
    assert "xff" not in repr(packet)
