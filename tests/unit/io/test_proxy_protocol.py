"""The PROXY protocol's headers: golden bytes, and everything that is none."""

from __future__ import annotations

import ipaddress
import socket
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.auth.certificate import common_name
from mqttree.broker.io.proxy_protocol import (
    MAX_HEADER,
    SIGNATURE,
    ProxiedCertificate,
    ProxyError,
    ProxyHeader,
    parse,
    wanted,
)
from tests.kit.effort import examples


def v2(command: int, family: int, body: bytes) -> bytes:
    return SIGNATURE + bytes((command, family)) + struct.pack("!H", len(body)) + body


def v4(source: str, port: int, rest: bytes = b"") -> bytes:
    return v2(
        0x21,
        0x11,
        socket.inet_aton(source)
        + socket.inet_aton("10.0.0.1")
        + struct.pack("!HH", port, 1883)
        + rest,
    )


def tlv(kind: int, value: bytes) -> bytes:
    return bytes((kind,)) + struct.pack("!H", len(value)) + value


def tls(name: bytes, client: int = 0x07, verify: int = 0) -> bytes:
    return tlv(
        0x20, bytes((client,)) + struct.pack("!I", verify) + tlv(0x21, b"TLSv1.3") + tlv(0x22, name)
    )


V6 = (
    socket.inet_pton(socket.AF_INET6, "2001:db8::7")
    + socket.inet_pton(socket.AF_INET6, "::1")
    + struct.pack("!HH", 40000, 1883)
)

HEADERS = {
    "v4": (v4("192.0.2.7", 56789), ProxyHeader("192.0.2.7:56789")),
    "golden v4": (
        bytes.fromhex("0d0a0d0a000d0a515549540a 21 11 000c c0000207 0a000001 ddd5 075b"),
        ProxyHeader("192.0.2.7:56789"),
    ),
    "v6": (v2(0x21, 0x21, V6), ProxyHeader("[2001:db8::7]:40000")),
    "unix": (v2(0x21, 0x31, bytes(216)), ProxyHeader()),
    "unspecified": (v2(0x21, 0x00, b""), ProxyHeader()),
    "unspecified with rubbish behind": (v2(0x21, 0x00, b"abc"), ProxyHeader()),
    "local": (v2(0x20, 0x00, b""), ProxyHeader()),
    "local with an address": (v2(0x20, 0x11, bytes(12)), ProxyHeader()),
    "unknown TLVs": (
        v4("1.2.3.4", 5, tlv(0x04, b"") + tlv(0xE0, b"xyz")),
        ProxyHeader("1.2.3.4:5"),
    ),
    "a verified certificate": (
        v4("1.2.3.4", 5, tls(b"sensor-7")),
        ProxyHeader("1.2.3.4:5", "sensor-7"),
    ),
    "one of the session": (v4("1.2.3.4", 5, tls(b"s", client=0x05)), ProxyHeader("1.2.3.4:5", "s")),
    "one that is not verified": (v4("1.2.3.4", 5, tls(b"s", verify=1)), ProxyHeader("1.2.3.4:5")),
    "TLS without a certificate": (
        v4("1.2.3.4", 5, tls(b"s", client=0x01)),
        ProxyHeader("1.2.3.4:5"),
    ),
    "v1 v4": (b"PROXY TCP4 192.0.2.7 10.0.0.1 56789 1883\r\n", ProxyHeader("192.0.2.7:56789")),
    "v1 v6": (b"PROXY TCP6 2001:DB8::7 ::1 1 2\r\n", ProxyHeader("[2001:db8::7]:1")),
    "v1 unknown": (b"PROXY UNKNOWN\r\n", ProxyHeader()),
    "v1 unknown with more": (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", ProxyHeader()),
}


def read(stream: bytes, at_most: int = 1000) -> tuple[bytes, bytes]:
    """Read a header as the driver does, at most so many bytes at a time; returns it and what is
    left."""
    data = b""
    while size := wanted(data):
        step = min(size, at_most)
        if not stream[:step]:
            raise EOFError
        data, stream = data + stream[:step], stream[step:]
    return data, stream


@pytest.mark.parametrize(("data", "expected"), HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize("at_most", [1, 2, 7, 1000])
def test_proxy_headers_are_read_and_nothing_behind_them(
    data: bytes, expected: ProxyHeader, at_most: int
) -> None:
    head, rest = read(data + b"\x10\x0c\r\n", at_most)
    assert head == data
    assert rest == b"\x10\x0c\r\n"  # never read: it may be TLS's
    assert parse(head) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c",
        b"\x16\x03\x01\x02\x00" + bytes(100),
        b"GET / HTTP/1.1\r\n\r\n",
        b"PROXY",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 65536\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 -1 1\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2 3\r\n",
        b"PROXY TCP4 ::1 ::1 1 2\r\n",
        b"PROXY TCP6 1.2.3.4 5.6.7.8 1 2\r\n",
        b"PROXY TCP6 fe80::1%\n fe80::1 1 2\r\n",
        b"PROXY UDP4 1.2.3.4 5.6.7.8 1 2\r\n",
        b"PROXY \xff\xff\xff\xff 1.2.3.4 5.6.7.8 1 2\r\n",
        b"PROXY TCP4 " + b"1" * 200 + b"\r\n",
        b"PROXY \r\n",
        SIGNATURE[:-1] + b"!" + bytes(50),
        v2(0x11, 0x11, bytes(12)),
        v2(0x22, 0x11, bytes(12)),
        v2(0x21, 0x11, bytes(11)),
        v2(0x21, 0x21, bytes(35)),
        v2(0x21, 0x31, bytes(215)),
        v2(0x21, 0x12, bytes(12)),
        v2(0x21, 0x41, bytes(12)),
        v4("1.2.3.4", 5, b"\x20\x00"),
        v4("1.2.3.4", 5, b"\x20\x00\x09abc"),
        v4("1.2.3.4", 5, tlv(0x20, b"\x02")),
        v4("1.2.3.4", 5, tls(b"\xff\xfe")),
        v2(0x21, 0x11, bytes(MAX_HEADER)),
    ],
)
def test_bad_proxy_headers_are_refused(data: bytes) -> None:
    with pytest.raises((ProxyError, EOFError)):
        parse(read(data, 3)[0])


@settings(max_examples=examples(200), deadline=None)
@given(
    st.one_of(
        st.binary(max_size=300),
        st.binary(max_size=300).map(lambda tail: SIGNATURE + b"\x21\x11" + tail),
        st.binary(max_size=120).map(lambda tail: b"PROXY TCP6 " + tail + b"\r\n"),
    ),
    st.integers(1, 50),
)
def test_nothing_else_is_raised_and_little_is_read(data: bytes, at_most: int) -> None:
    try:
        head, _ = read(data, at_most)
        header = parse(head)
    except (ProxyError, EOFError):
        return
    assert header.peer.isprintable()
    assert len(head) <= MAX_HEADER


@settings(max_examples=examples(100), deadline=None)
@given(
    st.ip_addresses(v=6),
    st.integers(0, 65535),
    st.text(min_size=1, max_size=60).filter(lambda t: t.isprintable()),
)
def test_addresses_and_names_come_back(
    address: ipaddress.IPv6Address, port: int, name: str
) -> None:
    body = address.packed + bytes(16) + struct.pack("!HH", port, 1) + tls(name.encode())
    assert parse(read(v2(0x21, 0x21, body))[0]) == ProxyHeader(f"[{address}]:{port}", name)


def test_the_name_is_found_where_tls_would_have_it() -> None:
    certificate = ProxiedCertificate("sensor-7")
    assert common_name(certificate) == "sensor-7"
    assert certificate.getpeercert(True) is None
    assert common_name(None) is None

    class Unnamed:
        def getpeercert(self) -> dict[str, object]:
            return {}

    assert common_name(Unnamed()) is None
