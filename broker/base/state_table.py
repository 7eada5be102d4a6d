"""What all state machines have in common that are tables: one entry for each pair of a state and an
input that can come in it."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar


class TableEnum(Enum):
    """States, inputs or actions of a table."""

    # A member is equal to itself alone; that of Enum hashes its name, by a call in Python.
    __hash__ = object.__hash__


StateT = TypeVar("StateT", bound=Enum)
InputT = TypeVar("InputT", bound=Enum)
ActionT = TypeVar("ActionT")

Table = dict[tuple[StateT, InputT], tuple[ActionT, StateT]]
"""(state, input) -> (action, next state)."""


class ImpossibleInputError(Exception):
    """An input that cannot come in a state: a fault of this broker's, never of a peer's or a
    disk's."""

    def __init__(self, given: Enum, machine: str, state: Enum) -> None:
        """`given`: the input; `machine`: what it came to, such as "a connection"; `state`: of
        that."""
        super().__init__(f"{given.value!r} while {machine} is {state.value!r}")


def look_up(
    table: Table[StateT, InputT, ActionT], state: StateT, given: InputT, machine: str
) -> tuple[ActionT, StateT]:
    """Return what to do about the input `given`, and the next state.

    `table`: the transitions; `state`: the present one; `machine`: whose, such as "a connection".

    Raises:
        ImpossibleInputError: the input cannot come in this state.
    """
    found = table.get((state, given))
    if found is None:
        raise ImpossibleInputError(given, machine, state)
    return found
