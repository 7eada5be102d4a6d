"""The identity of a broker: its id, its incarnation, and where it listens."""

from __future__ import annotations

from mqttree.broker.base.address import Address
from mqttree.broker.base.record import Record

ID_BYTES = 8
"""Length of a broker id in bytes."""
MAX_BOOT = 0xFFFFFFFF


class Identity(Record):
    """A broker: its id (8 bytes, the same after restarts), boot number (u32, rises with each
    restart), advertised address, and a name for people. A wildcard host in an announcement means
    the address from which its datagrams come.

    Raises ValueError: an id of another length, or a boot number out of range.
    """

    id: bytes
    boot: int
    address: Address
    name: str = ""

    def __post_init__(self) -> None:
        if len(self.id) != ID_BYTES:
            raise ValueError(f"broker id has {len(self.id)} bytes instead of {ID_BYTES}")
        if not 0 <= self.boot <= MAX_BOOT:
            raise ValueError(f"boot number {self.boot} is not a 32-bit number")
