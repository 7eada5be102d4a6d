"""Numbers of the MQTT protocol, named as the specification names them."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

MAX_TOPIC_LEVELS: Final = 201
"""levels of a topic or filter, 200 slashes between them as with Mosquitto: a 64 KiB filter of
single characters would make 32,768 trie nodes. Deeper topics close the connection (0x90)
[protocol_errors], deeper filters are refused (0x8F; 0x80 before MQTT 5)
[subscriptions_refused]."""

V31: Final = 3
"""MQTT 3.1 (protocol name MQIsdp)."""
V311: Final = 4
"""MQTT 3.1.1 (protocol name MQTT)."""
V5: Final = 5
"""MQTT 5 (protocol name MQTT)."""

BRIDGE_BIT: Final = 0x80
"""Top bit of the Protocol Version byte: the caller is a broker (MQTT-ST)."""

WILL: Final = 16
"""Pseudo packet type of the Will Properties inside a CONNECT (MQTT 5, 3.1.3.2)."""

MAX_REMAINING_LENGTH: Final = 268_435_455
"""Largest Variable Byte Integer, so the largest Remaining Length (bytes)."""
MAX_PACKET_SIZE: Final = MAX_REMAINING_LENGTH + 5
"""Largest whole packet, fixed header included (bytes)."""


class PacketType(IntEnum):
    """MQTT Control Packet types: the high four bits of the first byte (MQTT 5, 2.1.2)."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class ReasonCode(IntEnum):
    """Reason Codes of MQTT 5 (table 2-6). From 0x80 up they report a failure."""

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_0 = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL_MESSAGE = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2
