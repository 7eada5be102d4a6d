"""Which messages of an older session a newer one has had (merge.py). The rest:
tests/sim/test_merge.py."""

from __future__ import annotations

import pytest

from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.link.version_vector import OriginWindow
from mqttree.broker.cluster.sessions.session_codec import WAITING, Item, SessionState
from mqttree.broker.cluster.sessions.session_history import MergedHistory
from mqttree.broker.core.message import Message
from mqttree.broker.core.session import Session, Subscription
from tests.kit.node_harness import World

KEY = origin_key(b"k" * 8, 1)


def message(number: int, *, retain: bool = False) -> Message:
    return Message(b"a", b"%d" % number, 2, retain, b"", None, None)


def session_of(world: World) -> Session:
    session = world.node.sessions["c"] = Session(world.node, "c")
    subscription = Subscription(session, "a", 2)
    world.node.dispatcher.subscribe(subscription, None, "a")
    return session


@pytest.mark.parametrize("before", [0, 5])
def test_a_merge_knows_what_a_session_had_at_another_broker(before: int) -> None:
    """It got numbers `before` + 1 to 10 at another broker, whether they have been here or not."""
    world = World()
    session = session_of(world)
    came = SessionState(
        seen={KEY: OriginWindow(10, 0.0)}, before={KEY: OriginWindow(before, 0.0)} if before else {}
    )
    queues = world.node.cluster.queue_merge
    world.node.cluster.session_history.inherit(session, came)
    old = SessionState(
        created=1,
        items=[Item(WAITING, 0, 2, False, b"", message(number)) for number in range(1, 15)],
    )
    old.origins = [(KEY, number) for number in range(1, 15)]
    queues.absorb(session, old, world.now, MergedHistory(old.seen))
    expected = [number for number in range(1, 15) if number <= before or number > 10]
    assert [int(waiting.message.payload) for waiting in session.queue] == expected


def test_a_retained_message_that_a_comparison_brought_has_its_number() -> None:
    """It is in no log, and another session of the client may have got it, too."""
    world = World()
    session = session_of(world)
    history = world.node.cluster.session_history
    for number in (1, 2):
        history.retained_synced(KEY, number, message(number))
    for number in (2, 3, 1):
        session.deliver(message(number), 2, False, b"", None)
    assert history.old_state(session, world.now).origins == [
        (KEY, 2),
        None,
        (KEY, 1),
    ]


def test_a_message_of_another_brokers_log_is_known_by_its_content() -> None:
    """The newer session got number 14 from the log of its former broker. It is not in the log here,
    and has left the one of the older session's broker, so that its number is not known there."""
    world = World()
    session = session_of(world)
    cluster = world.node.cluster
    cluster.session_history.offer(session, KEY, 14, message(14))
    items = [Item(WAITING, 0, 1, False, b"", message(number)) for number in (13, 14)]
    old = SessionState(created=1, items=items, seen={KEY: OriginWindow(20, 0.0)})
    cluster.queue_merge.absorb(session, old, world.now, MergedHistory(old.seen))
    assert [waiting.message.payload for waiting in session.queue] == [b"13", b"14"]


@pytest.mark.parametrize("seen", [13, 20])
def test_an_equal_message_that_the_older_session_never_had_stands_for_none(seen: int) -> None:
    """The newer session got number 14, the older one has another message of the same content."""
    world = World()
    session = session_of(world)
    cluster = world.node.cluster
    cluster.session_history.offer(session, KEY, 14, message(1))
    items = [Item(WAITING, 0, 1, False, b"", message(1))]
    old = SessionState(created=1, items=items, seen={KEY: OriginWindow(seen, 0.0)})
    cluster.queue_merge.absorb(session, old, world.now, MergedHistory(old.seen))
    assert len(session.queue) == (2 if seen < 14 else 1)


def test_a_message_that_came_twice_over_stands_for_one() -> None:
    """A comparison brought number 5, which is in the log, too; the older session has it and number
    9, which is equal."""
    world = World()
    session = session_of(world)
    node, now = world.node, world.now
    history, log = node.cluster.session_history, node.cluster.forwarder.log
    node.cluster.forwarder.accept(KEY, 5, 1, now)
    log.keep(KEY, 5, message(1), None, now)
    history.retained_synced(KEY, 5, message(1))
    items = [Item(WAITING, 0, 1, False, b"", message(1)) for _ in range(2)]
    old = SessionState(created=1, items=items, seen={KEY: OriginWindow(9, 0.0)})
    node.cluster.queue_merge.absorb(session, old, now, MergedHistory(old.seen))
    assert len(session.queue) == 1
