"""What an ordered feed holds goes to local subscribers in steps, in order, as fast as they take it
(paced_release.py)."""

from __future__ import annotations

import pytest

from mqttree.broker.base.costs import HELD_MEMORY
from mqttree.broker.base.sequence_set import LAST
from mqttree.broker.cluster.delivery.feed_states import Input
from mqttree.broker.cluster.delivery.gap_recovery import UNKNOWN_ORIGIN_S
from mqttree.broker.cluster.delivery.local_window import LocalWindow
from mqttree.broker.cluster.delivery.ordered_feed import OrderedFeed
from mqttree.broker.cluster.delivery.origin_feeds import PATIENCE_S
from mqttree.broker.cluster.delivery.orphans import EARLIER
from mqttree.broker.cluster.delivery.paced_release import SLOW_WAIT
from mqttree.broker.cluster.delivery.replay_log import LogEntry
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.core.flow_control import HOLD_TIMEOUT_S
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.wire.packets import Puback, Publish
from mqttree.broker.wire.properties import Property
from mqttree.routing.listing import Listing
from tests.kit.link_harness import FAR, batch_entry, lone, some_link
from tests.kit.node_harness import FakeClient, World

STEP = DEFAULTS.release_step
ONE, OTHER = some_link(1), some_link(2)
"""The link that leads there, and another one."""


@pytest.fixture
def limits() -> Limits:
    return DEFAULTS


@pytest.fixture
def world(limits: Limits) -> World:
    return lone(routing="interest", link_timeout=1000.0, limits=limits)


def feed_of(world: World, boot: int = 1_000) -> OrderedFeed:
    key = origin_key(FAR, boot)
    window = world.node.cluster.forwarder.vector[key] = LocalWindow(
        0, world.now, world.node.counters, Limits().max_gaps
    )
    world.node.cluster.gap_recovery.met(key, window)
    assert window.feed is not None
    return window.feed


def entry_of(feed: OrderedFeed, number: int, payload: bytes = b"", topic: bytes = b"t") -> LogEntry:
    return batch_entry(feed.key, number, [(topic, payload or b"%d" % number)])


def hold(world: World, feed: OrderedFeed, *numbers: int) -> None:
    """Have messages come over no link in particular."""
    for number in numbers:
        assert feed.take(ONE if feed.behind is ONE else OTHER, number, 1) == 0
        feed.window.top = max(feed.window.top, number)
        world.node.cluster.gap_recovery.hold(feed, entry_of(feed, number))


def settle(world: World, feed: OrderedFeed, top: int) -> None:
    """Have the origin say that there is nothing else up to a number, and that what follows comes
    over ONE."""
    feed.settled = top
    feed.step(Input.ANSWERED, ONE)
    world.node.cluster.gap_recovery.release.begin(feed, world.now)
    world.settle()


def client_of(world: World, receive_maximum: int = 60_000) -> FakeClient:
    client = world.connect("c", properties={Property.RECEIVE_MAXIMUM: receive_maximum})
    client.subscribe("t", qos=1)
    return client


def got(client: FakeClient, *, acknowledge: bool = True) -> list[int]:
    packets = [packet for packet in client.take() if isinstance(packet, Publish)]
    if acknowledge:
        client.send(*(Puback(packet.packet_id or 0) for packet in packets))
    return [int(packet.payload) for packet in packets]


def test_held_messages_are_released_in_steps_ahead_of_newer_ones(world: World) -> None:
    feed, client = feed_of(world), client_of(world)
    hold(world, feed, *range(1, 3 * STEP + 1))
    assert got(client) == []
    settle(world, feed, 3 * STEP)
    assert got(client) == list(range(1, STEP + 1))
    hold(world, feed, 3 * STEP + 1)
    assert feed.source is None
    world.advance(0.1)
    assert got(client) == list(range(STEP + 1, 3 * STEP + 2))
    assert (feed.source, feed.behind, feed.done) == (ONE, None, 3 * STEP + 1)
    assert not feed.waiting
    assert world.node.cluster.gap_recovery.release.held_bytes == 0
    assert feed.take(ONE, 3 * STEP + 2, 1) == 1


@pytest.mark.parametrize("limits", [Limits(hold_queued=1_000, max_queued=2_000)])
def test_a_slow_session_is_waited_for_and_its_publishers_wait(world: World) -> None:
    feed, client = feed_of(world), client_of(world, receive_maximum=100)
    backpressure = world.node.cluster.remote_flow_control
    hold(world, feed, *range(1, 8_001))
    settle(world, feed, 8_000)
    found = []
    for _ in range(200):
        world.advance(0.01)
        if len(found) < 8_000:
            assert (
                client.conn in backpressure._wishes
                or len(world.session("c").queue) < world.node.limits.hold_queued
            )
        found += got(client)
    assert found == list(range(1, 8_001))
    assert world.counters.dropped_queue_full == 0
    assert not backpressure._wishes


@pytest.mark.parametrize("limits", [Limits(hold_queued=1_000, max_queued=2_000)])
def test_a_release_does_not_wait_for_a_dead_subscriber(world: World) -> None:
    feed, dead = feed_of(world), client_of(world, receive_maximum=100)
    other = world.connect("other", properties={Property.RECEIVE_MAXIMUM: 60_000})
    other.subscribe("t", qos=1)
    hold(world, feed, *range(1, 8_001))
    settle(world, feed, 8_000)
    found = []
    for _ in range(30):
        world.advance(0.1 * (SLOW_WAIT + HOLD_TIMEOUT_S))
        found += got(other)
    assert found == list(range(1, 8_001))
    assert dead.conn.stalled


def test_a_missing_message_that_comes_in_time_is_delivered_once(world: World) -> None:
    """What is held is delivered in steps; what was missing behind it may come before its turn is
    over, and is delivered once."""
    client = client_of(world)
    world.advance(0.1)
    feed = feed_of(world)
    hold(world, feed, *range(1, 3 * STEP + 1))
    feed.settled = feed.window.top
    world.node.cluster.gap_recovery._set_free(feed, world.now)
    hold(world, feed, 3 * STEP + 11)
    assert feed.outstanding == [(3 * STEP + 1, 3 * STEP + 10)]
    hold(world, feed, *range(3 * STEP + 1, 3 * STEP + 9))
    found = got(client)
    world.advance(0.1)
    found += got(client)
    assert found == [*range(1, 3 * STEP + 9), 3 * STEP + 11]
    assert feed.outstanding == [(3 * STEP + 9, 3 * STEP + 10)]
    assert feed.take(ONE, 3 * STEP + 9, 1) == 1
    assert feed.outstanding == [(3 * STEP + 10, 3 * STEP + 10)]


@pytest.mark.parametrize("limits", [Limits(hold_feed=100)])
def test_publishers_wait_while_much_is_held(world: World) -> None:
    feed, client = feed_of(world), client_of(world)
    wishes = world.node.cluster.remote_flow_control._wishes
    hold(world, feed, *range(1, 100))
    assert not wishes
    hold(world, feed, 100)
    assert list(wishes) == [feed]
    settle(world, feed, 100)
    assert got(client) == list(range(1, 101))
    assert not wishes


@pytest.mark.parametrize("limits", [Limits(held_feeds_bytes=10 * (HELD_MEMORY + 10))])
def test_messages_that_a_full_feed_dropped_are_asked_for_again(world: World) -> None:
    feed, client = feed_of(world), client_of(world)
    hold(world, feed, *range(1, 21))
    assert world.counters.ordered_feed_full == 20 - feed.held_count > 0
    first = feed.held_count + 1
    assert feed.lacks() == [(first, LAST)]
    assert [level for level, text in world.lines if "asked for again" in text].count("warning") == 1
    feed.settled = min(20, first - 1)
    world.node.cluster.gap_recovery.release.begin(feed, world.now)
    world.settle()
    assert got(client) == list(range(1, first))
    assert feed.done == first - 1
    assert not feed.fed


def test_messages_of_an_earlier_incarnation_are_released_first(world: World) -> None:
    """Though the later one has answered before, as long as the broker says that it has more of the
    earlier one."""
    early, late = feed_of(world, 1_000), feed_of(world, 1_001)
    client = client_of(world)
    directory = world.node.cluster.directory.database
    listing = Listing(FAR, 1_001)
    listing.via, listing.entries = FAR, {EARLIER: (1_000).to_bytes(4, "big")}
    directory.listings[FAR] = listing
    hold(world, late, 1)
    settle(world, late, 1)
    world.advance(1.0)
    assert got(client) == []
    hold(world, early, 7)
    early.finished = True
    settle(world, early, 7)
    assert got(client) == [7]
    world.advance(0.1)
    assert got(client) == [1]
    assert (late.source, late.behind) == (ONE, None)


@pytest.mark.parametrize(("stood", "more"), [(0.0, 2.0), (2 * PATIENCE_S, PATIENCE_S + 2.0)])
def test_an_unknown_incarnation_is_awaited_for_a_while(
    world: World, stood: float, more: float
) -> None:
    """It is not silent while this broker stood still."""
    early, late = feed_of(world, 1_000), feed_of(world, 1_001)
    client = client_of(world)
    listing = Listing(FAR, 1_001)
    listing.via, listing.entries = FAR, {EARLIER: (1_000).to_bytes(4, "big")}
    world.node.cluster.directory.database.listings[FAR] = listing
    hold(world, late, 1)
    settle(world, late, 1)
    world.advance(1.0)
    world.now += stood
    world.advance(PATIENCE_S - 2.0)
    assert got(client) == []
    world.advance(more)
    assert got(client) == [1]
    assert early.finished
    del world.node.cluster.directory.database.listings[FAR]


def test_however_often_a_broker_stood_still_only_running_time_counts(world: World) -> None:
    """What counts is the time in which it ran."""
    feed, client = feed_of(world), client_of(world)
    hold(world, feed, 2)
    for _ in range(20):
        world.now += 0.9
        world.advance(0.02)
    assert got(client) == []
    world.advance(UNKNOWN_ORIGIN_S - 20 * 0.02 - 0.01)
    assert got(client) == []
    world.advance(0.02)
    assert got(client) == [2]


def test_a_hurried_tick_is_no_time_in_which_the_broker_stood_still(world: World) -> None:
    """A tick that was due long ago, as it was hurried, does not show that this broker stood
    still."""
    feed, client = feed_of(world), client_of(world)
    hold(world, feed, 2)
    begin = world.now
    while world.now < begin + UNKNOWN_ORIGIN_S - 0.1:
        due = world.node.next_deadline()
        assert due is not None
        # Until then it has nothing to do.
        world.now = max(world.now, min(due, begin + UNKNOWN_ORIGIN_S) - 0.05)
        world.node.cluster.hurry(world.now - 5.0)
        world.advance(0.01)
    assert got(client) == []
    world.advance(begin + UNKNOWN_ORIGIN_S + 0.01 - world.now)
    assert got(client) == [2]
