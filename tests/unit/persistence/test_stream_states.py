"""The tables of a stream and of an image: all pairs of state and input."""

from __future__ import annotations

from itertools import product

import pytest

from mqttree.broker.base.state_table import ImpossibleInputError
from mqttree.broker.persistence import stream_states
from mqttree.broker.persistence.stream_states import Action, Input, State


@pytest.mark.parametrize(("state", "given"), list(product(State, Input)))
def test_output_waits_for_a_standby_from_taking_one_to_giving_up(
    state: State, given: Input
) -> None:
    if (state, given) not in stream_states.TRANSITIONS:
        with pytest.raises(ImpossibleInputError, match=given.value):
            stream_states.transition(state, given)
        return
    action, after = stream_states.transition(state, given)
    waits = (State.SYNCED, State.LACKING, State.DOUBT)
    assert (action is Action.TAKE) == (given is Input.COMPLETE)
    assert (after in waits and state not in waits) <= (action is Action.TAKE)
    assert (state in waits and after not in waits) == (action in (Action.OPEN, Action.LEAVE))
    assert (after is State.DOUBT and state is not after) <= (action is Action.STOP)
