"""A large old session is decoded in steps before it is added to the newer one (merge.py), whatever
comes meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mqttree.broker.cluster.directory.link_state_directory import CLIENT
from mqttree.broker.cluster.sessions import merge
from mqttree.broker.cluster.sessions.handover import Handover
from mqttree.broker.cluster.sessions.pending_merge import State
from mqttree.broker.cluster.sessions.session_head import READ_WORK
from mqttree.broker.cluster.sessions.session_parts import split
from mqttree.broker.cluster.sessions.session_state import WAITING, Item, SessionState
from mqttree.broker.cluster.sessions.takeover_messages import (
    DONE,
    MERGE,
    SESSION_PART,
    SESSION_REQUEST,
    decode_takeover,
    encode_takeover,
)
from mqttree.broker.core.message import Message
from mqttree.broker.core.session import Absorbed
from mqttree.broker.core.session_owner import ANONYMOUS, KEPT, Entry
from mqttree.broker.limits import Limits
from mqttree.broker.wire.properties import Property
from tests.kit.heads import encode_head
from tests.kit.link_harness import Neighbour, bid, lone, routed
from tests.kit.node_harness import FakeClient

KEPT_LONG = {Property.SESSION_EXPIRY_INTERVAL: 1000}
FILTERS, WAITS = 12, 3


SMALL = Limits(session_read=1, session_written=1, turn_work=READ_WORK)
"""Each subscription and each message takes a turn of its own."""


class Scene:
    """A client that is connected here, and an old session of its at another broker, of which the
    last part is about to come."""

    def __init__(self) -> None:
        self.world = lone(routing="topic", link_timeout=10_000.0, limits=SMALL)
        self.one = Neighbour(self.world, 101).child().known()
        entry = Entry(KEPT, 5 << 16, 5 << 16, 0, ANONYMOUS)
        self.client = self.come()
        self.one.known((CLIENT + b"k", entry.encode()), number=2)
        self.world.advance(3.0)
        self.one.control()
        (self.merge,) = self.merging._merges.values()
        assert self.merge.state is State.ASKING

    @property
    def merging(self) -> merge.SessionMerge:
        return self.world.node.cluster.session_merge

    def come(self) -> FakeClient:
        return self.world.connect("k", clean=False, properties=KEPT_LONG)

    def give(self, *, bent: bool = False) -> None:
        """The whole of the old session comes."""
        items = [
            Item(WAITING, 0, 1, False, b"", Message(b"t", b"%d" % n, 1, False, b"", None, None))
            for n in range(WAITS)
        ]
        state = SessionState(
            None, 1e9, 0, {}, set(), [(f"a/{n}", 1, False, False, 0) for n in range(FILTERS)], items
        )
        data = encode_head(state, self.world.now) + b"x" * bent
        for part in split(data, 1, 0, len(data)):
            body = encode_takeover(MERGE, self.merge.stamp, "k", part)
            self.one.send(routed(SESSION_PART, body))

    def requests(self) -> list[int]:
        """What the other broker was asked for since the last look."""
        return [decode_takeover(body)[0] for body in self.one.routed(SESSION_REQUEST)]

    def end(self) -> None:
        """Until nothing is read any more."""
        self.world.advance(0.04)


@pytest.fixture
def scene() -> Scene:
    found = Scene()
    found.give()
    assert found.merge.state is State.READING
    return found


def test_an_older_session_that_was_merged_before_a_restart_is_not_merged_again() -> None:
    """What the newer one has had and settled is not in it by name."""
    world = lone(routing="topic", link_timeout=10_000.0)
    one = Neighbour(world, 101).child().known()
    world.connect("k", clean=False, properties=KEPT_LONG)
    session = world.session("k")
    session.absorb(Absorbed(bid(101), 5 << 16, session.stamp))
    entry = Entry(KEPT, 5 << 16, 5 << 16, 0, ANONYMOUS)
    one.known((CLIENT + b"k", entry.encode()), number=2)
    world.advance(3.0)
    asked = {decode_takeover(body)[0] for body in one.routed(SESSION_REQUEST)}
    assert asked == {DONE}


def payloads(client: FakeClient) -> list[bytes]:
    return [packet.payload for packet in client.take_publishes()]


def test_an_older_session_is_added_when_it_has_been_read(scene: Scene) -> None:
    scene.merging._turn(scene.world.now)
    assert not scene.requests(), "it is not told to forget what is not here yet"
    assert not payloads(scene.client)
    scene.end()
    assert payloads(scene.client) == [b"0", b"1", b"2"]
    assert scene.merge.state is State.CLOSING
    scene.world.advance(1.0)
    assert set(scene.requests()) == {DONE}


def test_a_path_change_during_a_merge_changes_nothing(scene: Scene) -> None:
    scene.give()
    scene.merging.way_changed(bid(101))
    scene.merging._turn(scene.world.now)
    scene.end()
    assert payloads(scene.client) == [b"0", b"1", b"2"]
    assert scene.world.counters.sessions_merged == 1


def test_a_merge_begins_again_when_its_client_reconnects(scene: Scene) -> None:
    again = scene.come()
    again.take()
    scene.end()
    assert not payloads(again)
    assert scene.merge.state is State.ASKING
    scene.world.advance(1.0)
    assert MERGE in scene.requests()
    assert scene.merge.stamp == scene.world.session("k").stamp
    scene.give()
    scene.end()
    assert payloads(again) == [b"0", b"1", b"2"]


def ended(scene: Scene) -> None:
    scene.world.node.end_session(scene.world.session("k"), None)


def withdrawn(scene: Scene) -> None:
    scene.merging.withdrawn("k", bid(101))


@pytest.mark.parametrize("happens", [ended, withdrawn])
def test_a_merge_ends_when_no_client_wants_the_session(
    scene: Scene, happens: Callable[[Scene], None]
) -> None:
    happens(scene)
    scene.end()
    scene.world.advance(2.0)
    assert not scene.merging._merges
    assert not scene.world.counters.sessions_merged
    assert DONE not in scene.requests()


def test_a_merge_waits_while_the_newer_session_is_leaving(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is added now would not go with it."""
    leaves = True
    monkeypatch.setattr(Handover, "is_handing_over", lambda handover, client_id: leaves)
    scene.end()
    assert scene.merge.state is State.ASKING
    assert not scene.world.counters.sessions_merged
    leaves = False
    scene.world.advance(0.5)
    scene.give()
    scene.end()
    assert scene.world.counters.sessions_merged == 1


def test_an_older_session_with_a_bad_end_is_dropped() -> None:
    scene = Scene()
    scene.give(bent=True)
    scene.end()
    assert not scene.merging._merges
    assert scene.world.counters.routed_dropped == 1
    assert "old session of client 'k'" in scene.world.logged[-1]
    assert scene.one.up
