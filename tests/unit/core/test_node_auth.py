"""Enhanced authentication (MQTT 5, 4.12) of a node: the AUTH exchange at CONNECT, and again
later."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mqttree.broker.auth.scram import NAME, Scram, Verifier
from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.core.effects import Authenticate, Hooks
from mqttree.broker.core.reauthentication import REAUTHENTICATION_TIMEOUT_S
from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import (
    Auth,
    Connack,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Will,
)
from mqttree.broker.wire.properties import Properties, Property
from tests.kit.node_harness import FakeClient, World, connect_packet
from tests.kit.scram_client import ScramClient

USERS = {
    name: Verifier.of(f"{name}'s password", b"salt of 16 bytes", 1) for name in ("anna", "bob")
}


def world(*, hooks: Hooks | None = None, **config: Any) -> World:
    found = World(hooks=hooks, **config)
    found.node.methods[NAME] = Scram(USERS.get, random.Random(3).randbytes)
    return found


def properties(data: bytes | None, method: str = NAME) -> Properties:
    found: Properties = {Property.AUTHENTICATION_METHOD: method}
    if data is not None:
        found[Property.AUTHENTICATION_DATA] = data
    return found


def auth(
    data: bytes | None, reason: int = ReasonCode.CONTINUE_AUTHENTICATION, method: str = NAME
) -> Auth:
    return Auth(reason, properties(data, method))


def data_of(packet: object) -> bytes:
    assert isinstance(packet, Auth | Connack)
    assert packet.properties is not None
    assert packet.properties[Property.AUTHENTICATION_METHOD] == NAME
    data: bytes = packet.properties[Property.AUTHENTICATION_DATA]
    return data


def begin(
    there: World, user: str = "anna", client_id: str = "c", **options: Any
) -> tuple[FakeClient, ScramClient, bytes]:
    """CONNECT with client-first; returns the client, the exchange and server-first."""
    client = there.open()
    scram = ScramClient(user, f"{user}'s password")
    client.send(
        connect_packet(
            client_id,
            properties={**properties(scram.first()), **options.pop("properties", {})},
            **options,
        )
    )
    (challenge,) = client.take()
    assert isinstance(challenge, Auth)
    assert challenge.reason == ReasonCode.CONTINUE_AUTHENTICATION
    assert challenge.properties == properties(data_of(challenge)), "and no Reason String"
    return client, scram, data_of(challenge)


def authenticated(
    there: World, user: str = "anna", client_id: str = "c", **options: Any
) -> FakeClient:
    client, scram, challenge = begin(there, user, client_id, **options)
    client.send(auth(scram.final(challenge)))
    client.connack, *client.inbox = client.take()  # type: ignore[assignment]
    assert client.connack.code == 0
    return client


# ------------------------------------------------------------------ at CONNECT


@pytest.mark.statement("MQTT-3.15.2-2", "MQTT-3.15.2-3", "MQTT-4.12.0-5")
def test_a_client_may_authenticate_by_scram_at_connect() -> None:
    there = world(allow_anonymous=False)
    client, scram, challenge = begin(there)
    assert there.node.clients.connected == 0
    client.send(auth(scram.final(challenge)))
    (connack,) = client.take()
    assert isinstance(connack, Connack)
    assert connack.code == 0
    assert scram.proves(data_of(connack))
    assert there.session("c").username == "anna"
    assert there.node.clients.connected == 1
    assert client.subscribe("t") == [0]
    client.publish("t", b"x")
    assert client.payloads() == [b"x"]


@pytest.mark.statement("MQTT-4.12.0-2")
def test_a_connect_without_data_is_asked_to_begin() -> None:
    there = world()
    client = there.open()
    scram = ScramClient("anna", "anna's password")
    client.send(connect_packet(properties=properties(None)))
    assert client.take() == [Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties(None))]
    client.send(auth(scram.first()))
    (challenge,) = client.take()
    client.send(auth(scram.final(data_of(challenge))))
    (connack,) = client.take()
    assert scram.proves(data_of(connack))


def test_authentication_packets_may_be_cut_anywhere() -> None:
    there = world()
    client = there.open()
    scram = ScramClient("anna", "anna's password")
    first = encode_packet(connect_packet(properties=properties(scram.first())), 5)
    client.chunks(bytes((byte,)) for byte in first)
    (challenge,) = client.take()
    last = encode_packet(auth(scram.final(data_of(challenge))), 5) + encode_packet(Pingreq(), 5) * 2
    client.chunks([last[:7], last[7:]])
    packets = client.take()
    assert isinstance(packets[0], Connack)
    assert packets[1:] == [Pingresp(), Pingresp()]


@pytest.mark.statement("MQTT-3.1.4-2", "MQTT-4.12.0-4")
@pytest.mark.parametrize("user", ["anna", "nobody"])
def test_a_wrong_password_and_a_wrong_name_look_the_same(user: str) -> None:
    there = world()
    client, scram, challenge = begin(there, user)
    scram.password = "wrong"
    client.send(auth(scram.final(challenge)))
    assert client.take() == [Connack(False, ReasonCode.NOT_AUTHORIZED)]
    assert client.said == ["not authorized"]
    assert client.closed
    assert there.counters.authentication_failed == there.counters.connects_refused == 1
    assert not there.node.sessions
    assert "wrong user name or password" in there.logged[-1]


@pytest.mark.statement("MQTT-4.12.0-1")
def test_an_unknown_authentication_method_is_refused() -> None:
    there = world()
    client = there.open().sent(connect_packet(properties=properties(b"x", "KERBEROS")))
    assert client.take() == [Connack(False, ReasonCode.BAD_AUTHENTICATION_METHOD)]
    assert client.closed


@pytest.mark.statement("MQTT-3.1.2-30", "MQTT-4.12.0-3")
@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (Pingreq(), 0x82),
        (Publish("t", b"x"), 0x82),
        (connect_packet(), 0x82),
        (auth(b"x", ReasonCode.RE_AUTHENTICATE), 0x82),
        (auth(b"x", ReasonCode.SUCCESS), 0x82),
        (auth(b"x", method="PLAIN"), 0x82),
        (Auth(ReasonCode.CONTINUE_AUTHENTICATION), 0x82),
        (Auth(ReasonCode.CONTINUE_AUTHENTICATION, {Property.REASON_STRING: "x"}), 0x82),
        (auth(b"x"), 0x87),
        (auth(None), 0x87),
        (b"\xf1\x00", 0x81),
        (b"\xf0\x01\x55", 0x82),
    ],
)
def test_nothing_but_the_next_auth_is_taken_before_connack(packet: Any, code: int) -> None:
    """MQTT-3.1.2-30, MQTT-4.12.0-3, -5."""
    there = world()
    client, _, _ = begin(there, will=Will("w", b"x"))
    client.send(packet)
    (connack,) = client.take()
    assert isinstance(connack, Connack)
    assert connack.code == code
    assert client.closed
    assert not there.node.sessions
    assert not there.counters.wills


def test_disconnect_before_connack_ends_it_quietly() -> None:
    there = world()
    client, _, _ = begin(there, will=Will("w", b"x"))
    client.send(Disconnect())
    assert client.take() == []
    assert client.closed
    assert not there.counters.wills
    assert not there.node.connections


def test_an_authentication_that_does_not_end_is_closed() -> None:
    there = world()
    client, _, _ = begin(there)
    there.advance(NodeConfig().connect_timeout - 0.1)
    assert not client.closed
    there.advance(0.2)
    assert client.closed
    assert there.counters.connect_timeout == 1
    assert "its authentication did not end" in there.logged[-1]


def test_a_connection_that_breaks_meanwhile_leaves_nothing() -> None:
    there = world()
    client, _, _ = begin(there)
    client.vanish()
    there.advance(2 * NodeConfig().connect_timeout)
    assert not there.node.sessions
    assert not there.node.connections


def test_user_name_must_be_the_one_that_was_proven() -> None:
    there = world()
    client, scram, challenge = begin(there, username="bob", password=b"x")
    client.send(auth(scram.final(challenge)))
    assert client.last_reason() == ReasonCode.NOT_AUTHORIZED
    assert authenticated(there, username="anna").connack.code == 0


def test_plugins_are_asked_too_and_get_the_name() -> None:
    there = world(hooks=Hooks(authenticate=True))
    client, scram, challenge = begin(there)
    assert not there.effects
    client.send(auth(scram.final(challenge)), Pingreq())
    (effect,) = there.effects
    assert isinstance(effect, Authenticate)
    assert (effect.connect.username, effect.client.authentication.username) == ("anna", "anna")
    assert client.take() == []
    there.answer(Authenticate, True)
    connack, pong = client.take()
    assert scram.proves(data_of(connack))
    assert pong == Pingresp()


@pytest.mark.statement("MQTT-3.1.2-24")
def test_auth_keeps_to_the_maximum_packet_size() -> None:
    """At CONNECT and later: a client that cannot take the answer is closed with 0x95, if it can
    take that."""
    for maximum in range(1, 200):
        client, scram = world().open(), ScramClient("anna", "anna's password")
        limit: Properties = {Property.MAXIMUM_PACKET_SIZE: maximum}
        packet: Packet = connect_packet("c", properties=properties(scram.first()) | limit)
        answers: list[Packet] = []
        while not client.closed and len(answers) < 3:
            client.send(packet)
            assert all(size <= maximum for size in client.sizes())
            answers += client.take()
            if len(answers) == 1 and not client.closed:
                packet = auth(scram.final(data_of(answers[0])))
            else:
                packet = auth(scram.first(), ReasonCode.RE_AUTHENTICATE)
        if client.closed:
            assert getattr(answers[-1], "code", 0x95) == 0x95 if answers else maximum < 5
        else:
            assert [type(p) for p in answers] == [Auth, Connack, Auth]
    assert not client.closed


# ------------------------------------------------------------------ again


@pytest.mark.statement("MQTT-4.12.1-1")
def test_authenticating_again_while_messages_flow() -> None:
    there = world()
    client = authenticated(there).subscribed("t")
    for _ in range(2):
        scram = ScramClient("anna", "anna's password")
        client.send(auth(scram.first(), ReasonCode.RE_AUTHENTICATE))
        (challenge,) = client.take()
        client.publish("t", b"meanwhile")
        assert client.payloads() == [b"meanwhile"]
        client.send(auth(scram.final(data_of(challenge))))
        (success,) = client.take()
        assert isinstance(success, Auth)
        assert success.reason == ReasonCode.SUCCESS
        assert scram.proves(data_of(success))
    there.advance(10 * REAUTHENTICATION_TIMEOUT_S)
    assert not client.closed


@pytest.mark.statement("MQTT-4.12.0-6", "MQTT-4.12.0-7")
@pytest.mark.parametrize(
    "packet",
    [auth(b"x", ReasonCode.RE_AUTHENTICATE), auth(b"x"), Auth(), auth(None, ReasonCode.SUCCESS)],
)
def test_auth_of_a_client_that_did_not_begin_with_it(packet: Auth) -> None:
    there = world()
    client = there.connect()
    assert Property.AUTHENTICATION_METHOD not in (client.connack.properties or {})
    client.send(packet)
    assert client.last_reason() == ReasonCode.PROTOCOL_ERROR
    assert client.closed


@pytest.mark.statement("MQTT-4.12.1-1")
@pytest.mark.parametrize(
    "packets",
    [
        [auth(b"x")],
        [auth(None, ReasonCode.SUCCESS)],
        [auth(b"x", ReasonCode.RE_AUTHENTICATE, "PLAIN")],
        [Auth(ReasonCode.RE_AUTHENTICATE)],
        [auth(None, ReasonCode.RE_AUTHENTICATE), auth(None, ReasonCode.RE_AUTHENTICATE)],
        [auth(None, ReasonCode.RE_AUTHENTICATE), auth(b"x", method="PLAIN")],
    ],
)
def test_a_reauthentication_in_the_wrong_order_is_refused(packets: list[Auth]) -> None:
    client = authenticated(world())
    client.send(*packets)
    assert client.last_reason() == ReasonCode.PROTOCOL_ERROR
    assert client.closed


@pytest.mark.statement("MQTT-4.12.1-2")
@pytest.mark.parametrize(("user", "password"), [("anna", "wrong"), ("bob", "bob's password")])
def test_failing_again_disconnects_and_so_does_another_user(user: str, password: str) -> None:
    there = world()
    watcher = there.connect("watcher").subscribed("w")
    client = authenticated(there, will=Will("w", b"gone"))
    scram = ScramClient(user, password)
    client.send(auth(scram.first(), ReasonCode.RE_AUTHENTICATE))
    (challenge,) = client.take()
    client.send(auth(scram.final(data_of(challenge))))
    assert client.take() == [Disconnect(ReasonCode.NOT_AUTHORIZED)]
    assert client.closed
    assert watcher.payloads() == [b"gone"]
    assert there.counters.authentication_failed == 1


def test_authenticating_again_must_come_to_an_end_in_time() -> None:
    there = world()
    client = authenticated(there)
    client.send(auth(None, ReasonCode.RE_AUTHENTICATE))
    assert client.take() == [Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties(None))]
    there.advance(REAUTHENTICATION_TIMEOUT_S + 0.1)
    assert client.last_reason() == ReasonCode.NOT_AUTHORIZED
    assert client.closed


def test_the_time_of_one_exchange_does_not_end_the_next() -> None:
    there = world()
    client = authenticated(there)
    for _ in range(3):
        scram = ScramClient("anna", "anna's password")
        client.send(auth(scram.first(), ReasonCode.RE_AUTHENTICATE))
        (challenge,) = client.take()
        there.advance(REAUTHENTICATION_TIMEOUT_S * 0.7)
        client.send(auth(scram.final(data_of(challenge))))
        (success,) = client.take()
        assert isinstance(success, Auth)
        assert success.reason == ReasonCode.SUCCESS


def test_a_session_goes_on_for_who_authenticates_on_the_next_connection() -> None:
    there = world()
    keep = {Property.SESSION_EXPIRY_INTERVAL: 100}
    authenticated(there, properties=keep).subscribed("t", qos=1).vanish()
    there.connect("p").publish("t", b"kept", 1)
    again = authenticated(there, clean=False, properties=keep)
    assert again.connack.session_present
    assert again.payloads() == [b"kept"]
