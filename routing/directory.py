"""What every broker of the federation says of itself, known to all: listings, numbered by their broker (Overlays 4.1: SRT, PRT).

A broker posts entries (key -> value) in its own listing; who its neighbours in the tree are is part of it. Listings and their
changes are flooded over the tree and each version is taken once, so that nothing can circulate, as with the link states of OSPF
(RFC 2328, 13). From the neighbours that all of them name, each broker computes who can be reached and via whom. Pure: messages to
neighbours and events are data that the owner takes.

    ask for all -> stamps (what there is, in which version) -> ask (from which version on) -> changes, or a listing (in parts)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

OWN_LIMIT = 1_000_000
"""entries of one listing; a broker's aggregated filters are far fewer."""

MAX_BROKERS = 1024
"""listings, of reachable brokers and of those that were; the federation's members are limited to as many."""

MAX_ENTRY = 70_000
"""bytes of key and value: a topic filter has 65,535."""

SMALL = 100
OWN_BYTES = 256 * 1024 * 1024
MAX_BYTES = 512 * 1024 * 1024
"""bytes of key and value up to which an entry always finds room in our own listing; bytes of this with larger entries, so long
filters and client ids, at most; bytes of somebody else's, which may be made up. OWN_LIMIT small entries have 100 MB."""

ENTRY_MEMORY = 200
"""bytes of memory that an entry takes besides its key and value."""

RECENT = 64
RECENT_SIZE = 4096
"""changes of a listing, and bytes of each at most, that are kept for who missed them: a short absence costs no whole listing."""

PART = 60_000
"""bytes of a listing that go into one message, so that others get in between."""

NEIGHBOUR = b"n"
"""First byte of the keys that name a neighbour in the tree. Value: UP and the state of its listing that we knew then; or DOWN and
the state of ours that said so first (12 bytes: boot, version)."""

UP, DOWN = b"\1", b"\0"

STAMPS, ASK, LISTING, CHANGES, DIGEST, ASK_ALL, ALL = range(7)
"""Kinds of messages, their first byte. ALL: stamps of everything, the answer to ASK_ALL."""

REMOVED: Final = 0xFFFFFFFF
"""Length of a value that is no value: the entry is withdrawn."""


class DirectoryError(ValueError):
    """A message that cannot be read, or is beyond the limits."""


@dataclass(slots=True, frozen=True)
class Came:
    """A broker is reachable, via this neighbour."""

    id: bytes
    via: bytes


@dataclass(slots=True, frozen=True)
class Moved:
    """A broker is reached via another neighbour than before."""

    id: bytes
    via: bytes


@dataclass(slots=True, frozen=True)
class Went:
    """A broker is not reachable any more. keys: of all that it had posted."""

    id: bytes
    keys: tuple[bytes, ...]


@dataclass(slots=True, frozen=True)
class Posted:
    """A reachable broker posted an entry, or withdrew it (None)."""

    id: bytes
    key: bytes
    value: bytes | None


Event = Came | Moved | Went | Posted


class Listing:
    """What one broker says of itself."""

    __slots__ = ("boot", "entries", "id", "loaded", "loading", "recent", "size", "up", "version", "via")

    def __init__(self, broker_id: bytes, boot: int) -> None:
        self.id = broker_id
        self.boot = boot
        self.version = 0  # 0: nothing has come yet
        self.entries: dict[bytes, bytes] = {}
        self.size = 0  # bytes of its entries
        self.loaded = 0  # bytes of the parts that have come
        self.up: dict[bytes, None] = {}  # brokers that its entries name as neighbours
        self.via: bytes | None = None  # the neighbour that leads to it; None: it is not reachable
        self.loading: dict[bytes, bytes] | None = None  # parts of a newer listing that have come
        self.recent: deque[tuple[int, bytes]] = deque(maxlen=RECENT)  # (version before, message CHANGES), without holes

    def stamp(self) -> bytes:
        """Which state of it this is (20 bytes)."""
        return _stamp(self.id, self.boot, self.version)

    def named(self, key: bytes, value: bytes | None) -> None:
        """Take note of an entry that names a neighbour."""
        if value is not None and value[:1] == UP:
            self.up[key[1:]] = None
        else:
            self.up.pop(key[1:], None)


class _Neighbour:
    __slots__ = ("differs", "missing", "synchronised")

    def __init__(self) -> None:
        self.synchronised = False  # it has said what there is
        self.missing: dict[bytes, bytes] = {}  # broker -> state that it has and we have asked for
        self.differs = 0  # digests in a row


class Directory:
    """All listings, from one broker's place in the tree."""

    def __init__(self, own_id: bytes, boot: int) -> None:
        """`own_id`: 8 bytes; `boot`: our start's number, higher than that of earlier starts."""
        self.own = Listing(own_id, boot)
        self.listings: dict[bytes, Listing] = {}  # of the others
        self._neighbours: dict[bytes, _Neighbour] = {}
        self._messages: list[tuple[bytes, bytes]] = []
        self._events: list[Event] = []
        self._changes: dict[bytes, bytes | None] = {}  # of our own listing, not told yet
        self._moved = False  # somebody's neighbours are others than before

    # ---------------------------------------------------------------- what we say

    @property
    def memory(self) -> int:
        """Bytes of memory that the listings of the others take, about."""
        return sum(listing.size + len(listing.entries) * ENTRY_MEMORY for listing in self.listings.values())

    def post(self, key: bytes, value: bytes) -> None:
        """Put an entry into our listing; `flush` tells the neighbours.

        Raises:
            ValueError: too large, or one entry too many.
        """
        if self.own.entries.get(key) == value:
            return
        if len(key) + len(value) > MAX_ENTRY or (len(self.own.entries) >= OWN_LIMIT and key not in self.own.entries):
            raise ValueError("entry beyond the limits of a listing")
        old = self.own.entries.get(key)
        size = len(value) + len(key) if old is None else len(value) - len(old)
        if len(key) + len(value) > SMALL and self.own.size + size > OWN_BYTES:
            raise ValueError("more bytes than a listing may have")
        self.own.size += size
        self.own.entries[key] = value
        self._changes[key] = value
        if key[:1] == NEIGHBOUR:
            self.own.named(key, value)

    def withdraw(self, key: bytes) -> None:
        """Take an entry out of our listing; harmless when it is not there."""
        if (old := self.own.entries.pop(key, None)) is not None:
            self.own.size -= len(key) + len(old)
            self._changes[key] = None
            if key[:1] == NEIGHBOUR:
                self.own.named(key, None)

    def flush(self) -> None:
        """Tell the neighbours what changed in our own listing."""
        if self._changes:
            changes = list(self._changes.items())
            self._changes.clear()
            before = self.own.version
            self.own.version += 1
            self._flood(self.own, before, changes, None)

    # ---------------------------------------------------------------- who is there

    def reachable(self) -> list[Listing]:
        """Return the listings of the other brokers that can be reached."""
        return [listing for listing in self.listings.values() if listing.via is not None]

    def via(self, broker_id: bytes) -> bytes | None:
        """Return the neighbour that leads to a broker, None when it is not reachable."""
        listing = self.listings.get(broker_id)
        return None if listing is None else listing.via

    def complete(self, peer: bytes) -> bool:
        """Whether the neighbour has said what there is, and all of it is here."""
        neighbour = self._neighbours.get(peer)
        return neighbour is not None and neighbour.synchronised and not neighbour.missing

    def ready(self, peer: bytes) -> bool:
        """Whether we have named this neighbour: only then is known who is behind it."""
        return self.own.entries.get(NEIGHBOUR + peer, DOWN)[:1] == UP

    # ---------------------------------------------------------------- neighbours

    def neighbour_up(self, peer: bytes) -> None:
        """A link to a neighbour is part of the tree now."""
        if not (neighbour := self._neighbours.setdefault(peer, _Neighbour())).synchronised:
            self._messages.append((peer, bytes((ASK_ALL,))))
            neighbour.differs = 0

    def neighbour_ready(self, peer: bytes) -> None:
        """The neighbour gets what goes over the tree: those behind it can be reached."""
        if peer in self._neighbours:
            listing = self.listings.get(peer)
            self.post(NEIGHBOUR + peer, UP + (listing.stamp()[8:] if listing is not None else bytes(12)))
            self.flush()
            self._find_ways()

    def neighbour_down(self, peer: bytes) -> None:
        """The link is not part of the tree any more."""
        if self._neighbours.pop(peer, None) is not None:
            if self.own.entries.get(NEIGHBOUR + peer, DOWN)[:1] == UP:
                self.flush()
                self.post(NEIGHBOUR + peer, DOWN + _stamp(b"", self.own.boot, self.own.version + 1))
            self.flush()
            self._find_ways()

    def check(self, peer: bytes) -> None:
        """Send a digest of what we know to a neighbour, so that it notices if it knows something else."""
        self.flush()
        self._messages.append((peer, bytes((DIGEST,)) + self._digest()))

    def take_messages(self) -> list[tuple[bytes, bytes]]:
        """Drain what is to be sent: (neighbour, message)."""
        messages, self._messages = self._messages, []
        return messages

    def take_events(self) -> list[Event]:
        """Drain what has happened, in order."""
        events, self._events = self._events, []
        return events

    # ---------------------------------------------------------------- received

    def received(self, peer: bytes, message: bytes) -> None:
        """Take a message of a neighbour.

        Raises:
            DirectoryError: it cannot be read.
        """
        if not message:
            raise DirectoryError("empty message")
        kind, body = message[0], message[1:]
        neighbour = self._neighbours.get(peer)
        if neighbour is None:
            if kind != ASK_ALL:
                return  # the link left the tree here already
            # The link is part of the tree there already; what is wanted here has to be known there before anything is sent.
            neighbour = self._neighbours[peer] = _Neighbour()
        if kind in (STAMPS, ALL):
            self._stamps(peer, neighbour, body)
            neighbour.synchronised |= kind == ALL
        elif kind == ASK:
            if len(body) % 20:
                raise DirectoryError("truncated")
            for at in range(0, len(body), 20):
                self._answer(peer, body[at : at + 8], body[at + 8 : at + 20])
        elif kind == LISTING:
            self._listing(peer, neighbour, body)
        elif kind == CHANGES:
            self._changed(peer, neighbour, body)
        elif kind == DIGEST:
            neighbour.differs = neighbour.differs + 1 if body != self._digest() else 0
            if neighbour.differs > 1:  # once may be a change that is on its way
                neighbour.differs = 0
                self._messages.append((peer, bytes((ASK_ALL,))))
        elif kind == ASK_ALL:
            self.flush()
            known = [listing.stamp() for listing in (self.own, *self.listings.values()) if listing.version]
            self._messages.append((peer, bytes((ALL,)) + b"".join(known)))
        if self._moved:
            self._find_ways()

    def _stamps(self, peer: bytes, neighbour: _Neighbour, body: bytes) -> None:
        if len(body) % 20 or len(body) > 20 * MAX_BROKERS:
            raise DirectoryError("truncated, or more brokers than a federation may have")
        wanted = []
        for at in range(0, len(body), 20):
            broker_id, state = body[at : at + 8], body[at + 8 : at + 20]
            if broker_id != self.own.id and self.state(broker_id) < state:
                neighbour.missing[broker_id] = state
                wanted.append(broker_id + self.state(broker_id))
        if wanted:
            self._messages.append((peer, bytes((ASK,)) + b"".join(wanted)))

    def state(self, broker_id: bytes) -> bytes:
        """Return boot and version of a listing as they are known here (12 bytes, which grow)."""
        listing = self.listings.get(broker_id)
        return bytes(12) if listing is None else listing.stamp()[8:]

    def _taken(self, listing: Listing) -> None:
        """Nobody needs to be asked any more for a state that we have."""
        state = listing.stamp()[8:]
        for neighbour in self._neighbours.values():
            if neighbour.missing.get(listing.id, b"\xff" * 13) <= state:
                del neighbour.missing[listing.id]

    def _listing(self, peer: bytes, neighbour: _Neighbour, body: bytes) -> None:
        """id, boot, version, u8 1 for the first part + 2 for the last, entries"""
        if len(body) < 21:
            raise DirectoryError("truncated")
        broker_id, state, flags = body[:8], body[8:20], body[20]
        changes = _decode_changes(body, 21)
        if broker_id == self.own.id or self.state(broker_id) >= state:
            neighbour.missing.pop(broker_id, None)
            return
        listing = self.listings.get(broker_id)
        if listing is None:
            self._make_room()
            listing = self.listings[broker_id] = Listing(broker_id, 0)
        if flags & 1:
            listing.loading, listing.loaded = {}, 0
        if listing.loading is None:
            return
        listing.loaded += sum(len(key) + len(value) for key, value in changes if value is not None)
        listing.loading.update((key, value) for key, value in changes if value is not None)
        if len(listing.loading) > OWN_LIMIT or listing.loaded > MAX_BYTES:
            raise DirectoryError("more than a listing may have")
        if flags & 2:
            self._replace(listing, state)
            neighbour.missing.pop(broker_id, None)
            for other in self._neighbours:
                if other != peer:
                    self._messages.append((other, bytes((STAMPS,)) + listing.stamp()))

    def _replace(self, listing: Listing, state: bytes) -> None:
        new, listing.loading = listing.loading or {}, None
        old, listing.entries = listing.entries, new
        listing.size = sum(len(key) + len(value) for key, value in new.items())
        listing.up = {key[1:]: None for key, value in new.items() if key[:1] == NEIGHBOUR and value[:1] == UP}
        if listing.via is not None:
            self._events += [Posted(listing.id, key, None) for key in old if key not in new]
            self._events += [Posted(listing.id, key, value) for key, value in new.items() if old.get(key) != value]
        listing.recent.clear()
        listing.boot, listing.version = int.from_bytes(state[:4], "big"), int.from_bytes(state[4:], "big")
        self._taken(listing)
        self._moved = True

    def _changed(self, peer: bytes, neighbour: _Neighbour, body: bytes) -> None:
        """id, boot, version before, version after, changes"""
        if len(body) < 28:
            raise DirectoryError("truncated")
        broker_id, boot, before, after = body[:8], body[8:12], body[12:20], body[20:28]
        changes = _decode_changes(body, 28)
        state = self.state(broker_id)
        if broker_id == self.own.id or state >= boot + after:
            return
        listing = self.listings.get(broker_id)
        if listing is None or state != boot + before:
            neighbour.missing[broker_id] = boot + after
            self._messages.append((peer, bytes((ASK,)) + broker_id + state))
            return
        entries = listing.entries
        for key, value in changes:
            old_value = entries.pop(key, None) if value is None else entries.get(key)
            if value is not None:
                entries[key] = value
                listing.size += len(value) + (len(key) if old_value is None else 0)
            if old_value is not None:
                listing.size -= len(old_value) + (len(key) if value is None else 0)
            if key[:1] == NEIGHBOUR:
                listing.named(key, value)
                self._moved = True
        if len(entries) > OWN_LIMIT or listing.size > MAX_BYTES:
            raise DirectoryError("more than a listing may have")
        old, listing.version = listing.version, int.from_bytes(after, "big")
        self._taken(listing)
        if listing.via is not None:
            self._events += [Posted(broker_id, key, value) for key, value in changes]
        self._flood(listing, old, changes, peer)

    # ---------------------------------------------------------------- said

    def _flood(self, listing: Listing, before: int, changes: list[tuple[bytes, bytes | None]], source: bytes | None) -> None:
        stamp = listing.stamp()
        parts = (bytes((CHANGES,)), stamp[:12], before.to_bytes(8, "big"), stamp[12:], _encode_changes(changes))
        message = b"".join(parts)
        if len(message) > RECENT_SIZE:
            listing.recent.clear()
        else:
            listing.recent.append((before, message))
        self._messages += [(peer, message) for peer in self._neighbours if peer != source]

    def _answer(self, peer: bytes, broker_id: bytes, state: bytes) -> None:
        """Send what has changed since a state, or the whole listing."""
        listing = self.own if broker_id == self.own.id else self.listings.get(broker_id)
        if listing is None or not listing.version:
            return
        if listing is self.own:
            self.flush()
        known = int.from_bytes(state[4:], "big")
        if listing.boot.to_bytes(4, "big") == state[:4] and listing.recent and listing.recent[0][0] <= known:
            self._messages += [(peer, message) for before, message in listing.recent if before >= known]
        else:
            self._send_listing(peer, listing)

    def _send_listing(self, peer: bytes, listing: Listing) -> None:
        head = bytes((LISTING,)) + listing.stamp()
        first, part, size = 1, list[tuple[bytes, bytes | None]](), 0
        for key, value in listing.entries.items():
            part.append((key, value))
            size += len(key) + len(value)
            if size > PART:
                self._messages.append((peer, head + bytes((first,)) + _encode_changes(part)))
                first, part, size = 0, [], 0
        self._messages.append((peer, head + bytes((first | 2,)) + _encode_changes(part)))

    def _digest(self) -> bytes:
        return _digest(listing.stamp() for listing in (self.own, *self.reachable()))

    # ---------------------------------------------------------------- ways

    def _joined(self, one: Listing, other: Listing) -> bool:
        """Whether both are neighbours as they say now. Who has not heard of it yet has not denied it."""
        mine, theirs = one.entries.get(NEIGHBOUR + other.id, b""), other.entries.get(NEIGHBOUR + one.id, b"")
        if mine[:1] == UP:
            return theirs[:1] == UP or _not_denied(mine[1:], theirs, other)
        return theirs[:1] == UP and _not_denied(theirs[1:], mine, one)

    def _find_ways(self) -> None:
        """Find the neighbour that leads to each broker, nearest first."""
        self._moved = False
        ways: dict[bytes, bytes] = {}
        edge: list[Listing] = []
        namers: dict[bytes, list[bytes]] = {}
        for namer in self.listings.values():
            for named in namer.up:
                namers.setdefault(named, []).append(namer.id)
        for peer in self._neighbours:
            listing = self.listings.get(peer) if self.own.entries.get(NEIGHBOUR + peer, DOWN)[:1] == UP else None
            if listing is not None and listing.version and self._joined(self.own, listing):
                ways[peer] = peer
                edge.append(listing)
        for listing in edge:
            for near in (*listing.up, *namers.get(listing.id, ())):
                if near in ways or near == self.own.id or NEIGHBOUR + near not in listing.entries:
                    continue
                other = self.listings.get(near)
                if other is not None and other.version and self._joined(listing, other):
                    ways[near] = ways[listing.id]
                    edge.append(other)
        for listing in self.listings.values():
            old, new = listing.via, ways.get(listing.id)
            listing.via = new
            if old is None and new is not None:
                self._events.append(Came(listing.id, new))
            elif new is None and old is not None:
                self._events.append(Went(listing.id, tuple(listing.entries)))
            elif new is not None and old != new:
                self._events.append(Moved(listing.id, new))

    def _make_room(self) -> None:
        if len(self.listings) < MAX_BROKERS:
            return
        for broker_id, listing in self.listings.items():
            if listing.via is None:
                del self.listings[broker_id]
                return
        raise DirectoryError("more brokers than a federation may have")


def _not_denied(known: bytes, said: bytes, other: Listing) -> bool:
    """Whether what a broker says of a neighbour (nothing, or DOWN) is older than what the neighbour knew when it said UP."""
    if not said:
        return known[:4] == other.boot.to_bytes(4, "big")
    return known >= said[1:]


def _stamp(broker_id: bytes, boot: int, version: int) -> bytes:
    return broker_id + boot.to_bytes(4, "big") + version.to_bytes(8, "big")


def _digest(stamps: Iterable[bytes]) -> bytes:
    """A value that depends on all stamps and not on their order: each is mixed, so that differences do not cancel out."""
    total = 0
    for stamp in stamps:
        value = int.from_bytes(stamp, "big")
        total += (value * 0x9E3779B97F4A7C15F39CC0605CEDC835 + (value >> 64) * 0xC2B2AE3D27D4EB4F) & (1 << 128) - 1
    return (total & (1 << 128) - 1).to_bytes(16, "big")


def _encode_changes(changes: Iterable[tuple[bytes, bytes | None]]) -> bytes:
    parts = []
    for key, value in changes:
        size = REMOVED if value is None else len(value)
        parts += [len(key).to_bytes(4, "big"), size.to_bytes(4, "big"), key, value or b""]
    return b"".join(parts)


def _decode_changes(data: bytes, at: int) -> list[tuple[bytes, bytes | None]]:
    changes: list[tuple[bytes, bytes | None]] = []
    while at < len(data):
        key_size, size = int.from_bytes(data[at : at + 4], "big"), int.from_bytes(data[at + 4 : at + 8], "big")
        removed = size == REMOVED
        end = at + 8 + key_size + (0 if removed else size)
        if at + 8 > len(data) or end > len(data) or end - at > MAX_ENTRY + 8:
            raise DirectoryError("truncated, or an entry is too large")
        key = data[at + 8 : at + 8 + key_size]
        changes.append((key, None if removed else data[at + 8 + key_size : end]))
        at = end
    return changes
