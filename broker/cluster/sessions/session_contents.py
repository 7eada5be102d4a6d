"""What a broker that takes a session has to know of it: its state, and later the rest, the messages
that came to it since. `session_head` has the state as bytes, `handover` sends them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqttree.broker.base.sequence_set import LAST, Ranges
from mqttree.broker.cluster.delivery.subscription_start import starts_of
from mqttree.broker.cluster.link.message_batch import age_batch
from mqttree.broker.cluster.link.version_vector import Vector
from mqttree.broker.cluster.sessions.message_vectors import offered
from mqttree.broker.cluster.sessions.session_entries import entries_of
from mqttree.broker.cluster.sessions.session_records import single
from mqttree.broker.cluster.sessions.session_state import SessionState, state_of
from mqttree.broker.cluster.sessions.takeover_messages import encode_rest
from mqttree.broker.core.session import SharedOutgoing

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.gap_recovery import GapRecovery
    from mqttree.broker.cluster.delivery.origins import Origins
    from mqttree.broker.cluster.delivery.replay_log import ReplayLog
    from mqttree.broker.cluster.ports import MemberBroker
    from mqttree.broker.cluster.sessions.delivered_ranges import DeliveredRanges
    from mqttree.broker.cluster.sessions.pending_handover import PendingHandover
    from mqttree.broker.cluster.sessions.session_history import SessionHistory
    from mqttree.broker.core.session import Session
    from mqttree.routing.link_state import LinkStateDatabase


class SessionContents:
    """Reads off this broker's sessions what others have to know that take them."""

    def __init__(
        self,
        node: MemberBroker,
        *,
        database: LinkStateDatabase,
        origins: Origins,
        log: ReplayLog,
        gap_recovery: GapRecovery,
        delivered_ranges: DeliveredRanges,
        history: SessionHistory,
    ) -> None:
        """`node`: this broker; `database`: which brokers have older sessions; the modules that
        know what a session was offered: `origins`, `log`, `gap_recovery`, `delivered_ranges`,
        `history`."""
        self._node = node
        self._counters = node.counters
        self._database = database
        self._origins = origins
        self._log = log
        self._gap_recovery = gap_recovery
        self._delivered_ranges = delivered_ranges
        self._history = history

    def state(self, session: Session, now: float, *, merged: bool) -> SessionState:
        """Return what a taker has to know of a `session` at `now` (s). `merged`: it adds it to a
        newer one."""
        if merged:
            self._history.note(session)
            return self._history.old_state(session)
        seen = offered(self._origins.vector)
        self._delivered_ranges.complete(seen, session)
        state = state_of(session, seen)
        if self._left_behind(session.client_id, session.stamp):
            state.given = self._given_here(session, state)
            self._tighten(session, state.before)
        return state

    def _left_behind(self, client_id: str, stamp: int) -> bool:
        """Whether a broker that is away has an older session of a client."""
        return any(entry.stamp < stamp for _, entry in entries_of(self._database, client_id))

    def _given_here(self, session: Session, state: SessionState) -> dict[bytes, Ranges]:
        """Return the numbers that a session has had and that do not follow from the start of its
        subscriptions: those in its queue, and those that it got from logs."""
        history = self._history
        history.note(session)
        for item in state.items:
            if item.message.origin:
                history.offers(session, item.message.origin, item.message.sequence)
        return history.given(session)

    def _tighten(self, session: Session, before: Vector) -> None:
        """Add to `before` the numbers that were not for a session as they were published before it
        subscribed, and did not come here, as no local subscriber wanted them. The taker cannot find
        them in its log when it merges an older session with this one."""
        begun = [start for start in starts_of(session) if start is not None]
        if any(start.adopted for start in begun) or self._gap_recovery.unsettled():
            return
        starts = [start.at for start in begun]
        if not starts:
            return
        lowest: dict[bytes, int] = {}
        vector, log = self._origins.vector, self._log
        for entry in log.latest():
            if entry.at < min(starts):
                break
            lowest[entry.key] = min(entry.sequence, lowest.get(entry.key, entry.sequence))
        else:
            if self._counters.replay_log_trimmed:
                return  # the log does not go back so far: large messages empty it quickly
        for key, window in before.items():
            if (here := vector.get(key)) is not None:
                window.top = max(window.top, min(lowest.get(key, here.top + 1) - 1, LAST))

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
