"""Gossip: known members as bytes, for links to carry, so that one seed is enough for a whole
federation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mqttree.broker.base.address import Address

MAX_ADDRESSES = 4
"""Addresses in the gossip about one member, as many as membership keeps."""


def encode_members(members: Iterable[tuple[bytes, int, Sequence[Address], bool]]) -> bytes:
    """Encode (id, boot, addresses, alive) of each: id 8, boot u32, alive u8, count u8, then host
    length u8, host, port u16."""
    parts = []
    for broker_id, boot, addresses, alive in members:
        named = [a for a in addresses if len(a.host.encode()) < 256][:MAX_ADDRESSES]
        parts.append(broker_id + boot.to_bytes(4, "big") + bytes((alive, len(named))))
        for address in named:
            host = address.host.encode()
            parts.append(bytes((len(host),)) + host + address.port.to_bytes(2, "big"))
    return b"".join(parts)


def decode_members(data: bytes) -> list[tuple[bytes, int, list[Address], bool]]:
    """Decode what `encode_members` made. A truncated or unreadable entry ends the list: gossip is a
    hint, not a promise."""
    members: list[tuple[bytes, int, list[Address], bool]] = []
    at = 0
    while at + 14 <= len(data):
        broker_id, boot = data[at : at + 8], int.from_bytes(data[at + 8 : at + 12], "big")
        alive, count = bool(data[at + 12]), data[at + 13]
        at += 14
        addresses = []
        for _ in range(count):
            if at >= len(data):
                return members
            end = at + 1 + data[at]
            try:
                host = data[at + 1 : end].decode()
            except UnicodeDecodeError:
                return members
            port = int.from_bytes(data[end : end + 2], "big")
            if end + 2 > len(data) or not host or not port:
                return members
            addresses.append(Address(host, port))
            at = end + 2
        members.append((broker_id, boot, addresses[:MAX_ADDRESSES], alive))
    return members
