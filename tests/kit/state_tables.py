"""Whether a table of states is whole."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TypeVar

from mqttree.broker.base.state_table import Table

StateT = TypeVar("StateT", bound=Enum)
InputT = TypeVar("InputT", bound=Enum)
ActionT = TypeVar("ActionT")


def check_table(
    table: Table[StateT, InputT, ActionT],
    actions: Iterable[ActionT],
    first: list[StateT],
    last: StateT | None = None,
) -> None:
    """Fail unless each of the `actions` is used and the walk is whole (`check_walk`)."""
    assert {action for action, _ in table.values()} == set(actions)
    check_walk(table, first, last)


def check_walk(
    table: Table[StateT, InputT, ActionT], first: list[StateT], last: StateT | None = None
) -> None:
    """Fail unless each state is reached from the `first` ones, each but the `last` one is left, and
    each input is used."""
    inputs = {given for _, given in table}
    assert inputs == set(type(next(iter(inputs))))
    reached, waiting = set(first), list(first)
    while waiting:
        state = waiting.pop()
        for (before, _), (_, after) in table.items():
            if before is state and after not in reached:
                reached.add(after)
                waiting.append(after)
    assert reached == set(type(first[0]))
    left = {before for (before, _), (_, after) in table.items() if after is not before}
    assert left == reached - {last}
