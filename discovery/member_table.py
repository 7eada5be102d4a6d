"""The table of the other brokers: their addresses, which are linked, which broker dials which, and
which are forgotten."""

from __future__ import annotations

import contextlib
import random
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mqttree.broker.base.address import Address, is_loopback, is_wildcard, normal_host
from mqttree.broker.base.broker_id import Identity
from mqttree.discovery.dialler import NEVER, Dialler, Target
from mqttree.discovery.effects import MembershipConfig
from mqttree.discovery.seeds import MAX_SEEDS

MAX_MEMBERS = 1024
"""Ten times the largest federation that is tested; at some 500 bytes each, forged announcements
cannot fill the memory."""
MAX_ADDRESSES = 4
"""Addresses of one member that are kept: IPv4 and IPv6 on two networks."""
MAX_TOMBSTONES = 1024
"""Tombstones: members that have left, so that gossip about them is ignored; as many as the table
has members."""
MAX_SELVES = 64
"""Addresses that turned out to be this broker: its interfaces, and the names for them."""
SELF_RETRY = 300.0
"""Seconds after which an address that was this broker's own may have become another's."""
ADDRESS_STAGGER = 0.15
"""Seconds between the dials of one member's addresses: the first one nearly always answers
sooner."""
REDIAL_JITTER = 0.02
"""Seconds of jitter: brokers that lose the same one do not dial it in the same instant."""


@dataclass(slots=True, eq=False, repr=False)
class Member:
    """Another broker. `heard` is when its last own announcement came, `since` when it was learnt,
    or its link or the tree last lost it."""

    id: bytes
    boot: int
    since: float
    heard: float = -NEVER
    name: str = ""
    linked: bool = False
    link_boot: int = 0
    link_since: float = 0.0
    leaving: bool = False
    was_linked: bool = False
    standing: bool = False
    """A link of `link_boot` stands, whatever boot was announced since."""
    reachable: bool = False
    """It is in this broker's tree, linked or not."""
    called: bool = False
    """This broker dialled its link."""
    version: int = 0
    """The table's version when this member last changed."""

    @property
    def known(self) -> bool:
        """Whether it has spoken itself: announced itself, or been linked."""
        return self.was_linked or self.heard > -NEVER


@dataclass(slots=True, eq=False, repr=False)
class _Tombstone:
    boot: int
    until: float
    final: bool


class MemberTable:
    """Members, their addresses and the dials to them. It decides no state and sends nothing."""

    def __init__(self, config: MembershipConfig, own: Identity, rng: random.Random) -> None:
        """Make a table without members. `config`: settings of discovery. `own`: this broker. `rng`:
        spreads dials."""
        self._config = config
        self._own = own
        self._rng = rng
        self.dialler = Dialler(rng, config.dial_timeout)
        # Longest known first.
        self.members: dict[bytes, Member] = {}
        self._owned: dict[bytes, list[Target]] = {}
        # Oldest first.
        self._tombstones: OrderedDict[bytes, _Tombstone] = OrderedDict()
        # Until when an address counts as this broker's own.
        self._selves: OrderedDict[Address, float] = OrderedDict()
        # Name -> addresses; None: from the configuration.
        self._seeds: dict[str | None, list[Address]] = {}
        # Members that neither announced themselves nor were ever linked or in our tree.
        self.gossip_only: set[bytes] = set()
        # The chosen neighbours; None: all members.
        self.chosen: set[bytes] | None = None
        self.version = 0
        self.forget_due = NEVER

    # ---------------------------------------------------------------- members

    def make_room(self, now: float) -> Member | None:
        """When the table is full, remove and return the oldest member that was never linked, else
        the oldest that is not linked. Members in the tree come last; they are not safe, as a
        neighbour may make up a tree of a thousand brokers."""
        if len(self.members) < MAX_MEMBERS:
            return None
        unlinked: Member | None = None
        best = 4
        for member in self.members.values():
            if not (member.linked or member.standing):
                rank = 2 * member.reachable + member.was_linked
                if rank < best:
                    unlinked, best = member, rank
                if not rank:
                    break
        if unlinked is not None:
            self._drop(unlinked, now)
        return unlinked

    def add(self, broker_id: bytes, boot: int, now: float) -> bool:
        """Add the member with the id `broker_id` and the boot number `boot`, first heard of at
        `now` (s). Returns False if the table is full."""
        if len(self.members) >= MAX_MEMBERS:
            return False
        member = self.members[broker_id] = Member(broker_id, boot, now)
        self._owned[broker_id] = []
        self._tombstones.pop(broker_id, None)
        self._touch(member)
        self.forget_due = min(self.forget_due, now + self._config.forget_after)
        return True

    def restarted(self, member: Member, boot: int, now: float) -> None:
        """Note at `now` (s) that `member` has a higher boot number, `boot`: the link to its earlier
        incarnation is dead, even if that was not noticed yet."""
        member.boot = boot
        member.since = now
        member.linked = False
        member.leaving = False
        self._tombstones.pop(member.id, None)
        self._touch(member)
        self.forget_due = min(self.forget_due, now + self._config.forget_after)
        for target in self._owned[member.id]:
            self.dialler.forgive(target)

    def restart_withdrawn(self, member: Member) -> None:
        """Undo `restarted`: the broker that announced the higher boot number was another one with
        the same id, and has left."""
        member.boot = member.link_boot
        member.linked = True
        self._touch(member)
        for target in self._owned[member.id]:
            self.dialler.unwant(target)

    def remove(self, member: Member, now: float) -> None:
        """Forget a member. Its seeds are dialled on, slowly, for brokers that may come back
        there."""
        self._drop(member, now + self._config.beacon)

    def expired(self, now: float) -> list[Member]:
        """Return the members without link or announcement for too long, and plan the next look."""
        keep = self._config.forget_after
        gone: list[Member] = []
        self.forget_due = NEVER
        for member in self.members.values():
            if not (member.linked or member.standing or member.reachable):
                until = max(member.since, member.heard) + keep
                if until <= now:
                    gone.append(member)
                else:
                    self.forget_due = min(self.forget_due, until)
        return gone

    def put_tombstone(self, broker_id: bytes, boot: int, now: float, final: bool) -> None:
        """Ignore gossip about the broker `broker_id` with the boot number `boot` for a while from
        `now` (s). `final`: also gossip that calls it alive."""
        self._tombstones.pop(broker_id, None)
        if len(self._tombstones) >= MAX_TOMBSTONES:
            self._tombstones.popitem(last=False)
        self._tombstones[broker_id] = _Tombstone(boot, now + self._config.forget_after, final)

    def has_tombstone(self, broker_id: bytes, boot: int, alive: bool, now: float) -> bool:
        """Return whether gossip about the broker `broker_id` with the boot number `boot` is to be
        ignored at `now` (s); `alive`: what the gossip says of it. Without tombstones, brokers that
        have forgotten a member would remind each other of it for ever."""
        tombstone = self._tombstones.get(broker_id)
        if tombstone is None:
            return False
        if tombstone.until <= now:
            del self._tombstones[broker_id]
            return False
        return boot <= tombstone.boot and (tombstone.final or not alive)

    # ---------------------------------------------------------------- addresses

    def addresses(self, member: Member) -> tuple[Address, ...]:
        """Return the addresses of a member, at most MAX_ADDRESSES."""
        return tuple(target.address for target in self._owned[member.id][:MAX_ADDRESSES])

    def tellable(self, addresses: Sequence[Address], via: Address | None) -> list[Address]:
        """Return the addresses that can be dialled from here: no invalid hosts, wildcards, or
        loopback addresses of another host."""
        far = via is not None and not is_loopback(via.host)
        named: list[Address] = []
        for host, port in addresses[:MAX_ADDRESSES]:
            if 0 < port < 65536 and not is_wildcard(host) and not (far and is_loopback(host)):
                # It is written to the log.
                with contextlib.suppress(ValueError):
                    named.append(Address(normal_host(host), port))
        return named

    def add_address(
        self, member: Member, address: Address, now: float, gossip_only: bool = False
    ) -> bool:
        """Note at `now` (s) that `member` can be dialled at `address`, and return whether that is
        new. `gossip_only`: another broker named it, and it replaces nothing that is known."""
        if self.is_own(address, now):
            return False
        target = self.dialler.targets.get(address)
        if target is not None:
            holder = self.members[target.owner] if target.owner is not None else None
            if holder is member:
                return False
            if (member if holder is None else holder).linked or (
                holder is not None and gossip_only
            ):
                # Only a broker that answers there may take a seed, or an address that works for
                # another.
                return False
        if not self._make_space(member, replace=not gossip_only and not member.linked):
            return False
        self._own_target(self.dialler.add(address), member)
        return True

    def seed(self, key: str | None, addresses: Iterable[Address], now: float) -> None:
        """Replace the addresses of the seed named `key` by `addresses` at `now` (s). Brokers dial
        new ones at once, whatever their ids."""
        former = self._seeds.get(key, [])
        others = {
            address for name, known in self._seeds.items() if name != key for address in known
        }
        current = list(dict.fromkeys(addresses))[: max(0, MAX_SEEDS - len(others))]
        if current:
            self._seeds[key] = current
        else:
            self._seeds.pop(key, None)
        for address in former:
            target = self.dialler.targets.get(address)
            if target is not None and address not in current and address not in others:
                self.dialler.trust(target, static=False)
                if target.owner is None:
                    self.dialler.remove(target)
        for address in current:
            own = self.is_own(address, now)
            if own and self._selves.get(address, NEVER) == NEVER:
                # This is always this broker's own.
                continue
            target = self.dialler.add(address)
            self.dialler.trust(target, static=True)
            holder = self.members.get(target.owner) if target.owner is not None else None
            if own:
                self.dialler.postpone(target, self._selves[address])
            elif holder is None:
                if not target.wanted:
                    self.dialler.want(target, now)
            elif not holder.linked:
                self.want(holder, now)

    def is_own(self, address: Address, now: float) -> bool:
        """Return whether this address is this broker's own."""
        own = self._own.address
        if address.port == own.port and (
            address.host == own.host or (is_wildcard(own.host) and is_loopback(address.host))
        ):
            return True
        until = self._selves.get(address)
        if until is not None and until <= now:
            del self._selves[address]
            return False
        return until is not None

    def is_self(self, address: Address, now: float) -> None:
        """Note that a dial reached this broker itself."""
        if len(self._selves) >= MAX_SELVES and address not in self._selves:
            self._selves.popitem(last=False)
        self._selves[address] = now + SELF_RETRY
        target = self.dialler.targets.get(address)
        if target is None:
            return
        self.dialler.finished(target)
        self._disown(target)
        if target.static:
            self.dialler.postpone(target, now + SELF_RETRY)

    # ---------------------------------------------------------------- neighbours

    def wants(self, member: Member) -> bool:
        """Return whether this member is chosen as a neighbour."""
        return self.chosen is None or member.id in self.chosen

    def choose(self, chosen: set[bytes] | None, now: float) -> None:
        """Choose these members as neighbours (None: all), and dial no others."""
        self.chosen = chosen
        for member in self.members.values():
            if member.linked:
                continue
            if self.wants(member):
                owned = self._owned[member.id]
                if not any(target.wanted for target in owned):
                    if self.failing(member):
                        for target in owned:
                            self.dialler.resume(target, now)
                    else:
                        self.want(member, now)
            else:
                for target in self._owned[member.id]:
                    self.dialler.unwant(target)

    def failures(self, member: Member) -> int:
        """Return the number of failures of the address that failed least; 0 if there is none."""
        return min((target.failures for target in self._owned[member.id]), default=0)

    def failing(self, member: Member) -> bool:
        """Return whether a member cannot be dialled now: it has no address, or all of them
        failed."""
        if member.linked:
            return False
        owned = self._owned[member.id]
        return not owned or all(target.failures for target in owned)

    def seeded(self, member: Member) -> bool:
        """Return whether the configuration names an address of this member."""
        return any(target.static for target in self._owned[member.id])

    def reached(self, member: Member, reachable: bool, now: float) -> None:
        """Note at `now` (s) that `member` has come into this broker's tree (`reachable`), or has
        left it."""
        member.reachable = reachable
        if reachable:
            self.gossip_only.discard(member.id)
            for target in self._owned[member.id]:
                self.dialler.forgive(target)
        elif not member.linked:
            member.since = now
            self.forget_due = min(self.forget_due, now + self._config.forget_after)

    # ---------------------------------------------------------------- dials

    def want(self, member: Member, now: float, forgive: bool = False) -> None:
        """Dial `member` from `now` (s) on if it is chosen as a neighbour: at once if this broker
        has the lower id, else only if the member has not dialled first. `forgive`: forget earlier
        failures."""
        if not self.wants(member):
            if forgive:
                for target in self._owned[member.id]:
                    self.dialler.forgive(target)
            return
        due = now + self._patience(member)
        for target in self._owned[member.id]:
            if forgive:
                self.dialler.forgive(target)
            elif target.failures and target.wanted:
                continue
            self.dialler.want(target, due)
            due += ADDRESS_STAGGER

    def linked(self, member: Member, boot: int, addresses: Iterable[Address], now: float) -> None:
        """Note at `now` (s) that a link to `member` stands, in its incarnation `boot`; it is at
        `addresses`, and none of them is dialled any more."""
        if not member.linked or boot != member.link_boot:
            member.link_since = now
            member.leaving = False
        if boot != member.boot:
            member.boot = boot
            self._touch(member)
        member.linked = member.was_linked = member.standing = True
        self.gossip_only.discard(member.id)
        member.link_boot = boot
        self._tombstones.pop(member.id, None)
        for address in addresses:
            self._confirm(member, address, now)
        for target in self._owned[member.id]:
            self.dialler.unwant(target)

    def lost(self, member: Member, now: float, stable: bool) -> None:
        """Note at `now` (s) that the link to `member` is gone. It is dialled at once if the link
        was `stable`, else with growing pauses."""
        member.since = now
        self.forget_due = min(self.forget_due, now + self._config.forget_after)
        if not self.wants(member):
            return
        patience = self._patience(member)
        due = now + patience + self._rng.uniform(0.0, REDIAL_JITTER)
        for target in self._owned[member.id]:
            if stable:
                self.dialler.forgive(target)
                self.dialler.want(target, due)
                due += ADDRESS_STAGGER
            else:
                target.wanted = True
                if not target.under_way:
                    self.dialler.penalise(target, now, patience)

    def is_peer(self, member: Member | None, address: Address, now: float) -> None:
        """Note at `now` (s) that a dial of `address` reached a broker that is linked by another
        connection: `member`, or one that is not known yet (None)."""
        if member is not None:
            self._confirm(member, address, now)
        target = self.dialler.targets.get(address)
        if target is None:
            return
        holder = self.members[target.owner] if target.owner is not None else None
        if holder is not None and holder.linked:
            self.dialler.finished(target)
            self.dialler.unwant(target)
        # Its other connection is in the middle of a handshake, which can fail.
        else:
            target.wanted = True
            self.dialler.penalise(target, now, self._config.dial_patience)

    def ended(self, address: Address) -> None:
        """Note that a dial ended with a link to a broker that is not in the table: the address is
        dialled again in some minutes."""
        target = self.dialler.targets.get(address)
        if target is not None:
            self.dialler.finished(target)
            if target.owner is None or not self.members[target.owner].linked:
                self.dialler.postpone(target, target.started + SELF_RETRY)

    def _patience(self, member: Member) -> float:
        return 0.0 if self._own.id < member.id else self._config.dial_patience

    def _confirm(self, member: Member, address: Address, now: float) -> None:
        """Note that the member answers at this address."""
        target = self.dialler.targets.get(address)
        if target is None:
            if is_wildcard(address.host) or self.is_own(address, now):
                return
            self._make_space(member, replace=True)
            target = self.dialler.add(address)
        self.dialler.finished(target)
        self.dialler.trust(target)
        self._selves.pop(address, None)
        if target.owner != member.id:
            self._own_target(target, member)

    def _make_space(self, member: Member, replace: bool) -> bool:
        """Return whether a member may have one address more, giving up its oldest if `replace`.
        Seeds do not count."""
        discovered = [known for known in self._owned[member.id] if not known.static]
        if len(discovered) < MAX_ADDRESSES:
            return True
        if replace:
            self._disown(discovered[0])
        return replace

    def _own_target(self, target: Target, member: Member) -> None:
        if target.owner is not None:
            self._owned[target.owner].remove(target)
        target.owner = member.id
        self._owned[member.id].append(target)
        self._touch(member)

    def _disown(self, target: Target) -> None:
        """Remove an address from its member; it is forgotten unless it is a seed."""
        if target.owner is not None:
            self._owned[target.owner].remove(target)
            target.owner = None
            self.version += 1
        if target.static:
            target.wanted = True
        else:
            self.dialler.remove(target)

    def _touch(self, member: Member) -> None:
        """Note that the member has changed, for gossip."""
        self.version += 1
        member.version = self.version

    def _drop(self, member: Member, seeds_from: float) -> None:
        del self.members[member.id]
        self.gossip_only.discard(member.id)
        self.version += 1
        for target in self._owned.pop(member.id):
            target.owner = None
            if target.static:
                self.dialler.postpone(target, seeds_from)
            else:
                self.dialler.remove(target)
