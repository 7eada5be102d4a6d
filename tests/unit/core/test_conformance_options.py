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
    Pingreq,
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
    Will,
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


def proven(world: World) -> FakeClient:
    client = begin(world)
    client.send(auth(b"2"))
    client.send(auth(b"3"))
    client.take()
    return client


# ---------------------------------------------------------------- enhanced authentication


@pytest.mark.statement("MQTT-3.15.2-1", "MQTT-4.12.0-2", "MQTT-4.12.0-5")
def test_a_client_may_authenticate_by_auth_packets() -> None:
    """MQTT-4.12.0-2, -5, MQTT-3.15.2-1, MQTT-3.2.0-1: AUTH 0x18, again, then CONNACK, all of them
    with the method."""
    world = counting(allow_anonymous=False)
    client = begin(world)
    for number in (1, 2):
        assert client.take() == [auth(b"after %d" % number)]
        assert not world.node.sessions
        client.send(auth(b"%d" % (number + 1)))
    (connack,) = client.take()
    assert isinstance(connack, Connack)
    assert connack.code == 0
    assert connack.properties[P.AUTHENTICATION_METHOD] == METHOD
    assert connack.properties[P.AUTHENTICATION_DATA] == b"after 3"
    assert world.session("c").username == "counter"


@pytest.mark.statement("MQTT-4.12.0-4")
@pytest.mark.parametrize("wrong", [1, 2, 3])
def test_authentication_may_be_rejected_at_any_point(wrong: int) -> None:
    """A CONNACK from 0x80 on, and the end; no session."""
    world = counting()
    client = begin(world, b"no" if wrong == 1 else b"1")
    for number in range(2, wrong + 1):
        assert isinstance(client.take()[0], Auth)
        client.send(auth(b"no" if number == wrong else b"%d" % number))
    (connack,) = client.take()
    assert isinstance(connack, Connack)
    assert (connack.session_present, connack.code) == (False, ReasonCode.NOT_AUTHORIZED)
    assert client.closed
    assert not world.node.sessions


@pytest.mark.statement("MQTT-4.12.0-3", "MQTT-4.12.0-5")
@pytest.mark.parametrize(
    "packet",
    [
        auth(b"2", ReasonCode.SUCCESS),
        auth(b"2", ReasonCode.RE_AUTHENTICATE),
        auth(b"2", method="OTHER"),
        auth(None, method=None),
    ],
    ids=["0x00", "0x19", "another method", "no method"],
)
def test_an_auth_of_the_client_goes_on_with_its_method(packet: Auth) -> None:
    """Anything but 0x18 and the method of CONNECT is a Protocol Error."""
    world = counting()
    client = begin(world)
    client.take()
    client.send(packet)
    assert client.closed
    assert client.last_reason() == ReasonCode.PROTOCOL_ERROR
    assert not world.node.sessions


@pytest.mark.statement("MQTT-3.1.2-30")
@pytest.mark.parametrize(
    "packet",
    [
        Pingreq(),
        Publish("t", b"x"),
        Publish("t", b"x", 1, packet_id=1),
        Subscribe(1, [SubscriptionRequest("#", 0)]),
        connect_packet("d"),
    ],
    ids=lambda p: type(p).__name__,
)
def test_only_auth_and_disconnect_before_connack(packet: Packet) -> None:
    """Nothing of it is done."""
    world = counting()
    watcher = world.connect("w")
    watcher.subscribe("#")
    client = begin(world)
    client.take()
    client.send(packet, auth(b"2"), auth(b"3"))
    assert client.closed
    assert all(isinstance(p, Connack) and p.code >= 0x80 for p in client.take())
    assert watcher.take() == []
    assert set(world.node.sessions) == {"w"}


def test_a_disconnect_before_connack_ends_the_authentication() -> None:
    world = counting()
    client = begin(world)
    client.take()
    client.send(Disconnect())
    assert client.closed
    assert client.take() == []
    assert not world.node.sessions


@pytest.mark.statement("MQTT-4.12.1-1")
def test_a_client_may_authenticate_again() -> None:
    """0x19 begins, AUTH 0x18 goes on, AUTH 0x00 ends it; the connection works meanwhile."""
    world = counting()
    client = proven(world)
    client.subscribe("t")
    client.send(auth(b"1", ReasonCode.RE_AUTHENTICATE), Publish("t", b"meanwhile"))
    got = client.take()
    assert auth(b"after 1") in got
    assert Publish("t", b"meanwhile") in got
    client.send(auth(b"2"))
    client.send(auth(b"3"))
    assert client.take() == [auth(b"after 2"), auth(b"after 3", ReasonCode.SUCCESS)]
    assert not client.closed


@pytest.mark.statement("MQTT-4.12.1-1")
@pytest.mark.parametrize("method", ["OTHER", None])
def test_authenticating_again_by_another_method_is_refused(method: str | None) -> None:
    client = proven(counting())
    client.send(auth(b"1", ReasonCode.RE_AUTHENTICATE, method))
    assert client.closed
    assert client.last_reason() == ReasonCode.PROTOCOL_ERROR


@pytest.mark.statement("MQTT-4.12.1-2")
def test_a_failed_reauthentication_closes_the_connection() -> None:
    """DISCONNECT says so, the connection is closed."""
    client = proven(counting())
    client.send(auth(b"no", ReasonCode.RE_AUTHENTICATE))
    assert client.closed
    assert client.last_reason() == ReasonCode.NOT_AUTHORIZED


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
    "PUBACK": (Publish("$no", b"x", 1, packet_id=1), Puback),
    "PUBREC": (Publish("$no", b"x", 2, packet_id=2), Pubrec),
    "PUBCOMP": (Pubrel(9), Pubcomp),
    "PUBREL": (Pubrec(9), Pubrel),
    "SUBACK": (Subscribe(3, [SubscriptionRequest("/" * 201, 0)]), Suback),
    "UNSUBACK": (Unsubscribe(4, ["/" * 201]), Unsuback),
}


EXPLAINED = {"PUBACK", "PUBREC", "SUBACK", "DISCONNECT"}
"""What this broker gives a Reason String, if it may."""


@pytest.mark.statement("MQTT-3.1.2-29")
@pytest.mark.parametrize("name", REFUSED)
def test_a_client_that_wants_no_problem_information_gets_none(name: str) -> None:
    """With Request Problem Information 0 neither Reason String nor User Property."""
    packet, kind = REFUSED[name]
    for wanted in (0, 1):
        client = World().connect("c", properties={P.REQUEST_PROBLEM_INFORMATION: wanted})
        client.send(packet)
        (answer,) = client.take()
        assert isinstance(answer, kind)
        assert answer.properties is None
        assert len(client.said) == (wanted if name in EXPLAINED else 0)


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
    assert client.said


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


# ---------------------------------------------------------------- information, aliases, limits


@pytest.mark.statement("MQTT-3.1.2-28")
@pytest.mark.parametrize(("asked", "given"), [(None, False), (0, False), (1, True)])
def test_response_information_is_given_to_clients_that_ask(asked: int | None, given: bool) -> None:
    """Only for clients that ask."""
    world = World(response_information="answers/%c")
    properties = None if asked is None else {P.REQUEST_RESPONSE_INFORMATION: asked}
    client = world.connect("c", properties=properties)
    assert client.connack.properties.get(P.RESPONSE_INFORMATION) == ("answers/c" if given else None)


@pytest.mark.statement("MQTT-3.1.2-26", "MQTT-3.1.2-27", "MQTT-3.3.2-11")
@pytest.mark.parametrize("maximum", [None, 0, 1, 3, 65535])
def test_the_brokers_topic_aliases_keep_to_the_clients_maximum(maximum: int | None) -> None:
    """MQTT-3.1.2-26, -27, MQTT-3.3.2-7, -8, -11: 1 to what the client takes, at most; topics are
    known; new ones each time."""
    world = World()
    publisher = world.connect("p")
    properties = {P.SESSION_EXPIRY_INTERVAL: 100} | (
        {} if maximum is None else {P.TOPIC_ALIAS_MAXIMUM: maximum}
    )
    topics = [f"a/long/topic/name/{n}" for n in range(5)]
    client = world.connect("c", clean=False, properties=properties)
    client.subscribe("#", qos=2)
    used = set()
    for _ in range(2):
        known: dict[int, str] = {}
        got = []
        for number in range(1, 61):
            topic = topics[number * 7 % 5]
            publisher.publish(
                topic,
                topic.encode(),
                number % 3,
                packet_id=number,
                properties={P.CONTENT_TYPE: "c"},
            )
            publisher.send(Pubrel(number))
            publisher.take()
            packets = client.inbox + client.take()
            client.inbox = []
            got += [p for p in packets if isinstance(p, Publish)]
            client.send(
                *(
                    Puback(p.packet_id) if p.qos == 1 else Pubrec(p.packet_id, 0x80)
                    for p in got[-1:]
                    if p.packet_id
                )
            )
        for packet in got:
            alias = (packet.properties or {}).get(P.TOPIC_ALIAS)
            if alias is not None:
                assert 1 <= alias <= (maximum or 0)
                used.add(alias)
                if packet.topic:
                    known[alias] = packet.topic
            topic = packet.topic or known[alias or 0]
            assert topic.encode() == packet.payload
        assert len(got) == 60
        client.vanish()
        client = world.connect("c", clean=False, properties=properties)
    assert bool(used) is bool(maximum)


@pytest.mark.statement("MQTT-3.3.4-7")
@pytest.mark.parametrize("maximum", [1, 3])
def test_a_client_that_exceeds_the_receive_maximum_is_closed(maximum: int) -> None:
    """Closed with 0x93; PUBREL makes room."""
    client = World(receive_maximum=maximum).connect("c")
    assert client.connack.properties[P.RECEIVE_MAXIMUM] == maximum
    for number in range(1, maximum + 1):
        client.publish("t", b"x", 2, packet_id=number)
    client.send(Pubrel(1))
    client.publish("t", b"x", 2, packet_id=100)
    assert not client.closed
    client.publish("t", b"x", 2, packet_id=101)
    assert client.closed
    assert client.last_reason() == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


@pytest.mark.statement("MQTT-3.2.2-13", "MQTT-3.2.2-14")
def test_a_broker_without_retain_refuses_retained_messages() -> None:
    """It says so, refuses such a will, and closes on RETAIN."""
    world = World(retain_available=False)
    client = world.connect("c")
    assert client.connack.properties[P.RETAIN_AVAILABLE] == 0
    client.publish("t", b"x", retain=True)
    assert client.closed
    assert client.last_reason() == ReasonCode.RETAIN_NOT_SUPPORTED
    client = world.open()
    client.send(connect_packet("c", will=Will("t", b"x", retain=True)))
    assert client.closed
    assert client.last_reason() == ReasonCode.RETAIN_NOT_SUPPORTED
