"""The PROXY protocol, versions 2 and 1: who a load balancer speaks for (HAProxy's
proxy-protocol.txt, sections 2.1 and 2.2).

Pure: bytes in, a header out. `wanted` never asks for more than the header, so that what is behind
it stays in the socket.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from mqttree.broker.base.record import Record

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
"""How version 2 begins."""

MAX_HEADER = 4096
"""bytes of a header, addresses and all TLVs: balancers send some hundred. Longer: closed
[proxy_garbage]."""

FIXED = 16
"""bytes of version 2 before the addresses: signature, version and command, family and transport,
length."""

V1 = b"PROXY "
V1_MIN = len(b"PROXY UNKNOWN\r\n")
V1_MAX = 107
"""bytes of a line of version 1, its end included (2.1)."""

LOCAL, PROXY = 0x20, 0x21
TCP4, TCP6 = 0x11, 0x21
PP2_TYPE_SSL, PP2_SUBTYPE_SSL_CN = 0x20, 0x22
PP2_CLIENT_CERT_CONN, PP2_CLIENT_CERT_SESS = 0x02, 0x04


class ProxyError(ValueError):
    """The bytes are not a valid header; the text is one line."""


class ProxyHeader(Record):
    """What a header says. `peer`: HOST:PORT of the client, "" when the balancer speaks for itself
    (LOCAL, UNKNOWN, health checks). `common_name`: of the client certificate that the balancer
    verified, else None."""

    peer: str = ""
    common_name: str | None = None


def wanted(data: bytes) -> int:
    """Return how many bytes may be read next: part of the header for certain; 0 when it is whole.

    Raises ProxyError as soon as it cannot become a header, or one that is too long
    (MAX_HEADER).
    """
    if data[:12] == SIGNATURE[: len(data)]:
        if len(data) < FIXED:
            return FIXED - len(data) if len(data) else V1_MIN
        size = FIXED + int.from_bytes(data[14:16], "big")
        if size > MAX_HEADER:
            raise ProxyError(f"PROXY header of {size} bytes")
        return size - len(data)
    if data[:6] != V1[: len(data)]:
        raise ProxyError("no PROXY header")
    if data.endswith(b"\r\n"):
        return 0
    if len(data) >= V1_MAX:
        raise ProxyError("PROXY line without an end")
    if len(data) < V1_MIN:
        return V1_MIN - len(data)
    return 1 if data.endswith(b"\r") else min(2, V1_MAX - len(data))


def parse(data: bytes) -> ProxyHeader:
    """Read a whole header. Raises ProxyError."""
    return _version_2(data) if data.startswith(SIGNATURE) else _version_1(data)


def _version_1(data: bytes) -> ProxyHeader:
    words = data[:-2].split(b" ")
    if words[1:2] == [b"UNKNOWN"]:
        return ProxyHeader()
    if len(words) != 6 or words[1] not in (b"TCP4", b"TCP6"):
        raise ProxyError("PROXY line that cannot be read")
    try:
        text = [word.decode("ascii") for word in words[2:]]
        source, destination = (_address(each, 4 if words[1] == b"TCP4" else 6) for each in text[:2])
        ports = [int(each) for each in text[2:] if each.isdecimal() and len(each) <= 5]
    except ValueError:
        raise ProxyError("PROXY line that cannot be read") from None
    if len(ports) != 2 or max(ports) > 65535 or not destination:
        raise ProxyError("PROXY line that cannot be read")
    return ProxyHeader(f"{source}:{ports[0]}")


def _address(text: str, version: int) -> str:
    address = ipaddress.ip_address(text)
    if address.version != version or "%" in text:
        raise ValueError(text)
    return f"[{address}]" if version == 6 else str(address)


def _version_2(data: bytes) -> ProxyHeader:
    if len(data) < FIXED or len(data) != FIXED + int.from_bytes(data[14:16], "big"):
        raise ProxyError("PROXY header that is cut off")
    command, family = data[12], data[13]
    # The addresses that follow are to be ignored.
    if command == LOCAL:
        return ProxyHeader()
    if command != PROXY:
        raise ProxyError(f"PROXY version and command {command:#04x}")
    body = data[FIXED:]
    peer = ""
    at = 0
    if family == TCP4:
        at = 12
        peer = (
            f"{ipaddress.IPv4Address(_part(body, 0, 4))}:{int.from_bytes(_part(body, 8, 2), 'big')}"
        )
    elif family == TCP6:
        at = 36
        peer = (
            f"[{ipaddress.IPv6Address(_part(body, 0, 16))}]:"
            f"{int.from_bytes(_part(body, 32, 2), 'big')}"
        )
    # Unix sockets of the balancer's machine are no address here.
    elif family >> 4 == 3:
        at = 216
    elif family >> 4 or family & 0x0F > 2:
        raise ProxyError(f"PROXY family and transport {family:#04x}")
    if at > len(body):
        raise ProxyError("PROXY header that is cut off")
    return ProxyHeader(peer, _common_name(_tlvs(body[at:])) if at else None)


def _part(body: bytes, at: int, size: int) -> bytes:
    part = body[at : at + size]
    if len(part) != size:
        raise ProxyError("PROXY header that is cut off")
    return part


def _tlvs(data: bytes) -> dict[int, bytes]:
    """Split type-length-value triples; of a type that is there twice the first counts."""
    found: dict[int, bytes] = {}
    at = 0
    while at < len(data):
        size = int.from_bytes(_part(data, at + 1, 2), "big")
        found.setdefault(data[at], _part(data, at + 3, size))
        at += 3 + size
    return found


def _common_name(tlvs: dict[int, bytes]) -> str | None:
    """Return the name in the client certificate, if the client had one and the balancer verified it
    (2.2.6)."""
    ssl = tlvs.get(PP2_TYPE_SSL)
    if ssl is None:
        return None
    client, verify = _part(ssl, 0, 1)[0], _part(ssl, 1, 4)
    if not client & (PP2_CLIENT_CERT_CONN | PP2_CLIENT_CERT_SESS) or any(verify):
        return None
    raw = _tlvs(ssl[5:]).get(PP2_SUBTYPE_SSL_CN)
    try:
        return raw.decode() if raw else None
    except UnicodeDecodeError:
        raise ProxyError("PROXY header with a name that is not UTF-8") from None


class ProxiedCertificate:
    """Replaces the TLS object of a connection whose TLS a load balancer ended: it has the common
    name that the balancer verified."""

    __slots__ = ("_name",)

    def __init__(self, common_name: str) -> None:
        self._name = common_name

    def getpeercert(self, binary_form: bool = False) -> Any:
        """Return the subject as `ssl.SSLSocket.getpeercert` does; the certificate itself is not
        known."""
        return None if binary_form else {"subject": ((("commonName", self._name),),)}
