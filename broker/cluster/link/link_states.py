"""The states of a link, and what each input does in them: one table. Pure.

DIALLED, CALLED -CONNECT-> PROVING -UNPROVEN-> AGREEING
PROVING, AGREEING -AGREED-> BLOCKED -FORWARDS-> FORWARDING -REPLAYED-> LIVE
FORWARDING, LIVE -BLOCKS-> BLOCKED
LIVE -TAKEN_OUT-> FORWARDING
BLOCKED -OVERFLOWED-> BLOCKED_BEHIND -DRAINED-> BLOCKED
FORWARDING, LIVE -OVERFLOWED-> FORWARDING_BEHIND -DRAINED-> FORWARDING
BLOCKED_BEHIND -FORWARDS-> FORWARDING_BEHIND -BLOCKS-> BLOCKED_BEHIND
each state -LOST-> CLOSED
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mqttree.broker.base.state_table import Table, TableEnum
from mqttree.broker.wire.errors import ProtocolViolation


class State(TableEnum):
    """Where a link has got to: in its handshake, then in the tree, then live."""

    DIALLED = "dialled"
    """This broker dialled and has sent its CONNECT."""
    CALLED = "called"
    """The other broker dialled, and its CONNECT is here."""
    PROVING = "proving"
    """Both CONNECTs are exchanged; the other broker has to prove what it says."""
    AGREEING = "agreeing"
    """The same where brokers prove nothing: the dialler's CONNACK is still to come."""
    BLOCKED = "blocked"
    """The handshake is complete; the tree does not let the link forward."""
    FORWARDING = "forwarding"
    """The tree lets it forward; what the neighbour lacks has not all been sent."""
    LIVE = "live"
    """Each message is sent as it comes."""
    BLOCKED_BEHIND = "blocked and behind"
    """As BLOCKED; its queue overflowed and has not drained yet."""
    FORWARDING_BEHIND = "forwarding and behind"
    """As FORWARDING; its queue overflowed and has not drained yet."""
    CLOSED = "closed"
    """The link is gone."""


class Input(TableEnum):
    """What happens to a link."""

    CONNECT = "CONNECT"
    AUTH = "AUTH"
    CONNACK = "CONNACK"
    """With reason code 0."""
    REFUSAL = "CONNACK with an error"
    PUBLISH = "PUBLISH"
    PINGREQ = "PINGREQ"
    PINGRESP = "PINGRESP"
    DISCONNECT = "DISCONNECT"
    OTHER = "another packet"
    """One that no broker sends on a link."""
    UNPROVEN = "nothing to prove"
    """The called broker has answered the CONNECT, and neither end has a secret or a key."""
    AGREED = "agreement"
    """The other broker is authenticated, and this is the link to it that stays."""
    FORWARDS = "forwarding in the tree"
    BLOCKS = "blocking in the tree"
    REPLAYED = "the end of a replay"
    """The neighbour has been sent what it lacked."""
    TAKEN_OUT = "removal from the live links"
    """This broker drains, and the neighbour sends its messages elsewhere."""
    OVERFLOWED = "an overflow"
    """More waits for the link than may wait."""
    DRAINED = "an empty queue"
    LOST = "the end of the connection"


class Action(TableEnum):
    """What the link does when an input has brought it to the next state."""

    IGNORE = "nothing"
    INTRODUCE = "read who the other broker is, and answer"
    VERIFY = "verify the other broker's proof"
    AGREE = "agree, unless another link to this broker stays"
    COME_UP = "say that the link is up"
    READ = "read the message"
    ANSWER = "take the records, and answer"
    MEASURE = "take the answer to a mark or to a measurement of the round trip"
    REFUSED = "log why the other broker refuses, and close"
    CLOSE = "close, as the other broker does"
    CHANGE = "go by the new state"
    END = "say that the link is gone"


HANDSHAKE: Final = (State.DIALLED, State.CALLED, State.PROVING, State.AGREEING)

UP: Final[tuple[State, ...]] = tuple(
    state for state in State if state not in HANDSHAKE and state is not State.CLOSED
)
"""The handshake is complete."""
FORWARDING: Final[tuple[State, ...]] = (State.FORWARDING, State.LIVE, State.FORWARDING_BEHIND)
"""The link is in the tree, at both ends."""
BEHIND: Final[tuple[State, ...]] = (State.BLOCKED_BEHIND, State.FORWARDING_BEHIND)
"""The queue overflowed and has not drained yet."""


class Standing(NamedTuple):
    """What a state says of the link, for modules that send on it."""

    up: bool
    """Its handshake is complete."""
    forwarding: bool
    """It is in the tree, at both ends."""
    live: bool
    """Each message is sent as it comes."""
    behind: bool
    """Its queue overflowed and has not drained yet."""


STANDING: Final = {
    state: Standing(state in UP, state in FORWARDING, state is State.LIVE, state in BEHIND)
    for state in State
}


def _table() -> Table[State, Input, Action]:
    table: Table[State, Input, Action] = {
        (State.DIALLED, Input.CONNECT): (Action.INTRODUCE, State.PROVING),
        (State.CALLED, Input.CONNECT): (Action.INTRODUCE, State.PROVING),
        (State.PROVING, Input.UNPROVEN): (Action.CHANGE, State.AGREEING),
        (State.PROVING, Input.AUTH): (Action.VERIFY, State.PROVING),
        (State.AGREEING, Input.CONNACK): (Action.AGREE, State.AGREEING),
        (State.PROVING, Input.AGREED): (Action.COME_UP, State.BLOCKED),
        (State.AGREEING, Input.AGREED): (Action.COME_UP, State.BLOCKED),
        (State.BLOCKED, Input.FORWARDS): (Action.CHANGE, State.FORWARDING),
        (State.BLOCKED_BEHIND, Input.FORWARDS): (Action.CHANGE, State.FORWARDING_BEHIND),
        (State.FORWARDING, Input.BLOCKS): (Action.CHANGE, State.BLOCKED),
        (State.LIVE, Input.BLOCKS): (Action.CHANGE, State.BLOCKED),
        (State.FORWARDING_BEHIND, Input.BLOCKS): (Action.CHANGE, State.BLOCKED_BEHIND),
        (State.FORWARDING, Input.REPLAYED): (Action.CHANGE, State.LIVE),
        (State.LIVE, Input.TAKEN_OUT): (Action.CHANGE, State.FORWARDING),
        (State.BLOCKED, Input.OVERFLOWED): (Action.CHANGE, State.BLOCKED_BEHIND),
        (State.FORWARDING, Input.OVERFLOWED): (Action.CHANGE, State.FORWARDING_BEHIND),
        (State.LIVE, Input.OVERFLOWED): (Action.CHANGE, State.FORWARDING_BEHIND),
        (State.BLOCKED_BEHIND, Input.DRAINED): (Action.CHANGE, State.BLOCKED),
        (State.FORWARDING_BEHIND, Input.DRAINED): (Action.CHANGE, State.FORWARDING),
    }
    for state in UP:
        table[state, Input.PUBLISH] = (Action.READ, state)
        table[state, Input.PINGREQ] = (Action.ANSWER, state)
        table[state, Input.PINGRESP] = (Action.MEASURE, state)
        # The end that came up first hears that the other one has agreed.
        table[state, Input.CONNACK] = (Action.IGNORE, state)
    for state in HANDSHAKE + UP:
        # The end that came up first may hear that the other one has another link to it.
        table[state, Input.REFUSAL] = (Action.REFUSED, state)
        table[state, Input.DISCONNECT] = (Action.CLOSE, state)
        table[state, Input.LOST] = (Action.END, State.CLOSED)
        # The tree forgets the link before this one to the same broker.
        table.setdefault((state, Input.BLOCKS), (Action.IGNORE, state))
    for given in Input:
        table[State.CLOSED, given] = (Action.IGNORE, State.CLOSED)
    return table


TRANSITIONS: Final = _table()
"""(state, input) -> (action, next state). What is not in it is a protocol error and closes the
link."""


def transition(state: State, given: Input) -> tuple[Action, State]:
    """Return what to do about an input, and the next state.

    Raises:
        ProtocolViolation: the input has no place in this state.
    """
    try:
        return TRANSITIONS[state, given]
    except KeyError:
        raise ProtocolViolation(
            f"{given.value} has no place on a link that is {state.value}"
        ) from None
