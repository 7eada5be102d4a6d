"""Clients that were elsewhere a moment ago (docs/decisions/0024)."""

from __future__ import annotations

from mqttree.broker.cluster.sessions.recently_elsewhere import REPAIR_S
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.routing.link_state import ASK_ALL, LinkStateDatabase
from tests.kit.node_harness import World

OTHER = b"another!"


def test_a_withdrawn_session_is_remembered_for_a_while() -> None:
    world = World(link_timeout=2.0)
    recently_elsewhere = world.node.cluster.recently_elsewhere
    recently_elsewhere._posted(OTHER, b"c", None)
    assert recently_elsewhere.elsewhere("c")
    assert not recently_elsewhere.elsewhere("d")
    world.advance(2.0 + REPAIR_S)
    assert recently_elsewhere.elsewhere("c")
    world.advance(0.1)
    assert not recently_elsewhere.elsewhere("c")
    recently_elsewhere._posted(OTHER, b"d", None)
    assert len(recently_elsewhere) == 1


def test_only_the_last_of_very_many_sessions_are_remembered() -> None:
    recently_elsewhere = World(limits=Limits(max_left=100)).node.cluster.recently_elsewhere
    for number in range(1000):
        recently_elsewhere._posted(OTHER, b"c%d" % number, None)
    assert len(recently_elsewhere) == 100
    assert recently_elsewhere.elsewhere("c900")
    assert not recently_elsewhere.elsewhere("c899")


def test_before_a_listing_has_come_anybody_may_have_been_elsewhere() -> None:
    """A neighbour has named it, and sends it behind much else."""
    there, here = LinkStateDatabase(OTHER, 1, DEFAULTS), World().node.cluster
    directory = here.directory.database
    there.post(b"cc", b"")
    there.flush()
    there.received(directory.own.id, bytes((ASK_ALL,)))
    directory.neighbour_up(OTHER)
    assert not here.recently_elsewhere.elsewhere("d")
    directory.received(OTHER, there.take_messages()[-1][1])
    assert here.recently_elsewhere.elsewhere("d")
    [(_, question)] = directory.take_messages()[-1:]
    there.received(directory.own.id, question)
    for _, listing in there.take_messages():
        directory.received(OTHER, listing)
    assert not here.recently_elsewhere.elsewhere("d")
