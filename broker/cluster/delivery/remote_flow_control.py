"""Backpressure over links: a slow subscriber's broker asks the brokers where its messages are
published to hold their publishers.

A link is always read, as it carries control packets. Instead the broker with the slow subscriber
(or link, or plugin) notes which topics of which origins are queued, and tells these origins (HOLD,
along the tree). An origin does not read its publishers of these topics until it is released, or
until HOLD is not repeated (docs/decisions/0018). Messages that are under way are kept.

    HOLD  u16 ms for which it is valid, then filters, each u16 length and text; none: RELEASE. Each
          HOLD replaces the one before
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqttree.broker.base import costs
from mqttree.broker.cluster.events import RouteChanged
from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.core.client import Client
from mqttree.broker.core.connection import Arrival, Connection
from mqttree.broker.core.flow_control import HOLD_TIMEOUT_S
from mqttree.routing.topic_filter import matches, split_shared

if TYPE_CHECKING:
    from mqttree.broker.base.timers import Timer
    from mqttree.broker.cluster.delivery.ports import DeliveringBroker
    from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
    from mqttree.broker.core.delivery_queue import DeliveryQueue
    from mqttree.broker.core.session import Session
    from mqttree.routing.link_state import LinkStateDatabase

HOLD_INTERVAL_S = 0.02
"""s between two different things that one broker tells another about whom to hold; the first
goes at once."""

HOLD_REPEAT_S = 0.2
"""s after which they are repeated; valid for two and a half times as long, so that a broker
that hangs holds no publisher for longer than a slow client would (`HOLD_TIMEOUT_S`). Each is the
longer the more brokers get HOLD."""

HOLDS_PER_SECOND = 250.0
"""that one broker sends, about; links on the way take thousands a second
(`link_requests_per_second`)."""

MAX_KNOWN_TOPICS = 4096
"""topics of which a broker that is asked remembers whether they match; then they are matched
again."""

HOLD = 16
"""Kind of the message to one broker (`unicast_bus`)."""

HOLD_TOPICS = 64
HOLD_BYTES = 16 * 1024
"""topics that one slow subscriber, and that one broker, has held by name, and bytes of them; beyond
it the subscriber's filters stand for them, and beyond these everything."""

HOLD_LIFE = 10.0
"""s; for which a HOLD is valid at most, however many origins get one."""

EVERYTHING = b"#"

Filters = dict[bytes, int]
"""Filters or topic names -> how many slow receivers want them held."""


class Wish:
    """The topics that one slow subscriber, link or plugin wants held, by origin (key of 16
    characters)."""

    __slots__ = ("origins", "wide")

    def __init__(self) -> None:
        self.origins: dict[bytes, set[bytes]] = {}
        # Origins with too many topics, which filters stand for; and those that are not asked.
        self.wide: set[bytes] = set()


class PauseRequest:
    """What an origin was asked to hold, and when (s)."""

    __slots__ = ("at", "changed", "holding")

    def __init__(self) -> None:
        self.at = float("-inf")
        self.changed = False
        self.holding = False


class Asked:
    """The topics that another broker wants held here; the reason for which publishers are not
    read."""

    __slots__ = ("_known", "_most", "_wild", "filters", "ignored", "since", "timer", "until")

    def __init__(self, now: float, known: int) -> None:
        """`known`: so many topics are remembered (`MAX_KNOWN_TOPICS`)."""
        self._most = known
        self.filters: frozenset[bytes] = frozenset()
        self.since = now
        self.until = now
        self.ignored = False  # it asks for too long
        self.timer: Timer | None = None
        self._wild: list[str] = []
        self._known: dict[bytes, bool] = {}

    def take(self, filters: frozenset[bytes]) -> None:
        """Replace the filters: publishers to other topics are not held."""
        self.filters = filters
        self._wild = [f.decode(errors="replace") for f in filters if b"#" in f or b"+" in f]
        self._known.clear()

    def wants(self, topic: bytes) -> bool:
        """Whether publishers of this topic are to be held."""
        if self.ignored:
            return False
        if topic in self.filters:
            return True
        if not self._wild:
            return False
        found = self._known.get(topic)
        if found is None:
            if len(self._known) >= self._most:
                self._known.clear()
            text = topic.decode(errors="replace")
            found = self._known[topic] = any(matches(f, text) for f in self._wild)
        return found


class RemoteFlowControl:
    """Asks other brokers to hold publishers, and holds local publishers for other brokers."""

    def __init__(
        self,
        node: DeliveringBroker,
        database: LinkStateDatabase,
        bus: UnicastBus,
    ) -> None:
        """`node`: this broker; `database`: which brokers can be reached; `bus`: carries HOLD to
        them."""
        self._node = node
        self._counters = node.counters
        self._limits = node.limits
        self._database = database
        self._bus = bus
        self.held: dict[bytes, Asked] = {}
        """What other brokers want held here, by their id. Nearly always empty; then a PUBLISH costs
        no more than a look at it."""
        self._wishes: dict[object, Wish] = {}
        self._wanted: dict[bytes, Filters] = {}  # all wishes together, by the origin's broker id
        self._requests: dict[bytes, PauseRequest] = {}
        self._timer: Timer | None = None
        # Sessions with longer queues than the limit allows -> bytes of memory.
        self._over: dict[DeliveryQueue, int] = {}
        self._over_bytes = 0  # of all these; a little too much until the next turn
        bus.receive(HOLD, self.received)

    # ---------------------------------------------------------------- slow receivers here

    def note(self, slow: object, arrival: Arrival | None) -> None:
        """Have the origin of the message that a link has just brought (`arrival`) hold its
        publishers for `slow`, until `released`."""
        if arrival is None:
            return
        key, topic, at = arrival
        # An older one is not why `slow` is too slow now.
        if at == self._node.now:
            self.note_for(slow, key, topic)

    def note_for(self, slow: object, key: bytes, topic: bytes) -> None:
        """Have the origin `key` (16 characters) hold its publishers to `topic` for `slow`, until
        `released`."""
        wish = self._wishes.get(slow)
        if (
            wish is not None
            and key in wish.origins
            and (key in wish.wide or topic in wish.origins[key])
        ):
            return
        self._note(slow, key, topic)

    def hold_origin(self, slow: Connection, key: bytes, topic: bytes) -> None:
        """Have the origin `key` hold its publishers to `topic` until `slow` has caught up, or made
        no progress for `HOLD_TIMEOUT_S`."""
        if self._node.flow_control.watched(slow):
            self.note_for(slow, key, topic)

    def _note(self, slow: object, key: bytes, topic: bytes) -> None:
        filters = _filters(slow)
        if not any(matches(f.decode(), topic.decode()) for f in filters):
            return  # the message is for others
        wish = self._wishes.setdefault(slow, Wish())
        topics = wish.origins.setdefault(key, set())
        origin = split_key(key)[0]
        if origin == self._node.config.id:  # from before this broker was started again
            wish.wide.add(key)
            return
        wanted = self._wanted.setdefault(origin, {})
        if len(topics) < HOLD_TOPICS:
            added = [topic]
        else:
            wish.wide.add(key)
            _subtract(wanted, topics)
            topics.clear()
            added = filters
        topics.update(added)
        news = [found for found in topics if found not in wanted]
        for found in added:
            wanted[found] = wanted.get(found, 0) + 1
        if news:
            self._changed(origin)

    def released(self, slow: object) -> None:
        """Release the publishers that are held for `slow`: it has caught up, or is gone, or has
        made no progress for too long."""
        wish = self._wishes.pop(slow, None)
        if wish is None:
            return
        for key, topics in wish.origins.items():
            origin = split_key(key)[0]
            wanted = self._wanted.get(origin)
            if wanted is not None:
                _subtract(wanted, topics)
                if not wanted:
                    del self._wanted[origin]
                    self._changed(origin)

    # ---------------------------------------------------------------- HOLDs to origins

    def _changed(self, origin: bytes) -> None:
        request = self._requests.setdefault(origin, PauseRequest())
        request.changed = True
        if self._node.now >= request.at + self._pace():
            self._send(origin, request, self._node.now)
        self._arm()

    def _pace(self) -> float:
        """The least time (s) between two HOLDs to one origin: the more origins, the longer, as all
        links on the path carry them."""
        return max(HOLD_INTERVAL_S, len(self._requests) / HOLDS_PER_SECOND)

    def _repeat(self) -> float:
        """After how long (s) the same HOLD is sent again."""
        return min(HOLD_LIFE / 2.5, max(HOLD_REPEAT_S, 10 * self._pace()))

    def _send(self, origin: bytes, request: PauseRequest, now: float) -> None:
        wanted = self._wanted.get(origin, {})
        request.at = now
        request.changed = False
        request.holding = bool(wanted)
        if not self._database.reaches(origin):
            return  # the repetition reaches it, if it is back by then
        life = 2.5 * self._repeat()
        self._bus.send(origin, HOLD, encode_hold(life, wanted), at_once=True)
        self._counters.pause_requests_sent += request.holding

    def _arm(self) -> None:
        if self._timer is None and (self._requests or self._over):
            wait = self._pace() if self._requests else HOLD_TIMEOUT_S
            self._timer = self._node.timers.schedule(self._node.now + wait, self._turn)

    def _turn(self, now: float) -> None:
        """Send what has changed and repeat what has not."""
        self._timer = None
        pace, repeat = self._pace(), self._repeat()
        for origin, request in list(self._requests.items()):
            if (request.changed and now >= request.at + pace) or (
                request.holding and now >= request.at + repeat
            ):
                self._send(origin, request, now)
            elif not (request.changed or request.holding) and now >= request.at + repeat:
                del self._requests[origin]
        self._count()
        self._arm()

    # ---------------------------------------------------------------- messages under way

    def room(self, queue: DeliveryQueue, size: int) -> bool:
        """Whether a full queue may have one more message of `size` bytes: it was under way when
        HOLD was sent."""
        if queue.conn not in self._wishes:
            return False
        memory = queue.queued_bytes + size + len(queue.queue) * costs.QUEUED_MEMORY
        total = self._over_bytes - self._over.get(queue, 0) + memory
        if memory > self._limits.held_queue_bytes or total > self._limits.held_queues_bytes:
            return False
        self._over[queue] = memory
        self._over_bytes = total
        self._counters.queued_over_limit += 1
        return True

    def spacious(self, session: Session) -> bool:
        """Whether a session whose queue is beyond the limit uses less than half of the memory that
        such sessions may have."""
        memory = session.queued_bytes + len(session.queue) * costs.QUEUED_MEMORY
        within = (
            memory < self._limits.held_queue_bytes // 2
            and self._over_bytes < self._limits.held_queues_bytes // 2
        )
        return within and session.conn in self._wishes

    @property
    def over(self) -> int:
        """Bytes of memory of all sessions whose queues are beyond the limit."""
        return self._over_bytes

    def _count(self) -> None:
        for session in list(self._over):
            queue = session.queue
            if len(queue) > session.max_queued or session.queued_bytes > session.max_queued_bytes:
                self._over[session] = session.queued_bytes + len(queue) * costs.QUEUED_MEMORY
            else:
                del self._over[session]
        self._over_bytes = sum(self._over.values())

    # ---------------------------------------------------------------- slow receivers at others

    def hold_if_paused(self, topic: bytes, source: Connection | None) -> None:
        """Hold `source`, which has published to `topic`, if another broker wants that. To be called
        only while `held` is not empty."""
        if source is None or source.closed:
            return
        for asked in self.held.values():
            if asked.wants(topic):
                if not source.held:
                    self._counters.publishers_paused += 1
                self._node.flow_control.hold(source, asked)

    def received(self, sender: bytes, body: bytes, now: float) -> None:
        """Take HOLD or RELEASE (`body`) from the broker `sender`; `now`: s. An invalid one raises
        nothing, as the neighbour that passed it on is not at fault."""
        life, filters = decode_hold(body)
        asked = self.held.get(sender)
        if not filters:
            if asked is not None:
                self._release(sender, asked)
            return
        if not self._database.reaches(sender):
            return  # no such broker can be reached
        if asked is None:
            asked = self.held[sender] = Asked(now, MAX_KNOWN_TOPICS)
            self._counters.pause_requests_received += 1
            self._watch(sender, asked, now + life)
        asked.until = now + life
        if asked.ignored:
            return
        if now - asked.since > self._limits.hold_max_s:
            asked.ignored = True
            self._counters.pause_requests_ignored += 1
            text = (
                f"broker {sender.hex()} has paused publishers here for "
                f"{self._limits.hold_max_s:g} s; its pause requests are ignored from now on"
            )
            self._node.log_limit.line(
                "warning", "publishers paused for too long", sender.hex(), text
            )
            self._node.flow_control.release(asked)
        elif filters != asked.filters:
            fewer = asked.filters - filters
            asked.take(filters)
            if fewer:  # a publisher to a topic that is still held is held at its next message
                self._node.flow_control.release(asked)

    def _watch(self, sender: bytes, asked: Asked, when: float) -> None:
        asked.timer = self._node.timers.schedule(when, lambda now: self._expire(sender, asked, now))

    def _expire(self, sender: bytes, asked: Asked, now: float) -> None:
        if self.held.get(sender) is asked:
            if asked.until <= now:
                self._release(sender, asked)
            else:
                self._watch(sender, asked, asked.until)

    def _release(self, sender: bytes, asked: Asked) -> None:
        del self.held[sender]
        if asked.timer is not None:
            self._node.timers.cancel(asked.timer)
        self._node.flow_control.release(asked)

    def route_changed(self, event: RouteChanged) -> None:
        """Release the publishers that were held for a broker that is gone."""
        broker_id, via = event.broker_id, event.via
        asked = self.held.get(broker_id)
        if via is None and asked is not None:
            self._release(broker_id, asked)


def _filters(slow: object) -> list[bytes]:
    """Return the filters of a client at QoS 1 or 2; "#" if there are too many, or if it is
    not a client."""
    if isinstance(slow, Connection) and isinstance(slow.owner, Client):
        subscriptions = slow.owner.session.subscriptions
        if len(subscriptions) <= HOLD_TOPICS:
            return [split_shared(s.filter)[1].encode() for s in subscriptions.values() if s.qos]
    return [EVERYTHING]


def _subtract(wanted: Filters, topics: set[bytes]) -> None:
    for topic in topics:
        left = wanted.get(topic, 0) - 1
        if left > 0:
            wanted[topic] = left
        else:
            wanted.pop(topic, None)


def encode_hold(life: float, filters: Filters) -> bytes:
    """Encode HOLD, valid for `life` s; without filters RELEASE. "#" stands for too many filters."""
    if len(filters) > HOLD_TOPICS or sum(map(len, filters)) > HOLD_BYTES:
        filters = {EVERYTHING: 1}
    return int(life * 1000).to_bytes(2, "big") + b"".join(
        len(f).to_bytes(2, "big") + f for f in filters
    )


def decode_hold(body: bytes) -> tuple[float, frozenset[bytes]]:
    """Return (validity in s, filters). If filters are truncated or beyond the limits, they are "#":
    the broker that asks is slow."""
    life = min(int.from_bytes(body[:2], "big") / 1000, HOLD_LIFE)
    filters: list[bytes] = []
    at = 2
    while at < len(body):
        end = at + 2 + int.from_bytes(body[at : at + 2], "big")
        if end > len(body) or len(filters) >= HOLD_TOPICS:
            return life, frozenset((EVERYTHING,))
        filters.append(body[at + 2 : end])
        at = end
    return life, frozenset(filters)
