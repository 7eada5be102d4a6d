"""Where subscriptions begin (subscription_start.py): what is asked, answered and believed. Also
tests/sim/test_position.py."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.counters import Counters
from mqttree.broker.cluster.delivery.replay_log import ReplayLog
from mqttree.broker.cluster.delivery.subscription_start import (
    MAX_TIMES,
    NOTED,
    NOTES,
    OLD_NOTES,
    OLDER,
    PASSED,
    PastNumbers,
    answer_of,
    encode_ages,
    numbers_at,
    times_of,
)
from mqttree.broker.cluster.link.control_records import AGES
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.sessions.session_state import SessionState
from mqttree.broker.core.message import Message
from mqttree.broker.core.start_point import UNKNOWN
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.node import Node
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.routing.link_state import Listing
from tests.kit.link_harness import FAR, Neighbour, batch_entry, entry_of, message, ping
from tests.kit.node_harness import World

KEY = origin_key(b"k" * 8, 1)
OTHER = origin_key(b"o" * 8, 1)


PUBLISHED = st.lists(st.tuples(st.sampled_from((KEY, OTHER)), st.integers(0, 5)), max_size=30)


@given(PUBLISHED, st.lists(st.integers(0, 60), max_size=8))
def test_the_newest_number_at_each_time_is_returned(
    published: list[tuple[bytes, int]], times: list[int]
) -> None:
    log = ReplayLog(Counters(), limits=Limits())
    clock, numbers = 0, {KEY: 0, OTHER: 0}
    own: list[int] = []
    for key, pause in published:
        clock += pause
        numbers[key] += 1
        log.append(
            batch_entry(key, numbers[key], [(b"a", b"")], at=float(clock)),
            None,
        )
        if key == KEY:
            own.append(clock)
    found, looked = numbers_at(log.latest(), KEY, [float(at) for at in times], numbers[KEY])
    assert found == [sum(at <= time for at in own) for time in times]
    assert looked <= len(published)


@given(st.lists(st.integers(0, 3), max_size=60), st.floats(0.0, 20.0))
def test_numbers_of_the_past_were_published_by_then(published: list[int], at: float) -> None:
    """What is returned had been published then, and lacks no more than what was published since the
    look before."""
    past = PastNumbers()
    top, known = 0, [0]
    for tick, count in enumerate(published):
        past.note(top, tick * 2 * NOTED)
        top += count
        known.append(top)
    if published:
        tick = min(int(at / (2 * NOTED)), len(published) - 1)
        assert known[tick] <= past.before(at) <= known[tick + 1]


def test_the_past_is_bounded() -> None:
    """However long a client publishes; the last minutes are known well, the hour before roughly."""
    past = PastNumbers()
    for tick in range(50_000):
        past.note(tick, tick * 2 * NOTED)
    assert len(past._notes) + len(past._old) <= NOTES + OLD_NOTES
    now = 49_999 * 2 * NOTED
    for ago, off in ((0.0, 1), (1.0, 1), (120.0, 1), (400.0, 1), (600.0, 51), (3600.0, 51)):
        assert 0 <= (now - ago) / (2 * NOTED) - past.before(now - ago) <= off
    assert past.before(-1.0) == 0


def test_trimmed_messages_may_be_newer_than_a_subscription() -> None:
    """Where the log does not go back to a time, what it had then is not known from it."""
    log = ReplayLog(Counters(), 1, limits=Limits())
    past = PastNumbers()
    for number in range(1, 51):
        past.note(number - 1, number)
        log.append(
            batch_entry(KEY, number, [(b"a", b"")], at=float(number)),
            None,
        )
    assert len(log) == 1
    assert numbers_at(log.latest(), KEY, [20.5, 49.5, 50.0], 50, past)[0] == [19, 48, 50]
    assert numbers_at(log.latest(), KEY, [20.5], 50)[0] == [49]


def met(limits: Limits = DEFAULTS) -> World:
    """A node that has met another origin."""
    world = World(discovery="static", routing="flood", limits=limits)
    Neighbour(world, 101).child().send(message(sequence=7))
    assert len(world.node.cluster.forwarder.vector) > 1
    return world


def test_subscriptions_of_one_moment_share_their_start() -> None:
    world = met()
    positions = world.node.cluster.subscription_starts
    start = positions.begin()
    assert start is not None
    assert start is positions.begin()
    assert start.tops[origin_key(FAR, 1)] == 7
    world.advance(1.0)
    assert positions.begin() is not start


def test_starts_are_forgotten() -> None:
    world = met(Limits(max_starts=3))
    positions = world.node.cluster.subscription_starts
    starts: list[Any] = []
    for _ in range(5):
        starts.append(positions.begin())
        world.advance(0.1)
    assert [bool(start.tops) for start in starts] == [False, False, True, True, True]
    world.advance(DEFAULTS.log_age_s + 1)
    positions.begin()
    assert not starts[-1].tops


def test_a_message_is_not_older_because_its_broker_is_slow() -> None:
    """It was published 5 ms after SUBACK, and is replayed 10 ms later over a link whose only ping
    was answered after 60 ms."""
    world = met()
    start = world.node.cluster.subscription_starts.begin()
    assert start is not None
    link = next(iter(world.node.cluster.links.values()))
    link._pings = {1: world.now - 0.06}
    link._pingresp(b"\0\0\0\1", world.now)
    world.advance(0.015)
    sent = Message(b"t", b"x", 1, False, b"", None, None)
    entry = entry_of(origin_key(FAR, 1), 8, sent, world.now - 0.010)
    world.node.cluster.subscription_starts.ages_received(
        link, b"\0" + encode_ages([entry], world.now), world.now
    )
    assert start.tops[origin_key(FAR, 1)] == 7


def answered(node: Node, key: bytes, question: bytes, now: float) -> tuple[bytes, bytes]:
    """What a node answers, and what is behind the times of the question."""
    times, rest = times_of(question)
    relay = node.cluster.forwarder
    return answer_of(
        numbers_at(relay.log.latest(), key, times, relay.vector[key].top)[0], now
    ), rest


def test_a_start_is_known_from_the_piece_of_an_answer_that_has_it() -> None:
    """Of an answer in pieces the first ones say nothing of what began behind them."""
    node = met().node
    ask, key = node.cluster.subscription_starts, origin_key(FAR, 1)
    start = ask.begin()
    assert start is not None
    start.open.add(key)
    ask.question(key, 1, node.now)
    ask.on_answer(key, 1, answer_of([], node.now), 0, more=False)
    for number, (top, last, settled) in enumerate(
        [(100, 101, False), (200, 201, False), (300, 250, True)], 2
    ):
        assert ask.question(key, number, node.now)[0] == 1
        assert ask.on_answer(key, number, answer_of([last], node.now), top, more=True) == (
            b"",
            False,
        )
        assert start.tops[key] == min(top, last)
        assert (key not in start.open) == settled


def test_a_question_about_starts_is_answered() -> None:
    """Of many starts some share a time; none begins earlier than it did."""
    here, there = met().node, met().node
    key = origin_key(FAR, 1)
    ask = here.cluster.subscription_starts
    start = ask.begin()
    assert start is not None
    start.open.add(key)
    first = ask.question(key, 4, here.now)
    # There is no time in a clock that is not known: the answer shows it, and is of no use
    # otherwise.
    assert first == b"\0"
    assert ask.on_answer(key, 4, answered(there, key, first, here.now)[0], 100, more=False) == (
        None,
        True,
    )
    start.open.clear()
    starts = []
    for count in range(2 * MAX_TIMES + 3):
        here.now = 1000.0 + count
        start = ask.begin()
        assert start is not None
        start.open.add(key)
        starts.append(start)
    now = here.now + 1.0
    question = ask.question(key, 5, now)
    assert len(question) <= 1 + 6 * MAX_TIMES
    answer, rest = answered(there, key, question + b"rest", now)
    assert rest == b"rest"
    here.now = now + 0.01
    assert ask.on_answer(key, 5, answer + b"behind", 100, more=False) == (b"behind", False)
    assert not any(key in start.open for start in starts)
    late = ask.begin()
    assert late is not None
    late.open.add(key)
    # One that was made between question and answer: the question did not contain it.
    again = ask.question(key, 6, here.now - 1.0)
    late.at = here.now - 5.0
    assert ask.on_answer(key, 6, answered(there, key, again, here.now)[0], 200, more=False) == (
        b"",
        False,
    )
    assert late.tops[key] <= 200


def test_a_session_that_comes_while_a_question_is_answered() -> None:
    """It began before that was asked, but the question was not for it: the next one is, with the
    time when it began."""
    node = met().node
    ask, key = node.cluster.subscription_starts, origin_key(FAR, 1)
    ask.question(key, 1, node.now)
    ask.on_answer(key, 1, answer_of([], node.now), 0, more=False)
    ask.question(key, 2, node.now)
    start = ask.adopt({key: 5, KEY: 6}, node.now - 4.0, {key, OTHER})
    assert start is not None
    assert start.open == {key}
    assert ask.on_answer(key, 2, answer_of([], node.now), 100, more=False) == (b"", True)
    assert (start.tops[key], start.open) == (5, {key})
    assert times_of(ask.question(key, 3, node.now))[0] == [pytest.approx(node.now - 4.0, abs=0.01)]
    assert ask.on_answer(key, 3, answer_of([40], node.now), 100, more=False) == (b"", False)
    assert (start.tops, start.open) == ({key: 40, KEY: 6}, set())


def test_messages_from_before_a_session_came_were_not_delivered_to_it() -> None:
    """It is learnt that numbers up to 40 are older than its subscriptions: of these, only 31 to 40
    came while the session was here."""
    node = met().node
    ask, key = node.cluster.subscription_starts, origin_key(FAR, 1)
    ask.question(key, 1, node.now)
    ask.on_answer(key, 1, answer_of([], node.now), 0, more=False)
    start = ask.adopt({key: 5}, node.now - 4.0, {key})
    assert start is not None
    start.passed = {key: [(1, 30)]}
    window = node.cluster.origins.vector[key]
    assert window.feed is not None
    window.feed.done = 50
    ask.raised(key, [start], 40)
    assert start.tops == {key: 40}
    assert start.early == {key: [(31, 40)]}


def test_the_begin_of_a_session_elsewhere_is_known_by_our_clock() -> None:
    """By our clock, rather too early; it is unknown as long as that one's is not known."""
    node = met().node
    starts = node.cluster.subscription_starts
    assert starts.by_our_clock(500.0, b"s" * 8) == UNKNOWN
    node.cluster.directory.database.listings[b"s" * 8] = Listing(b"s" * 8, 1)
    assert starts.by_our_clock(500.0, b"s" * 8) == UNKNOWN
    starts._clocks[origin_key(b"s" * 8, 1)] = (10.0, 10.5, node.now - 100.0)
    assert starts.by_our_clock(500.0, b"s" * 8) == pytest.approx(500.0 - 10.5 - 0.01)
    assert starts.by_our_clock(SessionState().began, b"s" * 8) == UNKNOWN


@pytest.mark.parametrize(
    "body", [b"", b"\x02" + bytes(6), bytes((MAX_TIMES + 1,)) + bytes(6 * 100)]
)
def test_a_malformed_question_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedPacket):
        times_of(body)


@pytest.mark.parametrize("body", [b"", b"\x01" + bytes(11)])
def test_a_malformed_answer_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedPacket):
        met().node.cluster.subscription_starts.on_answer(origin_key(FAR, 1), 1, body, 1, more=False)


@pytest.mark.parametrize(
    "body",
    [b"", bytes(14), bytes(1) + b"k" * 12 + b"\0\1" + bytes(9), bytes(1) + b"k" * 12 + b"\0\0"],
)
def test_malformed_ages_are_refused(body: bytes) -> None:
    world = met()
    link = next(iter(world.node.cluster.links.values()))
    with pytest.raises(MalformedPacket):
        world.node.cluster.subscription_starts.ages_received(link, body, 1000.0)


def aged(key: bytes, *ages: tuple[int, float]) -> bytes:
    """What says of messages (number, s) of an origin how old they are."""
    sent = Message(b"t", b"x", 1, False, b"", None, None)
    return encode_ages([entry_of(key, number, sent, -age) for number, age in ages], 0.0)


def test_replayed_messages_keep_their_age_for_others() -> None:
    world = met()
    key = origin_key(FAR, 1)
    positions = world.node.cluster.subscription_starts
    link = next(iter(world.node.cluster.links.values()))
    positions.ages_received(link, b"\0" + aged(key, (8, 3.0), (10, 2.0)), world.now)
    sent = Message(b"t", b"x", 1, False, b"", None, None)

    def age(number: int, count: int = 1) -> float:
        entry = entry_of(key, number, sent, world.now)
        entry.count = count
        return round(world.now - positions._published(entry), 3)

    assert [age(7), age(8), age(9), age(10), age(11)] == [3.0, 3.0, 2.0, 2.0, 0.0]
    assert age(9, 3) == 0.0  # 11 is one of these
    world.advance(1.0)
    positions.ages_received(link, b"\0" + aged(key, (9, 2.5), (10, 9.0)), world.now)
    assert [age(7), age(9), age(10)] == [
        9.0,
        9.0,
        9.0,
    ]  # what was published before 10 is not younger
    assert age(11) == 0.0


def test_few_points_of_the_past_are_kept() -> None:
    """No message between the points looks too old: a client that subscribed before it must get
    it."""
    world = met()
    key = origin_key(FAR, 1)
    positions = world.node.cluster.subscription_starts
    link = next(iter(world.node.cluster.links.values()))
    told = [(number, 200.0 - number) for number in range(8, 200)]
    for at in range(0, len(told), 10):
        positions.ages_received(link, b"\0" + aged(key, *told[at : at + 10]), world.now)
    points = positions._older[key]
    assert len(points) <= OLDER
    assert points[-1][0] == 199
    sent = Message(b"t", b"x", 1, False, b"", None, None)
    for number, old in told:
        found = world.now - positions._published(entry_of(key, number, sent, world.now))
        assert old - 64 < found < old + 0.002
    positions.ages_received(link, b"\0" + aged(origin_key(FAR, 2), (8, 1.0)), world.now)
    assert list(positions._older) == [key]  # nothing is kept of an unknown origin


def test_ages_that_go_round_are_passed_on_once() -> None:
    """While a tree forms links make circles: who passes on what comes back sends as many copies as
    it has links, each time."""
    world = met()
    first = world.peers[0]
    assert isinstance(first, Neighbour)
    others = [Neighbour(world, number) for number in (102, 103)]
    for other in others:
        other.child()
    entries = [batch_entry(origin_key(FAR, 1), number, [(b"t", b"x")]) for number in (8, 9)]
    one, two = (encode_ages(entries[:count], world.now) for count in (1, 2))
    first.send(ping((AGES, b"\0" + one)))
    assert [other.records(AGES) for other in others] == [[b"\1" + one]] * 2
    for hops in range(3, 9):
        others[0].send(ping((AGES, bytes((hops,)) + one)))
    assert [found.records(AGES) for found in (first, *others)] == [[], [], []]
    others[1].send(ping((AGES, b"\0" + two)))
    assert [found.records(AGES) for found in (first, *others)] == [[b"\1" + two], [b"\1" + two], []]


def test_ages_that_were_passed_on_are_forgotten() -> None:
    """The newest are remembered, however many there are."""
    positions = met().node.cluster.subscription_starts
    told = [number.to_bytes(8, "big") for number in range(PASSED + 10)]
    assert all(positions._first_time(ages) for ages in told)
    assert len(positions._passed) == PASSED
    assert not positions._first_time(told[-PASSED])
    assert positions._first_time(told[0])
