"""MQTT 3.1, 3.1.1 and 5 packets to bytes and back: pure, strict, of use on its own.

``decode_packet`` and ``encode_packet`` work on whole packets, ``PacketReader`` cuts a stream into
them, ``Decoder`` does both. Everything that is wrong with received bytes is a ``WireError`` with
the Reason Code to answer.

* `reader` cuts a stream into packets, `decode` and `encode` turn them into objects and back,
  `publish_header` reads PUBLISH and acknowledgements where they stand.
* `properties`, `strings` and `varint` are their parts; `constants` has the numbers of the
  specification, `errors` what is raised, `steps` work that is done in pieces.
"""

from __future__ import annotations

from mqttree.broker.wire.constants import (
    BRIDGE_BIT,
    MAX_PACKET_SIZE,
    MAX_REMAINING_LENGTH,
    V5,
    V31,
    V311,
    WILL,
    PacketType,
    ReasonCode,
)
from mqttree.broker.wire.decode import decode_connect, decode_packet, decode_publish
from mqttree.broker.wire.encode import encode_packet, encode_publish, publish_bytes, return_code
from mqttree.broker.wire.errors import (
    MalformedPacket,
    ProtocolViolation,
    UnsupportedVersion,
    WireError,
)
from mqttree.broker.wire.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqttree.broker.wire.properties import (
    Properties,
    Property,
    decode_properties,
    encode_properties,
)
from mqttree.broker.wire.reader import Decoder, PacketReader
from mqttree.broker.wire.strings import check_topic_filter, check_topic_name
from mqttree.broker.wire.varint import decode_varint, encode_varint

__all__ = [
    "BRIDGE_BIT",
    "MAX_PACKET_SIZE",
    "MAX_REMAINING_LENGTH",
    "V5",
    "V31",
    "V311",
    "WILL",
    "Ack",
    "Auth",
    "Connack",
    "Connect",
    "Decoder",
    "Disconnect",
    "MalformedPacket",
    "Packet",
    "PacketReader",
    "PacketType",
    "Pingreq",
    "Pingresp",
    "Properties",
    "Property",
    "ProtocolViolation",
    "Puback",
    "Pubcomp",
    "Publish",
    "Pubrec",
    "Pubrel",
    "ReasonCode",
    "Suback",
    "Subscribe",
    "SubscriptionRequest",
    "Unsuback",
    "Unsubscribe",
    "UnsupportedVersion",
    "Will",
    "WireError",
    "check_topic_filter",
    "check_topic_name",
    "decode_connect",
    "decode_packet",
    "decode_properties",
    "decode_publish",
    "decode_varint",
    "encode_packet",
    "encode_properties",
    "encode_publish",
    "encode_varint",
    "publish_bytes",
    "return_code",
]
