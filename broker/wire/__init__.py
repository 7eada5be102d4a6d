"""MQTT 3.1, 3.1.1 and 5 packets to bytes and back: pure, strict, of use on its own.

``decode_packet`` and ``encode_packet`` work on whole packets, ``PacketReader`` cuts a stream into
them. Everything that is wrong with received bytes is a ``WireError`` with
the Reason Code to answer.

* `reader` cuts a stream into packets, `decode` and `encode` turn them into objects and back,
  `publish_header` reads PUBLISH and acknowledgements where they stand.
* `properties`, `strings` and `varint` are their parts; `constants` has the numbers of the
  specification, `errors` what is raised, `steps` work that is done in pieces.
"""

from __future__ import annotations

from mqttree.broker.wire.constants import (
    V5,
    V31,
    V311,
    WILL,
    PacketType,
    ReasonCode,
)
from mqttree.broker.wire.decode import decode_packet
from mqttree.broker.wire.encode import encode_packet, publish_bytes, return_code
from mqttree.broker.wire.errors import (
    MalformedPacket,
    ProtocolViolation,
    WireError,
)
from mqttree.broker.wire.packets import (
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
from mqttree.broker.wire.reader import PacketReader
from mqttree.broker.wire.strings import check_topic_filter, check_topic_name
from mqttree.broker.wire.varint import encode_varint

__all__ = [
    "V5",
    "V31",
    "V311",
    "WILL",
    "Auth",
    "Connack",
    "Connect",
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
    "Will",
    "WireError",
    "check_topic_filter",
    "check_topic_name",
    "decode_packet",
    "decode_properties",
    "encode_packet",
    "encode_properties",
    "encode_varint",
    "publish_bytes",
    "return_code",
]
