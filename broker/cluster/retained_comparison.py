"""Neighbours compare their retained messages and send each other what is newer (anti-entropy).

They compare hash trees (`retained_index`) when their link becomes live, and once a minute: DIGEST,
and where it differs PARTS, LIST and FETCH. These are sent behind the messages, so that messages
under way are not taken for missing. Then the retained messages follow, marked as restored; a broker
that did not have one passes it on over the tree. So whole partitions merge, in steps small enough
for clients not to notice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mqttree.broker.base.hybrid_clock import END, HybridClock
from mqttree.broker.cluster.link.control_records import DIGEST, FETCH, LIST, PARTS
from mqttree.broker.cluster.link.message_batch import encode_message
from mqttree.broker.core.message import Message, Stamp
from mqttree.broker.core.retained_index import PLACE, RetainedVersion
from mqttree.broker.wire.errors import MalformedPacket

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.forwarder import Forwarder
    from mqttree.broker.cluster.link.link import Handler, Link
    from mqttree.broker.cluster.ports import MemberBroker

STEP_INTERVAL_S = 0.005
"""s between two steps of a comparison with one neighbour, twice as much behind one with records."""

STEP_MESSAGES = 200
STEP_BYTES = 256 * 1024
STEP_RECORD_BYTES = 2048
"""What one step sends: messages, bytes of these, bytes of records. A step is some ms of work for
either broker, so that clients hardly wait for it; records stay below half of the neighbour's
`link_requests_per_second`."""

MAX_STEPS_UNDER_WAY = 2
"""steps with messages that are on their way: the next one waits until the neighbour has handled
all but one of them. One that is slow, or serves much else, has no more of them to handle in one
go."""

MAX_JOBS = 70_000
"""parts of the table of retained messages that wait to be compared with one neighbour: there
are 65,792, and each waits once; no more are noted [retained_dropped]. The next comparison finds
what is left."""

REFUSED_PAUSE_S = 600.0
"""s; a broker that had no room for a retained message of a neighbour asks for nothing more for
so long: it would be refused again."""

ENTRY = PLACE + 31
"""bytes of a topic in a LIST: place, time, origin, expiry, whether it is a tombstone."""

MAX_LIST = 65_536
"""bytes of a LIST that are accepted; this broker sends `STEP_RECORD_BYTES` and one leaf at most."""

FULL = 0x80
"""In the first byte of a section: its sender has no room for topics that it lacks."""

BUSY_S = 0.05
"""s until a link with queued messages is tried again: those go first."""

MISSED_S = 1.0
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


class RetainedComparison:
    """The comparisons with all neighbours."""

    def __init__(
        self,
        node: MemberBroker,
        *,
        clock: HybridClock,
        forwarder: Forwarder,
        now: float,
    ) -> None:
        """`node`: this broker; `clock`: of the stamps of writes; `forwarder`:
        knows the live links; `now`: s."""
        self._node = node
        self._limits = node.limits
        self._store = node.retained
        self._digests = self._store.digests
        self._clock = clock
        self._own = node.config.id
        self._forwarder = forwarder
        self.records: dict[int, Handler] = {
            DIGEST: self.digest_received,
            PARTS: self.parts_received,
            LIST: self.list_received,
            FETCH: self.fetch_received,
        }
        """What takes each record."""
        self._comparisons: dict[Link, Comparison] = {}
        self._restored = float("-inf")  # s, when something was taken last
        self._check_at = now + node.limits.retained_check_s

    def entered(self, link: Link) -> None:
        """Begin a comparison on a link that has become live: the neighbour has had all
        messages that the log has.

        Links outside of the tree need no comparison: the brokers behind them are reached over the
        tree, too.
        """
        if self._node.config.retain_available:
            self._tell(self._comparison(link, self._node.now))

    def left(self, link: Link) -> None:
        """Stop the comparison on a link that is not live any more."""
        self._comparisons.pop(link, None)

    def tick(self, now: float) -> None:
        """Begin a comparison with each neighbour once a minute; `now`: s."""
        if self._check_at <= now:
            self._check_at = now + self._limits.retained_check_s
            for link in self._forwarder.live_links:
                comparison = self._comparison(link, now)
                if (
                    not (comparison.jobs or comparison.places or link.conn.backlog)
                    and self._node.config.retain_available
                ):
                    self._tell(comparison)

    def brought(self, link: Link, now: float) -> None:
        """Note at `now` (s) that a neighbour sends messages because it compares, too."""
        if (comparison := self._comparisons.get(link)) is not None:
            comparison.brings = now

    def taken(self, now: float) -> None:
        """Note at `now` (s) that a message was missing here: more may come."""
        self._restored = now

    def bringing(self, now: float) -> bool:
        """Return whether messages that were missing here still come at `now` (s)."""
        return now < self._restored + MISSED_S

    def pass_on(
        self, source: Link | None, data: bytes, now: float, paths: Sequence[Link] = ()
    ) -> None:
        """Pass on a message, as the bytes `data`, that was missing here: neighbours may lack it,
        too. A neighbour with a long queue, or one that is sending the same messages, is compared
        with later instead. `source`: the link that it came on, None: it was written here; `now`:
        s; `paths`: the links that it would have taken from here as it was published."""
        for link in paths:
            if link is not source and link not in self._forwarder.live_links:
                self._send(link, data)
        for link in self._forwarder.live_links:
            if link is source:
                continue
            known = self._comparisons.get(link)
            if (
                link.conn.backlog
                or link.conn.paused
                or (known is not None and known.brings + MISSED_S > now)
            ):
                self._compare_later(link, now)
            else:
                self._send(link, data)

    def kept(self, now: float) -> None:
        """Compare with all neighbours soon: a message has come to this broker alone, and they may
        lack it, too. `now`: s."""
        self.taken(now)
        for link in self._forwarder.live_links:
            self._compare_later(link, now)

    def _compare_later(self, link: Link, now: float) -> None:
        comparison = self._comparison(link, now)
        comparison.again = True
        self._arm(comparison, now + MISSED_S)

    def _send(self, link: Link, data: bytes) -> None:
        link.conn.send(data)
        self._node.counters.retained_sent += 1
        self._node.counters.link_bytes_data += len(data)

    def _comparison(self, link: Link, now: float) -> Comparison:
        comparison = self._comparisons.get(link)
        if comparison is None:
            comparison = self._comparisons[link] = Comparison(link, now)
        return comparison

    def _tell(self, comparison: Comparison) -> None:
        comparison.link.send_behind(DIGEST, self._digests.whole.to_bytes(8, "big"))

    # ---------------------------------------------------------------- records

    def _comparing(self, link: Link, now: float) -> Comparison | None:
        return (
            self._comparison(link, now)
            if link.live and self._node.config.retain_available
            else None
        )

    def digest_received(self, link: Link, body: bytes, now: float) -> None:
        """Take DIGEST (`body`), the digest of a neighbour's whole table, which came over `link`;
        `now`: s. If it differs from the one here, the broker with the lower id begins to
        compare."""
        comparison = self._comparing(link, now)
        if comparison is None or int.from_bytes(body, "big") == self._digests.whole:
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
        digests = self._digests
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
        wall = self._clock.physical(now)
        for full, prefix, theirs in leaves:
            for version in self._digests.versions(prefix):
                other = theirs.get(version.place)
                full_there = full and (other is None or (other.tombstone and not version.tombstone))
                if not full_there and (other is None or other.before(version.time, version.key)):
                    comparison.places.append(version.place)
            for place, other in theirs.items():
                known = self._digests.get(place)
                if known is None:
                    wanted = (
                        self._store.remembers(other.expires_at_ms, wall)
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
        return now < self._store.refused_at + REFUSED_PAUSE_S

    # ---------------------------------------------------------------- step by step

    def _plan(self, comparison: Comparison, kind: int, where: bytes) -> None:
        job = (kind, where)
        if job in comparison.queued:
            return
        if len(comparison.queued) >= MAX_JOBS:
            self._node.counters.retained_dropped += 1
            return
        comparison.queued.add(job)
        comparison.jobs.append(job)

    def _arm(self, comparison: Comparison, when: float) -> None:
        if not comparison.armed:
            comparison.armed = True
            self._node.timers.schedule(when, lambda now: self._step(comparison, now))

    def _step(self, comparison: Comparison, now: float) -> None:
        """Send a little of what is planned; go on a little later."""
        comparison.armed = False
        link = comparison.link
        if self._comparisons.get(link) is not comparison:
            return
        if comparison.since + self._limits.retained_check_s <= now:
            comparison.since = now
            comparison.sent = 0
        if (
            len(comparison.places) > self._limits.max_retained
            or comparison.sent > 2 * len(self._digests) + 1000
        ):
            self._node.counters.retained_dropped += 1  # the neighbour asks for the same repeatedly
            comparison.places.clear()
            comparison.jobs.clear()
            comparison.queued.clear()
            return
        if comparison.number - comparison.taken >= MAX_STEPS_UNDER_WAY:
            return  # `marked` goes on
        if link.conn.backlog or link.conn.paused:
            self._arm(comparison, now + BUSY_S)
            return
        sent = comparison.sent
        sections = self._send_jobs(comparison, now)
        if comparison.sent > sent:
            comparison.number += 1
            link.send_mark(comparison.number)
        if comparison.jobs or comparison.places:
            self._arm(comparison, now + STEP_INTERVAL_S * (2 if sections else 1))
        elif comparison.again and self._restored + MISSED_S > now:
            self._arm(comparison, now + MISSED_S)
        elif comparison.again:
            comparison.again = False
            self._tell(comparison)

    def _send_jobs(self, comparison: Comparison, now: float) -> bool:
        """Send some of what is planned; return whether that has sections of digests."""
        items, size = STEP_MESSAGES, STEP_BYTES
        bodies = {PARTS: bytearray(), LIST: bytearray(), FETCH: bytearray()}
        records = 0
        while items > 0 and size > 0 and records < STEP_RECORD_BYTES:
            if comparison.places:
                items -= 1
                size -= self._send_place(comparison, comparison.places.popleft(), now)
            elif comparison.jobs:
                kind, where = job = comparison.jobs.popleft()
                comparison.queued.discard(job)
                if kind == LIST and self._digests.count(where) > self._limits.retained_listed:
                    kind = 0
                if kind:
                    section = self._section(kind, where, now)
                    bodies[kind] += section
                    records += len(section)
                else:
                    comparison.places.extend(self._digests.places(where))
            else:
                break
        for kind, body in bodies.items():
            if body:
                comparison.link.send_behind(kind, bytes(body))
        return any(bodies.values())

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
        version = self._digests.get(place)
        if version is None:
            return 0
        data = self.encode(version, now)
        self._send(comparison.link, data)
        return len(data)

    def encode(self, version: RetainedVersion, now: float) -> bytes:
        """Encode a version as a restored message."""
        message = self._store.message_of(version, now)
        if message is None:
            message = Message(version.topic, b"", version.qos, True, b"", None, None)
        message.stamp = Stamp(version.time, version.expires_at_ms, True)
        return encode_message(message, version.key, version.sequence, now)

    def _section(self, kind: int, where: bytes, now: float) -> bytes:
        """Encode one job as a part of a record."""
        digests = self._digests
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
