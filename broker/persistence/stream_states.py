"""The states of a broker's stream (docs/decisions/0062), and what each input does in them: one
table. Pure.

ALONE -BEGUN-> SYNCING -COMPLETE-> SYNCED -STANDBY_LOST-> LACKING -COMPLETE-> SYNCED
SYNCED -COMPLETE, ONE_LOST-> SYNCED
SYNCING -COMING_LOST-> ALONE
LACKING -WAITED-> ALONE
SYNCED, LACKING -STOOD_STILL-> DOUBT -CLEARED-> SYNCED
DOUBT -CLEARED_LATE-> LACKING
DOUBT -FENCED, WAITED-> ALONE
SYNCED, LACKING -FENCED-> ALONE
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
    """One standby has all, or two: output waits for each. Another one may be sent a snapshot."""
    LACKING = "lacking"
    """The standby is lost, and output waits a moment longer for the next one."""
    DOUBT = "doubt"
    """This broker stood still, and its standby may have given its sessions away: all output
    waits."""


class Input(TableEnum):
    """What happens to a stream."""

    BEGUN = "begun"
    """A neighbour is sent a snapshot from now on: the coming standby."""
    COMPLETE = "complete"
    """The coming standby has acknowledged all of that."""
    COMING_LOST = "coming standby lost"
    """The coming standby is gone, is silent, is too far behind, or has dropped the image."""
    STANDBY_LOST = "standby lost"
    """The only standby is."""
    ONE_LOST = "one of two lost"
    """One of two standbys is."""
    WAITED = "waited"
    """Output has waited long enough for another standby, or for a fence."""
    STOOD_STILL = "stood still"
    """This broker did not run for so long that others may have taken it for dead."""
    CLEARED = "cleared"
    """The standby has given nothing away."""
    CLEARED_LATE = "cleared late"
    """The same, and it is lost."""
    FENCED = "fenced"
    """The standby has, or may have, and what it says of that is carried out."""


class Action(TableEnum):
    """What the stream does when an input has brought it to the next state."""

    NOTHING = "nothing"
    TAKE = "post the coming standby as well, or in the place of one, whose image is dropped"
    SHRINK = "post the standby that is left, then let output go, and begin another at once"
    LOOK = "begin another standby at once"
    OPEN = "post that there is no standby, then let output go"
    STOP = "stop all output and all clients, and ask the standby"
    GO_ON = "let output and clients go"
    GO_ON_LACKING = "let clients go, and begin another standby at once"
    LEAVE = "drop the stream, post that there is no standby, then let output and clients go"


TRANSITIONS: Table[State, Input, Action] = {
    (State.ALONE, Input.BEGUN): (Action.NOTHING, State.SYNCING),
    (State.SYNCING, Input.COMPLETE): (Action.TAKE, State.SYNCED),
    (State.SYNCING, Input.COMING_LOST): (Action.NOTHING, State.ALONE),
    (State.SYNCED, Input.BEGUN): (Action.NOTHING, State.SYNCED),
    (State.SYNCED, Input.COMPLETE): (Action.TAKE, State.SYNCED),
    (State.SYNCED, Input.COMING_LOST): (Action.NOTHING, State.SYNCED),
    (State.SYNCED, Input.STANDBY_LOST): (Action.LOOK, State.LACKING),
    (State.SYNCED, Input.ONE_LOST): (Action.SHRINK, State.SYNCED),
    (State.LACKING, Input.BEGUN): (Action.NOTHING, State.LACKING),
    (State.LACKING, Input.COMPLETE): (Action.TAKE, State.SYNCED),
    (State.LACKING, Input.COMING_LOST): (Action.NOTHING, State.LACKING),
    (State.LACKING, Input.WAITED): (Action.OPEN, State.ALONE),
    (State.DOUBT, Input.STANDBY_LOST): (Action.NOTHING, State.DOUBT),
    (State.DOUBT, Input.ONE_LOST): (Action.NOTHING, State.DOUBT),
    (State.DOUBT, Input.CLEARED): (Action.GO_ON, State.SYNCED),
    (State.DOUBT, Input.CLEARED_LATE): (Action.GO_ON_LACKING, State.LACKING),
    (State.DOUBT, Input.WAITED): (Action.LEAVE, State.ALONE),
    **{
        (state, Input.STOOD_STILL): (Action.STOP, State.DOUBT)
        for state in (State.SYNCED, State.LACKING, State.DOUBT)
    },
    **{
        (state, Input.FENCED): (Action.LEAVE, State.ALONE)
        for state in (State.SYNCED, State.LACKING, State.DOUBT)
    },
}
"""(state, input) -> (action, next state). A pair that is not here cannot come."""


def transition(state: State, given: Input) -> tuple[Action, State]:
    """Return what to do, and the next state. Raises ImpossibleInputError."""
    return look_up(TRANSITIONS, state, given, "the stream")
