"""The states of a broker's stream (docs/decisions/0062), and what each input does in them: one
table. Pure.

ALONE -BEGUN-> SYNCING -COMPLETE-> SYNCED -STANDBY_LOST-> LACKING -COMPLETE-> SYNCED
SYNCING -COMING_LOST-> ALONE
LACKING -WAITED-> ALONE
"""

from __future__ import annotations

from mqttree.broker.base.state_table import Table, TableEnum, look_up


class State(TableEnum):
    """Whether the output gate waits for a standby."""

    ALONE = "alone"
    """There is no standby: output waits for the disk only."""
    SYNCING = "syncing"
    """The same; a standby is being sent a snapshot."""
    SYNCED = "synced"
    """A standby has all: output waits for it. Another one may be sent a snapshot."""
    LACKING = "lacking"
    """The standby is lost, and output waits a moment longer for the next one."""


class Input(TableEnum):
    """What happens to a stream."""

    BEGUN = "begun"
    """A neighbour is sent a snapshot from now on: the coming standby."""
    COMPLETE = "complete"
    """The coming standby has acknowledged all of that."""
    COMING_LOST = "coming standby lost"
    """The coming standby is gone, is silent, is too far behind, or has dropped the image."""
    STANDBY_LOST = "standby lost"
    """The standby is."""
    WAITED = "waited"
    """Output has waited long enough for another standby."""


class Action(TableEnum):
    """What the stream does when an input has brought it to the next state."""

    NOTHING = "nothing"
    TAKE = "post the coming standby as the standby, and drop the image of the one before"
    LOOK = "begin another standby at once"
    OPEN = "post that there is no standby, then let output go"


TRANSITIONS: Table[State, Input, Action] = {
    (State.ALONE, Input.BEGUN): (Action.NOTHING, State.SYNCING),
    (State.SYNCING, Input.COMPLETE): (Action.TAKE, State.SYNCED),
    (State.SYNCING, Input.COMING_LOST): (Action.NOTHING, State.ALONE),
    (State.SYNCED, Input.BEGUN): (Action.NOTHING, State.SYNCED),
    (State.SYNCED, Input.COMPLETE): (Action.TAKE, State.SYNCED),
    (State.SYNCED, Input.COMING_LOST): (Action.NOTHING, State.SYNCED),
    (State.SYNCED, Input.STANDBY_LOST): (Action.LOOK, State.LACKING),
    (State.LACKING, Input.BEGUN): (Action.NOTHING, State.LACKING),
    (State.LACKING, Input.COMPLETE): (Action.TAKE, State.SYNCED),
    (State.LACKING, Input.COMING_LOST): (Action.NOTHING, State.LACKING),
    (State.LACKING, Input.WAITED): (Action.OPEN, State.ALONE),
}
"""(state, input) -> (action, next state). A pair that is not here cannot come."""


def transition(state: State, given: Input) -> tuple[Action, State]:
    """Return what to do, and the next state. Raises ImpossibleInputError."""
    return look_up(TRANSITIONS, state, given, "the stream")
