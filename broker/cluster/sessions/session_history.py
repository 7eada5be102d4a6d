"""What sessions get besides what comes over links: messages of the log, and retained ones that a
comparison brought (docs/decisions/0016)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mqttree.broker.cluster.delivery.subscription_start import older, starts_of
from mqttree.broker.cluster.link.version_vector import Vector
from mqttree.broker.cluster.sessions.message_vectors import offered, only_here, union
from mqttree.broker.core.message import Message
from mqttree.broker.core.route import Delivery
from mqttree.broker.core.session import Session
from mqttree.broker.wire.strings import is_own

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.origins import Origins
    from mqttree.broker.cluster.delivery.replay_log import LogEntry, Numbers, ReplayLog
    from mqttree.broker.cluster.ports import MemberBroker
    from mqttree.broker.cluster.sessions.evaluated import Evaluated

MAX_SYNCED_RETAINED = 10_000
"""retained messages of the last `log_age_s` that came by a comparison and were delivered, some
200 bytes each: they say what a session that is merged has had. Of more, the oldest are
forgotten, and may come twice."""

SyncedMessage = tuple[float, bytes, int, bytes]
"""A retained message that retained synchronisation brought: when it was delivered (s), its origin,
number and topic."""

REPAIR_TIME = 10.0
"""s; with routing by interest, messages that arrived so long before a takeover began have been
offered to local subscribers: no repair takes longer, and messages that are held back until its end
come from the log."""


class SessionHistory:
    """Gives sessions messages of the log."""

    def __init__(
        self, node: MemberBroker, origins: Origins, log: ReplayLog, evaluated: Evaluated
    ) -> None:
        """`node`: this broker; `origins`: which numbers have been here; `log`: the messages of the
        last minutes; `evaluated`: what sessions have had."""
        self._node = node
        self._limits = node.limits
        self._origins = origins
        self._log = log
        self._evaluated = evaluated
        self._synced: deque[SyncedMessage] = deque(maxlen=MAX_SYNCED_RETAINED)

    def since(self, seen: Vector, horizon: float) -> Iterator[tuple[bytes, int, Message]]:
        """Find the messages in the log that are not in `seen` and arrived after `horizon` (s):
        origin, sequence number, message."""
        if lacks := only_here(self._origins.vector, seen):
            for entry in self.logged(lacks, horizon):
                for number, message in entry.messages():
                    yield entry.key, number, message

    def logged(self, numbers: Numbers, horizon: float) -> list[LogEntry]:
        """Find the messages `numbers` in the log that arrived after `horizon` (s), but for those
        that a group was given again: these are for that group alone, and had another number
        before."""
        return [entry for entry in self._log.those(numbers, horizon) if not entry.passed]

    def offer(self, session: Session, key: bytes, number: int, message: Message) -> None:
        """Deliver a `message` from a log to a `session` that has a matching subscription and has
        not had it. `key`, `number`: its origin and number. One that matches no subscription is not
        noted: an older session that is merged later may have had it."""
        topic = message.topic.decode()
        permitted = not is_own(topic) and session.may_receive(topic)
        wanted = list(session.wanting(topic)) if permitted else []
        had = self._evaluated.had
        if (
            wanted
            and not older(session, key, number)
            and not had(session, {}, key, number, message.topic)
        ):
            self._evaluated.give(session, key, number)
            delivery = Delivery(session, wanted)
            retain = message.retain and delivery.retain_as_published
            session.deliver(message, min(message.qos, delivery.qos), retain, delivery.ids, None)

    def retained_synced(self, key: bytes, number: int, message: Message) -> None:
        """Note a retained `message` that retained synchronisation brings to local subscribers,
        whether it is older than their subscriptions or not. `key`, `number`: its origin and
        sequence number."""
        self._synced.append((self._node.now, key, number, message.topic))

    def note(self, session: Session) -> None:
        """Note what a session has had of which other brokers, or older sessions, know nothing: the
        retained messages that a comparison brought, and what was delivered before it was known that
        it is older than a subscription."""
        evaluated, since = self._evaluated, self._node.now - self._limits.log_age_s
        for at, key, number, topic in reversed(self._synced):
            if at < since:
                break
            if any(s.known_since <= at for s in session.wanting(topic.decode())):
                evaluated.give(session, key, number)
        early = union(*(start.early for start in starts_of(session) if start is not None))
        here = offered(self._origins.vector) if early else {}
        for entry in self.logged(early, since) if early else ():
            for number, topic in enumerate(entry.topics(), entry.sequence):
                if evaluated.had(session, here, entry.key, number, topic):
                    evaluated.give(session, entry.key, number)
