"""Local subscribers get the messages of each origin without gaps and in order
(docs/decisions/0013).

A message crosses only links that have subscribers behind them. So sequence numbers are missing here
of messages that no local subscriber wanted. Only the origin knows which numbers these are, and it
is asked only when a message may have been lost on the way. Until then everything that is wanted
here comes over the link that leads to the origin, in order: that link is the source of the origin's
feed. A feed loses its source when the path to the origin or the path back changes: a broker that
finds a new path to another broker sends it a BREAK, and only then messages over the new path. From
then on the broker here still passes messages on to its neighbours, but it holds them back from its
own subscribers until the origin has sent what is missing:

    PULL     to the origin: what is not here, and when subscriptions were made meanwhile
    ENTRIES  back, behind the messages that are on their way: of that, what is wanted here; "up to
             number n that is all"

A broker on the path passes an ENTRIES on over a live link only, and only while it knows all
filters that the asking broker had posted when it asked. So what is published behind the answer
takes the same path, or a BREAK precedes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from mqttree.broker.base.sequence_set import Ranges, find, intersect, merge, subtract
from mqttree.broker.cluster.delivery.feed_states import Action, Input, State
from mqttree.broker.cluster.delivery.local_window import LocalWindow
from mqttree.broker.cluster.delivery.ordered_feed import RETRY, HeldBatch, HeldMessage, OrderedFeed
from mqttree.broker.cluster.delivery.origin_feeds import PATIENCE_S, OriginFeeds
from mqttree.broker.cluster.delivery.origin_questions import MAX_QUESTIONS, OriginQuestions
from mqttree.broker.cluster.delivery.orphans import EARLIER
from mqttree.broker.cluster.delivery.paced_release import PacedRelease
from mqttree.broker.cluster.delivery.subscription_start import newest
from mqttree.broker.cluster.delivery.tree_paths import HOLD_S, TreePaths
from mqttree.broker.cluster.directory.link_state_directory import (
    ROUTING,
    SUCCEEDED,
    decode_succeeded,
)
from mqttree.broker.cluster.events import ClusterEvents, LinkDown, OriginLost, RouteChanged
from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.cluster.strategy.path_change import (
    BREAK,
    CHANGED,
    tell_break,
    tell_break_over,
    tell_changed_over,
)
from mqttree.broker.cluster.strategy.ports import Feed
from mqttree.broker.wire.errors import MalformedPacket

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.origins import Origins
    from mqttree.broker.cluster.delivery.orphans import Orphans
    from mqttree.broker.cluster.delivery.ports import Above, DeliveringBroker
    from mqttree.broker.cluster.delivery.pulls import Pulls
    from mqttree.broker.cluster.delivery.remote_flow_control import RemoteFlowControl
    from mqttree.broker.cluster.delivery.replay_log import LogEntry, ReplayLog
    from mqttree.broker.cluster.delivery.subscription_start import SubscriptionStarts
    from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
    from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
    from mqttree.broker.cluster.link.link import Link
    from mqttree.broker.cluster.strategy.routing_strategy import MessagePaths
    from mqttree.broker.core.message import Message
    from mqttree.broker.core.receiver_assignment import ReceiverAssignment
    from mqttree.broker.core.session import Session

ASK_PAUSE = 0.005
"""s; path changes within this time have one cause, and lead to one question."""

SUCCEEDED_S = 0.2
"""s; longest wait for an origin that has died, from when its standby has said that it has all of
its messages: it sends them before that on the tree, and about then over other paths."""

UNKNOWN_ORIGIN_S = 1.0
"""s; longest wait for an origin that neither the directory nor discovery knows: they learn of it
soon, or never."""


class GapRecovery:
    """The ordered feeds of all origins, and the path changes that are announced to other
    brokers."""

    def __init__(
        self,
        node: DeliveringBroker,
        *,
        origins: Origins,
        log: ReplayLog,
        directory: LinkStateDirectory,
        bus: UnicastBus,
        strategy: MessagePaths,
        flow_control: RemoteFlowControl,
        starts: SubscriptionStarts,
        orphans: Orphans,
        pulls: Pulls,
        events: ClusterEvents,
        above: Above,
        is_member: Callable[[bytes], bool],
    ) -> None:
        """`node`: this broker; `is_member`: whether discovery knows a broker; `events`:
        dispatches that an origin is lost; `flow_control`: holds publishers at origins; `above`: the
        floors above delivery; `origins`, `log`, `directory`, `bus`, `strategy`, `starts`,
        `orphans`, `pulls`: the modules that it uses."""
        config = node.config
        self.node = node
        self._origins = origins
        self._vector = origins.vector
        self._directory = directory
        self._bus = bus
        self._strategy = strategy
        self._ordered = strategy.ordered
        self._orphans = orphans
        self._pulls = pulls
        self._events = events
        self._above = above
        self._link_timeout = config.link_timeout
        self._is_member = is_member
        self._paths = TreePaths(directory)
        # Standby -> origins that it has succeeded -> when it said so (s).
        self._succeeded: dict[bytes, dict[bytes, float]] = {}
        self.feeds = OriginFeeds(node, origins.vector, orphans)
        self.release = PacedRelease(node, origins, self.feeds, flow_control, self, above)
        self._questions = OriginQuestions(
            node,
            feeds=self.feeds,
            release=self.release,
            pulls=pulls,
            log=log,
            database=directory.database,
            bus=bus,
            starts=starts,
            above=above,
            rearm=self.arm,
        )
        # With the boot number: an entry that changes says that the broker at the end of the same
        # path was restarted.
        directory.post(ROUTING, config.boot.to_bytes(4, "big") + config.routing.encode())
        directory.watch(ROUTING[:1], self._posted)
        bus.receive_over(BREAK, self._break_received)
        bus.receive(CHANGED, self._changed_received)
        bus.on_answer = self.on_answer_forwarded

    # ---------------------------------------------------------------- which feeds there are

    def _posted(
        self, broker_id: bytes, key: bytes, value: bytes | None, gone: bool = False
    ) -> None:
        if key == SUCCEEDED[1:]:
            self._on_succeeded(broker_id, decode_succeeded(None if gone else value))
        if key != ROUTING[1:] or value is None:
            return
        self._started(broker_id)
        if self._strategy.source_rooted:
            self._arm_all(broker_id)
        else:
            self.path_changed(broker_id)

    def _on_succeeded(self, standby: bytes, tops: dict[bytes, int]) -> None:
        """Note of which origins a broker has all messages, as their standby. `tops`: the last
        number of each. Of the last ones nothing may have come here, or behind: neighbours are asked
        for what is wanted."""
        before, now = self._succeeded.pop(standby, {}), self.node.now
        if tops:
            self._succeeded[standby] = {key: before.get(key, now) for key in tops}
        for key, top in tops.items():
            window = self._vector.get(key)
            if key not in before and window is not None and window.top < top:
                self.want(key, [(window.top + 1, top)], now)
            self._arm_all(split_key(key)[0])

    def _started(self, broker_id: bytes) -> None:
        """Note that a broker can be reached, perhaps in a new incarnation: questions to the earlier
        incarnation are asked again, and messages that it had not sent yet no longer come over the
        previous path."""
        listing = self._directory.database.listings.get(broker_id)
        if listing is None:
            return
        for feed in self.feeds.of(broker_id):
            if listing.boot != feed.boot and not feed.finished and feed.seen_boot != listing.boot:
                feed.seen_boot = listing.boot
                feed.questions.clear()
                self.lose(feed)
                self._events.dispatch(OriginLost(broker_id))

    def tell_earlier(self) -> None:
        """Post of which earlier incarnations of this broker it still has messages, so that others
        ask it for them."""
        origins = self._origins
        boots = (split_key(key)[1] for key in origins.ours if key != origins.key)
        self._directory.post(EARLIER, b"".join(boot.to_bytes(4, "big") for boot in boots))

    def met(self, key: bytes, window: LocalWindow) -> None:
        """Begin the feed of the origin `key` that is new here; `window`: which of its numbers have
        been here."""
        broker_id, _ = split_key(key)
        if self._ordered and broker_id != self._origins.own_id:
            feed = window.feed = OrderedFeed(self, key, window, max(window.top, window.begin))
            if window.top > window.begin:
                feed.add_outstanding(intersect(window.gaps, [(window.begin + 1, window.top)]))
            self._begin(feed)

    # ---------------------------------------------------------------- paths

    def route_changed(self, event: RouteChanged) -> None:
        """Tell a broker of the new path to it, and ask it for what may have been lost on the old
        one."""
        broker_id = event.broker_id
        old = self._paths.changed(broker_id, event.via, self.node.now)
        if not self._ordered:
            return
        if self._strategy.source_rooted:  # questions take the tree's path, messages do not
            self._arm_all(broker_id)
            return
        # Over the old path, too: messages for others may still take it, and reach the broker ahead
        # of older ones on the new path.
        if old is not None and old.live:
            tell_break_over(self._bus, old, broker_id)
        tell_break(self._directory, self._bus, broker_id)
        self.path_changed(broker_id)

    def brokers_behind(self, link: Link) -> list[bytes]:
        """Return the brokers that a link leads to, over the tree."""
        return self._paths.brokers_behind(link)

    def path_changed(self, broker_id: bytes) -> None:
        """Ask a broker that is reached by another path, or that was restarted, for what may be
        missing; hold its feeds while it cannot be reached."""
        gap_recovery = self.feeds.of(broker_id)
        newest = max((feed.boot for feed in gap_recovery), default=0)
        for feed in gap_recovery:
            if (
                feed.boot == newest or not feed.held
            ):  # no path to a later incarnation brings what an earlier one did not send
                feed.since = self.node.now
            self.lose(feed)

    def entering(self, link: Link) -> None:
        """Tell all brokers behind a link that is about to be live that messages take another path
        to them from now on (BREAK)."""
        if self._ordered and not self._strategy.source_rooted and link.peer is not None:
            neighbour = link.peer.id
            reachable = self._directory.database.reachable()
            behind = {listing.id for listing in reachable if listing.via == neighbour}
            for broker_id in sorted(behind | {neighbour}):
                tell_break_over(self._bus, link, broker_id)
        link.upto.clear()

    def link_down(self, event: LinkDown) -> None:
        """Take the source from all feeds that had a link that is gone as theirs."""
        for feed in self.feeds.all():
            if event.link in (feed.source, feed.behind):
                self.lose(feed)

    def _break_received(self, sender: bytes, body: bytes, now: float, link: Link) -> None:
        for feed in self.feeds.all():
            # A broker that takes the spanning tree again may pass on anything.
            if self._strategy.source_rooted or link in (feed.source, feed.behind):
                self.lose(feed)
            elif feed.step(Input.BREAK) is Action.OUTDATE:
                feed.outdate()

    def _changed_received(self, sender: bytes, body: bytes, now: float) -> None:
        if len(body) != 8:
            raise MalformedPacket("CHANGED is truncated")
        for feed in self.feeds.of(body):
            self.lose(feed)

    def on_unexpected_link(self, feed: Feed, link: Link) -> None:
        """Tell the brokers behind this one of a message of the feed `feed` that came over `link`,
        which is not the feed's source, and is about to be passed on. If the link is not on the
        tree's path either (retained messages take all links, also those that a repair has left in a
        circle), the message may be ahead of older ones. The brokers behind this one trust that what
        comes from here is complete, so they hear of it (BREAK) before they get it."""
        if link is feed.behind:
            return
        if link is self._paths.link_to(feed.broker_id):
            feed.path_change_sent = False
        elif not feed.path_change_sent:
            feed.path_change_sent = True
            directory = self._directory
            for listing in directory.database.reachable():
                onward = directory.link_to(listing.id)
                if (
                    onward is not None
                    and onward is not link
                    and onward.live
                    and listing.id != feed.broker_id
                ):
                    tell_changed_over(self._bus, onward, listing.id, feed.broker_id)

    def on_answer_forwarded(self, broker_id: bytes) -> None:
        """Note that an answer of a broker is sent, or passed on: the messages behind it have to
        come over the tree's path again."""
        for feed in self.feeds.of(broker_id):
            feed.path_change_sent = False

    def lose(self, feed: OrderedFeed) -> None:
        """Take the source from a feed: a message of its origin may be missing. Plan a question."""
        if feed.step(Input.DOUBT) is Action.BEGIN:
            self._begin(feed)
        else:
            feed.outdate()
            if not feed.questions:
                feed.ask_at = min(feed.ask_at, self.node.now + ASK_PAUSE)
                feed.pause = RETRY
            elif (
                len(feed.questions) < MAX_QUESTIONS // 2
            ):  # questions may be lost, and answers may be queued behind much else
                feed.ask_at = min(feed.ask_at, self.node.now + RETRY)
            self.arm(feed)

    def fetch(self, session: Session, key: bytes, ranges: Ranges) -> None:
        """Ask the origin `key` for the numbers `ranges` that `session` lacks, and that no local
        subscriber wanted when they were published."""
        window = self._vector.get(key)
        feed = None if window is None else window.feed
        if window is None or feed is None:
            return
        waiting = intersect(feed.here(), [(feed.done + 1, feed.settled)])
        expected = subtract(
            merge([*feed.outstanding, *waiting]),
            self._above.evaluated.ranges_fetched_for_one_session(key),
        )  # to all local subscribers
        missing = subtract(intersect(ranges, merge([*window.history, *window.lacks])), expected)
        if old := intersect(missing, [(1, max(feed.done, feed.settled))]):
            self._above.evaluated.owe(session, key, old)
        if missing:
            feed.forget_questions(newest(session))
            self.lose(feed)
            if not self._orphans.reachable(feed):
                self.want(key, missing, self.node.now)

    def distrust(self, known: Collection[bytes]) -> None:
        """Ask all origins but the brokers in `known`: the others do not know all filters that are
        wanted here, and may have answered earlier questions without them."""
        for feed in self.feeds.all():
            if feed.broker_id not in known:
                feed.questions.clear()
                self.lose(feed)

    def want(self, key: bytes, ranges: Ranges, now: float) -> None:
        """Ask all neighbours for the numbers `ranges` of the origin `key`, which no longer has them
        in its log. `now`: s."""
        self._pulls.want(key, ranges, now)

    def _begin(self, feed: OrderedFeed) -> None:
        """Hold messages back from now on, and ask the origin."""
        now = self.node.now
        feed.since = now
        feed.held = bool(feed.waiting)
        feed.more = False
        feed.gone_since = 0.0
        feed.questions.clear()
        feed.pause = RETRY
        feed.ask_at = now + ASK_PAUSE
        self.arm(feed)

    # ---------------------------------------------------------------- time

    def _arm_all(self, broker_id: bytes) -> None:
        for feed in self.feeds.of(broker_id):
            if not feed.fed:
                self.arm(feed)

    def arm(self, feed: OrderedFeed) -> None:
        """Set the timer of a feed without a source: for the next question, and for the end of the
        wait."""
        times = []
        if self._orphans.reachable(feed) and not feed.more:
            times.append(feed.ask_at)
        if feed.held and feed.state is State.ASKING:
            times.append(feed.since + self._longest(feed))
        if feed.timer is not None:
            self.node.timers.cancel(feed.timer)
            feed.timer = None
        if times:
            feed.timer = self.node.timers.schedule(
                max(min(times), self.node.now + 0.001), lambda now: self._due(feed, now)
            )

    def on_suspended(self, seconds: float, now: float) -> None:
        """Prolong all waits by `seconds` in which this broker did not run: what arrived in that
        time is still to be read, and the other brokers were not away. `now`: s."""
        self._paths.on_suspended(seconds, now)
        for feed in self.feeds.all():
            feed.on_suspended(seconds, now)

    def _due(self, feed: OrderedFeed, now: float) -> None:
        feed.timer = None
        if not self.feeds.known(feed):
            self.release.drop(feed)
            return
        if feed.fed:
            return
        self.node.now = now
        if self._orphans.reachable(feed) and now >= feed.ask_at and not feed.more:
            self._questions.ask(feed, now)
        if feed.held and feed.state is State.ASKING and now >= feed.since + self._longest(feed):
            self._set_free(feed, now)
        self.arm(feed)

    def _longest(self, feed: OrderedFeed) -> float:
        if self._orphans.reachable(feed):
            return PATIENCE_S
        said = [found[feed.key] for found in self._succeeded.values() if feed.key in found]
        if said:
            return max(0.0, min(said) - feed.since) + SUCCEEDED_S
        listing = self._directory.database.listings.get(feed.broker_id)
        if listing is not None and listing.via is not None and listing.boot > feed.boot:
            # The broker is back and has no messages of that incarnation. Others may have some: one
            # that hangs or is cut off, which is noticed within link_timeout, or one whose log is
            # being replayed to here.
            split = self._paths.split(self.node.now)
            quiet = max(0.0, feed.window.heard - feed.since) + self._link_timeout + UNKNOWN_ORIGIN_S
            return HOLD_S if split else min(HOLD_S, quiet)
        # Directory entries take the tree only: on source-rooted trees messages of an origin can
        # arrive before its directory entry.
        known = (
            listing is not None
            or self._strategy.source_rooted
            # It was cut off before it could tell what it has posted.
            or self._is_member(feed.broker_id)
        )
        return HOLD_S if known else UNKNOWN_ORIGIN_S

    def _set_free(self, feed: OrderedFeed, now: float) -> None:
        """Stop holding messages back: deliver those that are held, and deliver the missing ones
        whenever they arrive."""
        feed.step(Input.OVERDUE)
        here = feed.settle_all()
        feed.add_outstanding(subtract(feed.refused, here))
        feed.refused = []
        self.release.begin(feed, now)

    def unsettled(self) -> bool:
        """Whether a message may be missing here that is about to arrive."""
        reachable = self._orphans.reachable
        return any(s.waiting or (not s.fed and (s.held or reachable(s))) for s in self.feeds.all())

    def asking(self, keys: set[bytes]) -> bool:
        """Whether one of these origins has been asked, and is about to answer."""
        return bool(keys) and any(
            s.key in keys and not s.fed and self._orphans.reachable(s) for s in self.feeds.all()
        )

    def can_ask(self, key: bytes) -> bool:
        """Whether an origin can be reached."""
        window = self._vector.get(key)
        return window is not None and not (window.feed is None or self._orphans.is_gone(key))

    # ---------------------------------------------------------------- to local subscribers

    def hold(self, feed: OrderedFeed, entry: LogEntry) -> None:
        """Hold back the messages of an entry of the log from local subscribers until the feed has
        got so far."""
        self.release.hold(feed, HeldBatch(entry))

    def put_by(
        self,
        feed: OrderedFeed,
        number: int,
        message: Message,
        choice: ReceiverAssignment | None,
    ) -> None:
        """Put a `message` by for local subscribers, if they may lack it. `feed`, `number`: its
        feed, whose origin is gone, and number there; `choice`: which members of shared
        subscriptions get it."""
        late = number <= feed.done
        if not late or find(feed.outstanding, number, number) >= 0:
            self.release.put_by(feed, HeldMessage(number, message, choice, late=late))

    def succeed(self, key: bytes, now: float) -> None:
        """Deliver what there is of the origin `key`, which is gone: nothing more comes."""
        window = self._vector.get(key)
        if window is not None and (feed := window.feed) is not None:
            self.lose(feed)
            self._set_free(feed, now)

    def released(self, feed: OrderedFeed, now: float) -> None:
        """Note that local subscribers have had all messages of a feed that may be delivered."""
        feed.done = max(feed.done, feed.settled)
        feed.held = bool(feed.waiting)
        if feed.state is State.RELEASING and not feed.waiting and not self.feeds.follows(feed):
            feed.step(Input.RELEASED)
        elif feed.more and not feed.fed:
            feed.more = False
            self._questions.ask(feed, now)
            self.arm(feed)
