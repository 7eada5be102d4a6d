"""Inputs to begin with, beside the corpus: what is right, for mutations to bend."""

from __future__ import annotations

from mqttree.broker.base.address import Address
from mqttree.broker.io.proxy_protocol import SIGNATURE
from mqttree.broker.wire.encode import encode_packet
from mqttree.discovery.announcement import Announcement
from tests.unit.cluster.test_link import bridge
from tests.unit.wire.wire_vectors import BAD, GOLDEN, LENIENT

VECTORS = [(versions[-1], data) for _, versions, _, data in GOLDEN]
VECTORS += [(versions[-1], data) for _, versions, data, _ in (*LENIENT, *BAD)]

_A = b"\x00\x02\x01"  # CONNECT of a client of MQTT 5, with 5 s of session,
_B = b"\x20\x06\x02"  # of one with Receive Maximum 2, kept for ever,
_C = b"\x40\x0a\x03"  # and of one that takes 30 bytes at most, and aliases
STORIES = [
    # B subscribes at QoS 1, A publishes nine that expire; time; B acknowledges, comes again,
    # acknowledges.
    _A
    + _B
    + b"\x2b\x00\x00\x01"
    + b"\x0f\xc8\x04"
    + b"\x06\x02\x31\x00"
    + b"\xa0\x06\x02"
    + b"\x31\x00\x31\x00",
    # the same at QoS 2, B breaks off in between
    _A
    + _B
    + b"\x2b\x00\x00\x02"
    + b"\x0d\xd0\x01"
    + b"\x31\x00\x25"
    + b"\x0d\x90\x11"
    + _B
    + b"\x31\x00\x31\x00\x31\x00",
    # small packets and aliases: long topics at QoS 1
    _A
    + _C
    + b"\x4b\x00\x08\x01"
    + b"\x0f\x8b\x20"
    + b"\x0f\x4b\x10"
    + b"\x51\x00"
    + b"\x0f\x4b\x20",
    # two share a subscription, one goes with messages in flight
    _A
    + _B
    + _C
    + b"\x2b\x00\x05\x01"
    + b"\x4b\x00\x05\x01"
    + b"\x0d\xc8\x01"
    + b"\x45"
    + b"\x31\x00"
    + b"\x34\x00\x05",
    # B does not read; A goes on; B reads
    _A
    + _B
    + b"\x2b\x00\x01\x00"
    + b"\x2a\x10"
    + b"\x0d\xc0\x20\x0d\xc0\x20\x0d\xc8\x20"
    + b"\x06\x02"
    + b"\x2a",
    # runs whose packets are alike but for their properties: an alias, which is the publisher's own,
    # and one that there is not
    *(
        _A
        + _B
        + b"\x2b\x00\x00\x01"
        + b"\x0d\x08\x01\x31\x00"
        + b"\x04\x16"
        + b"\x32\x09\x00\x01a\x00\x02\x00xxx"
        + b"\x32\x09\x00\x01a\x00\x03\x03"
        + bent
        + b"\x31\x00\x31\x00"
        for bent in (b"\x23\x00\x01", b"\x7f\x00\x01")
    ),
    # a will, retained messages, keep-alive
    b"\x00\x22\x06"
    + _B
    + b"\x2b\x00\x01\x01"
    + b"\x0d\x28\x01"
    + b"\x06\x04"
    + b"\x2b\x01\x02\x11\x00\x19"
    + b"\x35\x02",
]
"""Programmes for the node."""


def seeds(name: str) -> list[bytes]:
    """Return a target's."""
    match name:
        case "decoder":
            return [bytes(((3, 4, 5).index(version) | 0x40,)) + data for version, data in VECTORS]
        case "node":  # and what the tape says behind a CONNECT
            said = [data for _, _, _, data in GOLDEN if len(data) < 256]
            said.append(encode_packet(bridge(1), 5)[:255])
            stories = [
                bytes((options,)) + story
                for story in STORIES
                for options in (0, 1, 2, 0x41, 0x80, 0xC0)
            ]
            return stories + [b"\0" + _A + b"\x04" + bytes((len(data),)) + data for data in said]
        case "records":
            # what is said, whole; then with a byte replaced, put in and taken out, and its
            # beginning said again
            said = (b"\0\0\0", b"\2\1\5\2\1\1\xff", b"\1\3\0\0\7")
            bent = (b"", b"\0\0\5\4", b"\0\0\x10\1\2ab", b"\0\1\0\2", b"\0\0\0\3")
            return [one + other for one in said for other in bent]
        case "announcement":
            told = [
                Announcement(
                    "mqttree", b"n" * 8, 1, 1, 1.7e9, Address(host, 1883), "name", leave, new
                ).encode(None)
                for host in ("", "10.0.0.9", "fe80::1", "host")
                for leave, new in ((False, True), (True, False))
            ]
            return [
                bytes((signed, len(each))) + each + bytes((signed, 0, 0, 1))
                for each in told
                for signed in (0, 1)
            ]
        case "proxy":
            four = bytes((10, 0, 0, 1, 10, 0, 0, 2, 0, 9, 7, 91))
            ssl = b"\x20\x00\x0d\x07\0\0\0\0\x22\x00\x05alice"
            return [  # the last with a client certificate
                b"PROXY TCP4 10.0.0.1 10.0.0.2 9 1883\r\n",
                b"PROXY TCP6 ::1 ::2 9 1883\r\n",
                b"PROXY UNKNOWN\r\n",
                SIGNATURE + b"\x20\x00\x00\x00",
                SIGNATURE + b"\x21\x11\x00\x0c" + four,
                SIGNATURE + b"\x21\x21\x00\x24" + bytes(36),
                SIGNATURE + b"\x21\x31\x00\xd8" + bytes(216),
                SIGNATURE + b"\x21\x11\x00\x1c" + four + ssl,
            ]
        case "http":
            return [
                (
                    b"\x07GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.0\r\n"
                    b"Connection: keep-alive\r\n\r\n"
                ),
                (
                    b"\x00GET http://x/metrics?a=b HTTP/1.1\r\nConnection: close, x\r\n"
                    b"Content-Length: 0\r\n\r\n"
                ),
                b"\x03POST /x HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcde",
                b"\x30GET * HTTP/2.0\r\n\r\n",
                (
                    b"\x05POST /api/x HTTP/1.1\r\nContent-Length: 0\r\nTransfer-Encoding: chunked"
                    b"\r\n\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n"
                ),
                b"\x02GET / HTTP/1.1\r\nHost: x\r\n y\r\n\r\nGET / HTTP/1.1\n\n",
                b"\xff" + b"x" * 1400,
            ]
        case _:
            return []
