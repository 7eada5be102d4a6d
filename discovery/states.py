"""How far a broker is with finding the others (Overlays 3, Fig. 2), as a table: in this state, upon
this, do that, and be there.

The states say for people and tests how far this broker is, and what `Td` is about; nothing waits
for them. The paper dials when Td is over and sends messages when the tree stands. Here a broker is
dialled as soon as it is heard of, its link takes part in the tree at once, and each link carries
messages when both ends agree on it: a start would only be slower by Td otherwise.
"""

from __future__ import annotations

from enum import StrEnum

from mqttree.broker.base.state_table import ImpossibleInputError, Table, TableEnum


class State(StrEnum):
    """What this broker does to find others: looks for them, forms the tree, runs, or has left."""

    DISCOVERY = "discovery"
    """This broker looks for others, for Td since it found the newest of them."""
    FORMING = "forming"
    """The tree is being formed (the paper's OTC, overlay tree creation)."""
    RUNTIME = "runtime"
    """The tree is formed."""
    LEFT = "left"
    """This broker has left: it does nothing, and ignores inputs."""


class Input(TableEnum):
    """What changes the state of discovery: a time, the tree, or a member that comes."""

    MET = "met"
    """A new broker, or a new incarnation of one."""
    TD_OVER = "Td over"
    AGREED = "agreed"
    """The tree is settled."""
    DISAGREED = "disagreed"
    LEAVE = "leave"


class Action(TableEnum):
    """What a change of the state asks the caller to do, in this order."""

    BEGIN_DISCOVERY = "begin discovery"
    """Note when the search for others began."""
    EXTEND_TD = "extend Td"
    """Wait for Td from now on, up to a limit since DISCOVERY began."""
    LOOK_AT_TREE = "look at the tree"
    """The tree may be settled already: if so, take the input AGREED."""
    SAY_GOODBYE = "say goodbye"


_BEGIN = (Action.BEGIN_DISCOVERY, Action.EXTEND_TD), State.DISCOVERY
_LEAVE = (Action.SAY_GOODBYE,), State.LEFT

TRANSITIONS: Table[State, Input, tuple[Action, ...]] = {
    (State.DISCOVERY, Input.MET): ((Action.EXTEND_TD,), State.DISCOVERY),
    (State.DISCOVERY, Input.TD_OVER): ((Action.LOOK_AT_TREE,), State.FORMING),
    (State.DISCOVERY, Input.AGREED): ((), State.DISCOVERY),
    (State.DISCOVERY, Input.DISAGREED): ((), State.DISCOVERY),
    (State.DISCOVERY, Input.LEAVE): _LEAVE,
    (State.FORMING, Input.MET): _BEGIN,
    (State.FORMING, Input.AGREED): ((), State.RUNTIME),
    (State.FORMING, Input.DISAGREED): ((), State.FORMING),
    (State.FORMING, Input.LEAVE): _LEAVE,
    (State.RUNTIME, Input.MET): _BEGIN,
    (State.RUNTIME, Input.AGREED): ((), State.RUNTIME),
    (State.RUNTIME, Input.DISAGREED): ((), State.FORMING),
    (State.RUNTIME, Input.LEAVE): _LEAVE,
}
"""Pairs that are missing cannot happen: Td is over in DISCOVERY only, and LEFT takes no input."""


def step(state: State, given: Input) -> tuple[tuple[Action, ...], State]:
    """Return the actions, in order, and the next state, which holds when they are carried out.

    Raises ImpossibleInputError: the pair is not in the table.
    """
    found = TRANSITIONS.get((state, given))
    if found is None:
        raise ImpossibleInputError(given, "discovery", state)
    return found
