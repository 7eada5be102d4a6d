"""The session of a leg: it needs no password, no client can take it, and the rules of a user count
for it if it has one."""

from __future__ import annotations

from typing import Any

import pytest

from mqttree.broker.auth.acl_file import parse_rules
from mqttree.broker.auth.authorization import Access
from mqttree.broker.core.effects import Hooks
from mqttree.broker.core.session_owner import LEG_LISTENER, LEG_OWNER
from mqttree.broker.limits import Limits
from mqttree.broker.wire.packets import Connack, Puback, Publish
from mqttree.broker.wire.properties import Property
from tests.kit.journal_harness import Durable
from tests.kit.node_harness import FakeClient, World, connect_packet

KEPT: Any = {Property.SESSION_EXPIRY_INTERVAL: 3600}


def strict(kind: str) -> World:
    """A node that lets in nobody without a password."""
    if kind == "plugins":
        return World(hooks=Hooks(authenticate=True))
    if kind == "no anonymous":
        return World(allow_anonymous=False)
    world = World()
    rules = parse_rules("rules", "user anna\nallow all a/#", limits=Limits())
    world.node.set_access(Access({"anna"}, rules, False), world.now)
    return world


def enter(
    world: World, user: str | None = None, listener: str = LEG_LISTENER, **options: Any
) -> FakeClient:
    """Connect as the leg "n" does."""
    client = world.open()
    client.conn.listener = listener
    client.send(connect_packet("leg:n", username=user, clean=False, properties=KEPT, **options))
    packets = client.take()
    if packets:
        assert isinstance(packets[0], Connack)
        client.connack = packets[0]
        client.inbox = packets[1:]
    return client


@pytest.mark.parametrize("kind", ["plugins", "no anonymous", "users"])
def test_a_leg_needs_no_password_and_may_do_everything(kind: str) -> None:
    world = strict(kind)
    leg = enter(world)
    assert leg.connack.code == 0
    assert leg.subscribe("#", qos=2) == [2]
    leg.send(Publish("b", b"x", 1, packet_id=1))
    assert Puback(1, 0) in leg.take()
    assert world.node.sessions["leg:n"].owner == LEG_OWNER


def test_the_rules_of_its_user_count() -> None:
    world = strict("users")
    leg = enter(world, "anna")
    assert leg.connack.code == 0
    assert leg.subscribe("a/1", qos=2) == [2]
    assert leg.subscribe("b", qos=2)[0] >= 0x80
    leg.send(Publish("b", b"x", 1, packet_id=1))
    assert [p.reason for p in leg.take() if isinstance(p, Puback)] == [0x87]


@pytest.mark.parametrize("away", [False, True])
def test_no_client_takes_its_session(away: bool) -> None:
    world = World()
    leg = enter(world).subscribed("#", qos=1)
    if away:
        leg.vanish()
    for user in (None, "anna", LEG_OWNER):
        assert enter(world, user, "tcp").connack.code == 0x85
    world.connect("p").publish("a", b"1", qos=1, packet_id=1)
    if away:
        leg = enter(world)
        assert leg.connack.session_present
    assert [p.payload for p in leg.take_publishes()] == [b"1"]


def test_its_rights_survive_a_restart() -> None:
    world = Durable()
    rules = parse_rules("rules", "user anna\nallow all a/#", limits=Limits())
    world.node.set_access(Access({"anna"}, rules, True), world.now)
    enter(world).subscribe("#", qos=1)
    again = world.again()
    again.node.set_access(Access({"anna"}, rules, True), again.now)
    session = again.node.sessions["leg:n"]
    assert session.owner == LEG_OWNER
    assert session.permissions is None
