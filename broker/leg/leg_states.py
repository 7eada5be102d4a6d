"""The states of a leg. Pure.

WAITING -DUE-> DIALLING -DIALLED-> CONNECTING -ACCEPTED-> ENTERING
   ^               ^                   |                     | ENTERED
   |               +------CLEANED------+                     v
   |                                      UP <-SUBSCRIBED- SUBSCRIBING
   |                                                            |
   +-------- LOST, at any of these: by either side -------------+

The foreign broker lets the leg in first (ACCEPTED), as what its CONNACK says counts for the session
here; then this broker does (ENTERED). A session that is begun with Clean Start ends with its
connection in MQTT 3.1.1, and with a restart of Mosquitto in MQTT 5. So a leg that needs a new one
connects once to end the old one (CLEANED), and once more to stay.

A lazy leg that has nothing to do is RESTING: UP -IDLE-> RESTING -NEEDED-> DIALLING. A leg of which
another gateway of the federation has the same name is in STANDBY while that one is active:
any state -YIELD-> STANDBY -TURN-> DIALLING. One that is to start once ends with its connection
(ENDED).
"""

from __future__ import annotations

from typing import Final

from mqttree.broker.base.state_table import Table, TableEnum, look_up


class State(TableEnum):
    """How far a leg is."""

    WAITING = "waiting"
    """It has no connection, and dials at a certain time."""
    DIALLING = "dialling"
    """The driver opens a connection."""
    CONNECTING = "connecting"
    """The foreign broker has the leg's CONNECT."""
    ENTERING = "entering"
    """It has accepted; this broker has the leg's CONNECT."""
    SUBSCRIBING = "subscribing"
    """Both have accepted, and messages cross; a SUBSCRIBE is not answered."""
    UP = "up"
    """Messages cross, of all filters that neither broker refuses."""
    RESTING = "resting"
    """It has no connection as nothing is to be sent, and dials when messages wait here (lazy)."""
    STANDBY = "standby"
    """Another gateway has the leg of this name. It dials when that one is gone."""
    STOPPED = "stopped"
    """It was ended, and does not dial any more."""


CROSSES: Final = (State.SUBSCRIBING, State.UP)
"""States in which messages cross."""
ENTERED: Final = (State.ENTERING, State.SUBSCRIBING, State.UP)
"""States in which this broker has the leg's CONNECT."""


class Input(TableEnum):
    """What happens to a leg."""

    DUE = "due"
    """It is time to dial."""
    DIALLED = "dialled"
    """The connection stands."""
    ACCEPTED = "accepted"
    """CONNACK of the foreign broker, without a failure."""
    CLEANED = "cleaned"
    """The same, to a CONNECT that has only ended the session there."""
    ENTERED = "entered"
    """CONNACK of this broker, without a failure."""
    SUBSCRIBED = "subscribed"
    """Both have answered SUBSCRIBE."""
    LOST = "lost"
    """The dial failed, a broker refused or closed, or one was silent for too long."""
    IDLE = "idle"
    """Nothing has crossed a lazy leg for its idle timeout."""
    NEEDED = "needed"
    """Messages wait here for a lazy leg."""
    YIELD = "yield"
    """Another gateway of this name is to be active."""
    TURN = "turn"
    """No other gateway of this name is to be active."""
    ENDED = "ended"
    """As LOST, to a leg that is not dialled again (start once)."""
    STOP = "stop"
    """This broker ends, or the leg is not wanted any more."""


class Action(TableEnum):
    """What a leg does when an input has brought it to the next state."""

    DIAL = "have the driver open a connection"
    GREET = "send CONNECT to the foreign broker"
    ENTER = "send CONNECT to this broker"
    DIAL_AGAIN = "close the connection, and have the driver open another one"
    SUBSCRIBE = "subscribe at both, and pass messages on"
    CARRY = "say that it is up, and send PINGREQ from now on"
    BACK_OFF = "close both sides, and choose when to dial again"
    LEAVE = "say goodbye to both sides, and close them"


_ALIVE: Final = (State.DIALLING, State.CONNECTING, State.ENTERING, State.SUBSCRIBING, State.UP)

TRANSITIONS: Final[Table[State, Input, Action]] = {
    (State.WAITING, Input.DUE): (Action.DIAL, State.DIALLING),
    (State.DIALLING, Input.DIALLED): (Action.GREET, State.CONNECTING),
    (State.CONNECTING, Input.ACCEPTED): (Action.ENTER, State.ENTERING),
    (State.CONNECTING, Input.CLEANED): (Action.DIAL_AGAIN, State.DIALLING),
    (State.ENTERING, Input.ENTERED): (Action.SUBSCRIBE, State.SUBSCRIBING),
    (State.SUBSCRIBING, Input.SUBSCRIBED): (Action.CARRY, State.UP),
    **{(state, Input.LOST): (Action.BACK_OFF, State.WAITING) for state in _ALIVE},
    **{(state, Input.ENDED): (Action.LEAVE, State.STOPPED) for state in _ALIVE},
    (State.UP, Input.IDLE): (Action.LEAVE, State.RESTING),
    (State.RESTING, Input.NEEDED): (Action.DIAL, State.DIALLING),
    **{
        (state, Input.YIELD): (Action.LEAVE, State.STANDBY)
        for state in (State.WAITING, State.RESTING, *_ALIVE)
    },
    (State.STANDBY, Input.TURN): (Action.DIAL, State.DIALLING),
    **{
        (state, Input.STOP): (Action.LEAVE, State.STOPPED)
        for state in (State.WAITING, State.RESTING, State.STANDBY, *_ALIVE)
    },
    # The dial was under way when the leg was stopped, or another gateway became active.
    (State.STOPPED, Input.DIALLED): (Action.LEAVE, State.STOPPED),
    (State.STANDBY, Input.DIALLED): (Action.LEAVE, State.STANDBY),
}
"""(state, input) -> (action, next state). A pair that is not here cannot come."""


def transition(state: State, given: Input) -> tuple[Action, State]:
    """Return what to do, and the next state. Raises ImpossibleInputError."""
    return look_up(TRANSITIONS, state, given, "a leg")
