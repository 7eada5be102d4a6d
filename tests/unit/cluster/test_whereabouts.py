"""Clients that were elsewhere a moment ago (docs/decisions/0024)."""

from __future__ import annotations

from mqttree.broker.cluster.sessions.whereabouts import LATELY
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.routing.link_state import ASK_ALL, LinkStateDatabase
from tests.kit.node_harness import World

OTHER = b"another!"


def test_a_withdrawn_session_is_remembered_for_a_while() -> None:
    world = World(link_timeout=2.0)
    whereabouts = world.node.cluster.whereabouts
    whereabouts._posted(OTHER, b"c", None)
    assert whereabouts.elsewhere("c")
    assert not whereabouts.elsewhere("d")
    world.advance(2.0 + LATELY)
    assert whereabouts.elsewhere("c")
    world.advance(0.1)
    assert not whereabouts.elsewhere("c")
    whereabouts._posted(OTHER, b"d", None)
    assert len(whereabouts) == 1


def test_only_the_last_of_very_many_sessions_are_remembered() -> None:
    whereabouts = World(limits=Limits(max_left=100)).node.cluster.whereabouts
    for number in range(1000):
        whereabouts._posted(OTHER, b"c%d" % number, None)
    assert len(whereabouts) == 100
    assert whereabouts.elsewhere("c900")
    assert not whereabouts.elsewhere("c899")


def test_before_a_listing_has_come_anybody_may_have_been_elsewhere() -> None:
    """A neighbour has named it, and sends it behind much else."""
    there, here = LinkStateDatabase(OTHER, 1, DEFAULTS), World().node.cluster
    directory = here.directory.database
    there.post(b"cc", b"")
    there.flush()
    there.received(directory.own.id, bytes((ASK_ALL,)))
    directory.neighbour_up(OTHER)
    assert not here.whereabouts.elsewhere("d")
    directory.received(OTHER, there.take_messages()[-1][1])
    assert here.whereabouts.elsewhere("d")
    [(_, question)] = directory.take_messages()[-1:]
    there.received(directory.own.id, question)
    for _, listing in there.take_messages():
        directory.received(OTHER, listing)
    assert not here.whereabouts.elsewhere("d")
