"""The states of a connection: whether its input is handled, and how it ends. Pure.

READING -WAIT-> WAITING -ANSWERED-> READING      a packet waits for the answer to an effect
READING -HOLD-> HELD -RELEASE-> READING          its subscribers, or a limit, are behind
WAITING -PEER_GONE-> ENDED_WAITING               what came before the end is still handled
any     -CLOSE-> CLOSING -GONE-> CLOSED          last bytes go out, what comes in is ignored

A connection may wait, and may have ended, while it is held.
"""

from __future__ import annotations

from typing import Final

from mqttree.broker.base.state_table import Table, TableEnum, look_up


class State(TableEnum):
    """What a connection does with the bytes that it receives. The words of a state are attributes
    of it."""

    READING = "reading"
    """Packets are handled as they come."""
    WAITING = "waiting"
    """A packet waits for the answer to an effect; what comes behind it is kept."""
    HELD = "held"
    """Nothing is read until its subscribers have caught up."""
    WAITING_HELD = "waiting held"
    """Both."""
    ENDED = "ended"
    """The peer has gone; what it sent before is being handled."""
    ENDED_WAITING = "ended waiting"
    """The same; a packet waits for the answer to an effect."""
    ENDED_HELD = "ended held"
    """The same; it waits until its subscribers have caught up."""
    ENDED_WAITING_HELD = "ended waiting held"
    """The same; both."""
    CLOSING = "closing"
    """It is closed once the last bytes have gone out; what comes in is ignored."""
    CLOSING_HELD = "closing held"
    """The same; nothing is read."""
    CLOSED = "closed"
    """It is gone."""

    waiting: bool
    held: bool
    ended: bool
    closing: bool
    closed: bool
    over: bool
    """Nothing that comes is handled any more."""


# An enumeration that is compiled cannot do this while it makes its members.
for _state in State:
    _words = _state.value.split()
    _state.waiting = "waiting" in _words
    _state.held = "held" in _words
    _state.ended = "ended" in _words
    _state.closing = "closing" in _words
    _state.closed = "closed" in _words
    _state.over = _state.closing or _state.closed


class Input(TableEnum):
    """What happens to a connection."""

    WAIT = "wait"
    """A packet needs the answer to an effect."""
    ANSWERED = "answered"
    """That answer has come."""
    HOLD = "hold"
    """Its peer is to wait for subscribers, the disk or other clients."""
    RELEASE = "release"
    """It need not wait any more."""
    PEER_GONE = "peer gone"
    """The peer has closed it while a packet waited for an answer."""
    CLOSE = "close"
    """This broker closes it."""
    GONE = "gone"
    """The driver says that it is closed, or it is closed at once."""


class Action(TableEnum):
    """What a connection does when an input has brought it to the next state."""

    NOTHING = "nothing"
    STOP_READING = "have the transport stop reading"
    READ_AGAIN = "handle what was kept, and have the transport read again"
    DROP_KEPT_OUTPUT = "drop the output that waits: there is no peer any more"
    SAY_LAST_WORDS = "send what is queued, then have the transport close"
    LET_GO = "drop all that is kept, and release those who wait for it"


_OPEN: Final = (State.READING, State.WAITING, State.HELD, State.WAITING_HELD)
_ENDED: Final = (State.ENDED, State.ENDED_WAITING, State.ENDED_HELD, State.ENDED_WAITING_HELD)
_CLOSING: Final = (State.CLOSING, State.CLOSING_HELD)
_LIVING: Final = (*_OPEN, *_ENDED)


def _with(state: State, *, waiting: bool | None = None, held: bool | None = None) -> State:
    """Return the state that differs from another one in these words alone."""
    waits = state.waiting if waiting is None else waiting
    holds = state.held if held is None else held
    for other in State:
        if (other.waiting, other.held) == (waits, holds) and (
            (other.ended, other.closing, other.closed) == (state.ended, state.closing, state.closed)
        ):
            return other
    raise AssertionError(state)


TRANSITIONS: Final[Table[State, Input, Action]] = {
    # What follows a packet in the same turn may have to wait, too, or the answer may have come at
    # once. A connection that is being closed waits for nothing.
    **{(s, Input.WAIT): (Action.NOTHING, _with(s, waiting=True)) for s in _LIVING},
    **{(s, Input.ANSWERED): (Action.NOTHING, _with(s, waiting=False)) for s in _LIVING},
    **{
        (s, given): (Action.NOTHING, s)
        for s in (*_CLOSING, State.CLOSED)
        for given in (Input.WAIT, Input.ANSWERED)
    },
    # Several reasons may hold a connection, and one that is not held is released for another one.
    **{
        (s, Input.HOLD): (
            (Action.NOTHING, s) if s.held else (Action.STOP_READING, _with(s, held=True))
        )
        for s in (*_LIVING, *_CLOSING)
    },
    **{
        (s, Input.RELEASE): (
            (Action.READ_AGAIN, _with(s, held=False)) if s.held else (Action.NOTHING, s)
        )
        for s in (*_LIVING, *_CLOSING)
    },
    (State.CLOSED, Input.HOLD): (Action.NOTHING, State.CLOSED),
    (State.CLOSED, Input.RELEASE): (Action.NOTHING, State.CLOSED),
    # If no packet waits there is nothing to handle, and the end is GONE.
    (State.WAITING, Input.PEER_GONE): (Action.DROP_KEPT_OUTPUT, State.ENDED_WAITING),
    (State.WAITING_HELD, Input.PEER_GONE): (Action.DROP_KEPT_OUTPUT, State.ENDED_WAITING_HELD),
    # Several reasons to close may come one after the other; the first one counts.
    **{
        (s, Input.CLOSE): (
            Action.SAY_LAST_WORDS,
            State.CLOSING_HELD if s.held else State.CLOSING,
        )
        for s in _LIVING
    },
    **{(s, Input.CLOSE): (Action.NOTHING, s) for s in (*_CLOSING, State.CLOSED)},
    # The driver may report an end more than once.
    **{(s, Input.GONE): (Action.LET_GO, State.CLOSED) for s in (*_LIVING, *_CLOSING)},
    (State.CLOSED, Input.GONE): (Action.NOTHING, State.CLOSED),
}
"""(state, input) -> (action, next state). A pair that is not here cannot come."""


def transition(state: State, given: Input) -> tuple[Action, State]:
    """Return what to do, and the next state. Raises ImpossibleInputError."""
    return look_up(TRANSITIONS, state, given, "a connection")
