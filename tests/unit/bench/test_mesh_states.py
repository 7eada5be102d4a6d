"""The states of a mesh as a table: every state with every input."""

from __future__ import annotations

from itertools import product

import pytest

from mqttree.bench.federator.mesh_states import TRANSITIONS, Action, Input, State, step
from mqttree.broker.base.state_table import ImpossibleInputError
from tests.kit.state_tables import check_table

OF_A_FOLLOWER = {Input.CORE_SILENT, Input.NEWER, Input.NEARER, Input.ANOTHER_PARENT}


def test_the_table_is_whole() -> None:
    check_table(TRANSITIONS, Action, [State.NO_CORE])


@pytest.mark.parametrize(("state", "given"), list(product(State, Input)))
def test_every_state_and_input_has_its_outcome(state: State, given: Input) -> None:
    possible = state is State.FOLLOWER or given not in OF_A_FOLLOWER
    if state is State.NO_CORE and given is Input.NO_NEWS:
        possible = False
    assert ((state, given) in TRANSITIONS) is possible
    if not possible:
        with pytest.raises(ImpossibleInputError, match="a mesh"):
            step(state, given)
        return
    action, following = step(state, given)
    # Whoever begins to follow another core stops being one; whoever resigns has none.
    assert (action is Action.FOLLOW) is (given is Input.BETTER_CORE)
    assert (following is State.CORE) is (
        action is Action.BECOME_CORE
        or (state is State.CORE and given in (Input.BEACON, Input.NO_NEWS))
    )
    assert (following is State.NO_CORE) is (
        action in (Action.RESIGN, Action.FORGET_CORE)
        or (state is State.NO_CORE and given is Input.INTEREST_OVER)
    )
