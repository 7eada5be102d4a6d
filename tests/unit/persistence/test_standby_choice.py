"""Which neighbour becomes the standby."""

from __future__ import annotations

from collections import Counter

import pytest

from mqttree.broker.persistence.standby_choice import Candidate, choose

A, B, C = b"a" * 8, b"b" * 8, b"c" * 8
OWNER = b"o" * 8


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        ([], None),
        ([Candidate(A, False, 1.0)], A),
        # Another host comes before capability,
        ([Candidate(A, False, 1e6), Candidate(B, True, 0.1)], B),
        # and before few images,
        ([Candidate(A, False, 1.0), Candidate(B, True, 1.0, heavy=True)], B),
        ([Candidate(A, True, 1.0), Candidate(B, True, 1e6, heavy=True)], A),
        # but not before one that keeps up.
        ([Candidate(A, False, 1.0), Candidate(B, True, 1.0, slow=True)], A),
        ([Candidate(A, False, 1.0, slow=True)], A),
        # Without any capability it is one of them all the same.
        ([Candidate(A, True, 0.0)], A),
    ],
)
def test_the_standby(candidates: list[Candidate], chosen: bytes | None) -> None:
    for order in (candidates, candidates[::-1]):
        found = choose(OWNER, order)
        assert (found and found.id) == chosen


def test_owners_are_spread_over_neighbours_by_capability() -> None:
    candidates = [Candidate(A, True, 1.0), Candidate(B, True, 1.0), Candidate(C, True, 2.0)]
    found: Counter[bytes] = Counter()
    for number in range(4000):
        standby = choose(number.to_bytes(8, "big"), candidates)
        assert standby is not None
        found[standby.id] += 1
    assert [round(found[each] / 400) for each in (A, B, C)] == [
        pytest.approx(2.5, abs=0.5),
        pytest.approx(2.5, abs=0.5),
        5,
    ]


def test_a_neighbour_that_goes_changes_the_standby_of_nobody_else() -> None:
    candidates = [Candidate(bytes((number,)) * 8, True, 1.0) for number in range(5)]
    for number in range(100):
        owner = number.to_bytes(8, "big")
        before, after = choose(owner, candidates), choose(owner, candidates[1:])
        assert before is candidates[0] or after is before
