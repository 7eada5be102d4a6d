"""Membership: which brokers are in the cluster, what is gossiped to them, and which are dialled.
Its states are in `states`."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from mqttree.broker.base.address import Address
from mqttree.broker.base.broker_id import ID_BYTES, Identity
from mqttree.discovery.announcement import Announcement
from mqttree.discovery.announcement_filter import AnnouncementFilter
from mqttree.discovery.beacon import Beacon
from mqttree.discovery.dialler import NEVER, Target
from mqttree.discovery.effects import (
    Announce,
    Dial,
    Effect,
    Left,
    Log,
    MembershipConfig,
    NewMember,
    SameId,
    StateChanged,
    Surplus,
    check_identity,
)
from mqttree.discovery.member_table import Member, MemberTable
from mqttree.discovery.neighbour_selection import NeighbourSelection
from mqttree.discovery.states import Action, Input, State, step

DISCOVERY_STRETCH = 5.0
"""The longest time by which newcomers can lengthen one DISCOVERY, in Td: a stream of them must not
keep a broker from its tree."""
STABLE_LINK = 1.0
"""Seconds after which a link counts as having worked: one that breaks sooner is redialled with
growing pauses."""
MAX_GOSSIP_ONLY = 256
"""Members known only from a neighbour: a neighbour that makes up thousands must not make this
broker dial them."""
MAX_OFFENDERS = 64
"""Addresses remembered as using this broker's id, so that each is reported once; one is a mistake,
64 are an attack."""
ALIVE_BEACONS = 3.0
"""A member heard within so many beacon intervals counts as alive."""

COUNTERS = (
    "announcements_sent",
    "received",
    "accepted",
    "own",
    "repeated",
    "garbage",
    "wrong_cluster",
    "wrong_secret",
    "wrong_version",
    "wrong_clock",
    "replayed",
    "stale_boot",
    "duplicate_id",
    "table_full",
    "members_full",
    "gossip_refused",
    "dials",
    "dials_failed",
    "dials_timed_out",
    "leaves",
    "forgotten",
)


class Membership:
    """Discovery of one broker. Feed the inputs, drain `take_effects()` after each, call `tick` at
    `next_deadline()`.

    Times `now` are monotonic seconds. Links are those to other brokers, one for each: `link_up` and
    `link_down` say whether any connection to a broker stands, and not which.
    """

    def __init__(
        self, config: MembershipConfig, own: Identity, now: float, wall: float, rng: random.Random
    ) -> None:
        """Start in DISCOVERY. `config`: settings. `own`: this broker. `now`: s, monotonic; `wall`:
        the time of day then (s since the epoch). `rng`: spreads what brokers would do at the same
        time. Raises ValueError for a broker that cannot be announced."""
        check_identity(own)
        self.config = config
        self.own = own
        self.state = State.DISCOVERY
        self.counters: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        self._wall_offset = wall - now
        self._effects: list[Effect] = [StateChanged(State.DISCOVERY)]
        self._agreed = False
        self._discovery_since = now
        self._td_until = now + config.discovery_time
        self._filter = AnnouncementFilter(
            config.cluster, config.secret, config.clock_window, self.counters, self._warn
        )
        self._beacon = Beacon(config, own, now, rng)
        self._table = MemberTable(config, own, rng)
        self._selection = NeighbourSelection(own.id, self._table, config.full_mesh, rng)
        # (boot, address) -> the counter that was heard first; -1 once it is reported.
        self._offenders: dict[tuple[int, Address], int] = {}
        if config.seeds:
            self._table.seed(None, config.seeds, now)
        self._advance(now)

    # ---------------------------------------------------------------- what the node reads

    @property
    def gossip_version(self) -> int:
        """Rises whenever `members()` has something new: a broker, a boot number or an address."""
        return self._table.version

    @property
    def left(self) -> bool:
        """True once `leave` was called."""
        return self.state is State.LEFT

    def searching(self, now: float) -> bool:
        """Return whether a broker may be about to be found: the tree has not settled, or an address
        is dialled for the first time that leads to no broker in the tree."""
        if self.left:
            return False
        known = self._table.members
        owners = [known.get(target.owner or b"") for target in self._table.dialler.first_tries(now)]
        return self.state is not State.RUNTIME or any(
            owner is None or not (owner.linked or owner.reachable) for owner in owners
        )

    def members(
        self, now: float, since: int = -1
    ) -> list[tuple[bytes, int, tuple[Address, ...], bool]]:
        """Return (id, boot, addresses, alive) of every other known broker, for gossip; with `since`
        those that are new or have changed since `gossip_version` had that value. `alive` is
        first-hand: linked here, in the same tree, or heard lately, and never from gossip. What a
        broker announced before its link or the tree was lost says nothing."""
        heard_since = now - ALIVE_BEACONS * self.config.beacon
        return [
            (
                member.id,
                member.boot,
                self._table.addresses(member),
                member.linked
                or member.reachable
                or (member.heard > heard_since and member.heard >= member.since),
            )
            for member in self._table.members.values()
            if member.version > since
        ]

    def is_member(self, broker_id: bytes) -> bool:
        """Return whether this broker is known."""
        return broker_id in self._table.members

    def name_of(self, broker_id: bytes) -> str:
        """Return the name that a broker announced, "" for an unknown one."""
        member = self._table.members.get(broker_id)
        return member.name if member is not None else ""

    def take_effects(self) -> list[Effect]:
        """Remove and return the effects, in order."""
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        """When to call `tick`, None if only an input can change anything."""
        if self.left:
            return None
        due = min(
            self._beacon.due,
            self._table.dialler.next_deadline(),
            self._table.forget_due,
            self._selection.due,
        )
        if self.state is State.DISCOVERY:
            due = min(due, self._td_until)
        return None if due == NEVER else due

    # ---------------------------------------------------------------- inputs

    def tick(self, now: float) -> None:
        """Do the work that is due at `now` (s)."""
        self._advance(now)

    def set_wall(self, wall: float, now: float) -> None:
        """Set the time of day (s since the epoch): clocks are set while a broker runs."""
        self._wall_offset = wall - now

    def datagram_received(self, data: bytes, source: tuple[str, int], now: float) -> None:
        """Take the datagram `data` of the group from `source` (host, UDP port) at `now` (s). Never
        raises, whatever the bytes are."""
        if self.left:
            return
        self.counters["received"] += 1
        if self._beacon.is_own(data):
            self.counters["own"] += 1
            return
        heard = self._filter.decode(data, source, now)
        if heard is None:
            pass
        elif heard.id == self.own.id:
            self._own_id_announced(heard, source, now)
        elif self._filter.fresh(heard, source, now, now + self._wall_offset):
            self.counters["accepted"] += 1
            if heard.leave:
                self._goodbye(heard.id, heard.boot, now)
            else:
                self._announced(heard, source, now)
        self._advance(now)

    def member_learnt(
        self,
        broker_id: bytes,
        boot: int,
        addresses: Sequence[Address],
        now: float,
        *,
        alive: bool = True,
        via: Address | None = None,
    ) -> None:
        """Take gossip about a broker at `now` (s).

        `broker_id`, `boot`: its id and boot number. `addresses`: where it can be dialled. `alive`:
        as in `members()`. `via`: the address of the neighbour that gossips; if it is not a loopback
        address, loopback addresses in the gossip are dropped, as they would lead to another host.
        """
        if self.left:
            return
        table = self._table
        if (
            len(broker_id) != ID_BYTES
            or broker_id == self.own.id
            or table.has_tombstone(broker_id, boot, alive, now)
        ):
            self.counters["gossip_refused"] += 1
            return
        member = table.members.get(broker_id)
        if member is not None and boot < member.boot:
            return
        if member is None and len(table.gossip_only) >= MAX_GOSSIP_ONLY:
            self.counters["gossip_refused"] += 1
            return
        named = table.tellable(addresses, via)
        known = member is not None
        fresh = self._meet(broker_id, boot, now)
        member = table.members.get(broker_id)
        if member is None:
            return
        if not known:
            table.gossip_only.add(broker_id)
        added = [table.add_address(member, address, now, gossip_only=True) for address in named]
        if not member.linked and (fresh or any(added)):
            table.want(member, now)
        self._advance(now)

    def member_left(self, broker_id: bytes, boot: int, now: float) -> None:
        """Note at `now` (s), as a link said, that the broker `broker_id` has left
        in its incarnation `boot`."""
        if not self.left:
            self._goodbye(broker_id, boot, now)
            self._advance(now)

    def seed_resolved(self, addresses: Iterable[Address], now: float, seed: str = "") -> None:
        """Take all present `addresses` of a configured name at `now` (s); they replace those that
        the seed named `seed` had before."""
        if not self.left:
            self._table.seed(seed, addresses, now)
            self._advance(now)

    def dial_failed(self, address: Address, reason: str, now: float) -> None:
        """Note at `now` (s) that a dial of `address` failed for `reason`."""
        target = self._table.dialler.targets.get(address)
        if self.left or target is None:
            return
        if target.under_way:
            self._dial_failed(target, reason, now)
        self._advance(now)

    def link_up(
        self,
        broker_id: bytes,
        boot: int,
        address: Address | None,
        now: float,
        dialled: Address | None = None,
    ) -> None:
        """Note at `now` (s) that a link to the broker `broker_id` is up, in its
        incarnation `boot`. `address`: what it advertises; `dialled`: the address that this broker
        dialled, None if the other one did."""
        if self.left:
            return
        table = self._table
        if broker_id == self.own.id:
            reached = dialled or address
            if boot != self.own.boot and reached is not None:
                self._report_id_conflict(boot, reached)
            if reached is not None:
                self.address_is_self(reached, now)
            return
        self._meet(broker_id, boot, now, linked=True)
        member = table.members.get(broker_id)
        if member is None:
            # The table is full of linked members. The link works, but the broker is neither
            # gossiped nor redialled.
            if dialled is not None:
                table.ended(dialled)
        else:
            table.linked(
                member, boot, [found for found in (address, dialled) if found is not None], now
            )
            member.called = dialled is not None
        self._advance(now)

    def link_down(self, broker_id: bytes, now: float, boot: int | None = None) -> None:
        """Note at `now` (s) that no link to the broker `broker_id` is up any more. With
        `boot` this is ignored if a link to another incarnation stands meanwhile."""
        member = self._table.members.get(broker_id)
        if self.left or member is None or (boot is not None and boot != member.link_boot):
            return
        member.standing = False
        # A later boot number was announced, and is dialled.
        if not member.linked:
            self._table.forget_due = min(self._table.forget_due, now + self.config.forget_after)
            return
        member.linked = False
        if member.leaving:
            self._forget(member, now)
        else:
            self._table.lost(member, now, stable=now - member.link_since >= STABLE_LINK)
            self._selection.changed(now)
            if self._table.wants(member):
                # Overlays: a broker marked disconnected is sought with a discovery message.
                self._beacon.soon(now)
        self._advance(now)

    def reachable(self, broker_id: bytes, there: bool, now: float) -> None:
        """Note at `now` (s) that the broker `broker_id` has come into this broker's tree
        (`there`), or has left it. A broker in the tree is alive, linked or not."""
        member = self._table.members.get(broker_id)
        if member is not None and not self.left:
            self._table.reached(member, there, now)

    def address_is_self(self, address: Address, now: float) -> None:
        """Note that a dial reached this broker itself: the address is not dialled for some
        minutes."""
        if not self.left:
            self._table.is_self(address, now)
            self._advance(now)

    def address_is_peer(self, address: Address, broker_id: bytes, now: float) -> None:
        """Note at `now` (s) that a dial of `address` reached the broker `broker_id`, which
        is linked by another connection, or about to be.

        The address is remembered, and not dialled while a link to that broker stands; until
        `link_up` says so, it is dialled with growing pauses.
        """
        if self.left:
            return
        self._table.is_peer(self._table.members.get(broker_id), address, now)
        self._advance(now)

    def tree_agreed(self, agreed: bool, now: float) -> None:
        """Take the state of the tree: whether every port is settled and the root agreed."""
        if agreed is self._agreed or self.left:
            # This is called with every BPDU.
            return
        self._agreed = agreed
        self._take(Input.AGREED if agreed else Input.DISAGREED, now)
        self._advance(now)

    def leave(self, now: float) -> None:
        """Leave: send a last announcement. Afterwards nothing is done, and inputs are ignored."""
        if not self.left:
            self._take(Input.LEAVE, now)

    # ---------------------------------------------------------------- reactions

    def _announced(self, heard: Announcement, source: tuple[str, int], now: float) -> None:
        known = self._table.members.get(heard.id)
        if known is not None and heard.boot < known.boot:
            self.counters["stale_boot"] += 1
            return
        fresh = self._meet(heard.id, heard.boot, now)
        member = self._table.members.get(heard.id)
        if member is None:
            return
        self._table.gossip_only.discard(heard.id)
        member.heard = now
        member.leaving = False
        member.name = heard.name
        self._table.add_address(member, heard.address_from(source), now)
        if (fresh or (heard.new and not member.linked)) and self._selection.chance():
            self._beacon.answer(now)
        if not member.linked:
            self._table.want(member, now, forgive=True)

    def _meet(self, broker_id: bytes, boot: int, now: float, linked: bool = False) -> bool:
        """Make a broker with this boot number a member. Returns True if that is new, which sets
        DISCOVERY again (Overlays 3)."""
        member = self._table.members.get(broker_id)
        if member is not None and (boot == member.boot or (linked and boot < member.boot)):
            return False
        if member is None:
            evicted = self._table.make_room(now)
            if evicted is not None:
                self._effects.append(Left(evicted.id))
            if not self._table.add(broker_id, boot, now):
                self.counters["members_full"] += 1
                return False
        else:
            self._table.restarted(member, boot, now)
        self._effects.append(NewMember(broker_id))
        self._selection.changed(now)
        self._take(Input.MET, now)
        return True

    def _take(self, given: Input, now: float) -> None:
        """Take one step of the table of states."""
        actions, following = step(self.state, given)
        if following is not self.state:
            self.state = following
            if following is not State.LEFT:
                self._effects.append(StateChanged(following))
        for action in actions:
            self._act(action, now)

    def _act(self, action: Action, now: float) -> None:
        if action is Action.BEGIN_DISCOVERY:
            self._discovery_since = now
        elif action is Action.EXTEND_TD:
            longest = self._discovery_since + DISCOVERY_STRETCH * self.config.discovery_time
            self._td_until = min(now + self.config.discovery_time, longest)
        elif action is Action.LOOK_AT_TREE:
            if self._agreed:
                self._take(Input.AGREED, now)
        elif action is Action.SAY_GOODBYE and self.config.announce:
            self._send(self._beacon.goodbye(now + self._wall_offset))

    def _goodbye(self, broker_id: bytes, boot: int, now: float) -> None:
        if broker_id == self.own.id or len(broker_id) != ID_BYTES:
            return
        self.counters["leaves"] += 1
        member = self._table.members.get(broker_id)
        if member is not None and (
            boot < member.boot or (member.standing and boot != member.link_boot)
        ):
            # Of an earlier start, or of another broker with the same id: the one that is linked
            # stays.
            if not member.linked and boot == member.boot:
                self._table.restart_withdrawn(member)
            return
        self._table.put_tombstone(broker_id, boot, now, final=True)
        if member is not None:
            if member.linked:
                # The link's own end completes it; a forged goodbye does no harm to it.
                member.leaving = True
            else:
                self._forget(member, now)

    def _forget(self, member: Member, now: float) -> None:
        self._table.remove(member, now)
        self._selection.changed(now)
        self._effects.append(Left(member.id))

    def _own_id_announced(self, heard: Announcement, source: tuple[str, int], now: float) -> None:
        """Handle this broker's own id in a datagram that it has not sent lately: another broker has
        the id, or an earlier incarnation sent it."""
        if heard.leave:
            return
        if (
            self.config.secret is not None
            and abs(heard.wall - now - self._wall_offset) > self.config.clock_window
        ):
            self._filter.refuse(
                "replay", "this broker's own announcement was received again", source, now
            )
            return
        address = heard.address_from(source)
        if heard.boot < self.own.boot:
            # Announcements from before a restart may still be on their way: only a broker that goes
            # on announcing is alive.
            first = self._offenders.get((heard.boot, address))
            if first is None:
                if len(self._offenders) < MAX_OFFENDERS:
                    self._offenders[(heard.boot, address)] = heard.counter
                return
            if first >= heard.counter:
                return
        self._report_id_conflict(heard.boot, address)
        self._effects.append(SameId(address))

    def _report_id_conflict(self, boot: int, address: Address) -> None:
        self.counters["duplicate_id"] += 1
        reported = self._offenders.get((boot, address))
        if reported == -1 or (reported is None and len(self._offenders) >= MAX_OFFENDERS):
            return
        self._offenders[(boot, address)] = -1
        self._warn(
            f"two brokers have one id: {address} also uses {self.own.id.hex()}; "
            "this broker does not link with it"
        )

    # ---------------------------------------------------------------- the clock

    def _advance(self, now: float) -> None:
        if self.left:
            return
        if self._beacon.due <= now:
            self._send(self._beacon.announcement(now, now + self._wall_offset))
        if self.state is State.DISCOVERY and now >= self._td_until:
            self._take(Input.TD_OVER, now)
        if self._table.forget_due <= now:
            for member in self._table.expired(now):
                self.counters["forgotten"] += 1
                self._table.put_tombstone(member.id, member.boot, now, final=False)
                self._forget(member, now)
        if self._selection.due <= now:
            self._effects += [Surplus(broker) for broker in self._selection.review(now)]
        # Last, as forgotten members make room for other dials.
        begun, late = self._table.dialler.take(now)
        for target in late:
            self.counters["dials_timed_out"] += 1
            self._selection.changed(now)
            self._complain_of(target, "no answer")
        for target in begun:
            self.counters["dials"] += 1
            self._effects.append(Dial(target.address))

    def _send(self, data: bytes) -> None:
        self.counters["announcements_sent"] += 1
        self._effects.append(Announce(data))

    def _dial_failed(self, target: Target, reason: str, now: float) -> None:
        self.counters["dials_failed"] += 1
        self._table.dialler.penalise(target, now)
        self._selection.changed(now)
        self._complain_of(target, reason)

    def _complain_of(self, target: Target, reason: str) -> None:
        if target.failures == 1 and target.static:
            self._effects.append(
                Log(
                    "info",
                    f"seed {target.address} cannot be reached ({reason}); it is dialled again",
                )
            )
        else:
            self._effects.append(Log("debug", f"dial of {target.address} failed: {reason}"))

    def _warn(self, text: str) -> None:
        self._effects.append(Log("warning", text))
