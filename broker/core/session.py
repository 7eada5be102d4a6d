"""A client's session: subscriptions, messages in flight and waiting (MQTT-3.1.2-4, MQTT-4.1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import count
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from mqttree.broker.base import costs
from mqttree.broker.core.core_broker import CoreBroker
from mqttree.broker.core.message import Message, size_of
from mqttree.broker.core.wildcard_forms import WildcardForms
from mqttree.broker.wire.constants import MAX_PACKET_SIZE
from mqttree.broker.wire.properties import encode_identifier, split_expiry
from mqttree.broker.wire.publish_header import (
    PACKET_IDS,
    PUBACK_HEAD,
    PUBCOMP_HEAD,
    PUBREC_HEAD,
    PUBREL_HEAD,
    packet_size,
    topic_end,
)
from mqttree.broker.wire.varint import decode_varint, read_length
from mqttree.routing.group_selection import group_id_of, group_key

if TYPE_CHECKING:
    from mqttree.broker.auth.authorization import Access, Permissions
    from mqttree.broker.base.timers import Timer
    from mqttree.broker.core.connection import Backpressure, Connection
    from mqttree.broker.core.publish_run import PublishRun
    from mqttree.broker.core.start_point import SubscriptionStart
    from mqttree.broker.core.topic_alias import TopicAliases
    from mqttree.broker.wire import Will

MAX_MISSED_BYTES: Final = 1024 * 1024
"""bytes of these."""

NEVER: Final = float("inf")

MAX_ABSORBED: Final = 16
"""older sessions of a client that are remembered as merged into its newest one: as many as brokers
that a client meets in one outage."""


class Absorbed(NamedTuple):
    """An older session that was merged into one. `holder`: id of its broker, which may not know it
    yet; `stamp`: of its newest connection; `by`: that of the session that it was merged into."""

    holder: bytes
    stamp: int
    by: int


ABSORBED: Final = Struct(">8sQQ")
"""An `Absorbed` as bytes, in the journal and between brokers."""


class Subscription:
    """One filter of one session with its options (MQTT-3.8.3.1): how the session gets messages that
    match no other filter of it."""

    __slots__ = (
        "filter",
        "ids",
        "no_local",
        "qos",
        "retain_as_published",
        "session",
        "start",
    )

    def __init__(
        self,
        session: Session,
        topic_filter: str,
        qos: int,
        no_local: bool = False,
        retain_as_published: bool = False,
        identifier: int = 0,
    ) -> None:
        """`session`: whose it is; `topic_filter`: with `$share/<group>/`, if it is shared; `qos`:
        granted; `no_local`, `retain_as_published`: its options; `identifier`: Subscription
        Identifier, 0: none."""
        self.session = session
        self.filter = topic_filter
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        # What its messages say: its Subscription Identifier, encoded.
        self.ids = encode_identifier(identifier) if identifier else b""
        self.start: SubscriptionStart | None = None  # None: all that comes is for it

    @property
    def identifier(self) -> int:
        """Its Subscription Identifier, 0: none."""
        return decode_varint(self.ids, 1)[0] if self.ids else 0

    @property
    def own(self) -> Subscription | None:
        """With No Local: how the session gets its own messages (MQTT-3.8.3-3), None: not at all."""
        return None

    @property
    def plain(self) -> bool:
        """Whether this session takes QoS 0 packets as they came, byte for byte."""
        return not (self.no_local or self.ids or self.session.limited)

    def gets(self, key: bytes, sequence: int) -> bool:
        """Whether the number `sequence` of the origin `key` is for it."""
        return self.start is None or sequence > self.start.tops.get(key, 0)

    @property
    def adopted(self) -> bool:
        """Whether it was made at another broker, or before this one was started."""
        return self.start is not None and self.start.adopted

    @property
    def known_since(self) -> float:
        """Since when it is known here where it begins (s); -inf: all that comes is for it."""
        return float("-inf") if self.start is None else self.start.at


class SharedGroup:
    """The members here of one `$share/<group>/<filter>` (MQTT-4.8.2); each message goes to one of
    them, in turn."""

    __slots__ = ("_turn", "announced", "connected", "group_id", "key", "members")

    def __init__(self, name: str, inner: str) -> None:
        self.key = group_key(name, inner)
        self.group_id = group_id_of(self.key)
        self.members: dict[str, Subscription] = {}
        self.connected: set[str] = set()  # of them
        self.announced = b""  # to other brokers
        self._turn = count()

    def note(self, session: Session) -> None:
        """Take note of whether a member has a connection."""
        if session.conn is not None and session.client_id in self.members:
            self.connected.add(session.client_id)
        else:
            self.connected.discard(session.client_id)

    def pick(self, allowed: set[Session] | None = None) -> Subscription | None:
        """Return the next member: a connected one that keeps up, else a connected one, else any
        (its session queues).

        `allowed`: only one of these.
        """
        members = [m for m in self.members.values() if allowed is None or m.session in allowed]
        if not members:
            return None
        start = next(self._turn)
        best: Subscription | None = None
        for offset in range(len(members)):
            member = members[(start + offset) % len(members)]
            conn = member.session.conn
            if conn is not None:
                if not conn.backlog and not member.session.queue:
                    return member
                best = best if best is not None and best.session.conn is not None else member
            elif best is None and not member.session.ended:
                best = member
        return best


class Outgoing:
    """A QoS 1 or 2 message towards one session, waiting or in flight."""

    __slots__ = ("ids", "message", "qos", "retain")

    def __init__(self, message: Message, qos: int, retain: bool, ids: bytes) -> None:
        """`message`: what is sent; `qos`, `retain`: of its PUBLISH; `ids`: encoded Subscription
        Identifiers."""
        self.message = message
        self.qos = qos
        self.retain = retain
        self.ids = ids


class SharedOutgoing(Outgoing):
    """One that another member of its group may get when the session ends (MQTT 5, 4.8.2)."""

    __slots__ = ("allowed", "group")

    def __init__(
        self,
        message: Message,
        qos: int,
        retain: bool,
        ids: bytes,
        group: SharedGroup,
        allowed: set[Session] | None,
    ) -> None:
        """`message`, `qos`, `retain`, `ids`: as of `Outgoing`; `group`: whose member gets it;
        `allowed`: members that the topic plugins allow, None: all."""
        super().__init__(message, qos, retain, ids)
        self.group = group
        self.allowed = allowed  # by the topic plugins; None: all members


class Repeat(Outgoing):
    """Waits for the window of a new connection with the packet identifier that it had on the last
    one."""

    __slots__ = ("original", "packet_id")

    def __init__(self, original: Outgoing, packet_id: int) -> None:
        super().__init__(original.message, original.qos, original.retain, original.ids)
        self.original = original
        self.packet_id = packet_id


RELEASED: Final = Outgoing(Message(b"", b"", 2, False, b"", None, None), 2, False, b"")
"""Stands in `inflight` for a QoS 2 message whose PUBREC came: PUBREL is what is repeated now
(MQTT-4.4.0-1)."""


class SessionRecorder(Protocol):
    """Records what changes in one durable session, so that the session survives its broker
    (docs/decisions/0021). Each method is called right after the change, unless it says otherwise.
    """

    @property
    def number(self) -> int:
        """Of the session in the journal; less than 1 << 32."""

    def record_attributes(self) -> None:
        """The will, the owner or another attribute of the session has changed."""

    def record_all(self) -> None:
        """Everything has changed: what was recorded before is not needed any more."""

    def subscribed(self, subscription: Subscription) -> None:
        """A subscription is new, or has other options."""

    def unsubscribed(self, topic_filter: str) -> None:
        """The subscription to a filter has ended."""

    def record_starts(self) -> None:
        """The subscriptions begin behind other sequence numbers (`subscription_start`)."""

    def record_delivered(self) -> None:
        """More is known of what the session has had at other brokers (`delivered_ranges`)."""

    def record_absorbed(self) -> None:
        """An older session was merged into it."""

    def record_owed(self) -> None:
        """The session alone is owed other messages than before (`delivered_ranges`)."""

    def queued(self, outgoing: Outgoing, source: Connection | None) -> None:
        """A message is the last one of the queue. `source`: its publisher, which hears of it once
        that is durable."""

    def sent(self, packet_id: int, outgoing: Outgoing, source: Connection | None) -> None:
        """A message (`outgoing`) that was not in the queue is in flight as `packet_id`. `source`:
        as of `queued`."""

    def sent_run(self, packet_id: int, run: PublishRun) -> None:
        """A run of messages that were not in the queue is in flight, from `packet_id` on."""

    def dequeued(self, packet_id: int, count: int, first: Message, qos: int) -> None:
        """`count` messages of the queue are in flight, from `packet_id` on.

        Those ahead of `first` have expired. `qos` is the highest of the messages in flight.
        """

    def acknowledged(self, packets: bytes) -> None:
        """The client has sent PUBACK, PUBREC, PUBREL or PUBCOMP: whole packets of one type, four
        bytes each. What they bring about is recorded after them."""

    def received(self, packet_ids: bytes) -> None:
        """The client has published at QoS 2 with these identifiers, two bytes each."""


class QueueRoom(Protocol):
    """Says whether full queues take more."""

    def room(self, session: Session, size: int, /) -> bool:
        """Whether a session with a full queue may have one more message of `size` bytes: it was on
        its way when publishers at other brokers were asked to wait."""


class SettledShares(Protocol):
    """Messages that other brokers gave to members of shared subscriptions."""

    def settled(self, outgoing: SharedOutgoing, /) -> None:
        """A member has acknowledged a message, or no member is to get it any more."""


class OtherBrokers(Protocol):
    """What a session asks of the cluster."""

    @property
    def remote_flow_control(self) -> QueueRoom:
        """Says whether a full queue takes more."""

    @property
    def custody(self) -> SettledShares:
        """Hears which messages of other brokers are settled."""


class QueueMemory(Protocol):
    """Counts what sessions have queued."""

    appended: int
    """Bytes that were ever queued."""

    @property
    def brink(self) -> int:
        """`appended` from which on `takes_queued` is to be asked."""

    def takes_queued(self, session: Session, /) -> bool:
        """Whether a message may be queued for a session."""


class Listening(Protocol):
    """The events that plugins subscribe to."""

    @property
    def events(self) -> frozenset[str]:
        """The names of the events that some plugin wants."""


class SessionHost(CoreBroker, Protocol):
    """What a session asks of its broker."""

    @property
    def access(self) -> Access | None:
        """Users and rules in force; None: plugins alone decide."""

    @property
    def dirty(self) -> list[Connection | Session]:
        """Connections and sessions whose outbox is not empty."""

    @property
    def hooks(self) -> Listening:
        """The events that plugins subscribe to."""

    @property
    def cluster(self) -> OtherBrokers:
        """The federation, as far as this module needs it."""

    @property
    def memory(self) -> QueueMemory:
        """How much memory queues may take."""

    def event(self, name: str, **arguments: Any) -> None:
        """Tell plugins, if one listens to this."""

    @property
    def flow_control(self) -> Backpressure:
        """Says which connections are not read."""


class Session:
    """State kept for one client id. An outlet like `Connection`: `outbox` is the connection's own
    list while there is one."""

    __slots__ = (
        "absorbed",
        "account",
        "aliases",
        "checked",
        "clean",
        "client_id",
        "conn",
        "counters",
        "created",
        "dirty",
        "dropped_full",
        "dropped_large",
        "ended",
        "expiry",
        "expiry_timer",
        "filters_memory",
        "floor",
        "forms",
        "incoming",
        "inflight",
        "limited",
        "listener",
        "max_queued",
        "max_queued_bytes",
        "maximum_packet_size",
        "missed",
        "missed_bytes",
        "next_packet_id",
        "node",
        "outbox",
        "owner",
        "permissions",
        "queue",
        "queued_bytes",
        "receive_maximum",
        "recorder",
        "stamp",
        "subscriptions",
        "unsent",
        "username",
        "version",
        "will",
        "will_memory",
        "will_timer",
    )

    def __init__(self, node: SessionHost, client_id: str) -> None:
        self.node = node
        # The broker's: every message needs them.
        self.counters = node.counters
        self.dirty = node.dirty
        self.client_id = client_id
        self.conn: Connection | None = None
        self.outbox: list[bytes] = []
        self.version = 4
        # When its newest connection began (see `takeover`); 0: it is on its way here.
        self.stamp = 0
        self.absorbed: tuple[Absorbed, ...] = ()  # older sessions that were merged into it
        self.created = 0  # when the session began,
        # and the last Clean Start of its client, as far as known: what is older is not part of it
        self.floor = 0
        self.clean = True
        self.expiry = 0.0  # s after the connection ends; NEVER for 3.1.1 without Clean Session
        self.username: str | None = None
        # Whose it is (see `session_owner`); None: its client's name was not checked.
        self.owner: str | None = None
        access = node.access
        self.listener: str | None = ""  # where its last connection came in; None: not known
        # None: may do everything.
        self.permissions: Permissions | None = None if access is None else access.unknown(client_id)
        self.account: object | None = None  # amqtt's Session, made by the server for its plugins
        self.subscriptions: dict[str, Subscription] = {}
        self.filters_memory = 0  # bytes that these take (see `memory_limit`)
        self.forms: WildcardForms | None = None  # of these, made with the first one that has one
        # Nothing is for it any more, though not all of these may be taken out yet.
        self.ended = False
        # `bytes`: the PUBLISH as it was sent on this connection.
        self.inflight: dict[int, Outgoing | bytes] = {}
        self.unsent: set[int] = set()  # of these, what its last connection ended before
        self.queue: deque[Outgoing] = deque()
        self.queued_bytes = 0
        # What may wait; those beyond are dropped, and counted here, too.
        self.max_queued = node.limits.max_queued
        self.max_queued_bytes = node.limits.max_queued_bytes
        self.dropped_full = 0
        self.dropped_large = 0  # than the client takes
        self.missed: list[Outgoing] | None = None  # at QoS 0, while away
        self.missed_bytes = 0
        self.incoming: set[int] = set()  # QoS 2 packet ids received and not yet released
        self.next_packet_id = 0
        self.receive_maximum = node.limits.max_inflight
        self.maximum_packet_size = MAX_PACKET_SIZE
        self.limited = False  # announced a maximum packet size: every packet is measured
        self.aliases: TopicAliases | None = None  # of this connection
        self.checked = False  # either of these two
        self.will: Will | None = None
        self.will_memory = 0  # bytes that it takes
        self.will_timer: Timer | None = None
        self.expiry_timer: Timer | None = None
        # None: the session is not durable, it ends with its broker at the latest.
        self.recorder: SessionRecorder | None = None

    def expire_after(self, interval: int) -> None:
        """Take over a Session Expiry Interval (s; MQTT 5, 3.1.2.11.2), as far as this broker grants
        it."""
        longest = self.node.config.session_expiry_max
        self.expiry = NEVER if interval == 0xFFFFFFFF else float(interval)
        if longest is not None:
            self.expiry = min(self.expiry, float(longest))

    def stop_timers(self) -> None:
        """The client is back, or the session ends: stop the timers of a client that is away."""
        for timer in (self.will_timer, self.expiry_timer):
            if timer is not None:
                self.node.timers.cancel(timer)
        self.will_timer = self.expiry_timer = None

    # ---------------------------------------------------------------- out

    def send_packet(self, data: bytes) -> None:
        """Queue bytes (whole packets) for the client."""
        if not self.outbox:
            self.dirty.append(self)
        self.outbox.append(data)

    def deliver(
        self, message: Message, qos: int, retain: bool, ids: bytes, source: Connection | None
    ) -> None:
        """Send `message`, or queue it.

        `qos`: min(published, granted) (MQTT-3.8.4-8); `retain`: the RETAIN flag; `ids`: encoded
        subscription identifiers. `source`: the connection that the message came on, which waits
        for this client and for the journal; None: no connection has to wait.
        """
        node = self.node
        if qos == 0:
            if self.conn is None:
                if (
                    node.config.keep_missed
                    and (message.retain or message.qos == 0)
                    and self._room()
                ):
                    self.miss(message, retain, ids)
                return
            if not ids and message.expires_at is None:
                head, tail = message.halves(self.version, 0, retain)
                data = head + tail
            else:
                data = message.packet(
                    self.version, 0, retain, 0, now=node.now, subscription_ids=ids
                )
            if self.checked:
                data = self._fit(data)
                if not data:
                    return
            if not self.outbox:
                self.dirty.append(self)
            self.outbox.append(data)
            self.counters.delivered += 1
            return
        if self.conn is None or self.queue or len(self.inflight) >= self.receive_maximum:
            self._enqueue(Outgoing(message, qos, retain, ids), source)
        else:
            self._transmit(Outgoing(message, qos, retain, ids), source)

    @property
    def room(self) -> int:
        """How many messages at QoS 1 or 2 may be sent now, as bytes."""
        if self.conn is None or self.queue or self.checked:
            return 0
        return self.receive_maximum - len(self.inflight)

    def deliver_batch(self, batch: PublishRun, source: Connection | None) -> None:
        """Send a run of QoS 1 or 2 packets in the form for this client, for which there is
        `room`. `source`: as of `deliver`."""
        inflight = self.inflight
        count = batch.count
        first = self.next_packet_id % 65535 + 1
        numbers = range(first, first + count)
        if numbers[-1] > 65535 or (inflight and not inflight.keys().isdisjoint(numbers)):
            for message in batch.messages():  # the free identifiers are not in one piece
                self.deliver(message, batch.qos, False, b"", source)
            return
        data = batch.numbered(first)
        size = batch.size
        inflight.update(
            zip(numbers, [data[at : at + size] for at in range(0, len(data), size)], strict=True)
        )
        self.next_packet_id = numbers[-1]
        if not self.outbox:
            self.dirty.append(self)
        self.outbox.append(data)
        self.counters.delivered += count
        if self.recorder is not None:
            self.recorder.sent_run(first, batch)

    def deliver_shared(self, outgoing: SharedOutgoing, source: Connection | None) -> bool:
        """Deliver as a member of a group, which may get the message back (see `unfinished`).
        Returns whether it is waiting or in flight now: not at QoS 0, when it is too large for the
        client, or when the queue is full. `source`: as of `deliver`."""
        if outgoing.qos == 0:
            self.deliver(outgoing.message, 0, outgoing.retain, outgoing.ids, source)
            return False
        if self.conn is None or self.queue or len(self.inflight) >= self.receive_maximum:
            self._enqueue(outgoing, source)
            return bool(self.queue) and self.queue[-1] is outgoing
        self._transmit(outgoing, source)
        return self.inflight.get(self.next_packet_id) is outgoing

    def unfinished(self) -> list[SharedOutgoing]:
        """Messages of shared subscriptions that another member may still get: not those at QoS 2
        that were sent
        (MQTT-4.8.2-5), nor those that were answered (MQTT-4.8.2-6)."""
        sent: list[Outgoing] = [
            o for o in self.inflight.values() if isinstance(o, SharedOutgoing) and o.qos == 1
        ]
        for outgoing in self.queue:
            if not isinstance(outgoing, Repeat):
                sent.append(outgoing)
            elif outgoing.qos == 1:
                sent.append(outgoing.original)
        return [o for o in sent if isinstance(o, SharedOutgoing)]

    def _transmit(
        self, outgoing: Outgoing, source: Connection | None, *, waited: bool = False
    ) -> None:
        """Send a message and have it in flight, unless it is too large for the client.

        `waited`: it was the first one of the queue.
        """
        message = outgoing.message
        inflight = self.inflight
        packet_id = self.next_packet_id % 65535 + 1
        while packet_id in inflight:
            packet_id = packet_id % 65535 + 1
        self.next_packet_id = packet_id
        if not outgoing.ids and message.expires_at is None:
            head, tail = message.halves(self.version, outgoing.qos, outgoing.retain)
            data = b"%b%b%b" % (head, PACKET_IDS[packet_id], tail)
        else:
            data = message.packet(
                self.version,
                outgoing.qos,
                outgoing.retain,
                packet_id,
                now=self.node.now,
                subscription_ids=outgoing.ids,
            )
        if self.checked:
            data = self._fit(data)
            if not data:
                self._settled(outgoing)
                if waited and self.recorder is not None:
                    self.recorder.dequeued(packet_id, 1, message, outgoing.qos)
                    self.recorder.acknowledged(PUBACK_HEAD + PACKET_IDS[packet_id])
                return
        inflight[packet_id] = outgoing
        if not self.outbox:
            self.dirty.append(self)
        self.outbox.append(data)
        self.counters.delivered += 1
        if self.recorder is not None:
            if waited:
                self.recorder.dequeued(packet_id, 1, message, outgoing.qos)
            else:
                self.recorder.sent(packet_id, outgoing, source)

    def _fit(self, data: bytes) -> bytes:
        """Return a PUBLISH with its alias; b"" when it is too large for the client (MQTT-3.1.2-24,
        -25: as if delivered)."""
        if self.aliases is not None:
            data = self.aliases.apply(data, self.maximum_packet_size)
        if len(data) > self.maximum_packet_size:
            self.counters.dropped_too_large += 1
            self.dropped_large += 1
            return b""
        return data

    def may_subscribe(self, topic_filter: str) -> bool:
        """Whether the rules let the client subscribe to a filter (without `$share/<group>/`)."""
        return self.permissions is None or self.permissions.may_subscribe(topic_filter)

    def may_publish(self, topic: str) -> bool:
        """Whether the rules let the client publish to a topic."""
        return self.permissions is None or self.permissions.may_publish(topic)

    def may_receive(self, topic: str) -> bool:
        """Whether the rules let the client have messages of a topic."""
        return self.permissions is None or self.permissions.may_receive(topic)

    # ---------------------------------------------------------------- at QoS 0, for a client that
    # is away

    def _room(self) -> bool:
        limits = self.node.limits
        return self.missed is None or (
            len(self.missed) < limits.max_missed and self.missed_bytes < MAX_MISSED_BYTES
        )

    def miss(self, message: Message, retain: bool, ids: bytes) -> None:
        """Keep a QoS 0 `message` for a client that is away, if it was published with RETAIN, or to
        a subscription at QoS 1 or 2: amqtt's users expect it when they come back. The standard
        allows it (3.1.1, 3.1.2.4: "QoS 0 messages pending transmission"). `retain`: of its PUBLISH;
        `ids`: encoded Subscription Identifiers."""
        if message.retain or self._counts_on(message.topic.decode()):
            self.put_by(Outgoing(message, 0, retain, ids), None, tell=True)

    def _counts_on(self, topic: str) -> bool:
        return any(subscription.qos for subscription in self.wanting(topic))

    def wanting(self, topic: str) -> Iterator[Subscription]:
        """The subscriptions that match a topic, but for those as a member of a group."""
        forms, subscriptions = self.forms, self.subscriptions
        for topic_filter in (topic,) if forms is None else forms.matching(topic):
            if (subscription := subscriptions.get(topic_filter)) is not None:
                yield subscription

    def miss_runs(self) -> None:
        """Look through what the publish path left in the outbox of a client that is away: packets
        at QoS 0, in the form of its version, which came just now."""
        outbox, self.outbox = self.outbox, []
        if not self.node.config.keep_missed or not any(s.qos for s in self.subscriptions.values()):
            return
        # At so many in one turn, whether they are wanted or not.
        looks = self.node.limits.max_missed
        for data in outbox:
            position = 0
            while position < len(data) and looks and self._room():
                looks -= 1
                size = packet_size(data[position : position + 5])
                length, body = read_length(data, position + 1)
                start = topic_end(data, body)
                properties = b""
                payload = start
                expires_at: float | None = None
                if self.version == 5:
                    section, payload = read_length(data, start)
                    properties = data[payload : payload + section]
                    payload += section
                    expires_at, properties = split_expiry(properties, self.node.now)
                message = Message(
                    data[body + 2 : start],
                    data[payload : body + length],
                    0,
                    False,
                    properties,
                    expires_at,
                    None,
                )
                self.miss(message, False, b"")
                position += size

    def absorb(self, *absorbed: Absorbed) -> None:
        """Note older sessions that are merged into this one: not a second time, if their brokers
        or this one are killed before they are forgotten. The last MAX_ABSORBED are remembered."""
        self.absorbed = (*self.absorbed, *absorbed)[-MAX_ABSORBED:]
        if self.recorder is not None:
            self.recorder.record_absorbed()

    def put_by(self, outgoing: Outgoing, source: Connection | None, *, tell: bool) -> None:
        """Keep a message (`outgoing`) until the client comes. `source`: as of `deliver`. `tell`:
        plugins, too; else it was kept for it already, perhaps elsewhere."""
        if outgoing.qos:
            if not self._append(outgoing, source, kept=not tell):
                return
        elif self._room():
            if self.missed is None:
                self.missed = []
            self.missed.append(outgoing)
            self.missed_bytes += size_of(outgoing.message)
        else:
            return
        if tell and self.node.hooks.events:
            self.node.event(
                "broker_retained_message", message=outgoing.message, session=self, qos=outgoing.qos
            )

    def _send_missed(self) -> None:
        missed, self.missed, self.missed_bytes = self.missed or [], None, 0
        for outgoing in missed:
            if outgoing.message.expired(self.node.now):
                self.counters.expired += 1
            else:
                self.deliver(outgoing.message, 0, outgoing.retain, outgoing.ids, None)

    # ---------------------------------------------------------------- waiting at QoS 1 and 2

    def _append(self, outgoing: Outgoing, source: Connection | None, *, kept: bool = False) -> bool:
        size = size_of(outgoing.message)
        full = (
            len(self.queue) >= self.max_queued or self.queued_bytes + size > self.max_queued_bytes
        )
        if full and not kept and not self.node.cluster.remote_flow_control.room(self, size):
            self.counters.dropped_queue_full += 1
            self.dropped_full += 1
            return False
        memory = self.node.memory
        memory.appended += size + costs.QUEUED_MEMORY
        if memory.appended >= memory.brink and not kept and not memory.takes_queued(self):
            memory.appended -= size + costs.QUEUED_MEMORY
            self.counters.dropped_memory += 1
            return False
        self.queue.append(outgoing)
        self.queued_bytes += size
        if self.recorder is not None:
            self.recorder.queued(outgoing, source)
        return True

    def _enqueue(self, outgoing: Outgoing, source: Connection | None) -> None:
        conn = self.conn
        if conn is None:
            self.put_by(outgoing, source, tell=True)
        elif self._append(outgoing, source) and (
            len(self.queue) >= self.node.limits.hold_queued
            or self.queued_bytes >= self.node.limits.hold_queued_bytes
        ):
            self.node.flow_control.hold_publishers(conn, source)

    def pump(self) -> None:
        """Move waiting messages into the window as far as it goes."""
        queue = self.queue
        now = self.node.now
        while queue and len(self.inflight) < self.receive_maximum:
            if len(queue) > 1 and not self.checked and self._pump_plain():
                continue
            outgoing = queue.popleft()
            self.queued_bytes -= size_of(outgoing.message)
            if type(outgoing) is Repeat:
                self._repeat(outgoing.packet_id, outgoing.original)
            elif outgoing.message.expired(now):
                self.counters.expired += 1
                self._settled(outgoing)
            else:
                self._transmit(outgoing, None, waited=True)
        conn = self.conn
        if conn is not None:
            conn.waiting_since = now
            if (
                len(queue) < self.node.limits.hold_queued // 2
                and self.queued_bytes < self.node.limits.hold_queued_bytes // 2
                and not conn.backlog
            ):
                conn.stalled = False
                self.node.flow_control.release(conn)

    def _pump_plain(self) -> bool:
        """Send what needs nothing but a number from the head of the queue, as bytes; False when
        there is none."""
        queue, inflight, version = self.queue, self.inflight, self.version
        head_of_queue = queue[0].message
        first = self.next_packet_id % 65535 + 1
        numbers = range(
            first, first + min(len(queue), self.receive_maximum - len(inflight), 65536 - first)
        )
        if not inflight.keys().isdisjoint(numbers):
            return False
        packets: list[bytes] = []
        size = 0
        for number in numbers:
            outgoing = queue[0]
            message = outgoing.message
            if (
                type(outgoing) is not Outgoing
                or outgoing.ids
                or outgoing.retain
                or message.expires_at is not None
            ):
                break
            queue.popleft()
            size += len(message.payload) + len(message.topic) + len(message.properties)
            head, tail = message.halves(version, outgoing.qos, False)
            inflight[number] = packet = b"%b%b%b" % (head, PACKET_IDS[number], tail)
            packets.append(packet)
        if not packets:
            return False
        self.queued_bytes -= size
        self.next_packet_id = first + len(packets) - 1
        if not self.outbox:
            self.dirty.append(self)
        self.outbox += packets
        self.counters.delivered += len(packets)
        if self.recorder is not None:
            qos = max(packet[0] >> 1 & 3 for packet in packets)
            self.recorder.dequeued(first, len(packets), head_of_queue, qos)
        return True

    # ---------------------------------------------------------------- acknowledgements

    def qos_in_flight(self, packet_id: int) -> int:
        """QoS of the message in flight with this identifier, 0 when there is none."""
        sent = self.inflight.get(packet_id)
        if sent is None:
            return 0
        return sent[0] >> 1 & 3 if isinstance(sent, bytes) else sent.qos

    def unpack(self) -> None:
        """Turn packets in flight into messages: the next connection may speak another version."""
        for packet_id, sent in self.inflight.items():
            if isinstance(sent, bytes):
                self.inflight[packet_id] = self.unpacked(sent)

    def unpacked(self, sent: bytes) -> Outgoing:
        """Return the message of a packet that was sent on this connection."""
        body = read_length(sent, 1)[1]
        start = topic_end(sent, body)
        payload = properties = start + 2
        if self.version == 5:
            size, properties = read_length(sent, properties)
            payload = properties + size
        qos = sent[0] >> 1 & 3
        section = sent[properties:payload]
        return Outgoing(
            Message(sent[body + 2 : start], sent[payload:], qos, False, section, None, None),
            qos,
            False,
            b"",
        )

    def acknowledged(self, packet_id: int) -> bool:
        """PUBACK: free the identifier; False when it was not in use (MQTT-4.3.2-3)."""
        if self.qos_in_flight(packet_id) != 1:
            return False
        if self.recorder is not None:
            self.recorder.acknowledged(PUBACK_HEAD + PACKET_IDS[packet_id])
        self._settled(self.inflight.pop(packet_id))
        if self.queue:
            self.pump()
        return True

    def _settled(self, sent: Outgoing | bytes) -> None:
        if type(sent) is SharedOutgoing:
            self.node.cluster.custody.settled(sent)

    def received(self, packet_id: int, reason: int) -> bool:
        """PUBREC: from now on PUBREL is repeated; a failure code ends the exchange (MQTT-4.3.3-1).
        False: unknown."""
        if self.qos_in_flight(packet_id) != 2:
            return False
        if self.recorder is not None:
            ends = reason >= 0x80
            self.recorder.acknowledged(
                (PUBCOMP_HEAD if ends else PUBREC_HEAD) + PACKET_IDS[packet_id]
            )
        self._settled(self.inflight[packet_id])
        if reason >= 0x80:
            del self.inflight[packet_id]
            self.pump()
        else:
            self.inflight[packet_id] = RELEASED
        return True

    def completed(self, packet_id: int) -> bool:
        """PUBCOMP: the end of a QoS 2 exchange. False: unknown."""
        if self.inflight.get(packet_id) is not RELEASED:
            return False
        if self.recorder is not None:
            self.recorder.acknowledged(PUBCOMP_HEAD + PACKET_IDS[packet_id])
        del self.inflight[packet_id]
        if self.queue:
            self.pump()
        return True

    def redeliver(self) -> None:
        """On reconnection: repeat what is in flight, in its order, with DUP (MQTT-4.4.0-1), then
        what waited.

        What exceeds the Receive Maximum of the new connection waits for its turn (MQTT-3.3.4-9).
        """
        inflight = self.inflight
        self.unsent.clear()
        room = self.receive_maximum - sum(outgoing is RELEASED for outgoing in inflight.values())
        late: list[Repeat] = []
        for packet_id, outgoing in list(inflight.items()):
            assert isinstance(outgoing, Outgoing)  # see `unpack`
            if outgoing is RELEASED:
                self.send_packet(PUBREL_HEAD + PACKET_IDS[packet_id])
                self.counters.to_clients.other += 4
            elif room > 0:
                room -= 1
                self._repeat(packet_id, outgoing)
            else:
                del inflight[packet_id]
                late.append(Repeat(outgoing, packet_id))
                self.queued_bytes += size_of(outgoing.message)
        self.queue.extendleft(reversed(late))
        self.pump()
        if self.missed is not None:
            self._send_missed()

    def _repeat(self, packet_id: int, outgoing: Outgoing) -> None:
        data = outgoing.message.packet(
            self.version,
            outgoing.qos,
            outgoing.retain,
            packet_id,
            now=self.node.now,
            dup=True,
            subscription_ids=outgoing.ids,
        )
        if self.limited and len(data) > self.maximum_packet_size:
            self.counters.dropped_too_large += 1
            self.dropped_large += 1
            self.inflight.pop(packet_id, None)
            self._settled(outgoing)
            if self.recorder is not None:
                self.recorder.acknowledged(PUBACK_HEAD + PACKET_IDS[packet_id])
        else:
            self.inflight[packet_id] = outgoing
            self.send_packet(data)

    def revoke(self) -> list[SharedOutgoing]:
        """Drop what is queued and may not be received any more; returns what another member of a
        group may get instead."""
        permissions = self.permissions
        if permissions is None:
            return []
        kept: deque[Outgoing] = deque()
        dropped: list[Outgoing] = []
        for outgoing in self.queue:
            # What is repeated was sent already.
            if type(outgoing) is Repeat or permissions.may_receive(outgoing.message.topic.decode()):
                kept.append(outgoing)
            else:
                self.queued_bytes -= size_of(outgoing.message)
                dropped.append(outgoing)
        self.queue = kept
        if self.missed is not None:
            self.missed = [
                o for o in self.missed if permissions.may_receive(o.message.topic.decode())
            ]
            self.missed_bytes = sum(size_of(o.message) for o in self.missed)
        if dropped and self.recorder is not None:
            self.recorder.record_all()
        return [o for o in dropped if isinstance(o, SharedOutgoing)]
