"""SUBSCRIBE and UNSUBSCRIBE of a client (MQTT-3.8, MQTT-3.10): what is granted, what is answered,
what is retained for it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from mqttree.broker.base import costs
from mqttree.broker.core.capabilities import check_identifier, unavailable
from mqttree.broker.core.client import said_of
from mqttree.broker.core.effects import AuthorizeSubscribe
from mqttree.broker.core.session import Subscription
from mqttree.broker.core.session_owner import LEG_LISTENER
from mqttree.broker.core.wildcard_forms import filter_memory, form_of
from mqttree.broker.wire.constants import MAX_TOPIC_LEVELS, PacketType, ReasonCode
from mqttree.broker.wire.decode import FILTERS, reading_subscribe, reading_unsubscribe
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.errors import ProtocolViolation, WireError
from mqttree.broker.wire.packets import (
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from mqttree.broker.wire.properties import Property
from mqttree.broker.wire.steps import finish
from mqttree.broker.wire.strings import check_topic_filter
from mqttree.routing.topic_filter import SHARE_PREFIX, split_shared, valid_topic_filter

if TYPE_CHECKING:
    from mqttree.broker.core.client import Client

MAX_WILDCARD_FORMS = 128
"""placements of wildcards, as `a/+/#` is one with all filters that differ in words alone, among
the subscriptions of one session, each group of shared subscriptions by itself: as many of its
filters match one topic at most, and each costs every message of a new topic a microsecond, at
every broker. More are refused with 0x97 (0x80 in 3.1.1) [subscriptions_refused]. Filters that
differ in words may be `max_subscriptions`, and hardly any client has ten placements."""

PIECES = 5
"""thousands of filters of a packet that are decoded, or checked, as soon as it comes: the others in
later turns."""

REASONS = 100
"""refused filters that the Reason String of one SUBACK names."""


def subscribe(client: Client, packet: Subscribe) -> None:
    """Handle a SUBSCRIBE, or ask the topic plugins first. Raises MalformedPacket and
    ProtocolViolation."""
    finish(_checking(client, packet))
    _subscribe(client, packet)


def receive_large(client: Client, first: int, body: bytes) -> None:
    """Handle a SUBSCRIBE or UNSUBSCRIBE of a `client` with perhaps very many filters: these are
    decoded and checked in steps, and the packets behind it wait. `first`: its first byte; `body`:
    what follows its length.

    Raises:
        MalformedPacket, ProtocolViolation: the packet is not as it should be.
    """
    turns = client.node.turns
    work = _receiving(client, first, body)
    try:
        for _ in range(PIECES):
            next(work)
    except StopIteration as end:
        _begin(client, end.value)
        return
    client.conn.wait()
    turns.later(lambda now: turns.go(_received(client, work), lambda: False))


def _receiving(
    client: Client, first: int, body: bytes
) -> Generator[int, None, Subscribe | Unsubscribe]:
    """Decode and check a SUBSCRIBE or UNSUBSCRIBE; yields steps of work: two for each filter."""
    reading = reading_subscribe if first >> 4 == PacketType.SUBSCRIBE else reading_unsubscribe
    packet: Subscribe | Unsubscribe = yield from reading(first, body, client.version)
    yield from _checking(client, packet)
    return packet


def _received(client: Client, work: Generator[int, None, Subscribe | Unsubscribe]) -> Iterator[int]:
    try:
        packet = yield from work
        step = partial(_begin, client, packet)
    except WireError as error:
        step = partial(_fail, error)

    def begin() -> bool:
        client.conn.on_answer()
        step()
        return not client.conn.waiting

    go_on(client, client.node.now, begin)


def _begin(client: Client, packet: Subscribe | Unsubscribe) -> None:
    if isinstance(packet, Subscribe):
        _subscribe(client, packet)
    else:
        _leave(client, packet)


def _fail(error: WireError) -> None:
    raise error


def _checking(client: Client, packet: Subscribe | Unsubscribe) -> Generator[int, None, None]:
    """Look whether all filters of a packet are what a client may ask for; yields of how many.
    Raises MalformedPacket and ProtocolViolation."""
    requests = (
        [f.filter for f in packet.filters] if isinstance(packet, Subscribe) else packet.filters
    )
    for at in range(0, len(requests), FILTERS):
        if at:
            yield FILTERS
        for topic_filter in requests[at : at + FILTERS]:
            check_topic_filter(topic_filter, shared=client.version == 5)
    _check_answer(client, len(requests))
    if not isinstance(packet, Subscribe):
        return
    check_identifier(packet, client.node.config)
    if client.version == 5:
        for at in range(0, len(requests), FILTERS):
            if at:
                yield FILTERS
            for topic_filter in requests[at : at + FILTERS]:
                missing = unavailable(topic_filter, client.node.config)
                # The CONNACK said so (MQTT 5, 3.2.2.3.11, 3.2.2.3.13).
                if missing is not None:
                    raise ProtocolViolation(missing.name.lower().replace("_", " "), missing)


def _subscribe(client: Client, packet: Subscribe) -> None:
    if client.node.hooks.topics and any(
        acceptable(request.filter, MAX_TOPIC_LEVELS) for request in packet.filters
    ):
        client.conn.wait()
        then = partial(_on_answer, client, packet)
        client.node.effects.append(AuthorizeSubscribe(client, packet, then))
    else:
        grant(client, packet, [True] * len(packet.filters))


def _on_answer(client: Client, packet: Subscribe, allowed: list[bool], now: float) -> None:
    """Go on after the topic plugins' answer."""
    if not (client.conn.closed or client.conn.closing):
        try:
            if not grant(client, packet, allowed):
                return
        except WireError as error:
            client.fail(error)
    client.conn.resume(now)


def grant(client: Client, packet: Subscribe, allowed: list[bool]) -> bool:
    """Subscribe a `client` to the filters of a `packet` that plugins (`allowed`, for each filter),
    the rules and the limits allow, as soon as all brokers know of them. Returns False if it waits
    for that, and goes on by itself."""
    if SubscribeRequest(client, packet, allowed).begin():
        return True
    client.conn.wait()
    return False


class SubscribeRequest:
    """A SUBSCRIBE that is being granted: some of its filters at a time, each when all brokers know
    it."""

    __slots__ = (
        "_allowed",
        "_client",
        "_codes",
        "_filters",
        "_hurried",
        "_identifier",
        "_packet",
        "_refused",
        "_retained",
    )

    def __init__(self, client: Client, packet: Subscribe, allowed: list[bool]) -> None:
        """`client`: the subscriber; `packet`: its SUBSCRIBE; `allowed`: what plugins say of each
        filter."""
        self._client = client
        self._packet = packet
        self._allowed = allowed
        identifiers = (packet.properties or {}).get(Property.SUBSCRIPTION_IDENTIFIER)
        self._identifier = identifiers[0] if identifiers else 0
        self._codes: list[int] = []
        self._refused: list[str] = []
        self._retained: dict[str, Subscription] = {}  # that get what is retained, by filter
        self._filters: list[str] = []  # that others are to know now
        self._hurried = False

    def _next(self) -> list[tuple[SubscriptionRequest, bool]]:
        at = len(self._codes)
        end = at + self._client.node.limits.filters_at_once
        return list(zip(self._packet.filters[at:end], self._allowed[at:end], strict=True))

    def begin(self) -> bool:
        """Begin with the next filters; True when the packet is answered, False when it goes on by
        itself."""
        self._filters = [
            request.filter
            for request, permitted in self._next()
            if not request.filter.startswith(SHARE_PREFIX)
            and _refusal(self._client, request, permitted, note=False) is None
        ]
        self._hurried = False
        session, cluster = self._client.session, self._client.node.cluster
        new = any(topic_filter not in session.subscriptions for topic_filter in self._filters)
        again = new and cluster.recently_elsewhere.elsewhere(session.client_id)
        if cluster.barrier.expect(self._filters, self._known, again=again):
            if cluster.barrier.known:  # it could be answered at once
                cluster.recently_elsewhere.subscribing(session, self.hurry)
            return False
        return self._take()

    def hurry(self, now: float) -> None:
        """Subscribe though not all have said what they have published: the session is about to go
        to another broker."""
        self._hurried = True
        self._resume(now, self._take)

    def _known(self, now: float) -> None:
        self._client.node.cluster.recently_elsewhere.subscribed(self._client.session, self.hurry)
        if not self._hurried:
            self._resume(now, self._take)

    def _later(self, now: float) -> None:
        self._filters = []
        self._resume(now, self.begin)

    def _resume(self, now: float, step: Callable[[], bool]) -> None:
        go_on(self._client, now, step, self._filters)

    def _take(self) -> bool:
        """Subscribe; answer when these were the last filters."""
        client, node = self._client, self._client.node
        try:
            for request, permitted in self._next():
                reason = _refusal(client, request, permitted)
                if reason is None:
                    self._codes.append(min(request.qos, node.config.max_qos))
                    self._retained |= _add(client, request, self._codes[-1], self._identifier)
                else:
                    self._codes.append(reason)
                    if len(self._refused) < REASONS:
                        self._refused.append(
                            f"{request.filter}: {reason.name.lower().replace('_', ' ')}"
                        )
                    node.counters.subscriptions_refused += 1
                node.turns.work += costs.PACKET_WORK
        finally:
            node.cluster.barrier.settle_for(self._filters)
        if len(self._codes) < len(self._packet.filters):
            node.turns.later(self._later)
            return False
        if not (client.conn.closed or client.conn.closing):
            client.answer(Suback(self._packet.packet_id, self._codes), "; ".join(self._refused))
        if node.hooks.events:
            for request, code in zip(self._packet.filters, self._codes, strict=True):
                if code < 0x80:
                    node.event(
                        "broker_client_subscribed", client=client, topic=request.filter, qos=code
                    )
        node.feeds.begin(client.session, self._retained.values())
        return True


def go_on(client: Client, now: float, step: Callable[[], bool], told: Iterable[str] = ()) -> None:
    """Do a `step` of what a `client` asked for in a packet, unless its session is no more; the step
    returns whether it was the last one. `now`: s; `told`: filters of which other brokers know that
    they are wanted."""
    node = client.node
    node.now = now
    done = True
    if node.sessions.get(client.session.client_id) is not client.session:
        node.cluster.barrier.settle_for(told)
    else:  # though its connection may have ended: it came before
        try:
            done = step()
        except WireError as error:
            client.fail(error)
    if done:
        client.conn.resume(now)


def unsubscribe(client: Client, packet: Unsubscribe) -> None:
    """Handle an UNSUBSCRIBE. Raises MalformedPacket and ProtocolViolation."""
    finish(_checking(client, packet))
    _leave(client, packet)


def _leave(client: Client, packet: Unsubscribe) -> None:
    codes: list[int] = []

    def later(now: float) -> None:
        known = client.node.sessions.get(client.session.client_id) is client.session
        if not known or _unsubscribe(client, packet, codes, later):
            client.conn.resume(now)

    if not _unsubscribe(client, packet, codes, later):
        client.conn.wait()


def _unsubscribe(
    client: Client, packet: Unsubscribe, codes: list[int], later: Callable[[float], None]
) -> bool:
    """Take so many filters out; False: the others `later`."""
    node = client.node
    for topic_filter in packet.filters[len(codes) : len(codes) + node.limits.filters_at_once]:
        node.turns.work += costs.PACKET_WORK
        if not acceptable(topic_filter, MAX_TOPIC_LEVELS):
            codes.append(ReasonCode.TOPIC_FILTER_INVALID)
            continue
        group, inner = split_shared(topic_filter)
        known = node.dispatcher.unsubscribe(client.session, topic_filter, group, inner)
        codes.append(ReasonCode.SUCCESS if known else ReasonCode.NO_SUBSCRIPTION_EXISTED)
        if node.hooks.events:
            node.event("broker_client_unsubscribed", client=client, topic=topic_filter)
    if len(codes) < len(packet.filters):
        node.turns.later(later)
        return False
    if not (client.conn.closed or client.conn.closing):
        client.send(encode_packet(Unsuback(packet.packet_id, codes), client.version))
    return True


def acceptable(topic_filter: str, levels: int) -> bool:
    """Whether we let clients subscribe to `topic_filter`, as far as its levels go (`levels` at
    most), and before MQTT 5 that of a group."""
    return topic_filter.count("/") < levels and valid_topic_filter(topic_filter)


def _check_answer(client: Client, codes: int) -> None:
    """Refuse a packet with more filters than codes fit into the Maximum Packet Size of the client
    (MQTT-3.1.2-24)."""
    session = client.session
    if session.limited and codes + (5 if codes < 125 else 8) > session.maximum_packet_size:
        raise ProtocolViolation(
            "answer exceeds the client's Maximum Packet Size", ReasonCode.PACKET_TOO_LARGE
        )


def _refusal(
    client: Client, request: SubscriptionRequest, permitted: bool, *, note: bool = True
) -> ReasonCode | None:
    session, limits = client.session, client.node.limits
    if not acceptable(request.filter, MAX_TOPIC_LEVELS):
        return ReasonCode.TOPIC_FILTER_INVALID
    missing = unavailable(request.filter, client.node.config)
    if missing is not None:
        return missing
    if not permitted or not _may_subscribe(client, request.filter, note):
        return ReasonCode.NOT_AUTHORIZED
    if request.filter in session.subscriptions:
        return None
    if len(session.subscriptions) >= limits.max_subscriptions or not client.node.memory.takes_more:
        return ReasonCode.QUOTA_EXCEEDED
    if session.filters_memory + filter_memory(request.filter) > limits.max_filters_memory:
        return ReasonCode.QUOTA_EXCEEDED
    if session.forms is not None and len(session.forms) >= MAX_WILDCARD_FORMS:
        form = form_of(request.filter)
        return ReasonCode.QUOTA_EXCEEDED if form is not None and form not in session.forms else None
    return None


def _may_subscribe(client: Client, topic_filter: str, note: bool) -> bool:
    permissions = client.session.permissions
    if permissions is None:
        return True
    inner = split_shared(topic_filter)[1]
    rule = permissions.subscribe_rule(inner)
    if rule is not None and rule.allow:
        return True
    if note:
        client.note_refusal("subscribe to", topic_filter, said_of(rule))
    return False


def _add(
    client: Client, request: SubscriptionRequest, qos: int, identifier: int
) -> dict[str, Subscription]:
    """Subscribe; returns the subscription if it gets what is retained."""
    session = client.session
    node = client.node
    group, inner = split_shared(request.filter)
    known = session.subscriptions.get(request.filter)
    bridge = client.bridge
    subscription = Subscription(
        session,
        request.filter,
        qos,
        # Never of a shared subscription (MQTT-3.8.3-4).
        request.no_local or (bridge and group is None),
        request.retain_as_published or bridge,
        identifier,
    )
    subscription.start = node.cluster.subscription_starts.begin() if known is None else known.start
    node.dispatcher.subscribe(subscription, group, inner)
    if (
        group is not None
        or request.retain_handling == 2
        # MQTT 3.1.1 cannot ask for none; a leg compares them.
        or (client.version != 5 and client.conn.listener == LEG_LISTENER)
        or (request.retain_handling == 1 and known is not None)
    ):
        return {}  # MQTT-3.3.1-9 to -11; shared subscriptions get no retained messages
    return {request.filter: subscription}
