"""Routing by interest: what those here get of each origin is whole and in order (docs/decisions/0013)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import limits
from broker.counters import Counters
from broker.interest import Interest
from broker.origin import LAST, Ranges, Window, intersect, merge, origin_key, roughly, subtract
from broker.streams import Stream, Streams
from tests.sim.schedule import Schedule

NEAR: Any = SimpleNamespace(name="near")
FAR: Any = SimpleNamespace(name="far")

numbers = st.tuples(st.integers(1, 400), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))
ranges = st.lists(numbers, max_size=40).map(merge)


class Owner:
    """What a stream asks for."""

    def __init__(self) -> None:
        self.node = SimpleNamespace(now=1.0, counters=Counters())
        self.lost = 0

    def lose(self, stream: Stream) -> None:
        self.lost += 1
        stream.source = None

    def arm(self, stream: Stream) -> None:
        """There is no time here."""


def stream(done: int = 0) -> tuple[Stream, Owner]:
    owner = Owner()
    window = Window(done, 0.0)
    found = window.stream = Stream(owner, origin_key(b"x" * 8, 1), window, done)  # type: ignore[arg-type]
    return found, owner


def numbers_in(some: Ranges) -> set[int]:
    return {n for low, high in some for n in range(low, high + 1)}


@given(ranges)
def test_roughly_covers_with_few(some: Ranges) -> None:
    """Not more ranges than may be told, nothing left out, and the largest holes are still holes."""
    found = roughly(some, 5)
    assert len(found) <= 5
    assert found == merge(found)
    assert numbers_in(some) <= numbers_in(found)
    if len(some) <= 5:
        assert found == some


@given(ranges, ranges)
def test_sets_of_numbers(some: Ranges, others: Ranges) -> None:
    """Ranges are sets."""
    assert numbers_in(intersect(some, others)) == numbers_in(some) & numbers_in(others)
    assert numbers_in(subtract(some, others)) == numbers_in(some) - numbers_in(others)
    assert numbers_in(merge(some + others)) == numbers_in(some) | numbers_in(others)


@given(st.lists(st.tuples(st.sampled_from((NEAR, FAR)), st.integers(1, 60), st.integers(1, 4), st.booleans()), max_size=60))
def test_what_is_taken_comes_once_and_in_order(events: list[tuple[Any, int, int, bool]]) -> None:
    """Whatever comes from wherever, and whenever the source is found again: by number, each once, while nothing is given up."""
    found, _ = stream()
    window = found.window
    delivered: list[int] = []
    for link, first, count, synchronised in events:
        if synchronised:
            found.source, found.held = link, False
        if window.accept(first, count, skipped=True) > 0 and (taken := found.take(link, first, count)):
            delivered += range(first + count - taken, first + count)
        held = numbers_in(found.lacks()[:-1])
        assert held.isdisjoint(delivered)
    assert delivered == sorted(set(delivered))


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 4)), max_size=60))
def test_given_up_comes_late_and_once(events: list[tuple[int, int]]) -> None:
    """An origin that is gone holds up nothing; what was missing is taken when it comes."""
    found, _ = stream()
    found.free = True
    delivered: list[int] = []
    for first, count in events:
        if found.window.accept(first, count, skipped=True) > 0 and (taken := found.take(NEAR, first, count)):
            delivered += range(first + count - taken, first + count)
    assert len(delivered) == len(set(delivered))
    assert numbers_in(found.owed).isdisjoint(delivered)
    assert numbers_in(found.owed) | set(delivered) >= set(range(1, found.done + 1)) - numbers_in(found.window.history)


def test_another_way_is_not_trusted() -> None:
    """A message that comes over another link than the source may have overtaken others."""
    found, owner = stream()
    found.source = NEAR
    assert found.take(NEAR, 1, 1) == 1
    assert found.take(FAR, 3, 1) == 0
    assert (owner.lost, found.source, found.done, found.held) == (1, None, 1, True)
    assert found.take(NEAR, 4, 2) == 0
    found.window.top, found.window.history = 5, [(2, 2)]
    assert found.lacks() == [(2, 2), (6, LAST)]


def test_holes_without_end_are_owed() -> None:
    """A table of holes that is full forgets the oldest: they may still be asked for."""
    found, _ = stream()
    for number in range(limits.MAX_SKIPS + 1):
        assert found.window.accept(2 * number + 2, 1, skipped=True) == 1
    assert len(found.window.history) <= limits.MAX_SKIPS
    assert found.owed[0] == (1, 1)
    assert numbers_in(found.owed) | numbers_in(found.window.history) == {2 * n + 1 for n in range(limits.MAX_SKIPS + 1)}
    assert len(found.lacks()) <= limits.MAX_GAPS


# ------------------------------------------------------------------ planted faults


SEED = 11
"""A schedule of three brokers or four that route by interest, with faults and without groups."""


def kinds(seed: int) -> set[str]:
    return {kind for kind, _ in Schedule(seed).run().violations}


def test_what_crosses_in_vain_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that floods although it says that it does not."""
    assert not kinds(SEED)
    monkeypatch.setattr(Interest, "links", lambda self, topic: self._node.forwarding)
    assert kinds(SEED) == {"ways"}


def test_a_break_that_nobody_minds_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the news of new ways, what was lost on the old ones is taken for unwanted."""
    monkeypatch.setattr(Streams, "lose", lambda self, stream: None)
    assert "lost" in kinds(SEED)
