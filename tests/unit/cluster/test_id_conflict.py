"""A copied data directory: of two living brokers with one id, the later one serves no client."""

from __future__ import annotations

import pytest

from mqttree.broker.cluster.id_conflict import CALL_PAUSE, GONE_S
from mqttree.broker.core.effects import Dial
from mqttree.broker.wire.packets import Connack, Disconnect, Publish
from mqttree.discovery.announcement import Address, Announcement
from tests.kit.node_harness import World, connect_packet
from tests.kit.protected_links import SECRET, Wire
from tests.unit.base.test_broker_key import ONE, OTHER, TWO, keyed

SECRETS = pytest.mark.parametrize("secret", [None, SECRET])


def dials(world: World) -> list[tuple[str, int]]:
    found = [(effect.host, effect.port) for effect in world.effects if isinstance(effect, Dial)]
    world.effects.clear()
    return found


def pair(secret: bytes | None = None) -> tuple[World, World]:
    """The original, and a copy that was started later at another address."""
    return keyed(1, ONE, secret), keyed(2, ONE, secret, boot=2_000)


@SECRETS
@pytest.mark.parametrize("dialler", ["original", "copy"])
def test_the_later_of_two_brokers_with_one_id_yields(secret: bytes | None, dialler: str) -> None:
    original, copy = pair(secret)
    away = copy.connect("there")
    stays = original.connect("stays")
    Wire(*((original, copy) if dialler == "original" else (copy, original)))
    assert copy.node.cluster.id_conflict.refuses_clients
    assert not original.node.cluster.id_conflict.refuses_clients
    assert away.closed
    assert [packet.reason for packet in away.take() if isinstance(packet, Disconnect)] == [0x89]
    assert not stays.closed
    assert copy.counters.id_conflicts == 1
    assert (
        sum(
            "started before it, or at the same time (a copied data directory?)" in line
            for line in copy.logged
        )
        == 1
    )
    # New ones are refused, in each version's words.
    for version, code in ((5, 0x88), (4, 3)):
        late = copy.open(version).sent(connect_packet("late", version))
        (answer,) = late.take()
        assert isinstance(answer, Connack)
        assert answer.code == code
        assert late.closed or late.transport.closing
    stays.subscribe("t")
    stays.publish("t", b"goes on")
    assert [packet.payload for packet in stays.take() if isinstance(packet, Publish)] == [
        b"goes on"
    ]


def test_a_process_that_calls_itself_is_no_conflict() -> None:
    world = keyed(1, ONE, instance=7)
    Wire(world, world)
    assert not world.node.cluster.id_conflict.refuses_clients
    assert not world.counters.duplicate_id


def test_a_yielding_broker_links_again_when_the_other_is_gone() -> None:
    original, copy = pair()
    Wire(copy, original)
    dials(copy)
    for _ in range(20):  # as long as the other answers
        copy.advance(CALL_PAUSE + 0.1)
        assert set(dials(copy)) == {("10.0.0.1", 1883)}
        original.now = copy.now
        Wire(copy, original)
        assert copy.node.cluster.id_conflict.refuses_clients
    copy.advance(GONE_S + 2 * CALL_PAUSE)
    assert not copy.node.cluster.id_conflict.refuses_clients
    assert copy.node.cluster.id_conflict.other is None
    copy.connect("back")
    assert Wire(copy, keyed(3, TWO)).up == (True, True)
    dials(copy)
    copy.advance(10.0)
    assert ("10.0.0.1", 1883) not in dials(copy)


def test_a_stop_of_our_own_says_nothing_about_the_other() -> None:
    original, copy = pair()
    Wire(copy, original)
    copy.now += 60.0
    copy.node.tick(copy.now)
    copy.settle()
    assert copy.node.cluster.id_conflict.refuses_clients
    assert ("10.0.0.1", 1883) in dials(copy)


def test_a_yielding_broker_has_no_links() -> None:
    third = keyed(3, TWO)
    original, copy = pair()
    known = Wire(copy, third).agreed()
    original.now = copy.now
    Wire(copy, original)
    known.pump()
    assert known.up == (False, False)
    for wire in (Wire(copy, third), Wire(third, copy)):
        wire.advance(0.2)
        assert wire.up == (False, False)
    assert copy.node.cluster.id_conflict.refuses_clients


def test_a_restart_is_no_conflict() -> None:
    third = keyed(3, TWO)
    first = Wire(keyed(1, ONE), third).agreed()
    third.node.connection_lost(first.conns[1], "reset", third.now)
    third.settle()
    again = keyed(1, ONE, boot=3_000)
    again.now = third.now
    assert Wire(again, third).up == (True, True)
    assert not again.node.cluster.id_conflict.refuses_clients
    assert again.counters.id_conflicts == 0


def test_a_third_broker_says_where_the_original_is() -> None:
    """Without multicast the two would never meet."""
    third = keyed(3, TWO)
    original, copy = pair()
    kept = Wire(original, third).agreed()
    copy.now = third.now
    dials(copy)
    wire = Wire(copy, third)
    assert wire.up == (False, False)
    assert kept.up == (True, True)
    assert dials(copy) == [("10.0.0.1", 1883)]
    assert not copy.node.cluster.id_conflict.refuses_clients  # what a third says proves nothing
    original.now = copy.now
    Wire(copy, original)
    assert copy.node.cluster.id_conflict.refuses_clients


def test_announcements_of_our_id_cause_one_dial_a_second() -> None:
    world = keyed(1, ONE, discovery="multicast")
    world.advance(1.0)
    dials(world)
    for number in range(50):
        said = Announcement("mqttree", ONE.id, 1_500, number + 1, 0.0, Address("", 1884)).encode(
            None
        )
        world.node.datagram_received(said, (f"10.0.1.{number}", 18830), world.now)
        world.settle()
    assert len(dials(world)) == 1
    assert not world.node.cluster.id_conflict.refuses_clients
    world.connect("served")


@SECRETS
def test_a_broker_without_the_key_makes_no_other_yield(secret: bytes | None) -> None:
    world = keyed(1, ONE, secret, boot=5_000)
    for key in (OTHER, None):
        for boot in (1, 9_000):
            liar = keyed(2, OTHER, secret, id=ONE.id, boot=boot)
            liar.node.config.key = key
            for wire in (Wire(liar, world), Wire(world, liar)):
                wire.advance(0.1)
                assert wire.up == (False, False)
    assert not world.node.cluster.id_conflict.refuses_clients
    world.connect("served")
