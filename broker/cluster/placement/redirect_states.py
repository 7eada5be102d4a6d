"""The states of one client at one broker that may send it to another one, and what leads from one
to the next (`redirect_table` keeps them, `redirector` does what the table says).

| state    | meaning |
|---|---|
| NEW      | nothing is remembered of the client |
| WAITING  | its CONNECT waits for the answer where it should be |
| SETTLING | it is connected; it is asked about when its subscriptions have come |
| ASKED    | it is connected, and asked about |
| KNOWN    | another broker is better; it is told at its next CONNECT, or it would lose something |
| SENT     | it was sent away |
| KEPT     | it came back from there: it is served here |

KNOWN, SENT and KEPT last a day. A client leaves SENT by coming back only, and KEPT not at all: so
each broker sends a client away once a day at most, and no circle of brokers goes round twice.
"""

from __future__ import annotations

from typing import Final

from mqttree.broker.base.state_table import Table, TableEnum


class State(TableEnum):
    """What is remembered of a client."""

    NEW = "new"
    WAITING = "waiting"
    SETTLING = "settling"
    ASKED = "asked"
    KNOWN = "known"
    SENT = "sent"
    KEPT = "kept"


class Input(TableEnum):
    """What happens to it."""

    CONNECT = "a CONNECT, and its topics are not known"
    CONNECT_KNOWN = "a CONNECT, and its topics are known"
    SETTLED = "its subscriptions have had time to come"
    PAYS = "another broker is better, and it may be sent there now"
    LATER = "another broker is better, and it may be sent there at its next CONNECT"
    STAY = "it stays, or no answer came"
    CHOSEN = "the broker that decides wants it to be elsewhere"
    GONE = "its connection has ended before it was looked at or answered"


class Action(TableEnum):
    """What is to be done then."""

    NOTHING = "nothing"
    LET_IN = "let it in"
    LOOK = "let it in, and look at its subscriptions soon"
    ASK = "ask where it should be"
    REFUSE = "refuse its CONNECT with 0x9C"
    DISCONNECT = "disconnect it with 0x9C"
    KEEP = "let it in: it has come back"


TRANSITIONS: Final[Table[State, Input, Action]] = {
    (State.NEW, Input.CONNECT): (Action.LOOK, State.SETTLING),
    (State.NEW, Input.CONNECT_KNOWN): (Action.ASK, State.WAITING),
    (State.NEW, Input.CHOSEN): (Action.DISCONNECT, State.SENT),
    # Another connection of the same client, while the first one waits: the first one is let in
    # when its answer comes, and is taken over.
    (State.WAITING, Input.CONNECT): (Action.LOOK, State.SETTLING),
    (State.WAITING, Input.CONNECT_KNOWN): (Action.LOOK, State.SETTLING),
    (State.WAITING, Input.PAYS): (Action.REFUSE, State.SENT),
    (State.WAITING, Input.STAY): (Action.LET_IN, State.NEW),
    (State.WAITING, Input.CHOSEN): (Action.NOTHING, State.WAITING),
    (State.WAITING, Input.GONE): (Action.NOTHING, State.NEW),
    (State.SETTLING, Input.CONNECT): (Action.LET_IN, State.SETTLING),
    (State.SETTLING, Input.CONNECT_KNOWN): (Action.LET_IN, State.SETTLING),
    (State.SETTLING, Input.SETTLED): (Action.ASK, State.ASKED),
    (State.SETTLING, Input.CHOSEN): (Action.DISCONNECT, State.SENT),
    (State.SETTLING, Input.GONE): (Action.NOTHING, State.NEW),
    (State.ASKED, Input.CONNECT): (Action.LOOK, State.SETTLING),
    (State.ASKED, Input.CONNECT_KNOWN): (Action.LOOK, State.SETTLING),
    (State.ASKED, Input.PAYS): (Action.DISCONNECT, State.SENT),
    (State.ASKED, Input.LATER): (Action.NOTHING, State.KNOWN),
    (State.ASKED, Input.STAY): (Action.NOTHING, State.NEW),
    (State.ASKED, Input.CHOSEN): (Action.NOTHING, State.ASKED),
    (State.ASKED, Input.GONE): (Action.NOTHING, State.NEW),
    (State.KNOWN, Input.CONNECT): (Action.ASK, State.WAITING),
    (State.KNOWN, Input.CONNECT_KNOWN): (Action.ASK, State.WAITING),
    (State.KNOWN, Input.CHOSEN): (Action.NOTHING, State.KNOWN),
    (State.SENT, Input.CONNECT): (Action.KEEP, State.KEPT),
    (State.SENT, Input.CONNECT_KNOWN): (Action.KEEP, State.KEPT),
    (State.SENT, Input.CHOSEN): (Action.NOTHING, State.SENT),
    (State.KEPT, Input.CONNECT): (Action.LET_IN, State.KEPT),
    (State.KEPT, Input.CONNECT_KNOWN): (Action.LET_IN, State.KEPT),
    (State.KEPT, Input.CHOSEN): (Action.NOTHING, State.KEPT),
}
