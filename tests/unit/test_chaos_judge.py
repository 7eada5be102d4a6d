"""The judge of tests.chaos sees what is lost, late and twice, and what may be missing."""

from __future__ import annotations

import pytest

from tests.chaos.judge import Ear, Judge, Receipt, Sent


@pytest.fixture
def judge() -> Judge:
    """A publisher at QoS 2 that has sent ten messages, all of them acknowledged."""
    judge = Judge()
    judge.sent[0] = sent = Sent(0, 0, 2)
    for index in range(10):
        sent.sends()
        sent.acknowledged(index)
    return judge


def ear(judge: Judge, *indexes: int, life: int = 0) -> Ear:
    """Somebody to whom these came, and to whom all had to come."""
    ear = Ear("ear", 1, {0: Receipt(since=0)})
    for index in indexes:
        judge.came(ear, b"0 %d %d" % (life, index), 2)
    return ear


def test_what_is_whole_is_whole(judge: Judge) -> None:
    ears = [ear(judge, *range(10))]
    assert judge.begin()
    assert judge.compare(ears) == judge.broken == []
    judge.settle(ears)
    assert judge.counts["compared"] == 10


@pytest.mark.parametrize("came", [(0, 1, 2, 3, 4, 5, 6, 7, 8), (0, 1, 2, 3, 5, 6, 7, 8, 9), ()])
def test_a_loss_is_seen(judge: Judge, came: tuple[int, ...]) -> None:
    judge.begin()
    assert "acknowledged and missing" in judge.compare([ear(judge, *came)])[0]


def test_the_first_after_suback_is_owed(judge: Judge) -> None:
    judge.begin()
    assert "3, 0 to 2" in judge.compare([ear(judge, *range(3, 10))])[0]


def test_what_is_not_owed_is_not_missed(judge: Judge) -> None:
    new = Ear("new", 1, {0: Receipt()})
    judge.ready(new)
    judge.begin()
    assert judge.compare([new]) == []


@pytest.mark.parametrize(("came", "what"), [((0, 1, 1), "twice at QoS 2"), ((0, 2, 1), "out of order"), ((3, 2), "out of order")])
def test_duplicates_and_order_are_seen_at_once(judge: Judge, came: tuple[int, ...], what: str) -> None:
    ear(judge, *came)
    assert [line.startswith(what) for line in judge.broken] == [True]


def test_what_a_killed_broker_had_comes_too(judge: Judge) -> None:
    """Its journal has all that it acknowledged, also what it alone had, and its last record."""
    sent = judge.sent[0]
    sent.reborn()
    assert not judge.begin()  # nothing of the new life yet
    sent.sends()
    sent.acknowledged(10)
    judge.begin()
    whole, less = ear(judge, *range(9)), ear(judge, *range(8))
    for each in (whole, less):
        judge.came(each, b"0 1 10", 2)
    late = judge.compare([whole, less])
    assert [line.partition(": ")[2] for line in late] == [
        "publisher 0 (b0, QoS 2, life 1 from 10) to ear (b1, last 10): 1, 9 to 9",
        "publisher 0 (b0, QoS 2, life 1 from 10) to ear (b1, last 10): 2, 8 to 9",
    ]
    judge.came(less, b"0 0 8", 2)
    for each in (whole, less):
        judge.came(each, b"0 0 9", 2)
    assert judge.compare([whole, less]) == []
    judge.settle([whole, less])
    assert judge.counts["compared"] == 22
    assert judge.counts["late, from before its broker's death"] == 3
    assert not judge.broken
