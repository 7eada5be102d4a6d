"""The states of what is known of foreign clients' interest. Pure.

UNKNOWN -ANSWERED-> KNOWN -FAILED, OVERFLOWED-> FAILED, CROWDED
   |                  ^                             |
   |                  +---------ANSWERED------------+
   +--FAILED, OVERFLOWED-> FAILED, CROWDED
"""

from __future__ import annotations

from typing import Final

from mqttree.broker.base.state_table import Table, TableEnum, look_up


class State(TableEnum):
    """What is known."""

    UNKNOWN = "unknown"
    """Nothing yet: all messages that the rules let out are sent."""
    KNOWN = "known"
    """What foreign clients want: that is sent."""
    FAILED = "failed"
    """Nothing, as the last question was not answered: all is sent."""
    CROWDED = "too many filters"
    """More filters than a leg subscribes to: all is sent."""


class Input(TableEnum):
    """What is heard of the interest."""

    ANSWERED = "answered"
    """The filters of foreign clients."""
    FAILED = "failed"
    """No answer, or none that can be used."""
    OVERFLOWED = "overflowed"
    """Too many filters, or some that this broker refuses."""


class Action(TableEnum):
    """What follows from it."""

    NARROW = "send what is wanted, and nothing else from now on"
    NARROW_LATER = "do so in a while, as it may change again"
    UPDATE = "send what is wanted by now"
    WIDEN = "send all from now on"
    NOTHING = "go on sending all"


TRANSITIONS: Final[Table[State, Input, Action]] = {
    (State.UNKNOWN, Input.ANSWERED): (Action.NARROW, State.KNOWN),
    (State.KNOWN, Input.ANSWERED): (Action.UPDATE, State.KNOWN),
    (State.FAILED, Input.ANSWERED): (Action.NARROW_LATER, State.KNOWN),
    (State.CROWDED, Input.ANSWERED): (Action.NARROW_LATER, State.KNOWN),
    (State.UNKNOWN, Input.FAILED): (Action.WIDEN, State.FAILED),
    (State.KNOWN, Input.FAILED): (Action.WIDEN, State.FAILED),
    (State.FAILED, Input.FAILED): (Action.NOTHING, State.FAILED),
    (State.CROWDED, Input.FAILED): (Action.WIDEN, State.FAILED),
    (State.UNKNOWN, Input.OVERFLOWED): (Action.WIDEN, State.CROWDED),
    (State.KNOWN, Input.OVERFLOWED): (Action.WIDEN, State.CROWDED),
    (State.FAILED, Input.OVERFLOWED): (Action.WIDEN, State.CROWDED),
    (State.CROWDED, Input.OVERFLOWED): (Action.NOTHING, State.CROWDED),
}
"""(state, input) -> (action, next state)."""


def transition(state: State, given: Input) -> tuple[Action, State]:
    """Return what to do, and the next state. Raises ImpossibleInputError."""
    return look_up(TRANSITIONS, state, given, "the interest of foreign clients")
