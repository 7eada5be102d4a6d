"""The link-state database of the federation (`mqttree.routing.link_state`), driven by the links.

A link takes part while the tree lets it forward. The first byte of an entry's key says what kind of
entry it is. A module that watches such a byte gets every entry that appears, changes or goes,
also when its broker comes or goes.

    record DIRECTORY  a message of the directory
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from operator import itemgetter
from typing import NamedTuple

from mqttree.broker.base.broker_id import ID_BYTES, Identity
from mqttree.broker.cluster.events import (
    ClusterEvents,
    EntriesHandled,
    EntriesSent,
    LinkDown,
    LinkForwards,
    LinkLeftTree,
    MemberGone,
    RouteChanged,
)
from mqttree.broker.cluster.link.control_records import DIRECTORY
from mqttree.broker.cluster.link.link import Handler, Link
from mqttree.broker.cluster.link.origin_keys import origin_key, split_key
from mqttree.broker.cluster.ports import Alarm, MemberBroker
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.routing.link_state import (
    LISTING,
    BrokerReachable,
    BrokerRerouted,
    BrokerUnreachable,
    LinkStateDatabase,
    Posted,
)
from mqttree.routing.listing import DirectoryError

INTEREST, GROUP, CLIENT, STATE, LINK = b"f", b"g", b"c", b"s", b"l"
"""First bytes of keys: topic filters, shared subscriptions, sessions, the broker itself, what its
links cost."""

EVERYTHING = b"#"
"""The filter of a broker that gets every message."""

WANTS_EVERYTHING = INTEREST + EVERYTHING
"""Key of the entry of such a broker."""

NAME = STATE + b"name"
"""Key of the entry with a broker's name."""

CLIENTS_AT = STATE + b"clients"
"""Key of the entry that says where a broker's clients connect."""

DRAINING = STATE + b"draining"
"""Key of the entry of a broker that drains or stops."""

STANDBY = STATE + b"standby"
"""Key of which brokers are a broker's standbys. Value: the last epoch (4 bytes) of which no other
image is needed, then id, boot number and epoch (8, 4, 4) of each, in the order in which they take
that broker's place."""

IMAGES = STATE + b"images"
"""Key of how many MiB of images of other brokers a broker has. Value: 4 bytes."""

SUCCEEDED = STATE + b"succeeded"
"""Key of the brokers that have died and all of whose messages their standby has: this broker.
Value: id, boot number (4 bytes) and the number of its last message (6 bytes) of each."""

ROUTING = STATE + b"routing"
"""Key of how a broker routes. Value: its boot number (4 bytes) and the word of `--routing`."""

POST_INTERVAL = 0.005
"""s; entries that are posted within this time are sent together: ten thousand clients that
subscribe at once do not cause ten thousand messages."""

AT_ONCE = 20
"""messages that are sent without a pause after a quiet time: a client that connects to the next
broker as soon as it has its CONNACK finds its session there."""

DIGEST_INTERVAL_S = 5.0
"""s between digests of the directory on a link."""

Changes = list[tuple[bytes, "bytes | None"]]
"""Entries, keys with their first byte, and values (None: they are gone)."""

Watcher = Callable[[bytes, bytes, "bytes | None", bool], None]
"""Takes an entry: id of the broker, key without its first byte, value (None: it is gone), and
whether it is gone because the tree has lost the broker (which may have come back since)."""

ManyWatcher = Callable[[bytes, Changes, bool], None]
"""Takes very many entries that a broker posts in one moment, to handle them later, and whether they
are gone because the tree has lost the broker."""


_POSTED = struct.Struct(f">{ID_BYTES}sII")
_ORIGIN = struct.Struct(f">{ID_BYTES}sI")


class PostedStandby(NamedTuple):
    """A standby that a broker has posted."""

    id: bytes
    boot: int
    """Of the incarnation that has the image: the next one has none."""
    epoch: int
    """Of the stream."""


def encode_posted(last: int, standbys: Iterable[PostedStandby]) -> bytes:
    """Return the value of STANDBY. `last`: the last epoch of which no other image is needed;
    `standbys`: in their order."""
    return last.to_bytes(4, "big") + b"".join(_POSTED.pack(*each) for each in standbys)


def decode_posted(value: bytes | None) -> tuple[int, list[PostedStandby]]:
    """Return the same, of the value of STANDBY; None: nothing was posted."""
    value = value or b""
    starts = range(4, len(value) - _POSTED.size + 1, _POSTED.size)
    found = [PostedStandby(*_POSTED.unpack_from(value, at)) for at in starts]
    return int.from_bytes(value[:4], "big"), found


def encode_succeeded(tops: Mapping[bytes, int]) -> bytes:
    """Return the value of SUCCEEDED. `tops`: the last number of each origin, by its key."""
    parts = (_ORIGIN.pack(*split_key(key)) + top.to_bytes(6, "big") for key, top in tops.items())
    return b"".join(parts)


def decode_succeeded(value: bytes | None) -> dict[bytes, int]:
    """Return the same, of the value of SUCCEEDED; None: nothing was posted."""
    value, size = value or b"", _ORIGIN.size + 6
    return {
        origin_key(*_ORIGIN.unpack_from(value, at)): int.from_bytes(
            value[at + _ORIGIN.size : at + size], "big"
        )
        for at in range(0, len(value) - size + 1, size)
    }


def standbys_of(database: LinkStateDatabase, broker_id: bytes) -> list[bytes]:
    """Return the ids of the brokers that have an image of a broker's journal, in the order in which
    they take its place. `database`: has what brokers post."""
    own = database.own
    _, posted = decode_posted(database.entry(broker_id, STANDBY))
    return [
        each.id
        for each in posted
        if each.boot == (own.boot if each.id == own.id else database.boot(each.id))
    ]


def has_died(database: LinkStateDatabase, broker_id: bytes) -> bool:
    """Return whether a standby of the broker `broker_id` has seen it die. `database`: has what
    brokers post."""
    for standby in standbys_of(database, broker_id):
        here = standby == database.own.id
        said = database.own_entry(SUCCEEDED) if here else database.entry(standby, SUCCEEDED)
        if any(split_key(key)[0] == broker_id for key in decode_succeeded(said)):
            return True
    return False


class LinkStateDirectory:
    """The directory of a federation, as one of its brokers sees it."""

    def __init__(
        self,
        node: MemberBroker,
        own: Identity,
        events: ClusterEvents,
        alarm: Alarm,
    ) -> None:
        """`node`: this broker, with the identity `own`; `events`: dispatches changes of routes;
        `alarm`: calls again."""
        self._node = node
        self._limits = node.limits
        self.own_id = own.id
        self._events = events
        self._alarm = alarm
        self.database = LinkStateDatabase(own.id, own.boot, node.limits)
        self._links: dict[bytes, Link] = {}
        self._watchers: dict[bytes, list[Watcher]] = {}
        self._many: dict[bytes, ManyWatcher] = {CLIENT: self._defer_sessions}
        # By broker: sessions to be handled later, and whether the broker is gone with them.
        self._deferred: dict[bytes, dict[bytes, bool]] = {}
        self._next_check = 0.0
        self._changed = False  # watchers or neighbours get entries at the end of this input
        self._posted = False  # also of entries of this broker
        self._resuming = False  # more of the listings that were asked for is to be sent soon
        self._tell_at = 0.0  # s, no earlier
        self._settling = False
        self.records: dict[int, Handler] = {DIRECTORY: self._directory_received}

    # ---------------------------------------------------------------- for other modules

    def watch(self, prefix: bytes, watcher: Watcher, many: ManyWatcher | None = None) -> None:
        """Tell `watcher` of all entries whose key begins with the byte `prefix`, and `many` of
        more than `Limits.listing_changes` of those in one moment."""
        self._watchers.setdefault(prefix, []).append(watcher)
        if many is not None:
            self._many[prefix] = many

    def post(self, key: bytes, value: bytes = b"") -> None:
        """Put an entry into this broker's listing.

        Raises:
            ValueError: it is beyond the listing's limits.
        """
        database, limits = self.database, self._limits
        full = database.own_entries >= limits.listing_entries - limits.listing_reserved
        if full and key[:1] in (CLIENT, GROUP) and database.own_entry(key) is None:
            raise ValueError("too many sessions and shared subscriptions for a listing")
        self.database.post(key, value)
        self._hurry()

    def post_now(self, key: bytes, value: bytes) -> None:
        """Put a last entry into this broker's listing, which does not wait for others."""
        self.post(key, value)
        self._tell_at = self._node.now

    def withdraw(self, key: bytes) -> None:
        """Take an entry out of this broker's listing."""
        self.database.withdraw(key)
        self._hurry()

    def _hurry(self) -> None:
        if not self._posted:
            self._posted = True
            self._alarm.hurry(self._tell_at)

    def name_of(self, broker_id: bytes) -> str:
        """Return the name that a broker posted, "" for one that is unknown."""
        return (self.database.entry(broker_id, NAME) or b"").decode(errors="replace")

    def link_to(self, broker_id: bytes) -> Link | None:
        """Return the link that leads to a broker."""
        via = self.database.via(broker_id)
        return None if via is None else self._links.get(via)

    def may_tell(self, now: float) -> bool:
        """Whether entries were posted that can be sent to neighbours now."""
        return self._posted and now >= self._tell_at and not self._settling

    def settle_again(self, *, at_once: bool) -> None:
        """Have `settle` dispatch its events, though no entry has changed: a message to one broker
        has been queued. `at_once`: it does not wait for the next PINGREQ."""
        self._changed = True
        if at_once:
            self._alarm.hurry(self._node.now)

    # ---------------------------------------------------------------- links

    @property
    def has_unsent_entries(self) -> bool:
        """Whether entries were posted that have not been sent to the neighbours."""
        return self._posted

    def on_link_forwards(self, event: LinkForwards) -> None:
        """Begin to use a link for directory entries as the tree lets it forward, or stop."""
        self._set_forwarding(event.link, event.forwarding)

    def on_link_down(self, event: LinkDown) -> None:
        """Stop using a link that is gone: the brokers behind it cannot be reached over it."""
        self._set_forwarding(event.link, False)

    def _set_forwarding(self, link: Link, forwarding: bool) -> None:
        peer = link.peer
        if peer is None:
            return
        if forwarding:
            self._links[peer.id] = link
            self.database.neighbour_up(peer.id)
        elif self._links.get(peer.id) is link:
            del self._links[peer.id]
            self.database.neighbour_down(peer.id)
            self._events.dispatch(LinkLeftTree(link, self._node.now))
        self._changed = True

    def ready(self, link: Link) -> None:
        """Post a link whose neighbour is about to get the messages of the tree: the brokers behind
        it can be reached."""
        if link.peer is not None and self._links.get(link.peer.id) is link:
            self.database.neighbour_ready(link.peer.id)
            self._changed = True

    def complete(self, link: Link) -> bool:
        """Whether the brokers behind this link and their filters are known, or would be if the link
        were part of the tree."""
        return link.peer is not None and self.database.complete(link.peer.id)

    def named(self, link: Link) -> bool:
        """Whether this broker has posted that the link is part of the tree."""
        return link.peer is not None and self.database.ready(link.peer.id)

    def knows(self, link: Link) -> bool:
        """Whether the brokers behind this link and their filters are known."""
        return self.complete(link) and self.named(link)

    def tick(self, now: float) -> None:
        """Send neighbours digests of the directory, every DIGEST_INTERVAL_S s; `now`: s."""
        if now >= self._next_check:
            self._next_check = now + DIGEST_INTERVAL_S
            for peer in self._links:
                self.database.check(peer)
            self._changed = True

    def next_deadline(self) -> float | None:
        """When `settle` is due (s); None: it is not."""
        return self._tell_at if self._posted else None

    def settle(self, now: float) -> bool:
        """Tell neighbours and watchers what is new at `now` (s). Returns False if nothing is."""
        database = self.database
        if self._posted and now >= self._tell_at:
            self._posted = False
            self._tell_at = max(self._tell_at, now - AT_ONCE * POST_INTERVAL) + POST_INTERVAL
            database.flush()
            self._changed = True
        if not self._changed:
            return False
        self._changed = False
        self._settling = True
        busy = False
        for event in database.take_events():
            busy = True
            match event:
                case Posted(broker_id, changes):
                    self._tell(broker_id, changes)
                case BrokerReachable(broker_id, via):
                    self._tell(broker_id, list(database.listings[broker_id].entries.items()))
                    self._events.dispatch(RouteChanged(broker_id, via))
                case BrokerRerouted(broker_id, via):
                    self._events.dispatch(RouteChanged(broker_id, via))
                case BrokerUnreachable(broker_id, keys):
                    self._events.dispatch(MemberGone(broker_id, keys))
                    self._tell(broker_id, list(zip(keys, repeat(None))), gone=True)
                    self._events.dispatch(RouteChanged(broker_id, None))
        self._settling = False
        self._events.dispatch(EntriesHandled(now))
        for peer, message in database.take_messages(self._room):
            link = self._links.get(peer)
            if link is not None and link.up:
                link.add_record(DIRECTORY, message)
                if message[0] == LISTING:
                    link.listings.left -= len(message)
                busy = True
        if database.busy and not self._resuming:
            self._resuming = True
            self._node.timers.schedule(now + POST_INTERVAL, self._resume)
        if database.refused != self._node.counters.link_state_refused:
            self._node.counters.link_state_refused = database.refused
            text = (
                f"the link state of other brokers takes {database.memory >> 20} MiB, the limit; "
                "further brokers are refused"
            )
            self._node.log_limit.line("warning", "link state is full", "other brokers", text)
        self._events.dispatch(EntriesSent(now, whole=not self._posted))
        return busy

    def _room(self, peer: bytes) -> bool:
        """Whether a neighbour may be sent more of the listings that it has asked for: its queue has
        room, and it has not had too many."""
        link = self._links.get(peer)
        if link is None:
            return True
        link.listings.earn(self._node.now)
        return link.listings.left > 0 and link.conn.backlog_bytes < self._limits.pieces_backlog

    def _resume(self, now: float) -> None:
        """Send more of the listings that were asked for."""
        self._resuming = False
        self._changed = True
        self._alarm.hurry(now)

    def _tell(self, broker_id: bytes, changes: Changes, *, gone: bool = False) -> None:
        if len(changes) > self._limits.listing_changes:
            changes = self._tell_many(broker_id, changes, gone)
        watchers = self._watchers
        for key, value in changes:
            for watcher in watchers.get(key[:1], ()):
                watcher(broker_id, key[1:], value, gone)

    def _tell_many(self, broker_id: bytes, changes: Changes, gone: bool) -> Changes:
        """Tell watchers of entries that are handled in steps. Returns the others."""
        parts: dict[bytes, Changes] = {prefix: [] for prefix in self._many}
        rest: Changes = []
        find = parts.get
        for change in changes:
            find(change[0][:1], rest).append(change)
        for prefix, part in parts.items():
            if part:
                self._many[prefix](broker_id, part, gone)
        return rest

    def _defer_sessions(self, broker_id: bytes, changes: Changes, gone: bool) -> None:
        if broker_id not in self._deferred:
            self._deferred[broker_id] = {}
            self._node.timers.schedule(
                self._node.now + POST_INTERVAL, lambda now: self._handle_deferred(broker_id)
            )
        self._deferred[broker_id].update(zip(map(itemgetter(0), changes), repeat(gone)))

    def _handle_deferred(self, broker_id: bytes) -> None:
        """Handle some sessions that a broker posted, or that are gone with it, as they are now."""
        deferred, listing = self._deferred[broker_id], self.database.listings.get(broker_id)
        entries = listing.entries if listing is not None and listing.via is not None else {}
        for _ in range(min(self._limits.listing_sessions, len(deferred))):
            key, gone = deferred.popitem()
            for watcher in self._watchers.get(CLIENT, ()):
                watcher(broker_id, key[1:], entries.get(key), gone)
        if deferred:
            self._node.timers.schedule(
                self._node.now + POST_INTERVAL, lambda now: self._handle_deferred(broker_id)
            )
        else:
            del self._deferred[broker_id]

    def is_deferred(self, key: bytes) -> bool:
        """Whether a broker has posted the session with this key together with very many others, so
        that it is still to be handled."""
        return any(key in keys for keys in self._deferred.values())

    # ---------------------------------------------------------------- records

    def _directory_received(self, link: Link, body: bytes, now: float) -> None:
        if link.peer is None or not link.up:
            return
        self._links.setdefault(link.peer.id, link)
        if self._links[link.peer.id] is not link:
            return
        try:
            self.database.received(link.peer.id, body)
        except DirectoryError as error:
            raise MalformedPacket(f"directory: {error}") from None
        self._changed = True
        # A message behind this one takes the new paths already: they are announced ahead of it.
        self.settle(now)
