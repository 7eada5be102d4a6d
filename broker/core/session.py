"""A client's session: its subscriptions and what else is kept for one client id (MQTT-3.1.2-4,
MQTT-4.1). Its messages are in `delivery_queue`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import count
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from mqttree.broker.core.delivery_queue import (
    DeliveryQueue,
    Flight,
    Outgoing,
    QueueCluster,
    QueueHost,
    Repeat,
)
from mqttree.broker.core.message import message_in, size_of
from mqttree.broker.core.wildcard_forms import WildcardForms
from mqttree.broker.wire.properties import encode_identifier
from mqttree.broker.wire.publish_header import packet_size
from mqttree.broker.wire.varint import decode_varint
from mqttree.routing.group_selection import group_id_of, group_key

if TYPE_CHECKING:
    from mqttree.broker.auth.authorization import Access, Permissions
    from mqttree.broker.base.timers import Timer
    from mqttree.broker.core.message import Message
    from mqttree.broker.core.start_point import SubscriptionStart
    from mqttree.broker.wire.packets import Will

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


class SettledShares(Protocol):
    """Messages that other brokers gave to members of shared subscriptions."""

    def settled(self, outgoing: SharedOutgoing, /) -> None:
        """A member has acknowledged a message, or no member is to get it any more."""


class OtherBrokers(QueueCluster, Protocol):
    """What a session asks of the cluster."""

    @property
    def custody(self) -> SettledShares:
        """Hears which messages of other brokers are settled."""


class SessionHost(QueueHost, Protocol):
    """What a session asks of its broker."""

    @property
    def access(self) -> Access | None:
        """Users and rules in force; None: plugins alone decide."""

    @property
    def cluster(self) -> OtherBrokers:
        """The federation, as far as this module needs it."""


class Session(DeliveryQueue):
    """State kept for one client id."""

    __slots__ = (
        "absorbed",
        "account",
        "clean",
        "client_id",
        "created",
        "ended",
        "expiry",
        "expiry_timer",
        "filters_memory",
        "floor",
        "former_stamp",
        "forms",
        "heard",
        "incoming",
        "listener",
        "owner",
        "permissions",
        "refused",
        "stamp",
        "subscriptions",
        "successor",
        "username",
        "will",
        "will_memory",
        "will_timer",
    )

    def __init__(self, node: SessionHost, client_id: str) -> None:
        super().__init__(node)
        self.client_id = client_id
        # When its newest connection began (see `takeover`); 0: it is on its way here.
        self.stamp = 0
        self.former_stamp = 0  # of the connection before
        # When a newer connection of the client began at another broker, 0: none is known.
        self.successor = 0
        self.heard = 0.0  # s; when its client was heard last, once its connection has ended
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
        self.refused = 0  # messages of its client that were not published
        self.incoming: set[int] = set()  # QoS 2 packet ids received and not yet released
        self.will: Will | None = None
        self.will_memory = 0  # bytes that it takes
        self.will_timer: Timer | None = None
        self.expiry_timer: Timer | None = None

    @property
    def host(self) -> SessionHost:
        """This broker: what a session asks of it is more than what its queue does."""
        return cast(SessionHost, self.node)

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

    def absorb(self, *absorbed: Absorbed) -> None:
        """Note older sessions that are merged into this one: not a second time, if their brokers
        or this one are killed before they are forgotten. The last MAX_ABSORBED are remembered."""
        self.absorbed = (*self.absorbed, *absorbed)[-MAX_ABSORBED:]
        if self.recorder is not None:
            self.recorder.record_absorbed()

    # ---------------------------------------------------------------- permissions

    def may_subscribe(self, topic_filter: str) -> bool:
        """Whether the rules let the client subscribe to a filter (without `$share/<group>/`)."""
        return self.permissions is None or self.permissions.may_subscribe(topic_filter)

    def may_publish(self, topic: str) -> bool:
        """Whether the rules let the client publish to a topic."""
        return self.permissions is None or self.permissions.may_publish(topic)

    def may_receive(self, topic: str) -> bool:
        """Whether the rules let the client have messages of a topic."""
        return self.permissions is None or self.permissions.may_receive(topic)

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

    # ---------------------------------------------------------------- what its subscriptions want

    def wanting(self, topic: str) -> Iterator[Subscription]:
        """The subscriptions that match a topic, but for those as a member of a group."""
        forms, subscriptions = self.forms, self.subscriptions
        for topic_filter in (topic,) if forms is None else forms.matching(topic):
            if (subscription := subscriptions.get(topic_filter)) is not None:
                yield subscription

    def wants_missed(self, topic: str) -> bool:
        """Whether one of the subscriptions that match a topic is at QoS 1 or 2."""
        return any(subscription.qos for subscription in self.wanting(topic))

    def store_missed_runs(self) -> None:
        """Look through what the publish path left in the outbox of a client that is away: packets
        at QoS 0, in the form of its version, which came just now."""
        outbox, self.outbox = self.outbox, []
        if not self.node.config.keep_missed or not any(s.qos for s in self.subscriptions.values()):
            return
        # At so many in one turn, whether they are wanted or not.
        looks = self.node.limits.max_missed
        for data in outbox:
            position = 0
            while position < len(data) and looks and self._takes_missed():
                looks -= 1
                size = packet_size(data[position : position + 5])
                packet = data[position : position + size]
                message = message_in(packet, self.version, self.node.now)
                self.store_missed(message, False, b"")
                position += size

    # ---------------------------------------------------------------- as a member of a group

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

    def _on_settled(self, sent: Outgoing | Flight) -> None:
        if type(sent) is SharedOutgoing:
            self.host.cluster.custody.settled(sent)
