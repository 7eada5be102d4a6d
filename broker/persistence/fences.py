"""What this broker has given away of the sessions of others, as their standby: it tells them when
they are back (docs/decisions/0063). Pure.

A broker that only hung, or was cut off, has its sessions still, and clients may be connected to it.
Its fence says which of them are other brokers': those whose contents were sent away. It is told
again until the owner asks for nothing more, and again when a claim is added. One that was killed,
and starts again from its journal, learns from it as well what its clients had sent at QoS 2: its
disk may lack that.

The standby behind the one that has taken an owner's place is told the same (CLAIMED): if that one
dies, too, it goes on from there, and tells the owner what both have given away.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from mqttree.broker.base.broker_id import ID_BYTES
from mqttree.broker.base.sequence_set import LAST
from mqttree.broker.cluster.sessions.fence_messages import (
    ASK_FENCE,
    CLAIMED,
    FENCE,
    UNHEARD,
    AskFence,
    Claim,
    FenceMessage,
)
from mqttree.broker.cluster.sessions.image_states import State
from mqttree.broker.cluster.sharing.assignment_ledger import encode_refs
from mqttree.broker.cluster.sharing.assignments import DONE, REPORT

if TYPE_CHECKING:
    from mqttree.broker.cluster.cluster import Cluster
    from mqttree.broker.cluster.sharing.assignment_ledger import Ref
    from mqttree.broker.persistence.ports import JournalBroker
    from mqttree.broker.persistence.standby_image import StandbyImage

REPEAT_S = 0.25
"""s between two times that an owner is told the same, while it can be reached."""

KEPT_S = 30.0
"""s for which an owner that can be reached is told it, at most."""

AT_ONCE = 1000
"""claims and packet identifiers in one message, about."""


class Fence:
    """The claims on the sessions of one image."""

    def __init__(self, image: StandbyImage) -> None:
        """`image`: the one whose sessions are given away."""
        (_, self.boot, self.epoch), self.lsn = image.key, image.lsn
        self.last = LAST
        """Number of the last message of its owner in it, known once these are taken."""
        # First what its clients had sent: an owner that starts again may not know it.
        self.claims = [
            Claim(recorded.head.client_id, 0, tuple(recorded.incoming))
            for recorded in image.contents.sessions.values()
            if recorded.incoming
        ]
        self.closed: list[Ref] = []
        """Messages that it gave to members of groups and that are settled, or kept elsewhere."""
        self.adopted: set[bytes] = set()
        """Clients whose sessions are this broker's now, as their owner has not come back."""
        self.heard = -1
        """How many of these the owner has carried out; -1: it has not heard of the fence."""
        self.told_since = 0.0
        """s; since when the owner can be reached, 0: it cannot be."""
        self.relayed: dict[bytes, int] = {}
        """How many claims the standbys behind this one have been told."""
        self.taken_over = -1
        """How many are those of the standby ahead of this one, as it has said; -1: it has said
        nothing, so this one is the first that takes the owner's place."""

    def take_over(self, ahead: FenceMessage) -> None:
        """Go on from the claims of the standby ahead of this one: what that one had not is void."""
        known = 0 if self.taken_over < 0 else len(self.claims)
        if ahead.first == known:
            self.claims[known:] = ahead.claims
            self.lsn, self.last, self.taken_over = ahead.lsn, ahead.last, ahead.total

    @property
    def inherited(self) -> bool:
        """Whether another standby has taken the owner's place before, and all is known that it had
        said."""
        return 0 <= self.taken_over <= len(self.claims)

    def message(self, first: int) -> FenceMessage:
        """Return the claims from number `first` on, as many as go into one message."""
        claims: list[Claim] = []
        left = AT_ONCE
        for claim in islice(self.claims, first, None):
            claims.append(claim)
            left -= 1 + len(claim.incoming)
            if left <= 0:
                break
        head = self.boot, self.epoch, True, self.lsn, self.last, len(self.claims), first
        return FenceMessage(*head, tuple(claims))


class Fences:
    """The fences of all brokers whose images were promoted here."""

    def __init__(
        self,
        node: JournalBroker,
        cluster: Cluster,
        images: Callable[[], dict[bytes, StandbyImage]],
        takes: Callable[[bytes], bool],
        drop: Callable[[StandbyImage], None],
    ) -> None:
        """`node`, `cluster`: this broker; `images`: returns the images that are complete, by the
        ids of their owners; `takes`: whether the messages of a broker are still being taken;
        `drop`: drops an image."""
        self._node = node
        self._cluster = cluster
        self._images = images
        self._takes = takes
        self._drop = drop
        self._fences: dict[bytes, Fence] = {}
        cluster.bus.receive(ASK_FENCE, self._asked)
        cluster.bus.receive(CLAIMED, self._claimed)

    def promoted(self, owner: bytes, image: StandbyImage) -> Fence:
        """Return the fence of a broker: sessions may be given away from now on from its `image`."""
        known = self._fences.get(owner)
        if known is None or (known.boot, known.epoch) != image.key[1:]:
            known = self._fences[owner] = Fence(image)
        return known

    def taken(self, owner: bytes, last: int) -> None:
        """Note that the messages of the broker `owner` are taken, up to its number `last`."""
        if (fence := self._fences.get(owner)) is not None:
            fence.last = min(fence.last, last)
            self._relay(owner, fence)

    def _relay(self, owner: bytes, fence: Fence) -> None:
        """Tell the standbys behind this one what they have not been told."""
        own, posted = self._cluster.own.id, self._cluster.posted_sessions
        standbys = posted.standbys(owner)
        if own not in standbys or self._takes(owner):
            return
        for standby in filter(posted.lives, standbys[standbys.index(own) + 1 :]):
            told = fence.relayed.get(standby, -1)
            while told < len(fence.claims):
                message = fence.message(max(0, told))
                body = owner + message.encode()
                self._cluster.bus.send(standby, CLAIMED, body, at_once=True)
                told = message.first + len(message.claims)
                fence.relayed[standby] = told

    def _claimed(self, sender: bytes, body: bytes, now: float) -> None:
        """Take what the standby ahead of this one has given away of an owner's sessions."""
        owner, ahead = body[:ID_BYTES], FenceMessage.decode(body[ID_BYTES:])
        image, standbys = self._images().get(owner), self._cluster.posted_sessions.standbys(owner)
        if (
            image is not None
            and image.state is State.VALID
            and image.key[1] == ahead.boot
            and [sender, self._cluster.own.id] == standbys
        ):
            self.promoted(owner, image).take_over(ahead)

    def is_first(self, owner: bytes) -> None:
        """Forget what the standby ahead of this one has said of a broker that goes on without
        it."""
        if (fence := self._fences.get(owner)) is not None and fence.taken_over >= 0:
            del self._fences[owner]

    def same_run(self, owner: bytes) -> bool:
        """Whether a broker is the incarnation whose image was promoted: it only hung, or was cut
        off."""
        fence, listing = self._fences.get(owner), self._cluster.database.listings.get(owner)
        return fence is not None and listing is not None and fence.boot == listing.boot

    def claim(self, owner: bytes, client: bytes, stamp: int) -> None:
        """Note that the session of `client`, of the broker `owner`, is sent to another one, for a
        connection with this `stamp`; with that of the session itself, that its will is
        published."""
        fence = self._fences.get(owner)
        claim = Claim(client, stamp)
        if fence is not None and claim not in fence.claims[-AT_ONCE:]:
            fence.claims.append(claim)
            self.reached(owner)
            self._relay(owner, fence)

    def closed(self, owner: bytes) -> list[Ref]:
        """Return which messages that the broker `owner` gave to members of groups are settled here,
        or kept elsewhere, for more to be added."""
        return self._fences[owner].closed

    def adopted(self, owner: bytes, client: bytes) -> None:
        """Note that the session of `client`, of the broker `owner`, is this broker's. It is claimed
        when its client connects anywhere (`claim_adopted`)."""
        if (fence := self._fences.get(owner)) is not None:
            fence.adopted.add(client)

    def claim_adopted(self, client: bytes, stamp: int, at: bytes) -> None:
        """Claim the session of a `client` that has connected at the broker `at`, if it was adopted,
        and if that is not its owner. `stamp`: of the connection."""
        for owner, fence in self._fences.items():
            if client in fence.adopted and owner != at:
                self.claim(owner, client, stamp)

    def reached(self, owner: bytes) -> None:
        """Tell a broker what it has to know, if it can be reached."""
        fence = self._fences.get(owner)
        if (
            fence is not None
            and not fence.told_since
            and self._cluster.posted_sessions.lives(owner)
        ):
            fence.told_since = self._node.now
            self._tell(owner, fence, self._node.now)

    def _tell(self, owner: bytes, fence: Fence, now: float) -> None:
        if self._fences.get(owner) is not fence:
            return
        lives = self._cluster.posted_sessions.lives(owner)
        if not lives or fence.heard >= len(fence.claims) or now > fence.told_since + KEPT_S:
            fence.told_since = 0.0
            return
        if not self._takes(owner):
            self._send_fence(owner, fence, max(0, fence.heard))
        self._node.timers.schedule(now + REPEAT_S, lambda at: self._tell(owner, fence, at))

    def _send_fence(self, owner: bytes, fence: Fence, first: int) -> None:
        """Send the claims of a fence from number `first` on. What is closed comes ahead of them: an
        owner that has heard a fence gives no member what another one has."""
        for body in encode_refs((DONE, ref) for ref in fence.closed) if fence.heard < 0 else ():
            self._cluster.bus.send(owner, REPORT, body, at_once=True)
        self._send(owner, fence.message(first).encode())

    def _send(self, owner: bytes, body: bytes) -> None:
        self._cluster.bus.send(owner, FENCE, body, at_once=True)

    def _asked(self, sender: bytes, body: bytes, now: float) -> None:
        """Tell the broker `sender` the claims that it has not carried out, or that none can be. One
        that has started again goes on from its journal: an image that was not promoted is not
        needed any more."""
        asked = AskFence.decode(body)
        if self._takes(sender):  # it asks again
            return
        fence = self._fences.get(sender)
        if fence is not None and (fence.boot, fence.epoch) >= (asked.boot, asked.epoch):
            if asked.done == UNHEARD:
                self._send_fence(sender, fence, 0)
                return
            fence.heard = max(fence.heard, asked.done)
            if asked.done < len(fence.claims):
                self._send_fence(sender, fence, asked.done)
            return
        image, listing = self._images().get(sender), self._cluster.database.listings.get(sender)
        started = listing is not None and asked.boot < listing.boot
        if started or (image is not None and image.key[1:] == (asked.boot, asked.epoch)):
            nothing = FenceMessage(asked.boot, asked.epoch, False, 0, 0, 0, 0, ())
            self._send(sender, nothing.encode())
        if started and image is not None and image.key[1] == asked.boot:
            self._drop(image)
