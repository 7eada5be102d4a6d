"""Retained synchronisation: the last write of a topic wins on every broker, even on those that were
away when it was published.

A retained PUBLISH carries the time of its writing (`Stamp`, hybrid clock), and is flooded to all
brokers. A broker may still miss some: it joined later, or was cut off for longer than logs last. So
neighbours compare hash trees (`retained_index`) when their link becomes live, and once a
minute: DIGEST, and where it differs PARTS, LIST and FETCH. These are sent behind the messages, so
that messages under way are not taken for missing. Then the retained messages follow, marked as
restored; a broker that did not have one passes it on over the tree. So whole partitions merge, in
steps small enough for clients not to notice.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from broker.base import costs
from broker.base.hybrid_clock import END, LOGICAL, HybridClock
from broker.cluster.delivery.replay_log import LogEntry
from broker.cluster.link.codec import encode_for_links, encode_link_publish, remaining, split_key
from broker.cluster.link.control_records import DIGEST, FETCH, LIST, PARTS
from broker.core.message import Message, Stamp
from broker.core.retained_index import PLACE, RetainedVersion, place_of
from broker.core.retained_store import Change
from broker.wire.errors import MalformedPacket
from broker.wire.strings import shorten

if TYPE_CHECKING:
    from broker.cluster.delivery.forwarder import Forwarder
    from broker.cluster.delivery.gap_recovery import GapRecovery
    from broker.cluster.link.link import Handler, Link
    from broker.cluster.sessions.delivered_ranges import DeliveredRanges
    from broker.cluster.sessions.session_history import SessionHistory
    from broker.core.connection import Connection
    from broker.core.local_broker import LocalBroker

ENTRY = PLACE + 31
"""bytes of a topic in a LIST: place, time, origin, expiry, whether it is a tombstone."""

MAX_LIST = 65_536
"""bytes of a LIST that are accepted; this broker sends `retained_records` and one leaf at most."""

FULL = 0x80
"""In the first byte of a section: its sender has no room for topics that it lacks."""

BUSY = 0.05
"""s until a link with queued messages is tried again: those go first."""

MISSED = 1.0
"""s until a comparison with a neighbour to which a message could not be passed on."""


class Comparison:
    """The comparison with one neighbour in the tree: what is to be sent to it."""

    __slots__ = (
        "again",
        "armed",
        "brings",
        "jobs",
        "link",
        "number",
        "places",
        "queued",
        "sent",
        "since",
        "taken",
    )

    def __init__(self, link: Link, now: float) -> None:
        self.link = link
        # (PARTS, LIST or FETCH to send, or 0: the messages; prefix).
        self.jobs: deque[tuple[int, bytes]] = deque()
        self.queued: set[tuple[int, bytes]] = set()  # the same
        self.places: deque[bytes] = deque()  # of messages to send
        self.armed = False
        self.again = False  # a message was not passed on: compare again
        self.sent = 0  # messages since
        self.since = now
        # Of the last step with messages, and of the last one that the neighbour has handled.
        self.number = self.taken = 0
        self.brings = float("-inf")  # s, when the neighbour sent a message last because it compared


class RetainedSync:
    """Stamps, takes and compares retained messages."""

    def __init__(
        self,
        node: LocalBroker,
        own_id: bytes,
        *,
        clock: HybridClock,
        forwarder: Forwarder,
        gap_recovery: GapRecovery,
        delivered_ranges: DeliveredRanges,
        history: SessionHistory,
        now: float,
    ) -> None:
        """`node`: this broker, with the id `own_id`; `clock`: makes the stamps of writes;
        `forwarder`: numbers and passes on messages; `gap_recovery`: holds messages back until older
        ones have come; `delivered_ranges`: delivers to sessions that lack a message; `history`:
        notes what sessions got; `now`: s."""
        self.node = node
        self._limits = node.limits
        self.store = node.retained
        self.clock = clock
        self._own = own_id
        self._forwarder = forwarder
        self._gap_recovery = gap_recovery
        self._delivered_ranges = delivered_ranges
        self._history = history
        self.records: dict[int, Handler] = {
            DIGEST: self.digest_received,
            PARTS: self.parts_received,
            LIST: self.list_received,
            FETCH: self.fetch_received,
        }
        self._comparisons: dict[Link, Comparison] = {}
        self._restored = float("-inf")  # s, when something was taken last
        self._sweeping = False
        self._check_at = now + node.limits.retained_check

    # ---------------------------------------------------------------- writes

    def written(self, message: Message, source: Connection | None, *, tell: bool = True) -> None:
        """Stamp and keep a retained `message` that is published here; those that begin with `$`
        stay here. `source`: its publisher, which is answered once that is durable. `tell`: plugins,
        too."""
        node = self.node
        if message.topic[:1] == b"$":
            if (
                node.config.retain_available
                and self.store.store(message.topic.decode(), kept(message))
                and tell
            ):
                node.retain(message)
            return
        message.stamp = self.stamp_for(message)
        self._take(message, self._forwarder.key, 0, node.now, source, tell)

    def put(self, message: Message) -> None:
        """Keep or delete a retained message without publishing it: subscribers here get nothing,
        and plugins do not hear of it."""
        self.written(message, None, tell=False)
        version = self.store.digests.get(place_of(message.topic))
        if version is not None and message.topic[:1] != b"$":
            self._pass_on(None, self._encode(version, self.node.now), self.node.now)

    def stamp_for(self, message: Message) -> Stamp:
        """Return the stamp of what is published now; it wins over what is known of its topic."""
        now = self.node.now
        version = self.store.digests.get(place_of(message.topic))
        time = self.clock.tick(now, 0 if version is None else version.time)
        expires_at_ms = 0 if message.payload else time >> LOGICAL
        if message.payload and message.expires_at is not None:
            expires_at_ms = (time >> LOGICAL) + max(0, round((message.expires_at - now) * 1000))
        return Stamp(time, expires_at_ms)

    def numbered(self, message: Message, sequence: int) -> None:
        """Note the number of a message that is flooded: by it copies of it are known."""
        version = self.store.digests.get(place_of(message.topic))
        if version is not None and version.time == message.stamp.time:
            version.sequence = sequence
            self.store.digests.put(version)
            self.node.journal.retained_changed(version)

    def received(
        self, message: Message, key: bytes, sequence: int, now: float, source: Connection | None
    ) -> bool:
        """Take a retained `message` that was published or forwarded just now; returns whether it is
        new to local subscribers.

        `key`, `sequence`: its origin and its number there; `now`: s; `source`: the link that it
        came on.
        """
        return self._take(message, key, sequence, now, source) is Change.NEW

    def _take(
        self,
        message: Message,
        key: bytes,
        sequence: int,
        now: float,
        source: Connection | None,
        tell: bool = True,
    ) -> Change:
        node = self.node
        stamp = message.stamp
        if not self.clock.merge(stamp.time, now):
            node.counters.retained_clock_ahead += 1
        if not node.config.retain_available:
            return Change.OLD
        node.turns.work += costs.RETAINED_WORK
        topic = message.topic
        version = RetainedVersion(
            topic, place_of(topic), stamp.time, key, sequence, stamp.expires_at_ms, message.qos
        )
        change = self.store.write(kept(message), version, now, self.clock.physical(now))
        if change >= Change.DROPPED:
            node.journal.retained_changed(version)
            node.journal.require(source)
        if change >= Change.TAKEN and tell:
            node.retain(message)
        elif change in (Change.REFUSED, Change.DROPPED):
            self._refused(message, change is Change.DROPPED, tell)
        return change

    def _refused(self, message: Message, dropped: bool, tell: bool) -> None:
        """Log that there was no room for a message, and tell plugins if the message that its topic
        had is deleted."""
        node, topic = self.node, message.topic
        text = (
            f"message of {len(message.payload):,} bytes for topic {shorten(topic.decode())} "
            "is not retained"
        )
        if dropped:
            text += ", and the retained message that the topic had is deleted"
        if dropped and tell:
            node.retain(Message(topic, b"", 0, True, b"", None, None))
        node.log_limit.line(
            "warning", "not retained", "this broker", f"{text}: {self.store.reached} reached"
        )

    def restored(
        self, link: Link, message: Message, key: bytes, sequence: int, data: bytes, now: float
    ) -> None:
        """Take a retained `message` that a comparison brought over `link`, as the bytes `data`.
        `key`, `sequence`: its origin and number; `now`: s.

        If it wins here, it is passed on over the tree. Local subscribers get it as an ordinary
        message, unless it has been here before: they would never get it otherwise. They do not get
        an expired one, or the deletion of a message that was not here.

        Raises:
            MalformedPacket: its origin is invalid.
        """
        if message.topic[:1] == b"$":
            return
        forwarder = self._forwarder
        window = forwarder.vector.get(key)
        if window is None:
            split_key(key)
        if (comparison := self._comparisons.get(link)) is not None:
            comparison.brings = now
        change = self._take(message, key, sequence, now, None)
        if change < Change.DROPPED:
            return
        self.node.counters.retained_restored += 1
        self._restored = now
        gone = message.expired(now) or (
            not message.payload and message.stamp.expires_at_ms != message.stamp.time >> LOGICAL
        )
        fresh = True
        if window is not None and not window.for_local_subscribers(sequence):
            # It is from before this broker met its origin: if it still arrives over a link, it is
            # passed on to others only.
            pass
        elif sequence and message.stamp.time >> LOGICAL > self._oldest(now):
            new = forwarder.accept(key, sequence, 1, now)
            fresh = bool(new) or (window is not None and sequence <= window.begin)
            if new and not gone:
                # If it still arrives over a link, it is not passed on: neighbours that lack it ask
                # this broker.
                message.stamp = message.stamp._replace(restored=False)
                entry = LogEntry(
                    key, sequence, encode_for_links(message, key, sequence, now), message, now
                )
                forwarder.log.append(entry, None)
                feed = forwarder.vector[key].feed
                if feed is not None and feed.holds(sequence):
                    self._gap_recovery.hold(feed, entry)
                    fresh = False
                else:
                    fresh = True
        elif sequence and window is not None:
            # No log has it any more: no broker asks for it by its number.
            fresh = sequence <= window.begin or window.missing(sequence)
        self._pass_on(link, data, now)
        if fresh and change is not Change.TAKEN and not gone:
            if self.node.sessions:
                self._history.brought(key, sequence, message)
            self._delivered_ranges.restored(key, sequence, message)

    def _oldest(self, now: float) -> float:
        """Return the time (ms since the epoch) up to which messages are in no log any more,
        whatever the clocks say."""
        age = self._limits.log_age + self._limits.clock_ahead
        return self.clock.physical(now) - age * 1000

    def _pass_on(self, source: Link | None, data: bytes, now: float) -> None:
        """Pass on a message that was missing here: neighbours may lack it, too. A neighbour with a
        long queue, or one that is sending the same messages, is compared with later instead."""
        for link in self._forwarder.live_links:
            if link is source:
                continue
            known = self._comparisons.get(link)
            if (
                link.conn.backlog
                or link.conn.paused
                or (known is not None and known.brings + MISSED > now)
            ):
                comparison = self._comparison(link, now)
                comparison.again = True
                self._arm(comparison, now + MISSED)
            else:
                self._send(link, data)

    def _send(self, link: Link, data: bytes) -> None:
        link.conn.send(data)
        self.node.counters.retained_sent += 1
        self.node.counters.link_bytes_data += len(data)

    # ---------------------------------------------------------------- links

    def entered(self, link: Link) -> None:
        """Begin a comparison on a link that has become live: the neighbour has had all
        messages that the log has.

        Links outside of the tree need no comparison: the brokers behind them are reached over the
        tree, too.
        """
        if self.node.config.retain_available:
            self._tell(self._comparison(link, self.node.now))

    def left(self, link: Link) -> None:
        """Stop the comparison on a link that is not live any more."""
        self._comparisons.pop(link, None)

    def tick(self, now: float) -> None:
        """Forget comparisons that are over, and begin one with each neighbour once a minute."""
        if not self._sweeping:
            self._sweep(now)
        if self._check_at <= now:
            self._check_at = now + self._limits.retained_check
            for link in self._forwarder.live_links:
                comparison = self._comparison(link, now)
                if (
                    not (comparison.jobs or comparison.places or link.conn.backlog)
                    and self.node.config.retain_available
                ):
                    self._tell(comparison)

    def _sweep(self, now: float) -> None:
        """Forget expired messages, in as many turns as it takes."""
        self._sweeping = self.store.sweep(now, self.clock.physical(now))
        if self._sweeping:
            self.node.turns.work += self._limits.turn_work // 2
            self.node.turns.later(self._sweep)

    def _comparison(self, link: Link, now: float) -> Comparison:
        comparison = self._comparisons.get(link)
        if comparison is None:
            comparison = self._comparisons[link] = Comparison(link, now)
        return comparison

    def _tell(self, comparison: Comparison) -> None:
        comparison.link.send_behind(DIGEST, self.store.digests.whole.to_bytes(8, "big"))

    # ---------------------------------------------------------------- records

    def _comparing(self, link: Link, now: float) -> Comparison | None:
        return (
            self._comparison(link, now) if link.live and self.node.config.retain_available else None
        )

    def digest_received(self, link: Link, body: bytes, now: float) -> None:
        """Take DIGEST (`body`), the digest of a neighbour's whole table, which came over `link`;
        `now`: s. If it differs from the one here, the broker with the lower id begins to
        compare."""
        comparison = self._comparing(link, now)
        if comparison is None or int.from_bytes(body, "big") == self.store.digests.whole:
            return  # the link is not live here yet; the neighbour gets the digest when it is
        assert link.peer is not None
        if self._own < link.peer.id:
            if comparison.jobs or comparison.places:
                comparison.again = True
            else:
                self._plan(comparison, PARTS, b"")
            self._arm(comparison, now)
        else:
            self._tell(comparison)

    def parts_received(self, link: Link, body: bytes, now: float) -> None:
        """Take PARTS (`body`), digests of parts of a neighbour's table, which came over `link`, and
        go on with those that differ; `now`: s.

        Raises:
            MalformedPacket: it is invalid.
        """
        parts = decode_parts(body)
        comparison = self._comparing(link, now)
        if comparison is None:
            return
        digests = self.store.digests
        for full, prefix, theirs in parts:
            for index in range(256):
                where = prefix + bytes((index,))
                mine, other = digests.digest(where), theirs.get(index, 0)
                if mine and other and mine != other:
                    self._plan(comparison, LIST if prefix else PARTS, where)
                elif mine and not other and not full:
                    self._plan(comparison, 0, where)
                elif other and not mine and not self._full(now):
                    self._plan(comparison, FETCH, where)
        self._arm(comparison, now)

    def list_received(self, link: Link, body: bytes, now: float) -> None:
        """Take LIST (`body`), leaves of a neighbour's table, which came over `link`: send the
        messages that are newer here, ask for those that are newer there. `now`: s.

        Raises:
            MalformedPacket: it is invalid.
        """
        leaves = decode_list(body)
        comparison = self._comparing(link, now)
        if comparison is None:
            return
        wall = self.clock.physical(now)
        for full, prefix, theirs in leaves:
            for version in self.store.digests.versions(prefix):
                other = theirs.get(version.place)
                full_there = full and (other is None or (other.tombstone and not version.tombstone))
                if not full_there and (other is None or other.before(version.time, version.key)):
                    comparison.places.append(version.place)
            for place, other in theirs.items():
                known = self.store.digests.get(place)
                if known is None:
                    wanted = (
                        self.store.remembers(other.expires_at_ms, wall)
                        if other.tombstone
                        else not self._full(now)
                    )
                else:
                    wanted = known.before(other.time, other.key) and not (
                        known.tombstone and not other.tombstone and self._full(now)
                    )
                if wanted:
                    self._plan(comparison, FETCH, place)
        self._arm(comparison, now)

    def fetch_received(self, link: Link, body: bytes, now: float) -> None:
        """Take FETCH (`body`), a neighbour's request over `link` for messages at places, or for all
        in parts or leaves. `now`: s.

        Raises:
            MalformedPacket: it is invalid.
        """
        comparison = self._comparing(link, now)
        at = 0
        while at < len(body):
            size = body[at]
            where = body[at + 1 : at + 1 + size]
            at += 1 + size
            if size not in (1, 2, PLACE) or len(where) != size:
                raise MalformedPacket("FETCH record is truncated, or with an invalid size")
            if comparison is not None:
                if size == PLACE:
                    comparison.places.append(where)
                else:
                    self._plan(comparison, 0, where)
        if comparison is not None:
            self._arm(comparison, now)

    def _full(self, now: float) -> bool:
        return now < self.store.refused_at + self._limits.retained_again

    # ---------------------------------------------------------------- step by step

    def _plan(self, comparison: Comparison, kind: int, where: bytes) -> None:
        job = (kind, where)
        if job in comparison.queued:
            return
        if len(comparison.queued) >= self._limits.retained_jobs:
            self.node.counters.retained_dropped += 1
            return
        comparison.queued.add(job)
        comparison.jobs.append(job)

    def _arm(self, comparison: Comparison, when: float) -> None:
        if not comparison.armed:
            comparison.armed = True
            self.node.schedule(when, lambda now: self._step(comparison, now))

    def _step(self, comparison: Comparison, now: float) -> None:
        """Send a little of what is planned; go on a little later."""
        comparison.armed = False
        link = comparison.link
        if self._comparisons.get(link) is not comparison:
            return
        if comparison.since + self._limits.retained_check <= now:
            comparison.since = now
            comparison.sent = 0
        if (
            len(comparison.places) > self._limits.max_retained
            or comparison.sent > 2 * len(self.store.digests) + 1000
        ):
            self.node.counters.retained_dropped += 1  # the neighbour asks for the same repeatedly
            comparison.places.clear()
            comparison.jobs.clear()
            comparison.queued.clear()
            return
        if comparison.number - comparison.taken >= self._limits.retained_steps:
            return  # `marked` goes on
        if link.conn.backlog or link.conn.paused:
            self._arm(comparison, now + BUSY)
            return
        sent = comparison.sent
        items, size = self._limits.retained_items, self._limits.retained_bytes
        bodies = {PARTS: bytearray(), LIST: bytearray(), FETCH: bytearray()}
        records = 0
        while items > 0 and size > 0 and records < self._limits.retained_records:
            if comparison.places:
                items -= 1
                size -= self._send_place(comparison, comparison.places.popleft(), now)
            elif comparison.jobs:
                kind, where = job = comparison.jobs.popleft()
                comparison.queued.discard(job)
                if kind == LIST and self.store.digests.count(where) > self._limits.retained_listed:
                    kind = 0
                if kind:
                    section = self._section(kind, where, now)
                    bodies[kind] += section
                    records += len(section)
                else:
                    comparison.places.extend(self.store.digests.places(where))
            else:
                break
        for kind, body in bodies.items():
            if body:
                link.send_behind(kind, bytes(body))
        if comparison.sent > sent:
            comparison.number += 1
            link.send_mark(comparison.number)
        if comparison.jobs or comparison.places:
            self._arm(
                comparison, now + self._limits.retained_pace * (2 if any(bodies.values()) else 1)
            )
        elif comparison.again and self._restored + MISSED > now:
            self._arm(comparison, now + MISSED)
        elif comparison.again:
            comparison.again = False
            self._tell(comparison)

    def marked(self, link: Link, number: int, now: float) -> None:
        """Note that the neighbour at the end of `link` has handled all messages up to the step
        `number`; `now`: s."""
        comparison = self._comparisons.get(link)
        if comparison is not None and comparison.taken < number <= comparison.number:
            comparison.taken = number
            if comparison.jobs or comparison.places:
                self._arm(comparison, now)

    def _send_place(self, comparison: Comparison, place: bytes, now: float) -> int:
        """Send the message at a place, or its tombstone; returns its size in bytes."""
        comparison.sent += 1
        version = self.store.digests.get(place)
        if version is None:
            return 0
        data = self._encode(version, now)
        self._send(comparison.link, data)
        return len(data)

    def _encode(self, version: RetainedVersion, now: float) -> bytes:
        """Encode a version as a restored message."""
        message = self.store.message_of(version, now)
        stamp = Stamp(version.time, version.expires_at_ms, True)
        if message is None:
            return encode_link_publish(
                version.topic,
                b"",
                version.qos,
                True,
                b"",
                None,
                version.key,
                version.sequence,
                stamp,
            )
        return encode_link_publish(
            version.topic,
            message.payload,
            message.qos,
            True,
            message.properties,
            remaining(message, now),
            version.key,
            version.sequence,
            stamp,
        )

    def _section(self, kind: int, where: bytes, now: float) -> bytes:
        """Encode one job as a part of a record."""
        digests = self.store.digests
        if kind == FETCH:
            return bytes((len(where),)) + where
        head = bytes((len(where) | (FULL if self._full(now) else 0),)) + where
        if kind == LIST:
            versions = digests.versions(where)
            return (
                head
                + len(versions).to_bytes(2, "big")
                + b"".join(encode_entry(version) for version in versions)
            )
        found = [(index, digests.digest(where + bytes((index,)))) for index in range(256)]
        there = sum(1 << index for index, digest in found if digest)
        return (
            head
            + there.to_bytes(32, "big")
            + b"".join(digest.to_bytes(8, "big") for _, digest in found if digest)
        )


def kept(message: Message) -> Message:
    """Return a message as the store keeps it."""
    return Message(
        message.topic,
        message.payload,
        message.qos,
        True,
        message.properties,
        message.expires_at,
        None,
    )


def encode_entry(version: RetainedVersion) -> bytes:
    """Encode a topic for a LIST."""
    return b"".join(
        (
            version.place,
            version.time.to_bytes(8, "big"),
            version.key,
            version.expires_at_ms.to_bytes(6, "big"),
            bytes((version.tombstone,)),
        )
    )


def decode_parts(data: bytes) -> list[tuple[bool, bytes, dict[int, int]]]:
    """Decode PARTS: (whether its sender is full, prefix, index -> digest) of each.

    Raises:
        MalformedPacket: truncated, or the prefix has no parts.
    """
    found = []
    at = 0
    while at < len(data):
        size = data[at] & ~FULL
        begin = at + 1 + size
        if size > 1 or begin + 32 > len(data):
            raise MalformedPacket("PARTS record is truncated, or with an invalid prefix")
        there = int.from_bytes(data[begin : begin + 32], "big")
        end = begin + 32 + 8 * there.bit_count()
        if end > len(data):
            raise MalformedPacket("PARTS record is truncated")
        digests = {}
        value = begin + 32
        for index in range(256):
            if there >> index & 1:
                digests[index] = int.from_bytes(data[value : value + 8], "big")
                value += 8
        found.append((bool(data[at] & FULL), data[at + 1 : begin], digests))
        at = end
    return found


def decode_list(data: bytes) -> list[tuple[bool, bytes, dict[bytes, RetainedVersion]]]:
    """Decode a LIST: (whether its sender is full, prefix, place -> version without a topic) of each
    leaf.

    Raises:
        MalformedPacket: truncated, too large, or a topic that is not in its leaf.
    """
    if len(data) > MAX_LIST:
        raise MalformedPacket("LIST record is too large")
    found: dict[bytes, tuple[bool, bytes, dict[bytes, RetainedVersion]]] = {}
    at = 0
    while at < len(data):
        prefix = data[at + 1 : at + 3]
        begin = at + 5
        end = begin + ENTRY * int.from_bytes(data[at + 3 : begin], "big")
        if data[at] & ~FULL != 2 or begin > len(data) or end > len(data) or prefix in found:
            raise MalformedPacket("LIST record is truncated, or with an invalid prefix")
        versions = {}
        for entry in range(begin, end, ENTRY):
            place = data[entry : entry + PLACE]
            time = int.from_bytes(data[entry + PLACE : entry + PLACE + 8], "big")
            if place[:2] != prefix or time >= END:
                raise MalformedPacket("LIST record with a place or a time out of range")
            expires_at_ms = int.from_bytes(data[entry + PLACE + 24 : entry + PLACE + 30], "big")
            version = versions[place] = RetainedVersion(
                b"", place, time, data[entry + PLACE + 8 : entry + PLACE + 24], 0, expires_at_ms, 0
            )
            version.tombstone = bool(data[entry + ENTRY - 1])
        found[prefix] = (bool(data[at] & FULL), prefix, versions)
        at = end
    return list(found.values())
