"""What a broker that takes a session has to know of it: its state, and later the rest, the messages
that came to it since. `session_head` has the state as bytes, `handover` sends them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqttree.broker.cluster.link.message_batch import age_batch
from mqttree.broker.cluster.sessions.message_vectors import numbered, offered
from mqttree.broker.cluster.sessions.session_entries import entries_of
from mqttree.broker.cluster.sessions.session_records import single
from mqttree.broker.cluster.sessions.session_state import IN_FLIGHT, WAITING, SessionState, state_of
from mqttree.broker.cluster.sessions.takeover_messages import encode_rest
from mqttree.broker.core.session import SharedOutgoing

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.origins import Origins
    from mqttree.broker.cluster.sessions.evaluated import Evaluated
    from mqttree.broker.cluster.sessions.pending_handover import PendingHandover
    from mqttree.broker.cluster.sessions.session_history import SessionHistory
    from mqttree.broker.core.session import Session
    from mqttree.routing.link_state import LinkStateDatabase


class SessionContents:
    """Reads off this broker's sessions what others have to know that take them."""

    def __init__(
        self,
        database: LinkStateDatabase,
        origins: Origins,
        evaluated: Evaluated,
        history: SessionHistory,
    ) -> None:
        """`database`: which brokers have older sessions; the modules that know what a session has
        had: `origins`, `evaluated`, `history`."""
        self._database = database
        self._origins = origins
        self._evaluated = evaluated
        self._history = history

    def state(self, session: Session, *, merged: bool) -> SessionState:
        """Return what a taker has to know of a `session`. `merged`: it adds it to a newer one."""
        seen = offered(self._origins.vector)
        self._evaluated.complete(seen, session)
        state = state_of(session, seen)
        if merged or self._left_behind(session.client_id, session.stamp):
            self._history.note(session)
            queued = (name for item in state.items if (name := item.message.name) is not None)
            state.given = numbered({*self._evaluated.names(session), *queued})
        for item in state.items if merged else ():
            # Its client cannot have got the message.
            if item.place == IN_FLIGHT and item.packet_id in session.unsent:
                item.place, item.packet_id = WAITING, 0
        return state

    def _left_behind(self, client_id: str, stamp: int) -> bool:
        """Whether a broker that is away has an older session of a client."""
        return any(entry.stamp < stamp for _, entry in entries_of(self._database, client_id))

    def rest(self, session: Session, export: PendingHandover, now: float) -> bytes:
        """Return the messages that came to a `session` since it was encoded (`export`), and the
        numbers up to which that is all, as bytes. `now` (s) counts for what expires."""
        batches = []
        for outgoing in session.queue:
            message, name = outgoing.message, outgoing.message.name
            # What was given to a member of a group goes to another one.
            if name and name not in export.had and not isinstance(outgoing, SharedOutgoing):
                data, at = single(message, message.sequence, now)
                batches.append(age_batch(data, round((now - at) * 1000)))
        return encode_rest(offered(self._origins.vector), batches)
