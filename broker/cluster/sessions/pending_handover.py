"""One session that another broker takes from this one: its states, and what leads from one to the
next (`handover` does what the table says).

| state    | what is here |
|---|---|
| NONE     | no session of this client, and no note of one |
| HERE     | the session; no broker takes it |
| ENCODING | the session, which is encoded for a taker in steps |
| ENCODED  | the session, and its bytes; the taker fetches them in parts |
| GIVEN    | no session, but a note of the broker that has taken it |

The session is this broker's until GIVEN; then it is the taker's. The note stays until all brokers
know that the taker has the session.
"""

from __future__ import annotations

from typing import NamedTuple

from mqttree.broker.base.state_table import Table, TableEnum
from mqttree.broker.cluster.link.version_vector import Vector
from mqttree.broker.cluster.sessions.session_parts import Sending
from mqttree.broker.cluster.sessions.takeover_messages import MERGE


class State(TableEnum):
    """Where the handover of a client's session has got to."""

    NONE = 1
    HERE = 2
    ENCODING = 3
    ENCODED = 4
    GIVEN = 5


class Input(TableEnum):
    """What happens to a handover."""

    CONNECTED = "a request of a newer connection came, and the older one is open here"
    FOREIGN = "a request of another user came"
    OUTDATED = "a request came, and the session has a newer connection or a newer taker"
    ELSEWHERE = "a request came, and another broker has the session, or a newer one"
    ABSENT = "a request came for a session that is not here, nor known elsewhere"
    EARLY = "a request came, and messages for the session are still under way"
    BEGIN = "a taker wants the session, which is not encoded for it"
    MORE = "the taker wants parts of what is encoded, or is being encoded"
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
    ENCODE = "encode the session for the taker"
    SEND_LATER = "answer COMING, and send the first parts when the session is encoded"
    SEND_FIRST = "send the first parts, if the taker has asked for them meanwhile"
    SEND = "send parts"
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
        (State.GIVEN, Input.FOREIGN): (Action.SAY_FOREIGN, State.GIVEN),
        (State.GIVEN, Input.OUTDATED): (Action.SAY_NEWER, State.GIVEN),
        (State.GIVEN, Input.ELSEWHERE): (Action.SAY_MOVED, State.GIVEN),
        (State.GIVEN, Input.ABSENT): (Action.SAY_NOTHING, State.GIVEN),
        (State.GIVEN, Input.DONE): (Action.SAY_ENDED, State.GIVEN),
        (State.GIVEN, Input.CAME): (Action.DROP_NOTE, State.HERE),
        (State.GIVEN, Input.POSTED): (Action.DROP_NOTE_SOON, State.GIVEN),
        (State.GIVEN, Input.FOUND): (Action.WITHDRAW, State.NONE),
    }
    taken = (State.ENCODING, State.ENCODED)
    for state in (State.HERE, *taken):
        table[state, Input.CONNECTED] = (Action.READ_CLIENT, state)
        table[state, Input.FOREIGN] = (Action.SAY_FOREIGN, state)
        table[state, Input.OUTDATED] = (Action.SAY_NEWER, state)
        table[state, Input.ELSEWHERE] = (Action.SAY_MOVED, state)
        table[state, Input.ABSENT] = (Action.SAY_NOTHING, state)
        table[state, Input.EARLY] = (Action.SAY_COMING, state)
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
    copy: int
    """Stamp of the session that is meant, of several; 0: the newest."""
    need: Vector
    """What has to have come to the session before it is encoded."""


class PendingHandover:
    """A session of this broker that another one takes."""

    __slots__ = (
        "at",
        "awaited",
        "copy",
        "data",
        "merged",
        "number",
        "queued",
        "sending",
        "stamp",
        "state",
        "taker",
    )

    def __init__(self, asked: Asked, number: int, queued: int, now: float) -> None:
        """Begin to encode a session.

        Args:
            `asked`: the request of the taker.
            `number`: of what is encoded, in its parts.
            `queued`: messages in its queue that are part of it.
            `now`: s.
        """
        self.state = State.ENCODING
        self.taker = asked.sender
        self.stamp = asked.stamp
        self.merged = asked.request == MERGE  # with its queue, for a newer session
        self.copy = asked.copy  # of several that one broker gives away
        self.number = number
        self.queued = queued
        self.data: bytes | None = None  # the session, once it is encoded
        self.awaited = False  # it was asked for while it was being encoded
        self.at = now  # s: when the last request came
        self.sending = Sending()

    @property
    def size(self) -> int:
        """Bytes of the encoded session."""
        return len(self.data or b"")

    def serves(self, asked: Asked) -> bool:
        """Whether it is what a request asks for."""
        known = self.taker, self.stamp, self.merged, self.copy
        return known == (asked.sender, asked.stamp, asked.request == MERGE, asked.copy)
