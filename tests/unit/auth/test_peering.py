"""Whether other brokers may come in without proving anything: not where clients have to, unless the
file says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqttree.broker.auth.acl_file import parse_rules
from mqttree.broker.auth.authorization import Access
from mqttree.broker.auth.users_file import Users
from mqttree.broker.cluster.link import peering
from mqttree.broker.config.options import FederationSettings, TlsSettings
from mqttree.broker.config.yaml_file import ConfigError
from mqttree.broker.core.effects import Dial
from mqttree.broker.limits import Limits
from mqttree.broker.wire.decode import decode_packet
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Connack
from tests.kit.link_harness import Neighbour, bridge, lone
from tests.kit.node_harness import World
from tests.unit.config.test_options import refusal, told

USERS = Users.__new__(Users)
RULES = parse_rules("rules", "allow all #\n", limits=Limits())
LISTENERS = ("default", "local")


@pytest.mark.parametrize(
    ("access", "more", "found"),
    [
        (None, {}, ""),
        (Access(), {}, ""),
        (Access(None, None, True), {}, ""),
        (Access(None, None, {"local": True}), {}, ""),
        (Access(USERS), {}, "users"),
        (Access(USERS, RULES), {}, "users, rules"),
        (Access(USERS, None, True), {}, "users"),
        (Access(None, RULES), {}, "rules"),
        (Access(None, None, False), {}, "access.anonymous"),
        (Access(None, None, {"default": False}), {}, "access.anonymous"),
        (None, {"plugins": True}, "plugins"),
        (None, {"certificates": ["tls"]}, "certificates on listener tls"),
    ],
)
def test_plugins_users_and_certificates_guard_clients(
    access: Access | None, more: dict[str, Any], found: str
) -> None:
    asked: dict[str, Any] = {"plugins": False, "certificates": []} | more
    assert peering.guard(access, LISTENERS, **asked) == found


MUTUAL = TlsSettings(Path("ca"), Path("cert"), Path("key"))


@pytest.mark.parametrize(
    ("settings", "guarded", "federates"),
    [
        ({}, "", True),
        ({}, "users", False),
        ({"secret": b"s" * 32}, "users", True),
        ({"tls": MUTUAL}, "users", True),
        ({"tls": TlsSettings(Path("ca"))}, "users", False),
        ({"any_broker": True}, "users", True),
        ({"discovery": "off"}, "users", False),
        ({"discovery": "off"}, "", False),
    ],
)
def test_a_guarded_broker_stays_alone_unless_told_otherwise(
    settings: dict[str, Any], guarded: str, federates: bool
) -> None:
    given = FederationSettings(**settings)
    peering.settle(given, guarded)
    assert given.federates is federates
    assert bool(given.alone) is (not federates and settings.get("discovery") != "off")
    assert given.node_config().discovery == ("multicast" if federates else "off")


def test_a_broker_that_is_to_look_for_others_does_not_start() -> None:
    for settings in (
        {"seeds": (("10.0.0.1", 1883),)},
        {"discovery": "static"},
        {"seed_names": (("b1", 1883),)},
    ):
        given = FederationSettings(**settings, asked=True)  # type: ignore[arg-type]
        with pytest.raises(
            ConfigError,
            match=r"clients are checked \(users\), other brokers would not be: "
            r"give all brokers one",
        ):
            peering.settle(given, "users")
        given.any_broker = True
        peering.settle(given, "users")
        assert given.federates


def test_any_federation_setting_asks_for_a_federation(tmp_path: Path) -> None:
    assert not told(tmp_path).asked
    assert not told(tmp_path, "federation: {cluster: x}").allow_unauthenticated_brokers
    assert told(tmp_path, "federation: {discovery: static}").asked
    assert told(tmp_path, None, {"MQTTREE_SEED": "10.0.0.1"}).asked
    assert told(
        tmp_path, "federation: {allow-unauthenticated-brokers: true}"
    ).allow_unauthenticated_brokers
    assert "expected true or false" in refusal(
        tmp_path, "federation: {allow-unauthenticated-brokers: maybe}"
    )


@pytest.mark.parametrize("secret", [None, b"s" * 32])
def test_a_broker_that_does_not_federate_lets_no_broker_in(secret: bytes | None) -> None:
    world = World(id=b"m" * 8, boot=1_000, host="10.0.0.200", discovery="off", secret=secret)
    client = world.connect("c").subscribed("#")
    for _ in range(3):
        caller = Neighbour(world, 1, link=False)
        caller.send(encode_packet(bridge(1), 5), encode_packet(Connack(False, 0), 5))
        assert caller.conn.closed
        ((first, body),) = caller.take()
        answer = decode_packet(first, body, 5)
        assert isinstance(answer, Connack)
        assert answer.code == 0x87
    assert world.counters.links_refused == 3
    refused = {line for line in world.logged if "link" in line}
    assert refused == {
        "broker at 10.0.0.1:40000 dials a broker that does not federate; link refused"
    }
    assert not world.node.cluster.links
    assert not world.node.cluster.link_registry.handshakes
    assert not [effect for effect in world.effects if isinstance(effect, Dial)]
    client.publish("t", b"x")
    assert client.take()
    assert Neighbour(lone(), 1).up
