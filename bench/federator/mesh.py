"""The mesh of one topic, as one federator sees it: the core, parents, children, and the way of a
publication."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from mqttree.bench.federator.duplicate_log import DuplicateLog
from mqttree.bench.federator.mesh_states import Action, Input, State, step
from mqttree.bench.federator.messages import (
    CoreAnnouncement,
    Data,
    Membership,
    Message,
    PublicationId,
)
from mqttree.bench.federator.settings import MAX_ID, NonMember, Settings

LIFETIME = 3
"""intervals without a sign of life until a core, a child or interest is gone."""


class Send(NamedTuple):
    """Publish a message at these neighbours' brokers."""

    to: tuple[int, ...]
    message: Message


class Deliver(NamedTuple):
    """Publish a payload to the clients of this federator's own broker."""

    payload: bytes


MeshEffect: TypeAlias = Send | Deliver


@dataclass(slots=True)
class Counts:
    """What all meshes of a federator have done; numbers only grow."""

    announcements: int = 0
    """Announcements sent, relayed ones included, one for each neighbour."""
    memberships: int = 0
    data: int = 0
    """Publications sent to neighbours."""
    published: int = 0
    """Publications of this broker's clients."""
    delivered: int = 0
    """Publications from neighbours that this broker's clients got."""
    duplicates: int = 0
    """Publications from neighbours that had been here."""
    without_core: int = 0
    """Publications that ended here because no core was known."""
    strangers: int = 0
    """Announcements and memberships whose sender is no neighbour."""


class Mesh:
    """All methods take `now` in seconds, of a clock that never goes back. What is to be done is
    collected in `effects`; its caller takes it from there."""

    __slots__ = (
        "_announce_at",
        "_counts",
        "_interest_until",
        "_log",
        "_next_seq",
        "_settings",
        "answered",
        "children",
        "core",
        "dist",
        "effects",
        "heard_at",
        "next_number",
        "parents",
        "seq",
        "state",
        "used_at",
    )

    def __init__(self, settings: Settings, counts: Counts, first_number: int = 0) -> None:
        """`settings`: of the federator; `counts`: where all meshes count; `first_number`: of the
        first publication of this broker's clients."""
        self._settings = settings
        self._counts = counts
        self.state = State.NO_CORE
        self.core: int | None = None
        # Of the core's newest announcement: its number, the hops to the core, when it came first.
        self.seq = 0
        self.dist = 0
        self.heard_at = -math.inf
        # Ascending; all are `dist` - 1 hops from the core.
        self.parents: list[int] = []
        # Parents that have been told of this broker's membership since `seq`.
        self.answered: set[int] = set()
        # Child -> when its last membership came.
        self.children: dict[int, float] = {}
        self.effects: list[MeshEffect] = []
        self.next_number = first_number
        self.used_at = -math.inf
        self._interest_until: float | None = None
        self._next_seq = 0
        self._announce_at = math.inf
        self._log = DuplicateLog(settings.log_time)

    @property
    def logged(self) -> int:
        """How many publications are remembered."""
        return len(self._log)

    def deadline(self) -> float:
        """Return when `tick` has something to do (s); infinity: not before another input."""
        if self.state is not State.CORE or self._interest_until is None:
            return math.inf
        return min(self._announce_at, self._interest_until)

    def interested(self, now: float) -> bool:
        """Return whether a client of this broker wants the topic."""
        return self._interest_until is not None and now < self._interest_until

    def live_children(self, now: float) -> list[int]:
        """Return the children whose memberships are new enough, in ascending order."""
        since = now - LIFETIME * self._settings.core_interval
        return sorted(child for child, at in self.children.items() if at > since)

    def is_member(self, now: float) -> bool:
        """Return whether this broker is part of the mesh: it is the core, has interest, or connects
        a child."""
        if self.state is State.CORE or self.interested(now):
            return True
        return self.state is State.FOLLOWER and bool(self.live_children(now))

    def idle_since(self, now: float) -> float:
        """Return when this mesh was last of use (s); `now` if it is."""
        self._pass_time(now)
        return self.used_at if self.state is State.NO_CORE else now

    def tick(self, now: float) -> None:
        """Do what time asks for: end interest, forget a silent core, announce."""
        self._pass_time(now)
        if self.state is State.CORE and now >= self._announce_at:
            self._announce(now)

    def beacon(self, now: float) -> None:
        """A client of this broker is interested in the topic."""
        self.used_at = now
        self._pass_time(now)
        self._interest_until = now + LIFETIME * self._settings.beacon_interval
        self._take(Input.BEACON, None, now)

    def core_announced(self, announcement: CoreAnnouncement, now: float) -> None:
        """A neighbour is core, or relays the announcement of one."""
        own = self._settings.id
        if own in (announcement.core, announcement.sender) or self._stranger(announcement.sender):
            return
        self.used_at = now
        self._pass_time(now)
        self._take(self._judge(announcement), announcement, now)

    def member_announced(self, membership: Membership, now: float) -> None:
        """A neighbour says that it is a child of this broker."""
        if membership.sender == self._settings.id or self._stranger(membership.sender):
            return
        self.used_at = now
        self._pass_time(now)
        if self.core is None or membership.core != self.core:
            return
        if self.state is State.CORE or membership.seq == self.seq:
            self.children[membership.sender] = now
            self._answer(now)

    def published(self, payload: bytes, now: float) -> None:
        """A client of this broker has published to the topic."""
        self.used_at = now
        self._pass_time(now)
        own = self._settings.id
        id_ = PublicationId(own, self.next_number)
        self.next_number = (self.next_number + 1) & MAX_ID
        self._counts.published += 1
        self._log.add(id_, now)
        self._route(Data(id_, own, payload), None, now)

    def data_received(self, data: Data, now: float) -> None:
        """A neighbour has sent a publication."""
        self.used_at = now
        self._pass_time(now)
        if not self._log.add(data.id, now):
            self._counts.duplicates += 1
            return
        if self.interested(now):
            self._counts.delivered += 1
            self.effects.append(Deliver(data.payload))
        self._route(Data(data.id, self._settings.id, data.payload), data.sender, now)

    def trim(self, size: int, most: int, now: float) -> None:
        """Forget the oldest publications until `size` are left, and those that have to be
        remembered for a time until `most` are; `now`: in seconds."""
        self._log.trim(size, most, now)

    def _stranger(self, sender: int) -> bool:
        """Return whether nothing can be sent to the sender: it can be neither parent nor child."""
        if sender in self._settings.neighbours:
            return False
        self._counts.strangers += 1
        return True

    def _pass_time(self, now: float) -> None:
        if self._interest_until is not None and now >= self._interest_until:
            self._interest_until = None
            self._take(Input.INTEREST_OVER, None, now)
        silence = now - self.heard_at
        if self.state is State.FOLLOWER and silence >= LIFETIME * self._settings.core_interval:
            self._take(Input.CORE_SILENT, None, now)

    def _judge(self, announcement: CoreAnnouncement) -> Input:
        """Return what an announcement of another core is to this broker."""
        if self.core is None or announcement.core < self.core:
            return Input.BETTER_CORE
        if announcement.core != self.core or announcement.seq < self.seq:
            return Input.NO_NEWS
        if announcement.seq > self.seq:
            return Input.NEWER
        dist = announcement.dist + 1
        if dist < self.dist:
            return Input.NEARER
        if dist == self.dist and announcement.sender not in self.parents:
            return Input.ANOTHER_PARENT
        return Input.NO_NEWS

    def _take(self, given: Input, announcement: CoreAnnouncement | None, now: float) -> None:
        action, self.state = step(self.state, given)
        if action is Action.BECOME_CORE:
            self.core = self._settings.id
            self.parents, self.children = [], {}
            self._announce_at = now
            self._announce(now)
        elif action in (Action.RESIGN, Action.FORGET_CORE):
            self.core = None
            self.parents = []
            self._announce_at = math.inf
        elif action is Action.ANSWER:
            self._answer(now)
        elif announcement is not None and action is not Action.NOTHING:
            self._follow(action, announcement, now)

    def _follow(self, action: Action, announcement: CoreAnnouncement, now: float) -> None:
        """Take news of a core that this broker follows, or will now."""
        if action is Action.ADD_PARENT:
            self.parents = sorted([*self.parents, announcement.sender])
            del self.parents[self._settings.redundancy :]
        else:
            if action is Action.FOLLOW:
                self.children = {}
                self._announce_at = math.inf
            self.core, self.seq = announcement.core, announcement.seq
            self.dist, self.heard_at = announcement.dist + 1, now
            self.parents, self.answered = [announcement.sender], set()
            if action is not Action.MOVE_NEARER or self._settings.relays_nearer:
                self._relay(announcement)
        self._answer(now)

    def _announce(self, now: float) -> None:
        settings = self._settings
        own = CoreAnnouncement(settings.id, self._next_seq, 0, settings.id)
        self._next_seq = (self._next_seq + 1) & MAX_ID
        self._counts.announcements += len(settings.neighbours)
        self._send(settings.neighbours, own)
        # A tick that is late by more than an interval does not make up for those left out.
        on_time = self._announce_at + settings.core_interval
        self._announce_at = on_time if on_time > now else now + settings.core_interval

    def _relay(self, announcement: CoreAnnouncement) -> None:
        settings = self._settings
        hops = 2 if settings.doubles_distance else 1
        relayed = announcement._replace(dist=announcement.dist + hops, sender=settings.id)
        to = tuple(each for each in settings.neighbours if each != announcement.sender)
        self._counts.announcements += len(to)
        self._send(to, relayed)

    def _answer(self, now: float) -> None:
        """Tell the parents that have not been told since the newest announcement."""
        if self.state is not State.FOLLOWER or self.core is None or not self.is_member(now):
            return
        to = tuple(each for each in self.parents if each not in self.answered)
        self.answered = set(self.parents)
        self._counts.memberships += len(to)
        self._send(to, Membership(self.core, self.seq, self._settings.id))

    def _route(self, data: Data, came_from: int | None, now: float) -> None:
        """Pass a publication on: along the mesh, or towards it."""
        settings = self._settings
        if self.state is State.NO_CORE:
            self._counts.without_core += 1
            return
        if self.is_member(now):
            to = sorted({*self.parents, *self.live_children(now)})
        else:
            to = self.parents
        to = [each for each in to if each != came_from]
        if settings.nonmember is NonMember.ONE and not self.is_member(now):
            to = [settings.preferred_parent] if settings.preferred_parent in to else to[:1]
        self._counts.data += len(to)
        self._send(tuple(to), data)

    def _send(self, to: tuple[int, ...], message: Message) -> None:
        if to:
            self.effects.append(Send(to, message))
