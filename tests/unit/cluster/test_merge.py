"""Which messages of an older session a newer one has had (merge.py). The rest:
tests/sim/test_merge.py."""

from __future__ import annotations

import pytest

from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.link.version_vector import OriginWindow
from mqttree.broker.cluster.sessions.evaluated import MergedHistory
from mqttree.broker.cluster.sessions.session_state import WAITING, Item, SessionState
from mqttree.broker.core.message import Message
from mqttree.broker.core.session import Session, Subscription
from tests.kit.node_harness import World

KEY = origin_key(b"k" * 8, 1)


def message(number: int) -> Message:
    return Message(b"a", b"%d" % number, 2, False, b"", None, None).named(KEY, number)


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
    world.node.cluster.evaluated.inherit(session, came)
    old = SessionState(
        created=1,
        items=[Item(WAITING, 0, 2, False, b"", message(number)) for number in range(1, 15)],
    )
    queues.absorb(session, old, MergedHistory(old))
    expected = [number for number in range(1, 15) if number <= before or number > 10]
    assert [int(waiting.message.payload) for waiting in session.queue] == expected


def test_a_session_that_was_taken_has_what_its_broker_published_while_it_was_alone() -> None:
    """That broker was killed before it had heard of that, and has the session in its journal."""
    world = World()
    session = session_of(world)
    session.created = 7
    old = SessionState(created=7, items=[Item(WAITING, 0, 2, False, b"", message(1))])
    world.node.cluster.queue_merge.absorb(session, old, MergedHistory(old))
    assert not session.queue


def test_what_two_older_sessions_with_other_filters_had_is_told_apart() -> None:
    """The newer session subscribed behind number 10. Of those before it the first older one was
    offered all, and wanted none; the second one waits with number 5."""
    world = World()
    session = session_of(world)
    cluster, now = world.node.cluster, world.now
    cluster.forwarder.accept(KEY, 1, 10, now)
    if (feed := cluster.origins.vector[KEY].feed) is not None:
        feed.done = 10
    (subscription,) = session.subscriptions.values()
    subscription.start = cluster.subscription_starts.adopt({KEY: 10})
    first = SessionState(created=1, seen={KEY: OriginWindow(10, 0.0)})
    merged = MergedHistory(first)
    assert not list(merged.adding([("b", 2, False, False, 0)], 10))
    cluster.queue_merge.absorb(session, first, merged)
    items = [Item(WAITING, 0, 2, False, b"", message(5))]
    second = SessionState(created=2, items=items, seen={KEY: OriginWindow(10, 0.0)})
    cluster.queue_merge.absorb(session, second, MergedHistory(second))
    assert [waiting.message.payload for waiting in session.queue] == [b"5"]


def test_a_message_that_a_comparison_brought_is_known_by_its_name() -> None:
    """It is in the log, too; the older session has it and another one."""
    world = World()
    session = session_of(world)
    node, now = world.node, world.now
    history, log = node.cluster.session_history, node.cluster.forwarder.log
    node.cluster.forwarder.accept(KEY, 5, 1, now)
    log.keep(KEY, 5, message(5), None, now)
    history.retained_synced(KEY, 5, message(5))
    items = [Item(WAITING, 0, 1, False, b"", message(number)) for number in (5, 9)]
    old = SessionState(created=1, items=items, seen={KEY: OriginWindow(9, 0.0)})
    node.cluster.queue_merge.absorb(session, old, MergedHistory(old))
    assert [waiting.message.payload for waiting in session.queue] == [b"9"]
