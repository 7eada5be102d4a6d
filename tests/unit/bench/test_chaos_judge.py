"""The judge of tests.chaos sees what is lost, late and twice, and what may be missing; its world
says which brokers were split."""

from __future__ import annotations

import pytest

from tests.chaos.judge import ANOTHER, CROSSED, HEAD, WIPES, Ear, Judge, Receipt, Sent
from tests.chaos.plan import Draw, Plan, draw, plan
from tests.chaos.world import World


@pytest.fixture
def judge() -> Judge:
    """A publisher at QoS 2, and one at QoS 1."""
    return Judge({0: (0, 2), 1: (0, 1)})


def ear(
    judge: Judge, *indexes: int, publisher: int = 0, life: int = 0, ordered: bool = True
) -> Ear:
    """A subscriber that got these, and that had to get all."""
    ear = Ear("ear", 1, {publisher: Receipt(since=0)}, ordered)
    come(judge, ear, *indexes, publisher=publisher, life=life)
    return ear


def come(judge: Judge, ear: Ear, *indexes: int, publisher: int = 0, life: int = 0) -> None:
    for index in indexes:
        judge.came(ear, HEAD.pack(publisher, life, index, HEAD.size), 2 - publisher)


def test_complete_deliveries_break_nothing(judge: Judge) -> None:
    ears = [ear(judge, *range(10))]
    assert judge.lacks(ears, {0: 10}, {}) == judge.broken == []
    judge.settle(ears, {0: 10})
    assert judge.counts["compared"] == 10


@pytest.mark.parametrize(
    ("came", "what"),
    [
        ((0, 1, 2, 3, 4, 5, 6, 7, 8), "1, 9 to 9"),
        ((0, 1, 2, 3, 5, 7, 8, 9), "2, 4 to 6"),
        ((3, 4, 5, 6, 7, 8, 9), "3, 0 to 2"),
        ((3, 4, 5, 6, 1, 7), "4, 0 to 9"),
        ((12,), "10, 0 to 9"),
        ((), "10, 0 to 9"),
    ],
)
def test_a_lost_message_is_named(judge: Judge, came: tuple[int, ...], what: str) -> None:
    lacks = judge.lacks([ear(judge, *came)], {0: 10}, {})
    assert len(lacks) == 1
    assert (
        f"acknowledged and missing: publisher 0 (b0, QoS 2) to ear (b1): {what}, of 10" in lacks[0]
    )


def test_messages_that_are_not_owed_are_not_missed(judge: Judge) -> None:
    new = Ear("new", 1, {0: Receipt()})
    assert judge.lacks([new], {0: 10}, {}) == []
    new.receipts[0].since = 8
    come(judge, new, 9)
    assert "1, 8 to 8" in judge.lacks([new], {0: 10}, {})[0]
    assert judge.lacks([new], {0: 10}, {0: [(5, 9)]}) == []
    judge.settle([new], {0: 10})
    assert judge.lacks([new], {0: 10}, {}) == []


def test_an_excuse_covers_only_its_own_messages(judge: Judge) -> None:
    some = ear(judge, 0, 1, 5)
    assert "2, 2 to 9" in judge.lacks([some], {0: 10}, {0: [(6, 9), (3, 5)]})[0]


@pytest.mark.parametrize(
    ("came", "what"), [((0, 1, 1), 1), ((0, 2, 1, 1), 1), ((3, 2, 2), 1), ((0, 1), 0)]
)
def test_duplicates_are_seen_at_once(judge: Judge, came: tuple[int, ...], what: int) -> None:
    ear(judge, *came)
    assert [line.startswith("twice at QoS 2") for line in judge.broken] == [True] * what
    ear(judge, *came, publisher=1)
    assert len(judge.broken) == what
    assert judge.counts["again at QoS 1"] == what


@pytest.mark.parametrize("came", [(0, 2, 1), (3, 2), (0, 1, 9, 4)])
@pytest.mark.parametrize("life", [0, 1])
def test_order_is_checked_over_all_incarnations(
    judge: Judge, came: tuple[int, ...], life: int
) -> None:
    """What the broker of a publisher had before it died comes ahead of what is newer, too."""
    some = ear(judge, *came[:-1], life=life)
    assert not judge.disorder
    come(judge, some, came[-1])
    assert [(each.origin, each.broker, each.times) for each in judge.disorder.values()] == [
        (0, 1, 1)
    ]
    assert not judge.broken


def test_a_group_is_owed_one_receiver_and_no_order(judge: Judge) -> None:
    ear(judge, 2, 0, 1, ordered=False)
    assert not judge.disorder
    ear(judge, 2, 2, ordered=False)
    assert len(judge.broken) == 1


def test_a_wrong_qos_and_a_cut_payload_are_noticed(judge: Judge) -> None:
    some = ear(judge, 0)
    judge.came(some, HEAD.pack(0, 0, 1, 100), 1)
    assert [line.partition(":")[0] for line in judge.broken] == ["another QoS", "cut off"]


def test_acknowledgements_are_kept_as_one_number() -> None:
    sent = Sent(0, 0, 2)
    assert sent.sends(5) == 0
    for index in (0, 1, 3):
        sent.acknowledged(index)
    assert sent.mark() == 2
    sent.reborn(lost=False, wiped=False, excused=False)
    sent.sends(1)
    assert (sent.mark(), HEAD.unpack(sent.head(4, 9))[1], HEAD.unpack(sent.head(5, 9))[1]) == (
        2,
        0,
        1,
    )
    sent.reborn(lost=True, wiped=True, excused=True)
    assert (sent.mark(), sent.voids, sent.doubts) == (6, [(2, 3), (4, 6)], [(5, 6)])


def test_what_a_standby_has_is_owed() -> None:
    sent = Sent(0, 0, 2)
    sent.sends(2)
    sent.acknowledged(0)
    sent.reborn(lost=False, wiped=True, excused=False)
    assert (sent.mark(), sent.voids, sent.doubts) == (1, [], [])
    assert HEAD.unpack(sent.head(2, HEAD.size))[1] >> WIPES == 1


def test_the_judge_knows_how_far_other_brokers_are(judge: Judge) -> None:
    """What has reached anybody elsewhere, a wiped broker did not have alone."""
    here, there = ear(judge, *range(9)), ear(judge, 0, 1, 2, 7)
    here.broker = 0
    assert judge.reach([here, there], {0: (0, 9)}) == {0: 8}
    assert judge.reach([here, there], {0: (0, 6)}) == {0: 3}
    assert judge.reach([here], {0: (0, 9)}) == {0: 0}


def test_a_line_is_split_for_longer_than_a_ring() -> None:
    line, ring = World("line", 4), World("ring", 4)
    for world in (line, ring):
        world.set(10.0, down=[1], by=1)
        world.set(14.0, down=[1], by=-1)
        assert world.apart(0, 1, 20.0) == 4.0
    assert (line.apart(0, 3, 20.0), ring.apart(0, 3, 20.0)) == (4.0, 0.0)
    line.set(20.0, cut=[frozenset((2, 3))], by=1)
    assert line.apart(1, 3, 26.0) == 6.0
    line.set(26.5, cut=[frozenset((2, 3))], by=-1)
    assert line.apart(1, 3, 100.0) == 6.5
    line.forget()
    assert line.apart(1, 3, 100.0) == 0.0


def test_the_middle_of_a_line_joins_the_others() -> None:
    line = World("line", 3)
    assert [line.joined_without(broker) for broker in range(3)] == [True, False, True]
    line.set(0.0, cut=[frozenset((0, 1))], by=1)
    assert [line.joined_without(broker) for broker in range(3)] == [True, False, False]


@pytest.mark.parametrize("seed", range(20))
def test_any_run_can_be_planned(seed: int) -> None:
    import random

    like: Draw = draw(random.Random(seed), 40, 20_000)
    found: Plan = plan(like, list(range(like.brokers)), 8, 12)
    assert sum(speaker.rate for speaker in found.speakers if not speaker.large) == pytest.approx(
        like.rate, rel=0.01
    )
    assert {s.broker for s in found.speakers[:8]} == set(range(like.brokers))
    for listener in found.listeners:
        assert listener.kind == "plain" or listener.broker in found.homes
        assert set(listener.hears) <= {speaker.number for speaker in found.speakers}


def test_a_broker_without_its_data_is_another_one(judge: Judge) -> None:
    """Order is for what is of one of them: that of the first may come behind what is of the
    next."""
    sent = Sent(0, 0, 2)
    sent.sends(6)
    sent.reborn(lost=False, wiped=False, excused=False)
    assert HEAD.unpack(sent.head(6, HEAD.size))[1] == 1
    sent.reborn(lost=True, wiped=True, excused=True)
    assert HEAD.unpack(sent.head(6, HEAD.size))[1] == 2 | 1 << WIPES
    some = ear(judge, 0, 1, life=1)
    come(judge, some, 6, 7, life=2 | 1 << WIPES)
    come(judge, some, 2, 4, life=1)
    assert judge.counts["out of order"] == 0
    assert judge.counts[ANOTHER] == 2
    come(judge, some, 9, 8, life=2 | 1 << WIPES)
    assert judge.counts["out of order"] == 1


@pytest.mark.parametrize("crossed", [True, False])
def test_a_client_that_moves_across_a_split_may_get_a_message_twice(
    judge: Judge, crossed: bool
) -> None:
    rover = ear(judge, 0, 1)
    rover.crossed = crossed
    come(judge, rover, 0)
    assert (judge.counts[CROSSED], len(judge.broken)) == (crossed, not crossed)
