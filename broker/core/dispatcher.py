"""Who gets a message that was published: topic -> route -> outboxes of sessions. It does no I/O and
writes no log."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from mqttree.broker.auth.authorization import receivers
from mqttree.broker.base import costs
from mqttree.broker.core.core_broker import CoreBroker
from mqttree.broker.core.effects import AuthorizeReceive
from mqttree.broker.core.message import Message
from mqttree.broker.core.output import deliver_run
from mqttree.broker.core.route import NOTHING_BEYOND, Beyond, Route, deliveries_of
from mqttree.broker.core.route_cache import RouteCache
from mqttree.broker.core.session import Session, SharedGroup, SharedOutgoing, Subscription
from mqttree.broker.core.topic_tally import TopicTally
from mqttree.broker.core.wildcard_forms import WildcardForms, filter_memory, form_of
from mqttree.broker.wire.constants import MAX_TOPIC_LEVELS, ReasonCode
from mqttree.broker.wire.errors import MalformedPacket, ProtocolViolation
from mqttree.broker.wire.publish_header import PACKET_IDS, PUBLISH, topic_of
from mqttree.broker.wire.strings import is_own
from mqttree.broker.wire.varint import encode_varint
from mqttree.routing.subscription_trie import SubscriptionTrie
from mqttree.routing.topic_filter import split_shared

if TYPE_CHECKING:
    from mqttree.broker.auth.authorization import Access
    from mqttree.broker.core.connection import Backpressure, Connection
    from mqttree.broker.core.delivery_queue import DeliveryQueue
    from mqttree.broker.core.effects import Effect, Hooks
    from mqttree.broker.core.ports import Cluster
    from mqttree.broker.core.publish_run import PublishRun

MAX_CACHED_TOPIC_BYTES: Final = 512
"""bytes; the routes of longer topics are not kept: 65,536 topics of 64 KiB each would be 4
GiB."""

NO_GROUPS: Final[list[SharedGroup]] = []
NO_SESSIONS: Final[frozenset[Session]] = frozenset()

AGE: Final = 1.0
"""s between two looks at routes that changed filters made doubtful."""


class DispatcherBroker(CoreBroker, Protocol):
    """What the dispatcher asks of its broker."""

    @property
    def dirty(self) -> list[Connection | DeliveryQueue]:
        """Connections and sessions whose outbox is not empty."""

    @property
    def effects(self) -> list[Effect]:
        """What the driver is to do; append."""

    @property
    def hooks(self) -> Hooks:
        """The hooks that plugins implement."""

    @property
    def cluster(self) -> Cluster:
        """The federation, as far as `core` needs it."""

    @property
    def flow_control(self) -> Backpressure:
        """Says which connections are not read."""


class Dispatcher:
    """Subscriptions of all sessions, and the path of every message to them."""

    def __init__(self, node: DispatcherBroker) -> None:
        self.node = node
        self.trie: SubscriptionTrie[Subscription] = SubscriptionTrie()
        self.shared: SubscriptionTrie[SharedGroup] = SubscriptionTrie()
        self.members = 0  # of all of them
        self.memory = 0  # bytes that all filters take, of shared subscriptions, too
        self.access: Access | None = None
        """Users and rules in force, as `AccessControl` says; None: plugins alone decide."""
        self._turns = node.turns
        self._longest = MAX_CACHED_TOPIC_BYTES
        self._levels = MAX_TOPIC_LEVELS
        self.cache = RouteCache(node.limits)
        self.routes: dict[bytes, Route] = self.cache.routes
        self._ages = False  # `_age` is going to be called
        self.tally: TopicTally | None = None
        """How often topics are published to, None: it is not counted. To be set before any client
        comes."""
        self._waiting: deque[AuthorizeReceive] = deque()

    def count_topics(self) -> TopicTally:
        """Count from now on how often topics are published to. To be called before any client
        comes."""
        limits = self.node.limits
        self.tally = TopicTally(limits.counted_topics, MAX_CACHED_TOPIC_BYTES)
        return self.tally

    # ---------------------------------------------------------------- subscriptions

    @property
    def subscriptions(self) -> int:
        """How many ordinary subscriptions there are."""
        return len(self.trie)

    def filters(self) -> Iterator[str]:
        """Return the filters of all ordinary subscriptions."""
        return self.trie.filters()

    def wants(self, topic_filter: str) -> bool:
        """Return whether an ordinary subscription has this filter."""
        return topic_filter in self.trie

    def subscribe(self, subscription: Subscription, group: str | None, inner: str) -> None:
        """Add or replace a `subscription` (MQTT-3.8.4-3). `group`: the name of its shared
        subscription, None for an ordinary one; `inner`: the filter without `$share/<group>/`."""
        session = subscription.session
        if subscription.filter not in session.subscriptions:
            self._count(session, filter_memory(subscription.filter))
            if (form := form_of(subscription.filter)) is not None:
                session.forms = session.forms or WildcardForms()
                session.forms.add(form)
        session.subscriptions[subscription.filter] = subscription
        if group is None:
            if self.trie.insert(inner, session.client_id, subscription):
                self.node.cluster.strategy.filter_changed(inner, wanted=True)
        else:
            shared = self.shared.get(inner, group)
            if shared is None:
                shared = SharedGroup(group, inner)
                self.shared.insert(inner, group, shared)
            self.members += session.client_id not in shared.members
            shared.members[session.client_id] = subscription
            shared.note(session)
            self.node.cluster.sharing.groups.tell(shared)
        self.invalidate(inner)
        if session.recorder is not None:
            session.recorder.subscribed(subscription.filter)

    def unsubscribe(
        self, session: Session, topic_filter: str, group: str | None, inner: str
    ) -> bool:
        """Remove the subscription of a `session` to `topic_filter`; returns False when there was
        none. That of a newer session of the same client stays. `group`, `inner`: as of
        `subscribe`."""
        subscription = session.subscriptions.pop(topic_filter, None)
        if subscription is None:
            return False
        self._count(session, -filter_memory(topic_filter))
        if session.forms is not None and (form := form_of(topic_filter)) is not None:
            session.forms.remove(form)
        if group is None:
            if session.ended and self.trie.get(inner, session.client_id) is not subscription:
                return True
            if self.trie.remove(inner, session.client_id):
                self.node.cluster.strategy.filter_changed(inner, wanted=False)
        else:
            shared = self.shared.get(inner, group)
            if (
                session.ended
                and shared is not None
                and shared.members.get(session.client_id) is not subscription
            ):
                return True
            if shared is not None:
                if shared.members.pop(session.client_id, None) is not None:
                    self.members -= 1
                shared.note(session)
                if not shared.members:
                    self.shared.remove(inner, group)
                self.node.cluster.sharing.groups.tell(shared)
        self.invalidate(inner)
        if session.recorder is not None:
            session.recorder.unsubscribed(topic_filter)
        return True

    def _count(self, session: Session, size: int) -> None:
        session.filters_memory += size
        self.memory += size

    def leave(self, session: Session) -> None:
        """Take all subscriptions of a session out that has ended: from now on it gets nothing,
        wherever they still stand."""
        session.ended = True
        if len(session.subscriptions) > self.node.limits.filters_at_once:
            self.forget_routes()
        self._leave(session)

    def _leave(self, session: Session) -> None:
        for topic_filter in list(islice(session.subscriptions, self.node.limits.filters_at_once)):
            self.unsubscribe(session, topic_filter, *split_shared(topic_filter))
            self.node.turns.work += costs.PACKET_WORK
        if session.subscriptions:
            self.node.turns.later(lambda now: self._leave(session))

    def group(self, name: str, inner: str) -> SharedGroup | None:
        """Return the members of `$share/<name>/<inner>`; None when there are none."""
        return self.shared.get(inner, name)

    def invalidate(self, topic_filter: str) -> None:
        """Forget the kept routes of the topics that `topic_filter` matches, which has changed."""
        self.cache.invalidate(topic_filter)
        if self.cache.ages and not self._ages:
            self._ages = True
            self.node.timers.schedule(self.node.now + AGE, self._age)

    def _age(self, now: float) -> None:
        self.cache.age()
        self._ages = self.cache.ages
        if self._ages:
            self.node.timers.schedule(now + AGE, self._age)

    def session_changed(self, session: Session) -> None:
        """Forget routes because the session's version or limits changed."""
        if session.subscriptions:
            self.forget_routes()

    def forget_routes(self) -> None:
        """Forget all kept routes: the next message of each topic looks its route up again."""
        self.cache.clear()

    def ready(self, topic: bytes) -> bool:
        """Return whether the route of a `topic` can be looked up in this turn, and is kept then."""
        size = len(topic)
        return (
            size <= self._longest
            # Each slash takes a byte.
            and (size < self._levels or topic.count(b"/") < self._levels)
            and not self._turns.full()
        )

    def route(self, topic: bytes, *, keep: bool = True) -> Route:
        """Return the route of a topic name: a kept one, or one found now and then kept (`keep`).

        Raises:
            MalformedPacket, ProtocolViolation: not a topic name (MQTT-3.3.2-1, -2).
        """
        route = self.routes.get(topic)
        if route is not None:
            return route
        name = topic_name(topic)
        cache = self.cache
        route = cache.valid(topic, name)
        if route is not None:
            self.node.turns.work += costs.ROUTE_WORK
            return route
        own = is_own(name)
        found, beyond = self._receivers(name, own)
        if not keep or name[:1] == "$" or len(topic) > self._longest:
            # Not kept: whether a client may publish to a topic is not asked once it is in `routes`
            # (MQTT-4.7.2-1), and a broker that wants `#` gets these, too.
            return Route(deliveries_of(found), beyond, not own, {})
        route = cache.shared(found, beyond)
        if route is None:
            route = Route(deliveries_of(found), beyond, True, cache.interned)
        cache.keep(topic, route, found)
        return route

    def _receivers(self, name: str, own: bool) -> tuple[tuple[Subscription, ...], Beyond]:
        """Return what decides about the route of a topic: the subscriptions that match, in order,
        and whoever else gets it. `own`: the topic is this broker's, and goes nowhere else."""
        node = self.node
        cluster, turns = node.cluster, self._turns
        trie, groups = self.trie, NO_GROUPS
        steps = trie.steps
        found = trie.match(name)
        turns.work += costs.ROUTE_WORK + trie.steps - steps
        if self.members:
            steps = self.shared.steps
            groups = self.shared.match(name)
            turns.work += self.shared.steps - steps
        for subscription in found:
            if subscription.session.ended:
                found = [one for one in found if not one.session.ended]
                break
        permitted: frozenset[Session] | None = None
        if self.access is not None:
            members = {member.session for group in groups for member in group.members.values()}
            permitted = frozenset(receivers(name, members)) if members else NO_SESSIONS
            may = receivers(name, {one.session: None for one in found})
            found = [one for one in found if one.session in may]
        elsewhere = (
            cluster.sharing.groups.matching(name, groups)
            if cluster.sharing.has_remote_members
            else ()
        )
        brokers = () if own else cluster.strategy.brokers_wanting(name)
        if groups or elsewhere or brokers or permitted is not None:
            beyond = Beyond(tuple(groups), tuple(elsewhere), permitted, brokers)
        else:
            beyond = NOTHING_BEYOND
        return tuple(found), beyond

    # ---------------------------------------------------------------- messages

    def run(
        self,
        route: Route,
        chunk: bytes,
        prefix: int,
        size: int,
        version: int,
        sender: Session | None,
        *,
        groups: bool = True,
    ) -> None:
        """Deliver a run of QoS 0 packets along its `route`. They share their first `prefix` bytes:
        header, topic, empty properties. Costs per run, not per message.

        `chunk`: the packets as they came, `size` bytes each, of MQTT `version`; `sender`: the
        session that published them, None if another broker did. Not `groups`: shared subscriptions
        get nothing.
        """
        node, messages, delivered = self.node, len(chunk) // size, 0
        if route.plain4:
            data = chunk if version != 5 else convert_run(chunk, prefix, size, 4)
            delivered = deliver_run(node.dirty, route.plain4, data, messages)
        if route.plain5:
            data = chunk if version == 5 else convert_run(chunk, prefix, size, 5)
            delivered += deliver_run(node.dirty, route.plain5, data, messages)
        node.counters.delivered += delivered
        shared = route.shared if groups else ()
        if route.special or shared:
            self._run_special(route, chunk, prefix, size, sender, shared)

    def _run_special(
        self,
        route: Route,
        chunk: bytes,
        prefix: int,
        size: int,
        sender: Session | None,
        groups: Sequence[SharedGroup],
    ) -> None:
        topic = topic_of(chunk)
        for start in range(0, len(chunk), size):
            message = Message(
                topic, chunk[start + prefix : start + size], 0, False, b"", None, sender
            )
            for delivery in route.special:
                wanted = (
                    delivery.own if delivery.no_local and delivery.session is sender else delivery
                )
                if wanted is not None:
                    wanted.session.deliver(message, 0, False, wanted.ids, None)
            for group in groups:
                self._deliver_shared(group, message, None, route.permitted)

    def publish(
        self,
        message: Message,
        source: Connection | None,
        groups: Sequence[SharedGroup] | None = None,
    ) -> None:
        """Deliver `message` to all local subscribers.

        `source`: the connection that it came on, which waits for slow subscribers and for the
        journal; None: no connection has to wait. `groups`: of shared subscriptions, these alone.
        """
        route = self.routes.get(message.topic) or self.route(message.topic)
        if self.node.hooks.topics:
            groups = route.shared if groups is None else groups
            self._ask(route, message, groups, source, only=False)
        else:
            self.deliver(route, message, source, None, groups)

    def publish_along(
        self,
        route: Route,
        message: Message,
        groups: Sequence[SharedGroup],
        source: Connection | None,
        *,
        only: bool = False,
    ) -> None:
        """Deliver `message` along `route`.

        `groups`: of shared subscriptions, these get it; `only`: ordinary ones do not. `source`: as
        of `publish`.
        """
        if self.node.hooks.topics:
            self._ask(route, message, groups, source, only=only)
        elif only:
            for group in groups:
                self._deliver_shared(group, message, source, route.permitted)
        else:
            self.deliver(route, message, source, None, groups)

    def deliver(
        self,
        route: Route,
        message: Message,
        source: Connection | None,
        allowed: set[Session] | None = None,
        groups: Sequence[SharedGroup] | None = None,
    ) -> None:
        """Deliver `message` along `route`, whatever topic plugins say.

        `source`: as of `publish`. `allowed`: of shared subscriptions, members that may receive it;
        None: all. `groups`: of shared subscriptions, these alone.
        """
        qos = message.qos
        sender = message.sender
        retain = message.retain
        for delivery in route.deliveries:
            session = delivery.session
            if delivery.no_local and session is sender:
                if delivery.own is None:
                    continue
                delivery = delivery.own
            granted = delivery.qos
            session.deliver(
                message,
                qos if qos < granted else granted,
                retain and delivery.retain_as_published,
                delivery.ids,
                source,
            )
        for group in route.shared if groups is None else groups:
            self._deliver_shared(group, message, source, both(allowed, route.permitted))

    def _deliver_shared(
        self,
        group: SharedGroup,
        message: Message,
        source: Connection | None,
        allowed: set[Session] | None,
    ) -> None:
        member = group.pick(allowed)
        if member is not None:
            retain = message.retain and member.retain_as_published
            qos = min(message.qos, member.qos)
            outgoing = SharedOutgoing(message, qos, retain, member.ids, group, allowed)
            kept = member.session.deliver_outgoing(outgoing, source)
            if message.sender is None and message.qos:
                self.node.cluster.custody.delivered(member.session, outgoing, kept=kept)
        else:
            self.node.cluster.sharing.pass_on(
                group.group_id, message, source, denied=bool(group.members)
            )

    def pass_on(self, outgoing: SharedOutgoing) -> None:
        """Give a message of a member whose session ended to another one."""
        message, group = outgoing.message, outgoing.group
        if message.expired(self.node.now):
            self.node.cluster.custody.settled(outgoing)
        else:
            permitted = self.route(message.topic).permitted  # the rules may be others by now
            allowed = both(outgoing.allowed, permitted)
            if self.node.cluster.sharing.stays(group, message, allowed, None):
                self._deliver_shared(group, message, None, allowed)

    def batch(self, route: Route, batch: PublishRun, source: Connection | None) -> None:
        """Deliver a run (`batch`) of QoS 1 or 2 packets of one topic along its `route`. Costs
        little per message for receivers that keep up.

        `source`: as of `publish`.
        """
        if route.special or route.shared:
            for message in batch.messages():
                self.deliver(route, message, source, None, route.shared)
            return
        count = batch.count
        dirty = self.node.dirty
        for delivery in route.deliveries:
            session = delivery.session
            qos = min(batch.qos, delivery.qos)
            # What is in flight as bytes does not say how it was published: what is kept has to.
            plain = qos == batch.qos or not session.expiry
            if qos and plain and (room := session.window_room) > 0:
                form = batch.form(session.version, qos)
                session.deliver_batch(form if room >= count else form.part(0, room), source)
                for message in batch.messages()[room:] if room < count else ():
                    session.deliver(message, qos, False, b"", source)
            elif qos or session.conn is None or session.checked:
                for message in batch.messages():
                    session.deliver(message, qos, False, b"", source)
            else:
                if not session.outbox:
                    dirty.append(session)
                session.outbox.append(batch.form(session.version, 0).data)
                self.node.counters.delivered += count

    # ---------------------------------------------------------------- topic plugins

    @property
    def waiting(self) -> int:
        """How many messages wait for plugins."""
        return len(self._waiting)

    def _ask(
        self,
        route: Route,
        message: Message,
        groups: Sequence[SharedGroup],
        source: Connection | None,
        *,
        only: bool,
    ) -> None:
        receivers = [] if only else [d.session for d in route.deliveries]
        receivers += [m.session for g in groups for m in g.members.values()]
        if not receivers:
            return
        node = self.node
        link = None if source is None else source.link
        arrival = None if link is None else link.arrival
        effect = AuthorizeReceive(message, receivers, list(groups), only, None, source, arrival)
        self._waiting.append(effect)
        if len(self._waiting) >= node.limits.hold_queued:
            node.flow_control.hold(source, self)
        node.effects.append(effect)

    def on_allowed(self, effect: AuthorizeReceive, allowed: set[Session]) -> None:
        """Go on with the messages whose receivers are known, in the order they came."""
        effect.allowed = allowed
        while self._waiting and (known := self._waiting[0]).allowed is not None:
            self._waiting.popleft()
            if len(self._waiting) == self.node.limits.hold_queued // 2:
                self.node.flow_control.release(self)
            route = self.route(known.message.topic)
            deliveries = (
                [] if known.only else [d for d in route.deliveries if d.session in known.allowed]
            )
            narrowed = Route(deliveries, NOTHING_BEYOND, False, {})
            narrowed.permitted = route.permitted
            source = known.source
            if known.arrival is not None and source is not None and source.link is not None:
                # It is as if the link had brought it now.
                source.link.arrival = (*known.arrival[:2], self.node.now)
            self.deliver(narrowed, known.message, source, known.allowed, known.groups)


def both(one: set[Session] | None, other: set[Session] | None) -> set[Session] | None:
    """Return the sessions that are in both; None stands for all sessions."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def topic_name(topic: bytes) -> str:
    """Return a topic name as text.

    Raises:
        MalformedPacket, ProtocolViolation: not a topic name (MQTT-3.3.2-1, -2).
    """
    try:
        name = topic.decode()
    except UnicodeDecodeError:
        raise MalformedPacket("topic name is not UTF-8 [MQTT-3.3.2-1]") from None
    if not name or "+" in name or "#" in name or "\0" in name:
        raise ProtocolViolation(
            "topic name with a wildcard or NUL [MQTT-3.3.2-2]", ReasonCode.TOPIC_NAME_INVALID
        )
    return name


def convert_run(chunk: bytes, prefix: int, size: int, version: int) -> bytes:
    """Return a run of QoS 0 packets without properties, re-encoded for another protocol version.

    `chunk`: the packets, `size` bytes each, which share their first `prefix` bytes; `version`: 5,
    or 4 for both 3.x.
    """
    topic = topic_of(chunk)
    payload = size - prefix
    head = (
        bytes((PUBLISH,))
        + encode_varint(2 + len(topic) + payload + (1 if version == 5 else 0))
        + PACKET_IDS[len(topic)]
        + topic
    )
    if version == 5:
        head += b"\x00"
    if len(chunk) == size:
        return head + chunk[prefix:]
    return head + head.join([chunk[at + prefix : at + size] for at in range(0, len(chunk), size)])
