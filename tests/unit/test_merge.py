"""Which messages of an older session a newer one has had (merge.py). The rest:
tests/sim/test_merge.py."""

from __future__ import annotations

import pytest

from broker.cluster.link.codec import origin_key
from broker.cluster.link.version_vector import OriginWindow
from broker.cluster.sessions.session_codec import WAITING, Item, SessionState
from broker.cluster.sessions.session_history import MergedHistory
from broker.core.message import Message
from broker.core.session import Session, Subscription
from tests.unit.node_harness import World

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
