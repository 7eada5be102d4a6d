"""How far a broker is with finding the others (Overlays 3, Fig. 2), as a table: in this state, upon
this, do that, and be there.

The states say for people and tests how far this broker is, and what `Td` is about; nothing waits
for them. The paper dials when Td is over and sends messages when the tree stands. Here a broker is
dialled as soon as it is heard of, its link takes part in the tree at once, and each link carries
messages when both ends agree on it: a start would only be slower by Td otherwise.
"""

from __future__ import annotations

from enum import Enum, StrEnum, auto


class State(StrEnum):
    """Where a broker is."""

    DISCOVERY = "discovery"
    """Others are looked for, for Td since the newest of them was met."""
    FORMING = "forming"
    """The tree is being formed (the paper's OTC, overlay tree creation)."""
    RUNTIME = "runtime"
    """The tree stands."""
    LEFT = "left"
    """Goodbye was said: nothing is done or listened to any more."""


class Input(Enum):
    """What happens."""

    MET = auto()
    """A broker that was not known, or a new incarnation of one."""
    TD_OVER = auto()
    AGREED = auto()
    """The tree is settled."""
    DISAGREED = auto()
    LEAVE = auto()


class Action(Enum):
    """What is done about it."""

    BEGIN_DISCOVERY = auto()
    """Note since when others are looked for."""
    EXTEND_TD = auto()
    """Wait for Td from now on, and not without end since DISCOVERY began."""
    LOOK_AT_TREE = auto()
    """The tree may be settled already: take AGREED if so."""
    SAY_GOODBYE = auto()


class ImpossibleError(Exception):
    """An input that cannot happen in this state."""


_BEGIN = (Action.BEGIN_DISCOVERY, Action.EXTEND_TD), State.DISCOVERY
_LEAVE = (Action.SAY_GOODBYE,), State.LEFT

TRANSITIONS: dict[tuple[State, Input], tuple[tuple[Action, ...], State]] = {
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
"""What is not in it cannot happen: Td is over in DISCOVERY alone, and LEFT takes no input."""


def step(state: State, given: Input) -> tuple[tuple[Action, ...], State]:
    """Return what to do, in order, once the state is the returned one.

    Raises:
        ImpossibleError: it is not in the table.
    """
    found = TRANSITIONS.get((state, given))
    if found is None:
        raise ImpossibleError(f"{given.name} in state {state.value}")
    return found
