"""The states of an image that a standby has of another broker (docs/decisions/0062), and what each
input does in them: one table. Pure.

LOADING -ENDED-> VALID -DROPPED, REFUSED-> GONE
LOADING -LINK_LOST, DROPPED, REFUSED-> GONE
VALID -PROMOTED-> PROMOTED -DROPPED, REFUSED-> GONE
"""

from __future__ import annotations

from mqttree.broker.base.state_table import Table, TableEnum, look_up


class State(TableEnum):
    """What an image is good for."""

    LOADING = "loading"
    """The snapshot is not complete."""
    VALID = "valid"
    """It is all that its owner had at the last frame."""
    PROMOTED = "promoted"
    """Its owner cannot be reached, or could not: its sessions are given away, and no frame changes
    it any more."""
    GONE = "gone"
    """It is dropped."""


class Input(TableEnum):
    """What happens to an image."""

    ENDED = "ended"
    """The last frame of the snapshot is applied."""
    LINK_LOST = "link lost"
    """No more frames come."""
    DROPPED = "dropped"
    """Its owner has another standby, or none, or begins the stream again."""
    PROMOTED = "promoted"
    """Its owner cannot be reached."""
    REFUSED = "refused"
    """A frame does not follow, cannot be read, or takes too much memory."""


class Action(TableEnum):
    """What the standby does when an input has brought an image to the next state."""

    NOTHING = "nothing"
    FORGET = "forget the image"
    REFUSE = "forget the image, and tell its owner"


TRANSITIONS: Table[State, Input, Action] = {
    (State.LOADING, Input.ENDED): (Action.NOTHING, State.VALID),
    (State.LOADING, Input.LINK_LOST): (Action.FORGET, State.GONE),
    **{(s, Input.LINK_LOST): (Action.NOTHING, s) for s in (State.VALID, State.PROMOTED)},
    **{
        (s, Input.PROMOTED): (Action.NOTHING, State.PROMOTED) for s in (State.VALID, State.PROMOTED)
    },
    **{(s, Input.DROPPED): (Action.FORGET, State.GONE) for s in State if s is not State.GONE},
    **{(s, Input.REFUSED): (Action.REFUSE, State.GONE) for s in State if s is not State.GONE},
}
"""(state, input) -> (action, next state). A pair that is not here cannot come."""


def transition(state: State, given: Input) -> tuple[Action, State]:
    """Return what to do, and the next state. Raises ImpossibleInputError."""
    return look_up(TRANSITIONS, state, given, "an image")
