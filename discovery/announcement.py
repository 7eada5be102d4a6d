"""The announcement of a broker: one UDP datagram, packed and unpacked.

Layout, big-endian: magic (4 bytes), version u8, flags u8, id (8 bytes), boot u32, counter u32, wall
clock u64 (ms since the epoch), port u16, then cluster, host and name, each a length u8 and UTF-8;
then fields of later versions, which are skipped; at the end, when the flag says so, the IP address
that it is sent from (16 bytes) and HMAC-SHA256 of everything before. An attacker who replays it
from another address cannot announce the broker there (`bind`).
"""

from __future__ import annotations

import hmac
import struct

from mqttree.broker.base.address import MAX_HOST, Address, is_wildcard, normal_host, packed
from mqttree.broker.base.broker_id import ID_BYTES
from mqttree.broker.base.record import Record

MAGIC = b"MQTr"
VERSION = 1
MAX_DATAGRAM = 512
"""Bytes: never fragmented on any network that carries IPv4 (RFC 791: 576 with headers)."""
MAX_CLUSTER = 64
MAX_NAME = 64
MAC_BYTES = 32
MAX_WALL = 1 << 52
"""ms since the epoch: what a float still tells apart to the millisecond, 140,000 years."""
SOURCE_BYTES = 16
"""IPv6, or IPv4 written as IPv6 does it (RFC 4291 2.5.5.2)."""
SIGNATURE_BYTES = SOURCE_BYTES + MAC_BYTES

_LEAVE = 1
_NEW = 2
_SIGNED = 4
_FIXED = struct.Struct("!4sBB8sIIQH")
_PREFIX = struct.Struct("!4sBB")


class AnnouncementError(ValueError):
    """A datagram that is no announcement for this broker; `kind` is "garbage", "version",
    "cluster", "secret" or "source"."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class Announcement(Record):
    """The content of an announcement. `address.host` "" means "the address that this datagram came
    from"; `wall` is in seconds since the epoch, to the millisecond; `counter` rises with every
    announcement of a `boot`; `new` asks for answers, `leave` says that the broker leaves."""

    cluster: str
    id: bytes
    boot: int
    counter: int
    wall: float
    address: Address
    name: str = ""
    leave: bool = False
    new: bool = False
    version: int = VERSION

    def address_from(self, source: tuple[str, int]) -> Address:
        """Return the address to dial, given the datagram's source (host, UDP port)."""
        return Address(self.address.host or normal_host(source[0]), self.address.port)

    def encode(self, secret: bytes | None, host: str = "") -> bytes:
        """Return the datagram, signed when a secret is set, as it is sent from the IP address
        `host` ("": `bind` will set it). Raises ValueError for a field that does not fit."""
        flags = (
            (_LEAVE if self.leave else 0)
            | (_NEW if self.new else 0)
            | (_SIGNED if secret is not None else 0)
        )
        if len(self.id) != ID_BYTES:
            raise ValueError(f"broker id has {len(self.id)} bytes instead of {ID_BYTES}")
        try:
            wall_ms = round(self.wall * 1000)
            head = _FIXED.pack(
                MAGIC,
                self.version,
                flags,
                self.id,
                self.boot,
                self.counter,
                wall_ms,
                self.address.port,
            )
        except struct.error as error:
            raise ValueError(f"announcement: {error}") from None
        parts = [head]
        for what, text, limit in (
            ("cluster name", self.cluster, MAX_CLUSTER),
            ("advertised host", self.address.host, MAX_HOST),
            ("broker name", self.name, MAX_NAME),
        ):
            raw = check_text(what, text, limit)
            parts.append(bytes((len(raw),)))
            parts.append(raw)
        data = b"".join(parts)
        return data if secret is None else _sign(data, secret, host)


def bind(data: bytes, secret: bytes | None, host: str) -> bytes:
    """Return the datagram `data` as it is sent from the interface with the IP address `host`: with
    a `secret` it is signed for that address, without one it stays as it is."""
    return data if secret is None else _sign(data[:-SIGNATURE_BYTES], secret, host)


def unsigned(data: bytes, secret: bytes | None) -> bytes:
    """Return the part of a datagram that is the same whatever interface it is sent from."""
    return data if secret is None else data[:-SIGNATURE_BYTES]


def check_text(what: str, text: str, limit: int) -> bytes:
    """Return `text` in UTF-8. `what`: its name in errors. Raises ValueError if it is longer than
    `limit` bytes or not printable."""
    # Other brokers write it to their logs.
    if not text.isprintable():
        raise ValueError(f"{what} {text!r} has characters that cannot be printed")
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) > limit:
        raise ValueError(f"{what} has {len(raw)} bytes, more than {limit}")
    return raw


def decode(
    data: bytes, secret: bytes | None, cluster: str | None = None, host: str | None = None
) -> Announcement:
    """Return the announcement in the datagram `data`, which came from the IP address `host` (None:
    the address is not checked).

    `secret`: the cluster's, None for none. `cluster`: with it, a datagram of another cluster is
    refused as "cluster" before its signature is checked: two clusters that share a network have
    different secrets, and that is no fault.

    Raises AnnouncementError with one line, and nothing else, whatever the bytes are.
    """
    if len(data) > MAX_DATAGRAM:
        raise AnnouncementError("garbage", f"{len(data)} bytes, more than {MAX_DATAGRAM}")
    if len(data) < _PREFIX.size or not data.startswith(MAGIC):
        raise AnnouncementError("garbage", "not an announcement")
    _, version, flags = _PREFIX.unpack_from(data)
    if version != VERSION:
        raise AnnouncementError(
            "version", f"announcement version {version}, this broker speaks {VERSION}"
        )
    signed = bool(flags & _SIGNED)
    end = len(data) - (SIGNATURE_BYTES if signed else 0)
    if end < _FIXED.size:
        raise AnnouncementError("garbage", "announcement is cut off")
    _, _, _, broker_id, boot, counter, wall_ms, port = _FIXED.unpack_from(data)
    claimed, offset = _read_text(data, _FIXED.size, end, "cluster name", MAX_CLUSTER)
    if cluster is not None and claimed != cluster:
        raise AnnouncementError("cluster", f"announcement of cluster {claimed!r}")
    _check_signature(data, signed, secret)
    if signed and host is not None and data[end : end + SOURCE_BYTES] != packed(host):
        raise AnnouncementError(
            "source", "announcement was signed for another address: a third party sent it again"
        )
    advertised, offset = _read_text(data, offset, end, "advertised host", MAX_HOST)
    name, offset = _read_text(data, offset, end, "broker name", MAX_NAME)
    if port == 0:
        raise AnnouncementError("garbage", "advertised port is 0")
    if wall_ms > MAX_WALL:
        raise AnnouncementError("garbage", f"time of day {wall_ms} ms is out of range")
    if is_wildcard(advertised):
        advertised = ""
    else:
        try:
            advertised = normal_host(advertised)
        except ValueError as error:
            raise AnnouncementError("garbage", f"advertised {error}") from None
    return Announcement(
        claimed,
        broker_id,
        boot,
        counter,
        wall_ms / 1000,
        Address(advertised, port),
        name,
        bool(flags & _LEAVE),
        bool(flags & _NEW),
        version,
    )


def _read_text(data: bytes, offset: int, end: int, what: str, limit: int) -> tuple[str, int]:
    """Read a length u8 and that many bytes of UTF-8; return the text and where it ends."""
    stop = offset + 1 + (data[offset] if offset < end else 0)
    if offset >= end or stop > end:
        raise AnnouncementError("garbage", f"{what} is cut off")
    if stop - offset - 1 > limit:
        raise AnnouncementError("garbage", f"{what} is longer than {limit} bytes")
    try:
        text = data[offset + 1 : stop].decode("utf-8")
    except UnicodeDecodeError:
        raise AnnouncementError("garbage", f"{what} is not UTF-8") from None
    if not text.isprintable():
        raise AnnouncementError("garbage", f"{what} has characters that cannot be printed")
    return text, stop


def _check_signature(data: bytes, signed: bool, secret: bytes | None) -> None:
    if secret is None:
        if signed:
            raise AnnouncementError(
                "secret", "announcement is signed, this broker has no cluster secret"
            )
    elif not signed:
        raise AnnouncementError("secret", "announcement is not signed with the cluster secret")
    elif not hmac.compare_digest(_mac(secret, data[:-MAC_BYTES]), data[-MAC_BYTES:]):
        raise AnnouncementError("secret", "announcement is signed with another cluster secret")


def _sign(data: bytes, secret: bytes, host: str) -> bytes:
    bound = data + packed(host)
    return bound + _mac(secret, bound)


def _mac(secret: bytes, data: bytes) -> bytes:
    # The magic at the start separates this use of the secret from every other.
    return hmac.digest(secret, data, "sha256")
