"""One older session of a client, at another broker, that is added to the newer one here: its
states, and what leads from one to the next (`merge` does what the table says).

| state   | what it waits for |
|---|---|
| WANTED  | the subscriptions of the newer session: where they begin says what the older one has; |
|         | if that is a copy of the older one, all brokers to know of them; |
|         | older sessions of this client that are newer than this one: they may have had the same |
| ASKING  | the older session, in parts: MERGE has been sent to its holder |
| READING | the decoding of the older session, which is done in steps |
| CLOSING | the holder to forget the older session: DONE has been sent |
| OVER    | nothing |

The older session is its holder's before READING has ended; in one step it is added here then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mqttree.broker.base.state_table import Table, TableEnum
from mqttree.broker.cluster.sessions.session_parts import SessionParts

if TYPE_CHECKING:
    from mqttree.broker.cluster.link.version_vector import Vector

RETRY, MAX_RETRY_S = 0.25, 1.0
"""s until an old broker is asked again; twice as long each time."""


class State(TableEnum):
    """Where a merge has got to."""

    WANTED = 1
    ASKING = 2
    READING = 3
    CLOSING = 4
    OVER = 5


class Input(TableEnum):
    """What happens to a merge."""

    BEGUN = "it is known where the newer session's subscriptions begin, or was waited for too long"
    WHOLE = "all parts have come"
    EARLY = "all parts have come, and an older session that is newer than this one has not"
    DECODED = "the older session has been decoded, and was added"
    UNUSABLE = "what came cannot be read"
    CHANGED = "the client has connected here once more, or another broker takes the newer session"
    NOTHING = "the holder says that there is none"
    ENDED = "the holder says that it has forgotten it"
    NEWER = "the holder says that its session is the newer one"
    WITHDRAWN = "the older session, or the newer one, has ended"


class Action(TableEnum):
    """What is to be done then."""

    ASK = "send the request whose answer the new state waits for"
    ASK_AGAIN = "drop the parts that have come, and ask for the older session as it is now"
    READ = "decode the older session"
    ASK_LATER = "let the next turn ask"
    TELL_DONE = "have the holder forget the older session"
    DROP = "drop the merge"
    DROP_GARBAGE = "drop the merge, log and count what came"


def _table() -> Table[State, Input, Action]:
    table: Table[State, Input, Action] = {
        (State.WANTED, Input.BEGUN): (Action.ASK, State.ASKING),
        (State.ASKING, Input.WHOLE): (Action.READ, State.READING),
        (State.ASKING, Input.EARLY): (Action.ASK_LATER, State.WANTED),
        (State.ASKING, Input.CHANGED): (Action.ASK_AGAIN, State.ASKING),
        (State.ASKING, Input.NOTHING): (Action.DROP, State.OVER),
        (State.ASKING, Input.NEWER): (Action.DROP, State.OVER),
        (State.READING, Input.DECODED): (Action.TELL_DONE, State.CLOSING),
        (State.READING, Input.UNUSABLE): (Action.DROP_GARBAGE, State.OVER),
        (State.READING, Input.CHANGED): (Action.ASK_LATER, State.ASKING),
        (State.CLOSING, Input.NOTHING): (Action.DROP, State.OVER),
        (State.CLOSING, Input.ENDED): (Action.DROP, State.OVER),
        (State.CLOSING, Input.NEWER): (Action.DROP, State.OVER),
    }
    for state in State:
        if state is not State.OVER:
            table[state, Input.WITHDRAWN] = (Action.DROP, State.OVER)
    return table


TRANSITIONS = _table()
"""What an input in a state leads to: an action and the next state. What is not in it is dropped,
and counted (`session_takeovers_unexpected`)."""


class Merge:
    """An older session of a client at one broker."""

    __slots__ = (
        "ask_at",
        "asked",
        "away",
        "began",
        "client_id",
        "copy",
        "holder",
        "lsn",
        "need",
        "parts",
        "pause",
        "rest",
        "stamp",
        "state",
        "why",
        "work",
    )

    def __init__(
        self,
        client_id: str,
        holder: bytes,
        copy: int,
        stamp: int,
        state: State,
        now: float,
        *,
        rest: bytes = b"",
    ) -> None:
        """Begin to merge an older session.

        Args:
            `client_id`: of the client.
            `holder`: id of the broker that has the older session, or had it before it died.
            `copy`: stamp of the older session (hybrid clock).
            `stamp`: of the newer session when the older one was asked for.
            `state`: WANTED, or CLOSING if it has been merged.
            `now`: s.
            `rest`: id of the broker from which the newer one has come without its queue, which has
                yet to come; empty: it has not.
        """
        self.client_id = client_id
        self.holder = holder
        self.copy = copy
        self.stamp = stamp
        self.rest = rest
        # The broker that is asked: the holder's standby, if that cannot be reached.
        self.asked = rest or holder
        self.away = False  # that has said that it has none
        # With `rest`: what comes from elsewhere, as all brokers know of its subscriptions here now.
        self.need: Vector | None = None
        self.state = state
        self.began = self.ask_at = now  # s: when it began; when the holder is asked next
        self.pause = RETRY  # s until it is asked once more
        self.parts = SessionParts()
        self.lsn = 0  # of the journal's frame that has what was in the older session
        self.why = ""  # what is wrong with what came, for the log
        self.work: Iterator[int] | None = None  # while it is read

    def step(self, given: Input) -> Action | None:
        """Go to the next state; returns what is to be done, None for an input that this state does
        not expect."""
        found = TRANSITIONS.get((self.state, given))
        if found is None:
            return None
        action, self.state = found
        return action
