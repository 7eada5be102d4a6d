"""Routing by interest: local subscribers get the messages of each origin without gaps and in order
(docs/decisions/0013)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.broker_id import Identity
from mqttree.broker.base.counters import Counters
from mqttree.broker.base.sequence_set import (
    MAX_GAPS,
    MAX_SKIPS,
    Ranges,
    merge,
    roughly,
)
from mqttree.broker.cluster.delivery.gap_recovery import GapRecovery
from mqttree.broker.cluster.delivery.local_window import LocalWindow
from mqttree.broker.cluster.delivery.ordered_feed import (
    HeldMessage,
    OrderedFeed,
)
from mqttree.broker.cluster.delivery.origins import Origins
from mqttree.broker.cluster.delivery.orphans import Orphans
from mqttree.broker.cluster.delivery.pulls import Pulls
from mqttree.broker.cluster.delivery.subscription_start import SubscriptionStarts
from mqttree.broker.cluster.delivery.tree_paths import HOLD_S, SPLIT
from mqttree.broker.cluster.events import ClusterEvents, RouteChanged
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.strategy.interest import Interest
from mqttree.broker.cluster.strategy.spanning_tree import OverSpanningTree
from mqttree.broker.core.message import Message
from mqttree.broker.core.ports import NullJournal
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.wire.constants import MAX_PACKET_SIZE
from mqttree.broker.wire.errors import MalformedPacket
from tests.kit.core import needs_python
from tests.kit.link_harness import some_link
from tests.sim.schedule import Schedule

NEAR, FAR = some_link(1), some_link(2)

numbers = st.tuples(st.integers(1, 400), st.integers(0, 20)).map(
    lambda pair: (pair[0], pair[0] + pair[1])
)
ranges = st.lists(numbers, max_size=40).map(merge)


class Owner:
    """What an ordered feed asks of gap recovery."""

    def __init__(self) -> None:
        self.node = SimpleNamespace(now=1.0, counters=Counters(), journal=NullJournal())
        self.lost = 0

    def lose(self, feed: OrderedFeed) -> None:
        self.lost += 1
        feed.source = None

    def arm(self, feed: OrderedFeed) -> None:
        """There is no time here."""


def feed(done: int = 0) -> tuple[OrderedFeed, Owner]:
    owner = Owner()
    window = LocalWindow(done, 0.0, None, Limits().max_gaps)
    found = window.feed = OrderedFeed(owner, origin_key(b"x" * 8, 1), window, done)  # type: ignore[arg-type]
    return found, owner


def numbers_in(some: Ranges) -> set[int]:
    return {n for low, high in some for n in range(low, high + 1)}


@given(ranges)
def test_roughly_covers_with_few(some: Ranges) -> None:
    """Not more ranges than may be sent, nothing left out, and the largest holes are still holes."""
    found = roughly(some, 5)
    assert len(found) <= 5
    assert found == merge(found)
    assert numbers_in(some) <= numbers_in(found)
    if len(some) <= 5:
        assert found == some


@given(
    st.lists(
        st.tuples(
            st.sampled_from((NEAR, FAR)), st.integers(1, 60), st.integers(1, 4), st.booleans()
        ),
        max_size=60,
    )
)
def test_a_feed_delivers_each_number_once_and_in_order(
    events: list[tuple[Any, int, int, bool]],
) -> None:
    """Whatever comes from wherever, and whenever the source is found again: by number, each once,
    while nothing is given up."""
    found, _ = feed()
    window = found.window
    delivered: list[int] = []
    for link, first, count, synchronised in events:
        if synchronised:
            found.source, found.held = link, False
        if window.accept(first, count) > 0 and (taken := found.take(link, first, count)):
            delivered += range(first + count - taken, first + count)
        held = numbers_in(found.lacks()[:-1])
        assert held.isdisjoint(delivered)
    assert delivered == sorted(set(delivered))


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 4)), max_size=60))
def test_an_abandoned_feed_delivers_late_messages_once(events: list[tuple[int, int]]) -> None:
    """An origin that is gone holds up nothing; what was missing is taken when it comes."""
    found, _ = feed()
    found.unordered = True
    delivered: list[int] = []
    for first, count in events:
        if found.window.accept(first, count) > 0 and (taken := found.take(NEAR, first, count)):
            delivered += range(first + count - taken, first + count)
    assert len(delivered) == len(set(delivered))
    assert numbers_in(found.outstanding).isdisjoint(delivered)
    assert numbers_in(found.outstanding) | set(delivered) >= set(
        range(1, found.done + 1)
    ) - numbers_in(found.window.history)


class Asking:
    """A broker that asks one origin, whose answers the test gives."""

    def __init__(self) -> None:
        needs_python("what it asks is played by objects of no class")
        self.key = origin_key(ORIGIN, 1)
        self.window = LocalWindow(0, 0.0, None, Limits().max_gaps)
        self.asked: list[int] = []
        self.activated = 0
        listing = SimpleNamespace(id=ORIGIN, boot=1, via=ORIGIN, entries={})
        database: Any = SimpleNamespace(listings={ORIGIN: listing}, own_stamp=lambda: bytes(20))
        self.directory: Any = SimpleNamespace(
            database=database,
            post=lambda *_: None,
            watch=lambda *_: None,
            receive=lambda *_, **__: None,
            receive_over=lambda *_, **__: None,
            send=lambda broker_id, kind, body, **how: self.sent(body),
        )
        self.origins = Origins(Identity(b"o" * 8, 1, ("", 0)), 0.0, most_gaps=Limits().max_gaps)
        self.origins.vector[self.key] = self.window
        self.evaluated: Any = SimpleNamespace(deliver=lambda *_: None)
        unused: Any = None
        route = SimpleNamespace(deliveries=[], shared=[])
        fanout = SimpleNamespace(waiting=0, route=lambda topic: route)
        node: Any = SimpleNamespace(
            now=1.0,
            counters=Counters(),
            limits=DEFAULTS,
            forwarding=[],
            journal=NullJournal(),
            current=None,
            timers=SimpleNamespace(schedule=lambda at, call: None, cancel=lambda timer: None),
            dispatcher=fanout,
            config=SimpleNamespace(boot=1, routing="interest", link_timeout=2.0),
        )
        strategy: Any = OverSpanningTree(node, self.directory, unused)
        flow_control: Any = SimpleNamespace(released=lambda slow: None)
        above: Any = SimpleNamespace(evaluated=self.evaluated)
        starts = SubscriptionStarts(
            node, self.origins, database, unused, lambda: False, enabled=True
        )
        self.gap_recovery = GapRecovery(
            node,
            origins=self.origins,
            log=unused,
            directory=self.directory,
            bus=self.directory,
            strategy=strategy,
            flow_control=flow_control,
            starts=starts,
            orphans=Orphans(database, self.origins),
            pulls=Pulls(
                node,
                origins=self.origins,
                links={},
                database=database,
                bus=self.directory,
                starts=starts,
                above=above,
                received=unused,
            ),
            events=ClusterEvents(),
            above=above,
            is_member=lambda broker_id: False,
        )
        self.gap_recovery.met(self.key, self.window)
        assert self.window.feed is not None
        self.feed = self.window.feed

    def sent(self, body: bytes) -> bool:
        self.asked.append(int.from_bytes(body[12:16], "big"))
        return True

    def ask(self) -> int:
        self.gap_recovery._questions.ask(self.feed, 1.0)
        return self.asked[-1]

    def answer(
        self,
        number: int,
        top: int,
        index: int = 0,
        flags: int = 1,
        *,
        gone: int = 0,
        now: float = 1.0,
    ) -> None:
        head = bytes(12) + number.to_bytes(4, "big") + index.to_bytes(4, "big")
        head += bytes((flags,)) + top.to_bytes(6, "big") + gone.to_bytes(6, "big")
        self.gap_recovery._questions._answer_received(
            ORIGIN, head + (b"" if index else bytes(7)), now, NEAR
        )

    def comes(self, number: int) -> None:
        """Have a message come over a link that the feed does not trust."""
        assert self.window.accept(number, 1) == 1
        assert self.feed.take(FAR, number, 1) == 0
        self.feed.put_by(HeldMessage(number, Message(b"t", b"", 1, False, b"", None, None), None))


ORIGIN = b"x" * 8


def test_an_answer_counts_though_the_question_was_repeated() -> None:
    """Over a link that is slower than our patience each answer comes when it has been asked again:
    it counts all the same."""
    asking = Asking()
    first, second, third = asking.ask(), asking.ask(), asking.ask()
    asking.answer(first, 5, flags=0)
    asking.answer(first, 5, index=2)  # the second part was lost
    assert asking.feed.done == 0
    asking.answer(second, 7)
    assert (asking.feed.done, asking.feed.source) == (7, NEAR)
    asking.answer(third, 9)  # the question is settled
    assert asking.feed.done == 7


def test_messages_that_all_are_about_to_get_are_not_for_one_session_alone() -> None:
    """An answer has brought 1 to 600; the rest of it is for all here, though a session that comes
    from elsewhere lacks it, too. Up to 610 it said that there is nothing else: what that session
    lacks of this is for it alone."""
    asking, alone = Asking(), []
    feed = asking.feed
    asking.evaluated.ranges_fetched_for_one_session = lambda key: merge(alone)
    asking.evaluated.owe = lambda session, key, ranges: alone.extend(ranges)
    feed.done, feed.settled = 500, 610
    for number in range(501, 601):
        asking.gap_recovery.release.put_by(
            feed, HeldMessage(number, Message(b"t", b"", 1, False, b"", None, None), None)
        )  # type: ignore[arg-type]
    asking.gap_recovery.fetch(subscribed(0.0), asking.key, [(490, 700)])
    assert alone == [(490, 500), (601, 610)]


def subscribed(at: float) -> Any:
    """A session that subscribed at a time (s)."""
    return SimpleNamespace(subscriptions={"t": SimpleNamespace(start=SimpleNamespace(at=at))})


def test_an_answer_from_before_a_session_came_settles_nothing_that_it_lacks() -> None:
    """The origin did not know its filters when it was asked, so that what they match is not in the
    answer."""
    asking = Asking()
    asking.evaluated.ranges_fetched_for_one_session = lambda key: []
    before = asking.ask()
    asking.gap_recovery.fetch(subscribed(1.0), asking.key, [(1, 9)])
    asking.answer(before, 9)
    assert asking.feed.settled == 0
    behind = asking.ask()
    asking.gap_recovery.fetch(subscribed(0.9), asking.key, [(1, 9)])
    asking.answer(behind, 9)
    assert asking.feed.settled == 9


def test_an_answer_from_before_a_path_change_gives_no_source() -> None:
    """After a break the answer still says what is here, not that all will come this way; a broker
    that has asked again waits for that."""
    asking = Asking()
    first = asking.ask()
    asking.gap_recovery.lose(asking.feed)
    second = asking.ask()
    asking.answer(first, 5)
    assert (asking.feed.done, asking.feed.source, asking.asked) == (5, None, [first, second])
    asking.answer(second, 6)
    assert (asking.feed.done, asking.feed.source) == (6, NEAR)


def test_a_pending_question_is_repeated_soon_after_a_path_change() -> None:
    """The question may have been lost with the old way. However often that is, none that waits is
    dropped."""
    asking = Asking()
    feed = asking.feed
    for count in range(1, 9):
        feed.pause = 2.0
        asking.ask()
        assert feed.ask_at == 3.0
        asking.gap_recovery.lose(feed)
        assert feed.ask_at == (1.1 if count < 8 else 3.0)
        assert feed.pause == 2.0
    assert len(feed.questions) == 8


def test_only_an_answer_that_brings_more_leads_to_the_next_question() -> None:
    """Of several answers that are not all, only the one that is a step forward leads to the next
    question."""
    asking = Asking()
    first, second = asking.ask(), asking.ask()
    asking.answer(first, 5, flags=3)
    assert len(asking.asked) == 3
    asking.answer(second, 5, flags=3)
    assert len(asking.asked) == 3
    asking.answer(asking.asked[-1], 9)
    assert (asking.feed.done, asking.feed.source) == (9, NEAR)


def test_a_message_that_has_come_is_no_longer_waited_for() -> None:
    """1 to 3 have left the origin's log. 2 comes another way: what is behind it must not wait for
    it while no broker asks."""
    asking = Asking()
    feed = asking.feed
    asking.comes(4)
    asking.answer(asking.ask(), 4, gone=3)
    assert (feed.refused, feed.settled, feed.source) == ([(1, 3)], 0, None)
    asking.comes(2)
    asking.answer(asking.ask(), 4, gone=3)
    assert (feed.refused, feed.settled) == ([(1, 1), (3, 3)], 0)
    asking.answer(asking.ask(), 4, gone=3, now=1.1 + SPLIT)
    assert (feed.outstanding, feed.refused, feed.done, feed.source) == (
        [(1, 1), (3, 3)],
        [],
        4,
        NEAR,
    )


def test_messages_that_keep_coming_extend_the_wait() -> None:
    """Over a slow link, one large message after the other: five seconds for each, not for all."""
    asking = Asking()
    feed = asking.feed
    asking.comes(4)
    asking.answer(asking.ask(), 4, gone=3)
    asking.comes(2)
    asking.answer(asking.ask(), 4, gone=3, now=SPLIT)
    asking.answer(asking.ask(), 4, gone=3, now=1.1 + SPLIT)
    assert (feed.refused, feed.settled) == ([(1, 1), (3, 3)], 0)
    asking.answer(asking.ask(), 4, gone=3, now=0.1 + 2 * SPLIT)
    assert (feed.outstanding, feed.refused, feed.source) == ([(1, 1), (3, 3)], [], NEAR)


def test_time_in_which_this_broker_stood_still_does_not_count() -> None:
    """What is on its way to it is not read meanwhile."""
    asking = Asking()
    feed = asking.feed
    asking.comes(2)
    asking.answer(asking.ask(), 2, gone=1)
    asking.gap_recovery._paths.away[b"another!"] = 0.5
    asking.gap_recovery.on_suspended(2 * HOLD_S, 1.1 + 2 * HOLD_S)
    assert asking.gap_recovery._paths.away == {b"another!": 0.5 + 2 * HOLD_S}
    asking.answer(asking.ask(), 2, gone=1, now=1.1 + 2 * HOLD_S)
    assert feed.refused == [(1, 1)]
    asking.answer(asking.ask(), 2, gone=1, now=1.1 + 3 * HOLD_S)
    assert (feed.refused, feed.source) == ([], NEAR)


def test_messages_of_an_answer_are_not_waited_for_though_trimmed() -> None:
    """An earlier answer brought 1, and the next one says that the log has it no more."""
    asking = Asking()
    feed = asking.feed
    number = asking.ask()
    feed.put_by(HeldMessage(1, Message(b"t", b"", 1, False, b"", None, None), None))
    asking.answer(number, 1, gone=1)
    assert (feed.refused, feed.done, feed.source, feed.gone_since) == ([], 1, NEAR, 0.0)


def test_messages_refused_since_the_question_are_asked_for_again() -> None:
    """The question was not for it, and its answer is not the last one."""
    asking = Asking()
    feed = asking.feed
    feed.settled, asking.window.top = 5, 5
    number = asking.ask()
    feed.refuse(3, 3)
    asking.answer(number, 7)
    assert (feed.settled, feed.behind, len(asking.asked)) == (2, None, 2)
    asking.answer(asking.asked[-1], 7)
    assert (feed.done, feed.refused, feed.source) == (7, [], NEAR)


@pytest.mark.parametrize(
    ("heard", "away", "longest"),
    [
        (1.0, None, 3.0),
        (2.5, None, 4.5),
        (9.0, None, HOLD_S),
        (1.0, 0.5, HOLD_S),
    ],
)
def test_other_brokers_are_asked_for_messages_of_a_lost_incarnation(
    heard: float, away: float | None, longest: float
) -> None:
    """While some of it still comes, or a broker is away that may have it, it is waited for, as long
    as for any."""
    asking = Asking()
    # It was started again, and knows of nothing.
    asking.directory.database.listings[ORIGIN].boot = 2
    asking.feed.since, asking.window.heard = 1.0, heard
    if away is not None:
        asking.gap_recovery._paths.away[b"another!"] = away
    assert asking.gap_recovery._longest(asking.feed) == longest


def test_questions_are_bounded() -> None:
    """However long there is no answer."""
    asking = Asking()
    for _ in range(100):
        asking.ask()
    assert len(asking.feed.questions) <= 16


def test_an_answer_without_an_end_is_dropped() -> None:
    """A broker that goes on sending parts does not fill the memory."""
    asking = Asking()
    number = asking.ask()
    part = bytes(MAX_PACKET_SIZE // 8)
    head = bytes(12) + number.to_bytes(4, "big")
    with pytest.raises(MalformedPacket):
        for index in range(100):
            asking.gap_recovery._questions._answer_received(
                ORIGIN, head + index.to_bytes(4, "big") + b"\0" + bytes(12) + part, 1.0, NEAR
            )
    assert index < 20
    assert asking.feed.questions[number].size == 0
    asking.answer(asking.ask(), 7)
    assert asking.feed.done == 7


def test_refused_numbers_take_bounded_memory() -> None:
    """With gaps between, as no subscriber here wants these: no list without end, and what is queued
    is not owed besides."""
    found, _ = feed()
    for number in range(99_001, 99_011):
        found.put_by(HeldMessage(number, Message(b"t", b"", 1, False, b"", None, None), None))
    for number in range(1, 200_000, 2):
        found.refuse(number, number)
    assert len(found.refused) <= MAX_SKIPS
    assert (found.refused[0][0], found.refused[-1][1], found.settled) == (1, 199_999, 0)
    assert numbers_in(found.refused) >= set(range(1, 200_000, 2))


def test_a_feed_is_unsettled_while_its_origin_may_send_more() -> None:
    """A session is not given away while something may come that it alone will miss; an origin that
    is gone sends nothing."""
    asking = Asking()
    assert asking.gap_recovery.unsettled()
    asking.answer(asking.ask(), 3)
    assert not asking.gap_recovery.unsettled()
    asking.gap_recovery.lose(asking.feed)
    assert asking.gap_recovery.unsettled()
    asking.directory.database.listings.clear()
    assert not asking.gap_recovery.unsettled()
    assert asking.feed.take(FAR, 5, 1) == 0
    assert asking.gap_recovery.unsettled()


def test_a_break_goes_ahead_on_the_old_way_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others still get over the old way may be newer than what the new way is going to bring,
    and would be taken for all."""
    asking = Asking()
    links: dict[bytes, Any] = {
        name: SimpleNamespace(live=True, name=name) for name in (b"old", b"new")
    }
    sent: list[tuple[bytes, bytes]] = []
    ways: list[bytes | None] = [b"old"]
    listings = asking.directory
    monkeypatch.setattr(
        listings, "link_to", lambda broker_id: links.get(ways[-1] or b""), raising=False
    )
    monkeypatch.setattr(
        listings,
        "send",
        lambda broker_id, kind, body, **how: sent.append((ways[-1] or b"", broker_id)),
    )
    monkeypatch.setattr(
        listings,
        "send_over",
        lambda link, broker_id, kind, body: sent.append((link.name, broker_id)),
        raising=False,
    )
    far = b"z" * 8
    told = []
    for way in (b"old", b"new", None, b"old"):
        ways.append(way)
        asking.gap_recovery.route_changed(RouteChanged(far, way))
        told.append(sent[:])
        sent.clear()
    assert told == [
        [(b"old", far)],
        [(b"old", far), (b"new", far)],
        [(b"new", far)],
        [(b"old", far)],
    ]
    links[b"old"].live = False
    ways.append(b"new")
    asking.gap_recovery.route_changed(RouteChanged(far, b"new"))
    assert sent == [(b"new", far)]


def test_numbers_forgotten_by_a_full_table_of_gaps_may_be_asked_for() -> None:
    """A table of holes that is full forgets the oldest: they may still be asked for."""
    found, _ = feed()
    for number in range(MAX_SKIPS + 1):
        assert found.window.accept(2 * number + 2, 1) == 1
    assert len(found.window.history) <= MAX_SKIPS
    assert found.outstanding[0] == (1, 1)
    assert numbers_in(found.outstanding) | numbers_in(found.window.history) == {
        2 * n + 1 for n in range(MAX_SKIPS + 1)
    }
    assert len(found.lacks()) <= MAX_GAPS


# ------------------------------------------------------------------ planted faults


SEED = 11
"""A schedule of three brokers or four that route by interest, with faults and without groups."""


def kinds(seed: int) -> set[str]:
    return {kind for kind, _ in Schedule(seed).run().violations}


def test_the_checkers_catch_messages_that_cross_a_link_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that floods although it says that it does not."""
    assert not kinds(SEED)
    monkeypatch.setattr(Interest, "links_of", lambda self, route: self._node.forwarding)
    assert kinds(SEED) == {"ways"}


def test_the_checkers_catch_a_break_that_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without path changes, what was lost on the old ones is taken for unwanted."""
    monkeypatch.setattr(GapRecovery, "lose", lambda self, feed: None)
    assert "lost" in kinds(SEED)
