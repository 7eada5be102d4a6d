"""SUBSCRIBE and UNSUBSCRIBE of a client (MQTT-3.8, MQTT-3.10): what is granted, what is answered, what is retained for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker import limits
from broker.availability import check_identifier, unavailable
from broker.effects import AuthorizeSubscribe
from broker.forms import filter_memory, form_of
from broker.session import Subscription
from broker.wire.constants import ReasonCode
from broker.wire.encode import encode_packet
from broker.wire.errors import ProtocolViolation, WireError
from broker.wire.packets import Suback, Subscribe, SubscriptionRequest, Unsuback, Unsubscribe
from broker.wire.properties import Property
from broker.wire.strings import check_topic_filter
from routing.topics import SHARE_PREFIX, split_shared, valid_topic_filter

if TYPE_CHECKING:
    from broker.client import Client

REASONS = 100
"""refused filters that the Reason String of one SUBACK names."""


def subscribe(client: Client, packet: Subscribe) -> None:
    """Handle a SUBSCRIBE, or ask the topic plugins first. Raises MalformedPacket and ProtocolViolation."""
    for request in packet.filters:
        check_topic_filter(request.filter, shared=client.version == 5)
    _check_answer(client, len(packet.filters))
    check_identifier(packet, client.node.config)
    if client.version == 5:
        for request in packet.filters:
            missing = unavailable(request.filter, client.node.config)
            if missing is not None:  # it was told in the CONNACK (MQTT 5, 3.2.2.3.11, 3.2.2.3.13)
                raise ProtocolViolation(missing.name.lower().replace("_", " "), missing)
    if client.node.hooks.topics and any(acceptable(request.filter) for request in packet.filters):
        client.conn.waiting = True
        client.node.effects.append(AuthorizeSubscribe(client, packet))
    else:
        grant(client, packet, [True] * len(packet.filters))


def grant(client: Client, packet: Subscribe, allowed: list[bool]) -> bool:
    """Subscribe as far as the plugins (`allowed`, for each filter), the rules and the limits let the client, as soon as all
    brokers know what it wants. False: it waits for that, and goes on by itself."""
    if Granting(client, packet, allowed).begin():
        return True
    client.conn.waiting = True
    return False


class Granting:
    """A SUBSCRIBE that is being granted: so many of its filters at a time, each when all brokers know that it is wanted."""

    __slots__ = ("_allowed", "_client", "_codes", "_filters", "_identifier", "_packet", "_refused", "_retained")

    def __init__(self, client: Client, packet: Subscribe, allowed: list[bool]) -> None:
        self._client = client
        self._packet = packet
        self._allowed = allowed
        identifiers = (packet.properties or {}).get(Property.SUBSCRIPTION_IDENTIFIER)
        self._identifier = identifiers[0] if identifiers else 0
        self._codes: list[int] = []
        self._refused: list[str] = []
        self._retained: list[Subscription] = []  # that get what is retained
        self._filters: list[str] = []  # that others are to know now

    def _next(self) -> list[tuple[SubscriptionRequest, bool]]:
        at = len(self._codes)
        end = at + limits.FILTERS_AT_ONCE
        return list(zip(self._packet.filters[at:end], self._allowed[at:end], strict=True))

    def begin(self) -> bool:
        """Begin with the next filters; True when the packet is answered, False when it goes on by itself."""
        self._filters = [
            request.filter
            for request, permitted in self._next()
            if not request.filter.startswith(SHARE_PREFIX) and _refusal(self._client, request, permitted, note=False) is None
        ]
        if self._client.node.federation.propagation.expect(self._filters, self._known):
            return False
        return self._take()

    def _known(self, now: float) -> None:
        self._go_on(now, self._take)

    def _later(self, now: float) -> None:
        self._filters = []
        self._go_on(now, self.begin)

    def _go_on(self, now: float, step: Callable[[], bool]) -> None:
        client, node = self._client, self._client.node
        node.now = now
        current, node.current = node.current, client.conn
        done = True
        if node.sessions.get(client.session.client_id) is not client.session:
            node.federation.propagation.settle_for(self._filters)
        else:  # though its connection may have ended: it came before
            try:
                done = step()
            except WireError as error:
                client.fail(error)
        if done:
            client.conn.resume(now)
        node.current = current

    def _take(self) -> bool:
        """Subscribe; answer when these were the last filters."""
        client, node = self._client, self._client.node
        try:
            for request, permitted in self._next():
                reason = _refusal(client, request, permitted)
                if reason is None:
                    self._codes.append(min(request.qos, node.config.max_qos))
                    self._retained += _add(client, request, self._codes[-1], self._identifier)
                else:
                    self._codes.append(reason)
                    if len(self._refused) < REASONS:
                        self._refused.append(f"{request.filter}: {reason.name.lower().replace('_', ' ')}")
                    node.counters.subscriptions_refused += 1
                node.turns.work += limits.PACKET_WORK
        finally:
            node.federation.propagation.settle_for(self._filters)
        if len(self._codes) < len(self._packet.filters):
            node.turns.later(self._later)
            return False
        if not (client.conn.closed or client.conn.closing):
            client.answer(Suback(self._packet.packet_id, self._codes), "; ".join(self._refused))
        if node.hooks.events:
            for request, code in zip(self._packet.filters, self._codes, strict=True):
                if code < 0x80:
                    node.event("broker_client_subscribed", client=client, topic=request.filter, qos=code)
        node.feeds.begin(client.session, self._retained)
        return True


def unsubscribe(client: Client, packet: Unsubscribe) -> None:
    """Handle an UNSUBSCRIBE. Raises MalformedPacket and ProtocolViolation."""
    for topic_filter in packet.filters:
        check_topic_filter(topic_filter, shared=client.version == 5)
    _check_answer(client, len(packet.filters))
    codes: list[int] = []

    def go_on(now: float) -> None:
        known = client.node.sessions.get(client.session.client_id) is client.session
        if not known or _unsubscribe(client, packet, codes, go_on):
            client.conn.resume(now)

    client.conn.waiting = not _unsubscribe(client, packet, codes, go_on)


def _unsubscribe(client: Client, packet: Unsubscribe, codes: list[int], later: Callable[[float], None]) -> bool:
    """Take so many filters out; False: the others `later`."""
    node = client.node
    for topic_filter in packet.filters[len(codes) : len(codes) + limits.FILTERS_AT_ONCE]:
        node.turns.work += limits.PACKET_WORK
        if not acceptable(topic_filter):
            codes.append(ReasonCode.TOPIC_FILTER_INVALID)
            continue
        group, inner = split_shared(topic_filter)
        known = node.fanout.unsubscribe(client.session, topic_filter, group, inner)
        codes.append(ReasonCode.SUCCESS if known else ReasonCode.NO_SUBSCRIPTION_EXISTED)
        if node.hooks.events:
            node.event("broker_client_unsubscribed", client=client, topic=topic_filter)
    if len(codes) < len(packet.filters):
        node.turns.later(later)
        return False
    if not (client.conn.closed or client.conn.closing):
        client.send(encode_packet(Unsuback(packet.packet_id, codes), client.version))
    return True


def acceptable(topic_filter: str) -> bool:
    """Whether we let clients subscribe to `topic_filter`, as far as its levels go, and before MQTT 5 that of a group."""
    return topic_filter.count("/") < limits.MAX_TOPIC_LEVELS and valid_topic_filter(topic_filter)


def _check_answer(client: Client, codes: int) -> None:
    """Refuse a packet with more filters than codes fit into the Maximum Packet Size of the client (MQTT-3.1.2-24)."""
    session = client.session
    if session.limited and codes + (5 if codes < 125 else 8) > session.maximum_packet_size:
        raise ProtocolViolation("answer exceeds the client's Maximum Packet Size", ReasonCode.PACKET_TOO_LARGE)


def _refusal(client: Client, request: SubscriptionRequest, permitted: bool, *, note: bool = True) -> ReasonCode | None:
    session = client.session
    if not acceptable(request.filter):
        return ReasonCode.TOPIC_FILTER_INVALID
    missing = unavailable(request.filter, client.node.config)
    if missing is not None:
        return missing
    if not permitted or not _may_subscribe(client, request.filter, note):
        return ReasonCode.NOT_AUTHORIZED
    if request.filter in session.subscriptions:
        return None
    if len(session.subscriptions) >= limits.MAX_SUBSCRIPTIONS or not client.node.memory.takes_more:
        return ReasonCode.QUOTA_EXCEEDED
    if session.filters_memory + filter_memory(request.filter) > limits.MAX_FILTERS_MEMORY:
        return ReasonCode.QUOTA_EXCEEDED
    if session.forms is not None and len(session.forms) >= limits.MAX_FORMS:
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
        client.note_refusal("subscribe to", topic_filter, rule)
    return False


def _add(client: Client, request: SubscriptionRequest, qos: int, identifier: int) -> list[Subscription]:
    """Subscribe; returns the subscription if it gets what is retained."""
    session = client.session
    node = client.node
    group, inner = split_shared(request.filter)
    known = session.subscriptions.get(request.filter)
    subscription = Subscription(session, request.filter, qos, request.no_local, request.retain_as_published, identifier)
    subscription.start = node.federation.positions.begin() if known is None else known.start
    node.fanout.subscribe(subscription, group, inner)
    if group is not None or request.retain_handling == 2 or (request.retain_handling == 1 and known is not None):
        return []  # MQTT-3.3.1-9 to -11; shared subscriptions get no retained messages
    return [subscription]
