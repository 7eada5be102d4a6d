"""Very many filters that a broker announces at once are handled in pieces (interest_table.py): it
always gets what it wants."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mqttree.broker.cluster.directory.link_state_directory import INTEREST, POST_INTERVAL
from mqttree.broker.cluster.events import RouteChanged
from mqttree.broker.cluster.strategy.source_trees import SourceTrees
from mqttree.broker.limits import Limits
from mqttree.routing.topic_filter import matches
from tests.kit.link_harness import bid, lone

FILTERS = ["#", "a", "a/b", "+/b", "c/#", "d"]
TOPICS = ["a", "a/b", "c", "c/b", "d", "e"]
BROKER = bid(101)

some = st.sets(st.sampled_from(FILTERS))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("post"), some),
        st.tuples(st.just("withdraw"), some),
        st.tuples(st.just("went"), some),
        st.tuples(st.just("came"), some),
        st.tuples(st.just("given up"), some),
        st.tuples(st.just("wait"), some),
    ),
    max_size=30,
)


SMALL = Limits(interest_at_once=0, interest_step=1)
"""None is looked at at once, and one in each step."""


class Told:
    """What a broker announces of itself, as the directory hands it over."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        many: Iterable[bool] = (False,),
        limits: Limits = SMALL,
    ) -> None:
        """`many`: whether it announces its filters in one piece, in turn; `limits`: those of the
        broker that hears it."""
        self.many = cycle(many)
        monkeypatch.setattr(SourceTrees, "keeps", lambda overlays, broker_id, gone: self.away)
        self.world = lone(routing="topic", link_timeout=1000.0, limits=limits)
        self.interest = self.world.node.cluster.strategy.table
        self.filters: set[str] = set()
        self.kept: set[str] = set()  # messages still go there
        self.away = False

    def tell(self, filters: set[str], value: bytes | None, *, gone: bool = False) -> None:
        if not next(self.many):
            for topic_filter in sorted(filters):
                self.interest._posted(BROKER, topic_filter.encode(), value)
        elif filters:
            self.interest._many_posted(
                BROKER, [(INTEREST + f.encode(), value) for f in sorted(filters)], gone
            )

    def do(self, what: str, some: set[str]) -> None:
        if what == "wait":
            self.world.advance(POST_INTERVAL)
        elif what == "post" and not self.away:
            self.tell(some - self.filters, b"")
            self.filters |= some
        elif what == "withdraw" and not self.away:
            self.tell(some & self.filters, None)
            self.filters -= some
        elif what == "went" and not self.away:
            self.away, self.kept = True, set(self.filters)
            self.tell(self.filters, None, gone=True)
            self.interest.route_changed(RouteChanged(BROKER, None))
        elif what == "came" and self.away:
            self.away, self.filters, self.kept = False, set(some), set()
            self.tell(some, b"")
            self.interest.route_changed(RouteChanged(BROKER, BROKER))
        elif what == "given up" and self.away:
            self.kept = set()
            self.interest.forget(BROKER)

    def check(self, *, exactly: bool = False) -> None:
        wanted = self.kept if self.away else self.filters
        for topic in TOPICS:
            found = BROKER in self.interest.brokers_wanting(topic)
            assert found or not any(matches(topic_filter, topic) for topic_filter in wanted), topic
        if exactly:
            assert {
                f for f in FILTERS if self.interest._filters.get(f, BROKER) is not None
            } == wanted
            assert not self.interest._unhandled
            assert set(self.interest._kept.get(BROKER, ())) == self.kept


TWICE_GONE: list[tuple[str, set[str]]] = [
    ("post", {"#", "a"}),
    ("went", set()),
    ("wait", set()),
    ("came", {"a"}),
    ("wait", set()),
    ("went", set()),
]


@given(steps, st.lists(st.booleans(), min_size=1, max_size=4))
# What it tells again is not kept any more.
@example([("post", {"#"}), ("went", set()), ("came", {"#"})], [False])
@example(TWICE_GONE, [False])
@example(TWICE_GONE, [True])
def test_a_broker_gets_what_it_wants_at_any_time_and_in_the_end_nothing_else(
    steps: list[tuple[str, set[str]]], many: list[bool]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        told = Told(patch, many)
        for what, filters in steps:
            told.do(what, filters)
            told.check()
        told.world.advance(5.0)
        told.check(exactly=True)


@pytest.mark.parametrize("many", [(False,), (True,), (True, False)])
def test_changes_beyond_the_limit_are_handled_at_once(
    monkeypatch: pytest.MonkeyPatch, many: tuple[bool, ...]
) -> None:
    told = Told(monkeypatch, many, SMALL.replace(interest_changes=3))
    for _ in range(3):
        told.do("post", set(FILTERS) - {"#"})
        told.check()
        told.do("withdraw", {"a", "d"})
        told.check()
    assert 2 <= told.interest._unhandled[BROKER].count <= 5, (
        "no more than that, and what was told last in one piece"
    )
    told.world.advance(1.0)
    told.check(exactly=True)
