"""Answers to brokers that ask for messages published here that they lack (`gap_recovery`): from the
log's tail on the disk for a broker that was away (docs/decisions/0031), then from the replay log.

The tail has older messages than the log. A question brings one frame of the tail; the broker asks
on, behind that frame, until the log has the rest. While a frame is read, further questions of the
same broker are not answered: it repeats them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate, chain
from typing import TYPE_CHECKING, NamedTuple

from mqttree.broker.base.rate_limit import Budget
from mqttree.broker.base.sequence_set import (
    LAST,
    Ranges,
    intersect,
    merge,
    subtract,
)
from mqttree.broker.cluster.delivery.pull_messages import (
    ENTRIES,
    ENTRIES_PIECE,
    PULL,
    EntriesPart,
    Pull,
    decode_pull,
)
from mqttree.broker.cluster.delivery.replay_log import LogEntry, Looked, wanted_parts
from mqttree.broker.cluster.delivery.subscription_start import (
    PastNumbers,
    answer_of,
    numbers_at,
)
from mqttree.broker.cluster.link.link import Link
from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.cluster.link.version_vector import OriginWindow
from mqttree.broker.core.receiver_assignment import ID

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.link_acks import LinkAcks
    from mqttree.broker.cluster.delivery.origins import Origins
    from mqttree.broker.cluster.delivery.ports import Above, TailPiece
    from mqttree.broker.cluster.delivery.replay import LogWalks
    from mqttree.broker.cluster.delivery.replay_log import ReplayLog
    from mqttree.broker.cluster.delivery.subscription_start import SubscriptionStarts
    from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
    from mqttree.broker.cluster.ports import MemberBroker
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
"""bytes of messages in an ENTRIES, which takes only live links. More bytes come as ENTRIES_PIECEs,
which take any link: they may fill the queue of a slow link, so that it is not live any more, and
that must not stop them."""

READ_COST = 5.0
"""Units of work (`Limits.link_requests`) of a question for which the disk is read."""


Gather = Callable[[bytes, Ranges, Link, Callable[[float], None], float], None]
"""Prepares an answer: of an origin, for numbers that the neighbour at the end of a link lacks; then
calls the function with the time (s). Last the time now."""


class Asked(NamedTuple):
    """A question of another broker."""

    sender: bytes
    pull: Pull
    link: Link | None
    """The link to the sender, which asks for brokers behind it as well."""
    own: bool
    """It asks for itself, for messages that were published here."""


class Answers:
    """Answers other brokers' questions for messages."""

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
        walks: LogWalks,
        above: Above,
        gather: Gather,
    ) -> None:
        """`node`: this broker; `links`: those that are up, by the neighbour's id; `above`: the
        floors above delivery; `gather`: asks other neighbours for what is history here
        (`Resync.gather`); `origins`, `log`, `database`, `bus`, `strategy`, `starts`, `acks`,
        `walks`: the modules that it uses."""
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
        self._walks = walks
        self._above = above
        self._gather = gather
        self._budget = Budget(
            node.limits.link_requests, node.limits.link_requests_per_second, node.now
        )
        # Brokers and origins for which the tail is being read.
        self._reading: set[tuple[bytes, bytes]] = set()
        self.held = False
        """Whether nothing is answered: others ask again."""
        bus.receive(PULL, self._pull_received)

    def _pull_received(self, sender: bytes, body: bytes, now: float) -> None:
        """Answer with those of the missing messages that the sender wants: of this broker's own all
        that there are, of others' what a neighbour, or one that was away, may get here alone."""
        pull, database = decode_pull(body), self._database
        origins = self._origins
        window = origins.vector.get(pull.key) if pull.key in origins.ours else None
        link = self._links.get(sender) if pull.behind else None
        own = link is None and split_key(pull.key)[0] == origins.own_id
        if self.held or (pull.behind and link is None) or (own and window is None):
            return
        if link is None and (database.via(sender) is None or database.state(sender) < pull.state):
            # The filters that it posted meanwhile are not known here yet; it asks again.
            return
        # The budget is the one of all neighbours together.
        self._budget.earn(now, max(1, len(self._links)))
        # It asks again.
        if self._budget.left < 0:
            self._node.counters.routed_dropped += 1
            return
        if window is not None:
            pull = pull._replace(lacks=intersect(pull.lacks, [(1, window.top)]))
        asked = Asked(sender, pull, link, own)
        if link is not None:
            self._budget.left -= len(self._log) / 2000
            self._gather(pull.key, pull.lacks, link, lambda at: self._walk(asked, link, at), now)
        else:
            self._answer(asked, now)

    def _walk(self, asked: Asked, link: Link, now: float) -> None:
        """Answer a neighbour from the log, with what is wanted there or behind it."""
        if not link.up:
            return
        found: list[LogEntry] = []

        def take(entries: list[LogEntry], at: float) -> None:
            found.extend(entries)
            if not walk.over and sum([entry.size for entry in found]) > CHUNK:
                walk.stop()
                answer(at, more=True)

        def answer(at: float, *, more: bool = False) -> None:
            few = found[: 1 + bisect_left([*accumulate([e.size for e in found])], CHUNK)]
            more |= len(few) < len(found)
            top = few[-1].sequence + few[-1].count - 1 if more else LAST - 1
            self._counters.replayed += sum([entry.count for entry in few])
            self._send(asked, [], few, top, at, more=more)

        window = OriginWindow(LAST, now)
        window.gaps = asked.pull.lacks
        walk = self._walks.walk(link, {asked.pull.key: window}, take, answer, once=True)
        walk.begin(now)

    def _answer(self, asked: Asked, now: float) -> None:
        """Answer from the tail, if it has anything of that, else from the log."""
        sender, key = asked.sender, asked.pull.key
        piece = self._above.absent_members.lacks(sender, key, asked.pull.lacks)
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
        log, key = self._log, asked.pull.key
        if not asked.own:
            self._send(asked, [], [], LAST - 1, now, more=False)
            return
        top = self._origins.vector[key].top
        whole = key == self._origins.key and not log.begin
        past = None if whole else self._past(key)
        times = [at + self._origins.uncounted(key) for at in asked.pull.times_s()]
        numbers, looked = numbers_at(log.latest(), key, times, top, past)
        in_log = Looked()
        gone, found = self._logged(asked, in_log)
        parts: list[LogEntry] = []
        size, compared, more = 0, 0, False
        wanted = self._wanted(asked, named_too=log.chosen > log.begin)
        for entry in found:
            if size > CHUNK or compared >= LOOKS:
                top, more = entry.sequence - 1, True
                break
            compared += entry.count
            for part in wanted(entry):
                parts.append(part)
                size += part.size
                self._counters.replayed += part.count
        # A batch is one entry of the log, and each of its messages is compared.
        self._budget.left -= (looked + max(in_log.entries, compared)) / 2000
        self._send(asked, numbers, parts, top, now, more=more, gone=gone)

    def _logged(self, asked: Asked, looked: Looked) -> tuple[int, Iterable[LogEntry]]:
        """Return the number up to which the messages have left the log, and the entries that are
        there. Of this incarnation no more of the log is walked through than one answer takes: a
        broker that lacks all of it asks a hundred times."""
        log, key, lacks = self._log, asked.pull.key, asked.pull.lacks
        if not lacks:
            return 0, ()
        if key == self._origins.key:
            first = min(log.first_of(key), LAST)
            return highest(lacks, first - 1), log.own(key, lacks, looked)
        # However old: what has not left the log is in no tail.
        found = log.those({key: lacks}, float("-inf"), looked)
        here = merge([(entry.sequence, entry.sequence + entry.count - 1) for entry in found])
        return highest(subtract(lacks, here), LAST), found

    def _from_tail(self, asked: Asked, entries: list[LogEntry] | None, piece: TailPiece) -> None:
        """Answer with a piece of the tail, up to its last number. `entries`: None if it could not
        be read, and is lost; the next piece is read then, as nothing else goes to a broker that
        waits for this answer."""
        sender, key, lacks = asked.sender, asked.pull.key, asked.pull.lacks
        self._reading.discard((sender, key))
        now = self._node.now
        if asked.own and key not in self._origins.ours:
            return
        if entries is None:
            self._answer(asked, now)
            return
        # Subscriptions that were made behind this piece are answered with a later one.
        times, past = asked.pull.times_s(), self._past(key)
        numbers, _ = numbers_at(reversed(entries), key, times, piece.last + 1, past)
        wanted = self._wanted(asked, named_too=True)
        parts = list(chain.from_iterable(map(wanted, parts_of(entries, key, lacks))))
        # Messages older than the whole tail may be under way; those that are missing within it were
        # not wanted.
        gone = highest(lacks, piece.ahead)
        self._counters.log_tail_replayed += sum(part.count for part in parts)
        self._send(asked, numbers, parts, piece.last, now, more=True, gone=gone)

    def _wanted(self, asked: Asked, *, named_too: bool) -> Callable[[LogEntry], list[LogEntry]]:
        """Return a function that returns the parts of an entry that the sender wants; what is kept
        here of another origin, it does. `named_too`: entries may be for members of shared
        subscriptions that were chosen by name."""
        wanted = self._strategy.wanted_by(asked.sender)

        def parts(entry: LogEntry) -> list[LogEntry]:
            if not asked.own:
                return [] if entry.passed else [entry]
            if entry.retain or (named_too and named(entry, asked.sender)):
                return [entry]
            return wanted_parts(entry, wanted)

        return parts

    def _send(
        self,
        asked: Asked,
        numbers: list[int],
        entries: list[LogEntry],
        top: int,
        now: float,
        *,
        more: bool,
        gone: int = 0,
    ) -> None:
        """Send an answer. `more`: there are later messages than `top`; `gone`: the numbers up to
        this one have left the log and may be under way."""
        sender, pull = asked.sender, asked.pull
        if asked.own:
            head = answer_of(numbers, now)
        else:
            ages = self._starts.ages(entries, now)
            head = len(ages).to_bytes(4, "big") + ages
        data = b"".join((head, *(entry.data(now) for entry in entries)))
        self._budget.left -= 1 + len(data) / 50_000
        more = more or len(data) > SMALL
        if asked.link is None and not more:
            self._above.absent_members.sent(sender, pull.key)
        if asked.own:
            self._acks.asked(sender, more)
        count = max(1, -(-len(data) // PART))
        for index in range(count):
            part = EntriesPart(
                number=pull.number,
                position=index,
                last=index == count - 1,
                more=more,
                top=top,
                gone=gone,
                data=data[index * PART : (index + 1) * PART],
            ).encode(pull.state)
            kind = ENTRIES if asked.own and not more else ENTRIES_PIECE
            self._bus.send(sender, kind, part, link=asked.link)


def named(entry: LogEntry, broker_id: bytes) -> bool:
    """Whether a message was given to members of shared subscriptions at a broker."""
    choice = entry.choice
    return choice is not None and any(who[:ID] == broker_id for who, _ in choice.entries)


def highest(lacks: Ranges, top: int) -> int:
    """Return the highest number up to `top` in `lacks`; 0: there is none."""
    return max((min(high, top) for low, high in lacks if low <= top), default=0)


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
