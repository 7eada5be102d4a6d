"""What a broker remembers of clients that it may send to other brokers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.state_table import ImpossibleInputError
from mqttree.broker.cluster.placement.redirect_states import TRANSITIONS, Action, Input, State
from mqttree.broker.cluster.placement.redirect_table import (
    DAY,
    LASTING,
    MAX_REMEMBERED,
    Interest,
    RedirectTable,
)

AWAY = (Action.REFUSE, Action.DISCONNECT)


def table_in(state: State, now: float = 0.0) -> RedirectTable:
    """A table whose client "c" is in a state."""
    table = RedirectTable(10)
    paths = {
        State.NEW: [],
        State.WAITING: [Input.CONNECT_KNOWN],
        State.SETTLING: [Input.CONNECT],
        State.ASKED: [Input.CONNECT, Input.SETTLED],
        State.KNOWN: [Input.CONNECT, Input.SETTLED, Input.LATER],
        State.SENT: [Input.CHOSEN],
        State.KEPT: [Input.CHOSEN, Input.CONNECT],
    }
    for given_input in paths[state]:
        table.step("c", given_input, now)
    assert table.state("c", now) is state
    return table


def test_a_connect_is_always_let_in_or_asked_about() -> None:
    for state in State:
        for connect in (Input.CONNECT, Input.CONNECT_KNOWN):
            action, _ = TRANSITIONS[state, connect]
            assert action in (Action.LET_IN, Action.LOOK, Action.ASK, Action.KEEP)


def test_who_is_sent_away_is_remembered_and_nobody_else() -> None:
    for (before, _), (action, after) in TRANSITIONS.items():
        assert (action in AWAY) is (after is State.SENT and before is not State.SENT)


def test_who_was_sent_away_and_comes_back_is_served_whatever_follows() -> None:
    for state in (State.SENT, State.KEPT):
        for (before, _), (action, after) in TRANSITIONS.items():
            if before is state:
                assert action not in (*AWAY, Action.ASK, Action.LOOK)
                assert after in (State.SENT, State.KEPT)


@given(st.lists(st.tuples(st.sampled_from(Input), st.floats(0.0, DAY / 3)), max_size=60))
def test_a_broker_sends_a_client_away_once_a_day_at_most(
    steps: list[tuple[Input, float]],
) -> None:
    table = RedirectTable(1)
    sent: list[float] = []
    now = 0.0
    for given_input, pause in steps:
        now += pause
        if (table.state("c", now), given_input) in TRANSITIONS:
            before = table.state("c", now)
            if table.step("c", given_input, now) in AWAY:
                assert before not in LASTING
                sent.append(now)
    assert all(later - earlier >= DAY for earlier, later in pairwise(sent))


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(Input), st.floats(0.0, 9e4))))
def test_the_table_keeps_its_bound_and_forgets_after_a_day(
    steps: list[tuple[int, Input, float]],
) -> None:
    table = RedirectTable(3)
    now = 0.0
    for number, given_input, pause in steps:
        now += pause
        client = f"c{number}"
        state = table.state(client, now)
        if (state, given_input) in TRANSITIONS and table.takes(client, now):
            table.step(client, given_input, now)
        assert len(table) <= 3
    for number in range(5):
        assert table.state(f"c{number}", now + DAY) not in LASTING


@pytest.mark.parametrize("state", sorted(LASTING, key=lambda each: each.value))
def test_what_lasts_ends_after_a_day(state: State) -> None:
    table = table_in(state, 5.0)
    assert table.state("c", 5.0 + DAY - 1) is state
    assert table.state("c", 5.0 + DAY) is State.NEW
    assert len(table) == 0


def test_the_day_begins_again_when_the_client_comes_back() -> None:
    table = table_in(State.SENT, 0.0)
    table.step("c", Input.CONNECT, DAY - 1)
    assert table.state("c", 2 * DAY - 2) is State.KEPT
    assert table.state("c", 2 * DAY - 1) is State.NEW


def test_a_full_table_takes_those_that_it_knows_alone() -> None:
    table = RedirectTable(2)
    table.step("a", Input.CHOSEN, 0.0)
    table.step("b", Input.CONNECT, 1.0)
    assert table.takes("a", 2.0)
    assert not table.takes("c", 2.0)
    table.step("b", Input.GONE, 2.0)
    assert table.takes("c", 2.0)
    table.step("c", Input.CONNECT, 2.0)
    assert not table.takes("d", 2.0)
    assert table.takes("d", DAY)


def test_an_answer_that_is_too_late_is_known_by_its_number() -> None:
    table = table_in(State.ASKED)
    first = table.begin("c")
    assert table.awaits("c", first)
    second = table.begin("c")
    assert not table.awaits("c", first)
    assert table.awaits("c", second)
    table.step("c", Input.PAYS, 0.0)
    assert not table.awaits("c", second)
    assert not table.awaits("other", 1)


def test_few_topics_are_remembered_for_the_next_connect() -> None:
    table = table_in(State.KNOWN)
    few = Interest(("a", "b/+"), ("x",))
    table.remember("c", few)
    assert table.interest("c") is few
    table.remember("c", Interest(("a" * (MAX_REMEMBERED + 1),)))
    assert not table.interest("c")
    table.remember("other", few)
    assert not table.interest("other")
    table.remember("c", few)
    table.step("c", Input.CONNECT, 1.0)
    assert table.interest("c") is few
    table.step("c", Input.PAYS, 1.0)
    assert not table.interest("c")


def test_an_impossible_input_is_a_fault_of_the_broker() -> None:
    with pytest.raises(ImpossibleInputError, match="while a client to redirect is 'new'"):
        RedirectTable(1).step("c", Input.PAYS, 0.0)
