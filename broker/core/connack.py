"""CONNACK (MQTT-3.2): it lets a client in, and says what this broker does not offer, or not as
usual; or it refuses the client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqttree.broker.core.reason_string import explain
from mqttree.broker.wire.constants import MAX_PACKET_SIZE
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Connack, Connect
from mqttree.broker.wire.properties import Properties, Property

if TYPE_CHECKING:
    from mqttree.broker.config.node_config import NodeConfig


def accepting(connect: Connect, present: bool, answer: Properties, config: NodeConfig) -> bytes:
    """Return the CONNACK that lets in the client that sent `connect`. `present`: its session was
    there before; `answer`: properties that are known already, to which those are added that
    `config`, this broker's, asks for."""
    if connect.version == 5:
        _announce(connect, answer, config)
    elif connect.version == 4:
        return b"\x20\x02\x01\x00" if present else b"\x20\x02\x00\x00"
    return encode_packet(
        Connack(present and connect.version > 3, 0, answer or None), connect.version
    )


def _announce(connect: Connect, answer: Properties, config: NodeConfig) -> None:
    """Put what this broker is not, or not as usual, into a CONNACK (MQTT 5, 3.2.2.3)."""
    if config.topic_alias_maximum:
        answer[Property.TOPIC_ALIAS_MAXIMUM] = config.topic_alias_maximum
    if config.max_qos < 2:
        answer[Property.MAXIMUM_QOS] = config.max_qos
    if config.max_packet_size < MAX_PACKET_SIZE:
        answer[Property.MAXIMUM_PACKET_SIZE] = config.max_packet_size
    if config.receive_maximum < 65_535:
        answer[Property.RECEIVE_MAXIMUM] = config.receive_maximum
    for available, name in (
        (config.retain_available, Property.RETAIN_AVAILABLE),
        (config.wildcard_subscriptions, Property.WILDCARD_SUBSCRIPTION_AVAILABLE),
        (config.subscription_identifiers, Property.SUBSCRIPTION_IDENTIFIER_AVAILABLE),
        (config.shared_subscriptions, Property.SHARED_SUBSCRIPTION_AVAILABLE),
    ):
        if not available:
            answer[name] = 0
    if config.response_information and (connect.properties or {}).get(
        Property.REQUEST_RESPONSE_INFORMATION
    ):
        answer[Property.RESPONSE_INFORMATION] = config.response_information.replace(
            "%c", connect.client_id
        )


def keep_alive(connect: Connect, answer: Properties, maximum: int) -> int:
    """Return the Keep Alive (s, 0: none) that counts for the client that sent `connect`; it is put
    into `answer` when it is not the one that the client asked for. `maximum`: s, 0: any."""
    if (
        maximum
        and connect.version == 5
        and (connect.keep_alive == 0 or connect.keep_alive > maximum)
    ):
        answer[Property.SERVER_KEEP_ALIVE] = maximum
        return maximum
    return connect.keep_alive


def refusing(connack: Connack, why: str, asked: Properties | None) -> bytes:
    """Return the `connack` that refuses a client of MQTT 5, as bytes, with the Reason String `why`
    if that fits; b"" if nothing does. `asked`: the properties of its CONNECT, with its Maximum
    Packet Size."""
    maximum = (asked or {}).get(Property.MAXIMUM_PACKET_SIZE, MAX_PACKET_SIZE)
    data = explain(connack, why, maximum)
    if len(data) > maximum:
        data = encode_packet(Connack(False, connack.code), 5)
    return data if len(data) <= maximum else b""
