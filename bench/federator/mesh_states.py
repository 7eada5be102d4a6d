"""What a broker is in the mesh of one topic, as a table: in this state, upon this, do that, and be
there."""

from __future__ import annotations

from mqttree.broker.base.state_table import Table, TableEnum, look_up


class State(TableEnum):
    """How a broker stands to the core of the mesh."""

    NO_CORE = "without a core"
    """It knows of no core that is alive: publications end here."""
    CORE = "core"
    """It is the core, and announces itself."""
    FOLLOWER = "follower"
    """It follows another broker's announcements. Whether it is a member of the mesh is another
    question: it is while it has interest, or a child."""


class Input(TableEnum):
    """What changes the state: a client, a time, or an announcement of another core."""

    BEACON = "beacon"
    """A client of this broker is interested in the topic."""
    INTEREST_OVER = "interest over"
    """No client is interested any more."""
    CORE_SILENT = "core silent"
    """The core that it follows has not been heard of for three intervals."""
    BETTER_CORE = "better core"
    """An announcement of the first core, or of one with a smaller id."""
    NEWER = "newer announcement"
    """The next one of the core that it follows."""
    NEARER = "nearer parent"
    """The same one, on a shorter way."""
    ANOTHER_PARENT = "another parent"
    """The same one, on another way that is as short."""
    NO_NEWS = "no news"
    """An older one, a longer way, a core with a larger id."""


class Action(TableEnum):
    """What a change of the state asks the caller to do."""

    NOTHING = "nothing"
    BECOME_CORE = "become core"
    """Forget parents and children, and begin to announce."""
    RESIGN = "resign"
    """Stop announcing. The protocol has no message that says so."""
    FORGET_CORE = "forget core"
    ANSWER = "answer"
    """Tell parents that do not know it yet that this broker is a member, if it is."""
    FOLLOW = "follow"
    """Stop announcing, forget the children, adopt the core, relay, answer."""
    RENEW = "renew"
    """Take the sender as the only parent, relay, answer."""
    MOVE_NEARER = "move nearer"
    """The same, but relay only in the variant that relays nearer ones."""
    ADD_PARENT = "add parent"
    """Keep the sender as a further parent if there is room or its id is smaller; answer."""


_IGNORE = Action.NOTHING

TRANSITIONS: Table[State, Input, Action] = {
    (State.NO_CORE, Input.BEACON): (Action.BECOME_CORE, State.CORE),
    (State.NO_CORE, Input.INTEREST_OVER): (_IGNORE, State.NO_CORE),
    (State.NO_CORE, Input.BETTER_CORE): (Action.FOLLOW, State.FOLLOWER),
    (State.CORE, Input.BEACON): (_IGNORE, State.CORE),
    (State.CORE, Input.INTEREST_OVER): (Action.RESIGN, State.NO_CORE),
    (State.CORE, Input.BETTER_CORE): (Action.FOLLOW, State.FOLLOWER),
    (State.CORE, Input.NO_NEWS): (_IGNORE, State.CORE),
    (State.FOLLOWER, Input.BEACON): (Action.ANSWER, State.FOLLOWER),
    (State.FOLLOWER, Input.INTEREST_OVER): (_IGNORE, State.FOLLOWER),
    (State.FOLLOWER, Input.CORE_SILENT): (Action.FORGET_CORE, State.NO_CORE),
    (State.FOLLOWER, Input.BETTER_CORE): (Action.FOLLOW, State.FOLLOWER),
    (State.FOLLOWER, Input.NEWER): (Action.RENEW, State.FOLLOWER),
    (State.FOLLOWER, Input.NEARER): (Action.MOVE_NEARER, State.FOLLOWER),
    (State.FOLLOWER, Input.ANOTHER_PARENT): (Action.ADD_PARENT, State.FOLLOWER),
    (State.FOLLOWER, Input.NO_NEWS): (_IGNORE, State.FOLLOWER),
}
"""Pairs that are missing cannot happen: only a follower has a core that can fall silent, or be
announced again, and any announcement is of a better core than none."""


def step(state: State, given: Input) -> tuple[Action, State]:
    """Return what to do, and the next state.

    Raises:
        ImpossibleInputError: the pair is not in the table.
    """
    return look_up(TRANSITIONS, state, given, "a mesh")
