"""The listing of one broker: its entries, in memory and as bytes (link_state.py). Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

MAX_ENTRY = 70_000
"""bytes of key and value: a topic filter has 65,535."""

ENTRY_MEMORY = 200
"""bytes of memory that an entry takes besides its key and value."""

RECENT = 64
RECENT_SIZE = 4096
"""changes of a listing, and bytes of each at most, that are kept for brokers that missed them, so
that a short absence does not cost a whole listing."""

PART = 60_000
"""bytes of a listing in one message, so that other messages get in between."""

NEIGHBOUR = b"n"
"""The first byte of keys that name a neighbour in the tree. Value: UP and the state of the
neighbour's listing that was known then; or DOWN and the state of the own listing that first said so
(12 bytes: boot, version)."""

UP, DOWN = b"\1", b"\0"

REMOVED: Final = 0xFFFFFFFF
"""The length that stands for no value: the entry is withdrawn."""


class DirectoryError(ValueError):
    """A message that cannot be read, or exceeds a limit."""


class Listing:
    """The entries of one broker."""

    __slots__ = ("boot", "entries", "id", "recent", "size", "up", "version", "via")

    def __init__(self, broker_id: bytes, boot: int) -> None:
        self.id = broker_id
        self.boot = boot
        # 0: nothing has come yet.
        self.version = 0
        self.entries: dict[bytes, bytes] = {}
        # Bytes of its entries.
        self.size = 0
        # Brokers that its entries name as neighbours.
        self.up: dict[bytes, None] = {}
        # The neighbour that leads to it; None: it is not reachable.
        self.via: bytes | None = None
        # (version before, message CHANGES), without holes.
        self.recent: deque[tuple[int, bytes]] = deque(maxlen=RECENT)

    @property
    def memory(self) -> int:
        """Estimated bytes of memory: of the entries and of the table that has them."""
        return self.size + len(self.entries) * ENTRY_MEMORY

    def stamp(self) -> bytes:
        """The state of the listing as 20 bytes."""
        return stamp_of(self.id, self.boot, self.version)

    def named(self, key: bytes, value: bytes | None) -> None:
        """Note an entry that names a neighbour."""
        if value is not None and value[:1] == UP:
            self.up[key[1:]] = None
        else:
            self.up.pop(key[1:], None)


class Loading:
    """The parts of a listing that have come from a neighbour."""

    __slots__ = ("entries", "size", "state")

    def __init__(self, state: bytes) -> None:
        self.state = state
        self.entries: dict[bytes, bytes] = {}
        # Bytes of these parts.
        self.size = 0

    @property
    def memory(self) -> int:
        """Estimated bytes of memory: of the entries and of the table that has them."""
        return self.size + len(self.entries) * ENTRY_MEMORY


def stamp_of(broker_id: bytes, boot: int, version: int) -> bytes:
    """Return 20 bytes that name one state of a listing: of the broker `broker_id`, its incarnation
    `boot`, and the listing's `version`."""
    return broker_id + boot.to_bytes(4, "big") + version.to_bytes(8, "big")


def parts_of(head: bytes, keys: list[bytes], entries: dict[bytes, bytes]) -> Iterator[bytes]:
    """Return the parts in which a listing is sent. `head`: its stamp when that begins; `keys`: all
    keys that it had then; `entries`: what it has now. Changes meanwhile are sent behind it."""
    first, part, size = 1, list[tuple[bytes, bytes | None]](), 0
    for key in keys:
        value = entries.get(key)
        if value is not None:
            part.append((key, value))
            size += len(key) + len(value)
        if size > PART:
            yield head + bytes((first,)) + encode_changes(part)
            first, part, size = 0, [], 0
    yield head + bytes((first | 2,)) + encode_changes(part)


def encode_changes(changes: Iterable[tuple[bytes, bytes | None]]) -> bytes:
    """Return entries as bytes: u32 sizes of key and value (REMOVED: none), key, value."""
    parts = []
    for key, value in changes:
        size = REMOVED if value is None else len(value)
        parts += [len(key).to_bytes(4, "big"), size.to_bytes(4, "big"), key, value or b""]
    return b"".join(parts)


def decode_changes(data: bytes, at: int) -> list[tuple[bytes, bytes | None]]:
    """Return the entries from a place on. Raises DirectoryError."""
    changes: list[tuple[bytes, bytes | None]] = []
    while at < len(data):
        key_size, size = (
            int.from_bytes(data[at : at + 4], "big"),
            int.from_bytes(data[at + 4 : at + 8], "big"),
        )
        removed = size == REMOVED
        end = at + 8 + key_size + (0 if removed else size)
        if at + 8 > len(data) or end > len(data) or end - at > MAX_ENTRY + 8:
            raise DirectoryError("truncated, or an entry is too large")
        key = data[at + 8 : at + 8 + key_size]
        changes.append((key, None if removed else data[at + 8 + key_size : end]))
        at = end
    return changes
