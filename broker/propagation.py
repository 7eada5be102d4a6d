"""SUBACK when all brokers know: with routing by interest or topic, whatever is published anywhere after it finds its way here.

What is subscribed is posted in the directory first. Behind it goes a wave over the tree: each broker passes it on and answers
when all have that it passed it to (propagation of information with feedback; Segall, 1983). One wave at a time for each broker,
so that what comes meanwhile is one more; two small records on each link. A client waits 0.3 s at most: somebody may hang.

    record TOLD  id of the broker, state of its listing (12 bytes), u32 number          record HEARD  id, number
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from broker.rate import Rate
from broker.records import HEARD, TOLD, Handler
from broker.wire.errors import MalformedPacket
from routing.directory import MAX_BROKERS

if TYPE_CHECKING:
    from broker.federation import Federation
    from broker.link import Link
    from broker.node import Node, Timer

WAIT = 0.3
"""s for which a SUBACK waits at most: several round trips of continents, and shorter than clients notice."""

AT_ONCE = 0.1
"""s; who would wait so little longer does not, so that streams are doubted ten times a second at most."""

LOST = 1.0
"""s after which a wave that nobody waited for counts as lost: all that is posted later would wait for its answer."""

WAVES = 2000.0
"""a second that all brokers together send, about: each crosses every link of the tree twice, and a link takes so many records
besides all others (limits.LINK_REQUESTS_PER_SECOND)."""

Then = Callable[[float], None]


class Wave:
    """One on its way: who sent it to us (None: ourselves), and who has not answered."""

    __slots__ = ("number", "since", "source", "waiting")

    def __init__(self, source: Link | None, number: int, waiting: Iterable[Link], now: float) -> None:
        self.source = source
        self.number = number
        self.since = now
        self.waiting = set(waiting)


class Propagation:
    """What has been posted here for subscribers and is not known everywhere, and who waits for that."""

    __slots__ = (
        "_confirmed", "_covers", "_early", "_federation", "_newest", "_node", "_number", "_planned", "_posted", "_rate", "_timer",
        "_waiters", "_waves", "records",
    )  # fmt: skip

    def __init__(self, node: Node, federation: Federation) -> None:
        self._node = node
        self._federation = federation
        self._posted = 0  # filters, ever
        self._confirmed = 0  # of them, those that all know
        self._covers = 0  # as many does our wave tell of
        self._number = 0
        self._rate = Rate(WAVES, node.now)
        self._planned = False  # a wave is to be sent later
        self._waves: dict[bytes, Wave] = {}  # by the broker whose listing they are about
        self._early: dict[bytes, tuple[Link, bytes]] = {}  # by broker: of a state that is not here yet
        self._newest: dict[bytes, bytes] = {}  # state and number of the last one of each broker
        self._waiters: deque[tuple[float, int, Then]] = deque()  # until when (s), for how many, and what then
        self._timer: Timer | None = None
        self.records: dict[int, Handler] = {TOLD: self._told_received, HEARD: self._heard_received}

    # ---------------------------------------------------------------- who waits

    def posted(self) -> None:
        """A filter was posted."""
        self._posted += 1

    def expect(self, filters: Iterable[str], then: Then) -> bool:
        """Post filters that a client is about to subscribe to; True when `then` is called once all brokers know them, False when
        they do. In either case `settle_for` follows."""
        interest = self._federation.interest
        if not interest.telling or not self._federation.links:
            return False
        for topic_filter in filters:
            interest.changed(topic_filter, wanted=True)
        if self._posted <= self._confirmed or not self._linked():
            return False
        self._waiters.append((self._node.now + WAIT, self._posted, then))
        if self._timer is None:
            self._timer = self._node.schedule(self._node.now + WAIT, self._late)
        return True

    def settle_for(self, filters: Iterable[str]) -> None:
        """Take back the filters that were not subscribed to after all."""
        interest = self._federation.interest
        if interest.telling:
            for topic_filter in filters:
                if topic_filter not in self._node.fanout.trie:
                    interest.changed(topic_filter, wanted=False)

    def _late(self, now: float) -> None:
        if self._waiters and self._waiters[0][0] <= now:
            if self._waiters[0][1] <= self._covers:
                self._waves.pop(self._federation.own.id, None)  # somebody hangs: what comes later is told by another one
            # Whoever has not heard may pass on what others here want, and tell that it was all. Answers to questions that are
            # asked from now on come only by way of those that know.
            self._federation.streams.doubt()
            while self._waiters and self._waiters[0][0] <= now + AT_ONCE:
                self._node.counters.subscriptions_unconfirmed += 1
                self._waiters.popleft()[2](now)
        self._timer = self._node.schedule(self._waiters[0][0], self._late) if self._waiters else None
        if not self._federation.listings.unsaid:
            self.told(now)

    def _release(self, now: float) -> None:
        while self._waiters and self._waiters[0][1] <= self._confirmed:
            self._waiters.popleft()[2](now)

    # ---------------------------------------------------------------- our wave

    def _links(self) -> list[Link]:
        return [link for link in self._federation.links.values() if link.forwarding and link.state == "up" and link.version > 1]

    def learnt(self, now: float) -> None:
        """Go on with waves that were here ahead of what they tell of."""
        if self._early:
            directory = self._federation.listings.directory
            for broker, (link, body) in list(self._early.items()):
                if directory.state(broker) >= body[8:20]:
                    del self._early[broker]
                    if link.state == "up":
                        self._told_received(link, body, now)

    def _linked(self) -> bool:
        """Whether there is any other broker; while the tree is repaired it may not be reached over it."""
        return any(link.state == "up" for link in self._federation.links.values())

    def told(self, now: float) -> None:
        """All that was posted is on its way to the neighbours: send a wave behind it, unless one is on its way."""
        own = self._federation.own
        wave = self._waves.get(own.id)
        if self._posted <= self._confirmed or (wave is not None and now < wave.since + LOST):
            return
        links = self._links()
        if not links:
            if not self._linked():
                self._confirmed = self._posted
                self._release(now)
            return  # else the tree is being repaired: whoever is there then is told
        if self._planned:
            return
        self._rate.per_second = WAVES / max(1, len(self._federation.listings.directory.reachable()))
        if not self._rate.take(now):
            self._planned = True
            self._node.schedule(now + 1 / self._rate.per_second, self._again)
            return
        self._covers = self._posted
        self._number = self._number + 1 & 0xFFFFFFFF
        self._waves[own.id] = Wave(None, self._number, links, now)
        body = self._federation.listings.directory.own.stamp() + self._number.to_bytes(4, "big")
        for link in links:
            link.add_record(TOLD, body)

    def _again(self, now: float) -> None:
        self._planned = False
        if not self._federation.listings.unsaid:
            self.told(now)
            self._federation.hurry(now)

    # ---------------------------------------------------------------- those of others

    def _told_received(self, link: Link, body: bytes, now: float) -> None:
        """Pass a wave on, and answer when all have that it went to; one that is here already, at once."""
        if len(body) != 24:
            raise MalformedPacket("TOLD record has the wrong length")
        broker, state, number = body[:8], body[8:20], int.from_bytes(body[20:], "big")
        own = broker == self._federation.own.id  # round in a circle, while the tree is repaired
        directory = self._federation.listings.directory
        if not own and (broker not in directory.listings or directory.state(broker) < state):
            if len(self._early) < MAX_BROKERS or broker in self._early:
                self._early[broker] = (link, body)  # what it tells of is on its way, after a repair
            return
        waiting = [other for other in self._links() if other is not link]
        if own or body[8:] <= self._newest.get(broker, b"") or not waiting:
            link.add_record(HEARD, broker + body[20:])
            return
        if len(self._newest) > MAX_BROKERS:
            self._newest = {known: last for known, last in self._newest.items() if known in directory.listings}
        self._newest[broker] = body[8:]  # states and numbers grow: whatever way it comes again, it goes no further
        self._waves[broker] = Wave(link, number, waiting, now)
        for other in waiting:
            other.add_record(TOLD, body)

    def _heard_received(self, link: Link, body: bytes, now: float) -> None:
        if len(body) != 12:
            raise MalformedPacket("HEARD record has the wrong length")
        wave = self._waves.get(body[:8])
        if wave is not None and wave.number == int.from_bytes(body[8:], "big"):
            self._answered(body[:8], wave, link, now)

    def _answered(self, broker: bytes, wave: Wave, link: Link, now: float) -> None:
        wave.waiting.discard(link)
        if wave.waiting:
            return
        del self._waves[broker]
        if wave.source is not None:
            if wave.source.state == "up":
                wave.source.add_record(HEARD, broker + wave.number.to_bytes(4, "big"))
        else:
            self._confirmed = max(self._confirmed, self._covers)
            self._release(now)
            if not self._federation.listings.unsaid:
                self.told(now)

    def link_down(self, link: Link, now: float) -> None:
        """A link is gone, or left the tree: nobody waits for its answer. Our own wave goes again over the tree that is next."""
        for broker, wave in list(self._waves.items()):
            if wave.source is link or (wave.source is None and link in wave.waiting):
                del self._waves[broker]
            elif link in wave.waiting:
                self._answered(broker, wave, link, now)
