"""One session that this broker takes from another one: its states, and what leads from one to the
next (`takeover` does what the table says).

| state     | what it waits for |
|---|---|
| ASKING    | the session without its queue, in parts: TAKE has been sent to its holder |
| READING   | the session to be decoded and to have its subscriptions, which is done in steps |
| ENDING    | the holder to end the session, as the client begins a new one: END has been sent |
| OVER      | nothing |

Before OVER the session is its holder's; from then on it is this broker's, and the copy of the
holder, with the queue, is merged into it (`merge`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mqttree.broker.base.state_table import Table, TableEnum
from mqttree.broker.cluster.sessions.session_parts import SessionParts

if TYPE_CHECKING:
    from mqttree.broker.auth.authorization import Permissions
    from mqttree.broker.cluster.sessions.session_state import SessionState
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.ports import Newcomer
    from mqttree.broker.core.session import Session


class State(TableEnum):
    """Where the takeover of a session has got to."""

    ASKING = 1
    READING = 2
    ENDING = 3
    OVER = 4


class Input(TableEnum):
    """What happens to a takeover."""

    SESSION = "all parts of the session have come"
    CLEAN = "the client begins a new session"
    COMPLETE = "the session is here"
    UNUSABLE = "what came cannot be read"
    COMING = "the holder says that it is on its way"
    MOVED = "the holder says that another broker has it"
    NOTHING = "the holder says that there is none"
    NEWER = "the holder says that a newer connection has it"
    FOREIGN = "it is another user's"
    SILENT = "the holder has not answered for too long"
    LEFT = "the client is gone, or has connected once more"


class Action(TableEnum):
    """What is to be done then."""

    WAIT = "nothing"
    ASK = "send the request whose answer the new state waits for"
    READ = "decode the session"
    ASK_ELSEWHERE = "drop what is here, and ask the broker that has it"
    START_NEW = "drop what is here, and let the client in with a new session: log and count that"
    ADMIT_NEW = "drop what is here, and let the client in with a new session"
    ADMIT = "let the client in"
    REFUSE = "drop what is here, and refuse the client"
    HANG_UP = "drop what is here, and close the client's connection"


def _table() -> Table[State, Input, Action]:
    ending = State.ENDING
    table: Table[State, Input, Action] = {
        (State.ASKING, Input.SESSION): (Action.READ, State.READING),
        (State.ASKING, Input.SILENT): (Action.START_NEW, State.OVER),
        (State.READING, Input.COMPLETE): (Action.ADMIT, State.OVER),
        (State.READING, Input.UNUSABLE): (Action.START_NEW, State.OVER),
        # Only the states that wait for the holder end when it is silent.
        (State.READING, Input.SILENT): (Action.WAIT, State.READING),
        (State.ASKING, Input.CLEAN): (Action.ASK, ending),
        (ending, Input.COMING): (Action.WAIT, ending),
        (ending, Input.MOVED): (Action.ASK_ELSEWHERE, ending),
        (ending, Input.NOTHING): (Action.ADMIT, State.OVER),
        (ending, Input.SILENT): (Action.ADMIT, State.OVER),
        (ending, Input.LEFT): (Action.HANG_UP, State.OVER),
        (ending, Input.NEWER): (Action.HANG_UP, State.OVER),
        (ending, Input.FOREIGN): (Action.REFUSE, State.OVER),
    }
    for state in (State.ASKING, State.READING):
        table[state, Input.COMING] = (Action.WAIT, state)
        table[state, Input.MOVED] = (Action.ASK_ELSEWHERE, State.ASKING)
        table[state, Input.NOTHING] = (Action.ADMIT_NEW, State.OVER)
        table[state, Input.NEWER] = (Action.HANG_UP, State.OVER)
        table[state, Input.FOREIGN] = (Action.REFUSE, State.OVER)
        table[state, Input.LEFT] = (Action.HANG_UP, State.OVER)
    return table


TRANSITIONS = _table()
"""What an input in a state leads to: an action and the next state. What is not in it is dropped,
and counted (`session_takeovers_unexpected`)."""

RETRY = 0.25
"""s between two requests for the same."""


class PendingTakeover:
    """A session that this broker takes."""

    __slots__ = (
        "asked_at",
        "began",
        "client_id",
        "copy",
        "elsewhere",
        "handshake",
        "heard",
        "holder",
        "hops",
        "left",
        "lost_at",
        "parts",
        "patience",
        "session",
        "since",
        "stamp",
        "state",
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
        self.asked_at = now  # s: when it was asked last
        # s of silence, twice, after which the holder is asked again.
        self.patience = RETRY
        self.lost_at = 0.0  # s; since when the holder cannot be reached, 0.0: it can be
        self.parts = SessionParts()
        self.work: Iterator[int] | None = None  # what is done in steps just now
        self.elsewhere = holder  # the broker that has it, as this holder says
        self.why = ""  # why its client gets a new session, for the log
        self.session: Session | None = None
        self.copy = 0  # stamp of the holder's copy
        # An older one here that was added to it.
        self.left: tuple[int, Permissions | None, SessionState] | None = None

    @property
    def conn(self) -> Connection:
        """The connection that waits for the session."""
        return self.handshake.conn

    def slow(self, last_heard: float) -> bool:
        """Whether the links to the holder are slow, rather than the holder silent: bytes have come
        over them (`last_heard`, s) since it was asked. A new session could not tell messages that
        arrive late over them from new ones, and would get again those that this session has had."""
        return last_heard > max(self.heard, self.since) + RETRY

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
