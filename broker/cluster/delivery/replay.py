"""Walks over the replay log: what one neighbour lacks is found and taken in steps, as the log may
have hundreds of thousands of entries.

A walk scans the log up to its end, notes what the neighbour may lack, and takes that (it is sent,
say); then it does the same with what was logged meanwhile, until nothing is left. In that turn the
walk is done, and a link may become live.

    scan, SCAN entries at a time -> put in order -> take, ENTRIES_PER_STEP at a time
        -> has more been logged?
           yes: scan that
           no:  the end
    in one turn as much of this as is some 10 ms of work

Nothing overtakes and nothing is left out: a link in repair gets messages from its walk alone; the
log is in the order in which messages came, so what comes between two steps stands behind all that
was scanned before; and the log keeps what a link in repair may lack (`link_acks`). Whether a topic
is wanted is checked when an entry is taken: that is after it was logged, so all subscriptions that
may expect it are known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mqttree.broker.cluster.delivery.replay_log import in_order, lacked_parts, wanted_parts

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.orphans import Orphans
    from mqttree.broker.cluster.delivery.ports import Above
    from mqttree.broker.cluster.delivery.replay_log import LogEntry, ReplayLog
    from mqttree.broker.cluster.link.link import Link
    from mqttree.broker.cluster.link.version_vector import Vector
    from mqttree.broker.cluster.ports import MemberBroker
    from mqttree.broker.cluster.strategy.routing_strategy import WantedTopics

SCAN = 20_000
"""entries that are scanned at a time,"""
SCANNED = 4
"""as many in a step of work (about a microsecond)."""

ENTRIES_PER_STEP = 100
"""entries that are taken at a time,"""
TAKEN = 3
"""steps of work for each,"""
READ = 2
"""and messages of a batch that are looked into in one step, as a topic may not be wanted. A batch
counts like as many entries as take that time."""

BYTES = 2 * 1024 * 1024
"""bytes that are taken in one turn, about."""

ROUNDS = 3
"""rounds after which a turn does twice as much, with each round more: so that it ends, though more
is logged than a turn takes. Mostly the third is the last one, as each takes as long as what was
logged in the one before."""


Take = Callable[["list[LogEntry]", float], None]
"""Gets the entries that brokers behind a link lack and want, in the order of each origin."""


class LogWalks:
    """Makes walks through the log, and knows what of it is wanted behind which link."""

    def __init__(
        self,
        node: MemberBroker,
        log: ReplayLog,
        strategy: WantedTopics,
        orphans: Orphans,
        above: Above,
    ) -> None:
        """`node`: this broker; `log`: its replay log; `strategy`, `orphans`: say what is wanted
        behind a link, `orphans` of origins that are gone; `above`: shared subscriptions."""
        self.node = node
        self.log = log
        self.strategy = strategy
        self.orphans = orphans
        self.above = above

    def walk(
        self,
        link: Link,
        seen: Vector,
        take: Take,
        then: Callable[[float], None],
        may: Callable[[int], float] = lambda size: 0.0,
        *,
        once: bool = False,
    ) -> LogWalk:
        """Return a walk through the log, which is still to begin. `seen`: what has been behind
        `link`; `take`: gets what is lacked there; `then`: called at the end; `may`: s that so many
        bytes have to wait; `once`: what is logged meanwhile is left out."""
        return LogWalk(self, link, seen, take, then, may, once=once)

    def wanted(self, candidates: list[LogEntry], link: Link, seen: Vector) -> list[LogEntry]:
        """Return what of the `candidates` is both lacked and wanted behind `link`; `seen`: what has
        been there. Its own messages a broker gets in any case: others ask it for them."""
        strategy, chosen = self.strategy, self.above.sharing.chosen_behind
        wanted, orphans = strategy.wanted_behind(link), strategy.wanted_behind(link, gone=True)
        entries = [part for entry in candidates for part in lacked_parts(entry, seen[entry.key])]
        keys = {entry.key for entry in entries}
        gone = {key for key in keys if self.orphans.is_gone(key)}
        returns = {key for key in keys if self.above.sharing.published_behind(link, key)}
        found: list[LogEntry] = []
        for entry in entries:
            parts = (
                [entry]
                if entry.retain or entry.key in returns
                else wanted_parts(entry, orphans if entry.key in gone else wanted)
            )
            found += parts
            if not parts and chosen(link, entry):
                found.append(entry)
        return found


class LogWalk:
    """One walk through the log (`LogWalks.walk`)."""

    __slots__ = (
        "_at",
        "_found",
        "_link",
        "_may",
        "_mixed",
        "_next",
        "_node",
        "_once",
        "_rounds",
        "_seen",
        "_take",
        "_then",
        "_tops",
        "_turns",
        "_until",
        "_walks",
        "over",
    )

    def __init__(
        self,
        walks: LogWalks,
        link: Link,
        seen: Vector,
        take: Take,
        then: Callable[[float], None],
        may: Callable[[int], float],
        *,
        once: bool,
    ) -> None:
        """`walks`: where it belongs; `link`, `seen`, `take`, `then`, `may`, `once`: as in
        `LogWalks.walk`."""
        self._walks = walks
        self._node = walks.node
        self._turns = walks.node.turns
        self._link = link
        self._seen = seen
        self._take = take
        self._then = then
        self._may = may
        self._once = once
        self._found: list[LogEntry] = []
        self._next = 0  # of these
        self._tops: dict[bytes, int] = {}
        self._mixed: set[bytes] = set()  # origins whose entries in `_found` are not in order
        # Numbers of entries of the log: scanned next, and not in this round any more.
        self._at = self._until = 0
        self._rounds = 0
        self.over = False

    def begin(self, now: float) -> None:
        """Begin, at once if there is room in this turn."""
        if self._turns.full():
            self._turns.later(self._step)
        else:
            self._step(now)

    def stop(self) -> None:
        """End the walk; what it has found and not handed on is dropped."""
        self.over = True
        self._found.clear()

    def _step(self, now: float) -> None:
        """Go on, as far as one turn allows."""
        if self.over:
            return
        turns, log = self._turns, self._walks.log
        more = max(0, self._rounds - ROUNDS)
        most = turns.work + (self._node.limits.turn_work << more)
        taken: list[LogEntry] = []
        size, wait, finished = 0, 0.0, False
        while not wait and not finished and turns.work < most and size < BYTES << more:
            if self._at < self._until:
                self._scan()
            elif self._next < len(self._found):
                entries, behind = self._lacking()
                whole = size + sum(entry.size for entry in entries)
                wait = self._may(whole)
                if not wait:
                    self._next = behind
                    taken += entries
                    size = whole
            elif self._until < log.next and not (self._once and self._rounds):
                self._found.clear()
                self._next = 0
                self._until = log.next
                self._rounds += 1
            else:
                finished = True
                self.stop()
        if taken:
            self._take(taken, now)
        if finished:
            self._then(now)
        elif wait:
            self._node.timers.schedule(now + wait, self._step)
        elif not self.over:
            turns.later(self._step)

    def _scan(self) -> None:
        """Note what the neighbour may lack of some entries; at the end of the round put all of it
        in order."""
        count = min(SCAN, self._until - self._at)
        piece, self._at = self._walks.log.lacked(self._seen, self._at, count)
        tops = self._tops
        for entry in piece:
            if entry.sequence < tops.get(entry.key, 0):
                self._mixed.add(entry.key)
            else:
                tops[entry.key] = entry.sequence
        self._found += piece
        self._turns.work += (count + len(piece)) // SCANNED
        if self._at >= self._until and self._mixed:
            self._found = in_order(self._found, self._mixed)
            self._mixed.clear()

    def _lacking(self) -> tuple[list[LogEntry], int]:
        """Return what is taken next, and where in `_found` the entries behind that begin."""
        work, behind, most = 0, self._next, min(self._next + ENTRIES_PER_STEP, len(self._found))
        while behind < most and work < TAKEN * ENTRIES_PER_STEP:
            entry = self._found[behind]
            work += TAKEN + entry.count // READ
            behind += 1
        self._turns.work += work
        candidates = self._found[self._next : behind]
        return self._walks.wanted(candidates, self._link, self._seen), behind
