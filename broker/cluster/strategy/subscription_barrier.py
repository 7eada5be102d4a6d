"""SUBACK is sent when all brokers know the subscription: with routing by interest or topic, every
message that is published at any broker after it reaches the client.

The filters of a SUBSCRIBE are posted in the directory first. Behind them a wave goes over the tree:
each broker passes it on, and answers when all neighbours to which it passed it have answered
(propagation of information with feedback; Segall, 1983). An answer names the brokers that have got
the wave, as it may end at a link that has just failed. Each broker has one wave under way at a
time, and subscriptions that are made meanwhile share the next one; a wave is two small records on
each link. A client waits until each broker from which messages may come has answered or is gone:

    posted -wave-> sent -all have answered-> known: SUBACK
                    | some have not, as the tree is being repaired, or one hangs:
                    |     another wave after a pause
                    | the wait is over: SUBACK, and messages of all origins are asked for again
                    |     (`GapRecovery.doubt`)
    gone: no link, and no path over links of others, leads there. Its messages are asked for when it
          is back (`gap_recovery`)

    record TOLD   id of the broker, state of its listing (12 bytes), u32 number
    record HEARD  id of the broker, u32 number, brokers that know: (id, boot, u48 number of the last
                  message published there)...

The messages that a broker published before it knew of a subscription are not for it, later ones
are: as they may arrive in any order, the number in HEARD says which is which
(`subscription_start`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from mqttree.broker.base import costs
from mqttree.broker.base.broker_id import Identity
from mqttree.broker.base.rate_limit import RateLimit
from mqttree.broker.base.timers import Timer
from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
from mqttree.broker.cluster.events import (
    EntriesSent,
    LinkDown,
    LinkLeftTree,
    LinkUp,
    RouteChanged,
)
from mqttree.broker.cluster.link.control_records import HEARD, TOLD
from mqttree.broker.cluster.link.link import Handler, Link
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.ports import MemberBroker
from mqttree.broker.cluster.strategy.ports import Delivery
from mqttree.broker.cluster.strategy.routing_strategy import WantedTopics
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.routing.link_state import MAX_BROKERS

ADMITS = 1.0
"""s for which a client that may have a session at another broker waits at most at a broker that has
just started, and has not joined the others or does not know their sessions yet."""
LINKED_S = 2.0
"""s for which it waits longer if there is another broker: without the sessions of others each
client would begin a new one."""

VISIT_WORK = 2 * costs.PACKET_WORK
"""steps of work for a client that has waited so, and is let in."""

AT_ONCE = 0.1
"""s; a client whose wait would end within this time does not wait for it, so that all origins are
asked ten times a second at most."""

LOST = 1.0
"""s after which a wave counts as lost: a broker that should have passed it on, or its answer, is
gone or hangs."""

PAUSE, MAX_PAUSE_S = 0.02, 0.5
"""s until another wave is sent to the brokers that the last one did not reach; twice as long each
time."""


HEARS = 8 + 4 + 6
"""bytes of a broker in HEARD."""

Then = Callable[[float], None]


class Wave:
    """A wave that is under way: the link over which it came (None: it is this broker's), the
    neighbours that have not answered, and the brokers that are known to have got it."""

    __slots__ = ("heard", "number", "since", "source", "waiting")

    def __init__(
        self, source: Link | None, number: int, waiting: Iterable[Link], now: float
    ) -> None:
        """`source`: the link over which it came, None for this broker's own; `number`: of the wave;
        `waiting`: links over which an answer is awaited; `now`: s."""
        self.source = source
        self.number = number
        self.since = now
        self.waiting = set(waiting)
        self.heard: dict[bytes, int] = {}  # id and boot of a broker -> number of its last message


class SubscriptionBarrier:
    """The filters that were posted here and that not all brokers know, and the clients that wait
    for that."""

    def __init__(
        self,
        node: MemberBroker,
        own: Identity,
        *,
        directory: LinkStateDirectory,
        strategy: WantedTopics,
        links: Mapping[bytes, Link],
        handshakes: Collection[Link],
        searching: Callable[[float], bool] | None,
        delivery: Delivery,
    ) -> None:
        """`node`: this broker, with the identity `own`; `directory`: what brokers post; `strategy`:
        which links messages take; `links`: those that are up, by the neighbour's id; `handshakes`:
        those that are not up yet; `searching`: says whether discovery still looks for brokers at a
        time (s), None for a lone broker; `delivery`: what is above."""
        self._node = node
        self._turns = node.turns
        self._limits = node.limits
        self._own = own
        self._directory = directory
        self._strategy = strategy
        self._by_peer = links
        self._handshakes = handshakes
        self._searching = searching
        self._delivery = delivery
        # A broker that has just started knows no other; one that is alone for so long is a lone
        # broker (s, 0.0: it has joined, or has none to look for).
        self._begins_until = node.now + node.limits.suback_wait_s if searching is not None else 0.0
        self.closed = False
        """Whether no client is let in, as sessions here may be other brokers' by now."""
        self.stale_until = 0.0
        """s; CONNECT packets that are read before may be as old as a stop of this broker, and their
        clients have connected elsewhere since."""
        self._admits_until = node.now + ADMITS if searching is not None else 0.0
        # Clients that connected before this broker knew the sessions of others.
        self._visitors: deque[Then] = deque()
        self._admitting = False  # they are being let in, some in each turn
        self._posted = self._last_new = 0  # filters, ever; and up to the last that was new
        # Broker -> boot, how many of them it knows, when it said so (s), and the number of its last
        # message then.
        self._known: dict[bytes, tuple[int, int, float, int]] = {}
        self._confirmed = 0  # so many filters do all brokers know that have to
        self._stale = True  # which brokers have to know may have changed
        self._covers = 0  # so many filters does this broker's wave cover
        self._number = 0
        self._again_at = 0.0  # s; no wave goes to brokers that were not reached before that
        self._pause = PAUSE
        self._rate = RateLimit(self._limits.suback_waves, node.now)
        self._planned = False  # a wave is to be sent later
        self.known = False
        """Whether the client that waits last does so only because each broker is to say which
        messages it has published."""
        self._waves: dict[bytes, Wave] = {}  # by the broker whose listing they are about
        # By broker: of a state that is not here yet.
        self._early: dict[bytes, tuple[Link, bytes]] = {}
        self._newest: dict[bytes, bytes] = {}  # state and number of the last one of each broker
        # Until when (s), for how many, and what then.
        self._waiters: deque[tuple[float, int, Then]] = deque()
        # Clients that connected before this broker had joined: what they expect.
        self._early_birds: list[tuple[list[str], Then, bool]] = []
        # While subscriptions are made: by origin, the end of `_known`.
        self._heard_at: dict[bytes, tuple[float, int]] = {}
        self._releasing = False  # more clients are about to be released
        self._since = 0.0  # s; since when the one that is being made has waited
        self._timer: Timer | None = None
        self._look_at = 0.0  # s; when it is due
        self.records: dict[int, Handler] = {TOLD: self._told_received, HEARD: self._heard_received}

    # ---------------------------------------------------------------- waiting clients

    def on_filter_posted(self) -> None:
        """Note that this broker has posted a filter: the next wave asks who knows of it."""
        self._posted = self._last_new = self._posted + 1

    def expect(self, filters: Iterable[str], then: Then, *, again: bool = False) -> bool:
        """Post `filters` to which a client is about to subscribe. Returns True if `then` is called
        once all brokers know them, False if they do already. In either case `settle_for` follows.
        `again`: each broker is to say which messages it has published by now, even if it knows the
        filters."""
        strategy = self._strategy
        now = self._node.now
        self.known = False
        if self._begins_until and not self._begun(now):
            self._early_birds.append((list(filters), then, again))
            self._arm(now)
            return True
        if not (strategy.posting or again) or not self._by_peer:
            return False
        if strategy.posting:
            for topic_filter in filters:
                strategy.filter_changed(topic_filter, wanted=True)
        self.known = self._all_know(self._last_new) and not self._delivery.gap_recovery.unsettled()
        if self._all_know(self._posted):
            if not again and not self._delivery.gap_recovery.unsettled():
                return False
            # No new filter, but each broker is to say which messages it has published by now.
            self._posted += 1
        self._waiters.append((now + self._limits.suback_wait_s, self._posted, then))
        if not self._directory.has_unsent_entries:
            # Nothing is posted behind which the wave would go: neighbours have got the filters
            # already, or a wider one covers them.
            self.send_wave(now)
        self._arm(now)
        return True

    def _begun(self, now: float) -> bool:
        """Whether this broker has joined those that discovery finds, as far as they answer; asked
        in its first seconds only."""
        joining = any(link.forwarding and not link.live for link in self._by_peer.values())
        if (joining or self.finds_others(now)) and now < self._begins_until:
            return False
        self._begins_until = 0.0
        return True

    def finds_others(self, now: float) -> bool:
        """Whether another broker may be about to be linked at `now` (s)."""
        searching = self._searching is not None and self._searching(now)
        return searching or bool(self._handshakes)

    def admits(self, now: float, then: Then) -> bool:
        """Whether a client may be admitted at `now` (s): no earlier client waits, and this broker
        knows the sessions of others, or has waited long enough. If not, `then` is called later."""
        if not self._visitors and self._knows_sessions(now):
            self._admits_until = 0.0
            return True
        self._visitors.append(then)
        self._arm(now)
        return False

    def _knows_sessions(self, now: float) -> bool:
        return not self.closed and self.knows_others(now)

    def knows_others(self, now: float) -> bool:
        """Whether all that can be reached are known at `now` (s), or have been waited for."""
        until = self._admits_until
        if until and self._by_peer:
            until += LINKED_S
        return now >= until or (self._begun(now) and self.has_directory())

    def has_directory(self) -> bool:
        """Whether all that neighbours in the tree have is here, and any is, if there are links."""
        links, database = self._by_peer, self._directory.database
        tree = [peer for peer, link in links.items() if link.forwarding]
        told = all(map(database.complete, tree)) and (bool(tree) or not links)
        return told and not database.lacks

    def _admit(self) -> Iterator[int]:
        """Let waiting clients in, in order."""
        while self._visitors:
            self._visitors.popleft()(self._node.now)
            yield VISIT_WORK
        self._admitting = False

    def settle_for(self, filters: Iterable[str]) -> None:
        """Withdraw the filters to which the client was not subscribed."""
        strategy = self._strategy
        if strategy.posting:
            for topic_filter in filters:
                if not self._node.dispatcher.wants(topic_filter):
                    strategy.filter_changed(topic_filter, wanted=False)

    def _arm(self, now: float) -> None:
        """Plan the next check of waiting clients, unless an earlier one is planned."""
        if self._early_birds or (self._visitors and not self._admitting):
            due = now + PAUSE
        elif self._waiters:
            wave = self._waves.get(self._own.id)
            again = max(now + PAUSE, self._again_at if wave is None else wave.since + LOST)
            due = min(self._waiters[0][0], again)
        else:
            return
        if self._timer is not None:
            if self._look_at <= due:
                return
            self._node.timers.cancel(self._timer)
        self._look_at = due
        self._timer = self._node.timers.schedule(due, self._look)

    def _look(self, now: float) -> None:
        self._timer = None
        self._node.now = now
        if self._visitors and not self._admitting and self._knows_sessions(now):
            self._admitting = True
            self._turns.go(self._admit(), lambda: False)
        if self._early_birds and self._begun(now):
            early, self._early_birds = self._early_birds, []
            for filters, then, again in early:
                if not self.expect(filters, then, again=again):
                    then(now)
        self._release(now)
        if self._waiters and self._waiters[0][0] <= now:
            # A broker that does not know the filter may pass on messages for other subscribers
            # here, and say that these are all. Answers to new questions only pass through brokers
            # that know it.
            self._delivery.gap_recovery.distrust(())
            while self._waiters and self._waiters[0][0] <= now + AT_ONCE:
                self._node.counters.subscriptions_unconfirmed += 1
                self._waiters.popleft()[2](now)
                if self._turns.work >= self._limits.turn_work:
                    break  # the others are due at once
        if not self._directory.has_unsent_entries:
            self.send_wave(now)
        self._arm(now)

    def _release(self, now: float) -> None:
        """Let clients go on whose filters all brokers know, in order; if a turn has no room for
        all, the rest goes on later, if that is still so."""
        while self._waiters and self._all_know(self._waiters[0][1]):
            if self._turns.work >= self._limits.turn_work:
                self._release_later()
                break
            until, _, then = self._waiters.popleft()
            if not self._heard_at:
                self._heard_at = {
                    origin_key(broker, known[0]): known[2:] for broker, known in self._known.items()
                }
            self._since = until - self._limits.suback_wait_s
            then(now)
        self._heard_at = {}

    def _release_later(self) -> None:
        if not self._releasing:
            self._releasing = True
            self._turns.later(self._go_on)

    def _go_on(self, now: float) -> None:
        self._releasing = False
        self._release(now)

    @property
    def answered(self) -> int:
        """The number of the answered wave behind which subscriptions are being made; 0: none."""
        return self._covers if self._heard_at else 0

    def last_before(self, key: bytes) -> int | None:
        """Return the last number of an origin when it heard of the subscription that is being made;
        None if it has not answered. Later messages are for the subscription."""
        told = self._heard_at.get(key)
        return told[1] if told is not None and told[0] >= self._since else None

    # ---------------------------------------------------------------- brokers that have to know

    def route_changed(self, event: RouteChanged) -> None:
        """Note that another broker may have to know now, or one no longer."""
        self.changed()

    def links_changed(self, event: LinkUp | LinkDown) -> None:
        """Note that brokers that have to know may be reached by another path."""
        self.changed()

    def changed(self) -> None:
        """Note that a broker or a link has come or gone: others may have to know now, or no
        longer."""
        self._stale = True
        self._again_at, self._pause = 0.0, PAUSE

    def _all_know(self, posted: int) -> bool:
        if self._stale:
            self._count()
        return posted <= self._confirmed

    def _count(self) -> None:
        """Count how many of this broker's filters all brokers know from which messages may come."""
        self._stale = False
        least = self._posted
        for broker_id, boot in self._required().items():
            known = self._known.get(broker_id)
            least = min(least, known[1] if known is not None and known[0] == boot else 0)
        self._confirmed = least

    def _required(self) -> dict[bytes, int]:
        """Return the brokers that have to know, with boot numbers: those that can be reached over
        the tree, have a link to here, or find a path over links of others while the tree is
        repaired."""
        listings = self._directory.database.listings
        found = {link.peer.id: link.peer.boot for link in self._up() if link.peer is not None}
        for listing in listings.values():
            if listing.via is not None:
                found[listing.id] = listing.boot
        for broker_id in self._strategy.astray():
            if broker_id in listings:
                found.setdefault(broker_id, listings[broker_id].boot)
        return found

    def _up(self) -> list[Link]:
        return [link for link in self._by_peer.values() if link.up]

    # ---------------------------------------------------------------- this broker's wave

    def _links(self) -> list[Link]:
        return [link for link in self._up() if link.forwarding]

    def entries_sent(self, event: EntriesSent) -> None:
        """Go on with waves that arrived ahead of the filters that they cover, and send one behind
        the filters that were posted here."""
        self._learnt(event.now)
        if event.whole:
            self.send_wave(event.now)

    def _learnt(self, now: float) -> None:
        if self._early:
            for broker, (link, body) in list(self._early.items()):
                if self._used(broker, body[8:20]):
                    del self._early[broker]
                    if link.up:
                        self._told_received(link, body, now)

    def _used(self, broker: bytes, state: bytes) -> bool:
        """Whether a broker's listing is known here in this state, and used for routing."""
        database = self._directory.database
        return database.via(broker) is not None and database.state(broker) >= state

    def send_wave(self, now: float) -> None:
        """Send a wave behind the filters that neighbours have got, unless one is under way;
        `now`: s."""
        own = self._own
        wave = self._waves.get(own.id)
        if self._all_know(self._posted):
            self._release(now)
            return
        # The brokers that the last one did not reach, or that have come since.
        again = self._posted <= self._covers
        if (wave is not None and now < wave.since + LOST) or (
            again and (now < self._again_at or not self._waiters)
        ):
            return
        links = self._links()
        if not links or self._planned:
            return  # the tree is being repaired: the wave goes to the brokers that are there then
        brokers = max(1, len(self._directory.database.reachable()))
        self._rate.per_second = self._limits.suback_waves / brokers
        if not self._rate.take(now):
            self._planned = True
            self._node.timers.schedule(now + 1 / self._rate.per_second, self._again)
            return
        self._covers = self._posted
        self._number = self._number + 1 & 0xFFFFFFFF
        self._waves[own.id] = Wave(None, self._number, links, now)
        body = self._directory.database.own_stamp() + self._number.to_bytes(4, "big")
        for link in links:
            link.add_record(TOLD, body)
        self._delivery.hurry(now)

    def _again(self, now: float) -> None:
        self._planned = False
        if not self._directory.has_unsent_entries:
            self.send_wave(now)

    # ---------------------------------------------------------------- waves of others

    def _told_received(self, link: Link, body: bytes, now: float) -> None:
        """Pass a wave on, and answer when all neighbours have to which it went; one that has been
        here already is answered at once."""
        if len(body) != 24:
            raise MalformedPacket("TOLD record has the wrong length")
        broker, state, number = body[:8], body[8:20], int.from_bytes(body[20:], "big")
        own = broker == self._own.id  # it came back in a loop, while the tree is repaired
        database = self._directory.database
        if not own and not self._used(broker, state):
            if len(self._early) < MAX_BROKERS or broker in self._early:
                self._early[broker] = (link, body)  # its filters are on their way, after a repair
            return
        waiting = [other for other in self._links() if other is not link]
        if own or body[8:] <= self._newest.get(broker, b"") or not waiting:
            link.add_record(HEARD, broker + body[20:] + self._self())
            return
        if len(self._newest) > MAX_BROKERS:
            self._newest = {
                known: last for known, last in self._newest.items() if known in database.listings
            }
        # States and numbers grow: if it comes again by another path, it goes no further.
        self._newest[broker] = body[8:]
        self._waves[broker] = Wave(link, number, waiting, now)
        for other in waiting:
            other.add_record(TOLD, body)

    def _heard_received(self, link: Link, body: bytes, now: float) -> None:
        if len(body) < 12 or (len(body) - 12) % HEARS or len(body) > 12 + HEARS * MAX_BROKERS:
            raise MalformedPacket("HEARD record has the wrong length")
        wave = self._waves.get(body[:8])
        if (
            wave is not None
            and wave.number == int.from_bytes(body[8:12], "big")
            and link in wave.waiting
        ):
            for at in range(12, len(body), HEARS):
                wave.heard[body[at : at + 12]] = int.from_bytes(body[at + 12 : at + HEARS], "big")
            self._answered(body[:8], wave, link, now)

    def _answered(self, broker: bytes, wave: Wave, link: Link, now: float) -> None:
        wave.waiting.discard(link)
        if wave.waiting:
            return
        del self._waves[broker]
        if wave.source is not None:
            if wave.source.up:
                others = [
                    who + top.to_bytes(6, "big")
                    for who, top in sorted(wave.heard.items())[: MAX_BROKERS - 1]
                ]
                wave.source.add_record(
                    HEARD,
                    broker + wave.number.to_bytes(4, "big") + b"".join((self._self(), *others)),
                )
            return
        self._note(wave.heard)
        if self._confirmed < self._covers:  # some were not reached
            self._again_at = now + self._pause
            self._pause = min(2 * self._pause, MAX_PAUSE_S)
            self._arm(now)  # the check that was planned is for a wave that is lost
        else:
            self._pause = PAUSE
            self._delivery.gap_recovery.distrust(self._required())
        self._release(now)
        if not self._directory.has_unsent_entries:
            self.send_wave(now)

    def _self(self) -> bytes:
        """Return this broker's entry in HEARD."""
        own = self._own
        return (
            own.id + own.boot.to_bytes(4, "big") + self._delivery.origins.own.top.to_bytes(6, "big")
        )

    def _note(self, heard: dict[bytes, int]) -> None:
        """Note that these brokers know all filters that this broker's wave covered."""
        boots = self._required()
        self._known = {
            broker_id: known for broker_id, known in self._known.items() if broker_id in boots
        }
        for who, top in heard.items():
            if who[:8] in boots:
                self._known[who[:8]] = (
                    int.from_bytes(who[8:], "big"),
                    self._covers,
                    self._node.now,
                    top,
                )
        self._count()

    def link_left(self, event: LinkLeftTree) -> None:
        """Wait for no answer over a link that is gone, or has left the tree. This broker's own wave
        goes again over the repaired tree."""
        link, now = event.link, event.now
        self.changed()
        for broker, wave in list(self._waves.items()):
            if wave.source is link or (wave.source is None and link in wave.waiting):
                del self._waves[broker]
            elif link in wave.waiting:
                self._answered(broker, wave, link, now)
