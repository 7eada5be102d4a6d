"""What is in two sessions of one client: expiry, wills, users, at a merge."""

from __future__ import annotations

from typing import Any

import pytest

from mqttree.broker.wire.packets import Publish, Will
from mqttree.broker.wire.properties import Property
from tests.sim.test_merge import away, settle
from tests.sim.test_position import Feed
from tests.sim.test_takeover import Row

LATE: Any = {Property.WILL_DELAY_INTERVAL: 30}


@pytest.mark.parametrize("expiry", [1, 3600])
def test_an_expired_older_session_is_not_merged(expiry: int) -> None:
    """What has expired is not merged; what has not is."""
    row = Row(3, routing="topic", meshed=True)
    away(row, expiry=expiry)
    row.connect(1, "p").publish("a", b"waits")
    row.run(0.1)
    row.world.partition([[1]])
    row.run(3.0)
    second = row.connect(2)
    assert not second.present
    second.subscribe("a")
    row.world.heal()
    row.join()
    row.run(3.0)
    row.one_session()
    assert second.payloads == ([b"waits"] if expiry > 60 else [])


def test_session_expiry_0_ends_the_older_session_too() -> None:
    """Session Expiry 0 without Clean Start: it goes on with what there was, and all of it ends with
    the connection."""
    row = Row(3, routing="topic", meshed=True)
    away(row)
    row.connect(1, "p").publish("a", b"waits")
    row.run(0.1)
    row.world.partition([[1]])
    row.run(3.0)
    second = row.connect(2, expiry=0)
    assert not second.present
    second.leave()
    row.world.heal()
    row.join()
    row.run(3.0)
    assert not any("c" in host.running.sessions for host in row.world.hosts)
    assert not row.connect(0).present


def test_a_merge_cancels_the_older_sessions_delayed_will() -> None:
    """Its client is back, on a new session that goes on with it: the will is not sent."""
    row = Row(3, routing="topic", meshed=True)
    listener = row.connect(0, "listener").subscribed("will/#")
    first = row.connect(1, will=Will("will/late", b"", 1, False, LATE)).subscribed("a")
    row.world.partition([[1]])
    first.cut()
    row.run(3.0)
    row.connect(2).subscribe("a")
    row.world.heal()
    row.join()
    row.run(40.0)
    row.one_session()
    assert [p.topic for p in listener.packets if isinstance(p, Publish)] == []


@pytest.mark.parametrize("then", [None, 1])
def test_a_client_that_left_before_it_subscribed_has_its_older_session_again(
    then: int | None,
) -> None:
    """The session that it had is the newest again, subscriptions and all, and loses nothing."""
    row = Row(3, routing="topic", meshed=True)
    first = away(row)
    feed = Feed(row, 0)
    row.run(0.5)
    row.world.partition([[1]])
    row.run(3.0)
    second = row.connect(2)
    assert not second.present
    second.cut()
    row.world.heal()
    settle(row, feed)
    third = row.connect(2 if then is None else then)
    assert third.present
    row.run(1.0)
    got = first.payloads + third.payloads
    assert sorted(got) == sorted(feed.sent)
