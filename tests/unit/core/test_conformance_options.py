"""What is not there for every client: enhanced authentication, aliases towards clients, reasons,
information, capabilities (MQTT-3.1.2-26 to -30, MQTT-3.2.2, MQTT-3.15, MQTT-4.12): see
docs/conformance.md."""

from __future__ import annotations

import pytest

from mqttree.broker.auth.enhanced_auth import AuthenticationFailed
from mqttree.broker.wire import (
    Auth,
    Connack,
    Disconnect,
    Packet,
    Property,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    encode_packet,
)
from tests.kit.node_harness import FakeClient, World, connect_packet

P = Property
METHOD = "COUNT"


class Count:
    """A method that asks for "1", "2", "3" in turn, and then knows the client as "counter"."""

    username = "counter"

    def __init__(self) -> None:
        self.done = False
        self.next = 1

    def step(self, data: bytes | None) -> bytes | None:
        if data != b"%d" % self.next:
            raise AuthenticationFailed("cannot count")
        self.next += 1
        self.done = self.next == 4
        return b"after %d" % (self.next - 1)


def counting(**config) -> World:
    world = World(**config)
    world.node.methods[METHOD] = Count
    return world


def auth(
    data: bytes | None,
    reason: int = ReasonCode.CONTINUE_AUTHENTICATION,
    method: str | None = METHOD,
) -> Auth:
    properties = {} if method is None else {P.AUTHENTICATION_METHOD: method}
    if data is not None:
        properties[P.AUTHENTICATION_DATA] = data
    return Auth(reason, properties or None)


def begin(world: World, data: bytes | None = b"1", **properties: int) -> FakeClient:
    client = world.open()
    asked = {P.AUTHENTICATION_METHOD: METHOD} | {
        P[name.upper()]: value for name, value in properties.items()
    }
    if data is not None:
        asked[P.AUTHENTICATION_DATA] = data
    client.send(connect_packet("c", properties=asked))
    return client


# ---------------------------------------------------------------- enhanced authentication


@pytest.mark.statement("MQTT-4.12.0-6")
def test_no_auth_for_clients_that_do_not_ask_for_it() -> None:
    """MQTT-4.12.0-6, -7: neither AUTH nor the method in CONNACK; an AUTH of theirs is a Protocol
    Error."""
    world = counting()
    client = world.connect("c")
    assert P.AUTHENTICATION_METHOD not in (client.connack.properties or {})
    client.send(auth(b"1", ReasonCode.RE_AUTHENTICATE))
    assert client.closed
    assert client.last_reason() == ReasonCode.PROTOCOL_ERROR


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


@pytest.mark.statement("MQTT-3.15.2-2", "MQTT-3.15.2-3")
def test_auth_of_the_broker_has_no_reason_string() -> None:
    """Neither Reason String nor User Property, so none can be too large."""
    client = begin(counting())
    (packet,) = client.take()
    assert isinstance(packet, Auth)
    assert set(packet.properties or {}) == {P.AUTHENTICATION_METHOD, P.AUTHENTICATION_DATA}


@pytest.mark.statement("MQTT-3.1.2-24")
def test_auth_keeps_to_the_maximum_packet_size() -> None:
    """At CONNECT and later: a client that cannot take the answer is closed with 0x95, if it can
    take that."""
    for maximum in range(1, 80):
        world = counting()
        client = begin(world, maximum_packet_size=maximum)
        for number in (2, 3):
            if not client.closed:
                client.send(auth(b"%d" % number))
        if not client.closed:
            client.send(auth(b"1", ReasonCode.RE_AUTHENTICATE))
        assert all(size <= maximum for size in client.sizes())
        packets = client.take()
        if client.closed:
            assert getattr(packets[-1], "code", 0x95) == 0x95 if packets else maximum < 5
        else:
            assert [type(p).__name__ for p in packets] == ["Auth", "Auth", "Connack", "Auth"]
