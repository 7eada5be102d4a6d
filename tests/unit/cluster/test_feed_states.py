"""An ordered feed goes through its states as its table says, whatever happens."""

from __future__ import annotations

from collections import deque

import pytest

from mqttree.broker.base.state_table import ImpossibleInputError
from mqttree.broker.cluster.delivery.feed_states import TRANSITIONS, Input, State
from mqttree.broker.cluster.delivery.ordered_feed import OrderedFeed
from tests.unit.cluster.test_gap_recovery import NEAR, feed


def means_what_it_says(found: OrderedFeed) -> None:
    """Fail unless what is looked at for each message is what the state says."""
    assert (found.source is not None) is (found.state is State.FED)
    assert (found.behind is not None) is (found.state is State.RELEASING)
    assert found.unordered is (found.state is State.UNORDERED)


def paths() -> dict[State, list[Input]]:
    """The shortest way to each state, from the first one."""
    found: dict[State, list[Input]] = {State.ASKING: []}
    waiting = deque(found)
    while waiting:
        state = waiting.popleft()
        for (before, happens), (_, after) in TRANSITIONS.items():
            if before is state and after not in found:
                found[after] = [*found[state], happens]
                waiting.append(after)
    return found


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("happens", list(Input))
def test_every_input_leads_to_the_tables_state_or_is_impossible(
    state: State, happens: Input
) -> None:
    found, _ = feed()
    for before in paths()[state]:
        found.step(before, NEAR if before is Input.ANSWERED else None)
        means_what_it_says(found)
    assert found.state is state
    if (state, happens) in TRANSITIONS:
        action = found.step(happens, NEAR if happens is Input.ANSWERED else None)
        assert (action, found.state) == TRANSITIONS[state, happens]
    else:
        with pytest.raises(ImpossibleInputError):
            found.step(happens)
        assert found.state is state
    means_what_it_says(found)


@pytest.mark.parametrize("state", list(State))
def test_a_doubt_makes_every_feed_ask(state: State) -> None:
    """Nothing that comes is trusted to be complete after it."""
    assert TRANSITIONS[state, Input.DOUBT][1] is State.ASKING
