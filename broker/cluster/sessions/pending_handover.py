"""One session that another broker takes from this one: its states, and what leads from one to the
next (`handover` does what the table says).

| state    | what is here |
|---|---|
| NONE     | no session of this client, and no note of one |
| HERE     | the session; no broker takes it |
| ENCODING | the session, which is encoded for a taker in steps |
| ENCODED  | the session, and its bytes; the taker fetches them in parts |
| COMPLETE | the same, and the bytes of the rest: what arrived since the session was encoded |
| GIVEN    | no session, but a note of the broker that has taken it |

The session is this broker's until GIVEN; then it is the taker's. The note stays until all brokers
know that the taker has the session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mqttree.broker.base.state_table import Table, TableEnum
from mqttree.broker.cluster.link.version_vector import Vector
from mqttree.broker.cluster.sessions.session_parts import Sending

if TYPE_CHECKING:
    from mqttree.broker.core.message import Name


class State(TableEnum):
    """Where the handover of a client's session has got to."""

    NONE = 1
    HERE = 2
    ENCODING = 3
    ENCODED = 4
    COMPLETE = 5
    GIVEN = 6


class Input(TableEnum):
    """What happens to a handover."""

    CONNECTED = "a request of a newer connection came, and the older one is open here"
    FOREIGN = "a request of another user came"
    OUTDATED = "a request came, and the session has a newer connection or a newer taker"
    ELSEWHERE = "a request came, and another broker has the session, or a newer one"
    ABSENT = "a request came, and no other broker is known to have a session"
    EARLY = "a request came, and messages for the session are still under way"
    BEGIN = "a taker wants the session, which is not encoded for it"
    MORE = "the taker wants parts of what is encoded, or is being encoded"
    REST = "the taker wants the rest for the first time"
    UNKNOWN = "a taker wants the rest of a session that is not encoded for it"
    DONE = "the taker says that it has the session"
    CLEAN = "the client begins a new session at the broker that asks"
    ENCODED = "the session has been encoded"
    RESTARTED = "the taker was restarted, and its clock was ahead before"
    CAME = "the client has connected here"
    ENDED = "the session has ended here"
    EXPIRED = "the taker has asked for nothing for too long, or its bytes have to make room"
    POSTED = "the taker has announced to all brokers that it has the session"
    FOUND = "all brokers have had the time to hear of it"


class Action(TableEnum):
    """What is to be done then."""

    READ_CLIENT = "answer COMING, and read the client's connection to its end before the request"
    SAY_FOREIGN = "answer FOREIGN"
    SAY_NEWER = "answer NEWER"
    SAY_MOVED = "answer MOVED, with the broker that has it"
    SAY_NOTHING = "answer NOTHING"
    SAY_ENDED = "answer ENDED"
    SAY_COMING = "answer COMING: the taker asks again"
    BEGIN_AGAIN = "answer MOVED, with this broker: the taker has to ask for the session again"
    ENCODE = "encode the session for the taker"
    SEND_LATER = "answer COMING, and send the first parts when the session is encoded"
    SEND_FIRST = "send the first parts, if the taker has asked for them meanwhile"
    SEND = "send parts"
    SEND_REST = "encode the rest, and send its first parts"
    GIVE = "end the session here, note who has it, and answer ENDED"
    END = "end the session here, publish its will, and answer NOTHING"
    DROP = "drop what is encoded"
    DROP_NOTE = "drop the note of who has taken the session"
    DROP_NOTE_SOON = "drop the note when all brokers have had the time to hear of the taker"
    WITHDRAW = "drop the note, and withdraw the session's directory entry"


def _table() -> Table[State, Input, Action]:
    table: Table[State, Input, Action] = {
        (State.NONE, Input.ELSEWHERE): (Action.SAY_MOVED, State.NONE),
        (State.NONE, Input.ABSENT): (Action.SAY_NOTHING, State.NONE),
        (State.ENCODING, Input.MORE): (Action.SEND_LATER, State.ENCODING),
        (State.ENCODING, Input.ENCODED): (Action.SEND_FIRST, State.ENCODED),
        (State.ENCODED, Input.MORE): (Action.SEND, State.ENCODED),
        (State.ENCODED, Input.REST): (Action.SEND_REST, State.COMPLETE),
        (State.COMPLETE, Input.MORE): (Action.SEND, State.COMPLETE),
        (State.GIVEN, Input.FOREIGN): (Action.SAY_FOREIGN, State.GIVEN),
        (State.GIVEN, Input.OUTDATED): (Action.SAY_NEWER, State.GIVEN),
        (State.GIVEN, Input.ELSEWHERE): (Action.SAY_MOVED, State.GIVEN),
        (State.GIVEN, Input.ABSENT): (Action.SAY_NOTHING, State.GIVEN),
        (State.GIVEN, Input.DONE): (Action.SAY_ENDED, State.GIVEN),
        (State.GIVEN, Input.CAME): (Action.DROP_NOTE, State.HERE),
        (State.GIVEN, Input.POSTED): (Action.DROP_NOTE_SOON, State.GIVEN),
        (State.GIVEN, Input.FOUND): (Action.WITHDRAW, State.NONE),
    }
    taken = (State.ENCODING, State.ENCODED, State.COMPLETE)
    for state in (State.HERE, *taken):
        table[state, Input.CONNECTED] = (Action.READ_CLIENT, state)
        table[state, Input.FOREIGN] = (Action.SAY_FOREIGN, state)
        table[state, Input.OUTDATED] = (Action.SAY_NEWER, state)
        table[state, Input.ELSEWHERE] = (Action.SAY_MOVED, state)
        table[state, Input.EARLY] = (Action.SAY_COMING, state)
        table[state, Input.UNKNOWN] = (Action.BEGIN_AGAIN, state)
        table[state, Input.BEGIN] = (Action.ENCODE, State.ENCODING)
        table[state, Input.DONE] = (Action.GIVE, State.GIVEN)
        table[state, Input.CLEAN] = (Action.END, State.NONE)
    for state in taken:
        table[state, Input.RESTARTED] = (Action.DROP, State.HERE)
        table[state, Input.CAME] = (Action.DROP, State.HERE)
        table[state, Input.EXPIRED] = (Action.DROP, State.HERE)
        table[state, Input.ENDED] = (Action.DROP, State.NONE)
    return table


TRANSITIONS = _table()
"""What an input in a state leads to: an action and the next state. What is not in it is dropped,
and counted (`session_takeovers_unexpected`)."""


class Asked(NamedTuple):
    """A request of a broker that takes a session, or has taken it."""

    sender: bytes
    request: int
    stamp: int
    client_id: str
    position: int
    """From which byte on parts are wanted."""
    owner: bytes
    """Digest of the client's user."""
    need: Vector
    """What has to have come to the session before it is encoded, or before its rest is."""


class PendingHandover:
    """A session of this broker that another one takes."""

    __slots__ = (
        "at",
        "awaited",
        "began",
        "data",
        "had",
        "merged",
        "number",
        "queued",
        "rest",
        "sending",
        "stamp",
        "state",
        "taker",
    )

    def __init__(
        self, asked: Asked, number: int, had: set[Name | None], queued: int, now: float
    ) -> None:
        """Begin to encode a session.

        Args:
            `asked`: the request of the taker.
            `number`: of what is encoded, in its parts.
            `had`: names of the messages that are part of it.
            `queued`: messages in its queue that are part of it.
            `now`: s.
        """
        self.state = State.ENCODING
        self.taker = asked.sender
        self.stamp = asked.stamp
        self.merged = False  # encoded for a broker that has a newer session
        self.number = number
        self.had = had
        self.queued = queued
        self.data: bytes | None = None  # the session, once it is encoded
        self.awaited = False  # it was asked for while it was being encoded
        self.rest: bytes | None = None  # what arrived since, once the taker wants it
        self.began = self.at = now  # s: when it began; when the last request came
        self.sending = Sending()

    @property
    def size(self) -> int:
        """Bytes of the encoded session and of its encoded rest."""
        return len(self.data or b"") + len(self.rest or b"")
