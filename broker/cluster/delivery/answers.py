"""Answers to brokers that ask for messages published here that they lack (`gap_recovery`): from the
log's tail on the disk for a broker that was away (docs/decisions/0031), then from the replay log.

The tail has older messages than the log. A question brings one frame of the tail; the broker asks
on, behind that frame, until the log has the rest. While a frame is read, further questions of the
same broker are not answered: it repeats them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from mqttree.broker.base.rate_limit import Budget
from mqttree.broker.base.sequence_set import (
    LAST,
    MAX_GAPS,
    Ranges,
    decode_pairs,
    intersect,
    merge,
    subtract,
)
from mqttree.broker.cluster.delivery.answer_part import (
    FEED_ANSWER,
    FEED_ASK,
    FEED_PIECE,
    AnswerPart,
)
from mqttree.broker.cluster.delivery.replay_log import LogEntry, Looked, wanted_parts
from mqttree.broker.cluster.delivery.subscription_start import (
    PastNumbers,
    answer_of,
    numbers_at,
    times_of,
)
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.core.receiver_assignment import ID
from mqttree.broker.wire.errors import MalformedPacket

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.link_acks import LinkAcks
    from mqttree.broker.cluster.delivery.origins import Origins
    from mqttree.broker.cluster.delivery.ports import Above, TailPiece
    from mqttree.broker.cluster.delivery.replay_log import ReplayLog
    from mqttree.broker.cluster.delivery.subscription_start import SubscriptionStarts
    from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
    from mqttree.broker.cluster.link.link import Link
    from mqttree.broker.cluster.ports import MemberBroker, Reporting
    from mqttree.broker.cluster.strategy.routing_strategy import WantedTopics
    from mqttree.routing.link_state import LinkStateDatabase

PART = 60_000
"""bytes of an answer in one record."""

CHUNK = 256 * 1024
"""bytes of messages in the answer to one question."""

LOOKS = 25_000
"""messages that one answer compares with the filters of the broker that asks: some 15 ms. It asks
on behind them."""

SMALL = 8 * 1024
"""bytes of messages in a FEED_ANSWER, which takes only live links. More bytes come as FEED_PIECEs,
which take any link: they may fill the queue of a slow link, so that it is not live any more, and
that must not stop them."""

READ_COST = 5.0
"""Units of work (`Limits.link_requests`) of a question for which the disk is read."""


class Asked(NamedTuple):
    """A question of another broker (FEED_ASK)."""

    sender: bytes
    key: bytes
    state: bytes
    number: bytes
    times: list[float]
    lacks: Ranges


class Answers:
    """Answers other brokers' questions for messages that were published here."""

    def __init__(
        self,
        node: MemberBroker,
        *,
        origins: Origins,
        log: ReplayLog,
        links: Mapping[bytes, Link],
        database: LinkStateDatabase,
        bus: UnicastBus,
        strategy: WantedTopics,
        starts: SubscriptionStarts,
        acks: LinkAcks,
        above: Above,
        report: Reporting,
    ) -> None:
        """`node`: this broker; `links`: those that are up, by the neighbour's id; `report`: counts
        and logs; `above`: the floors above delivery; `origins`, `log`, `database`, `bus`,
        `strategy`, `starts`, `acks`: the modules that it uses."""
        self._node = node
        self._counters = node.counters
        self._origins = origins
        self._log = log
        self._links = links
        self._database = database
        self._bus = bus
        self._strategy = strategy
        self._starts = starts
        self._acks = acks
        self._above = above
        self._report = report
        self._budget = Budget(
            node.limits.link_requests, node.limits.link_requests_per_second, node.now
        )
        # Brokers and origins for which the tail is being read.
        self._reading: set[tuple[bytes, bytes]] = set()
        self.held = False
        """Whether nothing is answered: others ask again."""
        bus.receive(FEED_ASK, self._ask_received)

    def _ask_received(self, sender: bytes, body: bytes, now: float) -> None:
        """Answer with those of the missing messages that the sender has subscribers for."""
        origins, database = self._origins, self._database
        if self.held:
            return
        if len(body) < 20:
            raise MalformedPacket("FEED_ASK is truncated")
        state, number, boot = body[:12], body[12:16], body[16:20]
        key = origin_key(origins.own_id, int.from_bytes(boot, "big"))
        if key not in origins.ours or key not in origins.vector:
            return
        if database.via(sender) is None or database.state(sender) < state:
            # The filters that it posted meanwhile are not known here yet; it asks again.
            return
        # The budget is the one of all neighbours together.
        self._budget.earn(now, max(1, len(self._links)))
        # It asks again.
        if self._budget.left < 0:
            self._report.count("routed_dropped")
            return
        times, ranges = times_of(body[20:])
        asked = Asked(sender, key, state, number, times, lacked(ranges, origins.vector[key].top))
        self._above.absent_members.lacks(sender, key, asked.lacks)
        self._answer(asked, now)

    def _answer(self, asked: Asked, now: float) -> None:
        """Answer from the tail, if it has anything of that, else from the log."""
        sender, key = asked.sender, asked.key
        piece = self._above.absent_members.oldest_piece(sender, key, asked.lacks)
        if piece is None:
            self._from_log(asked, now)
        elif (sender, key) not in self._reading:
            self._reading.add((sender, key))
            self._budget.left -= READ_COST
            piece.read(lambda entries: self._from_tail(asked, entries, piece))

    def _past(self, key: bytes) -> PastNumbers:
        """Return what is known of the numbers before the oldest entry that is looked at: of earlier
        incarnations nothing, so all of them may be for a subscription that is older."""
        return self._starts.past if key == self._origins.key else PastNumbers()

    def _from_log(self, asked: Asked, now: float) -> None:
        origins, log = self._origins, self._log
        top = origins.vector[asked.key].top
        whole = asked.key == origins.key and not log.begin
        past = None if whole else self._past(asked.key)
        times = [at + origins.uncounted(asked.key) for at in asked.times]
        numbers, looked = numbers_at(log.latest(), asked.key, times, top, past)
        in_log = Looked()
        gone, found = self._logged(asked, in_log)
        parts: list[bytes] = []
        size, compared, more = 0, 0, False
        wanted = self._wanted(asked, named_too=log.chosen > log.begin)
        for entry in found:
            if size > CHUNK or compared >= LOOKS:
                top, more = entry.sequence - 1, True
                break
            compared += entry.count
            for part in wanted(entry):
                parts.append(part.data(now))
                size += len(parts[-1])
                self._counters.replayed += part.count
        # A batch is one entry of the log, and each of its messages is compared.
        self._budget.left -= (looked + max(in_log.entries, compared)) / 2000
        self._send(asked, numbers, parts, top, now, more=more, gone=gone)

    def _logged(self, asked: Asked, looked: Looked) -> tuple[int, Iterable[LogEntry]]:
        """Return the number up to which the messages have left the log, and the entries that are
        there. Of this incarnation no more of the log is walked through than one answer takes: a
        broker that lacks all of it asks a hundred times."""
        log = self._log
        if not asked.lacks:
            return 0, ()
        if asked.key == self._origins.key:
            first = min(log.first_of(asked.key), LAST)
            left = intersect(asked.lacks, [(1, first - 1)]) if first > 1 else []
            return left[-1][1] if left else 0, log.own(asked.key, asked.lacks, looked)
        # However old: what has not left the log is in no tail.
        found = log.those({asked.key: asked.lacks}, float("-inf"), looked)
        left = subtract(
            asked.lacks,
            merge([(entry.sequence, entry.sequence + entry.count - 1) for entry in found]),
        )
        return left[-1][1] if left else 0, found

    def _from_tail(self, asked: Asked, entries: list[LogEntry] | None, piece: TailPiece) -> None:
        """Answer with a piece of the tail, up to its last number. `entries`: None if it could not
        be read, and is lost; the next piece is read then, as nothing else goes to a broker that
        waits for this answer."""
        self._reading.discard((asked.sender, asked.key))
        now = self._node.now
        if asked.key not in self._origins.ours:
            return
        if entries is None:
            self._answer(asked, now)
            return
        ours = [entry for entry in entries if entry.key == asked.key]
        # Subscriptions that were made behind this piece are answered with a later one.
        past = self._past(asked.key)
        numbers, _ = numbers_at(reversed(ours), asked.key, asked.times, piece.last + 1, past)
        parts = parts_of(ours, asked.key, asked.lacks)
        data = []
        wanted = self._wanted(asked, named_too=True)
        for part in chain.from_iterable(map(wanted, parts)):
            data.append(part.data(now))
            self._counters.log_tail_replayed += part.count
        # Messages older than the whole tail may be under way; those that are missing within it were
        # not wanted.
        begins = piece.first > 1 and piece.first == self._above.absent_members.tail_begins(
            asked.sender, asked.key
        )
        left = intersect(asked.lacks, [(1, piece.first - 1)]) if begins else []
        gone = left[-1][1] if left else 0
        self._send(asked, numbers, data, piece.last, now, more=True, gone=gone)

    def _wanted(self, asked: Asked, *, named_too: bool) -> Callable[[LogEntry], list[LogEntry]]:
        """Return a function that returns the parts of an entry that the sender wants. `named_too`:
        entries may be for members of shared subscriptions that were chosen by name."""
        wanted = self._strategy.wanted_by(asked.sender)

        def parts(entry: LogEntry) -> list[LogEntry]:
            if entry.retain or (named_too and named(entry, asked.sender)):
                return [entry]
            return wanted_parts(entry, wanted)

        return parts

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
        """Send an answer. `more`: there are later messages than `top`; `gone`: the numbers up to
        this one have left the log and may be under way."""
        data = answer_of(numbers, now) + b"".join(parts)
        self._budget.left -= 1 + len(data) / 50_000
        more = more or len(data) > SMALL
        if not more:
            self._above.absent_members.sent(asked.sender, asked.key)
        self._acks.asked(asked.sender, more)
        count = max(1, -(-len(data) // PART))
        for index in range(count):
            part = AnswerPart(
                number=int.from_bytes(asked.number, "big"),
                position=index,
                last=index == count - 1,
                more=more,
                top=top,
                gone=gone,
                data=data[index * PART : (index + 1) * PART],
            )
            kind = FEED_PIECE if more else FEED_ANSWER
            self._bus.send(asked.sender, kind, part.encode(asked.state))


def named(entry: LogEntry, broker_id: bytes) -> bool:
    """Whether a message was given to members of shared subscriptions at a broker."""
    choice = entry.choice
    return choice is not None and any(who[:ID] == broker_id for who, _ in choice.entries)


def parts_of(entries: Iterable[LogEntry], key: bytes, lacks: Ranges) -> list[LogEntry]:
    """Return those of `entries`, or parts of them, that are messages of the origin `key` with
    numbers in `lacks`."""
    return [
        part
        for entry in entries
        if entry.key == key
        for part in entry.parts(
            intersect([(entry.sequence, entry.sequence + entry.count - 1)], lacks)
        )
    ]


def lacked(data: bytes, top: int) -> Ranges:
    """Return the numbers up to `top` that a question is for.

    Raises:
        MalformedPacket: it is truncated or too large.
    """
    if len(data) > 12 * MAX_GAPS:
        raise MalformedPacket("FEED_ASK is too large")
    return intersect(decode_pairs(data, "question for messages"), [(1, top)])
