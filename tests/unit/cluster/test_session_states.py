"""Takeovers and merges of sessions go through their states as their tables say, whatever comes."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.cluster.sessions import pending_merge, pending_takeover
from mqttree.broker.cluster.sessions.pending_merge import Merge
from mqttree.broker.cluster.sessions.pending_takeover import PendingTakeover
from mqttree.broker.cluster.sessions.takeover import ANSWERS
from mqttree.broker.cluster.sessions.takeover_messages import (
    COMING,
    ENDED,
    SESSION_ANSWER,
)
from tests.kit.state_tables import check_table
from tests.unit.cluster.test_pending_takeover import STAMP, Taking, state_of

MACHINES = [pending_takeover, pending_merge]


def machine(module: ModuleType, state: Enum) -> Any:
    """A takeover, or a merge, in this state."""
    if module is pending_merge:
        return Merge("k", b"h" * 8, 1, 2, state, 0.0)  # type: ignore[arg-type]
    found = PendingTakeover(SimpleNamespace(), "k", 1, b"h" * 8, 0.0)  # type: ignore[arg-type]
    found.state = state  # type: ignore[assignment]
    return found


def step(pending: Any, module: ModuleType, happens: Enum, now: float) -> Any:
    if module is pending_merge:
        return pending.step(happens)
    return pending.step(happens, now)


def pairs() -> Iterator[tuple[ModuleType, Enum, Enum]]:
    for module in MACHINES:
        for state in module.State:
            for happens in module.Input:
                yield module, state, happens


@pytest.mark.parametrize(("module", "state", "happens"), list(pairs()))
def test_every_input_in_every_state_follows_the_table(
    module: ModuleType, state: Enum, happens: Enum
) -> None:
    """What is in the table leads to its state and action, all else to nothing."""
    pending = machine(module, state)
    expected = module.TRANSITIONS.get((state, happens))
    action = step(pending, module, happens, 5.0)
    assert (action, pending.state) == (expected or (None, state))
    if module is pending_takeover:
        assert pending.since == (5.0 if pending.state is not state else 0.0)


@pytest.mark.parametrize("module", MACHINES)
def test_the_tables_are_whole(module: ModuleType) -> None:
    """Every state is reached, every one comes to an end, every input and action is used."""
    table, over = module.TRANSITIONS, module.State.OVER
    assert not any(state is over for state, _ in table)
    check_table(table, module.Action, [next(iter(module.State))], last=over)
    for state in module.State:
        assert state is over or any(table[key][1] is over for key in table if key[0] is state)


def test_an_input_that_a_state_does_not_expect_is_counted() -> None:
    """A holder that says that it has forgotten a session that is still to come changes nothing."""
    taking = Taking(lambda: state_of([], 0))
    taking.say(SESSION_ANSWER, COMING)
    taking.say(SESSION_ANSWER, ENDED)
    assert not taking.world.counters.session_takeovers_unexpected
    taking.pull.step(pending_takeover.Input.COMPLETE, 1.0)
    taking.say(SESSION_ANSWER, COMING)
    assert taking.pull.state is pending_takeover.State.OVER
    assert taking.world.counters.session_takeovers_unexpected == 1


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(ANSWERS)), st.binary(max_size=9), st.integers(0, 3)),
        max_size=6,
    )
)
def test_whatever_a_holder_answers_the_client_gets_a_connack(
    answers: list[tuple[int, bytes, int]],
) -> None:
    """Let in, refused, or its connection is closed: no takeover is left behind."""
    taking = Taking(lambda: state_of(["a", "b/+"], 2))
    for answer, rest, turns in answers:
        taking.say(SESSION_ANSWER, answer, rest)
        for _ in range(turns):
            taking.step()
    for _ in range(60):
        taking.world.now += 0.5
        taking.step()
    assert not taking.world.node.cluster.takeover._pending
    assert taking.pull.state is pending_takeover.State.OVER
    assert taking.pull.stamp > STAMP
    conn = taking.pull.handshake.conn
    assert conn.closed or conn.closing or not conn.waiting
