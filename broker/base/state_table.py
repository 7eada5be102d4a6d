"""What all state machines have in common that are tables: one entry for each pair of a state and an
input that can come in it."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar


class TableEnum(Enum):
    """States, inputs or actions of a table."""

    # A member is equal to itself alone; that of Enum hashes its name, by a call in Python.
    __hash__ = object.__hash__


StateT = TypeVar("StateT")
InputT = TypeVar("InputT")
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
