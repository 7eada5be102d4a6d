"""What a session had where it was does not come to it again from others' logs
(docs/decisions/0016)."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.counters import Counters
from mqttree.broker.base.sequence_set import Ranges, merge, subtract
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.sessions.evaluated import Evaluated
from mqttree.broker.core.message import Message
from mqttree.broker.core.receiver_assignment import ReceiverAssignment
from mqttree.broker.core.route import NOTHING_BEYOND, Route
from mqttree.broker.limits import DEFAULTS, Limits
from tests.kit.core import needs_python

KEY = origin_key(b"k" * 8, 1)
OTHER = origin_key(b"o" * 8, 1)

numbers = st.tuples(st.integers(1, 60), st.integers(0, 5)).map(
    lambda pair: (pair[0], pair[0] + pair[1])
)
ranges = st.lists(numbers, min_size=1, max_size=6).map(merge)


class Session:
    """A session that gets messages."""

    recorder = None
    held = False

    def __init__(self) -> None:
        self.subscriptions: dict[str, Any] = {}

    def wanting(self, topic: str) -> Iterator[Any]:
        return iter(())


class Place:
    """A broker with these sessions, all of which want everything."""

    def __init__(self, *sessions: Session, limits: Limits = DEFAULTS) -> None:
        needs_python("its sessions are played by objects of no class")
        self.got: list[tuple[Session, bytes]] = []
        self.shared: list[bool] = []
        self.later: list[Any] = []
        self.behind = False
        deliveries: Any = [
            SimpleNamespace(session=session, qos=2, plain=False) for session in sessions
        ]
        route = Route(deliveries, NOTHING_BEYOND, True, {})
        fanout = SimpleNamespace(route=lambda topic: route, publish_along=self.publish)
        self.node: Any = SimpleNamespace(
            now=1.0,
            limits=limits,
            counters=Counters(),
            dispatcher=fanout,
            retained={},
            timers=SimpleNamespace(schedule=lambda at, call: self.later.append((at, call))),
        )
        sharing: Any = SimpleNamespace(
            received=lambda message, choice, source, *, ordinary: self.shared.append(ordinary)
        )
        feed: Any = SimpleNamespace(outstanding=[(1, 70)])
        feed.add_outstanding = lambda ranges: setattr(
            feed, "outstanding", merge([*feed.outstanding, *ranges])
        )
        feed.done = 0
        self.window = SimpleNamespace(feed=feed, heard=0.0)
        origins: Any = SimpleNamespace(highest={}, vector={KEY: self.window})
        old: Any = SimpleNamespace(expects_old_messages=lambda: self.behind)
        self.repeats = Evaluated(self.node, origins, sharing, old)

    def publish(self, route: Route, message: Message, groups: tuple[()], source: object) -> None:
        self.got += [(delivery.session, message.payload) for delivery in route.deliveries]  # type: ignore[misc]


def message(number: int) -> Message:
    return Message(b"a", b"%d" % number, 2, False, b"", None, None)


def members(some: Ranges) -> set[int]:
    return {n for low, high in some for n in range(low, high + 1)}


@given(ranges, ranges)
def test_messages_owed_to_one_session_go_to_no_other(lacked: Ranges, had: Ranges) -> None:
    """All others count as having had it."""
    came, here = Session(), Session()
    place = Place(came, here)
    place.repeats.owe(came, KEY, lacked)  # type: ignore[arg-type]
    place.repeats.add(came, {KEY: had})  # type: ignore[arg-type]
    for number in range(1, 70):
        place.repeats.deliver(KEY, number, message(number), None, None)
    assert {int(payload) for session, payload in place.got if session is here} == set(
        range(1, 70)
    ) - members(lacked)
    assert {int(payload) for session, payload in place.got if session is came} == set(
        range(1, 70)
    ) - members(had)
    place.repeats.forget_all_paid()
    assert place.repeats.owed(came) == {KEY: lacked}  # type: ignore[arg-type]
    place.window.feed.outstanding = []
    assert not place.repeats.owed(came)  # type: ignore[arg-type]
    place.repeats.forget_all_paid()
    assert not place.repeats.owed_of(KEY)


def test_messages_that_one_session_lacks_are_not_missing_to_others() -> None:
    """It is owed here as long as it has not come; a session that moves on meanwhile has had it, and
    would get it twice. A second one that lacks it, too, gets it as well."""
    one, two, other = Session(), Session(), Session()
    place = Place(one, two, other)
    place.window.feed.outstanding = []
    place.repeats.owe(one, KEY, [(3, 5)])  # type: ignore[arg-type]
    place.repeats.owe(two, KEY, [(5, 6)])  # type: ignore[arg-type]
    assert place.repeats.ranges_fetched_for_one_session(KEY) == [(3, 6)]
    for session, lacked in ((one, [(3, 5)]), (two, [(5, 6)]), (other, [])):
        place.window.feed.done = 10
        seen = place.repeats.seen(session)  # type: ignore[arg-type]
        assert (seen[KEY].top, seen[KEY].gaps) == (10, lacked)


def test_a_debt_that_is_paid_is_none_again_when_another_session_lacks_the_same() -> None:
    one, two = Session(), Session()
    place = Place(one, two)
    place.window.feed.outstanding = []
    place.repeats.owe(one, KEY, [(3, 5)])  # type: ignore[arg-type]
    place.window.feed.outstanding = [(5, 5)]
    place.repeats.owe(two, KEY, [(3, 4)])  # type: ignore[arg-type]
    assert place.repeats.owed(one) == {KEY: [(5, 5)]}  # type: ignore[arg-type]
    assert place.repeats.owed(two) == {KEY: [(3, 4)]}  # type: ignore[arg-type]


@pytest.mark.parametrize("passed", (False, True))
def test_groups_get_their_messages_besides_sessions(passed: bool) -> None:
    """Shared subscriptions do not count; a message for a group alone is for no other session."""
    place = Place(Session())
    place.repeats.deliver(
        KEY, 1, message(1), ReceiverAssignment([(b"w" * 12, b"m" * 8)], passed=passed), None
    )
    assert place.shared == [False]
    assert len(place.got) == (0 if passed else 1)


@given(st.integers(0, 30), ranges, ranges)
def test_a_session_that_moves_on_takes_its_ranges_along(
    top: int, gaps: Ranges, had: Ranges
) -> None:
    """The next broker hears of what the last one offered, and of what the one before did."""
    session: Any = Session()
    place = Place(session)
    place.repeats.add(session, {KEY: had, OTHER: had})
    place.window.feed.done = top
    place.window.feed.outstanding = [(low, high) for low, high in gaps if high <= top]
    offered = members(subtract([(1, top)], place.window.feed.outstanding)) if top else set()
    seen = place.repeats.seen(session)
    for key, known in ((KEY, offered | members(had)), (OTHER, members(had))):
        assert members(subtract([(1, seen[key].top)], seen[key].gaps)) == known
    other: Any = Session()
    assert place.repeats.seen(other)[KEY].top == max(offered, default=0)


def test_names_become_ranges_as_long_as_old_messages_may_come() -> None:
    """What is in no log any more is forgotten, counted from the last change."""
    session: Any = Session()
    place = Place(session)
    place.repeats.add(session, {KEY: [(1, 5)]})
    place.node.now = 2.0
    place.repeats.give(session, KEY, 7)

    def known() -> set[int]:
        return {
            number
            for number in range(9)
            if number in members(place.repeats.elsewhere(session).get(KEY, []))
        }

    def later() -> None:
        [(place.node.now, call)], place.later = place.later, []
        call(place.node.now)

    later()
    assert place.later[0][0] == 2.0 + DEFAULTS.log_age_s
    place.behind = True  # what is in the tail of a log may still come
    place.window.feed.done, place.window.feed.outstanding = 5, [(4, 4)]
    later()
    assert known() == {4, 7}
    assert not place.repeats.names(session)
    place.behind = False
    later()
    assert not known()
    assert not place.later
