"""SUBSCRIBE and UNSUBSCRIBE of a client (MQTT-3.8, MQTT-3.10): what is granted, what is answered, what is retained for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker import limits
from broker.availability import check_identifier, unavailable
from broker.effects import AuthorizeSubscribe
from broker.message import Message
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
    propagation = client.node.federation.propagation
    filters = [
        request.filter
        for request, permitted in zip(packet.filters, allowed, strict=True)
        if not request.filter.startswith(SHARE_PREFIX) and _refusal(client, request, permitted, note=False) is None
    ]

    def go_on(now: float) -> None:
        node = client.node
        node.now = now
        current, node.current = node.current, client.conn
        if node.sessions.get(client.session.client_id) is client.session:  # though its connection may have ended: it came before
            try:
                _grant(client, packet, allowed)
            except WireError as error:
                client.fail(error)
        propagation.settle_for(filters)
        client.conn.resume(now)
        node.current = current

    if propagation.expect(filters, go_on):
        client.conn.waiting = True
        return False
    _grant(client, packet, allowed)
    propagation.settle_for(filters)
    return True


def _grant(client: Client, packet: Subscribe, allowed: list[bool]) -> None:
    node = client.node
    identifiers = (packet.properties or {}).get(Property.SUBSCRIPTION_IDENTIFIER)
    identifier = identifiers[0] if identifiers else 0
    codes: list[int] = []
    refused: list[str] = []
    retained: list[tuple[Message, Subscription]] = []
    for request, permitted in zip(packet.filters, allowed, strict=True):
        reason = _refusal(client, request, permitted)
        if reason is None:
            codes.append(min(request.qos, node.config.max_qos))
            retained += _add(client, request, codes[-1], identifier)
        else:
            codes.append(reason)
            refused.append(f"{request.filter}: {reason.name.lower().replace('_', ' ')}")
    node.counters.subscriptions_refused += len(refused)
    if not (client.conn.closed or client.conn.closing):
        client.answer(Suback(packet.packet_id, codes), "; ".join(refused))
    for request, code in zip(packet.filters, codes, strict=True):
        if code < 0x80 and node.hooks.events:
            node.event("broker_client_subscribed", client=client, topic=request.filter, qos=code)
    node.deliver_retained(client.session, retained)


def unsubscribe(client: Client, packet: Unsubscribe) -> None:
    """Handle an UNSUBSCRIBE. Raises MalformedPacket and ProtocolViolation."""
    for topic_filter in packet.filters:
        check_topic_filter(topic_filter, shared=client.version == 5)
    _check_answer(client, len(packet.filters))
    codes: list[int] = []
    for topic_filter in packet.filters:
        if not acceptable(topic_filter):
            codes.append(ReasonCode.TOPIC_FILTER_INVALID)
            continue
        group, inner = split_shared(topic_filter)
        known = client.node.fanout.unsubscribe(client.session, topic_filter, group, inner)
        codes.append(ReasonCode.SUCCESS if known else ReasonCode.NO_SUBSCRIPTION_EXISTED)
        if client.node.hooks.events:
            client.node.event("broker_client_unsubscribed", client=client, topic=topic_filter)
    client.send(encode_packet(Unsuback(packet.packet_id, codes), client.version))


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
    if len(session.subscriptions) >= limits.MAX_SUBSCRIPTIONS and request.filter not in session.subscriptions:
        return ReasonCode.QUOTA_EXCEEDED
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


def _add(client: Client, request: SubscriptionRequest, qos: int, identifier: int) -> list[tuple[Message, Subscription]]:
    session = client.session
    node = client.node
    group, inner = split_shared(request.filter)
    known = session.subscriptions.get(request.filter)
    subscription = Subscription(session, request.filter, qos, request.no_local, request.retain_as_published, identifier)
    subscription.start = node.federation.positions.begin() if known is None else known.start
    node.fanout.subscribe(subscription, group, inner)
    if group is not None or request.retain_handling == 2 or (request.retain_handling == 1 and known is not None):
        return []  # MQTT-3.3.1-9 to -11; shared subscriptions get no retained messages
    found = node.retained.match(inner, node.now)
    permissions = session.permissions
    if permissions is not None:
        found = [message for message in found if permissions.may_receive(message.topic.decode())]
    return [(m, subscription) for m in found]
