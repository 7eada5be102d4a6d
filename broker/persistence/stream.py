"""The streams of one broker, the owner: the frames of its journal go to neighbours, its standbys
(one or two, `replicas`), and output that waits for the disk waits for these as well
(docs/decisions/0062). Pure.

A standby is first sent the whole state, between the other records (a snapshot), then every frame. A
stream begins again when it has grown, so that an image does not keep what is not needed any more:
with another epoch, at the same standby, which has the older image until the new one is complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mqttree.broker.cluster.directory.link_state_directory import (
    DRAINING,
    IMAGES,
    STANDBY,
    PostedStandby,
    encode_posted,
)
from mqttree.broker.cluster.link.stream_packets import BEGIN, DROP, END, FRAME, encode_stream
from mqttree.broker.cluster.sessions.records import Standby, encode_standbys
from mqttree.broker.persistence.fencing import Fencing
from mqttree.broker.persistence.images import POSTED_UNIT
from mqttree.broker.persistence.standby_choice import Candidate, choose
from mqttree.broker.persistence.stream_states import Action, Input, State, transition
from mqttree.broker.wire.constants import MAX_PACKET_SIZE

if TYPE_CHECKING:
    from mqttree.broker.cluster.cluster import Cluster
    from mqttree.broker.cluster.delivery.replay_log import LogEntry
    from mqttree.broker.cluster.link.link import Link
    from mqttree.broker.core.session import Session
    from mqttree.broker.persistence.ports import JournalBroker
    from mqttree.broker.persistence.snapshot import Snapshot
    from mqttree.broker.persistence.write_ahead_log import WriteAheadLog

SILENCE_S, MAX_SILENCE_S = 0.5, 2.0
"""s in which a standby acknowledges nothing, while a frame waits, until it is given up; twice as
many after each that was given up less than SLOW_WITHIN_S before: where processors are not enough,
a snapshot for yet another one makes all slower."""

LACK_S = 0.3
"""s for which output waits for another standby."""

LATE_S = 0.1
"""s by which a timer is late if this broker stood still: then the silence proves nothing."""

CHECK_INTERVAL_S, ALONE_INTERVAL_S = 1.0, 0.1
"""s between two looks at whether another neighbour should be the standby, and without a standby."""

BETTER_S = 60.0
"""s for which there has to be a neighbour of a better class."""

SLOW_WITHIN_S, SLOW_S = 60.0, 600.0
"""s; a neighbour that was given up as too slow twice within the first counts as slow for the
second: it is only chosen if there is no other."""

REST_S = 10.0
"""s for which one counts as slow that was given up once. One that was given up twice, or that has
dropped the image, is not chosen at all for so long."""

HEAVY = 64 * 1024 * 1024 // POSTED_UNIT
"""Bytes of images, in the units in which they are posted, below which no broker is heavy."""

GROWTH = 2
"""How many times the snapshot's size may follow it before the stream begins again."""

END_BYTES = 256 * 1024
"""bytes that the coming standby has not acknowledged with which the snapshot is ended."""

NEVER = 1 << 62
"""More than any LSN."""


class Target:
    """A neighbour that gets the frames, as the stream of one epoch."""

    __slots__ = (
        "_first",
        "better_since",
        "boot",
        "broker_id",
        "end",
        "epoch",
        "link",
        "lsn",
        "pending",
        "recorded",
        "replaces",
        "size",
        "snapshot",
        "snapshot_size",
        "under_way",
        "waits_since",
        "watched",
    )

    def __init__(
        self, link: Link, posted: PostedStandby, replaces: Target | None, lsn: int, now: float
    ) -> None:
        """`link`: to the neighbour; `posted`: what is posted of it once it has everything;
        `replaces`: the standby in whose place it comes; `lsn`: of the frame before the first;
        `now`: s."""
        self.link = link
        self.broker_id, self.boot, self.epoch = posted
        self.replaces = replaces
        self.lsn = lsn
        """It has all frames up to this one."""
        self.snapshot: Snapshot | None = None
        self.recorded = False
        """Whether all of the snapshot is recorded."""
        self.end = 0
        """LSN of the frame with which it is complete; 0: there is none yet."""
        self.snapshot_size = 0
        self.size = 0
        """Bytes that were sent."""
        self.under_way: deque[tuple[int, int]] = deque()
        """LSN and bytes of the frames that it has not acknowledged."""
        self.pending = 0
        """Bytes of these."""
        self.waits_since = now
        self.watched = False
        """Whether a timer looks whether it is silent."""
        self.better_since: float | None = None
        """Since when (s) there has been a neighbour of a better class."""
        self._first = lsn

    @property
    def may_end(self) -> bool:
        """Whether the next frame can be the one with which the snapshot is complete: all is
        recorded, and the neighbour answers."""
        answers = self.lsn > self._first and self.pending <= END_BYTES
        return self.recorded and not self.end and answers


class Stream:
    """The streams of one broker, and the choice of its standbys."""

    def __init__(self, node: JournalBroker, cluster: Cluster, frames: WriteAheadLog) -> None:
        """`node`: the broker; `cluster`: has its neighbours; `frames`: makes the frames."""
        self._node = node
        self._cluster = cluster
        self._frames = frames
        self._waits = node.config.acknowledge == "standby"
        self.state = State.ALONE
        self.standbys: list[Target] = []
        """Those that are posted, in the order in which they take this broker's place."""
        self.coming: Target | None = None
        self.targets: tuple[Target, ...] = ()
        """All of them."""
        self.lsn = NEVER
        """The highest LSN that output need not wait for. From the end of the snapshot on it waits
        for the coming standby, too, so that this one has all that was let out when it is posted."""
        # What a standby had that is lost, until it is posted that it is none any more.
        self._held = NEVER
        self.pending = 0
        """Bytes that the slowest one has not acknowledged."""
        self.alone_since: float | None = node.now
        """When (s) the last standby was lost; None: there is one."""
        self._epoch = 0
        # The last standbys that were posted, and the last entry.
        self._posted: list[PostedStandby] = []
        self._entry = b""
        # In doubt: up to which frame output goes out, and which one the standby has to acknowledge.
        self._frozen = self._probe = 0
        self.fencing = Fencing(node, cluster, self, frames)
        """What this broker does in doubt, and when it hears of a fence."""
        # By broker id: when it was last given up as too slow; until when it counts as slow; until
        # when it is not chosen.
        self._given_up: dict[bytes, float] = {}
        # The silence (s) after which the next one is given up, within SLOW_WITHIN_S of the last.
        self._longer = SILENCE_S
        self._slow: dict[bytes, float] = {}
        self._resting: dict[bytes, float] = {}
        cluster.images.stream = self
        node.timers.schedule(node.now + ALONE_INTERVAL_S, self._check)

    def _on(self, given: Input) -> None:
        action, self.state = transition(self.state, given)
        if action is Action.TAKE:
            self._take()
        elif action in (Action.LOOK, Action.GO_ON_LACKING):
            self._look_for_another()
        elif action is Action.SHRINK:
            self._shrink()
        elif action is Action.OPEN:
            self._open()
        elif action is Action.STOP:
            self._stop()
        elif action is Action.LEAVE:
            self._leave()
        if action in (Action.GO_ON, Action.GO_ON_LACKING, Action.LEAVE):
            if action is Action.GO_ON and self._held < NEVER:  # one was lost meanwhile
                self._shrink()
            self.fencing.end()
            self._weigh()
            self._frames.standby_has()

    def _look_for_another(self) -> None:
        since = self.alone_since = self._node.now
        self._node.timers.schedule(self._node.now + LACK_S, lambda now: self._waited(since))
        self._choose()

    # ---------------------------------------------------------------- frames

    def send(self, frame: bytes, lsn: int) -> None:
        """Send a frame, the one behind the last that was sent."""
        for target in self.targets:
            kind = FRAME
            if target.may_end:
                kind, target.end = END, lsn
            packet = encode_stream(kind, target.epoch, lsn, frame)
            size = len(packet)
            limits = self._node.limits
            if len(frame) > MAX_PACKET_SIZE or target.pending > limits.stream_drop_bytes:
                self._lose(target, "is too far behind", slow=True)
                continue
            if not target.under_way:
                target.waits_since = self._node.now
                if not target.watched:
                    self._watch(target, self._node.now + self._silence)
            target.under_way.append((lsn, size))
            target.pending += size
            target.size += size
            self._node.counters.stream_bytes += size
            target.link.conn.pass_gate(packet)
        self._weigh()

    def published(self, lsn: int, entry: LogEntry, session: Session) -> None:
        """Note that a `session` has published an `entry` that goes out with frame `lsn`."""
        self.fencing.published(lsn, entry, session)

    def have(self, link: Link, epoch: int, lsn: int) -> None:
        """Take what the standby at `link` says: up to which `lsn` it has the stream `epoch`."""
        for target in self.targets:
            if target.epoch == epoch and target.link is link:
                break
        else:
            return
        if not lsn:
            self._resting[target.broker_id] = self._node.now + REST_S
            self._lose(target, "has dropped the image")
            return
        if not target.lsn <= lsn <= self._frames.lsn:
            self._lose(target, "says that it has what was not sent")
            return
        target.lsn = lsn
        target.waits_since = self._node.now
        under_way = target.under_way
        while under_way and under_way[0][0] <= lsn:
            target.pending -= under_way.popleft()[1]
        if target is not self.coming:
            if self.state is State.DOUBT and lsn >= self._probe:
                self.fencing.cleared(target.broker_id)
        elif target.end and lsn >= target.end:
            self._on(Input.COMPLETE)
        elif target.may_end:
            self._frames.expect()
        self._weigh()
        self._frames.standby_has()

    def _weigh(self) -> None:
        """Find out how far the standbys are."""
        pending, lsn = 0, self._held
        for target in self.targets:
            pending = max(pending, target.pending)
            if target.end:
                lsn = min(lsn, target.lsn)
        self.pending = pending
        if self.state is State.DOUBT:
            self.lsn = self._frozen
        else:
            self.lsn = lsn if self._waits else NEVER

    @property
    def lag(self) -> float:
        """s for which a standby has acknowledged nothing while a frame waits."""
        waiting = (each.waits_since for each in self.standbys if each.under_way)
        return self._node.now - min(waiting, default=self._node.now)

    @property
    def alone(self) -> float:
        """How long the broker has had no standby (s); 0: it has one."""
        return 0.0 if self.alone_since is None else self._node.now - self.alone_since

    def report(self) -> dict[str, Any]:
        """Return what operators are told."""
        return {
            "state": self.state.value,
            "wanted": self._node.config.replicas,
            "standbys": [self._told_of(standby) for standby in self.standbys],
            "lag_bytes": self.pending,
            "alone_s": round(self.alone, 1),
            "unprotected": self.unprotected,
        }

    def _told_of(self, standby: Target) -> dict[str, Any]:
        peer = standby.link.peer
        return {
            "id": standby.broker_id.hex(),
            "name": None if peer is None else peer.name,
            "same_host": peer is not None and peer.host == self._node.config.host,
        }

    @property
    def unprotected(self) -> int:
        """Sessions that the death of this broker would take with it: its own as long as it has no
        standby, and those of dead brokers that it has not adopted yet."""
        sessions = () if self.standbys else self._node.sessions.values()
        kept = sum(1 for session in sessions if session.expiry)
        return kept + self._cluster.images.unadopted

    # ---------------------------------------------------------------- standbys come and go

    def _begin(self, broker_id: bytes, replaces: Target | None) -> None:
        """Begin to make a neighbour a standby, perhaps in the place of another one."""
        link = self._cluster.links[broker_id]
        self._epoch += 1
        now, frames = self._node.now, self._frames
        assert link.peer is not None
        posted = PostedStandby(broker_id, link.peer.boot, self._epoch)
        target = Target(link, posted, replaces, frames.lsn, now)
        self.coming = target
        self._regroup()
        link.conn.pass_gate(encode_stream(BEGIN, target.epoch, frames.lsn))
        target.snapshot = frames.record_all(lambda: target.pending, lambda: self._recorded(target))
        self._on(Input.BEGUN)

    def _recorded(self, target: Target) -> None:
        assert target.snapshot is not None
        target.recorded, target.snapshot_size = True, target.snapshot.size
        target.snapshot = None
        self._frames.expect()

    def _take(self) -> None:
        """Make the coming standby a standby."""
        coming, self.coming = self.coming, None
        assert coming is not None
        before, coming.replaces = coming.replaces, None
        at = len(self.standbys)
        if before in self.standbys:
            at = self.standbys.index(before)
            self._end(before)
        else:
            before = None
        self.standbys[at : at + 1] = [coming]
        self._regroup()
        changes = before is None or before.broker_id != coming.broker_id
        self._node.counters.standby_changes += changes
        self.alone_since = None
        self._held = NEVER
        self._post()
        if len(self.standbys) < self._node.config.replicas:
            self._choose()

    def _post(self) -> None:
        """Post which standbys there are: the images that others than these have are not needed any
        more, but for that of the coming one."""
        posted = [PostedStandby(each.broker_id, each.boot, each.epoch) for each in self.standbys]
        self._posted = posted or self._posted
        last = self._epoch if self.coming is None else self.coming.epoch - 1
        self._entry = encode_posted(last, posted)
        self._cluster.directory.post_now(STANDBY, self._entry)
        self._cluster.agenda.settle(self._node.now)

    def _end(self, target: Target) -> None:
        """Send nothing more to a neighbour."""
        if target.snapshot is not None:
            self._frames.leave(target.snapshot)
        if target.link.up:
            target.link.conn.pass_gate(encode_stream(DROP, target.epoch, 0))

    def _lose(self, target: Target, why: str, *, slow: bool = False) -> None:
        """Give up a neighbour, for a reason that log lines say; `slow`: it may have been chosen in
        vain."""
        if target not in self.targets:
            return
        now = self._node.now
        self._node.log("info", f"the standby {target.link.title} {why}: another one is looked for")
        if slow:
            longer = min(2 * self._longer, MAX_SILENCE_S)
            self._longer = longer if self._has_given_up() else SILENCE_S
            again = now - self._given_up.get(target.broker_id, -NEVER) < SLOW_WITHIN_S
            self._given_up[target.broker_id] = now
            self._slow[target.broker_id] = now + (SLOW_S if again else REST_S)
            if again:
                self._resting[target.broker_id] = now + REST_S
        self._end(target)
        if target is self.coming:
            self.coming, given = None, Input.COMING_LOST
        else:
            self.standbys.remove(target)
            given = Input.ONE_LOST if self.standbys else Input.STANDBY_LOST
            self.alone_since = None if self.standbys else now
            self._held = min(self._held, target.lsn)
            self._cluster.sharing.standby_lost(target.broker_id)
        self._regroup()
        self._on(given)
        self._weigh()
        self._frames.standby_has()

    def _has_given_up(self) -> bool:
        """Whether another standby was given up as too slow less than SLOW_WITHIN_S ago."""
        return any(self._node.now - at < SLOW_WITHIN_S for at in self._given_up.values())

    @property
    def _silence(self) -> float:
        """How long (s) a standby may be silent until it is given up."""
        return self._longer if self._has_given_up() else SILENCE_S

    def begin_anew(self) -> None:
        """Send the standbys the whole state once more, soon."""
        for target in self.targets:
            target.size = NEVER

    def _regroup(self) -> None:
        self.targets = (*self.standbys, *(() if self.coming is None else (self.coming,)))
        self.record_standbys()

    def record_standbys(self) -> None:
        """Record who is sent the journal: if this broker starts again, they may have more of it
        than its disk has."""
        boot = self._node.config.boot
        now = (Standby(target.broker_id, boot, target.epoch) for target in self.targets)
        self._frames.record(encode_standbys((*self.fencing.former.values(), *now)))

    def former_heard(self) -> None:
        """Note that all that were sent an earlier incarnation's journal have said what they made
        of it, or cannot."""
        self.record_standbys()
        self._choose()

    def _waited(self, since: float | None) -> None:
        """Note that output has waited long enough since a standby was lost (s)."""
        if self.state is State.LACKING and self.alone_since == since:
            self._on(Input.WAITED)

    def _open(self) -> None:
        """Post that there is no standby, then let output go."""
        self._let_go()
        if self.coming is not None:
            self._on(Input.BEGUN)

    def _shrink(self) -> None:
        """Post which standbys are left, then let output go that these have."""
        self._let_go()
        self._choose()

    def _let_go(self) -> None:
        """Post which standbys there are; then, in another turn, output waits for no others."""
        self._post()
        entry = self._entry
        self._node.timers.schedule(self._node.now, lambda now: self._opened(entry))

    def _opened(self, entry: bytes) -> None:
        if self._entry is entry and self.state in (State.ALONE, State.SYNCING, State.SYNCED):
            self._held = NEVER
            self._weigh()
            self._frames.standby_has()

    def _watch(self, target: Target, at: float) -> None:
        target.watched = True
        self._node.timers.schedule(at, lambda now: self._look(target, at, now))

    def _look(self, target: Target, at: float, now: float) -> None:
        target.watched = False
        if not target.under_way or target not in self.targets:
            return
        if now - at > LATE_S:
            target.waits_since = now
        if now - target.waits_since >= self._silence:
            self._lose(target, "is silent", slow=True)
        else:
            self._watch(target, target.waits_since + self._silence)

    # ---------------------------------------------------------------- doubt

    @property
    def doubts(self) -> bool:
        """Whether this broker does not know which of its sessions its standby has given away, or
        what it had of them."""
        return self.state is State.DOUBT or self.fencing.starts

    def on_suspended(self, seconds: float, now: float) -> None:
        """Note that this broker did not run for `seconds` until `now` (s). Half the time in which
        others notice counts: they may have heard it last some time before."""
        if seconds < self._node.config.link_timeout / 2:
            return
        if self.state in (State.SYNCED, State.LACKING, State.DOUBT):
            if self.coming is not None:
                self._lose(self.coming, "does not get on while this broker stands still")
            self._on(Input.STOOD_STILL)

    def _stop(self) -> None:
        frames = self._frames
        self._frozen, self._probe = frames.durable_lsn, frames.lsn + 1
        self._weigh()
        frames.expect()
        self.fencing.begin(self._posted)

    def cleared(self) -> None:
        """Note that the standbys have given nothing away."""
        if self.state is State.DOUBT:
            self._on(Input.CLEARED if self.standbys else Input.CLEARED_LATE)

    def fenced(self, standby: bytes, epoch: int) -> None:
        """Note that the fence of a broker, `standby`, is carried out, which had the image of this
        `epoch`: what it was sent, and is sent, of that stream is not in it."""
        mine = any(standby == each.id and epoch >= each.epoch for each in self._posted)
        if mine and self.state in (State.SYNCED, State.LACKING, State.DOUBT):
            self._on(Input.FENCED)

    def doubt_over(self) -> None:
        """Note that it was waited for long enough."""
        if self.state is State.DOUBT:
            self._on(Input.WAITED)

    def _leave(self) -> None:
        """Drop the streams."""
        if self.standbys:
            self.alone_since = self._node.now
        for target in self.targets:
            self._end(target)
            if target is not self.coming:
                self._held = min(self._held, target.lsn)
        self.standbys, self.coming = [], None
        self._regroup()
        self._open()

    # ---------------------------------------------------------------- the choice

    def link_down(self) -> None:
        """Note that a link is gone."""
        for target in self.targets:
            if not target.link.up:
                self._lose(target, "is gone")
        self._choose()

    def _check(self, now: float) -> None:
        pause = CHECK_INTERVAL_S if self.standbys else ALONE_INTERVAL_S
        self._node.timers.schedule(now + pause, self._check)
        coming = self.coming
        if coming is not None and self._drains(coming.broker_id):
            self._lose(coming, "drains")
        self._choose()
        if self.coming is None and len(self.standbys) > 1:  # there is none for its place
            for target in [each for each in self.standbys if self._drains(each.broker_id)][:1]:
                self._lose(target, "drains")

    def _choose(self) -> None:
        """Begin another standby if there are too few, or should be another one."""
        if self.doubts or self.coming is not None:
            return
        if (wanted := self._wanted(self._node.now)) is not None:
            self._begin(*wanted)

    def _wanted(self, now: float) -> tuple[bytes, Target | None] | None:
        """Return the id of the broker that should become a standby, and in whose place: that may
        be itself, with the image that it has. None: none. `now`: s."""
        candidates = {found.id: found for found in self._candidates(now)}
        present = [candidates.pop(standby.broker_id, None) for standby in self.standbys]
        best = choose(self._cluster.own.id, candidates.values())
        # Output would wait for a slow one as well.
        fit = best is not None and not (best.slow and self.standbys)
        if best is not None and fit and len(self.standbys) < self._node.config.replicas:
            return best.id, None
        for standby, here in zip(self.standbys, present, strict=True):
            better = self._better(standby, here, best, now)
            if better is not None:
                return better.id, standby
        return None

    def _better(
        self, standby: Target, here: Candidate | None, best: Candidate | None, now: float
    ) -> Candidate | None:
        """Return what should be in the place of a `standby`: the `best` of the others, or itself
        (`here`, None: it is not fit any more) as it has grown. None: it stays as it is."""
        if here is None:
            return best
        if best is not None and choose(self._cluster.own.id, (here, best)) is here:
            best = None
        if best is not None and here.burdened:
            return best
        if best is None or not best.other_host or here.other_host:
            standby.better_since = None
        elif standby.better_since is None:
            standby.better_since = now
        elif now - standby.better_since >= BETTER_S:
            return best
        grown = (1 + GROWTH) * standby.snapshot_size
        return here if standby.size > max(grown, self._node.limits.stream_smallest) else None

    def _candidates(self, now: float) -> Iterator[Candidate]:
        cluster, config = self._cluster, self._node.config
        most_queued = self._node.limits.stream_hold_bytes
        sizes = {found.id: self._images_of(found.id) for found in cluster.database.reachable()}
        most = max(HEAVY, 2 * sum(sizes.values()) / max(1, len(sizes)))
        for broker_id, link in cluster.links.items():
            peer = link.peer
            # It has answered: what is sent ahead of other output does not come ahead of CONNACK.
            stands = link.up and link.rtt_ms is not None and not link.conn.closing
            if peer is None or not (stands and peer.standby) or self._drains(broker_id):
                continue
            # A snapshot would wait, behind what a standby that was given up was sent, too.
            new = all(target.link is not link for target in self.targets)
            if new and link.conn.backlog_bytes > most_queued:
                continue
            if self._resting.get(broker_id, now) <= now:
                other = config.standby_hosts == "any" or peer.host != config.host
                slow = self._slow.get(broker_id, now) > now
                heavy = sizes.get(broker_id, 0) > most
                yield Candidate(broker_id, other, peer.capability, heavy, slow)

    def _drains(self, broker_id: bytes) -> bool:
        return self._cluster.database.entry(broker_id, DRAINING) is not None

    def _images_of(self, broker_id: bytes) -> int:
        """Return how many bytes of images a broker has, in units of `POSTED_UNIT`."""
        return int.from_bytes(self._cluster.database.entry(broker_id, IMAGES) or b"", "big")
