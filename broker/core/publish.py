"""PUBLISH of a client, one packet at a time (MQTT-3.3): what is checked, which plugins are asked,
what is answered.

The common case does not come here: `ClientPackets.packets` and `qos_fast_path` handle runs of plain
packets.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from mqttree.broker.core.capabilities import check_publish
from mqttree.broker.core.client import said_of
from mqttree.broker.core.effects import AuthorizePublish
from mqttree.broker.core.message import Message
from mqttree.broker.core.reason_string import well_formed
from mqttree.broker.wire.constants import MAX_TOPIC_LEVELS, ReasonCode
from mqttree.broker.wire.errors import ProtocolViolation, WireError
from mqttree.broker.wire.packets import Puback, Publish, Pubrec
from mqttree.broker.wire.properties import NOT_FORWARDED, Property, encode_properties, lifetime
from mqttree.broker.wire.publish_header import PACKET_IDS, PUBACK_HEAD, PUBREC_HEAD
from mqttree.broker.wire.strings import is_own_name
from mqttree.broker.wire.varint import read_length

if TYPE_CHECKING:
    from mqttree.broker.auth.authorization import Permissions
    from mqttree.broker.core.client import Client
    from mqttree.broker.core.route import Route
    from mqttree.broker.wire.properties import Properties

PLACEMENT: Final = b"$mqttree/placement"
"""The topic of questions about where a client should connect."""


def publish(client: Client, packet: Publish) -> None:
    """Handle a PUBLISH that is not on the fast path. Raises ProtocolViolation."""
    properties = packet.properties
    topic = packet.topic.encode()
    expires_at: float | None = None
    encoded = b""
    if properties:
        client.node.turns.work += len(properties.get(Property.USER_PROPERTY, ()))
        topic = aliased(client, topic, properties.get(Property.TOPIC_ALIAS))
        if Property.SUBSCRIPTION_IDENTIFIER in properties:
            raise ProtocolViolation("Subscription Identifier from a client [MQTT-3.3.4-6]")
        expiry = properties.get(Property.MESSAGE_EXPIRY_INTERVAL)
        if expiry is not None:
            expires_at = client.node.now + lifetime(expiry)
        rest = {k: v for k, v in properties.items() if k not in NOT_FORWARDED}
        if rest:
            whole = encode_properties(rest)
            encoded = whole[1:] if whole[0] < 128 else whole[read_length(whole, 0)[1] :]
    config = client.node.config
    check_publish(packet, client.version, config)
    session = client.session
    packet_id = packet.packet_id or 0
    if packet.qos and client.window is not None:
        client.window.check_receive_maximum(session.incoming, packet_id)
    # A repetition: answered, not delivered (MQTT-4.3.3-10).
    if packet.qos == 2 and packet_id in session.incoming:
        if not packet.dup:
            client.reused(packet_id)
        client.send(PUBREC_HEAD + PACKET_IDS[packet_id])
        return
    message = Message(
        topic, packet.payload, packet.qos, packet.retain, encoded, expires_at, session
    )
    if properties and config.check_payload_format and not well_formed(packet.payload, properties):
        why = "the payload is not the UTF-8 text that its Payload Format Indicator promises"
        if not packet.qos:
            raise ProtocolViolation(why, ReasonCode.PAYLOAD_FORMAT_INVALID)
        client.note_refusal("publish to", topic.decode(), why)
        refuse(client, packet.qos, packet_id, ReasonCode.PAYLOAD_FORMAT_INVALID, why)
        return
    if topic == PLACEMENT and client.version == 5:
        _request(client, message, packet_id, properties or {})
    else:
        _accept(client, message, packet_id)


def _request(client: Client, message: Message, packet_id: int, properties: Properties) -> None:
    """Take a question where the client should connect: it has no receivers."""
    reason = client.node.cluster.placement.request(client.session, message, properties)
    if reason >= 0x80:
        refuse(client, message.qos, packet_id, reason, "a question that is not answered so")
    else:
        acknowledge(client, message.qos, packet_id)


def aliased(client: Client, topic: bytes, alias: int | None) -> bytes:
    """Return the topic of a PUBLISH of a `client`, and note that its `alias` (None: it has none)
    stands for it.

    `topic`: in the packet, b"": the alias says it.

    Raises:
        ProtocolViolation: an alias that is too high (MQTT-3.3.2-9), or stands for nothing.
    """
    if alias is None:
        return topic
    if alias == 0 or alias > client.node.config.topic_alias_maximum:
        raise ProtocolViolation(
            "Topic Alias out of range [MQTT-3.3.2-9]", ReasonCode.TOPIC_ALIAS_INVALID
        )
    if topic:
        client.aliases_memory += len(topic) - len(client.aliases.get(alias, b""))
        client.aliases[alias] = topic
        return topic
    known = client.aliases.get(alias)
    if known is None:
        raise ProtocolViolation("unknown Topic Alias", ReasonCode.PROTOCOL_ERROR)
    return known


def _accept(client: Client, message: Message, packet_id: int) -> None:
    node = client.node
    if message.topic.count(b"/") >= MAX_TOPIC_LEVELS:
        raise ProtocolViolation("topic name has too many levels", ReasonCode.TOPIC_NAME_INVALID)
    route = node.dispatcher.route(
        message.topic
    )  # raises on a bad topic name before anything is asked
    if node.hooks.events:
        node.event("broker_message_received", client=client, message=message, packet_id=packet_id)
    if is_own_name(message.topic):
        # MQTT-4.7.2
        _refuse(client, message, packet_id, "it is one of the broker's own topics")
    elif (
        (permissions := client.session.permissions) is not None
        and message.topic not in client.routes
        and (forbidden := _forbidden(client, permissions, message.topic, route))
    ):
        _refuse(client, message, packet_id, forbidden)
    elif node.hooks.topics:
        client.conn.wait()
        then = partial(_on_answer, client, message, packet_id)
        node.effects.append(AuthorizePublish(client, message, then))
    else:
        take(client, message, packet_id)


def first_route(client: Client, topic: bytes) -> Route | None:
    """Return the route of a topic that is not among the client's `routes`, for a PUBLISH on the
    fast path; None: it is to be handled by `publish`, which refuses or closes, or makes the client
    rest as this turn has done enough."""
    dispatcher = client.node.dispatcher
    # Without a topic there is an alias; the routes of those that begin
    # with "$" are not kept.
    if not topic or topic[0] == 0x24 or not dispatcher.ready(topic):
        return None
    try:
        route = dispatcher.route(topic)
    except WireError:
        return None
    permissions = client.session.permissions
    if permissions is not None:
        rule = permissions.publish_rule(topic.decode())
        if rule is None or not rule.allow:
            return None
        _remember(client, topic, route)
    return route


def _on_answer(client: Client, message: Message, packet_id: int, allowed: bool, now: float) -> None:
    """Go on after the topic plugins' answer."""
    if not (client.conn.closed or client.conn.closing):
        try:
            if allowed:
                take(client, message, packet_id)
            else:
                _refuse(client, message, packet_id, "a plugin forbids it")
        except WireError as error:
            client.fail(error)
    client.conn.resume(now)


def _forbidden(client: Client, permissions: Permissions, topic: bytes, route: Route) -> str:
    """Return why the rules forbid publishing, "" if they do not; that is remembered as long as the
    route is."""
    rule = permissions.publish_rule(topic.decode())
    if rule is not None and rule.allow:
        _remember(client, topic, route)
        return ""
    return said_of(rule)


def _remember(client: Client, topic: bytes, route: Route) -> None:
    if len(client.routes) >= client.node.limits.permitted_topics:
        client.forget_routes()
    client.node.dispatcher.cache.show(route, topic, client)


def take(client: Client, message: Message, packet_id: int) -> None:
    """Acknowledge a `message` of a `client` and publish it. `packet_id`: of its PUBLISH, 0 at QoS
    0."""
    node = client.node
    acknowledge(client, message.qos, packet_id)
    if node.hooks.events:
        node.event("broker_message_broadcast", client=client, message=message, packet_id=packet_id)
    node.publisher.publish(message, client.conn)


def acknowledge(client: Client, qos: int, packet_id: int) -> None:
    """Acknowledge a message of a `client`. `qos`, `packet_id`: of its PUBLISH."""
    if qos == 1:
        client.send(PUBACK_HEAD + PACKET_IDS[packet_id])
    elif qos == 2:
        _received(client, packet_id)
        client.send(PUBREC_HEAD + PACKET_IDS[packet_id])


def _received(client: Client, packet_id: int) -> None:
    session = client.session
    session.incoming.add(packet_id)
    if session.recorder is not None:
        session.recorder.received(PACKET_IDS[packet_id])


def _refuse(client: Client, message: Message, packet_id: int, why: str) -> None:
    """Acknowledge a `message` of a `client` that may not be published, and log `why`. `packet_id`:
    of its PUBLISH, 0 at QoS 0."""
    client.note_refusal("publish to", message.topic.decode(), why)
    refuse(client, message.qos, packet_id)


def refuse(
    client: Client,
    qos: int,
    packet_id: int,
    reason: int = ReasonCode.NOT_AUTHORIZED,
    why: str = "not authorized to publish to this topic",
) -> None:
    """Acknowledge a message of a `client` that is not published. An MQTT 5 client is told the
    `reason` (Reason Code) and `why` (Reason String); others only see that it is acknowledged
    (MQTT-3.3.5-2). `qos`, `packet_id`: of its PUBLISH, the latter 0 at QoS 0."""
    client.node.counters.publish_refused += 1
    client.session.refused += 1
    reason = reason if client.version == 5 else 0
    if qos == 1:
        client.answer(Puback(packet_id, reason), why)
    elif qos == 2:
        if not reason:
            _received(client, packet_id)
        client.answer(Pubrec(packet_id, reason), why)
