"""What every broker of the federation says of itself, known to all: listings, numbered by their broker (Overlays 4.1: SRT, PRT).

A broker posts entries (key -> value) in its own listing. Changes travel over the tree, each link once; a new neighbour is told
which brokers are behind a link and in which version, and asks for the listings that it has not got. What is kept of brokers that
are cut off makes their return cheap. Pure: messages to neighbours and events are data that the owner takes.

    ask for a summary -> summary, came (who is behind me) -> ask (what is new to me) -> listing (in parts) -> changes ... -> went

Invariants: a broker is reached via one neighbour at most; who is told on was complete here before; a neighbour is never told of
brokers that are reached through it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

OWN_LIMIT = 1_000_000
"""entries of one listing; a broker's aggregated filters are far fewer."""

MAX_BROKERS = 1024
"""listings, of reachable brokers and of those that were; the federation's members are limited to as many."""

MAX_ENTRY = 70_000
"""bytes of key and value: a topic filter has 65,535."""

PART = 60_000
"""bytes of a listing that go into one message, so that others get in between."""

BEHIND = 16
"""a change that a neighbour tells us may be ahead of what we have by so many others that it told before, no more: else ask."""

SUMMARY, CAME, WENT, ASK, LISTING, CHANGES, DIGEST, ASK_SUMMARY = range(8)
"""Kinds of messages, their first byte."""

REMOVED: Final = 0xFFFFFFFF
"""Length of a value that is no value: the entry is withdrawn."""


class DirectoryError(ValueError):
    """A message that cannot be read, or is beyond the limits."""


@dataclass(slots=True, frozen=True)
class Came:
    """A broker is reachable, and its listing is complete here. `attached`: what its new neighbour said, b"" for one of ours."""

    id: bytes
    via: bytes
    attached: bytes


@dataclass(slots=True, frozen=True)
class Moved:
    """A broker is reached via another neighbour than before."""

    id: bytes
    via: bytes
    attached: bytes


@dataclass(slots=True, frozen=True)
class Went:
    """A broker is not reachable any more."""

    id: bytes


@dataclass(slots=True, frozen=True)
class Posted:
    """A reachable broker posted an entry, or withdrew it (None)."""

    id: bytes
    key: bytes
    value: bytes | None


Event = Came | Moved | Went | Posted


class Listing:
    """What one broker says of itself."""

    __slots__ = ("attached", "boot", "entries", "id", "loading", "version", "via")

    def __init__(self, broker_id: bytes, boot: int) -> None:
        self.id = broker_id
        self.boot = boot
        self.version = 0
        self.entries: dict[bytes, bytes] = {}
        self.via: bytes | None = None  # the neighbour that leads to it; None: it is not reachable
        self.attached = b""
        self.loading: dict[bytes, bytes] | None = None  # parts of a newer listing that have come

    def stamp(self) -> bytes:
        """Which state of it this is (20 bytes)."""
        return self.id + self.boot.to_bytes(4, "big") + self.version.to_bytes(8, "big")


class _Neighbour:
    __slots__ = ("announced", "behind", "differs", "told")

    def __init__(self) -> None:
        self.told = False  # a summary was asked for and sent
        self.behind: dict[bytes, tuple[int, int, bytes, int]] = {}  # broker -> (boot, version, attached, when), as it says
        self.announced: dict[bytes, bytes] = {}  # broker -> its stamp, as we have said
        self.differs = 0  # digests in a row


class Directory:
    """All listings, from one broker's place in the tree."""

    def __init__(self, own_id: bytes, boot: int) -> None:
        """`own_id`: 8 bytes; `boot`: our start's number, higher than that of earlier starts."""
        self.own = Listing(own_id, boot)
        self.listings: dict[bytes, Listing] = {}  # of the others
        self._neighbours: dict[bytes, _Neighbour] = {}
        self._ready: dict[bytes, bytes] = {}  # neighbour -> what is attached to those behind it when they are told on
        self._messages: list[tuple[bytes, bytes]] = []
        self._events: list[Event] = []
        self._changes: dict[bytes, bytes | None] = {}  # of our own listing, not told yet
        self._news = 0  # counts who came, so that the newest way is known

    # ---------------------------------------------------------------- what we say

    def post(self, key: bytes, value: bytes) -> None:
        """Put an entry into our listing; `flush` tells the neighbours.

        Raises:
            ValueError: too large, or one entry too many.
        """
        if self.own.entries.get(key) == value:
            return
        if len(key) + len(value) > MAX_ENTRY or (len(self.own.entries) >= OWN_LIMIT and key not in self.own.entries):
            raise ValueError("entry beyond the limits of a listing")
        self.own.entries[key] = value
        self._changes[key] = value

    def withdraw(self, key: bytes) -> None:
        """Take an entry out of our listing; harmless when it is not there."""
        if self.own.entries.pop(key, None) is not None:
            self._changes[key] = None

    # ---------------------------------------------------------------- who is there

    def reachable(self) -> list[Listing]:
        """Return the listings of the other brokers that can be reached."""
        return [listing for listing in self.listings.values() if listing.via is not None]

    def via(self, broker_id: bytes) -> bytes | None:
        """Return the neighbour that leads to a broker, None when it is not reachable."""
        listing = self.listings.get(broker_id)
        return None if listing is None else listing.via

    def complete(self, peer: bytes) -> bool:
        """Whether the neighbour has said who is behind it, and all their listings are here."""
        neighbour = self._neighbours.get(peer)
        return neighbour is not None and peer in neighbour.behind and all(
            self._has(broker_id, boot, version) for broker_id, (boot, version, _, _) in neighbour.behind.items()
        )

    # ---------------------------------------------------------------- neighbours

    def neighbour_up(self, peer: bytes) -> None:
        """A link to a neighbour is part of the tree now: tell it who is behind us."""
        if peer in self._neighbours:
            return
        self.flush()
        self._neighbours[peer] = _Neighbour()
        self._messages.append((peer, bytes((ASK_SUMMARY,))))  # it answers when the link is part of the tree there, too

    def neighbour_ready(self, peer: bytes, attached: bytes) -> None:
        """The neighbour has what went before: those behind it may be told on, with what is `attached` to them."""
        if peer in self._neighbours:
            self._ready[peer] = attached
            self._tell_on()

    def neighbour_down(self, peer: bytes) -> None:
        """The link is not part of the tree any more."""
        neighbour = self._neighbours.pop(peer, None)
        self._ready.pop(peer, None)
        if neighbour is not None:
            for broker_id in neighbour.behind:
                self._choose(broker_id)
            self._tell_on()

    def check(self, peer: bytes) -> None:
        """Send a digest of what we have told a neighbour, so that it notices if it has understood something else."""
        neighbour = self._neighbours.get(peer)
        if neighbour is not None:
            self.flush()
            self._messages.append((peer, bytes((DIGEST,)) + _digest(neighbour.announced.values())))

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
        neighbour = self._neighbours.get(peer)
        if neighbour is None:
            return  # the link left the tree here already
        if not message:
            raise DirectoryError("empty message")
        kind, body = message[0], message[1:]
        if kind in (SUMMARY, CAME):
            self._came(peer, neighbour, body, all_of_them=kind == SUMMARY)
        elif kind == WENT:
            if len(body) % 8:
                raise DirectoryError("truncated")
            for at in range(0, len(body), 8):
                if neighbour.behind.pop(body[at : at + 8], None) is not None:
                    self._choose(body[at : at + 8])
        elif kind == ASK:
            if len(body) % 8:
                raise DirectoryError("truncated")
            for at in range(0, len(body), 8):
                self._send_listing(peer, neighbour, body[at : at + 8])
        elif kind == LISTING:
            self._listing(peer, neighbour, body)
        elif kind == CHANGES:
            self._changed(peer, neighbour, body)
        elif kind == DIGEST:
            stamps = (_stamp(b, boot, version) for b, (boot, version, _, _) in neighbour.behind.items())
            neighbour.differs = neighbour.differs + 1 if body != _digest(stamps) else 0
            if neighbour.differs > 1:  # once may be a change that is on its way
                neighbour.differs = 0
                self._messages.append((peer, bytes((ASK_SUMMARY,))))
        elif kind == ASK_SUMMARY:
            self.flush()
            self._summary(peer, neighbour)
            if peer not in neighbour.behind:
                self._messages.append((peer, bytes((ASK_SUMMARY,))))  # what we had asked came too early
        if kind in (SUMMARY, CAME, WENT, LISTING):
            self._tell_on()

    def _came(self, peer: bytes, neighbour: _Neighbour, body: bytes, *, all_of_them: bool) -> None:
        size = int.from_bytes(body[:4], "big") if len(body) >= 4 else -1
        attached, body = body[4 : 4 + size], body[4 + size :]
        if len(attached) != size or len(body) % 20:
            raise DirectoryError("truncated")
        found = {}
        self._news += 1
        for at in range(0, len(body), 20):
            broker_id = body[at : at + 8]
            if broker_id != self.own.id:
                boot, version = int.from_bytes(body[at + 8 : at + 12], "big"), int.from_bytes(body[at + 12 : at + 20], "big")
                old = neighbour.behind.get(broker_id)
                found[broker_id] = (boot, version, attached, self._news if old is None or old[0] != boot else old[3])
        gone = [broker_id for broker_id in neighbour.behind if broker_id not in found] if all_of_them else []
        for broker_id in gone:
            del neighbour.behind[broker_id]
        neighbour.behind.update(found)
        if len(neighbour.behind) > MAX_BROKERS:
            raise DirectoryError("more brokers than a federation may have")
        for broker_id in (*gone, *found):
            self._choose(broker_id)
        self._ask(peer, [b for b, (boot, version, _, _) in found.items() if not self._has(b, boot, version)])

    def _ask(self, peer: bytes, brokers: list[bytes]) -> None:
        if brokers:
            self._messages.append((peer, bytes((ASK,)) + b"".join(brokers)))

    def _has(self, broker_id: bytes, boot: int, version: int) -> bool:
        listing = self.listings.get(broker_id)
        return listing is not None and (listing.boot, listing.version) >= (boot, version)

    def _listing(self, peer: bytes, neighbour: _Neighbour, body: bytes) -> None:
        """id, boot, version, u8 1 for the first part + 2 for the last, entries"""
        if len(body) < 21:
            raise DirectoryError("truncated")
        broker_id, boot, version = body[:8], int.from_bytes(body[8:12], "big"), int.from_bytes(body[12:20], "big")
        flags = body[20]
        changes = _decode_changes(body, 21)
        if broker_id not in neighbour.behind or self._has(broker_id, boot, version):
            return
        listing = self.listings.get(broker_id)
        if listing is None:
            self._make_room()
            listing = self.listings[broker_id] = Listing(broker_id, boot)
        if flags & 1:
            listing.loading = {}
        if listing.loading is None:
            return
        listing.loading.update((key, value) for key, value in changes if value is not None)
        if len(listing.loading) > OWN_LIMIT:
            raise DirectoryError("more entries than a listing may have")
        if flags & 2:
            entries, listing.loading = listing.loading, None
            known = listing.via is not None
            old, listing.entries = listing.entries, entries
            listing.boot, listing.version = boot, version
            said = neighbour.behind[broker_id]
            neighbour.behind[broker_id] = (*max(said[:2], (boot, version)), *said[2:])
            if known:
                self._events += [Posted(broker_id, key, None) for key in old if key not in entries]
                self._events += [Posted(broker_id, key, value) for key, value in entries.items() if old.get(key) != value]
            self._choose(broker_id)

    def _changed(self, peer: bytes, neighbour: _Neighbour, body: bytes) -> None:
        """id, boot, version before, version after, changes"""
        if len(body) < 28:
            raise DirectoryError("truncated")
        broker_id, boot = body[:8], int.from_bytes(body[8:12], "big")
        before, after = int.from_bytes(body[12:20], "big"), int.from_bytes(body[20:28], "big")
        changes = _decode_changes(body, 28)
        said = neighbour.behind.get(broker_id)
        if said is None:
            return
        if (boot, after) > said[:2]:
            neighbour.behind[broker_id] = (boot, after, *said[2:])
        listing = self.listings.get(broker_id)
        if listing is not None and (listing.boot, listing.version) == (boot, before):
            self._apply(listing, after, changes)
        elif not self._has(broker_id, boot, after):
            self._ask(peer, [broker_id])

    def _apply(self, listing: Listing, after: int, changes: list[tuple[bytes, bytes | None]]) -> None:
        entries = listing.entries
        for key, value in changes:
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = value
        if len(entries) > OWN_LIMIT:
            raise DirectoryError("more entries than a listing may have")
        before, listing.version = listing.version, after
        if listing.via is not None:
            self._events += [Posted(listing.id, key, value) for key, value in changes]
        self._pass_on(listing, before, changes)

    # ---------------------------------------------------------------- said

    def flush(self) -> None:
        """Tell the neighbours what changed in our own listing."""
        if self._changes:
            changes = list(self._changes.items())
            self._changes.clear()
            before = self.own.version
            self.own.version += 1
            self._pass_on(self.own, before, changes)

    def _pass_on(self, listing: Listing, before: int, changes: list[tuple[bytes, bytes | None]]) -> None:
        stamp, old = listing.stamp(), _stamp(listing.id, listing.boot, before)
        body = b""
        for peer, neighbour in self._neighbours.items():
            if neighbour.announced.get(listing.id) == old:
                body = body or b"".join(
                    (bytes((CHANGES,)), listing.id, stamp[8:12], old[12:], stamp[12:], _encode_changes(changes))
                )
                neighbour.announced[listing.id] = stamp
                self._messages.append((peer, body))

    def _summary(self, peer: bytes, neighbour: _Neighbour) -> None:
        neighbour.told = True
        neighbour.announced = {self.own.id: self.own.stamp()}
        for listing in self._tellable(peer):
            neighbour.announced[listing.id] = listing.stamp()
        self._messages.append((peer, bytes((SUMMARY,)) + bytes(4) + b"".join(neighbour.announced.values())))

    def _tellable(self, peer: bytes) -> list[Listing]:
        """Who is behind us as a neighbour sees it."""
        return [x for x in self.listings.values() if x.via is not None and x.via != peer and x.via in self._ready]

    def _tell_on(self) -> None:
        """Bring all neighbours up to date on who is behind us."""
        for peer, neighbour in self._neighbours.items():
            if not neighbour.told:
                continue
            there = {listing.id: listing for listing in self._tellable(peer)}
            gone = [b for b in neighbour.announced if b not in there and b != self.own.id]
            for broker_id in gone:
                del neighbour.announced[broker_id]
            if gone:
                self._messages.append((peer, bytes((WENT,)) + b"".join(gone)))
            news: dict[bytes, list[bytes]] = {}
            for broker_id, listing in there.items():
                stamp = listing.stamp()
                if neighbour.announced.get(broker_id) != stamp:
                    neighbour.announced[broker_id] = stamp
                    attached = listing.attached or self._ready.get(listing.via or b"", b"")
                    news.setdefault(attached, []).append(stamp)
            for attached, stamps in news.items():
                body = bytes((CAME,)) + len(attached).to_bytes(4, "big") + attached + b"".join(stamps)
                self._messages.append((peer, body))

    def _send_listing(self, peer: bytes, neighbour: _Neighbour, broker_id: bytes) -> None:
        listing = self.own if broker_id == self.own.id else self.listings.get(broker_id)
        if listing is None or broker_id not in neighbour.announced:
            return
        if listing is self.own:
            self.flush()
        head = bytes((LISTING,)) + listing.stamp()
        neighbour.announced[broker_id] = listing.stamp()
        first, part, size = 1, list[tuple[bytes, bytes | None]](), 0
        for key, value in listing.entries.items():
            part.append((key, value))
            size += len(key) + len(value)
            if size > PART:
                self._messages.append((peer, head + bytes((first,)) + _encode_changes(part)))
                first, part, size = 0, [], 0
        self._messages.append((peer, head + bytes((first | 2,)) + _encode_changes(part)))

    # ---------------------------------------------------------------- via whom

    def _choose(self, broker_id: bytes) -> None:
        """Decide via whom a broker is reached: the neighbour that has told of it last. In a tree it can be behind one only; what
        another one still says is not true any more."""
        listing = self.listings.get(broker_id)
        if listing is None:
            return
        old = listing.via
        there = [
            (said[3], peer, said[2])
            for peer, neighbour in self._neighbours.items()
            if (said := neighbour.behind.get(broker_id)) and said[0] == listing.boot
            if peer == old or listing.version >= said[1]
        ]
        if not there:
            if old is not None:
                listing.via = None
                self._events.append(Went(broker_id))
            return
        _, peer, attached = max(there)
        if peer == old:
            return
        listing.attached = attached
        listing.via = peer
        if old is None:
            self._events.append(Came(broker_id, peer, attached))
        else:
            self._events.append(Moved(broker_id, peer, attached))

    def _make_room(self) -> None:
        if len(self.listings) < MAX_BROKERS:
            return
        for broker_id, listing in self.listings.items():
            if listing.via is None:
                del self.listings[broker_id]
                return
        raise DirectoryError("more brokers than a federation may have")


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
