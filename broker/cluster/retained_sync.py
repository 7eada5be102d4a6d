"""Retained synchronisation: the last write of a topic wins on every broker, even on those that were
away when it was published.

A retained PUBLISH carries the time of its writing (`Stamp`, hybrid clock), and is flooded to all
brokers. A broker may still miss some: it joined later, or was cut off for longer than logs last.
What it missed comes with a comparison (`retained_comparison`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from mqttree.broker.base import costs
from mqttree.broker.base.hybrid_clock import LOGICAL, MAX_CLOCK_AHEAD_S, HybridClock
from mqttree.broker.base.sequence_set import find
from mqttree.broker.cluster.delivery.replay_log import LogEntry
from mqttree.broker.cluster.link.message_batch import encode_message
from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.cluster.ports import MemberBroker
from mqttree.broker.core.message import Message, Stamp
from mqttree.broker.core.retained_index import RetainedVersion, place_of
from mqttree.broker.core.retained_store import Change
from mqttree.broker.core.session import Session
from mqttree.broker.wire.strings import is_own_name, shorten

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.forwarder import Forwarder
    from mqttree.broker.cluster.delivery.gap_recovery import GapRecovery
    from mqttree.broker.cluster.delivery.link_acks import LinkAcks
    from mqttree.broker.cluster.link.link import Link
    from mqttree.broker.cluster.retained_comparison import RetainedComparison
    from mqttree.broker.cluster.sessions.evaluated import Evaluated
    from mqttree.broker.cluster.sessions.session_history import SessionHistory
    from mqttree.broker.cluster.strategy.routing_strategy import MessageHops
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.wills import Wills


LATE = 1000 << LOGICAL
"""Times before a newer connection of a client began that are left for what is published later in
the name of the older one: a second."""

YOUNG = 100 << LOGICAL
"""Times after a connection began in which other brokers may not have heard of it: its client may
have gone to one of them before what it wrote here is read."""


class RetainingBroker(MemberBroker, Protocol):
    """One broker whose retained messages other brokers keep, too."""

    @property
    def retained_watchers(self) -> dict[str, Callable[[bytes, float], None]]:
        """Client id -> called with the topic of each retained message that this client has
        published, and the time (s)."""

    @property
    def wills(self) -> Wills:
        """Knows whose connections ended when this broker did."""

    def retain(self, message: Message) -> None:
        """Note that a message has become the retained one of its topic."""


class RetainedSync:
    """Stamps and takes retained messages."""

    def __init__(
        self,
        node: RetainingBroker,
        *,
        clock: HybridClock,
        forwarder: Forwarder,
        strategy: MessageHops,
        acks: LinkAcks,
        gap_recovery: GapRecovery,
        evaluated: Evaluated,
        history: SessionHistory,
        comparison: RetainedComparison,
        stopped: Callable[[float], float | None],
    ) -> None:
        """`node`: this broker; `clock`: makes the stamps of writes; `forwarder`: numbers and passes
        on messages; `strategy`: which links they take; `acks`: says whether the log has room;
        `gap_recovery`: holds messages back until older ones have come; `evaluated`: delivers
        to sessions that lack a message; `history`: notes what sessions got; `comparison`: with
        neighbours, brings what is missing here; `stopped`: returns when (s) this broker stopped if
        it has just gone on at a time (s)."""
        self.node = node
        self._limits = node.limits
        self.store = node.retained
        self._digests = self.store.digests
        self.clock = clock
        self._forwarder = forwarder
        self._strategy = strategy
        self._acks = acks
        self._gap_recovery = gap_recovery
        self._evaluated = evaluated
        self._history = history
        self._comparison = comparison
        self._stopped = stopped
        self._sweeping = False

    # ---------------------------------------------------------------- writes

    def written(self, message: Message, source: Connection | None, *, tell: bool = True) -> None:
        """Stamp and keep a retained `message` that is published here; one of the broker's own
        topics stays here. `source`: its publisher, which is answered once that is durable. `tell`:
        plugins, too."""
        node = self.node
        if is_own_name(message.topic):
            if (
                node.config.retain_available
                and self.store.store(message.topic.decode(), message.as_retained())
                and tell
            ):
                node.retain(message)
            return
        message.stamp = self.stamp_for(message)
        self._take(message, self._forwarder.key, 0, node.now, source, tell)
        sender = message.sender
        if node.retained_watchers and isinstance(sender, Session):
            watcher = node.retained_watchers.get(sender.client_id)
            if watcher is not None:
                watcher(message.topic, node.now)

    def put(self, message: Message) -> None:
        """Keep or delete a retained message without publishing it: subscribers here get nothing,
        and plugins do not hear of it."""
        self.written(message, None, tell=False)
        version = self._digests.get(place_of(message.topic))
        if version is not None and not is_own_name(message.topic):
            self._comparison.pass_on(
                None, self._comparison.encode(version, self.node.now), self.node.now
            )

    def stamp_for(self, message: Message) -> Stamp:
        """Return the stamp of what is published now; it wins over what is known of its topic, but
        not over what a newer connection of the same client writes."""
        now = self.node.now
        version = self._digests.get(place_of(message.topic))
        time = self._time_of(message.sender, version, now)
        expires_at_ms = 0 if message.payload else time >> LOGICAL
        if message.payload and message.expires_at is not None:
            begin = max(time >> LOGICAL, self.clock.physical(now))
            expires_at_ms = begin + max(0, round((message.expires_at - now) * 1000))
        return Stamp(time, expires_at_ms)

    def _time_of(self, sender: object, version: RetainedVersion | None, now: float) -> int:
        """Return the time of a write, where `version` is what is known of its topic. It wins over
        that, unless its client may have connected to another broker since it sent this, or left it
        as its will: then it counts as of before that connection; and if this broker knows of none,
        as of when it was sent. The will of a connection that ended when this broker was killed
        wins over what the broker knew then."""
        above = 0 if version is None else version.time
        if isinstance(sender, Session) and self.node.wills.is_restored(sender):
            if version is not None and not self._known_before_start(version):
                above = 0
            return self.clock.at(sender.heard, max(above, sender.stamp))
        if not isinstance(sender, Session) or not self.node.federated:
            return self.clock.tick(now, above)
        if (newest := sender.successor) > 0:
            return max(1, min(max(above, newest - LATE) + 1, newest - 1))
        conn, stopped = sender.conn, self._stopped(now)
        sent = sender.heard if conn is None else conn.last_heard
        if stopped is not None and sender.stamp <= self.clock.at(stopped):
            # It waited in a socket, perhaps since before this broker stood still.
            sent = min(sent, stopped)
        if self.clock.at(sent) < sender.stamp + YOUNG:
            return self.clock.at(0.0, max(above, sender.stamp))
        if sent >= now:
            return self.clock.tick(now, above)
        return self.clock.at(sent, max(above, sender.stamp))

    def _known_before_start(self, version: RetainedVersion) -> bool:
        """Whether this broker knew of a write before it was started; of one that it took itself
        although its journal has lost that."""
        own = self._forwarder.key
        return version.time <= self.node.wills.restored_until or (
            version.key != own and split_key(version.key)[0] == split_key(own)[0]
        )

    def numbered(self, message: Message, sequence: int) -> None:
        """Note the number of a message that is flooded: by it copies of it are known."""
        version = self._digests.get(place_of(message.topic))
        if version is not None and version.time == message.stamp.time:
            version.sequence = sequence
            self._digests.put(version)
            self.node.journal.retained_changed(version)

    def received(
        self, message: Message, key: bytes, sequence: int, now: float, source: Connection | None
    ) -> bool:
        """Take a retained `message` that was published or forwarded just now; returns whether it is
        new to local subscribers.

        `key`, `sequence`: its origin and its number there; `now`: s; `source`: the link that it
        came on, None: an answer brought it, to this broker alone.
        """
        change = self._take(message, key, sequence, now, source)
        if source is None and change >= Change.DROPPED:
            self._comparison.kept(now)
        return change is Change.NEW

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
        change = self.store.write(message.as_retained(), version, now, self.clock.physical(now))
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
        an expired one, or the deletion of a message that was not here. One that belongs in the log
        is not taken while the log is full: the next comparison brings it again.

        Raises:
            MalformedPacket: its origin is invalid.
        """
        forwarder = self._forwarder
        window = forwarder.vector.get(key)
        if window is None:
            split_key(key)
        self._comparison.brought(link, now)
        # It is from before this broker met its origin: if it still arrives over a link, it is
        # passed on to others only.
        old = window is not None and sequence <= window.begin
        # No log has an older one any more: no broker asks for it by its number.
        logged = not old and sequence and message.stamp.time >> LOGICAL > self._oldest(now)
        if logged and self._acks.holding:
            # It would push out what neighbours have not acknowledged.
            self.node.counters.retained_dropped += 1
            return
        change = self._take(message, key, sequence, now, None)
        if change < Change.DROPPED:
            return
        self.node.counters.retained_restored += 1
        self._comparison.taken(now)
        gone = message.expired(now) or (
            not message.payload and message.stamp.expires_at_ms != message.stamp.time >> LOGICAL
        )
        fresh = True
        paths: Sequence[Link] = ()
        if logged:
            new = forwarder.accept(key, sequence, 1, now)
            if new:
                # Brokers behind this one on the origin's tree take what comes from here for
                # complete: they would count its number as not meant for them.
                paths = self._strategy.everywhere(key)
            fresh = bool(new) or (window is not None and sequence <= window.begin)
            if new and not gone:
                # If it still arrives over a link, it is not passed on: neighbours that lack it ask
                # this broker.
                message.stamp = message.stamp._replace(restored=False)
                single = encode_message(message, key, sequence, now)
                entry = LogEntry(key, sequence, 1, single, now)
                # No connection is held if it fills the log: this is not what a publisher behind
                # the link sends now, and a comparison is not slowed down by holding one.
                forwarder.log.append(entry, None)
                feed = forwarder.vector[key].feed
                if feed is not None and feed.holds(sequence):
                    self._gap_recovery.hold(feed, entry)
                    fresh = False
                else:
                    fresh = True
        elif not old and sequence and window is not None:
            # A number that no subscriber wanted before has not been here, either.
            unwanted = find(window.history, sequence, sequence) >= 0
            fresh = sequence <= window.begin or window.missing(sequence) or unwanted
        self._comparison.pass_on(link, data, now, paths)
        if fresh and change is not Change.TAKEN and not gone:
            if self.node.sessions and sequence:
                self._history.retained_synced(key, sequence, message)
            self._evaluated.restored(key, sequence, message)

    def _oldest(self, now: float) -> float:
        """Return the time (ms since the epoch) up to which messages are in no log any more, and in
        no tail of one, whatever the clocks say."""
        age = self._limits.absent_max_s + self._limits.log_age_s + MAX_CLOCK_AHEAD_S
        return self.clock.physical(now) - age * 1000

    def tick(self, now: float) -> None:
        """Forget messages that have expired; `now`: s."""
        if not self._sweeping:
            self._sweep(now)

    def _sweep(self, now: float) -> None:
        """Forget expired messages, in as many turns as it takes."""
        self._sweeping = self.store.sweep(now, self.clock.physical(now))
        if self._sweeping:
            self.node.turns.work += self._limits.turn_work // 2
            self.node.turns.later(self._sweep)
