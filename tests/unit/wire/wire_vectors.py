"""Packets beside their bytes, and bytes that are not packets, written by hand from the
specifications."""

from __future__ import annotations

from mqttree.broker.wire.constants import V5, V31, V311, ReasonCode
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
from mqttree.broker.wire.properties import Property

P = Property
ALL = (V31, V311, V5)
OLD = (V31, V311)

_WILL_PROPERTIES = {
    P.WILL_DELAY_INTERVAL: 5,
    P.PAYLOAD_FORMAT_INDICATOR: 1,
    P.MESSAGE_EXPIRY_INTERVAL: 60,
    P.CONTENT_TYPE: "t",
    P.RESPONSE_TOPIC: "r",
    P.CORRELATION_DATA: b"\x01\x02",
    P.USER_PROPERTY: [("k", "v")],
}
# (name, versions, packet, bytes): encodes to exactly these bytes, and these bytes decode to exactly
# this packet.
GOLDEN: list[tuple[str, tuple[int, ...], Packet, bytes]] = [
    (
        "connect 3.1",
        (V31,),
        Connect("MQIsdp", 3, True, 10, "abc"),
        b"\x10\x11\x00\x06MQIsdp\x03\x02\x00\x0a\x00\x03abc",
    ),
    (
        "connect 3.1 bridge",
        (V31,),
        Connect("MQIsdp", 3, True, 10, "abc", bridge=True),
        b"\x10\x11\x00\x06MQIsdp\x83\x02\x00\x0a\x00\x03abc",
    ),
    (
        "connect 3.1.1, empty client id",
        (V311,),
        Connect("MQTT", 4, True, 0, ""),
        b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00",
    ),
    (
        "connect 3.1.1, everything",
        (V311,),
        Connect("MQTT", 4, False, 65535, "c", "us", b"\xff\x00", Will("w/t", b"bye", 2, True)),
        b"\x10\x1f\x00\x04MQTT\x04\xf4\xff\xff\x00\x01c"
        b"\x00\x03w/t\x00\x03bye\x00\x02us\x00\x02\xff\x00",
    ),
    (
        "connect 3.1.1 bridge",
        (V311,),
        Connect("MQTT", 4, True, 60, "b", bridge=True),
        b"\x10\x0d\x00\x04MQTT\x84\x02\x00\x3c\x00\x01b",
    ),
    (
        "connect 3.1.1, will of QoS 1, empty will message and user name",
        (V311,),
        Connect("MQTT", 4, True, 1, "c", "", None, Will("w", b"", 1, False)),
        b"\x10\x14\x00\x04MQTT\x04\x8e\x00\x01\x00\x01c\x00\x01w\x00\x00\x00\x00",
    ),
    (
        "connect 5, nothing",
        (V5,),
        Connect("MQTT", 5, True, 60, ""),
        b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00",
    ),
    (
        "connect 5 bridge",
        (V5,),
        Connect("MQTT", 5, True, 60, "", bridge=True),
        b"\x10\x0d\x00\x04MQTT\x85\x02\x00\x3c\x00\x00\x00",
    ),
    (
        "connect 5, password without user name",
        (V5,),
        Connect("MQTT", 5, True, 60, "", None, b"p"),
        b"\x10\x10\x00\x04MQTT\x05\x42\x00\x3c\x00\x00\x00\x00\x01p",
    ),
    (
        "connect 5, every property",
        (V5,),
        Connect(
            "MQTT",
            5,
            False,
            60,
            "id",
            "u",
            b"p",
            Will("w", b"gone", 1, True, dict(_WILL_PROPERTIES)),
            {
                P.SESSION_EXPIRY_INTERVAL: 3600,
                P.RECEIVE_MAXIMUM: 20,
                P.MAXIMUM_PACKET_SIZE: 65536,
                P.TOPIC_ALIAS_MAXIMUM: 10,
                P.REQUEST_RESPONSE_INFORMATION: 1,
                P.REQUEST_PROBLEM_INFORMATION: 0,
                P.USER_PROPERTY: [("a", "1"), ("a", "2")],
                P.AUTHENTICATION_METHOD: "M",
                P.AUTHENTICATION_DATA: b"\x00",
            },
        ),
        b"\x10\x69"
        b"\x00\x04MQTT\x05"
        b"\xec"
        b"\x00\x3c"
        b"\x2a\x11\x00\x00\x0e\x10\x21\x00\x14\x27\x00\x01\x00\x00\x22\x00\x0a\x19\x01\x17\x00"
        b"\x26\x00\x01a\x00\x011\x26\x00\x01a\x00\x012\x15\x00\x01M\x16\x00\x01\x00"
        b"\x00\x02id"
        b"\x20\x18\x00\x00\x00\x05\x01\x01\x02\x00\x00\x00\x3c"
        b"\x03\x00\x01t\x08\x00\x01r\x09\x00\x02\x01\x02"
        b"\x26\x00\x01k\x00\x01v"
        b"\x00\x01w"
        b"\x00\x04gone"
        b"\x00\x01u"
        b"\x00\x01p",
    ),
    ("connack accepted", OLD, Connack(False, 0), b"\x20\x02\x00\x00"),
    ("connack session present", (V311,), Connack(True, 0), b"\x20\x02\x01\x00"),
    ("connack refused", OLD, Connack(False, 5), b"\x20\x02\x00\x05"),
    ("connack 5", (V5,), Connack(True, 0), b"\x20\x03\x01\x00\x00"),
    ("connack 5 refused", (V5,), Connack(False, 0x87), b"\x20\x03\x00\x87\x00"),
    (
        "connack 5, every property",
        (V5,),
        Connack(
            False,
            0,
            {
                P.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF,
                P.RECEIVE_MAXIMUM: 1,
                P.MAXIMUM_QOS: 1,
                P.RETAIN_AVAILABLE: 0,
                P.MAXIMUM_PACKET_SIZE: 1,
                P.ASSIGNED_CLIENT_IDENTIFIER: "x1",
                P.TOPIC_ALIAS_MAXIMUM: 0,
                P.REASON_STRING: "\u00e9",
                P.USER_PROPERTY: [("", "")],
                P.WILDCARD_SUBSCRIPTION_AVAILABLE: 0,
                P.SUBSCRIPTION_IDENTIFIER_AVAILABLE: 1,
                P.SHARED_SUBSCRIPTION_AVAILABLE: 0,
                P.SERVER_KEEP_ALIVE: 256,
                P.RESPONSE_INFORMATION: "ri",
                P.SERVER_REFERENCE: "s",
                P.AUTHENTICATION_METHOD: "M",
                P.AUTHENTICATION_DATA: b"",
            },
        ),
        b"\x20\x3f\x00\x00\x3c"
        b"\x11\xff\xff\xff\xff\x21\x00\x01\x24\x01\x25\x00\x27\x00\x00\x00\x01"
        b"\x12\x00\x02x1\x22\x00\x00"
        b"\x1f\x00\x02\xc3\xa9\x26\x00\x00\x00\x00\x28\x00\x29\x01\x2a\x00\x13\x01\x00"
        b"\x1a\x00\x02ri\x1c\x00\x01s"
        b"\x15\x00\x01M\x16\x00\x00",
    ),
    ("publish QoS 0", OLD, Publish("a/b", b"hi"), b"\x30\x07\x00\x03a/bhi"),
    ("publish empty payload, retained", OLD, Publish("a", b"", 0, True), b"\x31\x03\x00\x01a"),
    (
        "publish QoS 1",
        OLD,
        Publish("a/b", b"hi", 1, packet_id=10),
        b"\x32\x09\x00\x03a/b\x00\x0ahi",
    ),
    (
        "publish all flags",
        OLD,
        Publish("a", b"x", 2, True, True, 0xFFFF),
        b"\x3d\x06\x00\x01a\xff\xffx",
    ),
    (
        "publish topic of two bytes a letter",
        OLD,
        Publish("\u00e9", b""),
        b"\x30\x04\x00\x02\xc3\xa9",
    ),
    ("publish topic with BOM", OLD, Publish("\ufeffa", b""), b"\x30\x06\x00\x04\xef\xbb\xbfa"),
    ("publish of 128 bytes", OLD, Publish("a", b"x" * 125), b"\x30\x80\x01\x00\x01a" + b"x" * 125),
    (
        "publish of 16384 bytes",
        OLD,
        Publish("a", b"x" * 16381),
        b"\x30\x80\x80\x01\x00\x01a" + b"x" * 16381,
    ),
    (
        "publish of 2097152 bytes",
        OLD,
        Publish("a", b"x" * 2097149),
        b"\x30\x80\x80\x80\x01\x00\x01a" + b"x" * 2097149,
    ),
    ("publish 5 QoS 0", (V5,), Publish("a/b", b"hi"), b"\x30\x08\x00\x03a/b\x00hi"),
    (
        "publish 5 QoS 2",
        (V5,),
        Publish("a", b"", 2, False, True, 1),
        b"\x3c\x06\x00\x01a\x00\x01\x00",
    ),
    (
        "publish 5 alias instead of topic",
        (V5,),
        Publish("", b"x", 1, packet_id=2, properties={P.TOPIC_ALIAS: 7}),
        b"\x32\x09\x00\x00\x00\x02\x03\x23\x00\x07x",
    ),
    (
        "publish 5, every property",
        (V5,),
        Publish(
            "t",
            b"!",
            properties={
                P.PAYLOAD_FORMAT_INDICATOR: 0,
                P.MESSAGE_EXPIRY_INTERVAL: 1,
                P.TOPIC_ALIAS: 1,
                P.RESPONSE_TOPIC: "r/1",
                P.CORRELATION_DATA: b"\x00\xff",
                P.USER_PROPERTY: [("b", "2"), ("a", "1")],
                P.SUBSCRIPTION_IDENTIFIER: [1, 128, 268435455],
                P.CONTENT_TYPE: "",
            },
        ),
        b"\x30\x35\x00\x01t\x30"
        b"\x01\x00\x02\x00\x00\x00\x01\x23\x00\x01\x08\x00\x03r/1\x09\x00\x02\x00\xff"
        b"\x26\x00\x01b\x00\x012\x26\x00\x01a\x00\x011"
        b"\x0b\x01\x0b\x80\x01\x0b\xff\xff\xff\x7f\x03\x00\x00!",
    ),
    ("puback", ALL, Puback(1), b"\x40\x02\x00\x01"),
    ("pubrec", ALL, Pubrec(258), b"\x50\x02\x01\x02"),
    ("pubrel", ALL, Pubrel(3), b"\x62\x02\x00\x03"),
    ("pubcomp", ALL, Pubcomp(65535), b"\x70\x02\xff\xff"),
    ("puback reason", (V5,), Puback(1, 0x10), b"\x40\x03\x00\x01\x10"),
    (
        "puback success with properties",
        (V5,),
        Puback(1, 0, {P.REASON_STRING: "ok", P.USER_PROPERTY: [("a", "b")]}),
        b"\x40\x10\x00\x01\x00\x0c\x1f\x00\x02ok\x26\x00\x01a\x00\x01b",
    ),
    (
        "pubrec properties",
        (V5,),
        Pubrec(1, 0x97, {P.REASON_STRING: "q", P.USER_PROPERTY: [("a", "b")]}),
        b"\x50\x0f\x00\x01\x97\x0b\x1f\x00\x01q\x26\x00\x01a\x00\x01b",
    ),
    (
        "pubrel properties",
        (V5,),
        Pubrel(1, 0x92, {P.REASON_STRING: "n", P.USER_PROPERTY: [("a", "b")]}),
        b"\x62\x0f\x00\x01\x92\x0b\x1f\x00\x01n\x26\x00\x01a\x00\x01b",
    ),
    (
        "pubcomp properties",
        (V5,),
        Pubcomp(1, 0x92, {P.REASON_STRING: "n", P.USER_PROPERTY: [("a", "b")]}),
        b"\x70\x0f\x00\x01\x92\x0b\x1f\x00\x01n\x26\x00\x01a\x00\x01b",
    ),
    (
        "subscribe",
        OLD,
        Subscribe(10, [SubscriptionRequest("a/+", 1), SubscriptionRequest("#", 2)]),
        b"\x82\x0c\x00\x0a\x00\x03a/+\x01\x00\x01#\x02",
    ),
    (
        "subscribe shared",
        OLD,
        Subscribe(1, [SubscriptionRequest("$share/g/+/#", 0)]),
        b"\x82\x11\x00\x01\x00\x0c$share/g/+/#\x00",
    ),
    (
        "subscribe 5",
        (V5,),
        Subscribe(
            10,
            [
                SubscriptionRequest("a", 2, True, True, 2),
                SubscriptionRequest("$share/g/a", 1, False, True, 1),
            ],
            {P.SUBSCRIPTION_IDENTIFIER: [200], P.USER_PROPERTY: [("k", "")]},
        ),
        b"\x82\x1d\x00\x0a\x09\x0b\xc8\x01\x26\x00\x01k\x00\x00\x00\x01a\x2e\x00\x0a$share/g/a\x19",
    ),
    ("suback", OLD, Suback(10, [0, 1, 2, 0x80]), b"\x90\x06\x00\x0a\x00\x01\x02\x80"),
    (
        "suback 5",
        (V5,),
        Suback(1, [2, 0x87, 0xA2], {P.REASON_STRING: "no", P.USER_PROPERTY: [("a", "b")]}),
        b"\x90\x12\x00\x01\x0c\x1f\x00\x02no\x26\x00\x01a\x00\x01b\x02\x87\xa2",
    ),
    ("unsubscribe", OLD, Unsubscribe(10, ["a/b", "#"]), b"\xa2\x0a\x00\x0a\x00\x03a/b\x00\x01#"),
    (
        "unsubscribe 5",
        (V5,),
        Unsubscribe(1, ["a"], {P.USER_PROPERTY: [("a", "b")]}),
        b"\xa2\x0d\x00\x01\x07\x26\x00\x01a\x00\x01b\x00\x01a",
    ),
    ("unsuback", OLD, Unsuback(10), b"\xb0\x02\x00\x0a"),
    ("unsuback 5", (V5,), Unsuback(1, [0, 0x11]), b"\xb0\x05\x00\x01\x00\x00\x11"),
    (
        "unsuback 5 properties",
        (V5,),
        Unsuback(1, [0x8F], {P.REASON_STRING: "no", P.USER_PROPERTY: [("a", "b")]}),
        b"\xb0\x10\x00\x01\x0c\x1f\x00\x02no\x26\x00\x01a\x00\x01b\x8f",
    ),
    ("pingreq", ALL, Pingreq(), b"\xc0\x00"),
    ("pingresp", ALL, Pingresp(), b"\xd0\x00"),
    ("disconnect", ALL, Disconnect(), b"\xe0\x00"),
    ("disconnect with will", (V5,), Disconnect(4), b"\xe0\x01\x04"),
    (
        "disconnect, every property",
        (V5,),
        Disconnect(
            0x9D,
            {
                P.SESSION_EXPIRY_INTERVAL: 0,
                P.REASON_STRING: "mv",
                P.USER_PROPERTY: [("a", "b")],
                P.SERVER_REFERENCE: "h:1",
            },
        ),
        b"\xe0\x19\x9d\x17\x11\x00\x00\x00\x00\x1f\x00\x02mv\x26\x00\x01a\x00\x01b\x1c\x00\x03h:1",
    ),
    ("auth success", (V5,), Auth(), b"\xf0\x00"),
    (
        "auth, every property",
        (V5,),
        Auth(
            0x18,
            {
                P.AUTHENTICATION_METHOD: "S",
                P.AUTHENTICATION_DATA: b"\x01",
                P.REASON_STRING: "go",
                P.USER_PROPERTY: [("a", "b")],
            },
        ),
        b"\xf0\x16\x18\x14\x15\x00\x01S\x16\x00\x01\x01\x1f\x00\x02go\x26\x00\x01a\x00\x01b",
    ),
]


def _framed(first: int, body: bytes) -> bytes:
    assert len(body) < 128
    return bytes((first, len(body))) + body


def _subscribe(topic_filter: bytes, options: int = 0) -> bytes:
    return _framed(
        0x82, b"\x00\x01" + len(topic_filter).to_bytes(2, "big") + topic_filter + bytes((options,))
    )


# (name, versions, bytes, packet): accepted though not what the encoder writes.
LENIENT: list[tuple[str, tuple[int, ...], bytes, Packet]] = [
    ("puback with reason 0", (V5,), b"\x40\x03\x00\x01\x00", Puback(1)),
    ("puback with reason 0 and no properties", (V5,), b"\x40\x04\x00\x01\x00\x00", Puback(1)),
    ("disconnect with reason 0", (V5,), b"\xe0\x01\x00", Disconnect()),
    ("disconnect with reason 0 and no properties", (V5,), b"\xe0\x02\x00\x00", Disconnect()),
    ("auth with reason 0 and no properties", (V5,), b"\xf0\x02\x00\x00", Auth()),
    ("remaining length padded to four bytes", (V311,), b"\xc0\x80\x80\x80\x00", Pingreq()),
    ("pubrel sent again in 3.1", (V31,), b"\x6a\x02\x00\x03", Pubrel(3)),
    (
        "subscribe sent again in 3.1",
        (V31,),
        b"\x8a\x06\x00\x01\x00\x01a\x00",
        Subscribe(1, [SubscriptionRequest("a", 0)]),
    ),
    # Ill-formed filters are not for the decoder to refuse.
    *(
        (
            f"subscribe to {name!r}",
            OLD,
            _subscribe(name.encode()),
            Subscribe(1, [SubscriptionRequest(name, 0)]),
        )
        for name in (
            "",
            "a#",
            "a/#/b",
            "+a",
            "$share/",
            "$share/g",
            "$share//a",
            "$share/+/a",
            "$share/g/a#",
        )
    ),
    (
        "unsubscribe from an ill-formed filter",
        OLD,
        b"\xa2\x06\x00\x01\x00\x02a#",
        Unsubscribe(1, ["a#"]),
    ),
    ("unsubscribe sent again in 3.1", (V31,), b"\xaa\x05\x00\x01\x00\x01a", Unsubscribe(1, ["a"])),
    ("connack with a reserved byte in 3.1", (V31,), b"\x20\x02\x01\x00", Connack(False, 0)),
    (
        "connect 3.1 with flags of a will and no will, and the reserved flag",
        (V31,),
        b"\x10\x0f\x00\x06MQIsdp\x03\x3b\x00\x0a\x00\x01a",
        Connect("MQIsdp", 3, True, 10, "a"),
    ),
    (
        "connect 3.1 with flags of a user name and password that are missing",
        (V31,),
        b"\x10\x0f\x00\x06MQIsdp\x03\xc2\x00\x0a\x00\x01a",
        Connect("MQIsdp", 3, True, 10, "a"),
    ),
    (
        "connect 3.1 with a user name, password missing",
        (V31,),
        b"\x10\x12\x00\x06MQIsdp\x03\xc2\x00\x0a\x00\x01a\x00\x01u",
        Connect("MQIsdp", 3, True, 10, "a", "u"),
    ),
]

_R = ReasonCode
_C4 = b"\x00\x04MQTT\x04"
_C5 = b"\x00\x04MQTT\x05"


def _connack5(properties: bytes) -> bytes:
    return _framed(0x20, b"\x00\x00" + bytes((len(properties),)) + properties)


def _publish5(properties: bytes, topic: bytes = b"\x00\x01a") -> bytes:
    return _framed(0x30, topic + bytes((len(properties),)) + properties)


def _connect5(properties: bytes) -> bytes:
    return _framed(
        0x10, _C5 + b"\x02\x00\x00" + bytes((len(properties),)) + properties + b"\x00\x00"
    )


# (name, versions, bytes) by the reason
_BAD: dict[ReasonCode, list[tuple[str, tuple[int, ...], bytes]]] = {
    _R.MALFORMED_PACKET: [
        # fixed header
        ("type 0", ALL, b"\x00\x00"),
        ("auth before 5", OLD, b"\xf0\x00"),
        ("remaining length of five bytes", ALL, b"\x30\x80\x80\x80\x80\x01"),
        *(
            (f"reserved flags of {first:02x}", ALL, bytes((first | flags, 2, 0, 1)))
            for first in (0x10, 0x20, 0x40, 0x50, 0x70, 0x90, 0xB0, 0xC0, 0xD0, 0xE0, 0xF0)
            for flags in (1, 2, 4, 8)
        ),
        *(
            (f"reserved flags of {first:02x}", (V311, V5), bytes((first, 2, 0, 1)))
            for first in (0x60, 0x63, 0x66, 0x6A, 0x80, 0x83, 0x86, 0x8A, 0xA0, 0xA3, 0xA6, 0xAA)
        ),
        *(
            (f"no QoS 1 in {first:02x}", (V31,), bytes((first, 2, 0, 1)))
            for first in (0x60, 0x84, 0xA6)
        ),
        # CONNECT
        ("connect empty", ALL, b"\x10\x00"),
        ("connect name only", ALL, b"\x10\x06\x00\x04MQTT"),
        ("connect without flags", ALL, b"\x10\x07\x00\x04MQTT\x04"),
        ("connect without client id", ALL, _framed(0x10, _C4 + b"\x02\x00\x00")),
        ("connect reserved flag", ALL, _framed(0x10, _C4 + b"\x03\x00\x00\x00\x00")),
        ("connect reserved flag in 5", ALL, _framed(0x10, _C5 + b"\x03\x00\x00\x00\x00\x00")),
        ("connect will QoS 3", ALL, _framed(0x10, _C4 + b"\x1c\x00\x00\x00\x00\x00\x01w\x00\x00")),
        ("connect will QoS without will", ALL, _framed(0x10, _C4 + b"\x0a\x00\x00\x00\x00")),
        ("connect will retain without will", ALL, _framed(0x10, _C4 + b"\x22\x00\x00\x00\x00")),
        ("connect will missing", ALL, _framed(0x10, _C4 + b"\x06\x00\x00\x00\x00")),
        (
            "connect will message missing",
            ALL,
            _framed(0x10, _C4 + b"\x06\x00\x00\x00\x00\x00\x01w"),
        ),
        ("connect user name missing", ALL, _framed(0x10, _C4 + b"\x82\x00\x00\x00\x00")),
        ("connect trailing byte", ALL, _framed(0x10, _C4 + b"\x02\x00\x00\x00\x00\x00")),
        ("connect client id ill-formed", ALL, _framed(0x10, _C4 + b"\x02\x00\x00\x00\x01\xff")),
        ("connect 5 will property in connect", ALL, _connect5(b"\x18\x00\x00\x00\x01")),
        (
            "connect 5 connect property in will",
            ALL,
            _framed(0x10, _C5 + b"\x06\x00\x00\x00\x00\x00\x03\x21\x00\x01\x00\x01w\x00\x00"),
        ),
        # CONNACK
        ("connack short", ALL, b"\x20\x01\x00"),
        ("connack long", OLD, b"\x20\x03\x00\x00\x00"),
        ("connack reserved flags", (V311, V5), b"\x20\x03\x02\x00\x00"),
        ("connack without property length", (V5,), b"\x20\x02\x00\x00"),
        # PUBLISH
        ("publish QoS 3", ALL, b"\x36\x05\x00\x01a\x00\x01"),
        ("publish DUP at QoS 0", ALL, b"\x38\x04\x00\x01a\x00"),
        ("publish empty", ALL, b"\x30\x00"),
        ("publish topic length alone", ALL, b"\x30\x01\x00"),
        ("publish topic truncated", ALL, b"\x30\x03\x00\x02a"),
        ("publish without packet id", ALL, b"\x32\x04\x00\x01a\x00"),
        *(
            (f"publish to {topic!r}", ALL, _framed(0x30, b"\x00\x03" + topic + b"\x00"))
            for topic in (
                b"a\0b",
                b"\xed\xa0\x80",
                b"ab\xff",
                b"ab\xc3",
                b"\xc0\x80a",
                b"\xe0\x80\x80",
            )
        ),
        ("publish without property length", (V5,), b"\x30\x03\x00\x01a"),
        ("publish property length beyond the packet", (V5,), b"\x30\x05\x00\x01a\x02\x01"),
        ("publish property length truncated", (V5,), b"\x30\x04\x00\x01a\x80"),
        ("publish property length padded", (V5,), b"\x30\x07\x00\x01a\x82\x00\x01\x00"),
        ("publish property length of five bytes", (V5,), b"\x30\x08\x00\x01a\x80\x80\x80\x80\x00"),
        *(
            (f"publish property {ident:02x}", (V5,), _publish5(bytes((ident, 0, 0, 0, 0))))
            for ident in (0x00, 0x04, 0x11, 0x18, 0x1F, 0x21, 0x27, 0x2B, 0x7F, 0x80, 0xFF)
        ),
        ("publish property across its area", (V5,), b"\x30\x06\x00\x01a\x01\x01\x00"),
        ("publish four-byte property truncated", (V5,), _publish5(b"\x02\x00\x00\x00")),
        ("publish string property truncated", (V5,), _publish5(b"\x03\x00\x02a")),
        ("publish string property ill-formed", (V5,), _publish5(b"\x03\x00\x01\xff")),
        ("publish string property with NUL", (V5,), _publish5(b"\x03\x00\x01\x00")),
        ("publish user property without value", (V5,), _publish5(b"\x26\x00\x01a")),
        (
            "publish user property with surrogate",
            (V5,),
            _publish5(b"\x26\x00\x00\x00\x03\xed\xa0\x80"),
        ),
        ("publish subscription identifier padded", (V5,), _publish5(b"\x0b\x81\x00")),
        *((f"{first:02x} short", ALL, bytes((first, 1, 1))) for first in (0x40, 0x50, 0x62, 0x70)),
        *((f"{first:02x} empty", ALL, bytes((first, 0))) for first in (0x40, 0x50, 0x62, 0x70)),
        *(
            (f"{first:02x} reason", OLD, bytes((first, 3, 0, 1, 0)))
            for first in (0x40, 0x50, 0x62, 0x70)
        ),
        ("puback trailing byte", (V5,), b"\x40\x05\x00\x01\x00\x00\x00"),
        ("puback message property", (V5,), b"\x40\x06\x00\x01\x00\x02\x01\x00"),
        ("subscribe without options", OLD, b"\x82\x05\x00\x01\x00\x01a"),
        ("subscribe QoS 3", OLD, _subscribe(b"a", 3)),
        ("subscribe reserved bits", OLD, _subscribe(b"a", 4)),
        *(
            (
                f"subscribe 5 options {options:02x}",
                (V5,),
                b"\x82\x07\x00\x01\x00\x00\x01a" + bytes((options,)),
            )
            for options in (0x40, 0x80)
        ),
        ("subscribe to a filter with NUL", OLD, _subscribe(b"a\0")),
        # the other ones
        ("suback without code", OLD, b"\x90\x02\x00\x01"),
        ("suback without code", (V5,), b"\x90\x03\x00\x01\x00"),
        ("unsubscribe filter truncated", OLD, b"\xa2\x04\x00\x01\x00\x01"),
        ("unsuback trailing byte", OLD, b"\xb0\x03\x00\x01\x00"),
        ("unsuback without code", (V5,), b"\xb0\x03\x00\x01\x00"),
        ("pingreq with body", ALL, b"\xc0\x01\x00"),
        ("pingresp with body", ALL, b"\xd0\x01\x00"),
        ("disconnect with body", OLD, b"\xe0\x01\x00"),
        ("disconnect trailing byte", (V5,), b"\xe0\x03\x00\x00\x00"),
    ],
    _R.UNSUPPORTED_PROTOCOL_VERSION: [
        ("connect with another name", ALL, b"\x10\x0c\x00\x04mqtt\x04\x02\x00\x00\x00\x00"),
        *(
            (f"connect MQTT version {v:#x}", ALL, b"\x10\x07\x00\x04MQTT" + bytes((v,)))
            for v in (0, 3, 6, 0x80, 0x83, 0x86, 0xFF)
        ),
        ("connect MQIsdp version 4", ALL, b"\x10\x09\x00\x06MQIsdp\x04"),
    ],
    _R.TOPIC_NAME_INVALID: [
        (
            "connect will topic with wildcard",
            ALL,
            _framed(0x10, _C4 + b"\x06\x00\x00\x00\x00\x00\x01#\x00\x00"),
        ),
        *(
            (f"publish to {topic!r}", ALL, _framed(0x30, b"\x00\x03" + topic + b"\x00"))
            for topic in (b"a/+", b"a/#", b"a#b", b"+++")
        ),
        ("publish response topic with wildcard", (V5,), _publish5(b"\x08\x00\x01+")),
        ("publish response topic empty", (V5,), _publish5(b"\x08\x00\x00")),
    ],
    _R.PROTOCOL_ERROR: [
        ("connect password alone", ALL, _framed(0x10, _C4 + b"\x42\x00\x00\x00\x00\x00\x01p")),
        ("connect 5 receive maximum 0", ALL, _connect5(b"\x21\x00\x00")),
        ("connect 5 maximum packet size 0", ALL, _connect5(b"\x27\x00\x00\x00\x00")),
        ("connect 5 request problem information 2", ALL, _connect5(b"\x17\x02")),
        ("connect 5 request response information 2", ALL, _connect5(b"\x19\x02")),
        (
            "connect 5 session expiry twice",
            ALL,
            _connect5(b"\x11\x00\x00\x00\x01\x11\x00\x00\x00\x01"),
        ),
        ("connect 5 authentication data alone", ALL, _connect5(b"\x16\x00\x00")),
        ("connack return code 6", OLD, b"\x20\x02\x00\x06"),
        ("connack reason 1", (V5,), b"\x20\x03\x00\x01\x00"),
        ("connack session present and refused", (V311,), b"\x20\x02\x01\x05"),
        ("connack session present and refused", (V5,), b"\x20\x03\x01\x87\x00"),
        ("connack maximum QoS 2", (V5,), _connack5(b"\x24\x02")),
        *(
            (f"connack boolean {ident:02x}", (V5,), _connack5(bytes((ident, 2))))
            for ident in (0x25, 0x28, 0x29, 0x2A)
        ),
        ("publish packet id 0", ALL, b"\x32\x06\x00\x01a\x00\x00\x00"),
        ("publish empty topic", ALL, b"\x30\x03\x00\x00\x00"),
        (
            "publish empty topic, properties but no alias",
            (V5,),
            _publish5(b"\x01\x00", b"\x00\x00"),
        ),
        ("publish payload format 2", (V5,), _publish5(b"\x01\x02")),
        ("publish payload format twice", (V5,), _publish5(b"\x01\x00\x01\x00")),
        ("publish topic alias twice", (V5,), _publish5(b"\x23\x00\x01\x23\x00\x01")),
        ("publish subscription identifier 0", (V5,), _publish5(b"\x0b\x00")),
        *(
            (f"{first:02x} packet id 0", ALL, bytes((first, 2, 0, 0)))
            for first in (0x40, 0x50, 0x62, 0x70)
        ),
        *(
            (f"{first:02x} reason {reason:02x}", (V5,), bytes((first, 3, 0, 1, reason)))
            for first, reason in (
                (0x40, 1),
                (0x40, 0x92),
                (0x50, 0x81),
                (0x62, 0x10),
                (0x62, 0x80),
                (0x70, 0x91),
            )
        ),
        ("subscribe packet id 0", ALL, b"\x82\x06\x00\x00\x00\x01a\x00"),
        ("subscribe without filter", OLD, b"\x82\x02\x00\x01"),
        ("subscribe without filter", (V5,), b"\x82\x03\x00\x01\x00"),
        *(
            (
                f"subscribe 5 options {options:02x}",
                (V5,),
                b"\x82\x07\x00\x01\x00\x00\x01a" + bytes((options,)),
            )
            for options in (0x03, 0x30)
        ),
        ("subscribe 5 no local and shared", (V5,), b"\x82\x10\x00\x01\x00\x00\x0a$share/g/a\x04"),
        (
            "subscribe 5 identifier twice",
            (V5,),
            b"\x82\x0b\x00\x01\x04\x0b\x01\x0b\x02\x00\x01a\x00",
        ),
        ("suback code 3", OLD, b"\x90\x03\x00\x01\x03"),
        ("suback code 3", (V5,), b"\x90\x04\x00\x01\x00\x03"),
        ("suback packet id 0", ALL, b"\x90\x04\x00\x00\x00\x00"),
        ("unsubscribe packet id 0", ALL, b"\xa2\x05\x00\x00\x00\x01a"),
        ("unsubscribe without filter", OLD, b"\xa2\x02\x00\x01"),
        ("unsubscribe without filter", (V5,), b"\xa2\x03\x00\x01\x00"),
        ("unsuback code 1", (V5,), b"\xb0\x04\x00\x01\x00\x01"),
        ("disconnect reason 1", (V5,), b"\xe0\x01\x01"),
        ("auth reason 1", (V5,), b"\xf0\x01\x01"),
        ("auth data without method", (V5,), b"\xf0\x05\x18\x03\x16\x00\x00"),
    ],
    _R.TOPIC_ALIAS_INVALID: [
        ("publish topic alias 0", (V5,), _publish5(b"\x23\x00\x00")),
    ],
}
# (name, versions, bytes, reason)
BAD = [(*row, reason) for reason, rows in _BAD.items() for row in rows]
