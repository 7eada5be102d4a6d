"""One session that this broker takes from another one: its states, and what leads from one to the
next (`takeover` does what the table says).

| state     | what it waits for |
|---|---|
| ASKING    | the session itself, in parts: TAKE has been sent to its holder |
| READING   | the session to be decoded and to have its subscriptions, which is done in steps |
| SETTLING  | all brokers to know of these |
| RESTING   | what came to the holder meanwhile: REST has been sent |
| CLOSING   | the holder to forget the session: DONE has been sent |
| ENDING    | the holder to end the session, as the client begins a new one: END has been sent |
| OVER      | nothing |

Before CLOSING the session is its holder's; from then on it is this broker's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mqttree.broker.base.state_table import Table, TableEnum
from mqttree.broker.cluster.link.version_vector import Vector
from mqttree.broker.cluster.sessions.message_vectors import need_of
from mqttree.broker.cluster.sessions.session_parts import SessionParts

if TYPE_CHECKING:
    from mqttree.broker.auth.authorization import Permissions
    from mqttree.broker.cluster.sessions.session_state import SessionState
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.message import Message, Name
    from mqttree.broker.core.ports import Newcomer
    from mqttree.broker.core.session import Session
    from mqttree.broker.core.start_point import SubscriptionStart


class State(TableEnum):
    """Where the takeover of a session has got to."""

    ASKING = 1
    READING = 2
    SETTLING = 3
    RESTING = 4
    CLOSING = 5
    ENDING = 6
    OVER = 7


class Input(TableEnum):
    """What happens to a takeover."""

    SESSION = "all parts of the session have come"
    REST = "all parts of the rest have come"
    CLEAN = "the client begins a new session"
    UNTOLD = "its subscriptions stand, and other brokers have to know of them"
    COMPLETE = "nothing is missing"
    SETTLED = "all brokers know of its subscriptions"
    UNUSABLE = "what came cannot be read"
    COMING = "the holder says that it is on its way"
    MOVED = "the holder says that another broker has it"
    NOTHING = "the holder says that there is none"
    ENDED = "the holder says that it has forgotten it"
    NEWER = "the holder says that a newer connection has it"
    FOREIGN = "it is another user's"
    SILENT = "the holder has not answered for too long"
    LEFT = "the client is gone, or has connected once more"


class Action(TableEnum):
    """What is to be done then."""

    WAIT = "nothing"
    ASK = "send the request whose answer the new state waits for"
    READ = "decode the session"
    TELL = "have all brokers know of its subscriptions"
    TAKE_REST = "offer the session what its holder got meanwhile"
    CLOSE = "keep the session, and have its holder forget it"
    ASK_ELSEWHERE = "drop what is here, and ask the broker that has it"
    START_NEW = "drop what is here, and let the client in with a new session: log and count that"
    ADMIT_NEW = "drop what is here, and let the client in with a new session"
    ADMIT = "let the client in"
    ADMIT_UNTOLD = "let the client in, and tell the holder again when it is back"
    REFUSE = "drop what is here, and refuse the client"
    HANG_UP = "drop what is here, and close the client's connection"


def _table() -> Table[State, Input, Action]:
    taking = [state for state in State if state not in (State.CLOSING, State.ENDING, State.OVER)]
    table: Table[State, Input, Action] = {
        (State.ASKING, Input.SESSION): (Action.READ, State.READING),
        (State.READING, Input.UNTOLD): (Action.TELL, State.SETTLING),
        (State.READING, Input.COMPLETE): (Action.CLOSE, State.CLOSING),
        (State.SETTLING, Input.SETTLED): (Action.ASK, State.RESTING),
        (State.RESTING, Input.REST): (Action.TAKE_REST, State.RESTING),
        (State.RESTING, Input.COMPLETE): (Action.CLOSE, State.CLOSING),
        (State.CLOSING, Input.COMING): (Action.WAIT, State.CLOSING),
        (State.CLOSING, Input.ENDED): (Action.ADMIT, State.OVER),
        (State.CLOSING, Input.NOTHING): (Action.ADMIT, State.OVER),
        (State.CLOSING, Input.LEFT): (Action.ADMIT, State.OVER),
        (State.CLOSING, Input.SILENT): (Action.ADMIT_UNTOLD, State.OVER),
        (State.CLOSING, Input.NEWER): (Action.HANG_UP, State.OVER),
        (State.CLOSING, Input.FOREIGN): (Action.REFUSE, State.OVER),
    }
    ending = State.ENDING
    table |= {
        (State.ASKING, Input.CLEAN): (Action.ASK, ending),
        (ending, Input.COMING): (Action.WAIT, ending),
        (ending, Input.MOVED): (Action.ASK_ELSEWHERE, ending),
        (ending, Input.NOTHING): (Action.ADMIT, State.OVER),
        (ending, Input.SILENT): (Action.ADMIT, State.OVER),
        (ending, Input.LEFT): (Action.HANG_UP, State.OVER),
        (ending, Input.NEWER): (Action.HANG_UP, State.OVER),
        (ending, Input.FOREIGN): (Action.REFUSE, State.OVER),
    }
    for state in taking:
        table[state, Input.COMING] = (Action.WAIT, state)
        table[state, Input.MOVED] = (Action.ASK_ELSEWHERE, State.ASKING)
        table[state, Input.NOTHING] = (Action.ADMIT_NEW, State.OVER)
        table[state, Input.NEWER] = (Action.HANG_UP, State.OVER)
        table[state, Input.FOREIGN] = (Action.REFUSE, State.OVER)
        table[state, Input.LEFT] = (Action.HANG_UP, State.OVER)
        # Only the states that wait for the holder end when it is silent.
        table[state, Input.SILENT] = (Action.WAIT, state)
    for state in (State.ASKING, State.RESTING):
        table[state, Input.SILENT] = (Action.START_NEW, State.OVER)
    for state in (State.READING, State.RESTING):
        table[state, Input.UNUSABLE] = (Action.START_NEW, State.OVER)
    return table


TRANSITIONS = _table()
"""What an input in a state leads to: an action and the next state. What is not in it is dropped,
and counted (`session_takeovers_unexpected`)."""

RETRY = 0.25
"""s between two requests for the same."""


class PendingTakeover:
    """A session that this broker takes."""

    __slots__ = (
        "began",
        "client_id",
        "dropped",
        "elsewhere",
        "handshake",
        "heard",
        "holder",
        "hops",
        "left",
        "lost_at",
        "lsn",
        "parts",
        "patience",
        "rest",
        "session",
        "since",
        "stamp",
        "start",
        "state",
        "waiting",
        "why",
        "work",
    )

    def __init__(
        self, handshake: Newcomer, client_id: str, stamp: int, holder: bytes, now: float
    ) -> None:
        """Take the session of a client.

        Args:
            `handshake`: the client's connection, which waits for the session.
            `client_id`: of the client.
            `stamp`: of its connection (hybrid clock).
            `holder`: id of the broker that is asked for the session.
            `now`: s.
        """
        self.handshake = handshake
        self.client_id = client_id
        self.stamp = stamp
        self.holder = holder
        self.hops = 0  # brokers that named another holder
        self.state = State.ASKING
        # s: when the takeover began; when this state did; when the holder spoke last.
        self.began = self.since = self.heard = now
        # s of silence, twice, after which the holder is asked again.
        self.patience = RETRY
        self.lost_at = 0.0  # s; since when the holder cannot be reached, 0.0: it can be
        self.parts = SessionParts()
        self.work: Iterator[int] | None = None  # what is done in steps just now
        self.elsewhere = holder  # the broker that has it, as this holder says
        # The rest, and the numbers up to which it is all, while origins send what the holder lacks.
        self.rest: tuple[Vector, dict[Name, Message]] | None = None
        self.lsn = 0  # of the journal's frame that has the session, when it is complete
        self.why = ""  # why its client gets a new session, for the log
        self.session: Session | None = None
        # An older one here that was added to it.
        self.left: tuple[int, Permissions | None, SessionState] | None = None
        self.waiting = 0  # messages of its holder's that were in its queue
        self.start: SubscriptionStart | None = None  # messages behind it come here

    @property
    def conn(self) -> Connection:
        """The connection that waits for the session."""
        return self.handshake.conn

    def slow(self, last_heard: float) -> bool:
        """Whether the links to the holder are slow, rather than the holder silent: bytes have come
        over them (`last_heard`, s) since it was asked. A new session could not tell messages that
        arrive late over them from new ones, and would get again those that this session has had."""
        return last_heard > max(self.heard, self.since) + RETRY

    @property
    def need(self) -> Vector:
        """The numbers that the session has to have been offered at its holder."""
        return need_of(() if self.start is None else (self.start.tops,))

    def step(self, given: Input, now: float) -> Action | None:
        """Go to the next state at `now` (s); returns what is to be done, None for an input that
        this state does not expect."""
        found = TRANSITIONS.get((self.state, given))
        if found is None:
            return None
        action, following = found
        if following is not self.state:
            self.state, self.since = following, now
        return action
