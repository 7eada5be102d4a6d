"""Messages encoded for their receivers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.core.dispatcher import convert_run
from mqttree.broker.core.message import Message
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Publish
from mqttree.broker.wire.properties import Property, encode_identifier, encode_properties
from mqttree.broker.wire.publish_header import topic_of
from tests.kit.decoder import Decoder

P = Property


def message(
    payload: bytes = b"x", properties: bytes = b"", expires_at: float | None = None
) -> Message:
    return Message(b"t/\xc3\xa9", payload, 2, False, properties, expires_at, None)


@given(
    st.sampled_from([3, 4, 5]),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
    st.integers(1, 65535),
    st.binary(max_size=300),
)
def test_a_kept_packet_equals_the_encoders(
    version: int, qos: int, retain: bool, dup: bool, packet_id: int, payload: bytes
) -> None:
    packet = Publish("t/é", payload, qos, retain, dup, packet_id if qos else None)
    for _ in range(2):  # the second time from what was kept
        assert message(payload).packet(version, qos, retain, packet_id, dup=dup) == encode_packet(
            packet, version
        )


@pytest.mark.parametrize(
    "size", [0, 1, 119, 120, 121, 16_375, 16_376, 16_380, 2_097_144, 2_097_150]
)
@pytest.mark.parametrize("version", [4, 5])
def test_every_size_of_the_remaining_length_is_right(size: int, version: int) -> None:
    data = message(b"x" * size).packet(version, 1, False, 7)
    assert Decoder(version).receive(data) == [Publish("t/é", b"x" * size, 1, packet_id=7)]


@pytest.mark.parametrize(
    ("now", "left"), [(100.0, 60), (100.4, 60), (130.0, 30), (159.6, 1), (160.0, 1), (1e9, 1)]
)
def test_a_message_carries_its_remaining_time(now: float, left: int) -> None:
    """MQTT-3.3.2-6; never 0, which some brokers take for no expiry at all."""
    one = message(b"x", encode_properties({P.CONTENT_TYPE: "c"})[1:], 160.0)
    (packet,) = Decoder(5).receive(one.packet(5, 0, False, 0, now=now))
    assert packet.properties == {P.MESSAGE_EXPIRY_INTERVAL: left, P.CONTENT_TYPE: "c"}
    (packet,) = Decoder(4).receive(one.packet(4, 0, False, 0, now=now))
    assert packet == Publish("t/é", b"x")
    assert one.expired(now) == (now >= 160.0)


def test_subscription_identifiers_are_added_to_a_packet() -> None:
    ids = b"".join(encode_identifier(n) for n in (1, 127, 128, 268_435_455))
    (packet,) = Decoder(5).receive(message().packet(5, 1, True, 9, subscription_ids=ids))
    assert packet == Publish(
        "t/é", b"x", 1, True, False, 9, {P.SUBSCRIPTION_IDENTIFIER: [1, 127, 128, 268_435_455]}
    )
    assert message().packet(4, 1, True, 9, subscription_ids=ids) == message().packet(4, 1, True, 9)


@given(
    st.sampled_from([4, 5]),
    st.sampled_from([4, 5]),
    st.lists(st.integers(0, 255), min_size=1, max_size=5),
    st.sampled_from(
        [
            0,
            1,
            60,
            119,
            120,
            121,
            122,
            123,
            124,
            125,
            126,
            127,
            16_370,
            16_378,
            16_379,
            16_380,
            16_381,
            16_382,
        ]
    ),
    st.sampled_from(["t", "a/b/c", "é"]),
)
def test_a_run_is_converted_to_the_other_version(
    before: int, after: int, fills: list[int], size: int, topic: str
) -> None:
    packets = [Publish(topic, bytes((fill,)) * size) for fill in fills]
    one = encode_packet(packets[0], before)
    prefix = len(one) - size
    chunk = b"".join(encode_packet(p, before) for p in packets)
    assert topic_of(chunk) == topic.encode()
    assert convert_run(chunk, prefix, len(one), after) == b"".join(
        encode_packet(p, after) for p in packets
    )
