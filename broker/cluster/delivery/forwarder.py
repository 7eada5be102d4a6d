"""Forwarding of messages between brokers: each message crosses a broker at most once.

Every broker numbers the messages that are published on it; (origin, boot number, sequence number)
travels with the message. A broker accepts a message once, from whichever link it comes, delivers it
and passes it on over its other links, as the routing strategy says. Messages at QoS 1 and 2 and
retained messages stay in the replay log for a while, from which `Resync` replays what a neighbour
lacks before its link is live.

A broker that meets an origin delivers what is published from then on; what is older is history. If
the first messages of a new origin are lost on the way, they must not be taken for history: so a new
origin is made known (ORIGINS) over all links ahead of its messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest
from typing import TYPE_CHECKING, Final

from mqttree.broker.base.sequence_set import LAST, MAX_SKIPS, Ranges, merge, subtract, within
from mqttree.broker.cluster.delivery.local_window import LocalWindow
from mqttree.broker.cluster.delivery.ordered_feed import Verdict
from mqttree.broker.cluster.delivery.outgoing_batch import OutgoingBatch, Sender
from mqttree.broker.cluster.delivery.replay_log import LogEntry
from mqttree.broker.cluster.link.control_records import ORIGINS
from mqttree.broker.cluster.link.link_states import Action, Input
from mqttree.broker.cluster.link.message_batch import encode_batch, encode_message
from mqttree.broker.cluster.link.origin_keys import lone_key, split_key
from mqttree.broker.cluster.link.version_vector import OriginWindow, Vector, encode_vector
from mqttree.broker.core.message import Message
from mqttree.broker.core.ports import LoneNumbers
from mqttree.broker.core.session import Session
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.broker.wire.strings import is_own_name

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.gap_recovery import GapRecovery
    from mqttree.broker.cluster.delivery.ordered_feed import OrderedFeed
    from mqttree.broker.cluster.delivery.origins import Origins
    from mqttree.broker.cluster.delivery.ports import Above, DeliveringBroker
    from mqttree.broker.cluster.delivery.remote_flow_control import RemoteFlowControl
    from mqttree.broker.cluster.delivery.replay_log import ReplayLog
    from mqttree.broker.cluster.events import LinkBehind, LinkDown
    from mqttree.broker.cluster.link.link import Link
    from mqttree.broker.cluster.strategy.routing_strategy import MessageHops
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.receiver_assignment import ReceiverAssignment
    from mqttree.broker.core.route import Route

MAX_QUIET_ORIGINS: Final = 1024
"""of these, origins of which nothing was heard lately; of more that a neighbour tells us we
take no note, before they publish. It may make them up, and must not fill the table of the whole
federation."""

FORGET_S: Final = 3600.0
"""s; an origin that published nothing for so long is forgotten: no log has its messages. The last
incarnation of a broker that is expected to be there, or back, is not: otherwise all that it
publishes later would count as published before it was met."""

QUIET_S: Final = FORGET_S / 2
"""s; an origin that published nothing for so long counts as quiet. So does an origin that only a
neighbour has announced."""


class Forwarder(Sender):
    """Forwards messages that are published here or arrive over links, and keeps the list of live
    links."""

    def __init__(
        self,
        node: DeliveringBroker,
        *,
        origins: Origins,
        log: ReplayLog,
        links: Mapping[bytes, Link],
        strategy: MessageHops,
        gap_recovery: GapRecovery,
        flow_control: RemoteFlowControl,
        above: Above,
    ) -> None:
        """`node`: this broker; `links`: those that are up, by the neighbour's id; `strategy`: which
        links a message takes; `flow_control`: whether publishers are held; `above`: the floors
        above delivery; `origins`, `log`, `gap_recovery`: the modules that it uses."""
        self.node = node
        self._limits = node.limits
        # What each message needs.
        self._counters = node.counters
        self._dirty = node.dirty
        self._origins = origins
        self.key = origins.key
        self.own = origins.own
        self.vector = origins.vector
        self.ours = origins.ours
        self.log = log
        # Origin -> last number at QoS 0, which is not kept and has numbers of its own.
        self.runs: dict[bytes, int] = {}
        self.own_runs = 0
        self.lone = LoneNumbers(lone_key(*split_key(origins.key)))
        self._highest = origins.highest
        self._links_by_id = links
        self._strategy = strategy
        self._links_of = strategy.links_of
        self._passes_on = strategy.passes_on
        self._links_onward = strategy.links_onward
        self._everywhere = strategy.everywhere
        self._assigned = strategy.assigned
        self._announce_path_change = strategy.announce_path_change
        self._gap_recovery = gap_recovery
        self.remote_flow_control = flow_control
        self._above = above

    # ---------------------------------------------------------------- published here

    def forward(
        self,
        message: Message,
        source: Connection | None,
        choice: ReceiverAssignment | None = None,
    ) -> None:
        """Number a `message` that was published here, and pass it on.

        `source`: its publisher, which is held while other brokers, the log or the journal are
        behind; None: no connection has to wait. `choice`: which members of shared subscriptions
        get it.
        """
        if is_own_name(message.topic):
            return
        node = self.node
        if not node.federated:
            if message.qos:
                self.lone.name(message)
            return
        if message.qos or message.retain:
            links = self._links(message, choice)
            self.own.top = sequence = self.own.top + 1
            message.named(self.key, sequence)
            data = encode_message(message, self.key, sequence, node.now, choice)
            entry = LogEntry(self.key, sequence, 1, data, node.now)
            self.log.append(entry, source)
            if choice is not None:
                self.log.chosen = self.log.end
            if message.qos and node.journal.recording:
                node.journal.logged(entry, source)
            if message.retain:
                self._above.retained_sync.numbered(message, sequence)
            if (
                self.remote_flow_control.held
                and message.qos
                and isinstance(message.sender, Session)
            ):
                self.remote_flow_control.hold_if_paused(message.topic, source)
        elif node.forwarding and (links := self._links(message, choice)):
            self.own_runs += 1
            data = encode_message(message, self.key, self.own_runs, node.now, choice)
        else:
            return
        if links:
            self.send(data, 1, links, None)

    def _links(self, message: Message, choice: ReceiverAssignment | None) -> list[Link]:
        """Return the links that a message takes which was published here: a retained one is wanted
        by every broker."""
        if message.retain:
            return self._everywhere(self.key)
        links = self._links_of(self._route(message.topic))
        return links if choice is None else self._assigned(choice, links, self.key)

    def _route(self, topic: bytes) -> Route:
        dispatcher = self.node.dispatcher
        return dispatcher.routes.get(topic) or dispatcher.route(topic)

    def outgoing(self, data: bytes, version: int, source: Connection) -> OutgoingBatch:
        """Return what collects the packets of a chunk (`data`, of MQTT `version`) that came on the
        connection `source`."""
        generation = self._strategy.generation
        return OutgoingBatch(self, self._links_of, generation, data, version, source, self.key)

    def last_number(self) -> int:
        """Return the number of the last message at QoS 1 or 2 that was published here."""
        return self.own.top

    def forward_packet(self, route: Route, packet: bytes, version: int, source: Connection) -> None:
        """Number a QoS 0 packet that was published here, and send it over the links of its `route`
        as a batch of one, if it has any.

        `packet`: the whole of it, of MQTT `version`; `source`: the connection on which it came.
        """
        links = self._links_of(route)
        if links:
            self.own_runs += 1
            data = encode_batch(self.key, self.own_runs, packet, 1, 5 if version == 5 else 4, 0)
            self.send(data, 1, links, None)

    def forward_batch(
        self,
        packets: bytes,
        count: int,
        version: int,
        qos: int,
        links: list[Link],
        source: Connection,
    ) -> None:
        """Number packets that were published here, log them at QoS 1 and 2, and send them over
        `links` as one batch. `packets`: `count` PUBLISH packets of MQTT `version` and this `qos`;
        `source`: as of `forward`."""
        if not qos:
            sequence = self.own_runs + 1
            self.own_runs += count
            data = encode_batch(self.key, sequence, packets, count, version, 0)
            self.send(data, count, links, None)
            return
        sequence = self.own.top + 1
        self.own.top += count
        data = encode_batch(self.key, sequence, packets, count, version, qos)
        entry = LogEntry(self.key, sequence, count, data, self.node.now)
        self.log.append(entry, source)
        if self.node.journal.recording:
            self.node.journal.logged(entry, source)
        self.send(data, count, links, None)
        if self.remote_flow_control.held:
            for topic in entry.topics():
                self.remote_flow_control.hold_if_paused(topic, source)

    def send(self, data: bytes, count: int, links: list[Link], source: Link | None) -> None:
        """Send `count` messages (`data`) over `links`, but not over the `source`, from which they
        came."""
        for link in links:
            if link is not source:
                conn = link.conn
                outbox = conn.outbox
                if not outbox:
                    self._dirty.append(conn)
                outbox.append(data)
                conn.traffic.forwarded += count
                self._counters.link_bytes_data += len(data)

    # ---------------------------------------------------------------- received

    def accept(self, key: bytes, first: int, count: int, now: float, late: bool = True) -> int:
        """Accept `count` sequence numbers of the origin `key`, from `first` on; `now`: s. Returns
        `count` if all are new, 0 if none is, -1 if some are.

        `late`: also those that newer ones have overtaken. Not at QoS 0, where they are dropped to
        keep the order.
        """
        if not late:
            return self.accept_unlogged(key, first, count)
        window = self.vector.get(key)
        if window is None:
            window = self._meet(key, OriginWindow(first - 1, now), now)
            self._make_known({key: window}, None)
        elif window is self.own:
            return 0
        window.heard = now
        if self.node.journal.recording:
            self.node.journal.origin_seen(key)
        return window.accept(first, count)

    def accept_unlogged(self, key: bytes, first: int, count: int) -> int:
        """Accept `count` numbers of the origin `key` at QoS 0, from `first` on, if all are behind
        those that came before. Returns `count` or 0."""
        runs = self.runs
        top = runs.get(key)
        if top is None:
            if key == self.key:
                return 0
            if len(runs) >= self._limits.max_origins:
                for old in list(runs)[: self._limits.max_origins // 16]:
                    del runs[old]
        elif first <= top:
            return 0
        runs[key] = first + count - 1
        return count

    def _meet(self, key: bytes, known: OriginWindow, now: float) -> LocalWindow:
        """Begin with the origin `key` where a neighbour is (`known`)."""
        broker_id, boot = split_key(key)
        if len(self.vector) >= self._limits.max_origins:
            others = (k for k in self.vector if k != self.key)
            for oldest in nsmallest(
                self._limits.max_origins // 16, others, key=lambda k: self.vector[k].heard
            ):
                # Some at a time, as finding them takes a walk through all.
                del self.vector[oldest]
                self._highest.pop(oldest, None)
        if boot >= self._origins.since and broker_id != self._origins.own_id:
            # It started after this broker, or in the same second (boot numbers are seconds where
            # they can be): this broker missed what it published until now, or no client here had
            # subscribed by then.
            window = self.vector[key] = LocalWindow(
                0, now, self.node.counters, self._limits.max_gaps
            )
            self._gap_recovery.met(key, window)
            return window
        window = self.vector[key] = LocalWindow(
            known.top, now, self.node.counters, self._limits.max_gaps
        )
        window.begin = known.top
        if known.top:
            window.history = [(1, known.top)]
        if broker_id == self._origins.own_id:
            # An earlier incarnation of this broker: its subscribers went with it.
            window.begin = LAST
        self._gap_recovery.met(key, window)
        return window

    def _make_known(self, origins: Vector, source: Link | None) -> None:
        """Tell all neighbours of origins that are new here, ahead of their messages."""
        if not origins:
            return
        body = encode_vector(origins)
        for link in self._links_by_id.values():
            if link is not source and link.up:
                link.add_record(ORIGINS, body)
                self._note_told(link, origins)

    def _note_told(self, link: Link, origins: Vector) -> None:
        """Note that a neighbour knows of origins that are new here, and begins with them where this
        broker does: it lacks what they publish before its link is live."""
        if link.seen is not None:
            for key, window in origins.items():
                if key not in link.seen:
                    theirs = link.seen[key] = OriginWindow(window.top, self.node.now)
                    theirs.gaps = list(window.gaps)

    def learn(self, seen: Vector, link: Link, now: float) -> None:
        """Begin with the origins that a neighbour knows and that are new here where that neighbour
        is. `seen`: its version vector, which came over `link`; `now`: s.

        Raises:
            MalformedPacket: it has numbers that no broker reaches.
        """
        if any(window.top >= LAST for window in seen.values()):
            raise MalformedPacket("version vector with a sequence number out of range")
        # Origins of which only other brokers tell are dropped first when the table is full, and are
        # not taken in place of others: they would circulate for ever.
        quiet = sum(window.heard <= now - QUIET_S for window in self.vector.values())
        room = min(self._limits.max_origins - len(self.vector), MAX_QUIET_ORIGINS - quiet)
        new = {key: window for key, window in seen.items() if key not in self.vector}
        for key in list(new)[: max(0, room)]:
            new[key] = self._meet(key, new[key], now)
            new[key].heard = now - QUIET_S
            self.node.journal.origin_added(key)
        self._make_known({key: new[key] for key in new if key in self.vector}, link)

    def received(
        self,
        link: Link,
        entry: LogEntry,
        message: Message,
        choice: ReceiverAssignment | None,
        now: float,
    ) -> None:
        """Deliver the `message` of an `entry` of one, which came over `link` at `now` (s), to local
        subscribers, and pass it on byte for byte. `choice`: which members of shared subscriptions
        get it, if it has been chosen."""
        link.conn.traffic.received += 1
        verdict = Verdict.DELIVER
        if message.qos or message.retain:
            link.arrival = (entry.key, message.topic, now)
            verdict = self._log(link, entry)
        self._pass_on(link, entry, message, choice)
        new = False
        # What has expired on the way, or in the log of another broker, counts as having been here.
        if message.expired(now):
            self.node.counters.expired += 1
        elif message.retain:
            new = self._above.retained_sync.received(
                message, entry.key, entry.sequence, now, link.conn
            )
        match verdict:
            case Verdict.HOLD:
                feed = self.vector[entry.key].feed
                assert feed is not None  # nothing else holds messages
                self._gap_recovery.hold(feed, entry)
            case Verdict.DELIVER if not message.expired(now):
                self._deliver(link, entry, message, choice, ordinary=True)
            case Verdict.PAST if not message.expired(now):
                self._deliver(link, entry, message, choice, ordinary=new)

    def _log(self, link: Link, entry: LogEntry) -> Verdict:
        """Keep a message that came over `link` for other brokers, and return what local subscribers
        get of it."""
        window = self.vector[entry.key]
        feed = window.feed
        kept = feed is not None and feed.was_kept(entry.sequence)
        if not kept:
            self.log.append(entry, link.conn)
        verdict = (
            window.verdict(entry.sequence) if feed is None else feed.verdict(link, entry.sequence)
        )
        self._announce_path_change(entry.key, window.feed, link)
        return Verdict.KEPT if kept and verdict is not Verdict.DELIVER else verdict

    def _pass_on(
        self, link: Link, entry: LogEntry, message: Message, choice: ReceiverAssignment | None
    ) -> None:
        """Send a message over the other links that lead to its receivers."""
        if message.retain:
            links = self._everywhere(entry.key)
        elif self._passes_on(entry.key, link):
            links = self._links_onward(self._route(message.topic), entry.key, link)
            if choice is not None:
                links = self._assigned(choice, links, entry.key)
        else:
            return
        self.send(entry.kept(), 1, links, link)

    def _deliver(
        self,
        link: Link,
        entry: LogEntry,
        message: Message,
        choice: ReceiverAssignment | None,
        *,
        ordinary: bool,
    ) -> None:
        """Deliver a message that came over `link` to the local members of shared subscriptions that
        were chosen, and (`ordinary`) to all other subscribers."""
        late = entry.sequence <= self._highest.get(entry.key, 0)
        if ordinary and late and (message.qos or message.retain):
            self._above.evaluated.deliver(entry.key, entry.sequence, message, choice, link.conn)
        elif choice is not None:
            self._above.sharing.received(message, choice, link.conn, ordinary=ordinary)
        elif ordinary:
            self.node.dispatcher.publish(message, link.conn, ())

    def singly(self, key: bytes, sequence: int) -> bool:
        """Whether the consecutive numbers from `sequence` on are to be taken one by one: what
        becomes of them may differ."""
        return sequence <= self._highest.get(key, 0) or self._mixed(key, sequence)

    def admit(self, key: bytes, link: Link) -> OrderedFeed | None:
        """Note that messages of the origin `key` that came over `link` are about to be passed on;
        returns the feed of the origin."""
        feed = self.vector[key].feed
        self._announce_path_change(key, feed, link)
        return feed

    def _mixed(self, key: bytes, sequence: int) -> bool:
        """Whether of the consecutive numbers from `sequence` on some may be for local subscribers
        and some not."""
        feed = self.vector[key].feed
        return feed is not None and (
            sequence <= feed.kept_top
            or (bool(feed.outstanding) and sequence <= feed.outstanding[-1][1])
        )

    def missing(self, key: bytes, first: int, last: int) -> tuple[Ranges, Ranges]:
        """Return which of the numbers `first` to `last` of the origin `key` were not wanted here,
        and which have not been here."""
        window = self.vector.get(key)
        if window is None:
            return [], [(first, last)]
        return within(window.history, first, last), within(window.lacks, first, last)

    def succeed(self, entry: LogEntry, now: float) -> None:
        """Take those messages of an `entry` of a broker that is gone that have not been here, at
        `now` (s): its standby has them. They go to local subscribers, and over live links."""
        key = entry.key
        unwanted, numbers = self.missing(key, entry.sequence, entry.sequence + entry.count - 1)
        window = self.vector.get(key)
        feed = None if window is None else window.feed
        kept = [] if feed is None else feed.kept
        for part in entry.parts(subtract(merge([*unwanted, *numbers]), kept)):
            self.log.append(part, None)
        # Sessions may want that come later.
        for low, high in unwanted:
            if feed is None:
                self.accept(key, low, high - low + 1, now)
            else:
                feed.keep(low, high)
        for part in entry.parts(numbers):
            self.accept(key, part.sequence, part.count, now)
            if not self._strategy.source_rooted:
                self.send(part.kept(), part.count, self.node.forwarding, None)
            choice, feed = part.choice, self.vector[key].feed
            for number, message in part.messages():
                message.named(key, number)
                if message.retain:
                    self._above.retained_sync.received(message, key, number, now, None)
                if feed is not None:
                    self._gap_recovery.put_by(feed, number, message, choice)
                elif choice is not None:
                    self._above.sharing.received(message, choice, None, ordinary=True)
                else:
                    self.node.dispatcher.publish(message, None, ())

    # ---------------------------------------------------------------- live links

    def enter(self, link: Link) -> None:
        """Make a link live: its neighbour has had the older messages."""
        if not link.live and link.move(Input.REPLAYED) is Action.CHANGE:
            self._refresh()
            self._above.retained_comparison.entered(link)

    def link_left(self, event: LinkDown | LinkBehind) -> None:
        """Stop sending on a link that is gone, or whose queue is too long."""
        self.leave(event.link)

    @property
    def live_links(self) -> list[Link]:
        """The live links of this broker. A new list replaces it at each change."""
        return self.node.forwarding

    def leave(self, link: Link) -> None:
        """Remove a link from the live ones."""
        if link.live:
            link.move(Input.TAKEN_OUT)
        if link in self.node.forwarding:
            self._refresh()
            self._above.retained_comparison.left(link)

    def _refresh(self) -> None:
        self.node.forwarding = [link for link in self._links_by_id.values() if link.live]
        self._strategy.on_live_links_changed()

    # ---------------------------------------------------------------- time

    def _limit_ranges(self) -> None:
        """Give up the missing numbers of very many origins, the oldest first: other brokers may
        make origins up."""
        windows = self.vector.values()
        if (
            len(windows) * 3 * MAX_SKIPS <= self._limits.max_ranges
            or sum(w.ranges for w in windows) <= self._limits.max_ranges
        ):
            return
        most = self._limits.max_ranges // (4 * len(windows))
        self.node.counters.gaps_forgotten += sum(window.give_up(most) for window in windows)

    def sweep(self, now: float) -> None:
        """Forget origins that published nothing for FORGET_S, and the missing numbers of
        very many. To be called once a second."""
        self._limit_ranges()
        for link in self._links_by_id.values():
            link.replayed = max(0, link.replayed - self._limits.log_bytes)
        old = [k for k, w in self.vector.items() if w.heard + FORGET_S < now and k != self.key]
        expected = self._expected(old) if old else ()
        for key in old:
            if key not in expected and self._origins.forget(key):
                self._gap_recovery.tell_earlier()

    def _expected(self, keys: list[bytes]) -> set[bytes]:
        """Return which of these origins may publish again, or have published what is not known here
        yet."""
        newest: dict[bytes, int] = {}
        for broker_id, boot in map(split_key, self.vector):
            newest[broker_id] = max(newest.get(broker_id, 0), boot)
        expects = self._above.absent_members.expects
        return {
            key
            for key, (broker_id, boot) in zip(keys, map(split_key, keys), strict=True)
            if expects(broker_id, newest=boot == newest[broker_id])
        }
