"""The overlay of one topic at one broker (Overlays 4.1.2, 4.2.2, 4.3): who its members are, its
root, and the neighbours to which messages of the topic go (the t-ORT).

    forming -(Tt has passed: elect a root among those that answered)-> formed
    either  -(no publisher or subscriber here any more)-> left: topic PINGREQ with LEAVING

Members are the neighbours that answered a topic PINGREQ, or sent one. The paper's brokers all hear
each other; here a claim about a root passes from member to member, as in MQTT-ST, so that members
that are neighbours in a chain share one overlay. Members with only other brokers between them
have several, and nothing crosses.

Invariants:

* Parent pointers of one root never form a loop: a claim is newly followed only if it is feasible
  (RFC 8966, 3.5.1), and each root numbers its claims.
* A broker that is forming has no children.
* No neighbour is in the t-ORT that is not a member.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from mqttree.stp.priority_vector import (
    MAX_COST_US,
    FeasibilityTable,
    RootVector,
    better_root,
    same_root,
    seq_newer,
)
from mqttree.stp.root_policy import CAPABILITY, Candidacy, OverlaySettings
from mqttree.stp.topic_ping import ASKS, FORMING, LEAVING, TopicPing

NOTHING, TO_MEMBERS, TO_ALL = 0, 1, 2
"""To whom a topic PINGREQ is due."""

FEASIBILITY_S: Final = 60.0
FEASIBILITY_ROOTS: Final = 16
"""Roots of one overlay whose claims are remembered, and for how long after their last use."""


class Member:
    """A neighbour with a publisher or subscriber of the topic."""

    __slots__ = ("heard_at", "joined", "ping", "pinged_at", "since")

    def __init__(self, now: float) -> None:
        self.ping: TopicPing | None = None
        """Its last topic PINGREQ; None: it has only answered."""
        self.heard_at = now
        """When it last sent either (s)."""
        self.pinged_at = now
        """When it last sent a topic PINGREQ (s)."""
        self.since = now
        """Since when it is a member (s)."""
        self.joined = False
        """Whether it has been part of the tree."""


class TopicOverlay:
    """One topic's overlay, as this broker sees it."""

    __slots__ = (
        "_asked",
        "_attached",
        "_before",
        "_begun_at",
        "_check_at",
        "_form_at",
        "_own_id",
        "_renews",
        "_round_at",
        "_sent_at",
        "_settings",
        "_started",
        "_table",
        "formed",
        "members",
        "missed",
        "neighbours",
        "parent",
        "path_cost_us",
        "planned",
        "root",
        "seq",
        "topic",
        "trigger_at",
    )

    def __init__(self, topic: bytes, own: Candidacy, settings: OverlaySettings, now: float) -> None:
        """Begin to form the overlay of `topic`: a topic PINGREQ is due at once. `own`: this broker;
        `settings`: of all overlays; `now`: s."""
        self.topic = topic
        self._settings = settings
        self._table = FeasibilityTable(FEASIBILITY_S, FEASIBILITY_ROOTS)
        self.root: RootVector = own.vector(holds=False)
        """The root that this broker follows."""
        self._own_id = self.root.id
        self.seq = 0
        """The newest sequence number of the root that was here."""
        self.path_cost_us = 0
        """Pt: the cost of the path to the root (microseconds)."""
        self.parent: bytes | None = None
        """The neighbour to which that path leads; None: this broker is the root."""
        self.formed = False
        """Whether a root has been elected, so that messages may go to other members."""
        self.members: dict[bytes, Member] = {}
        """The neighbours with a publisher or subscriber of the topic, by id."""
        self.neighbours: tuple[bytes, ...] = ()
        """The t-ORT: the parent, and the members whose parent this broker is."""
        self.missed: list[tuple[bytes, float]] = []
        """Members that have just become part of the tree here, and since when they missed messages
        (s): to be taken out by the reader."""
        self.trigger_at = math.inf
        """When a topic PINGREQ to the members is due, as something has changed (s)."""
        self.planned = math.inf
        """When whoever has the timers is going to call (s)."""
        self._form_at = now + settings.answer_s
        self._round_at = now
        # Of the last topic PINGREQ to all neighbours, and of the one before.
        self._started = self._before = -math.inf
        self._check_at = math.inf
        self._sent_at = -math.inf
        self._begun_at = now
        self._attached = False  # this broker has had a parent or a child
        self._asked = False  # a member waits for a newer number of the root
        self._renews = False  # this broker is root and is to renumber its claim

    @property
    def is_root(self) -> bool:
        """Whether this broker is the root of a formed overlay."""
        return self.formed and self.parent is None

    def due(self) -> float:
        """When `tick` is due (s)."""
        form_at = math.inf if self.formed else self._form_at
        return min(form_at, self._round_at, self._check_at, self.trigger_at)

    def trigger(self, now: float) -> None:
        """Have a topic PINGREQ sent to the members, as soon as the last one is long enough ago."""
        self.trigger_at = min(self.trigger_at, max(now, self._sent_at + self._settings.gap_s))

    # ---------------------------------------------------------------- what neighbours say

    def ping_received(
        self, peer: bytes, ping: TopicPing, own: Candidacy, costs: Mapping[bytes, int], now: float
    ) -> None:
        """Take a topic PINGREQ (`ping`) of the neighbour `peer`. `own`: this broker; `costs`: of
        its links, by neighbour (microseconds); `now`: s."""
        if ping.flags & LEAVING:
            self.remove(peer, own, costs, now)
            return
        member = self._member(peer, now, new=bool(ping.flags & FORMING))
        member.ping = ping
        member.pinged_at = now
        if not self.formed:
            return
        if ping.flags & ASKS and (
            ping.parent == self._own_id or not same_root(ping.root, self.root)
        ):
            if self.is_root:
                self._renews = True
            else:
                self._asked = True
            self.trigger(now)
        self.decide(own, costs, now, elect=False)
        if (
            not ping.flags & FORMING
            and ping.root.id != self.root.id
            and better_root(self.root, ping.root)
        ):
            self.trigger(now)  # it has not heard of the better root

    def pong_received(self, peer: bytes, now: float) -> None:
        """Take a topic PINGRESP of the neighbour `peer`, at `now` (s): it is a member."""
        self._member(peer, now, new=False)

    def _member(self, peer: bytes, now: float, *, new: bool) -> Member:
        """Return a member; `new`: its topic has just got its first client."""
        member = self.members.get(peer)
        if member is None:
            member = self.members[peer] = Member(now)
            if not new and not self.formed:
                member.since = self._begun_at  # it was one before this broker
            self.trigger(now)  # it elects among those that it has heard of
        member.heard_at = now
        return member

    def remove(self, peer: bytes, own: Candidacy, costs: Mapping[bytes, int], now: float) -> None:
        """Note that the neighbour `peer` is no member any more, or is gone. `own`, `costs`, `now`:
        as of `ping_received`."""
        if self.members.pop(peer, None) is not None and self.formed:
            self.decide(own, costs, now, elect=False)

    # ---------------------------------------------------------------- root and parent

    def decide(
        self, own: Candidacy, costs: Mapping[bytes, int], now: float, *, elect: bool
    ) -> None:
        """Choose the root, and the parent: the neighbour with the cheapest path there.

        `own`: this broker; `costs`: of its links, by neighbour (microseconds); `now`: s; `elect`:
        this broker may become root instead of one that lives. By capability it always may.
        """
        was_root, self.formed = self.is_root, True
        old_root, old_parent, old_seq = self.root, self.parent, self.seq
        mine = own.vector(holds=was_root)
        claims = self._claims(costs)
        best = self._best_root(claims)
        if best is None or (was_root and not better_root(best.root, mine)):
            self._become_root(mine, own, was_root)
        elif (
            not was_root
            and (elect or self._settings.policy == CAPABILITY)
            and own.challenges(best.root, self._heard(best.root))
        ):
            own.took(best.root.id, now)
            self._become_root(mine, own, was_root)
        else:
            self._follow(best.root, claims, costs)
            self._table.advertise(self.root, self.seq, self.path_cost_us, now)
        if self.is_root != was_root:
            own.rooted += 1 if self.is_root else -1
        if (
            old_root.id != self.root.id
            or old_parent != self.parent
            or (
                old_seq != self.seq
                and any(
                    member.ping is not None and member.ping.root.id != self.root.id
                    for member in self.members.values()
                )
            )
        ):
            self.trigger(now)
        self._note_asks(now)
        self._find_neighbours()

    def _claims(self, costs: Mapping[bytes, int]) -> list[tuple[bytes, TopicPing]]:
        """Return the claims that may be followed, with their neighbours."""
        found: list[tuple[bytes, TopicPing]] = []
        for peer, member in self.members.items():
            ping = member.ping
            if (
                ping is None
                or ping.flags & FORMING
                or self._own_id in (ping.root.id, ping.parent)
                or peer not in costs
                or ping.path_cost_us + costs[peer] > MAX_COST_US
            ):
                continue
            kept = peer == self.parent and same_root(ping.root, self.root)
            if kept or self._table.feasible(ping.root, ping.seq, ping.path_cost_us):
                found.append((peer, ping))
        return found

    @staticmethod
    def _best_root(claims: list[tuple[bytes, TopicPing]]) -> TopicPing | None:
        """Return the claim with the best root; of one root, the newest word of its merit."""
        newest: dict[bytes, TopicPing] = {}
        for _, ping in claims:
            known = newest.get(ping.root.id)
            if (
                known is None
                or ping.root.boot > known.root.boot
                or (ping.root.boot == known.root.boot and seq_newer(ping.seq, known.seq))
            ):
                newest[ping.root.id] = ping
        best: TopicPing | None = None
        for ping in newest.values():
            if best is None or better_root(ping.root, best.root):
                best = ping
        return best

    def _heard(self, root: RootVector) -> float:
        """Return when the newest word about a root came (s)."""
        return max(
            [
                member.pinged_at
                for member in self.members.values()
                if member.ping is not None and member.ping.root.id == root.id
            ],
            default=-math.inf,
        )

    def _become_root(self, mine: RootVector, own: Candidacy, was_root: bool) -> None:
        if not was_root or self._renews:
            self.seq = own.next_seq()
        self._renews = False
        self.root = mine
        self.parent = None
        self.path_cost_us = 0

    def _follow(
        self,
        root: RootVector,
        claims: list[tuple[bytes, TopicPing]],
        costs: Mapping[bytes, int],
    ) -> None:
        """Take the cheapest path to a root; a parent stays if another one saves little."""
        chosen, ping, least = b"", claims[0][1], -1
        for peer, claim in claims:
            if same_root(claim.root, root):
                total = claim.path_cost_us + costs[peer]
                if least < 0 or total < least or (total == least and peer < chosen):
                    chosen, ping, least = peer, claim, total
        if self.parent is not None and chosen != self.parent:
            for peer, claim in claims:
                if peer == self.parent and same_root(claim.root, root):
                    total = claim.path_cost_us + costs[peer]
                    saved = max(
                        self._settings.hysteresis_ms * 1000,
                        self._settings.hysteresis_ratio * total,
                    )
                    if total - least < saved:
                        chosen, ping, least = peer, claim, total
        self.root, self.seq = root, ping.seq
        self.parent, self.path_cost_us = chosen, least

    def _note_asks(self, now: float) -> None:
        """Ask for a newer number of a better root that may not be followed yet, as its claims that
        are known here may be old."""
        for member in self.members.values():
            ping = member.ping
            if (
                ping is not None
                and not ping.flags & FORMING
                and ping.parent != self._own_id
                and ping.root.id not in (self._own_id, self.root.id)
                and better_root(ping.root, self.root)
            ):
                self._asked = True
                self.trigger(now)
                return

    def _find_neighbours(self) -> None:
        found: list[bytes] = []
        for peer, member in self.members.items():
            ping = member.ping
            if ping is None:
                continue
            if ping.parent == self._own_id:
                found.append(peer)
                if not member.joined:
                    self.missed.append((peer, member.since))
                    self._attached = True
            member.joined |= ping.parent != peer
        if self.parent is not None and self.parent not in found:
            found.append(self.parent)
            if not self._attached:
                self.missed.append((self.parent, self._begun_at))
                self._attached = True
        self.neighbours = tuple(sorted(found))

    # ---------------------------------------------------------------- time

    def tick(self, own: Candidacy, costs: Mapping[bytes, int], now: float) -> int:
        """Do what is due. Returns to whom a topic PINGREQ (`ping`) is to be sent: `NOTHING`,
        `TO_MEMBERS` or `TO_ALL`. `own`, `costs`, `now`: as of `decide`."""
        if not self.formed and now >= self._form_at:
            self.decide(own, costs, now, elect=True)
            self.trigger(now)
        if now >= self._check_at:
            self._check_at = math.inf
            for peer in [p for p, m in self.members.items() if m.heard_at < self._before]:
                self.remove(peer, own, costs, now)
        if now >= self._round_at:
            self._before, self._started = self._started, now
            self._round_at = now + self._settings.period_s
            self._check_at = now + self._settings.answer_s
            if self.formed:
                self._renews = True
                self.decide(own, costs, now, elect=True)
            return TO_ALL
        if now >= self.trigger_at:
            if self.is_root and self._renews:
                self.decide(own, costs, now, elect=False)
            return TO_MEMBERS
        return NOTHING

    def ping(self, own: Candidacy, now: float) -> TopicPing:
        """Return the topic PINGREQ that is sent at `now` (s)."""
        self._sent_at = now
        self.trigger_at = math.inf
        flags = (0 if self.formed else FORMING) | (ASKS if self._asked else 0)
        self._asked = False
        return TopicPing(
            self.topic,
            self.root,
            self.seq,
            self.path_cost_us,
            self.parent or self._own_id,
            own.tenths,
            own.rooted - self.is_root,
            own.clients,
            flags,
        )

    def farewell(self, own: Candidacy) -> TopicPing:
        """Return the topic PINGREQ of a broker that leaves the overlay."""
        if self.is_root:
            own.rooted -= 1
        self.formed = False
        self.neighbours = ()
        return TopicPing(
            self.topic, self.root, self.seq, 0, self._own_id, own.tenths, 0, own.clients, LEAVING
        )
