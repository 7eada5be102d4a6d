"""A session belongs to its user (session_owner.py): what anybody else gets who comes with its
client id."""

from __future__ import annotations

from typing import Any

import pytest

from mqttree.broker.auth.authorization import Access
from mqttree.broker.core.effects import Authenticate, Hooks
from mqttree.broker.core.session_owner import ANONYMOUS, Entry, decode_entry, digest
from mqttree.broker.wire.packets import Connack, Publish
from mqttree.broker.wire.properties import Property
from tests.kit.journal_harness import Durable
from tests.kit.node_harness import FakeClient, World, connect_packet
from tests.unit.core.test_node_auth import authenticated
from tests.unit.core.test_node_auth import world as scram_world

KEPT: Any = {Property.SESSION_EXPIRY_INTERVAL: 3600}


def enter(
    world: World, user: str | None, version: int = 5, *, clean: bool = False, client_id: str = "c"
) -> FakeClient:
    """Connect with a password that is right."""
    client = world.open(version)
    properties = KEPT if version == 5 else None
    password = None if user is None else b"right"
    client.send(
        connect_packet(
            client_id, version, clean=clean, username=user, password=password, properties=properties
        )
    )
    world.answer(Authenticate, True)
    connack, *client.inbox = client.take()
    assert isinstance(connack, Connack)
    client.connack = connack
    return client


def users_of(kind: str) -> World:
    if kind == "plugins":
        return World(hooks=Hooks(authenticate=True))
    world = World()
    world.node.set_access(Access({"anna", "bob"}, None, True), world.now)
    return world


@pytest.mark.statement("MQTT-3.1.3-8")
@pytest.mark.statement("choice/another user takes the client identifier of a session")
@pytest.mark.parametrize("kind", ["plugins", "users"])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("stranger", ["bob", None])
def test_another_user_is_refused(
    kind: str, version: int, clean: bool, stranger: str | None
) -> None:
    world = users_of(kind)
    anna = enter(world, "anna", version).subscribed("a", qos=1)
    refused = enter(world, stranger, version, clean=clean)
    assert refused.connack.code == (0x85 if version == 5 else 2)
    assert refused.closed
    assert not anna.closed
    anna.vanish()
    enter(world, "bob", client_id="p").publish("a", qos=1)
    assert enter(world, stranger, version, clean=clean).connack.code == (
        0x85 if version == 5 else 2
    )
    back = enter(world, "anna", version)
    assert back.connack.session_present
    assert [p.payload for p in back.inbox if isinstance(p, Publish)] == [b"x"]
    assert world.counters.sessions_wrong_user == 2
    assert world.counters.log_lines_suppressed == 1  # one a minute


def test_a_session_of_an_unnamed_client_is_not_taken_by_a_user() -> None:
    world = users_of("plugins")
    unnamed = enter(world, None)
    assert enter(world, "anna").connack.code == 0x85
    assert not unnamed.closed


@pytest.mark.parametrize("version", [4, 5])
def test_an_unchecked_name_is_no_user(version: int) -> None:
    """All are anonymous there, and whoever has the client id has the session."""
    world = World()
    enter(world, "anna", version).vanish()
    assert enter(world, "bob", version).connack.session_present
    assert world.session("c").owner is None
    assert not world.counters.sessions_wrong_user


def test_users_who_have_proven_themselves() -> None:
    there = scram_world()
    authenticated(there, "anna", properties=KEPT, clean=False)
    assert there.session("c").owner == "anna"
    stranger = there.open().sent(connect_packet("c", clean=False))
    assert stranger.last_reason() == 0x85
    assert there.counters.sessions_wrong_user == 1


def test_users_of_certificates() -> None:
    world = World(identity_listeners=frozenset({"tcp"}))

    def come(name: str) -> FakeClient:
        client = world.open()
        client.conn.secure = Certificate(name)
        client.send(connect_packet("c", clean=False, username="what CONNECT says", properties=KEPT))
        connack, *client.inbox = client.take()
        assert isinstance(connack, Connack)
        client.connack = connack
        return client

    sensor = come("sensor-7")
    assert world.session("c").owner == "sensor-7"
    assert come("sensor-8").connack.code == 0x85
    assert not sensor.closed
    assert come("sensor-7").connack.session_present


class Certificate:
    """What TLS says of a client."""

    def __init__(self, name: str) -> None:
        self.name = name

    def getpeercert(self) -> dict[str, Any]:
        return {"subject": ((("commonName", self.name),),)}


def test_a_session_keeps_its_owner_over_a_restart() -> None:
    world = Durable()
    world.node.set_access(Access({"anna", "bob"}, None, True), world.now)
    enter(world, "anna")
    again = world.again(1.0)
    again.node.set_access(Access({"anna", "bob"}, None, True), again.now)
    assert enter(again, "bob").connack.code == 0x85
    assert enter(again, "anna").connack.session_present


def test_a_session_from_before_users_were_asked_for() -> None:
    """No anonymous client can come for it any more: a client with the same name gets it, one
    without begins a new one."""
    world = World()
    for client_id in ("one", "two"):
        enter(world, "anna", client_id=client_id).vanish()
    world.node.set_access(Access({"anna", "bob"}, None, False), world.now)
    assert enter(world, "anna", client_id="one").connack.session_present
    bob = enter(world, "bob", client_id="two")
    assert (bob.connack.code, bob.connack.session_present) == (0, False)
    assert world.session("two").owner == "bob"


def test_an_encoded_entry_decodes_to_the_same() -> None:
    entry = Entry(1, 2, 3, 4, digest("anna"))
    assert decode_entry(entry.encode()) == entry
    assert decode_entry(entry.encode()[:-1]) is None
    assert decode_entry(None) is None
    assert len({digest(None), digest(""), digest("anna"), ANONYMOUS}) == 3
