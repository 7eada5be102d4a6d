"""Reasons, which are not there for every client (MQTT-3.2.2, MQTT-3.4.2 to MQTT-3.14.2): see
docs/conformance.md."""

from __future__ import annotations

import pytest

from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import (
    Connack,
    Disconnect,
    Packet,
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
)
from mqttree.broker.wire.properties import Property
from tests.kit.node_harness import World, connect_packet

P = Property


# ---------------------------------------------------------------- reasons


# What is refused, and how: (packet, answer).
REFUSED: dict[str, tuple[Packet, type[Packet]]] = {
    "PUBACK": (Publish("$SYS/no", b"x", 1, packet_id=1), Puback),
    "PUBREC": (Publish("$SYS/no", b"x", 2, packet_id=2), Pubrec),
    "PUBCOMP": (Pubrel(9), Pubcomp),
    "PUBREL": (Pubrec(9), Pubrel),
    "SUBACK": (Subscribe(3, [SubscriptionRequest("/" * 201, 0)]), Suback),
    "UNSUBACK": (Unsubscribe(4, ["/" * 201]), Unsuback),
}


EXPLAINED = {"PUBACK", "PUBREC", "SUBACK", "DISCONNECT"}
"""What this broker gives a Reason String, if it may."""


@pytest.mark.statement("MQTT-3.4.2-2", "MQTT-3.4.2-3", "MQTT-3.5.2-2", "MQTT-3.5.2-3")
@pytest.mark.statement("MQTT-3.6.2-2", "MQTT-3.6.2-3", "MQTT-3.7.2-2", "MQTT-3.7.2-3")
@pytest.mark.statement("MQTT-3.9.2-1", "MQTT-3.9.2-2", "MQTT-3.11.2-1", "MQTT-3.11.2-2")
@pytest.mark.statement("MQTT-3.14.2-3", "MQTT-3.14.2-4")
@pytest.mark.parametrize("name", [*REFUSED, "DISCONNECT"])
def test_a_reason_that_makes_the_packet_too_large_is_left_out(name: str) -> None:
    """MQTT-3.4.2-2, -3 to MQTT-3.7.2-2, -3, MQTT-3.9.2-1, -2, MQTT-3.11.2-1, -2, MQTT-3.14.2-3, -4:
    the code always comes."""
    if name == "DISCONNECT":
        packet, kind = (
            encode_packet(Publish("t", b"x", properties={P.TOPIC_ALIAS: 0xFFFF}), 5),
            Disconnect,
        )
    else:
        packet, kind = REFUSED[name]
    explained = []
    for maximum in range(12, 300, 2):
        client = World().connect("c", properties={P.MAXIMUM_PACKET_SIZE: maximum})
        client.send(packet)
        (size,) = client.sizes()
        assert size <= maximum
        (answer,) = client.take()
        assert isinstance(answer, kind)
        assert not answer.properties  # but for a Reason String
        explained.append(len(client.said))
        codes = answer.codes if isinstance(answer, Suback | Unsuback) else [answer.reason]
        assert codes[0] >= 0x80
    assert explained == sorted(explained)  # from some size on
    assert set(explained) == ({0, 1} if name in EXPLAINED else {0})


@pytest.mark.statement("MQTT-3.2.2-19", "MQTT-3.2.2-20")
def test_a_refusal_keeps_to_the_maximum_packet_size() -> None:
    for maximum in range(1, 120):
        client = World(allow_anonymous=False).open()
        client.send(connect_packet("c", properties={P.MAXIMUM_PACKET_SIZE: maximum}))
        sizes = client.sizes()
        assert all(size <= maximum for size in sizes)
        packets = client.take()
        assert [p.code for p in packets if isinstance(p, Connack)] == (
            [ReasonCode.NOT_AUTHORIZED] if maximum >= 5 else []
        )
        assert len(client.said) == (sizes[:1] > [5])
        assert client.closed
    assert client.said == ["this client is anonymous"]
