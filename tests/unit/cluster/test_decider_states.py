"""The table of what decides where clients connect."""

from __future__ import annotations

from itertools import product

from mqttree.broker.cluster.placement.decider_states import TRANSITIONS, Action, Input, State


def test_every_input_has_an_action_in_every_state() -> None:
    assert TRANSITIONS.keys() == set(product(State, Input))
    assert {action for action, _ in TRANSITIONS.values()} == set(Action)


def test_questions_wait_only_while_rates_are_gathered() -> None:
    for (state, given), (action, after) in TRANSITIONS.items():
        if action in (Action.GATHER, Action.WAIT):
            assert given is Input.ASKED
            assert after is State.GATHERING
        if state is State.GATHERING and after is not State.GATHERING:
            assert action in (Action.ANSWER_ALL, Action.REFUSE)
