"""Replay after a repair of the tree: a neighbour gets the messages that it missed before new ones.

When a link begins to forward, a broker first tells the neighbour its version vector (SEEN). The
neighbour replays from its log what is missing, in order, and only then makes the link live.
What was published before a broker met an origin is history to that broker. It is pulled from other
neighbours (`pulls`) when a neighbour that was cut off lacks it and can get it only through here: if
its origin is gone (`orphans`), as each broker asks the others itself (`gap_recovery`). What they
send is passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from mqttree.broker.cluster.events import (
    LinkBehind,
    LinkDown,
    LinkDrained,
    LinkForwards,
    OriginLost,
    RouteChanged,
)
from mqttree.broker.cluster.link.control_records import ASK_SEEN, ORIGINS, SEEN
from mqttree.broker.cluster.link.link_states import Input
from mqttree.broker.cluster.link.version_vector import Vector, decode_vector, encode_vector

if TYPE_CHECKING:
    from mqttree.broker.base.sequence_set import Ranges
    from mqttree.broker.cluster.delivery.forwarder import Forwarder
    from mqttree.broker.cluster.delivery.gap_recovery import GapRecovery
    from mqttree.broker.cluster.delivery.link_acks import LinkAcks
    from mqttree.broker.cluster.delivery.orphans import Orphans
    from mqttree.broker.cluster.delivery.ports import DeliveringBroker, SeenWatcher
    from mqttree.broker.cluster.delivery.pulls import Pulls
    from mqttree.broker.cluster.delivery.replay import LogWalk, LogWalks
    from mqttree.broker.cluster.delivery.replay_log import LogEntry
    from mqttree.broker.cluster.delivery.subscription_start import SubscriptionStarts
    from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
    from mqttree.broker.cluster.link.link import Handler, Link
    from mqttree.broker.cluster.ports import Alarm
    from mqttree.broker.cluster.strategy.routing_strategy import WantedTopics

SEEN_INTERVAL_S = 0.05
"""s between two reports to one neighbour of what has been here: one is enough for a repair, and
a broker that makes the tree change all the time must not have all others do nothing but
report."""

DIRECTORY_WAIT_S = 0.5
"""s; longest wait for the directory of the brokers behind a link."""

INTRODUCTIONS = 8
"""Most round trips until a neighbour knows all origins that are known here; it needs more only if
its table is full."""


class Resync:
    """Makes links live, and answers neighbours that want old messages."""

    def __init__(
        self,
        node: DeliveringBroker,
        *,
        forwarder: Forwarder,
        directory: LinkStateDirectory,
        strategy: WantedTopics,
        acks: LinkAcks,
        starts: SubscriptionStarts,
        orphans: Orphans,
        pulls: Pulls,
        gap_recovery: GapRecovery,
        walks: LogWalks,
        alarm: Alarm,
    ) -> None:
        """`node`: this broker; `walks`: walks through the log; `alarm`: calls the cluster again;
        `forwarder`, `directory`, `strategy`, `acks`, `starts`, `orphans`, `pulls`,
        `gap_recovery`: the modules that it uses."""
        self.node = node
        self._limits = node.limits
        self.forwarder = forwarder
        self._directory = directory
        self._strategy = strategy
        self._acks = acks
        self._starts = starts
        self._orphans = orphans
        self._pulls = pulls
        self._gap_recovery = gap_recovery
        self._walks = walks
        self._alarm = alarm
        self.watcher: SeenWatcher | None = None
        """Told each neighbour's version vector before it is used."""
        self.records: dict[int, Handler] = {
            SEEN: self.seen_received,
            ASK_SEEN: self.ask_received,
            ORIGINS: self.origins_received,
        }
        # The replay on each link that is about to be live.
        self._joining: dict[Link, LogWalk] = {}
        # Links of which it is not known yet which brokers are behind them; until when (s) that is
        # waited for; what is done then.
        self._waiting: list[tuple[Link, float, Callable[[float], None]]] = []
        # What is done as soon as anything may be replayed; None: it may.
        self._held: list[Callable[[float], None]] | None = None

    # ---------------------------------------------------------------- forwarding

    def link_forwards(self, event: LinkForwards) -> None:
        """Begin to make a link live as the tree lets it forward, or stop using it as
        the tree blocks it."""
        link, now = event.link, event.now
        link.move(Input.FORWARDS if event.forwarding else Input.BLOCKS)
        if event.forwarding:
            self._acks.keep(link, self.forwarder.log.recent)
            self.send_seen(link)
            if link.seen is not None:
                self._prepare(link, now)
            else:
                link.add_record(ASK_SEEN, b"")  # the other end may have forwarded all the time
        else:
            self._leave(link)
            self.forwarder.leave(link)
            link.seen = None
            if not self._strategy.uses(link):
                self._acks.free(link)

    def send_seen(self, link: Link) -> None:
        """Send a neighbour the version vector (SEEN); at most one each `SEEN_INTERVAL_S`."""
        link.vector_sent = True
        now = self.node.now
        if link.vector_at <= now:
            link.vector_at = now + SEEN_INTERVAL_S
            link.add_record(SEEN, encode_vector(self._orphans.vector_for_neighbours()))
        elif not link.vector_planned:
            link.vector_planned = True
            self.node.timers.schedule(link.vector_at, lambda at: self._send_seen_late(link, at))

    def _send_seen_late(self, link: Link, now: float) -> None:
        link.vector_planned = False
        if link.up:
            self.send_seen(link)
            link.send_ping(now)

    # ---------------------------------------------------------------- version vectors

    def ask_received(self, link: Link, body: bytes, now: float) -> None:
        """Answer ASK_SEEN, a neighbour's question for the version vector. `link`: over which it
        came; `body`: empty; `now`: s."""
        self.send_seen(link)

    def origins_received(self, link: Link, body: bytes, now: float) -> None:
        """Take ORIGINS: where the origins begin that are new at a neighbour. `link`: over which it
        came; `body`: a version vector; `now`: s."""
        self.forwarder.learn(decode_vector(body, now), link, now)

    def seen_received(self, link: Link, body: bytes, now: float) -> None:
        """Take SEEN, a neighbour's version vector, and go on to make its link live.
        Origins that are new here begin where the neighbour is. `link`: over which it came;
        `body`: the vector; `now`: s."""
        seen = decode_vector(body, now)
        self.forwarder.learn(seen, link, now)
        link.vector_asked = False
        if self.watcher is not None:
            self.watcher.seen(link, seen, now)
        if link.live:
            self._send_orphans(link, seen, now)
        if link.live or link in self._joining:
            # It was asked twice: its messages have been complete since it joined, or it has had the
            # first step of its replay.
            return
        link.seen = seen
        if link.forwarding and not link.behind:
            if not link.vector_sent:
                self.send_seen(link)
            self._prepare(link, now)

    # ---------------------------------------------------------------- making a link live

    def _prepare(self, link: Link, now: float) -> None:
        """Join, but first make known the origins that the neighbour has not met, so that it says
        where it begins, and fetch what it lacks and was history here: it has to come before newer
        messages."""
        assert link.seen is not None
        unknown = {
            key: window for key, window in self.forwarder.vector.items() if key not in link.seen
        }
        if unknown and link.introductions < INTRODUCTIONS:
            link.introductions += 1
            link.seen = None
            link.add_record(ORIGINS, encode_vector(unknown))
            link.add_record(ASK_SEEN, b"")
            return
        link.introductions = 0
        self._when_complete(link, lambda at: self._gather(link, at), now)

    def _gather(self, link: Link, now: float) -> None:
        """Tell the other neighbours which brokers are behind a link that is about to join, then
        pull from them what it lacks: in this order, so that no message is missed in between."""
        if link.seen is None or not link.forwarding or link.behind:
            return
        self._directory.ready(link)
        self._directory.settle(now)
        self._strategy.settle(now)  # the new brokers may route by another strategy
        for key, theirs in link.seen.items():
            self._pull_missed(key, theirs.lacks, link, now)
        self._unheld(lambda at: self._gathered(link, at), now)

    def _gathered(self, link: Link, now: float) -> None:
        ready = link.seen is not None and link.forwarding and not link.behind
        # A link that is not posted left the tree and is about to gather again.
        if ready and self._directory.named(link) and link not in self._joining:
            self._join(link, now)

    def hold(self) -> None:
        """Replay nothing before `release`."""
        if self._held is None:
            self._held = []

    def release(self, now: float) -> None:
        """Go on with what was to be replayed meanwhile. `now`: s."""
        held, self._held = self._held or [], None
        for call in held:
            call(now)

    def _unheld(self, call: Callable[[float], None], now: float) -> None:
        if self._held is None:
            call(now)
        else:
            self._held.append(call)

    def _when_complete(self, link: Link, then: Callable[[float], None], now: float) -> None:
        """Go on when it is known which brokers are behind a link and which filters they want, as
        that decides what is replayed; or after DIRECTORY_WAIT_S."""
        if not self._strategy.posting or self._directory.complete(link):
            then(now)
        else:
            self._waiting.append((link, now + DIRECTORY_WAIT_S, then))
            self.node.timers.schedule(now + DIRECTORY_WAIT_S, self.proceed)

    def proceed(self, now: float) -> None:
        """Go on with links that waited for the directory."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for entry in waiting:
                link, until, then = entry
                if not link.up:
                    continue
                if now >= until or self._directory.complete(link):
                    then(now)
                else:
                    self._waiting.append(entry)

    def _join(self, link: Link, now: float) -> None:
        """Replay what the neighbour lacks, then make its link live, in the turn in which nothing is
        left to replay. A BREAK first tells the neighbour that messages take another path than
        before, as those of the first step already do."""
        assert link.seen is not None
        self._gap_recovery.entering(link)
        walk = self._joining[link] = self.walk(link, link.seen, lambda at: self._enter(link, at))
        walk.begin(now)

    def _enter(self, link: Link, now: float) -> None:
        # If it is not found, the last step was more than the link's queue takes.
        if self._joining.pop(link, None) is not None:
            link.seen = None
            self.forwarder.enter(link)
            self._alarm.hurry(now)

    def _leave(self, link: Link) -> None:
        """Stop the replay on a link that no longer forwards, or whose queue is too long."""
        walk = self._joining.pop(link, None)
        if walk is not None:
            walk.stop()
            link.seen = None

    def walk(self, link: Link, seen: Vector, then: Callable[[float], None]) -> LogWalk:
        """Return a walk through the log that sends over `link` what the version vector `seen`
        lacks, then calls `then` with the time (s). A neighbour that asks again and again gets no
        more than `max_replay` bytes at full speed."""
        # It has had nothing replayed lately, so it may have the whole log.
        free: bool | None = None

        def may(size: int) -> float:
            nonlocal free
            if free is None:
                free = not link.replayed
            over = link.replayed + size - self._limits.max_replay
            return (
                0.0
                if free or not link.replayed or over <= 0
                else min(link.replayed, over) / self._limits.log_bytes + 1.0
            )

        return self._walks.walk(
            link, seen, lambda entries, at: self._replay(link, entries, at), then, may
        )

    def _replay(self, link: Link, entries: list[LogEntry], now: float) -> None:
        self._starts.tell_ages(link, entries, now)
        for entry in entries:
            data = entry.data(now)
            link.replayed += len(data)
            link.conn.send(data)
            self.node.counters.replayed += entry.count
            self.node.counters.link_bytes_data += len(data)

    # ---------------------------------------------------------------- history

    def _pull_missed(self, key: bytes, lacks: Ranges, link: Link, now: float) -> None:
        """Pull those numbers of an origin that is gone that were history here and that the
        neighbour at the end of `link` lacks: from now on they count as missing here."""
        window = self.forwarder.vector.get(key)
        if window is not None and self._orphans.is_gone(key):
            self._pulls.want(key, window.miss(lacks), now, link)

    def gather(
        self, key: bytes, lacks: Ranges, link: Link, then: Callable[[float], None], now: float
    ) -> None:
        """Pull from other neighbours what of the origin `key` the one at the end of `link` `lacks`
        and was history here, then call `then`, when the brokers behind it are known. `now`: s."""

        def pull(at: float) -> None:
            self._directory.settle(at)  # new brokers behind this link are posted first
            self._pull_missed(key, lacks, link, at)
            then(at)

        self._when_complete(link, pull, now)

    # ---------------------------------------------------------------- origins that are gone

    def route_changed(self, event: RouteChanged) -> None:
        """Exchange the messages of a broker that is gone with the neighbours."""
        if event.via is None:
            self.exchange()

    def origin_lost(self, event: OriginLost) -> None:
        """Exchange the messages of an origin that can no longer be asked with the neighbours."""
        self.exchange()

    def exchange(self) -> None:
        """Exchange version vectors with the neighbours on live links, as an origin is gone:
        they may have got other messages of it."""
        if not self._strategy.source_rooted:
            return  # messages took the spanning tree, so neighbours have had the same ones
        for link in self.node.forwarding:
            self.send_seen(link)
            link.add_record(ASK_SEEN, b"")

    def succeeded(self, keys: Iterable[bytes], now: float) -> None:
        """Note at `now` (s) that the forwarder has taken all that the standby of a broker that is
        gone, this one, has of its origins `keys`."""
        for key in keys:
            self._gap_recovery.succeed(key, now)
        if keys:
            self.exchange()

    def _send_orphans(self, link: Link, seen: Vector, now: float) -> None:
        """Send a neighbour on a live link what it lacks of origins that are gone."""
        lacking = self._orphans.lacked(seen)
        if lacking and self._strategy.source_rooted:
            self.walk(link, lacking, lambda at: None).begin(now)

    # ---------------------------------------------------------------- links

    def link_left(self, event: LinkDown | LinkBehind) -> None:
        """Stop the replay over a link that is gone, or until its queue has drained."""
        self._leave(event.link)

    def link_drained(self, event: LinkDrained) -> None:
        """Ask the neighbour for its version vector, to go on from there."""
        link = event.link
        if link.forwarding and not link.vector_asked:
            link.vector_asked = True
            link.add_record(ASK_SEEN, b"")
