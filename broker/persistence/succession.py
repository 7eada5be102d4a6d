"""Sessions of a broker that cannot be reached go on: its standby has the image of its journal, and
gives them to the brokers to which their clients come. Pure.

A taker asks the standby as it asks a broker that has a session (`takeover`), and gets the session
as its broker last recorded it, and then its queue. What was published since for the session, its
new broker asks the origins for.

    in the image -(TAKE, MERGE)-> lent -(DONE)-> in no image any more
    in the image -(END)-> in no image any more
    lent: encoded for one taker; a newer one gets it as well, and then the older one does not

A session is claimed once it is lent, or has ended: its broker hears of that when it is back
(`fences`), and is given no more away from then on.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from mqttree.broker.base.sequence_set import subtract
from mqttree.broker.cluster.delivery.replay_log import LogEntry, restored_batch
from mqttree.broker.cluster.directory.link_state_directory import (
    DRAINING,
    SUCCEEDED,
    encode_succeeded,
)
from mqttree.broker.cluster.directory.unicast_bus import OWN_WORK
from mqttree.broker.cluster.link.message_batch import age_batch
from mqttree.broker.cluster.link.origin_keys import origin_key, split_key
from mqttree.broker.cluster.link.version_vector import (
    OriginWindow,
    Vector,
    decode_evaluated,
    encode_evaluated,
)
from mqttree.broker.cluster.sessions.handover import EXPORT_TIME
from mqttree.broker.cluster.sessions.image_states import State
from mqttree.broker.cluster.sessions.message_vectors import (
    numbered,
    ranges_of,
    union,
    vector_of,
)
from mqttree.broker.cluster.sessions.pending_handover import Asked, PendingHandover
from mqttree.broker.cluster.sessions.recorded_messages import RecordedMessages, is_void
from mqttree.broker.cluster.sessions.recorded_session import RecordedSession
from mqttree.broker.cluster.sessions.records import Kind, StartTime, decode_owed
from mqttree.broker.cluster.sessions.session_entries import entries_of, posted_stamp
from mqttree.broker.cluster.sessions.session_head import recorded_head
from mqttree.broker.cluster.sessions.takeover_messages import (
    COMING,
    DONE,
    END,
    ENDED,
    FOREIGN,
    MERGE,
    MOVED,
    NEWER,
    NOTHING,
    TAKE,
)
from mqttree.broker.cluster.sharing.assignment_ledger import Ref, SequenceSet
from mqttree.broker.core.delivery_queue import APART
from mqttree.broker.core.session_owner import digest
from mqttree.broker.core.start_point import UNKNOWN
from mqttree.broker.core.wills import CLAIMS_S
from mqttree.broker.persistence import shared_records
from mqttree.broker.persistence.adoption import Adoption
from mqttree.broker.persistence.fences import Fence, Fences
from mqttree.broker.persistence.orphaned_wills import OrphanedWills
from mqttree.broker.wire.errors import WireError

if TYPE_CHECKING:
    from mqttree.broker.cluster.cluster import Cluster
    from mqttree.broker.cluster.events import RouteChanged
    from mqttree.broker.cluster.sessions.image import Image
    from mqttree.broker.cluster.sessions.records import EntryRecord
    from mqttree.broker.persistence.ports import JournalBroker
    from mqttree.broker.persistence.standby_image import StandbyImage

PROMOTION_S = 0.1
"""s for which a broker cannot be reached before its standby takes its place: most repairs of the
tree are shorter."""

SETTLING_S = 1.0
"""s after a time in which this broker did not run, in which it promotes no image: it has yet to
hear who is there, and who has another standby by now."""

WILL_WAIT_S = 2.0 - CLAIMS_S
"""s more for which its clients may connect elsewhere before their wills are published, as these
wait for claims, too."""

SWEEP_S = 60.0
"""s between two looks for sessions that have expired."""

HEADS_S, HEADS_AT_MOST_S = 0.05, 2.0
"""s for which queues wait since a session was given without its queue, as more clients may come
that have none yet; and since the promotion, at most."""

ENTRY_STEPS, MESSAGE_STEPS = 20, 10
"""Steps of a turn that taking an entry costs, and each message in it."""


class Successor:
    """An image whose owner cannot be reached: nothing changes in it any more but that its sessions
    go."""

    def __init__(self, image: Image, now: float, wall: int) -> None:
        """`image`: of the owner's journal; `now`: s; `wall`: the time of day there then (ms)."""
        self.image = image
        self.since, self._wall = now, wall
        self._offered: Vector | None = None
        self.messages = RecordedMessages(image, now, wall)
        self.asked: dict[str, Asked] = {}
        """What takers asked for before all of `messages` was read, and queues that wait."""
        self.taken: SequenceSet | None = None
        """What members of groups were granted; None: that has not been read yet."""
        self.head_at = now
        """When a session was given without its queue last (s)."""

    def wall(self, now: float) -> int:
        """Return the time of day (ms) by the owner's clock at `now` (s): what it has recorded has
        its times, and clocks may be hours apart."""
        return self._wall + round((now - self.since) * 1000)

    def entry(self, record: EntryRecord) -> LogEntry:
        """Return the entry that was `record`ed. Raises MalformedPacket."""
        # The log is in the order in which entries came here.
        data = age_batch(record.data, max(0, self._wall - record.at))
        return restored_batch(data, self.since, whole=True)

    def inherit(self, key: bytes, fence: Fence, lsn: int) -> None:
        """Go on from where another standby has taken the owner's place. `key`: the origin of what
        the owner has published; `fence`: what the other one has said; `lsn`: of the last frame
        here. What that one had not is void: it was not acknowledged, and its client has repeated
        it, or will; what that one had, is known when it is repeated."""
        incoming = {claim.client: claim.incoming for claim in fence.claims if not claim.stamp}
        gone = {claim.client for claim in fence.claims if claim.stamp}
        for recorded in self.image.sessions.values():
            client = recorded.head.client_id
            recorded.incoming = set(incoming.get(client, ()))
            if client in gone:  # its will was published, or it was back
                recorded.head = recorded.head._replace(will=b"")
        if lsn <= fence.lsn:
            return
        self.messages.void = last = key, fence.last
        for recorded in self.image.sessions.values():
            recorded.queue = deque(one for one in recorded.queue if not is_void(one[0], last))
            flying = [at for at, one in recorded.inflight.items() if one and is_void(one[0], last)]
            for packet_id in flying:
                del recorded.inflight[packet_id]

    def offered(self, owner: bytes) -> Vector:
        """Return which messages had been offered to all sessions of the broker `owner`. Raises
        MalformedPacket: what was recorded of that cannot be read."""
        if self._offered is None:
            seen = self.image.vector(self.since)
            for key, last in self.messages.published.items():
                if split_key(key)[0] == owner:
                    window = seen.setdefault(key, OriginWindow(0, self.since))
                    window.top = max(window.top, last)
            self._offered = seen
        return self._offered


class Lent(NamedTuple):
    """A session that a taker has asked for."""

    owner: bytes
    """Id of the session's broker."""
    client: bytes
    """Its client id."""
    export: PendingHandover


class Succession:
    """Gives away the sessions of brokers that cannot be reached."""

    def __init__(
        self,
        node: JournalBroker,
        cluster: Cluster,
        images: Callable[[], dict[bytes, StandbyImage]],
        stands_back: Callable[[], bool],
        drop: Callable[[StandbyImage], None],
    ) -> None:
        """`node`, `cluster`: this broker; `images`: returns the images that are complete, by the
        ids of their owners; `stands_back`: whether this broker is in doubt about its own sessions;
        `drop`: drops an image."""
        self._node = node
        self._cluster = cluster
        self._images = images
        self._in_doubt = stands_back
        self._drop = drop
        self._settled_at = 0.0
        # Brokers that cannot be reached -> when they count as gone (s).
        self._gone_at: dict[bytes, float] = {}
        # Images whose messages are being taken, by owner.
        self._taking: dict[bytes, Successor] = {}
        # Owners that have died -> origins of theirs of which all messages are here.
        self._succeeded: dict[bytes, dict[bytes, None]] = {}
        self.fences = Fences(node, cluster, images, self._taking.__contains__, drop)
        """What the owners have to hear."""
        self._lives = cluster.posted_sessions.lives
        self._successors: dict[bytes, Successor] = {}
        self._lent: dict[str, Lent] = {}
        self._sweeping = False
        self._number = 0
        self._wills = OrphanedWills(node, cluster)
        self._handover = cluster.handover
        self._handover.succession = self
        cluster.sharing.deputies.taken = self

    def route_changed(self, event: RouteChanged) -> None:
        """Take the place of a broker that cannot be reached any more, if it stays so, and leave
        that of one that can be."""
        owner = event.broker_id
        if event.via is not None:
            self._gone_at.pop(owner, None)
            self._successors.pop(owner, None)
            if self._succeeded.pop(owner, None) is not None:
                self._post_succeeded()
            if self.fences.same_run(owner):
                # It has what it has published.
                self._taking.pop(owner, None)
            self.fences.reached(owner)
        else:
            # A broker that has drained is not waited for.
            drains = self._cluster.database.entry(owner, DRAINING) is not None
            at = self._gone_at[owner] = self._node.now + (0.0 if drains else PROMOTION_S)
            for lost in self._images():  # it may have been ahead of this broker there
                if lost == owner or not self._lives(lost):
                    self._promote_at(lost, at)

    def standbys_changed(self, owner: bytes, first: bytes) -> None:
        """Note what standbys a broker has, the `first` one or b""; it may have said so before it
        was lost."""
        if first == self._cluster.own.id:
            self.fences.is_first(owner)
        if owner in self._images() and not self._lives(owner):
            self._promote_at(owner, self._node.now + PROMOTION_S)

    def _promote_at(self, owner: bytes, at: float) -> None:
        self._node.timers.schedule(at, lambda now: self._promote(owner, now))

    def _ahead(self, owner: bytes) -> list[bytes]:
        """Return the standbys of the broker `owner` that take its place before this one does, and
        can be reached, or could be a moment ago."""
        own, standbys = self._cluster.own.id, self._cluster.posted_sessions.standbys(owner)
        first = standbys[: standbys.index(own)] if own in standbys else standbys
        now, gone_at = self._node.now, self._gone_at
        return [each for each in first if self._lives(each) or gone_at.get(each, now) > now]

    def on_suspended(self, seconds: float, now: float) -> None:
        """Note that this broker did not run for `seconds` until `now` (s): what it knows of others
        is as old as that."""
        if seconds >= self._node.config.link_timeout / 2:
            self._settled_at = now + SETTLING_S

    def has(self, client_id: str) -> bool:
        """Whether a session of `client_id` is here, of a broker that cannot be reached, or may
        be."""
        client = client_id.encode()
        for owner in self._images():
            if (successor := self._successors.get(owner)) is not None:
                if successor.image.session_of(client) is not None and not self._lives(owner):
                    return True
            elif self._cluster.posted_sessions.holder(owner) == self._cluster.own.id:
                return True
        return False

    def on_client_connected(self, client_id: str, stamp: int) -> None:
        """Note that a client has connected here (`stamp`: of the connection)."""
        self.fences.claim_adopted(client_id.encode(), stamp, self._cluster.own.id)

    @property
    def unadopted(self) -> int:
        """Sessions that are kept, of brokers that cannot be reached, which are nowhere else."""
        images = [successor.image for successor in self._successors.values()]
        return sum(1 for image in images for each in image.sessions.values() if each.head.expiry)

    @property
    def doubts(self) -> bool:
        """Whether this broker does not know which of its own sessions its standby has given
        away."""
        return self._in_doubt()

    @property
    def _stands_back(self) -> bool:
        return self._node.now < self._settled_at or self._in_doubt()

    def _promote(self, owner: bytes, now: float) -> None:
        self._node.now = now
        if (image := self._images().get(owner)) is None:
            return
        # The tree may have lost a broker whose link has not ended yet.
        silent = self._lives(owner) and not self._cluster.database.reaches(owner)
        if silent or self._stands_back:
            self._promote_at(owner, now + PROMOTION_S)
        elif self._successor(owner, image) is None:
            self._sweep_later(now)

    def requested(self, asked: Asked, now: float) -> bool:
        """Answer a request at `now` (s), if it is for a session of a broker that cannot be reached;
        returns whether it is."""
        answer = self._handover.answer
        if asked.request in (TAKE, END):
            client = asked.client_id.encode()
            self.fences.claim_adopted(client, asked.stamp, asked.sender)
        if asked.copy and asked.copy == self._own_copy(asked.client_id):
            return False
        lent = self._lent.get(asked.client_id)
        if asked.request == DONE:
            return self._done(asked)
        if lent is None or not lent.export.serves(asked):
            found = self._find(asked)
            if (comes := self._comes(asked, found)) is not None:
                ahead = [each for each in self._ahead(comes) if self._lives(each)]
                if ahead and asked.request != MERGE:
                    answer(asked, MOVED, ahead[0])
                else:
                    answer(asked, COMING)
                return True
            if found is None:
                return self._notices(asked)
            owner, recorded = found
            # It is adopted with a stamp that is older by one.
            newest = recorded.head.stamp - 1 if lent is None else lent.export.stamp
            whose = recorded.head.owner
            if newest > asked.stamp:
                answer(asked, NEWER)
            elif digest(None if whose is None else whose.decode(errors="replace")) != asked.owner:
                answer(asked, FOREIGN)
            elif asked.request == END:
                self.fences.claim(owner, recorded.head.client_id, asked.stamp)
                self._claim(owner, recorded.head.client_id)
                answer(asked, NOTHING)
            elif not (successor := self._successors[owner]).messages.ready or (
                asked.request == MERGE and self._heads_first(successor, now)
            ):
                self._put_off(owner, successor, asked, now)
                answer(asked, COMING)
            else:
                try:
                    lent = self._lend(asked, owner, recorded, now)
                except (WireError, struct.error):
                    answer(asked, NOTHING)
                else:
                    self._answer(asked, lent, now)
        else:
            self._answer(asked, lent, now)
        return True

    def _put_off(self, owner: bytes, successor: Successor, asked: Asked, now: float) -> None:
        """Answer a request later: when all messages are read, or no client comes any more."""
        if successor.messages.ready and not successor.asked:
            self._answer_later(owner, successor, now)
        successor.asked[asked.client_id] = asked

    def _heads_first(self, successor: Successor, now: float) -> bool:
        """Whether other clients may be about to come, which have no session yet: queues are given
        later than at `now` (s)."""
        coming = now < successor.head_at + HEADS_S or self._cluster.takeover.busy
        return coming and now < successor.since + HEADS_AT_MOST_S

    def _answer_later(self, owner: bytes, successor: Successor, now: float) -> None:
        def answer(at: float) -> None:
            if self._heads_first(successor, at):
                self._answer_later(owner, successor, at)
            else:
                self._in_steps(owner, successor, self._answering(successor))

        self._node.timers.schedule(now + HEADS_S, answer)

    def _answering(self, successor: Successor) -> Iterator[int]:
        """Answer, in steps, what takers have asked for meanwhile."""
        asked, successor.asked = successor.asked, {}
        for each in asked.values():
            self.requested(each, self._node.now)
            yield OWN_WORK

    def _own_copy(self, client_id: str) -> int:
        """Return the stamp of the session of a client that is here, or was until another broker
        took it. Two standbys may have adopted it with one stamp: then that in an image comes
        second."""
        if (own := self._node.sessions.get(client_id)) is not None:
            return own.stamp
        given = self._handover.given(client_id)
        return 0 if given is None else given.copy

    def _done(self, asked: Asked) -> bool:
        """Forget a session that has been merged into one of the broker that asks; returns whether
        it is in an image here."""
        if (found := self._find(asked)) is None:
            return False
        owner, recorded = found
        lent = self._lent.get(asked.client_id)
        if lent is not None and lent.owner == owner and lent.export.stamp > asked.stamp:
            self._handover.answer(asked, NEWER)  # that one has not got all of it
        else:
            self._claim(owner, recorded.head.client_id)
            self._handover.answer(asked, ENDED)
        return True

    def _notices(self, asked: Asked) -> bool:
        """Have a taker wait if the broker of the session that it asks for may be about to be lost
        (it cannot be reached, but its link has not ended), or is back but has not yet said which
        sessions it has. Returns whether it waits."""
        own = self._node.sessions.get(asked.client_id)
        if asked.request == MERGE:
            here = own is not None and own.stamp == asked.copy
        else:
            here = own is not None or self._handover.given(asked.client_id) is not None
        if asked.request == END or here:
            return False
        database, lives = self._cluster.database, self._lives
        for owner, image in self._images().items():
            if lives(owner) and (
                not database.reaches(owner)
                or (
                    asked.request == TAKE
                    and not posted_stamp(database, owner, asked.client_id)
                    and image.stamp_of(asked.client_id.encode())
                )
            ):
                self._handover.answer(asked, COMING)
                return True
        return False

    def _answer(self, asked: Asked, lent: Lent, now: float) -> None:
        """Answer the taker of a session."""
        lent.export.at = now
        if asked.request in (TAKE, MERGE):
            self._handover.send(asked, lent.export, now)

    def _find(self, asked: Asked) -> tuple[bytes, RecordedSession] | None:
        """Return the session of a client in the images of brokers that cannot be reached that is
        meant, or the newest one, if it is newer than the one here, and its broker's id."""
        own = self._node.sessions.get(asked.client_id)
        client, newest, found = asked.client_id.encode(), 0 if own is None else own.stamp, None
        if asked.copy:
            newest = asked.copy - 1
        for owner, image in self._images().items():
            if (successor := self._successor(owner, image)) is None:
                continue
            recorded = successor.image.session_of(client)
            if (
                recorded is not None
                and recorded.head.stamp > newest
                and (not asked.copy or recorded.head.stamp == asked.copy)
                and not self._has_expired(recorded, image)
            ):
                newest, found = recorded.head.stamp, (owner, recorded)
        return found

    def _comes(self, asked: Asked, found: tuple[bytes, RecordedSession] | None) -> bytes | None:
        """Return the broker whose session of a client is meant, or newer than what was `found` or
        is here, if it is not certain yet that neither it can be reached, nor a standby ahead of
        this one. None: there is none."""
        database, client = self._cluster.database, asked.client_id.encode()
        own = self._node.sessions.get(asked.client_id)
        least = 1 + max(own.stamp if own else 0, found[1].head.stamp if found else 0)
        for owner, image in self._images().items():
            stamps = posted_stamp(database, owner, asked.client_id), image.stamp_of(client)
            if (
                (asked.copy in stamps if asked.copy else max(stamps) >= least)
                and not database.reaches(owner)
                and (self._lives(owner) or self._stands_back or self._stands_behind(owner, image))
            ):
                return owner
        return None

    def _stands_behind(self, owner: bytes, image: StandbyImage) -> bool:
        """Whether another standby takes the place of the broker `owner`; what is promoted here
        stays so."""
        return image.state is State.VALID and bool(self._ahead(owner))

    def _has_expired(self, recorded: RecordedSession, image: StandbyImage) -> bool:
        away = image.contents.away(recorded.head, image.wall(self._node.now))
        return away > recorded.head.expiry

    def _successor(self, owner: bytes, standby_image: StandbyImage) -> Successor | None:
        """Return what has the image of a broker, None while that can be reached, or may be."""
        if self._lives(owner):
            self._successors.pop(owner, None)
            return None
        successor, image = self._successors.get(owner), standby_image.contents
        if successor is None or successor.image is not image:
            if self._stands_back or self._stands_behind(owner, standby_image):
                return None
            standby_image.promote()
            fence = self.fences.promoted(owner, standby_image)
            now = self._node.now
            wall = standby_image.wall(now)
            successor = self._successors[owner] = Successor(image, now, wall)
            self._node.counters.promotions += 1
            self._sweep_later(now)
            if fence.inherited:
                successor.inherit(origin_key(owner, fence.boot), fence, standby_image.lsn)
            Adoption(
                self._node,
                self._cluster,
                image,
                wall=successor.wall,
                waits=lambda: self._stands_back,
                lent=lambda client: client.decode(errors="replace") in self._lent,
                over=lambda: self._successors.get(owner) is not successor or self._lives(owner),
            )
            self._taking[owner] = successor
            self._node.turns.go(
                self._taking_messages(successor, standby_image),
                lambda: self._taking.get(owner) is not successor,
            )
            self._in_steps(owner, successor, self._taking_wills(successor, owner, now, wall))
        return successor

    def _sweep_later(self, now: float) -> None:
        if not self._sweeping:
            # No timer keeps the images themselves: they may be large.
            self._sweeping = True
            self._node.timers.schedule(now + SWEEP_S, self._sweep)

    def _sweep(self, now: float) -> None:
        """Drop the sessions of brokers that are gone which have expired, or of which another
        standby has taken care, now and then, and at last the images."""
        self._sweeping = False
        for owner, image in self._images().items():
            if not self._lives(owner):
                self._sweep_later(now)
                work = self._sweeping_image(owner, image)
                self._node.turns.go(work, partial(self._lives, owner))

    def _sweeping_image(self, owner: bytes, standby_image: StandbyImage) -> Iterator[int]:
        image, successor = standby_image.contents, self._successors.get(owner)
        behind = self._stands_behind(owner, standby_image)
        for number, recorded in list(image.sessions.items()):
            if self._has_expired(recorded, standby_image) or (
                behind and self._is_elsewhere(owner, recorded)
            ):
                image.end(number)
            yield 1
        old = successor is not None and self._node.now >= successor.since + SWEEP_S
        if (behind or old) and not image.sessions:
            self._successors.pop(owner, None)
            self._drop(standby_image)

    def _is_elsewhere(self, owner: bytes, recorded: RecordedSession) -> bool:
        """Whether a broker that can be reached has adopted a session of the broker `owner`, or has
        a newer one."""
        client_id = recorded.head.client_id.decode(errors="replace")
        return any(
            broker_id != owner and entry.stamp >= recorded.head.stamp - 1 and self._lives(broker_id)
            for broker_id, entry in entries_of(self._cluster.database, client_id)
        )

    def taken_by(self, broker_id: bytes) -> tuple[int, SequenceSet] | None:
        """Return the boot number of a broker that cannot be reached, and which messages its members
        were granted; None: this broker has not taken its place."""
        successor, image = self._successors.get(broker_id), self._images().get(broker_id)
        if successor is None or successor.taken is None or image is None or self._stands_back:
            return None
        return image.key[1], successor.taken

    def _taking_shares(self, successor: Successor, owner: bytes) -> Iterator[int]:
        """Read, in steps, what members of groups at the broker `owner` were granted, and rule from
        then on on what it has given to other brokers."""
        taken, closed = SequenceSet(), set[Ref]()
        for body in successor.image.shared:
            with suppress(WireError):
                for operation, ref in shared_records.outcomes(body):
                    if operation == shared_records.TAKEN:
                        taken.add(ref, self._node.now)
                    else:
                        closed.add(ref)
            yield 1 + len(body) // 10
        successor.taken = taken
        assignments = self._cluster.assignments
        for key, first, last, record in successor.messages.logged():
            if first < last or split_key(key)[0] != owner:
                yield 1
                continue
            with suppress(WireError):
                assignments.restore_entry(successor.entry(record), closed)
            yield ENTRY_STEPS
        assignments.succeed(owner, closed, self.fences.closed(owner))

    def _taking_messages(self, successor: Successor, image: StandbyImage) -> Iterator[int]:
        """Take, in steps, the messages of the owner of an `image` that have not been here, or were
        not wanted: other brokers may want them, and sessions that come later."""
        node, resync = self._node, self._cluster.resync
        owner, boot, _ = image.key
        taken: dict[bytes, None] = {}
        yield from successor.messages.reading()
        yield from self._answering(successor)
        for key, first, last, record in successor.messages.logged():
            steps = 1
            if split_key(key)[0] == owner:
                kept, new = resync.forwarder.missing(key, first, last)
                if new or kept:
                    self._take(successor, record)
                    taken[key] = None
                    steps = ENTRY_STEPS + MESSAGE_STEPS * (last - first + 1)
            yield steps
        died = image.crashed and not self._lives(owner)
        if died:
            taken[origin_key(owner, boot)] = None
        resync.succeeded(taken, node.now)
        if died:
            self._succeeded[owner] = taken
            self._post_succeeded()
        self._taking.pop(owner, None)
        with suppress(WireError):
            window = successor.offered(owner).get(origin_key(owner, boot))
            self.fences.taken(owner, 0 if window is None else window.top)
        self._in_steps(owner, successor, self._taking_shares(successor, owner))

    def _post_succeeded(self) -> None:
        """Tell others of which brokers all messages are here: they wait for no others."""
        directory = self._cluster.directory
        if self._succeeded:
            vector, keys = self._cluster.origins.vector, chain(*self._succeeded.values())
            tops = {key: vector[key].top if key in vector else 0 for key in keys}
            directory.post(SUCCEEDED, encode_succeeded(tops))
        else:
            directory.withdraw(SUCCEEDED)

    def _take(self, successor: Successor, record: EntryRecord) -> None:
        with suppress(WireError):
            self._cluster.resync.forwarder.succeed(successor.entry(record), self._node.now)

    def _in_steps(self, owner: bytes, successor: Successor, work: Iterator[int]) -> None:
        """Do something until the broker `owner` is back, or its image is gone."""
        self._node.turns.go(work, lambda: self._successors.get(owner) is not successor)

    def _taking_wills(
        self, successor: Successor, owner: bytes, now: float, wall: int
    ) -> Iterator[int]:
        """Plan, in steps, to publish the wills of the broker `owner`, which has not been reached
        since `now` (s), at the time of day `wall` (ms)."""
        # A broker that stops has published them.
        if self._cluster.database.entry(owner, DRAINING) is None:
            alive = now - max(0, wall - successor.image.alive) / 1000
            for recorded in list(successor.image.sessions.values()):
                self._add_will(owner, successor, recorded, alive, now + WILL_WAIT_S)
                yield 2

    def _lend(self, asked: Asked, owner: bytes, recorded: RecordedSession, now: float) -> Lent:
        """Make the head of a session for a taker, as it is `recorded`. Raises WireError,
        struct.error: it cannot be read."""
        successor, head = self._successors[owner], recorded.head
        before = decode_evaluated(recorded.part(Kind.START_VECTOR), now)
        seen = _seen(successor.offered(owner), recorded, before, now)
        lent = RecordedSession(head._replace(will=b""))
        # When its broker is back, it has the session still: what was given away is known by the
        # messages in it.
        lent.parts[Kind.GIVEN] = b""
        lent.parts[Kind.ABSORBED] = recorded.part(Kind.ABSORBED)
        # Of these its broker had got nothing: how much is older than its subscriptions, their
        # brokers know.
        new = {key: OriginWindow(0, now) for key in self._cluster.origins.vector.keys() - seen}
        if (time := recorded.parts.get(Kind.START_TIME)) is not None:
            at, _, origins = StartTime.decode(time)
            unsettled = set(origins) & before.keys() | new.keys()
            at = self._cluster.subscription_starts.by_our_clock(at, owner)
            if at > UNKNOWN:
                time = StartTime(at, 0.0, tuple(sorted(unsettled))).encode()
                lent.parts[Kind.START_TIME], before = time, new | before
        lent.parts[Kind.START_VECTOR] = encode_evaluated(before)
        seen |= new
        lent.subscriptions, lent.incoming = recorded.subscriptions, recorded.incoming
        # What its broker has sent since, if that only hung or was cut off, is not met.
        lent.last = recorded.last + APART & 0xFFFF
        lent.queue, lent.inflight = recorded.queue, recorded.inflight
        lent.parts[Kind.LACKING] = recorded.part(Kind.LACKING)
        if asked.request == TAKE:
            successor.head_at = now
            lent.put_off_queue()
            # Messages of groups stay.
            for ref in lent.as_member():
                if split_key(ref[0])[0] == owner:
                    self.fences.closed(owner).append(ref)
                else:
                    self._cluster.custody.gave(ref)
        self._number = self._number + 1 & 0xFFFFFFFF
        export = PendingHandover(asked, self._number, len(lent.queue), now)
        offered, wall = encode_evaluated(seen), successor.wall(now)
        export.data = recorded_head(lent, successor.messages, offered, wall)
        if asked.stamp < head.stamp:
            self.fences.adopted(owner, head.client_id)
        else:
            self.fences.claim(owner, head.client_id, asked.stamp)
        found = self._lent[asked.client_id] = Lent(owner, head.client_id, export)
        self._forget_later(asked.client_id, found, now)
        return found

    def _claim(self, owner: bytes, client: bytes) -> None:
        """Forget a session that another broker has, or that its client has ended."""
        successor = self._successors.get(owner)
        image = self._images().get(owner)
        if successor is not None and image is not None and successor.image is image.contents:
            recorded = successor.image.session_of(client)
            if recorded is not None and successor.image.end(recorded.head.number):
                self._node.counters.sessions_claimed += 1

    def _add_will(
        self,
        owner: bytes,
        successor: Successor,
        recorded: RecordedSession,
        alive: float,
        due: float,
    ) -> None:
        """Publish a will, unless the broker is back by then. `alive`, `due`: when that lived last,
        and when the will's delay begins (s)."""
        head = recorded.head

        def may() -> bool:
            lent = self._lent.get(head.client_id.decode(errors="replace"))
            if lent is not None and lent.export.stamp > head.stamp:  # its client is back
                return False
            if self._successors.get(owner) is not successor or self._lives(owner):
                return False
            self.fences.claim(owner, head.client_id, head.stamp)
            recorded.head = head._replace(will=b"")
            return True

        self._wills.add(head, alive, due, lambda: None, may)

    def _forget_later(self, client_id: str, lent: Lent, now: float) -> None:
        def forget(at: float) -> None:
            if self._lent.get(client_id) is not lent:
                return
            if lent.export.at + EXPORT_TIME <= at:
                del self._lent[client_id]
            else:
                self._node.timers.schedule(lent.export.at + EXPORT_TIME, forget)

        self._node.timers.schedule(now + EXPORT_TIME, forget)


def _seen(offered: Vector, recorded: RecordedSession, before: Vector, now: float) -> Vector:
    """Return what a session was offered. `offered`: what all sessions of its broker were; `before`:
    what was published before it subscribed. Raises MalformedPacket."""
    if recorded.held:
        ranges = numbered(name for name in recorded.names() if name[0])
    else:
        ranges = ranges_of(offered)
    for key, owed in decode_owed(recorded.part(Kind.OWED)).items():
        ranges[key] = subtract(ranges.get(key, []), owed)
    delivered = ranges_of(decode_evaluated(recorded.part(Kind.DELIVERED), now))
    had = {key: [(1, window.top)] for key, window in before.items() if window.top}
    return vector_of(union(ranges, delivered, had))
