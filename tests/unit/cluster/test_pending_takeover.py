"""A session that is taken in steps gets what it would get if it were taken at once (takeover.py,
session_head.py)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.turns import PAUSE
from mqttree.broker.cluster.delivery.ordered_feed import HeldMessage
from mqttree.broker.cluster.directory.link_state_directory import (
    AT_ONCE,
    CLIENT,
    POST_INTERVAL,
    PostedStandby,
    encode_posted,
)
from mqttree.broker.cluster.link.control_records import DIRECTORY
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.sessions.handover import TAKEOVER_MAX_S, TAKEOVER_SILENCE_S
from mqttree.broker.cluster.sessions.merge import SETTLE_S
from mqttree.broker.cluster.sessions.pending_merge import State as MergeState
from mqttree.broker.cluster.sessions.pending_takeover import State
from mqttree.broker.cluster.sessions.session_head import READ_WORK
from mqttree.broker.cluster.sessions.session_parts import WHERE
from mqttree.broker.cluster.sessions.session_state import (
    WAITING,
    Item,
    SessionState,
    put_off_queue,
)
from mqttree.broker.cluster.sessions.takeover_messages import (
    ENDED,
    MERGE,
    SESSION_ANSWER,
    SESSION_PART,
    TAKE,
    encode_takeover,
)
from mqttree.broker.core.message import Message
from mqttree.broker.core.session_owner import ANONYMOUS, KEPT, Entry
from mqttree.broker.limits import Limits
from mqttree.broker.wire.packets import Connack, Disconnect, Publish
from mqttree.broker.wire.properties import Property
from mqttree.routing.topic_filter import matches, split_shared
from tests.kit.heads import encode_head
from tests.kit.link_harness import FAR, OWN, Neighbour, bid, let_through, lone, message, routed
from tests.kit.node_harness import FakeClient, FakeTransport, World, connect_packet

words = st.sampled_from("abc")
topics = st.lists(words, min_size=1, max_size=2).map("/".join)
filters = st.lists(
    st.sampled_from([*"abc", "+", "#", "a/#", "a/b", "b/+", "+/c", "$share/g/a", "$share/h/b/c"]),
    unique=True,
)
STAMP = 5 << 16
ELSEWHERE = origin_key(bid(77), 1)


ONE_AT_A_TIME = Limits(filters_at_once=1, session_read=1, turn_work=READ_WORK)
"""Each subscription and each message takes a turn of its own."""


class Taking:
    """A neighbour has the session of `k`, who connects here."""

    def __init__(self, state: Callable[[], SessionState] | None) -> None:
        """`state`: what the neighbour sends, None: it says nothing."""
        self.state = state
        self.world = lone(routing="flood", link_timeout=1000.0, limits=ONE_AT_A_TIME)
        self.neighbour = Neighbour(self.world, 101).child()
        let_through(self.neighbour)
        self.neighbour.known((CLIENT + b"k", Entry(KEPT, STAMP, STAMP, 0, ANONYMOUS).encode()))
        self.client = self.world.open().sent(
            connect_packet("k", clean=False, properties={Property.SESSION_EXPIRY_INTERVAL: 1000})
        )
        self.pull = self.world.node.cluster.takeover._pending["k"]
        self.steps = 0
        self.give(1)

    def give(self, number: int) -> None:
        """The session comes, without its queue."""
        if self.state is not None:
            state = self.state()
            put_off_queue(state)
            self.send(TAKE, number, state)

    def send(self, what: int, number: int, state: SessionState) -> None:
        data = encode_head(state, self.world.now)
        self.say(SESSION_PART, what, WHERE.pack(number, len(data), 0) + data)

    def say(self, kind: int, what: int, rest: bytes = b"") -> None:
        self.neighbour.send(routed(kind, encode_takeover(what, self.pull.stamp, "k", rest)))

    def step(self) -> None:
        """One turn of the loop."""
        self.steps += 1
        self.world.now += PAUSE
        self.world.node.tick(self.world.now)
        self.world.settle()

    def finish(self) -> list[bytes]:
        """Let it come to an end; returns the payloads that the client gets."""
        self.finish_without_client()
        return payloads(self.client)

    def finish_without_client(self) -> None:
        """Let it come to an end."""
        while self.pull.state is not State.OVER:
            self.step()
            assert self.steps < 1000
        (merge,) = self.world.node.cluster.session_merge._merges.values()
        while merge.state is not MergeState.ASKING:
            self.world.advance(SETTLE_S)
            assert self.world.now < merge.began + 20.0
        assert self.state is not None
        self.send(MERGE, 9, self.state())
        for _ in range(300):
            self.step()
        self.say(SESSION_ANSWER, ENDED)
        for _ in range(100):
            self.step()


def payloads(client: FakeClient) -> list[bytes]:
    packets = client.take()
    assert isinstance(packets[0], Connack)
    assert packets[0].session_present
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


def state_of(among: list[str], waiting: int) -> SessionState:
    state = SessionState(
        None, 1e9, 0, {}, set(), [(topic_filter, 1, False, False, 0) for topic_filter in among]
    )
    shared = [topic_filter for topic_filter in among if topic_filter.startswith("$share/")]
    for number in range(waiting):
        one = Message(b"a", b"w%d" % number, 1, False, b"", None, None).named(ELSEWHERE, number + 1)
        state.items.append(
            Item(WAITING, 0, 1, False, b"", one, shared[0] if shared and number % 3 == 1 else None)
        )
    return state


@given(filters, st.integers(0, 4), st.lists(st.lists(topics, max_size=2), max_size=20))
def test_nothing_is_missed_or_comes_twice(
    among: list[str], waiting: int, arriving: list[list[str]]
) -> None:
    """Whenever messages come: before a filter of theirs stands, after it, or when all do; each once
    and in order."""
    taking = Taking(lambda: state_of(among, waiting))
    number, expected = 0, [b"w%d" % n for n in range(waiting)]
    for some in arriving:
        for topic in some:
            number += 1
            taking.neighbour.send(message(topic.encode(), b"%d" % number, sequence=number))
            if any(split_shared(f)[0] is None and matches(f, topic) for f in among):
                expected.append(b"%d" % number)
        taking.step()
    got = taking.finish()
    assert got == expected
    session = taking.world.session("k")
    assert not session.ended
    assert set(session.subscriptions) == set(among)
    taking.neighbour.send(message(b"a/b", b"last", sequence=number + 1))
    taking.step()
    wanted = any(split_shared(f)[0] is None and matches(f, "a/b") for f in among)
    assert [p.payload for p in taking.client.take() if isinstance(p, Publish)] == [b"last"] * wanted


AMONG = [f"t/{number}" for number in range(50)]


def subscribed(world: World) -> int:
    """How many filters have subscribers."""
    return sum(1 for _ in world.node.dispatcher.trie.filters())


def half_taken() -> Taking:
    """A session with three messages, not all of whose subscriptions are there yet."""
    taking = Taking(lambda: state_of(AMONG, 3))
    while taking.pull.state is not State.READING or subscribed(taking.world) < 20:
        taking.step()
    return taking


def test_a_message_that_an_origin_sends_late_comes_once() -> None:
    """It is in the log, and waits for its turn, as the session is complete."""
    taking = Taking(lambda: state_of(["a"], 0))
    cluster = taking.world.node.cluster
    key = origin_key(FAR, 1)
    feed = cluster.origins.vector[key].feed
    assert feed is not None
    late = Message(b"a", b"late", 1, False, b"", None, None).named(key, 5)
    feed.done, feed.outstanding = 10, [(5, 5)]
    feed.window.top = 10
    cluster.forwarder.log.keep(key, 5, late, None, taking.world.now)
    release = cluster.gap_recovery.release
    release.put_by(feed, HeldMessage(5, late, None, late=True))
    feed.settled = 10
    assert taking.finish() == [b"late"]
    release.begin(feed, taking.world.now)
    taking.world.settle()
    assert not taking.client.payloads()
    assert not feed.outstanding


@pytest.mark.parametrize(
    ("posted", "standbys", "waits"), [(True, [], False), (False, [], True), (True, [OWN], True)]
)
def test_a_client_waits_for_a_standby_that_can_be_reached(
    posted: bool, standbys: list[bytes], waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many clients have come to it at once, and also until a broker that hangs has been
    noticed."""
    taking = Taking(None)
    cluster = taking.world.node.cluster
    monkeypatch.setattr(cluster.posted_sessions, "has", lambda *_: posted)
    boot = cluster.database.own.boot
    entry = encode_posted(1, [PostedStandby(standby, boot, 1) for standby in standbys])
    monkeypatch.setattr(cluster.database, "entry", lambda *_: entry)
    taking.world.advance(2 * TAKEOVER_SILENCE_S)
    assert ("k" in cluster.takeover._pending) == waits
    taking.world.advance(TAKEOVER_MAX_S)
    assert "k" in taking.world.node.sessions


def test_a_client_that_goes_meanwhile_leaves_nothing_behind() -> None:
    taking = half_taken()
    taking.client.vanish()
    taking.world.advance(1.0)
    assert "k" not in taking.world.node.sessions
    assert "k" not in taking.world.node.cluster.takeover._pending
    assert subscribed(taking.world) == 0


def test_a_client_need_not_stay_until_its_session_comes() -> None:
    taking = half_taken()
    reader = taking.world.connect("r").subscribed("x")
    taking.client.send(Publish("x", b"1"), Disconnect())
    taking.client.vanish()
    taking.finish_without_client()
    assert reader.payloads() == [b"1"]
    assert set(taking.world.session("k").subscriptions) == set(AMONG)
    assert taking.world.node.connection_registry.ended == 0


def test_a_client_that_comes_again_meanwhile_takes_it_from_the_beginning() -> None:
    taking = half_taken()
    again = taking.world.open().sent(
        connect_packet("k", clean=False, properties={Property.SESSION_EXPIRY_INTERVAL: 1000})
    )
    taking.pull, taking.client = taking.world.node.cluster.takeover._pending["k"], again
    taking.give(2)
    assert taking.finish() == [b"w0", b"w1", b"w2"]
    taking.world.advance(1.0)
    assert set(taking.world.session("k").subscriptions) == set(AMONG)
    assert subscribed(taking.world) == len(AMONG)


def test_a_session_is_announced_to_neighbours_ahead_of_its_connack() -> None:
    """Its client may go to one of them as soon as it has that. Of very many that come at once they
    hear a little later."""
    world = lone(routing="interest", link_timeout=1000.0)
    neighbour = Neighbour(world, 101).child().known()
    neighbour.take()
    world.advance(1.0)
    sent: list[object] = []
    client = world.open()
    for conn in (neighbour.transport, client.transport):

        def noted(data: bytes, conn: FakeTransport = conn) -> None:
            sent.append(conn)
            FakeTransport.write(conn, data)

        conn.write = noted  # type: ignore[method-assign]
    client.send(
        connect_packet("k", clean=False, properties={Property.SESSION_EXPIRY_INTERVAL: 1000})
    )
    assert sent == [neighbour.transport, client.transport]
    assert any(CLIENT + b"k" in body for body in neighbour.records(DIRECTORY))
    for number in range(2 * AT_ONCE):
        world.connect(f"k{number}")
    assert len(neighbour.records(DIRECTORY)) <= AT_ONCE + 1
    world.advance(POST_INTERVAL)
    assert any(CLIENT + b"k%d" % (2 * AT_ONCE - 1) in body for body in neighbour.records(DIRECTORY))
