"""What each neighbour has acknowledged of the replay log, and when publishers wait because the log
is full of messages that neighbours have not acknowledged (decision 27).

A position is the number of bytes that the log had taken before an entry. A link keeps the log from
the position up to which its neighbour is known to have everything. To find out, a mark (a PINGREQ
with a number of its own) is sent behind the messages of the link; the PINGRESP with that number
says that all of them have arrived. Marks are sent only when the log is about to drop messages that
are not acknowledged, every 16 MiB or so: messages cost nothing more.

    link: not keeping -(forwards, or a source-rooted tree uses it)-> keeping from a position
                      -(mark acknowledged)-> keeping from a later one
    log:  room -(neighbours may lack `log_bytes` and `hold_log_bytes`)-> publishers held
               -(they lack `log_bytes` at most)-> room
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mqttree.broker.cluster.delivery.replay_log import NEVER, wanted_parts
from mqttree.broker.cluster.link.link import ACK_MARK, Link

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.replay_log import LogEntry, ReplayLog
    from mqttree.broker.cluster.events import LinkDown
    from mqttree.broker.cluster.link.version_vector import OriginWindow
    from mqttree.broker.cluster.ports import MemberBroker
    from mqttree.broker.cluster.strategy.routing_strategy import WantedTopics
    from mqttree.broker.core.connection import Connection

PARTITION_GRACE_S = 5.0
"""s for which the log is kept for a broker whose link broke, or that is back: by then it has
found another way, and asked. Longer, but not for more than `REPAIR_TIMEOUT_S`, while it goes on
asking."""

REPAIR_TIMEOUT_S = 30.0
"""s; for a neighbour to say what it has before the log keeps nothing for it: a repair takes
less than one, but its records may come behind a large message on a slow link."""

MAX_ABSENT_BROKERS = 256
"""brokers that are away and for which it is counted what they lose."""

AHEAD = 2
"""Marks are sent this part of the log before it would drop what is not acknowledged: more than a
round trip brings."""


class LinkAcks:
    """Which part of the log each link still needs."""

    def __init__(
        self,
        node: MemberBroker,
        *,
        log: ReplayLog,
        strategy: WantedTopics,
    ) -> None:
        """`node`, `log`: this broker, and its replay log; `strategy`: says what is wanted behind a
        link."""
        self._node = node
        self._limits = node.limits
        self._strategy = strategy
        # s; a link that takes nothing for twice as long is closed.
        self._timeout = node.config.link_timeout
        self._log = log
        self._log.on_pressure = self._pressed
        self._log.on_full = self._full
        self._log.on_needed_dropped = self._lost
        self._keeping: list[Link] = []
        # Brokers that are expected to ask for messages: the position from which on the log is kept,
        # until when (s), until when at most (s).
        self._parted: dict[bytes, tuple[int, float, float]] = {}
        self._number = 0
        self._again = False  # marks are to be sent behind a large message that is about to be sent
        self._away: dict[bytes, None] = {}  # of the parted ones those that the tree has lost
        self.holding = False
        """Whether publishers wait, as the log is full of messages that neighbours may lack."""

    # ---------------------------------------------------------------- what links need

    def keep(self, link: Link, position: int) -> None:
        """Keep the log from `position` on until the neighbour at `link` has it, or messages no
        longer take the link."""
        if link.kept_from is None:
            link.kept_from = position
            link.kept_since = self._node.now
            self._keeping.append(link)
        elif position < link.kept_from:
            link.kept_from = position
            link.kept_since = self._node.now
        self._settle()

    def free(self, link: Link) -> None:
        """Keep nothing for a link any more."""
        if link.kept_from is not None:
            link.kept_from = None
            link.marks.clear()
            self._keeping.remove(link)
            self._settle()

    def link_down(self, event: LinkDown) -> None:
        """Keep the log for a neighbour whose link is gone: it may come back, or get another link,
        and asks for the messages that it lacks."""
        link = event.link
        if link.kept_from is not None and link.peer is not None:
            self.part(link.peer.id, link.kept_from)
        self.free(link)

    def part(self, broker_id: bytes, position: int) -> None:
        """Keep the log for a broker until it has got what it asks for, for `PARTITION_GRACE_S` at
        most."""
        if self._strategy.ordered and len(self._parted) < MAX_ABSENT_BROKERS:
            now = self._node.now
            if (known := self._parted.get(broker_id)) is not None:  # of two links at once one ends
                position = min(position, known[0])
            self._parted[broker_id] = (position, now + PARTITION_GRACE_S, now + REPAIR_TIMEOUT_S)
            self._away.pop(broker_id, None)
            self._settle()

    def asked(self, broker_id: bytes, more: bool) -> None:
        """Note that a broker has asked for the messages that it lacks; `more`: some of them are
        still to be sent."""
        known = self._parted.get(broker_id)
        if known is not None and more:
            self._parted[broker_id] = (
                known[0],
                min(self._node.now + PARTITION_GRACE_S, known[2]),
                known[2],
            )
        elif known is not None:
            self.parted(broker_id)

    def lacked_from(self, broker_id: bytes) -> int:
        """Return from which position on a broker may lack messages."""
        found = self._parted.get(broker_id)
        return self._log.begin if found is None else found[0]

    def went(self, broker_id: bytes) -> None:
        """Note that the tree has lost a broker, perhaps only until a new link is up. Publishers are
        not held for it."""
        if (known := self._parted.get(broker_id)) is not None:
            self._parted[broker_id] = (
                known[0],
                self._node.now + PARTITION_GRACE_S,
                known[2],
            )
            self._away[broker_id] = None
            self._settle()

    def parted(self, broker_id: bytes) -> None:
        """Keep the log for a broker no longer."""
        self._parted.pop(broker_id, None)
        self._away.pop(broker_id, None)
        self._settle()

    def _lowest(self, parted: Iterable[bytes]) -> int:
        """Return from which position on the log is needed by links, and by these brokers."""
        lowest = min(
            (link.kept_from for link in self._keeping if link.kept_from is not None), default=NEVER
        )
        return min([lowest, *(self._parted[broker_id][0] for broker_id in parted)])

    def _settle(self) -> None:
        """Set the position up to which the log may drop entries, and let publishers go on if that
        made room."""
        log = self._log
        log.floor = self._lowest(self._parted)
        log.warn = max(log.begin, log.floor - log.limit // AHEAD) if self._keeping else NEVER
        if log.size > log.limit:
            log.trim(None)
        if self.holding and (log.owed <= log.limit or (self._away and self._room_for_away())):
            self.holding = False
            self._node.flow_control.release(self)

    # ---------------------------------------------------------------- marks

    def _pressed(self) -> None:
        """Ask for acknowledgements, as the log is about to drop messages without them."""
        log = self._log
        log.warn = log.recent + self._limits.mark_bytes
        for link in self._keeping:
            self._mark(link)
        # No message may come behind it, as its publisher is held.
        if log.unsent >= self._limits.mark_bytes and not self._again:
            self._again = True
            self._node.timers.schedule(self._node.now, self._press_again)

    def _press_again(self, now: float) -> None:
        self._again = False
        self._pressed()

    def _mark(self, link: Link) -> None:
        end = self._log.end - self._log.unsent  # a mark must not overtake what it has acknowledged
        assert link.kept_from is not None
        last = link.marks[-1][1] if link.marks else link.kept_from
        # A link that is about to be repaired has not been sent everything.
        if (
            (link.live or not link.forwarding)
            and link.up
            and (last + self._limits.mark_bytes <= end or (last < end and not link.marks))
        ):
            self._number = self._number + 1 & ACK_MARK - 1
            link.marks.append((ACK_MARK | self._number, end))
            link.send_mark(ACK_MARK | self._number)

    def acknowledged(self, link: Link, number: int) -> None:
        """Take a neighbour's answer to a mark: it has all that was sent before."""
        if link.kept_from is None or all(number != known for known, _ in link.marks):
            return
        while link.marks:
            known, position = link.marks.popleft()
            if known == number:
                break
        link.kept_from = max(link.kept_from, position)
        self._settle()

    # ---------------------------------------------------------------- limits

    def _full(self, source: Connection | None) -> None:
        """Hold the publisher, as the log is full of messages that neighbours may lack."""
        if self._away and self._room_for_away():
            return
        self._pressed()
        self.holding = True
        self._node.flow_control.hold(source, self)

    def _room_for_away(self) -> bool:
        """Whether the log is full of messages that only brokers outside the tree lack; if these are
        too many, the log is kept for those brokers no longer."""
        log = self._log
        if (
            log.end - self._lowest(self._parted.keys() - self._away)
            > log.limit + self._limits.hold_log_bytes
        ):
            return False
        if log.size > self._limits.away_logs * log.limit:
            for broker_id in list(self._away):
                self.parted(broker_id)
        return True

    def _lost(self, entry: LogEntry, position: int) -> None:
        """Count the messages of an entry that is dropped although a replay needs it. What a live
        link needs waits in its own queue."""
        for link in self._keeping:
            waits = link.behind or (link.forwarding and not link.live)
            if not waits or link.kept_from is None or link.kept_from > position:
                continue
            window = None if link.seen is None else link.seen.get(entry.key)
            if window is not None and not _lacks(window, entry):
                continue
            wanted = self._strategy.wanted_behind(link)
            for part in [entry] if entry.retain else wanted_parts(entry, wanted):
                if part is entry or window is None or _lacks(window, part):
                    link.log_lost += part.count
                    self._node.counters.replay_log_lost += part.count

    def tick(self, now: float) -> None:
        """Once a second: stop keeping the log for brokers that did not ask, close links without
        progress, log which messages were lost.
        `now`: s."""
        for broker_id in [b for b, (_, until, _) in self._parted.items() if until < now]:
            self.parted(broker_id)
        timeout = self._timeout
        for link in list(self._keeping):
            if link.log_lost:
                self._tell(link)
            if (
                link.forwarding
                and not link.live
                and not link.behind
                and now - link.kept_since > REPAIR_TIMEOUT_S
            ):
                self.free(link)  # its neighbour has not sent its version vector for too long
            conn, transport = link.conn, link.conn.transport
            if not (conn.backlog or conn.paused):
                link.taken_at = now
                link.unsent = 0
                continue
            left = transport.unsent()
            if left != link.unsent or conn.waiting_since > link.taken_at:
                link.unsent = left
                link.taken_at = now
            elif now - link.taken_at > 2 * timeout:
                self._node.counters.link_timeouts += 1
                self._node.log(
                    "warning",
                    f"link to {link.title}: it read nothing for {2 * timeout:g} s; closed",
                )
                conn.abort("takes nothing")
        if self._keeping and (self._log.size > self._log.limit or self._log.old(now)):
            # also for a link that was being repaired as the log became full, and could not be asked
            self._pressed()

    def _tell(self, link: Link) -> None:
        lost, link.log_lost = link.log_lost, 0
        why = f"more than {self._limits.log_kept_bytes >> 20} MiB were queued for it"
        self._node.log(
            "warning", f"link to {link.title}: {lost} messages for it are lost, because {why}"
        )


def _lacks(window: OriginWindow, entry: LogEntry) -> bool:
    """Whether a neighbour that has had `window` of its origin lacks any message of an `entry`."""
    return any(window.missing(n) for n in range(entry.sequence, entry.sequence + entry.count))
