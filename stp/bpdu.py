"""The bridge protocol data unit that PINGREQ carries between brokers (MQTT-ST II-C2; 802.1D clause
9), and its bytes.

Layout, big endian, version 1::

    version u8 | flags u8 | role u8 | echo u8 | hops u8 | number of topology changes u8
    BPDU number u32
    root id 8 | root boot u32 | root capability u32 (tenths) | root seq u32
    path cost u32 (microseconds) | age u32 (ms) | sender capability u32 (tenths)
    root port u16 | root host length u8 | root host (UTF-8)
    [flags & 1: sequence request: root id 8 | boot u32 | seq u32]
    topology changes, each: origin id 8 | origin boot u32 | number u32

Bytes behind that are for later versions and are ignored.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from mqttree.broker.base.address import Address
from mqttree.broker.base.broker_id import ID_BYTES
from mqttree.stp.priority_vector import MAX_COST_US, RootVector

VERSION = 1
MAX_CHANGES = 32
"""Topology changes in one BPDU; more than these go into the next."""

_FLAG_REQUEST = 0x01
_HEAD = struct.Struct(f"!BBBBBBI{ID_BYTES}sIIIIIIHB")
_TRIPLE = struct.Struct(f"!{ID_BYTES}sII")


class BpduError(ValueError):
    """The bytes, or the values to encode, are no valid BPDU."""


class Role(IntEnum):
    """The role of an end of a link (802.1D 17.3.1; our BLOCKED is its Alternate port)."""

    NONE = 0
    ROOT = 1
    DESIGNATED = 2
    BLOCKED = 3


class ChangeNumber(NamedTuple):
    """A numbered topology change: the broker that saw it, that broker's boot number and its count
    of changes."""

    origin: bytes
    boot: int
    number: int


class SeqRequest(NamedTuple):
    """Request that a root mint a sequence number newer than `seq` (RFC 8966, 3.8.1.2)."""

    root_id: bytes
    boot: int
    seq: int


@dataclass(slots=True)
class Bpdu:
    """One broker's claim, as sent over one link."""

    root: RootVector
    """The root that the sender follows."""
    seq: int
    """Newest sequence number of the root that reached the sender (u32)."""
    path_cost_us: int
    """Cost of the sender's path to the root in microseconds, at most an hour."""
    tenths: int
    """The sender's own capability in tenths."""
    role: Role
    """Role of this link at the sender."""
    echo: Role = Role.NONE
    """Role that the sender last heard from the receiver on this link; NONE before that."""
    hops: int = 0
    """Links between the sender and the root, 255 at most."""
    age_ms: int = 0
    """How long ago, in ms, the root was last known to live (802.1D message age)."""
    number: int = 0
    """Number of this BPDU on this link (u32), from 1; for traces, since links keep the order."""
    request: SeqRequest | None = None
    changes: tuple[ChangeNumber, ...] = ()
    """Topology changes (the TC flag of MQTT-ST II-C6, numbered so that a relay can stop)."""


@lru_cache(maxsize=4096)
def _root(root_id: bytes, boot: int, tenths: int, host: bytes, port: int) -> RootVector:
    return RootVector(root_id, boot, tenths, Address(host.decode("utf-8"), port))


def encode(bpdu: Bpdu) -> bytes:
    """The BPDU's bytes. Raises BpduError for values that a receiver would refuse."""
    root = bpdu.root
    host = root.address[0].encode("utf-8", "surrogatepass")
    # This is false for nan as well.
    if not 0 <= bpdu.path_cost_us <= MAX_COST_US:
        raise BpduError(f"path cost out of range: {bpdu.path_cost_us} us")
    if len(bpdu.changes) > MAX_CHANGES:
        raise BpduError(f"{len(bpdu.changes)} topology changes in one BPDU")
    try:
        head = _HEAD.pack(
            VERSION,
            0 if bpdu.request is None else _FLAG_REQUEST,
            bpdu.role,
            bpdu.echo,
            bpdu.hops,
            len(bpdu.changes),
            bpdu.number,
            _id(root.id),
            root.boot,
            root.tenths,
            bpdu.seq,
            bpdu.path_cost_us,
            bpdu.age_ms,
            bpdu.tenths,
            root.address[1],
            len(host),
        )
        if bpdu.request is None and not bpdu.changes:
            return head + host
        parts = [head, host]
        if bpdu.request is not None:
            parts.append(
                _TRIPLE.pack(_id(bpdu.request.root_id), bpdu.request.boot, bpdu.request.seq)
            )
        parts.extend(_TRIPLE.pack(_id(c.origin), c.boot, c.number) for c in bpdu.changes)
    except struct.error as error:
        raise BpduError(f"BPDU field out of range: {error}") from None
    return b"".join(parts)


def _id(value: bytes) -> bytes:
    # struct would pad or cut it silently.
    if len(value) != ID_BYTES:
        raise BpduError(f"a broker id has {ID_BYTES} bytes, not {len(value)}")
    return value


def decode(data: bytes) -> Bpdu:
    """Read a BPDU. Raises BpduError for anything short, of another version or not believable;
    nothing else."""
    if len(data) < _HEAD.size:
        raise BpduError(f"BPDU of {len(data)} bytes is too short")
    (
        version,
        flags,
        role,
        echo,
        hops,
        change_count,
        number,
        root_id,
        boot,
        tenths,
        seq,
        cost,
        age,
        own_tenths,
        port,
        host_length,
    ) = _HEAD.unpack_from(data)
    if version != VERSION:
        raise BpduError(f"BPDU version {version} is not known")
    if not Role.ROOT <= role <= Role.BLOCKED or echo > Role.BLOCKED:
        raise BpduError(f"BPDU role {role}, echo {echo}")
    if cost > MAX_COST_US:
        raise BpduError(f"path cost of {cost} us is over an hour")
    if change_count > MAX_CHANGES:
        raise BpduError(f"{change_count} topology changes in one BPDU")
    pos = _HEAD.size + host_length
    end = pos + _TRIPLE.size * (change_count + (flags & _FLAG_REQUEST))
    if len(data) < end:
        raise BpduError(f"BPDU of {len(data)} bytes is cut short, {end} expected")
    try:
        root = _root(root_id, boot, tenths, bytes(data[_HEAD.size : pos]), port)
    except UnicodeDecodeError:
        raise BpduError("root host is not UTF-8") from None
    request = None
    if flags & _FLAG_REQUEST:
        request = SeqRequest(*_TRIPLE.unpack_from(data, pos))
        pos += _TRIPLE.size
    changes = tuple(ChangeNumber(*triple) for triple in _TRIPLE.iter_unpack(data[pos:end]))
    return Bpdu(
        root, seq, cost, own_tenths, Role(role), Role(echo), hops, age, number, request, changes
    )
