"""Features of MQTT that this broker is configured not to offer, or only up to a limit (MQTT 5,
3.2.2.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.errors import ProtocolViolation
from mqttree.broker.wire.packets import Publish, Subscribe
from mqttree.broker.wire.properties import Property

if TYPE_CHECKING:
    from mqttree.broker.config.node_config import NodeConfig

UNLIMITED = 65_535
"""Receive Maximum that needs no counting: there are no more packet identifiers."""


def unavailable(topic_filter: str, config: NodeConfig) -> ReasonCode | None:
    """Return why clients may not subscribe to a filter here, None when they may."""
    if not config.shared_subscriptions and topic_filter.startswith("$share/"):
        return ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
    if not config.wildcard_subscriptions and ("+" in topic_filter or "#" in topic_filter):
        return ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
    return None


def check_identifier(packet: Subscribe, config: NodeConfig) -> None:
    """Raise ProtocolViolation (0xA1) for a Subscription Identifier that is not offered (MQTT 5,
    3.2.2.3.12)."""
    if not config.subscription_identifiers and Property.SUBSCRIPTION_IDENTIFIER in (
        packet.properties or {}
    ):
        raise ProtocolViolation(
            "Subscription Identifier, which is not available",
            ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
        )


def check_publish(packet: Publish, version: int, config: NodeConfig) -> None:
    """Check that this broker takes a PUBLISH (`packet`) of a client of MQTT `version`. `config`:
    says what is available.

    Raises:
        ProtocolViolation: a QoS above the Maximum QoS (0x9B), or RETAIN of a client that was told
            in CONNACK that it is not available (0x9A). Before MQTT 5 no packet could announce the
            latter: such a message is delivered, and not retained.
    """
    if packet.qos > config.max_qos:
        raise ProtocolViolation(
            "QoS above the Maximum QoS [MQTT-3.2.2-11]", ReasonCode.QOS_NOT_SUPPORTED
        )
    if packet.retain and version == 5 and not config.retain_available:
        raise ProtocolViolation(
            "RETAIN, which is not available [MQTT-3.2.2-14]", ReasonCode.RETAIN_NOT_SUPPORTED
        )


class ReceiveWindow:
    """Counts the messages of a client that this broker has not acknowledged, if there is a limit
    (Receive Maximum; MQTT 5, 4.9).

    QoS 1 is acknowledged at once, so QoS 2 is what counts, from PUBLISH to our PUBCOMP. Packet
    identifiers of an earlier connection are in `incoming` too, but the client counts from zero
    again.
    """

    __slots__ = ("_left", "maximum")

    def __init__(self, maximum: int, incoming: set[int]) -> None:
        self.maximum = maximum
        self._left = set(incoming)

    def full(self, incoming: set[int]) -> bool:
        """Tell whether one more would be one too many."""
        if len(incoming) < self.maximum:
            return False
        self._left &= incoming
        return len(incoming) - len(self._left) >= self.maximum

    def check_receive_maximum(self, incoming: set[int], packet_id: int) -> None:
        """Raise ProtocolViolation (0x93) for a PUBLISH at QoS 1 or 2 too many (MQTT-3.3.4-7)."""
        if packet_id in incoming:
            self._left.discard(packet_id)  # repeated here: counts now
        elif self.full(incoming):
            raise ProtocolViolation(
                f"more than {self.maximum} messages under way, the Receive Maximum",
                ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
            )
