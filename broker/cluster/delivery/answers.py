"""Answers to brokers that ask for what they lack of the messages published here (`gap_recovery`):
from the replay log, and first from its tail on the disk, for who was away (docs/decisions/0031).

What the tail has is older than what the log has. It comes a frame at a time: whoever asks goes on
asking, behind what that brought, until the log has the rest. While a frame is read, further
questions of the same broker wait: it asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from broker.base import limits
from broker.base.rate_limit import Budget
from broker.base.sequence_set import decode_pairs
from broker.cluster.delivery.replay_log import LogEntry, with_expiry
from broker.cluster.delivery.subscription_start import answer_of, numbers_at, times_of
from broker.cluster.link.codec import LAST, Ranges, intersect, merge, origin_key, subtract
from broker.cluster.link.receiver_assignment import ID
from broker.cluster.strategy.directory import BEHIND, KNOWN, LIVE
from broker.persistence.tail_segment import Part
from broker.wire.errors import MalformedPacket

if TYPE_CHECKING:
    from broker.cluster.cluster import Cluster
    from broker.node import Node

ASK, ANSWER, PIECE = 5, BEHIND | LIVE | KNOWN | 6, BEHIND | 8
"""Kinds of messages to one broker."""

PART = 60_000
"""bytes of an answer in one record."""

CHUNK = 256 * 1024
"""bytes of messages for which one is asked at a time."""

LOOKS = 25_000
"""messages of which it is looked whether they are wanted, at a time: some 15 ms. The asker goes on
behind them."""

SMALL = 8 * 1024
"""bytes of messages in an ANSWER, which takes only live links. More come as PIECEs, over any, and
are asked on: what they fill (the queue of a slow link, so that it leaves the live stream) must not
stop them."""

READ_COST = 5.0
"""Units of work (limits.LINK_REQUESTS) of a question for which the disk is read."""


class Asked(NamedTuple):
    """A question."""

    sender: bytes
    key: bytes
    state: bytes
    number: bytes
    times: list[float]
    lacks: Ranges


class Answers:
    """Answers what other brokers ask."""

    __slots__ = ("_budget", "_cluster", "_node", "_reading")

    def __init__(self, node: Node, cluster: Cluster) -> None:
        self._node = node
        self._cluster = cluster
        self._budget = Budget(limits.LINK_REQUESTS, limits.LINK_REQUESTS_PER_SECOND, node.now)
        # Brokers and origins for which the tail is being read.
        self._reading: set[tuple[bytes, bytes]] = set()
        cluster.directory.receive(ASK, self._ask_received)

    def _ask_received(self, sender: bytes, body: bytes, now: float) -> None:
        """Answer with what the sender wants of what it lacks."""
        cluster = self._cluster
        forwarder = cluster.forwarder
        if len(body) < 20:
            raise MalformedPacket("question for messages is truncated")
        state, number, boot = body[:12], body[12:16], body[16:20]
        key = origin_key(cluster.own.id, int.from_bytes(boot, "big"))
        if key not in forwarder.ours or key not in forwarder.vector:
            return
        database = cluster.directory.database
        if database.via(sender) is None or database.state(sender) < state:
            return  # what it wants by now is not known, or not used, here; it asks again
        # As much as all neighbours may ask for.
        self._budget.earn(now, max(1, len(cluster.links)))
        if self._budget.left < 0:  # it asks again
            cluster.count("routed_dropped")
            return
        times, ranges = times_of(body[20:])
        asked = Asked(sender, key, state, number, times, lacked(ranges, forwarder.vector[key].top))
        cluster.absent_members.lacks(sender, key, asked.lacks)
        frame = cluster.absent_members.tail.first(sender, key, asked.lacks)
        if frame is None:
            self._from_log(asked, now)
        elif (sender, key) not in self._reading:
            self._reading.add((sender, key))
            self._budget.left -= READ_COST
            part = frame.parts[sender, key]
            cluster.absent_members.tail.read(
                frame, lambda entries: self._from_tail(asked, entries, part)
            )

    def _from_log(self, asked: Asked, now: float) -> None:
        cluster = self._cluster
        forwarder = cluster.forwarder
        top = forwarder.vector[asked.key].top
        past = (
            cluster.subscription_starts.past
            if asked.key == forwarder.key and forwarder.log.begin
            else None
        )
        times = [at + forwarder.uncounted(asked.key) for at in asked.times]
        numbers, looked = numbers_at(forwarder.log.latest(), asked.key, times, top, past)
        forwarder.log.looked_at = 0
        gone, found = self._logged(asked, now)
        parts: list[bytes] = []
        size, more = 0, False
        log = forwarder.log
        wants = self._wants(asked, now, named_too=log.chosen > log.begin or bool(log.spared))
        for index, entry in enumerate(found):
            if size > CHUNK or index >= LOOKS:
                top, more = entry.sequence - 1, True
                break
            if wants(entry):
                parts.append(entry.data(now))
                size += len(parts[-1])
                self._node.counters.replayed += entry.count
        self._budget.left -= (looked + forwarder.log.looked_at) / 2000
        self._send(asked, numbers, parts, top, now, more=more, gone=gone)

    def _logged(self, asked: Asked, now: float) -> tuple[int, Iterable[LogEntry]]:
        """Return up to which number what is asked for has left the log, and what is there. Of this
        life of ours no more of the log is looked at than an answer takes: who lacks all of it asks
        a hundred times."""
        forwarder = self._cluster.forwarder
        horizon = now - limits.LOG_AGE
        if not asked.lacks:
            return 0, ()
        if asked.key == forwarder.key and not forwarder.log.spared:
            first = min(forwarder.log.first_of(asked.key, horizon), LAST)
            left = intersect(asked.lacks, [(1, first - 1)]) if first > 1 else []
            return left[-1][1] if left else 0, forwarder.log.own(asked.key, asked.lacks, horizon)
        found = forwarder.log.those({asked.key: asked.lacks}, horizon)
        left = subtract(
            asked.lacks,
            merge([(entry.sequence, entry.sequence + entry.count - 1) for entry in found]),
        )
        return left[-1][1] if left else 0, found

    def _from_tail(self, asked: Asked, entries: list[LogEntry] | None, part: Part) -> None:
        """Answer with a frame of the tail, up to its last number. None: it cannot be read any more,
        and is asked for again."""
        self._reading.discard((asked.sender, asked.key))
        now, cluster = self._node.now, self._cluster
        if entries is None or asked.key not in cluster.forwarder.ours:
            return
        ours = [entry for entry in entries if entry.key == asked.key]
        # What was later than this frame is told with the frame that has it.
        numbers, _ = numbers_at(reversed(ours), asked.key, asked.times, part.last + 1)
        parts = parts_of(ours, asked.key, asked.lacks)
        data = []
        for entry in filter(self._wants(asked, now, named_too=True), parts):
            data.append(current(entry, now))
            self._node.counters.tail_replayed += entry.count
        # What is before all that is in the tail may be on its way; what is missing in between was
        # not wanted.
        begins = part.first > 1 and part.first == cluster.absent_members.tail.begins(
            asked.sender, asked.key
        )
        left = intersect(asked.lacks, [(1, part.first - 1)]) if begins else []
        self._send(asked, numbers, data, part.last, now, more=True, gone=left[-1][1] if left else 0)

    def _wants(self, asked: Asked, now: float, *, named_too: bool) -> Callable[[LogEntry], bool]:
        """Return what tells whether the sender wants an entry. `named_too`: some may be for members
        of shared subscriptions."""
        wanted = self._cluster.interest.wanted_by(asked.sender)

        def wants(entry: LogEntry) -> bool:
            if entry.expires_at is not None and now >= entry.expires_at:
                return False
            return entry.retain or wanted(entry.topic) or (named_too and named(entry, asked.sender))

        return wants

    def _send(
        self,
        asked: Asked,
        numbers: list[int],
        parts: list[bytes],
        top: int,
        now: float,
        *,
        more: bool,
        gone: int = 0,
    ) -> None:
        """Send an answer. `more`: it is asked on behind `top`; `gone`: what has left the log ends
        here, and may be on its way."""
        cluster = self._cluster
        data = answer_of(numbers, now) + b"".join(parts)
        self._budget.left -= 1 + len(data) / 50_000
        more = more or len(data) > SMALL
        if not more:
            cluster.absent_members.sent(asked.sender, asked.key)
        cluster.acks.asked(asked.sender, more)
        count = max(1, -(-len(data) // PART))
        for index in range(count):
            flags = (index == count - 1) | more << 1 | (4 if gone else 0)
            head = (
                asked.state
                + asked.number
                + index.to_bytes(4, "big")
                + bytes((flags,))
                + top.to_bytes(6, "big")
            )
            if gone:
                head += gone.to_bytes(6, "big")
            kind = PIECE if more else ANSWER
            cluster.directory.send(
                asked.sender, kind, head + data[index * PART : (index + 1) * PART]
            )


def named(entry: LogEntry, broker_id: bytes) -> bool:
    """Whether a message is for members of shared subscriptions at a broker."""
    choice = entry.choice
    return choice is not None and any(who[:ID] == broker_id for who, _ in choice.entries)


def parts_of(entries: Iterable[LogEntry], key: bytes, lacks: Ranges) -> list[LogEntry]:
    """Return what these have of an origin's messages that somebody lacks."""
    return [
        entry.part(low, high)
        for entry in entries
        if entry.key == key
        for low, high in intersect([(entry.sequence, entry.sequence + entry.count - 1)], lacks)
    ]


def lacked(data: bytes, top: int) -> Ranges:
    """Return the numbers up to `top` that a question is for. Raises MalformedPacket."""
    if len(data) > 12 * limits.MAX_GAPS:
        raise MalformedPacket("question for messages is too large")
    return intersect(decode_pairs(data, "question for messages"), [(1, top)])


def current(entry: LogEntry, now: float) -> bytes:
    """Return an old entry as links carry it; what expires says how long it still has."""
    data = entry.data(now)
    return (
        data
        if entry.expires_at is None
        else with_expiry(data, max(1, round(entry.expires_at - now)))
    )
