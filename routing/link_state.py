"""What every broker of the federation says of itself, known to all: listings, numbered by their
broker.

A broker posts entries (key -> value) in its own listing; the list of its neighbours in the tree is
part of it. Listings and their changes are flooded over the tree and each version is taken once, so
that nothing can circulate, as with the link states of OSPF (RFC 2328, 13). From the neighbours that
all of them name, each broker computes which brokers can be reached and via which neighbours. Pure:
messages to neighbours and events are data that the owner takes.

    ask for all -> stamps (what there is, in which version) -> ask (from which version on)
                -> changes, or a listing (in parts)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from mqttree.broker.base.record import Record
from mqttree.routing.limits import RoutingLimits
from mqttree.routing.listing import (
    DOWN,
    MAX_ENTRY,
    NEIGHBOUR,
    PART,
    RECENT_SIZE,
    UP,
    DirectoryError,
    Listing,
    Loading,
    decode_changes,
    encode_changes,
    parts_of,
    stamp_of,
)

MAX_BROKERS = 1024
"""listings of brokers that are reachable, or were; the number of members has the same limit."""

SMALL = 100
"""bytes of key and value up to which an entry always finds room in our own listing."""

AT_ONCE = 2 * PART
"""bytes of listings that are sent to one neighbour at a time: some ms of work at each end."""

STAMPS, ASK_LISTINGS, LISTING, CHANGES, STAMPS_DIGEST, ASK_ALL, ALL = range(7)
"""Kinds of messages, their first byte. ALL: stamps of everything, the answer to ASK_ALL."""


class BrokerReachable(Record):
    """A broker is reachable, via this neighbour."""

    id: bytes
    via: bytes


class BrokerRerouted(Record):
    """A broker is reached via another neighbour than before."""

    id: bytes
    via: bytes


class BrokerUnreachable(Record):
    """A broker is not reachable any more. keys: all that it had posted."""

    id: bytes
    keys: tuple[bytes, ...]


@dataclass(slots=True, eq=False, repr=False)
class Posted:
    """A reachable broker posted entries, or withdrew them (None)."""

    id: bytes
    changes: list[tuple[bytes, bytes | None]]


Event = BrokerReachable | BrokerRerouted | BrokerUnreachable | Posted


class _Neighbour:
    __slots__ = ("asked", "differs", "loading", "missing", "sending", "synchronised", "waiting")

    def __init__(self) -> None:
        # By broker.
        self.loading: dict[bytes, Loading] = {}
        # Broker -> state from which on the neighbour wants changes.
        self.asked: dict[bytes, bytes] = {}
        # The rest of a listing.
        self.sending: Iterator[bytes] | None = None
        # Messages behind it.
        self.waiting: list[bytes] = []
        # It has named all its listings.
        self.synchronised = False
        # Broker -> state that it has and that was asked for.
        self.missing: dict[bytes, bytes] = {}
        # Digests in a row.
        self.differs = 0


class LinkStateDatabase:
    """All listings, from one broker's place in the tree."""

    def __init__(self, own_id: bytes, boot: int, limits: RoutingLimits) -> None:
        """`own_id`: 8 bytes; `boot`: this broker's boot number, higher than that of earlier
        incarnations; `limits`: of the listings."""
        self._limits = limits
        self.own = Listing(own_id, boot)
        # Of the other brokers.
        self.listings: dict[bytes, Listing] = {}
        self._neighbours: dict[bytes, _Neighbour] = {}
        self.refused = 0
        """Number of listings that were refused for lack of room."""
        # Of the listings of other brokers.
        self._memory = 0
        self._messages: list[tuple[bytes, bytes]] = []
        self._events: list[Event] = []
        # Changes of the own listing that were not sent yet.
        self._changes: dict[bytes, bytes | None] = {}
        # Neighbours of a broker have changed.
        self._neighbours_changed = False

    # ---------------------------------------------------------------- what we say

    @property
    def memory(self) -> int:
        """Estimated bytes of memory of the listings of other brokers."""
        return self._memory

    @property
    def own_entries(self) -> int:
        """How many entries the own listing has."""
        return len(self.own.entries)

    def own_entry(self, key: bytes) -> bytes | None:
        """Return the value of an entry of the own listing, None if it is not there."""
        return self.own.entries.get(key)

    def own_stamp(self) -> bytes:
        """Return which version of the own listing this is: id, boot and version."""
        return self.own.stamp()

    def post(self, key: bytes, value: bytes) -> None:
        """Post an entry in the own listing; `flush` tells the neighbours.

        Raises ValueError: it is too large, or one entry too many.
        """
        if self.own.entries.get(key) == value:
            return
        if len(key) + len(value) > MAX_ENTRY or (
            len(self.own.entries) >= self._limits.listing_entries and key not in self.own.entries
        ):
            raise ValueError("entry beyond the limits of a listing")
        old = self.own.entries.get(key)
        size = len(value) + len(key) if old is None else len(value) - len(old)
        if len(key) + len(value) > SMALL and self.own.size + size > self._limits.listing_own_bytes:
            raise ValueError("more bytes than a listing may have")
        self.own.size += size
        self.own.entries[key] = value
        self._changes[key] = value
        if key[:1] == NEIGHBOUR:
            self.own.named(key, value)

    def withdraw(self, key: bytes) -> None:
        """Withdraw an entry of the own listing; harmless if it is not there."""
        if (old := self.own.entries.pop(key, None)) is not None:
            self.own.size -= len(key) + len(old)
            self._changes[key] = None
            if key[:1] == NEIGHBOUR:
                self.own.named(key, None)

    def flush(self) -> None:
        """Tell the neighbours what has changed in the own listing."""
        if self._changes:
            changes = list(self._changes.items())
            self._changes.clear()
            before = self.own.version
            self.own.version += 1
            self._flood(self.own, before, changes, None)

    # ---------------------------------------------------------------- reachable brokers

    def reachable(self) -> list[Listing]:
        """Return the listings of the other brokers that can be reached."""
        return [listing for listing in self.listings.values() if listing.via is not None]

    def via(self, broker_id: bytes) -> bytes | None:
        """Return the neighbour that leads to a broker, None if it is not reachable."""
        listing = self.listings.get(broker_id)
        return None if listing is None else listing.via

    def reaches(self, broker_id: bytes) -> bool:
        """Whether a path leads to another broker."""
        return self.via(broker_id) is not None

    def boot(self, broker_id: bytes) -> int:
        """Return the boot number that another broker has posted, 0 if it has posted nothing."""
        listing = self.listings.get(broker_id)
        return 0 if listing is None else listing.boot

    def entry(self, broker_id: bytes, key: bytes) -> bytes | None:
        """Return the value that another broker posts under a key, None if it posts none."""
        listing = self.listings.get(broker_id)
        return None if listing is None else listing.entries.get(key)

    def entries_of(self, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return id and value of each other broker that posts an entry with this key, whether it
        can be reached or not."""
        for listing in self.listings.values():
            if (value := listing.entries.get(key)) is not None:
                yield listing.id, value

    def complete(self, peer: bytes) -> bool:
        """Return whether the neighbour has named all its listings, and all of them are here."""
        neighbour = self._neighbours.get(peer)
        return neighbour is not None and neighbour.synchronised and not neighbour.missing

    @property
    def lacks(self) -> bool:
        """Whether neighbours have named newer listings than this broker has, and have not sent them
        yet."""
        return any(neighbour.missing for neighbour in self._neighbours.values())

    def ready(self, peer: bytes) -> bool:
        """Return whether this broker's listing names this neighbour: only then is known which
        brokers are behind it."""
        return self.own.entries.get(NEIGHBOUR + peer, DOWN)[:1] == UP

    # ---------------------------------------------------------------- neighbours

    def neighbour_up(self, peer: bytes) -> None:
        """Note that a link to a neighbour is part of the tree."""
        if not (neighbour := self._neighbours.setdefault(peer, _Neighbour())).synchronised:
            self._say(peer, bytes((ASK_ALL,)))
            neighbour.differs = 0

    def neighbour_ready(self, peer: bytes) -> None:
        """Note that the neighbour gets messages over the tree: brokers behind it can be reached."""
        if peer in self._neighbours:
            listing = self.listings.get(peer)
            self.post(
                NEIGHBOUR + peer, UP + (listing.stamp()[8:] if listing is not None else bytes(12))
            )
            self.flush()
            self._find_next_hops()

    def neighbour_down(self, peer: bytes) -> None:
        """Note that the link is not part of the tree any more."""
        if (neighbour := self._neighbours.pop(peer, None)) is not None:
            self._memory -= sum(loading.memory for loading in neighbour.loading.values())
            if self.own.entries.get(NEIGHBOUR + peer, DOWN)[:1] == UP:
                self.flush()
                self.post(
                    NEIGHBOUR + peer, DOWN + stamp_of(b"", self.own.boot, self.own.version + 1)
                )
            self.flush()
            self._find_next_hops()

    def check(self, peer: bytes) -> None:
        """Send a digest of all listings to a neighbour, so that it notices differences."""
        self.flush()
        self._say(peer, bytes((STAMPS_DIGEST,)) + self._digest())

    def take_messages(
        self, room: Callable[[bytes], bool] = lambda peer: True
    ) -> list[tuple[bytes, bytes]]:
        """Remove and return messages to be sent: (neighbour, message). Of listings that were asked
        for, AT_ONCE bytes go to each neighbour for which `room` returns True, and other messages to
        it come behind. So no request gets more of them at a time."""
        for peer, neighbour in self._neighbours.items():
            if (neighbour.asked or neighbour.sending) and room(peer):
                self._answer_some(peer, neighbour)
        messages, self._messages = self._messages, []
        return messages

    @property
    def busy(self) -> bool:
        """Whether more is to be sent to a neighbour that has asked for it."""
        return any(neighbour.asked or neighbour.sending for neighbour in self._neighbours.values())

    def _say(self, peer: bytes, message: bytes) -> None:
        """Have a message sent to a neighbour, behind those before it."""
        neighbour = self._neighbours.get(peer)
        if neighbour is not None and neighbour.sending is not None:
            neighbour.waiting.append(message)
        else:
            self._messages.append((peer, message))

    def _answer_some(self, peer: bytes, neighbour: _Neighbour) -> None:
        """Send a piece of what a neighbour has asked for."""
        left = AT_ONCE
        while left > 0 and (neighbour.asked or neighbour.sending is not None):
            if neighbour.sending is None:
                broker_id = next(iter(neighbour.asked))
                neighbour.sending = self._answer(broker_id, neighbour.asked.pop(broker_id))
            message = next(neighbour.sending, None)
            if message is not None:
                self._messages.append((peer, message))
                left -= len(message)
                continue
            neighbour.sending = None
            self._messages += [(peer, waiting) for waiting in neighbour.waiting]
            neighbour.waiting = []

    def take_events(self) -> list[Event]:
        """Remove and return the events, in order."""
        events, self._events = self._events, []
        return events

    # ---------------------------------------------------------------- received

    def received(self, peer: bytes, message: bytes) -> None:
        """Handle a message of a neighbour.

        Raises DirectoryError: it cannot be read.
        """
        if not message:
            raise DirectoryError("empty message")
        kind, body = message[0], message[1:]
        neighbour = self._neighbours.get(peer)
        if neighbour is None:
            if kind != ASK_ALL:
                # The link has left the tree at this end already.
                return
            # The link is part of the tree at the other end already. It must know what is wanted
            # here before anything is sent.
            neighbour = self._neighbours[peer] = _Neighbour()
        if kind in (STAMPS, ALL):
            self._stamps(peer, neighbour, body)
            neighbour.synchronised |= kind == ALL
        elif kind == ASK_LISTINGS:
            if len(body) % 20:
                raise DirectoryError("truncated")
            for at in range(0, len(body), 20):
                if self._known(body[at : at + 8]) is not None:
                    neighbour.asked[body[at : at + 8]] = body[at + 8 : at + 20]
        elif kind == LISTING:
            self._listing(peer, neighbour, body)
        elif kind == CHANGES:
            self._changed(peer, neighbour, body)
        elif kind == STAMPS_DIGEST:
            neighbour.differs = neighbour.differs + 1 if body != self._digest() else 0
            # One difference may be a change that is on its way.
            if neighbour.differs > 1:
                neighbour.differs = 0
                self._say(peer, bytes((ASK_ALL,)))
        elif kind == ASK_ALL:
            self.flush()
            known = [
                listing.stamp()
                for listing in (self.own, *self.listings.values())
                if listing.version
            ]
            self._say(peer, bytes((ALL,)) + b"".join(known))
        if self._neighbours_changed:
            self._find_next_hops()

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
            self._say(peer, bytes((ASK_LISTINGS,)) + b"".join(wanted))

    def state(self, broker_id: bytes) -> bytes:
        """Return boot number and version of a listing as they are known here (12 bytes, which
        rise)."""
        listing = self.listings.get(broker_id)
        return bytes(12) if listing is None else listing.stamp()[8:]

    def _taken(self, listing: Listing) -> None:
        """Note that a state is here: no neighbour needs to be asked for it any more."""
        state = listing.stamp()[8:]
        for neighbour in self._neighbours.values():
            if neighbour.missing.get(listing.id, b"\xff" * 13) <= state:
                del neighbour.missing[listing.id]

    def _listing(self, peer: bytes, neighbour: _Neighbour, body: bytes) -> None:
        """id, boot, version, u8 1 for the first part + 2 for the last, entries"""
        if len(body) < 21:
            raise DirectoryError("truncated")
        broker_id, state, flags = body[:8], body[8:20], body[20]
        changes = decode_changes(body, 21)
        if broker_id == self.own.id or self.state(broker_id) >= state:
            neighbour.missing.pop(broker_id, None)
            self._drop(neighbour, broker_id)
            return
        if flags & 1:
            self._drop(neighbour, broker_id)
            if len(neighbour.loading) >= MAX_BROKERS:
                raise DirectoryError("more brokers than a federation may have")
            neighbour.loading[broker_id] = Loading(state)
        loading = neighbour.loading.get(broker_id)
        if loading is None or loading.state != state:
            return
        self._memory -= loading.memory
        loading.entries.update((key, value) for key, value in changes if value is not None)
        loading.size += sum(len(key) + len(value) for key, value in changes if value is not None)
        self._memory += loading.memory
        limits = self._limits
        if len(loading.entries) > limits.listing_entries or loading.size > limits.listing_bytes:
            raise DirectoryError("more than a listing may have")
        full = self._memory > limits.listings_memory
        if full and not self._shrink(self.listings.get(broker_id)):
            self._drop(neighbour, broker_id)
            neighbour.missing.pop(broker_id, None)
            self.refused += 1
        elif flags & 2:
            self._drop(neighbour, broker_id)
            listing = self.listings.get(broker_id)
            if listing is None:
                self._make_room()
                listing = self.listings[broker_id] = Listing(broker_id, 0)
            self._replace(listing, loading.entries, state)
            neighbour.missing.pop(broker_id, None)
            for other in self._neighbours:
                if other != peer:
                    self._say(other, bytes((STAMPS,)) + listing.stamp())

    def _drop(self, neighbour: _Neighbour, broker_id: bytes) -> None:
        """Forget the parts of a listing that have come from a neighbour."""
        loading = neighbour.loading.pop(broker_id, None)
        if loading is not None:
            self._memory -= loading.memory

    def _shrink(self, but: Listing | None) -> bool:
        """Forget brokers that cannot be reached until there is room. Returns whether there is."""
        for listing in [
            listing
            for listing in self.listings.values()
            if listing.via is None and listing is not but
        ]:
            if self._memory <= self._limits.listings_memory:
                break
            self._memory -= listing.memory
            del self.listings[listing.id]
        return self._memory <= self._limits.listings_memory

    def _replace(self, listing: Listing, new: dict[bytes, bytes], state: bytes) -> None:
        self._memory -= listing.memory
        old, listing.entries = listing.entries, new
        listing.size = sum(map(len, new)) + sum(map(len, new.values()))
        self._memory += listing.memory
        listing.up = {
            key[1:]: None for key, value in new.items() if key[:1] == NEIGHBOUR and value[:1] == UP
        }
        if listing.via is not None:
            changes: list[tuple[bytes, bytes | None]] = [
                (key, None) for key in old if key not in new
            ]
            changes += [(key, value) for key, value in new.items() if old.get(key) != value]
            self._events.append(Posted(listing.id, changes))
        listing.recent.clear()
        listing.boot, listing.version = (
            int.from_bytes(state[:4], "big"),
            int.from_bytes(state[4:], "big"),
        )
        self._taken(listing)
        self._neighbours_changed = True

    def _changed(self, peer: bytes, neighbour: _Neighbour, body: bytes) -> None:
        """id, boot, version before, version after, changes"""
        if len(body) < 28:
            raise DirectoryError("truncated")
        broker_id, boot, before, after = body[:8], body[8:12], body[12:20], body[20:28]
        changes = decode_changes(body, 28)
        state = self.state(broker_id)
        if broker_id == self.own.id or state >= boot + after:
            return
        listing = self.listings.get(broker_id)
        if listing is None or state != boot + before:
            neighbour.missing[broker_id] = boot + after
            self._say(peer, bytes((ASK_LISTINGS,)) + broker_id + state)
            return
        entries = listing.entries
        self._memory -= listing.memory
        for key, value in changes:
            old_value = entries.pop(key, None) if value is None else entries.get(key)
            if value is not None:
                entries[key] = value
                listing.size += len(value) + (len(key) if old_value is None else 0)
            if old_value is not None:
                listing.size -= len(old_value) + (len(key) if value is None else 0)
            if key[:1] == NEIGHBOUR:
                listing.named(key, value)
                self._neighbours_changed = True
        self._memory += listing.memory
        if (
            len(entries) > self._limits.listing_entries
            or listing.size > self._limits.listing_bytes
            or (self._memory > self._limits.listings_memory and not self._shrink(listing))
        ):
            raise DirectoryError("more than a listing, or all of them, may have")
        old, listing.version = listing.version, int.from_bytes(after, "big")
        self._taken(listing)
        if listing.via is not None:
            self._events.append(Posted(broker_id, changes))
        self._flood(listing, old, changes, peer)

    # ---------------------------------------------------------------- said

    def _flood(
        self,
        listing: Listing,
        before: int,
        changes: list[tuple[bytes, bytes | None]],
        source: bytes | None,
    ) -> None:
        stamp = listing.stamp()
        parts = (
            bytes((CHANGES,)),
            stamp[:12],
            before.to_bytes(8, "big"),
            stamp[12:],
            encode_changes(changes),
        )
        message = b"".join(parts)
        if len(message) > RECENT_SIZE:
            listing.recent.clear()
        else:
            listing.recent.append((before, message))
        for peer in self._neighbours:
            if peer != source:
                self._say(peer, message)

    def _known(self, broker_id: bytes) -> Listing | None:
        """Return a listing of which something is known, the own one included."""
        listing = self.own if broker_id == self.own.id else self.listings.get(broker_id)
        return listing if listing is not None and (listing.version or listing is self.own) else None

    def _answer(self, broker_id: bytes, state: bytes) -> Iterator[bytes]:
        """Yield the changes since a state, or the whole present listing in parts."""
        listing = self._known(broker_id)
        if listing is self.own:
            self.flush()
        if listing is None or not listing.version:
            return iter(())
        known = int.from_bytes(state[4:], "big")
        if (
            listing.boot.to_bytes(4, "big") == state[:4]
            and listing.recent
            and listing.recent[0][0] <= known
        ):
            return iter([message for before, message in listing.recent if before >= known])
        return parts_of(bytes((LISTING,)) + listing.stamp(), list(listing.entries), listing.entries)

    def _digest(self) -> bytes:
        return _digest(listing.stamp() for listing in (self.own, *self.reachable()))

    # ---------------------------------------------------------------- next hops

    def _joined(self, one: Listing, other: Listing) -> bool:
        """Return whether two brokers are neighbours by their listings. A broker that has not heard
        of it yet has not denied it."""
        mine, theirs = (
            one.entries.get(NEIGHBOUR + other.id, b""),
            other.entries.get(NEIGHBOUR + one.id, b""),
        )
        if mine[:1] == UP:
            return theirs[:1] == UP or _not_denied(mine[1:], theirs, other)
        return theirs[:1] == UP and _not_denied(theirs[1:], mine, one)

    def _find_next_hops(self) -> None:
        """Compute the neighbour that leads to each broker, nearest first."""
        self._neighbours_changed = False
        next_hops: dict[bytes, bytes] = {}
        edge: list[Listing] = []
        namers: dict[bytes, list[bytes]] = {}
        for namer in self.listings.values():
            for named in namer.up:
                namers.setdefault(named, []).append(namer.id)
        for peer in self._neighbours:
            listing = (
                self.listings.get(peer)
                if self.own.entries.get(NEIGHBOUR + peer, DOWN)[:1] == UP
                else None
            )
            if listing is not None and listing.version and self._joined(self.own, listing):
                next_hops[peer] = peer
                edge.append(listing)
        for listing in edge:
            for near in (*listing.up, *namers.get(listing.id, ())):
                if (
                    near in next_hops
                    or near == self.own.id
                    or NEIGHBOUR + near not in listing.entries
                ):
                    continue
                other = self.listings.get(near)
                if other is not None and other.version and self._joined(listing, other):
                    next_hops[near] = next_hops[listing.id]
                    edge.append(other)
        for listing in self.listings.values():
            old, new = listing.via, next_hops.get(listing.id)
            listing.via = new
            if old is None and new is not None:
                self._events.append(BrokerReachable(listing.id, new))
            elif new is None and old is not None:
                self._events.append(BrokerUnreachable(listing.id, tuple(listing.entries)))
            elif new is not None and old != new:
                self._events.append(BrokerRerouted(listing.id, new))

    def _make_room(self) -> None:
        if len(self.listings) < MAX_BROKERS:
            return
        for broker_id, listing in self.listings.items():
            if listing.via is None:
                self._memory -= listing.memory
                del self.listings[broker_id]
                return
        raise DirectoryError("more brokers than a federation may have")


def _not_denied(known: bytes, said: bytes, other: Listing) -> bool:
    """Whether what a broker says of a neighbour (nothing, or DOWN) is older than what the neighbour
    knew when it said UP."""
    if not said:
        return known[:4] == other.boot.to_bytes(4, "big")
    return known >= said[1:]


def _digest(stamps: Iterable[bytes]) -> bytes:
    """Return a value that depends on all stamps and not on their order: each is mixed, so that
    differences do not cancel out."""
    total = 0
    for stamp in stamps:
        value = int.from_bytes(stamp, "big")
        total += (
            value * 0x9E3779B97F4A7C15F39CC0605CEDC835 + (value >> 64) * 0xC2B2AE3D27D4EB4F
        ) & (1 << 128) - 1
    return (total & (1 << 128) - 1).to_bytes(16, "big")
