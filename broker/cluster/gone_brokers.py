"""Brokers that ended without a goodbye: an alarm until they are back, or an operator dismisses it.

gone       the tree has lost a broker that does not drain or stop; after GRACE_S it is an alarm
seen       brokers that lost a link to it say so in their listings, so that all know who saw it,
           also those that start later
back       the tree has it again, or another broker of its name: one without a data directory
           has a new id with each start. Who saw the end withdraws that, and all forget the alarm,
           also those that heard of the end after the return
dismissed  the broker that was asked says so in its listing, and all forget the alarm
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mqttree.broker.base.broker_id import ID_BYTES
from mqttree.broker.cluster.directory.link_state_directory import DRAINING, STATE
from mqttree.broker.cluster.events import LinkDown, LinkUp, MemberGone, RouteChanged
from mqttree.broker.cluster.link_registry import SILENT
from mqttree.discovery.announcement import MAX_NAME

if TYPE_CHECKING:
    from mqttree.broker.base.hybrid_clock import HybridClock
    from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
    from mqttree.broker.cluster.ports import MemberBroker

LOST = STATE + b"lost"
"""First part of the key of an entry: this broker lost its link to a broker that is gone. The id of
that one follows. Value: when (ms since the epoch, 8 bytes), how (1 byte), and its name."""

DISMISSED = STATE + b"dismissed"
"""The same: an operator dismissed the alarm. Value: when."""

CRASH, SILENCE = b"c", b"s"
"""How a link was lost: closed without a goodbye, or silent for too long."""

GRACE_S = 5.0
"""s for which a broker may be away without an alarm: the tree forms again, or it restarts."""

MAX_GONE = 256
"""brokers; of more the first is forgotten. A federation in which so many crashed knows it."""

MAX_WITNESSES = 16
"""names of brokers that saw the same end."""

_TIME = struct.Struct(">Q")


class GoneBroker:
    """One broker that is gone."""

    __slots__ = ("at", "name", "raised", "seen", "since")

    def __init__(self, name: str, since: int, at: float) -> None:
        """`name`: of the broker; `since`: ms since the epoch; `at`: when this broker heard of it
        (s)."""
        self.name = name
        self.since = since
        self.at = at
        self.raised = False
        """It is an alarm."""
        self.seen: dict[str, bytes] = {}
        """How the brokers with these names lost their link to it."""

    @property
    def ended(self) -> str:
        """How it ended, as far as anybody saw it: crash, silence or cut off."""
        if not self.seen:
            return "cut off"
        return "crash" if CRASH in self.seen.values() else "silence"

    def saw(self, name: str, how: bytes) -> None:
        """Note how the broker of that name lost its link."""
        if name in self.seen or len(self.seen) < MAX_WITNESSES:
            self.seen[name] = how

    def describe(self, today: int) -> str:
        """Return one line. `today`: ms since the epoch."""
        witnesses = ", ".join(sorted(self.seen))
        how = f"{self.ended} seen by {witnesses}" if witnesses else "no path leads to it"
        return f"{self.name} is gone since {_time_of_day(self.since, today)} ({how})"


class GoneBrokers:
    """All brokers that are gone, as this broker knows them."""

    def __init__(
        self, node: MemberBroker, directory: LinkStateDirectory, clock: HybridClock
    ) -> None:
        """`node`: this broker; `directory`: where others say what they saw; `clock`: has the time
        of day."""
        self._node = node
        self._directory = directory
        self._database = directory.database
        self._clock = clock
        self.gone: OrderedDict[bytes, GoneBroker] = OrderedDict()
        """By id."""
        self.keep: Callable[[list[dict[str, Any]]], None] = lambda alarms: None
        """Called with all alarms within a second after one has come, changed or gone: for the next
        start."""
        # How this broker lost its links to brokers that are not linked again.
        self._lost: OrderedDict[bytes, bytes] = OrderedDict()
        # Alarms that were dismissed here.
        self._dismissals: OrderedDict[bytes, None] = OrderedDict()
        self._reachable: set[bytes] = set()
        self._changed = False
        directory.watch(STATE, self._posted)

    # ---------------------------------------------------------------- what happens

    def link_up(self, event: LinkUp) -> None:
        """Forget how an earlier link to the same broker was lost."""
        if event.link.peer is not None:
            self._lost.pop(event.link.peer.id, None)

    def link_down(self, event: LinkDown) -> None:
        """Note how a link was lost."""
        peer = event.link.peer
        if peer is None or not event.was_up or event.quiet or event.replaced:
            return
        if len(self._lost) >= MAX_GONE:
            self._lost.popitem(last=False)
        self._lost[peer.id] = SILENCE if event.reason == SILENT else CRASH
        self._testify(peer.id)

    def member_gone(self, event: MemberGone) -> None:
        """Note that the tree has lost a broker, unless that said goodbye."""
        broker_id = event.broker_id
        self._reachable.discard(broker_id)
        if DRAINING not in event.keys:
            self._add(broker_id, self._name(broker_id), self._clock.physical(self._now))
            self._testify(broker_id)

    def route_changed(self, event: RouteChanged) -> None:
        """Note that a broker is back."""
        broker_id = event.broker_id
        if event.via is None or broker_id in self._reachable:
            return
        self._reachable.add(broker_id)
        if broker_id in self._dismissals:
            del self._dismissals[broker_id]
            self._directory.withdraw(DISMISSED + broker_id)
        name = self._name(broker_id)
        for other, gone in list(self.gone.items()):
            if other == broker_id or gone.name == name:
                self._end(other, "is back")

    def tick(self, now: float) -> None:
        """Raise the alarms that are due at `now` (s), and have them kept."""
        for gone in list(self.gone.values()):
            if not gone.raised and now >= gone.at + GRACE_S:
                gone.raised = self._changed = True
                self._node.log("warning", gone.describe(self._clock.physical(now)))
        # Once for a hundred brokers that a split took away together.
        if self._changed:
            self._changed = False
            self.keep(self.alarms())

    # ---------------------------------------------------------------- for operators

    def alarms(self) -> list[dict[str, Any]]:
        """Return what `/api/v1/alarms` says, the first one first."""
        today = self._clock.physical(self._now)
        return [
            {
                "text": gone.describe(today),
                "id": broker_id.hex(),
                "name": gone.name,
                "since": gone.since / 1000,
                "seen_by": sorted(gone.seen),
                "ended": gone.ended,
            }
            for broker_id, gone in self.gone.items()
            if gone.raised
        ]

    def dismiss(self, broker_id: bytes) -> bool:
        """Forget the alarm of a broker, here and at all others; return whether there was one."""
        gone = self.gone.get(broker_id)
        if gone is None or not gone.raised:
            return False
        if len(self._dismissals) >= MAX_GONE:
            first, _ = self._dismissals.popitem(last=False)
            self._directory.withdraw(DISMISSED + first)
        when = self._clock.physical(self._now)
        self._dismissals[broker_id] = None
        self._directory.post(DISMISSED + broker_id, _TIME.pack(when))
        self._dismissed(broker_id, when)
        return True

    def restore(self, alarms: Iterable[Mapping[str, Any]]) -> None:
        """Take what was kept before this start. Raises KeyError, TypeError or ValueError for what
        was not kept by this module."""
        for alarm in alarms:
            broker_id = bytes.fromhex(alarm["id"])
            how = SILENCE if alarm["ended"] == "silence" else CRASH
            since = int(alarm["since"] * 1000)
            gone = self._add(broker_id, str(alarm["name"]), since)
            if gone is not None:
                gone.seen = dict.fromkeys(map(str, alarm["seen_by"]), how)
                gone.raised = True

    # ---------------------------------------------------------------- how it follows

    @property
    def _now(self) -> float:
        return self._node.now

    def _add(self, broker_id: bytes, name: str, since: int) -> GoneBroker | None:
        """Return the entry of a broker that is gone `since` (ms since the epoch), None if that is
        dismissed or the broker is there."""
        known = self.gone.get(broker_id)
        if known is not None or broker_id in self._reachable or self._ignores(broker_id, since):
            return known
        if len(self.gone) >= MAX_GONE:
            self.gone.popitem(last=False)
        # A clock that is ahead, or was.
        since = min(since, self._clock.physical(self._now))
        gone = self.gone[broker_id] = GoneBroker(name, since, self._now)
        return gone

    def _ignores(self, broker_id: bytes, since: int) -> bool:
        key = DISMISSED + broker_id
        if broker_id == self._database.own.id:
            return True
        for listing in (self._database.own, *self._database.reachable()):
            value = listing.entries.get(key, b"")
            if len(value) == _TIME.size and _TIME.unpack(value)[0] >= since:
                return True
        return False

    def _testify(self, broker_id: bytes) -> None:
        """Say, if this broker lost a link to one that is gone, that it saw the end."""
        gone, how = self.gone.get(broker_id), self._lost.get(broker_id)
        if gone is not None and how is not None:
            gone.saw(self._node.config.name, how)
            self._directory.post(
                LOST + broker_id,
                _TIME.pack(gone.since) + how + gone.name.encode()[:MAX_NAME],
            )

    def _posted(self, witness: bytes, key: bytes, value: bytes | None, parted: bool) -> None:
        """Take what another broker saw, that it sees the broker again, or that an operator
        dismissed an alarm there."""
        broker_id = key[-ID_BYTES:]
        if value is None:
            gone = self.gone.get(broker_id)
            if gone is not None and not parted and STATE + key[:-ID_BYTES] == LOST:
                ignored = self._ignores(broker_id, gone.since)
                self._end(broker_id, "dismissed" if ignored else "is back")
            return
        if len(value) < _TIME.size:
            return
        when = _TIME.unpack(value[: _TIME.size])[0]
        if STATE + key[:-ID_BYTES] == DISMISSED:
            self._dismissed(broker_id, when)
        elif STATE + key[:-ID_BYTES] == LOST:
            how, name = value[8:9], value[9:].decode(errors="replace")
            gone = self._add(broker_id, name, when)
            if gone is not None:
                gone.saw(self._name(witness), how)
                self._changed |= gone.raised

    def _dismissed(self, broker_id: bytes, when: int) -> None:
        gone = self.gone.get(broker_id)
        if gone is not None and gone.since <= when:
            self._end(broker_id, "dismissed")

    def _name(self, broker_id: bytes) -> str:
        return self._directory.name_of(broker_id) or broker_id.hex()

    def _end(self, broker_id: bytes, why: str) -> None:
        gone = self.gone.pop(broker_id)
        self._directory.withdraw(LOST + broker_id)
        if gone.raised:
            text = gone.describe(self._clock.physical(self._now))
            self._node.log("info", f"alarm ends ({why}): {text}")
            self._changed = True


def _time_of_day(when: int, today: int) -> str:
    """Return a time of day, with its date if that is not today's. `when`, `today`: ms since the
    epoch."""
    then, now = datetime.fromtimestamp(when / 1000), datetime.fromtimestamp(today / 1000)
    return then.strftime("%H:%M" if then.date() == now.date() else "%Y-%m-%d %H:%M")
