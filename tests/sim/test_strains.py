"""Federations under load and faults at once: seeds that once showed faults.

SEEDS=n runs n seeds instead of the default, FIRST=k begins with seed k.
"""

from __future__ import annotations

import os

import pytest

from mqttree.broker.base.limits import Limits
from tests.sim.strains import Strain, run_strain
from tests.sim.world import World

SEEDS = int(os.environ.get("SEEDS", "2"))
FIRST = int(os.environ.get("FIRST", "5"))

ONCE_BAD = {
    (7, "fast"): (
        "12,000 messages that an answer had brought were logged again when they came over a link"
    ),
}


@pytest.mark.parametrize(("seed", "load"), ONCE_BAD)
def test_seeds_that_once_failed_keep_all_promises(seed: int, load: str) -> None:
    assert Strain(seed, load=load).run().violations == []


@pytest.fixture
def roomless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log without room for large messages, as there is none any more when they are some seconds
    older, or more."""
    monkeypatch.setattr(World, "limits", Limits(log_large_time=0.0))


@pytest.mark.usefixtures("roomless")
def test_a_message_that_left_the_log_may_still_arrive_over_a_slow_link() -> None:
    """It waits for a slow link as its way changes; the origin's neighbour has acknowledged it,
    large ones took its place."""
    assert run_strain(97000292).violations == []


NEW_WAYS = {
    170000358: (
        "flooding: a broker joins, and its link is the better way: the next message is there first"
    ),
    170001868: "flooding: the same in a ring",
    172000017: (
        "mixed: what a session had got was in the log no more as it was added to another one"
    ),
    183000279: "a log was larger than it may be until the next message",
}


@pytest.mark.parametrize("seed", NEW_WAYS)
def test_large_messages_do_not_empty_the_log_at_once(seed: int) -> None:
    """The way changes while they wait for slow links, and what they pushed out was still on the old
    one."""
    assert run_strain(seed).violations == []


def test_an_answer_that_keeps_coming_is_waited_for() -> None:
    """20 MB, for which three brokers ask over one slow link: its pieces come for longer than one
    waits for an answer."""
    assert run_strain(161000117).violations == []


def test_a_dial_begun_in_a_split_may_fail_after_it() -> None:
    """The split lasts three seconds, and the dial that was begun in it three more: what came
    meanwhile waits for that, too."""
    assert run_strain(152000176).violations == []


@pytest.mark.usefixtures("roomless")
@pytest.mark.parametrize("seed", [150000611, 150000753, 160000134, 160001636])
def test_newer_messages_wait_for_an_older_one_on_a_slow_link(seed: int) -> None:
    """A slow link is not taken any more; of two large messages the log has the second alone, and
    the first is on that link. As it gets to the next broker, the way has changed there, too."""
    assert run_strain(seed).violations == []


@pytest.mark.usefixtures("roomless")
def test_a_message_that_comes_by_another_path_is_not_waited_for() -> None:
    """It had left the origin's log, and was waited for although it was here: 15 messages never
    came."""
    assert run_strain(161001243).violations == []


def test_the_last_message_of_a_killed_incarnation_comes_before_the_next_ones() -> None:
    """Its neighbours have one message more than its journal: that one is delivered, and the next
    incarnation's behind it."""
    assert run_strain(98100057).violations == []


def test_merged_sessions_get_once_what_their_broker_lacked() -> None:
    """What was published between the begins of their subscriptions is missing at their broker, and
    comes; the rest comes once."""
    assert run_strain(97010332).violations == []


ROAMED = {
    312002523: (
        "a broker was killed before all had come to it that a session had had at its former broker"
    ),
    313005162: (
        "a session came, and what had passed its broker before was taken for delivered to it, "
        "as an older one was added"
    ),
    5500149: (
        "a client was back at a broker that knew of its newest session, which came slowly, "
        "and went on with an older one"
    ),
    5500385: (
        "the older of two old sessions was added first; "
        "another one was asked for where it had been before"
    ),
    7710005: (
        "a client began a new session as its own came slowly, "
        "and what came late over the same links was taken for new"
    ),
    7710146: (
        "large messages had pushed out of the log what a session had got, "
        "which was taken for what it had not"
    ),
}


@pytest.mark.usefixtures("roomless")
@pytest.mark.parametrize("seed", ROAMED)
def test_takeovers_over_slow_links_keep_all_promises(seed: int) -> None:
    assert run_strain(seed).violations == []


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_random_strains_keep_all_promises(seed: int) -> None:
    assert run_strain(seed).violations == []
