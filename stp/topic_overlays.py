"""The overlays of all topics that have a publisher or subscriber at this broker: when each is due,
and what is to be sent to which neighbour (Overlays 4.1.2).

In: topics that clients publish or subscribe to (`join`), links that come and go, topic PINGREQs and
PINGRESPs, time. Out: those to send (`take_output`), and the topics whose t-ORT is another one now
(`take_changed`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from mqttree.broker.base.broker_id import Identity
from mqttree.stp.root_policy import Candidacy, OverlaySettings
from mqttree.stp.topic_overlay import NOTHING, TO_ALL, TopicOverlay
from mqttree.stp.topic_ping import FORMING, LEAVING, TopicPing, encode_ping, encode_topics


class Missed(NamedTuple):
    """A neighbour has become part of a topic's tree here."""

    topic: bytes
    peer: bytes
    since: float
    """It has missed messages that passed here since then (s)."""


class Outgoing(NamedTuple):
    """What one neighbour is sent."""

    peer: bytes
    pings: list[bytes]
    """Topic PINGREQs."""
    pongs: bytes
    """Topic PINGRESPs."""


class TopicOverlays:
    """The overlays that this broker is a member of, by topic."""

    def __init__(
        self,
        own: Identity,
        capability: float,
        settings: OverlaySettings,
        *,
        limit: int,
        interested: Callable[[bytes, float], bool],
    ) -> None:
        """`own`: this broker, of this `capability`; `settings`: of all overlays; `limit`: most
        overlays at a time; `interested`: returns whether a topic has a publisher or subscriber
        here at a time (s)."""
        self.own = Candidacy(own, capability, settings)
        """What this broker brings to elections."""
        self._settings = settings
        self._limit = limit
        self._interested = interested
        self.overlays: dict[bytes, TopicOverlay] = {}
        self.costs: dict[bytes, int] = {}
        """What each link costs (microseconds), by the neighbour's id."""
        self._due: list[tuple[float, bytes]] = []
        self._changed: dict[bytes, None] = {}
        self._missed: list[Missed] = []
        self._pings: dict[bytes, list[bytes]] = {}
        self._pongs: dict[bytes, list[bytes]] = {}
        self._greeted: list[bytes] = []
        # Of topics without a client here: the roots that neighbours name, and when (s).
        self._passing: dict[bytes, dict[bytes, tuple[bytes, float]]] = {}
        self._sweep_at = math.inf

    @property
    def rooted(self) -> int:
        """Of how many overlays this broker is the root (R)."""
        return self.own.rooted

    def set_clients(self, clients: int) -> None:
        """Note how many clients are connected here, for elections by root balance."""
        self.own.clients = clients

    def set_capability(self, capability: float) -> None:
        """Note the capability of this broker, for the next elections. Raises ValueError: it is
        negative, or too high."""
        self.own.set_capability(capability)

    # ---------------------------------------------------------------- members

    def join(self, topic: bytes, now: float) -> TopicOverlay | None:
        """Return the overlay of a topic, which begins to form at `now` (s) if there is none yet.
        None: there are too many."""
        overlay = self.overlays.get(topic)
        if overlay is None:
            if len(self.overlays) >= self._limit:
                return None
            overlay = self.overlays[topic] = TopicOverlay(topic, self.own, self._settings, now)
            self._passing.pop(topic, None)
            self._plan(overlay)
        return overlay

    def _leave(self, overlay: TopicOverlay) -> None:
        del self.overlays[overlay.topic]
        data = encode_ping(overlay.farewell(self.own))
        for peer in self.costs:
            self._pings.setdefault(peer, []).append(data)
        self._changed[overlay.topic] = None

    def neighbours(self, topic: bytes) -> tuple[bytes, ...]:
        """Return the t-ORT of a topic: the neighbours to which its messages go."""
        overlay = self.overlays.get(topic)
        return () if overlay is None else overlay.neighbours

    # ---------------------------------------------------------------- links

    def link_up(self, peer: bytes, cost_us: int, now: float) -> None:
        """Note at `now` (s) that messages may take a link to the neighbour `peer`, which costs
        `cost_us` (microseconds): it hears of all topics."""
        self.link_down(peer, now)
        self.costs[peer] = cost_us
        self._greeted.append(peer)

    def link_down(self, peer: bytes, now: float) -> None:
        """Note at `now` (s) that no message may take the link to the neighbour `peer` any more."""
        if self.costs.pop(peer, None) is None:
            return
        self._pings.pop(peer, None)
        self._pongs.pop(peer, None)
        self.own.forget(peer)
        for overlay in self.overlays.values():
            before = overlay.neighbours
            overlay.remove(peer, self.own, self.costs, now)
            self._after(overlay, before)
        for topic in [t for t, seen in self._passing.items() if peer in seen]:
            self._unnote(topic, peer)

    def measured(self, peer: bytes, cost_us: int) -> None:
        """Note what a link costs now (microseconds). It counts from the next topic PINGREQ on."""
        if peer in self.costs:
            self.costs[peer] = cost_us

    # ---------------------------------------------------------------- what neighbours say

    def pings_received(self, peer: bytes, pings: Iterable[TopicPing], now: float) -> None:
        """Take topic PINGREQs (`pings`) of the neighbour `peer`, at `now` (s), and answer those of
        topics that have a client here."""
        if peer not in self.costs:
            return
        for ping in pings:
            overlay = self.overlays.get(ping.topic)
            if overlay is None and not ping.flags & LEAVING and self._interested(ping.topic, now):
                # A subscription with wildcards matches the topic.
                overlay = self.join(ping.topic, now)
            if overlay is None:
                self._note_passing(peer, ping, now)
                continue
            before = overlay.neighbours
            overlay.ping_received(peer, ping, self.own, self.costs, now)
            self._after(overlay, before)
            if not ping.flags & LEAVING:
                self._pongs.setdefault(peer, []).append(ping.topic)

    def pongs_received(self, peer: bytes, topics: Iterable[bytes], now: float) -> None:
        """Take topic PINGRESPs of the neighbour `peer`, at `now` (s): it is a member of the
        overlays of these `topics`."""
        if peer not in self.costs:
            return
        for topic in topics:
            overlay = self.overlays.get(topic)
            if overlay is not None:
                overlay.pong_received(peer, now)
                self._plan(overlay)

    def _note_passing(self, peer: bytes, ping: TopicPing, now: float) -> None:
        """Note the root that a neighbour names of a topic without subscribers here: two members
        that name different ones, and have only this broker between them, do not reach each
        other."""
        seen = self._passing.get(ping.topic)
        if ping.flags & (LEAVING | FORMING):
            self._unnote(ping.topic, peer)
            return
        if seen is None:
            if len(self._passing) >= self._limit:
                return
            seen = self._passing[ping.topic] = {}
            self._sweep_at = min(self._sweep_at, now + 3 * self._settings.period_s)
        seen[peer] = (ping.root.id, now)

    def _unnote(self, topic: bytes, peer: bytes) -> None:
        seen = self._passing.get(topic)
        if seen is not None and peer in seen:
            del seen[peer]
            if not seen:
                del self._passing[topic]

    def in_parts(self) -> int:
        """Return how many topics that have no client here have an overlay in two parts or more
        around this broker: their members are not neighbours, and messages do not cross."""
        return sum(len({root for root, _ in seen.values()}) > 1 for seen in self._passing.values())

    def _sweep(self, now: float) -> None:
        """Forget topics without a client here of which nothing was heard for three rounds."""
        until = now - 3 * self._settings.period_s
        for topic, seen in list(self._passing.items()):
            for peer in [peer for peer, (_, at) in seen.items() if at < until]:
                del seen[peer]
            if not seen:
                del self._passing[topic]
        self._sweep_at = now + 3 * self._settings.period_s if self._passing else math.inf

    # ---------------------------------------------------------------- time

    def deadline(self) -> float:
        """When `tick` is due (s); infinity: never."""
        if self._greeted or self._pings or self._pongs:
            return -math.inf
        return min(self._due[0][0] if self._due else math.inf, self._sweep_at)

    def tick(self, now: float) -> None:
        """Do what is due at `now` (s)."""
        greeted, self._greeted = self._greeted, []
        for peer in greeted:
            if peer in self.costs:
                found = [encode_ping(o.ping(self.own, now)) for o in self.overlays.values()]
                self._pings.setdefault(peer, []).extend(found)
        while self._due and self._due[0][0] <= now:
            at, topic = heapq.heappop(self._due)
            overlay = self.overlays.get(topic)
            if overlay is not None and overlay.planned == at:
                overlay.planned = math.inf
                self._tick(overlay, now)
        if now >= self._sweep_at:
            self._sweep(now)

    def _tick(self, overlay: TopicOverlay, now: float) -> None:
        before = overlay.neighbours
        whom = overlay.tick(self.own, self.costs, now)
        if whom == TO_ALL and not self._interested(overlay.topic, now):
            self._leave(overlay)
            return
        if whom != NOTHING:
            data = encode_ping(overlay.ping(self.own, now))
            peers = self.costs if whom == TO_ALL else overlay.members
            for peer in peers:
                if peer in self.costs:
                    self._pings.setdefault(peer, []).append(data)
        self._after(overlay, before)

    def _after(self, overlay: TopicOverlay, before: tuple[bytes, ...]) -> None:
        """Note what has become of an overlay whose t-ORT was `before`."""
        if overlay.neighbours != before:
            self._changed[overlay.topic] = None
        if overlay.missed:
            self._missed += [Missed(overlay.topic, peer, at) for peer, at in overlay.missed]
            overlay.missed = []
        self._plan(overlay)

    def _plan(self, overlay: TopicOverlay) -> None:
        due = overlay.due()
        if due < overlay.planned:
            overlay.planned = due
            heapq.heappush(self._due, (due, overlay.topic))

    # ---------------------------------------------------------------- out

    def take_output(self) -> list[Outgoing]:
        """Return what is to be sent now, once."""
        peers = dict.fromkeys([*self._pings, *self._pongs])
        found = [
            Outgoing(peer, self._pings.get(peer, []), encode_topics(self._pongs.get(peer, ())))
            for peer in peers
        ]
        self._pings = {}
        self._pongs = {}
        return found

    def take_changed(self) -> list[bytes]:
        """Return the topics whose t-ORT, or whose state, has changed since the last call."""
        found = list(self._changed)
        self._changed.clear()
        return found

    def take_missed(self) -> list[Missed]:
        """Return the neighbours that have become part of a tree here since the last call."""
        found, self._missed = self._missed, []
        return found
