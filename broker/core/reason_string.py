"""Packets that say why (MQTT 5, 4.13): with a Reason String when it fits, without it when not."""

from __future__ import annotations

from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Connack, Disconnect, Puback, Pubrec, Suback, Unsuback
from mqttree.broker.wire.properties import Properties, Property

Explained = Connack | Disconnect | Puback | Pubrec | Suback | Unsuback

MAX_REASON = 500
"""bytes of a Reason String: a line for a person, and it may quote what the peer sent."""


def explain(packet: Explained, why: str, maximum: int) -> bytes:
    """Return an MQTT 5 `packet` with the Reason String `why`, or without one if the packet would
    exceed `maximum` (bytes), the Maximum Packet Size of the client (MQTT-3.2.2-19, MQTT-3.4.2-2,
    MQTT-3.9.2-1, MQTT-3.14.2-3).

    The caller has checked that the client wants Reason Strings: all but CONNACK and DISCONNECT need
    its Request Problem Information (MQTT-3.1.2-29).
    """
    bare = encode_packet(packet, 5)
    if not why:
        return bare
    plain = packet.properties
    text = why.encode(errors="replace")[:MAX_REASON].decode(errors="ignore").replace("\0", "?")
    properties: Properties = {**(plain or {}), Property.REASON_STRING: text}
    packet.properties = properties
    data = encode_packet(packet, 5)
    packet.properties = plain
    return data if len(data) <= maximum else bare


def well_formed(payload: bytes, properties: Properties | None) -> bool:
    """Tell whether a payload is UTF-8 text if its Payload Format Indicator promises that (MQTT 5,
    3.3.2.3.2)."""
    if not properties or properties.get(Property.PAYLOAD_FORMAT_INDICATOR) != 1:
        return True
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
