"""Sequence numbers of QoS 2 messages that were trimmed from the log and are queued for clients that
are away (docs/decisions/0016).

A message in a session does not say which origin and number it has: a merge of two sessions finds
that in the log. Large messages push everything else out of the log in milliseconds. So while
clients with sessions are away, their messages at QoS 2 are noted as they leave the log: origin,
number, and a hash of topic and content, a run of messages in one piece.

    nothing -(a client leaves its session, or takes nothing)-> noting -(no client is away)-> nothing
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING

from mqttree.broker.base import costs
from mqttree.broker.base.sequence_set import Ranges, find
from mqttree.broker.cluster.events import RouteChanged

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.replay_log import LogEntry, ReplayLog
    from mqttree.broker.cluster.ports import MemberBroker
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.session import Session

LOOK_S = 10.0
"""s between two checks whether any client is away."""
TOPICS = 10_000
"""topics of which it is remembered whether clients that are away get them."""

Places = dict[tuple[bytes, bytes], list[int]]
"""Topic and payload -> indices of the messages of a session with these."""


class TrimmedNumbers:
    """Notes of the QoS 2 messages that were trimmed from the log while clients were away."""

    def __init__(self, node: MemberBroker, log: ReplayLog) -> None:
        """`node`: this broker; `log`: whose trimmed messages are noted."""
        self._node = node
        self._counters = node.counters
        self._log = log
        self._met = False  # other brokers were linked: sessions may be merged
        self._noted: deque[tuple[bytes, int, array[int]]] = deque()  # origin, first number, hashes
        self._away: dict[bytes, bool] = {}  # topic -> whether a client that gets it is away
        self._noting = False
        self.size = 0
        """Bytes of memory of the notes, about."""

    def route_changed(self, event: RouteChanged) -> None:
        """Begin to note numbers when the first other broker can be reached."""
        if event.via is not None and not self._met:
            self._met = True
            self.watch(*self._node.sessions.values())

    def watch(self, *sessions: Session) -> None:
        """Begin to note messages that leave the log, if the client of one of these sessions is away
        and subscribes at QoS 2."""
        self._away.clear()
        if not self._noting and self._met and any(map(misses, sessions)):
            self._noting = True
            self._log.on_dropped.append(self._dropped)
            self._node.timers.schedule(self._node.now + LOOK_S, self._look)

    def _look(self, now: float) -> None:
        """Stop noting when no client is away."""
        if any(map(takes_nothing, self._node.sessions.values())):
            self._node.timers.schedule(now + LOOK_S, self._look)
            return
        self._noting = False
        self._log.on_dropped.remove(self._dropped)
        self._noted.clear()
        self._away.clear()
        self.size = 0

    def _dropped(self, entry: LogEntry, position: int, source: Connection | None) -> None:
        """Note an entry that leaves the log; the oldest notes are dropped if there is no room."""
        if entry.qos != 2:
            return
        for away, part in entry.divide(self._away_from):
            if away:
                self._note(part)

    def _away_from(self, topic: bytes) -> bool:
        """Whether a client is away that gets a topic at QoS 2; remembered for a while."""
        away = self._away.get(topic)
        if away is None:
            if len(self._away) >= TOPICS:
                self._away.clear()
            away = self._away[topic] = self._waits(topic)
        return away

    def _note(self, entry: LogEntry) -> None:
        contents = [(message.topic, message.payload) for _, message in entry.messages()]
        hashes = array("q", map(hash, contents))
        self._noted.append((entry.key, entry.sequence, hashes))
        self.size += costs.TRIMMED_MEMORY + 8 * len(hashes)
        while self.size > self._node.limits.unlogged_bytes:
            oldest = self._noted.popleft()[2]
            self.size -= costs.TRIMMED_MEMORY + 8 * len(oldest)
            self._counters.queued_unnumbered += len(oldest)

    def _waits(self, topic: bytes) -> bool:
        """Whether messages of a topic are queued at QoS 2 for a client that is away."""
        dispatcher = self._node.dispatcher
        route = dispatcher.routes.get(topic) or dispatcher.route(topic, keep=False)
        return any(
            delivery.qos == 2 and takes_nothing(delivery.session) for delivery in route.deliveries
        )

    def find(
        self, places: Places, ranges: dict[bytes, Ranges], found: list[tuple[bytes, int] | None]
    ) -> None:
        """Find origin and number of a session's messages, and enter them in `found` by index.
        `places`: indices of the messages that are looked for; `ranges`: by origin, the numbers that
        were delivered to the session. The newest notes come first."""
        wanted = {hash(content): waiting for content, waiting in places.items() if waiting}
        for key, first, hashes in reversed(self._noted if wanted else ()):
            delivered = ranges.get(key)
            if delivered is None or find(delivered, first, first + len(hashes) - 1) < 0:
                continue
            for at in range(len(hashes) - 1, -1, -1):
                waiting = wanted.get(hashes[at])
                if waiting and find(delivered, first + at, first + at) >= 0:
                    found[waiting.pop()] = (key, first + at)


def misses(session: Session) -> bool:
    """Whether a session that takes nothing has subscriptions at QoS 2."""
    return takes_nothing(session) and any(
        subscription.qos == 2 for subscription in session.subscriptions.values()
    )


def takes_nothing(session: Session) -> bool:
    """Whether a session is kept, and its client is away or has stopped reading."""
    conn = session.conn
    return session.expiry > 0 and (conn is None or conn.stalled)
