"""Replay after a repair of the tree: what a neighbour missed comes before what is new (design section 4, promises 2 and 4).

A link that begins to forward first tells the neighbour what has been here (SEEN); the neighbour replays from its log what is
missing, in order, and only then adds the link to the live stream. What was published before a broker met its origin is history
to it: that is fetched (WANT, DONE) when a neighbour that was cut off lacks it and can get it only through here. With routing by
interest nothing is fetched: each broker asks origins itself (`broker.streams`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker import limits
from broker.origin import LAST, Ranges, Vector, Window, decode_vector, encode_vector
from broker.records import ASK_SEEN, DONE, ORIGINS, SEEN, WANT, Handler

if TYPE_CHECKING:
    from broker.federation import Federation
    from broker.link import Link
    from broker.log import Entry
    from broker.relay import Relay

FETCH_TIME = 0.5
"""s; longest wait for history: a neighbour that hangs must not keep another one from the live stream."""

INTRODUCTIONS = 8
"""Round trips at most until a neighbour knows all origins that are known here; it needs more only if its table is full."""


class Repair:
    """Brings links into the live stream and keeps track of who waits for what."""

    def __init__(self, relay: Relay, federation: Federation) -> None:
        self.node = relay.node
        self.relay = relay
        self.federation = federation
        self._fetches: dict[int, tuple[set[Link], list[Callable[[float], None]]]] = {}  # -> who has to answer, who waits
        self._fetch_number = 0
        self.records: dict[int, Handler] = {
            SEEN: self.seen_received,
            ASK_SEEN: self.ask_received,
            ORIGINS: self.origins_received,
            WANT: self.want_received,
            DONE: self.done_received,
        }
        self._late: dict[Link, Callable[[float], None]] = {}  # what answers a WANT when there may be more replayed
        self._waiting: list[tuple[Link, float, Callable[[float], None]]] = []  # for who is behind it; until when (s); what then

    # ---------------------------------------------------------------- the tree's word

    def forwarding_changed(self, link: Link, forwarding: bool, now: float) -> None:
        """Take the tree's word that a link forwards, or that it does not."""
        link.forwarding = forwarding
        if forwarding:
            self.federation.acks.keep(link, self.relay.log.begin)
            self.send_seen(link)
            if link.seen is not None:
                self._prepare(link, now)
            else:
                link.add_record(ASK_SEEN, b"")  # the other end may have forwarded all the time
        else:
            self.relay.leave(link)
            link.seen = None
            if link.peer is None or self.federation.overlays.open.get(link.peer.id) is not link:
                self.federation.acks.free(link)

    def send_seen(self, link: Link) -> None:
        """Tell a neighbour what has been here."""
        link.told = True
        now = self.node.now
        if link.tell_at <= now:
            link.tell_at = now + limits.SEEN_PAUSE
            link.add_record(SEEN, encode_vector(self.relay.vector))
        elif not link.telling:
            link.telling = True
            self.node.schedule(link.tell_at, lambda at: self._send_seen_late(link, at))

    def _send_seen_late(self, link: Link, now: float) -> None:
        link.telling = False
        if link.state == "up":
            self.send_seen(link)
            link.send_ping(now)

    # ---------------------------------------------------------------- what has been where

    def ask_received(self, link: Link, body: bytes, now: float) -> None:
        """Take a neighbour's question for what has been here."""
        self.send_seen(link)

    def origins_received(self, link: Link, body: bytes, now: float) -> None:
        """Take a neighbour's word for where origins begin that are new here."""
        self.relay.learn(decode_vector(body, now), link, now)

    def seen_received(self, link: Link, body: bytes, now: float) -> None:
        """Take what has been at a neighbour. Its word for origins that are new here is where we begin with them."""
        seen = decode_vector(body, now)
        self.relay.learn(seen, link, now)
        link.asked = False
        if self.node.drain is not None:
            self.node.drain.seen(link, seen, now)
        if link.peer is not None:
            self.federation.absents.seen(link.peer.id, seen)
        if link.live:
            return  # asked for twice; the stream to it has been whole since it joined
        link.seen = seen
        if link.forwarding and not link.behind:
            if not link.told:
                self.send_seen(link)
            self._prepare(link, now)

    # ---------------------------------------------------------------- into the live stream

    def _prepare(self, link: Link, now: float) -> None:
        """Join, but first make known the origins that the neighbour has not met, so that it says where it begins; and fetch
        what it lacks and was history here: that has to come before what is newer."""
        assert link.seen is not None
        strange = {key: window for key, window in self.relay.vector.items() if key not in link.seen}
        if strange and link.introductions < INTRODUCTIONS:
            link.introductions += 1
            link.seen = None
            link.add_record(ORIGINS, encode_vector(strange))
            link.add_record(ASK_SEEN, b"")
            return
        link.introductions = 0
        self._when_complete(link, lambda at: self._gather(link, at), now)

    def _gather(self, link: Link, now: float) -> None:
        """Tell the others who is behind a link that is going to join, then fetch what it lacks from them: in this order, so that
        nothing falls in between."""
        if link.seen is None or not link.forwarding or link.behind:
            return
        self.federation.listings.ready(link)
        self.federation.listings.settle(now)
        self.federation.overlays.settle(now)  # who is there now may route otherwise
        link.fetching += 1 + len(self._fetches)  # what is being fetched for others is missing for this one, too
        for _, waiting in self._fetches.values():
            waiting.append(lambda at: self._fetched(link, at))
        self._fetch(link.seen, link, lambda at: self._fetched(link, at), now)

    def _fetched(self, link: Link, now: float) -> None:
        link.fetching -= 1
        ready = not link.fetching and link.seen is not None and link.forwarding and not link.behind
        if ready and self.federation.listings.named(link):  # else it left the tree and is about to gather again
            self._join(link, now)

    def _when_complete(self, link: Link, then: Callable[[float], None], now: float) -> None:
        """Go on when it is known who is behind a link and what they want, which decides what is replayed; or after a while."""
        if not link.selective or self.federation.listings.complete(link):
            then(now)
        else:
            self._waiting.append((link, now + FETCH_TIME, then))
            self.node.schedule(now + FETCH_TIME, self.proceed)

    def proceed(self, now: float) -> None:
        """Go on with what waited for the directory."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for entry in waiting:
                link, until, then = entry
                if link.state != "up":
                    continue
                if now >= until or self.federation.listings.complete(link):
                    then(now)
                else:
                    self._waiting.append(entry)

    def _join(self, link: Link, now: float) -> None:
        """Replay what the neighbour lacks, then let it into the live stream."""
        assert link.seen is not None
        entries = self._lacking(link, link.seen, now)
        if wait := self._too_soon(link, entries):
            if not link.joining:
                link.joining = True
                self.node.schedule(now + wait, lambda at: self._join_late(link, at))
            return
        self.federation.streams.entering(link)
        self._replay(link, entries, now)
        link.seen = None
        self.relay.enter(link)

    def _join_late(self, link: Link, now: float) -> None:
        link.joining = False
        if link.seen is not None and link.forwarding and not link.behind and link.state == "up":
            self._join(link, now)
            self.federation.hurry(now)

    def _lacking(self, link: Link, seen: Vector, now: float) -> list[Entry]:
        """Return what somebody behind a link lacks and wants."""
        wanted, chosen = self.federation.interest.wanted_behind(link), self.federation.sharing.chosen_behind
        return [e for e in self.relay.log.missed(seen, now) if e.retain or wanted(e.topic) or chosen(link, e)]

    def _too_soon(self, link: Link, entries: list[Entry]) -> float:
        """Return s that a replay has to wait: who asks again and again costs us no more than MAX_REPLAY. 0: it may begin."""
        size = sum(entry.size for entry in entries)
        if not link.replayed or link.replayed + size <= limits.MAX_REPLAY:
            return 0.0
        return min(link.replayed, link.replayed + size - limits.MAX_REPLAY) / limits.LOG_BYTES + 1.0

    def _replay(self, link: Link, entries: list[Entry], now: float) -> None:
        self.federation.positions.tell_ages(link, entries, now)
        for entry in entries:
            data = entry.data(now)
            link.replayed += len(data)
            link.conn.send(data)
            self.node.counters.replayed += entry.count
            self.node.counters.link_bytes_data += len(data)

    # ---------------------------------------------------------------- history

    def _fetch(self, seen: Vector, source: Link, then: Callable[[float], None], now: float) -> None:
        """Ask the other neighbours for the history that `source` lacks; `then` when all have answered, or took too long."""
        asked = {} if self.federation.streams.active else self._asked(seen, source)
        if not asked:
            then(now)
            return
        number = self._fetch_number = self._fetch_number + 1 & 0xFFFFFFFF
        self._fetches[number] = (set(asked), [then])
        self.node.schedule(now + FETCH_TIME, lambda at: self._answered(number, None, at))
        for link, wanted in asked.items():
            link.add_record(WANT, number.to_bytes(4, "big") + encode_vector(wanted))

    def _asked(self, seen: Vector, source: Link) -> dict[Link, Vector]:
        """Whom to ask for what: all neighbours for what was history here."""
        wanted: Vector = {}
        for key, theirs in seen.items():
            window = self.relay.vector.get(key)
            if window is not None and (ranges := window.miss(theirs)):
                wanted[key] = everything_in(ranges)
        return {link: wanted for link in self.federation.links.values() if link.state == "up" and link is not source and wanted}

    def _answered(self, number: int, link: Link | None, now: float) -> None:
        """Note that one who was asked has answered; None: that time is up."""
        fetch = self._fetches.get(number)
        if fetch is not None:
            asked, waiting = fetch
            if link is not None:
                asked.discard(link)
            if link is None or not asked:
                del self._fetches[number]
                for then in waiting:
                    then(now)

    def want_received(self, link: Link, body: bytes, now: float) -> None:
        """Replay what a neighbour needs for somebody behind it, and say when that is done."""
        number = body[:4]
        wanted = decode_vector(body[4:], now)

        def answer(at: float) -> None:
            if link.state != "up":
                return
            entries = self._lacking(link, wanted, at)
            if wait := self._too_soon(link, entries):
                late = link not in self._late
                self._late[link] = answer  # of several the last
                if late:
                    self.node.schedule(at + wait, lambda when: self._answer_late(link, when))
                return
            self._replay(link, entries, at)
            link.send_behind(DONE, number)

        self._when_complete(link, lambda at: self._want(link, wanted, answer, at), now)

    def _answer_late(self, link: Link, now: float) -> None:
        answer = self._late.pop(link)
        answer(now)

    def _want(self, link: Link, wanted: Vector, answer: Callable[[float], None], now: float) -> None:
        self.federation.listings.settle(now)  # who is new behind this link is told first
        self._fetch(wanted, link, answer, now)

    def done_received(self, link: Link, body: bytes, now: float) -> None:
        """Take the answer to a WANT: what it brings has come before it."""
        self._answered(int.from_bytes(body[:4], "big"), link, now)

    # ---------------------------------------------------------------- links

    def link_down(self, link: Link) -> None:
        """A link is gone."""
        link.forwarding = False
        self.relay.leave(link)
        self.federation.streams.link_down(link)
        for number in [n for n, (asked, _) in self._fetches.items() if link in asked]:
            self._answered(number, link, self.node.now)

    def link_caught_up(self, link: Link) -> None:
        """It drained: ask where the neighbour is, to go on from there."""
        if link.forwarding and not link.asked:
            link.asked = True
            link.add_record(ASK_SEEN, b"")


def everything_in(ranges: Ranges) -> Window:
    """Return a window that lacks these numbers only."""
    window = Window(LAST, 0.0)
    window.gaps = ranges
    return window
