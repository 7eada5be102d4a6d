"""The spanning tree of one broker as a pure object (MQTT-ST II-C; Overlays 4; after 802.1D 17 and RFC 8966 3.5).

Three mechanisms, each with one job:

* **election**: the best root that any believable, fresh claim names; self if there is none better;
* **feasibility** (`vector.FeasibilityTable`): a broker newly follows a claim only if that cannot close a loop; when no
  claim qualifies it asks the root for a newer sequence number, which makes every claim under it qualify;
* **age**: a claim says how long ago its root was known to live; older than max_age it is dead everywhere at the same
  time, so that news of a dead root cannot circulate.

Everything is announced when it changes; the hello timer only refreshes. The caller hands in what happened with `now`
(seconds, monotonic), then sends what `take_bpdus` returns and looks at `take_changes`.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from stp.bpdu import Bpdu, ChangeNumber, Role, SeqRequest
from stp.changes import Change, ChangeLog, ForwardingChanged, RoleChanged, RootChanged, TopologyChange
from stp.ports import Port
from stp.vector import (
    MAX_COST_US,
    FeasibilityTable,
    Identity,
    RootVector,
    address_key,
    better_root,
    same_root,
    seq_newer,
    to_tenths,
)

__all__ = ["Change", "ForwardingChanged", "RoleChanged", "RootChanged", "TopologyChange", "Tree", "TreeConfig"]

_U32 = 0xFFFFFFFF
_MAX_HOPS = 255
_NEVER = math.inf


@dataclass(slots=True, frozen=True)
class TreeConfig:
    """Times in seconds. The defaults suit links from loopback to intercontinental."""

    hello_s: float = 0.5
    """How often the root mints a sequence number (802.1D hello time)."""
    max_age_s: float = 2.0
    """A root that was not known to live for so long is dead."""
    hysteresis_ms: float = 2.0
    """A live parent is left for another path to the same root only if that saves at least this ..."""
    hysteresis_ratio: float = 0.25
    """... and at least this part of the path cost."""
    seq_gap_s: float = 0.02
    """Least time between sequence numbers, however many are requested."""
    stall_s: float = 1.0
    """A timer later than this means that this process was stopped, not that the others are silent."""
    settle_s: float = 0.05
    """Nothing is announced for so long after such a stall: what waits in the sockets is read first."""
    feasibility_expiry_s: float = 60.0
    feasibility_limit: int = 64
    change_limit: int = 4096
    """Origins of topology changes that are remembered: what is forgotten while it is under way would circulate."""
    bpdus_burst: int = 50
    bpdus_per_s: float = 100.0
    """BPDUs sent to one neighbour, at once and for long (802.1D's transmit hold count); what comes more often is told in one. A
    neighbour that changes its mind all the time must not keep the whole federation busy."""
    changes_burst: int = 256
    changes_per_s: float = 20.0
    """Topology changes that are taken from one neighbour, at once and for long; X."""


class Tree:
    """One broker's view of the tree and its side of the protocol."""

    __slots__ = (
        "_bump_at", "_bumped_at", "_changes", "_changes_out", "_deadline", "_dirty", "_feasibility", "_forgiven",
        "_grace_until", "_held_until", "_hold_until", "_now", "_own_key", "_own_seq", "_own_vector", "_parent", "_refresh_at",
        "_rng", "_settled_at", "_sweep_at", "_tenths", "config", "epoch", "hops", "own", "path_cost_us", "ports", "root",
        "root_seq",
    )  # fmt: skip

    def __init__(self, own: Identity, capability: float, config: TreeConfig, now: float, rng: random.Random) -> None:
        """A broker on its own: root of itself, no ports. Raises ValueError for a capability that is no number >= 0."""
        self.own = own
        self.config = config
        self.ports: dict[bytes, Port] = {}
        self.root = self._own_vector = RootVector.of(own, capability)
        self.root_seq = self._own_seq = 1
        self.path_cost_us = 0
        self.hops = 0
        self.epoch = 0
        self._tenths = to_tenths(capability)
        self._own_key = address_key(own.address[0], own.address[1])
        self._parent: Port | None = None
        self._feasibility = FeasibilityTable(config.feasibility_expiry_s, config.feasibility_limit)
        self._rng = rng
        self._dirty: dict[bytes, Port] = {}
        self._changes_out: list[Change] = []
        self._changes = ChangeLog(config.change_limit)
        self._now = now
        self._bumped_at = now
        self._bump_at = _NEVER
        self._refresh_at = now + self._hello()
        self._sweep_at = now + config.hello_s
        self._settled_at = now + 2 * config.hello_s
        self._deadline = min(self._refresh_at, self._sweep_at)
        self._forgiven = False
        self._grace_until = self._hold_until = -_NEVER
        self._held_until = _NEVER  # what is in `_dirty` is to be sent then

    # ---- state -----------------------------------------------------------------------------------

    @property
    def capability(self) -> float:
        """This broker's capability, to one decimal."""
        return self._tenths / 10

    @property
    def is_root(self) -> bool:
        """Whether this broker is the root of its tree."""
        return self._parent is None

    @property
    def parent(self) -> bytes | None:
        """The neighbour towards the root; None at the root."""
        return self._parent.peer.id if self._parent is not None else None

    @property
    def path_cost_ms(self) -> float:
        """Cost of the path to the root in ms; 0 at the root."""
        return self.path_cost_us / 1000

    @property
    def agreed(self) -> bool:
        """Whether every neighbour that is not silent names the same root and both ends agree on every link."""
        silent = self._now - self.config.max_age_s
        for port in self.ports.values():
            if port.heard_at < silent:
                continue
            bpdu = port.bpdu
            if bpdu is None or bpdu.echo is not port.role or not same_root(bpdu.root, self.root):
                return False
            if Role.ROOT in (port.role, bpdu.role):
                if not port.forwarding:
                    return False
            elif {port.role, bpdu.role} != {Role.DESIGNATED, Role.BLOCKED}:
                return False
        return True

    def forwarding_ports(self) -> list[bytes]:
        """The neighbours to whom messages are flooded."""
        return [peer for peer, port in self.ports.items() if port.forwarding]

    # ---- what happens to it ----------------------------------------------------------------------

    def port_up(self, peer: Identity, capability: float, now: float) -> None:
        """A link to `peer` is ready. A second call for one peer replaces the link and what was known of it.

        Raises ValueError if the peer has this broker's own id or the capability is no number >= 0.
        """
        if peer.id == self.own.id:
            raise ValueError("a neighbour has this broker's own id")
        tenths = to_tenths(capability)
        self._wake(now)
        if peer.id in self.ports:
            self._drop_port(peer.id, now, failed=False)
        self._feasibility.forget(peer.id, peer.boot)
        port = self.ports[peer.id] = Port(peer, tenths, now)
        self._announce(port)
        if self.root.id == peer.id and self.root.boot != peer.boot:
            self._reselect(now)

    def port_down(self, peer_id: bytes, now: float, failed: bool) -> None:
        """The link to a neighbour is gone; `failed` says that nobody meant it to. Unknown neighbours are ignored."""
        self._wake(now)
        if peer_id in self.ports:
            self._drop_port(peer_id, now, failed)

    def bpdu_received(self, peer_id: bytes, bpdu: Bpdu, now: float) -> bool:
        """A neighbour's BPDU, in the order of sending. False if it was ignored because there is no such port."""
        port = self.ports.get(peer_id)
        if port is None:
            return False
        self._wake(now)
        if port.echo is not bpdu.role:
            self._announce(port)  # the neighbour waits for its echo before it forwards
        port.accept(bpdu, now)
        self._evaluate(port, now)
        if bpdu.request is not None:
            self._requested(port, bpdu.request, now)
        if bpdu.changes:
            self._changes_received(bpdu.changes, port, now)
        self._update_port(port, now)
        return True

    def rtt_sample(self, peer_id: bytes, rtt_ms: float, now: float) -> None:
        """A round trip to a neighbour took `rtt_ms` ms. Values that cannot be are ignored."""
        port = self.ports.get(peer_id)
        if port is None:
            return
        self._wake(now)
        if now < self._hold_until:
            return  # the answer waited for us, not for the network
        if port.sample(rtt_ms, now) and port.bpdu is not None:
            self._evaluate(port, now)

    def heard(self, peer_id: bytes, now: float) -> None:
        """Bytes came in from a neighbour in the middle of a packet: it lives, though its BPDUs wait behind the packet.

        Only the parent's news is kept alive by this (nobody else's is needed), and not for longer than feasibility
        distances are remembered: beyond that a broker may have forgotten what protects it from old news.
        """
        port = self.ports.get(peer_id)
        if port is None:
            return
        self._wake(now)
        port.touch(now)
        if port is self._parent:
            limit = port.bpdu_at + self.config.feasibility_expiry_s - self.config.max_age_s
            port.fresh_at = max(port.fresh_at, min(now, limit))

    def tick(self, now: float) -> None:
        """Do what time has made due; cheap when nothing is."""
        self._wake(now)
        if self._parent is not None and not self._fresh(self._parent, now):
            self._reselect(now)
        if now >= self._sweep_at:
            self._sweep(now)
        if now >= min(self._refresh_at, self._bump_at):
            if self._parent is None:
                self._bump(now)
            else:
                self._announce_all(now)
        self._deadline = self.next_deadline()
        self._forgiven = False

    def next_deadline(self) -> float:
        """When `tick` has to be called next, at the latest."""
        deadline = min(self._refresh_at, self._sweep_at, self._bump_at)
        if self._dirty and self._hold_until > self._now:
            deadline = min(deadline, self._hold_until)
        if self._dirty:
            deadline = min(deadline, self._held_until)
        if self._parent is not None:
            expiry = max(self._parent.fresh_at + self.config.max_age_s, self._grace_until)
            deadline = min(deadline, expiry)
        return deadline

    # ---- what it wants ---------------------------------------------------------------------------

    def take_bpdus(self, now: float) -> list[tuple[bytes, Bpdu]]:
        """The BPDUs to send now, in order; usually at most one for each neighbour."""
        if not self._dirty or now < self._hold_until:
            return []
        out: list[tuple[bytes, Bpdu]] = []
        held: dict[bytes, Port] = {}
        config = self.config
        self._held_until = _NEVER
        for peer_id, port in self._dirty.items():
            earned = (now - port.bpdus_at) * config.bpdus_per_s
            port.bpdus_at = now
            port.bpdus_left = min(config.bpdus_burst, port.bpdus_left + earned)
            if port.bpdus_left < 1:
                held[peer_id] = port
                self._held_until = min(self._held_until, now + (1 - port.bpdus_left) / config.bpdus_per_s + 1e-6)
                continue
            out.append((peer_id, self._bpdu_for(port, now)))
            while port.changes:
                out.append((peer_id, self._bpdu_for(port, now)))
            port.bpdus_left -= 1
        self._dirty = held
        return out

    def take_changes(self) -> list[Change]:
        """What changed since the last call, in order."""
        changes, self._changes_out = self._changes_out, []
        return changes

    def _bpdu_for(self, port: Port, now: float) -> Bpdu:
        port.number_out = (port.number_out + 1) & _U32
        request, port.request = port.request, None
        age_ms = 0
        if self._parent is not None:
            age_ms = min(_U32, max(0, round((now - self._parent.fresh_at) * 1000)))
        return Bpdu(
            self.root, self.root_seq, self.path_cost_us, self._tenths, port.role, port.echo, self.hops, age_ms,
            port.number_out, request, port.take_changes(),
        )  # fmt: skip

    def _announce(self, port: Port) -> None:
        self._dirty[port.peer.id] = port

    def _announce_all(self, now: float) -> None:
        self._dirty.update(self.ports)
        # Below the root a broker usually speaks because a new seq arrived; its own timer must not run just ahead.
        self._refresh_at = now + (self._hello() if self._parent is None else 1.25 * self.config.hello_s)

    def _hello(self) -> float:
        return self.config.hello_s * self._rng.uniform(0.95, 1.0)

    # ---- selection -------------------------------------------------------------------------------

    def _fresh(self, port: Port, now: float) -> bool:
        if now < port.fresh_at + self.config.max_age_s:
            return True
        return port is self._parent and now < self._grace_until

    def _usable(self, port: Port, now: float) -> bool:
        """Whether a claim may be looked at: fresh, not about us, not through us, of the root's latest life."""
        bpdu = port.bpdu
        return (
            bpdu is not None
            and bpdu.role is not Role.ROOT
            and bpdu.root.id != self.own.id
            and bpdu.path_cost_us + port.link_cost_us <= MAX_COST_US
            and self._fresh(port, now)
            and not self._feasibility.stale(bpdu.root)
            and not self._contradicted(bpdu.root, now)
        )

    def _contradicted(self, root: RootVector, now: float) -> bool:
        """Whether the root is a neighbour that lives, in another life than the claim's: it told us itself, and who says
        otherwise is mistaken or lies. (Without that a higher boot number would be believed by everybody.)"""
        port = self.ports.get(root.id)
        return port is not None and port.peer.boot != root.boot and port.heard_at + 2 * self.config.hello_s > now

    def _feasible(self, bpdu: Bpdu) -> bool:
        return self._feasibility.feasible(bpdu.root, bpdu.seq, bpdu.path_cost_us)

    def _evaluate(self, port: Port, now: float) -> None:
        """Look at one port's new claim or new cost, without a look at the others unless it matters."""
        bpdu = port.bpdu
        assert bpdu is not None
        outdated = (
            not self._contradicted(bpdu.root, now)
            and self._feasibility.saw_boot(bpdu.root.id, bpdu.root.boot)
            and bpdu.root.id == self.root.id
        )
        if port is self._parent:
            if self._usable(port, now) and same_root(bpdu.root, self.root):
                self._follow(port, now)
            else:
                self._reselect(now)
        elif outdated:
            self._reselect(now)
        elif self._usable(port, now):
            if better_root(bpdu.root, self.root):
                if self._feasible(bpdu):
                    self._reselect(now)
                else:
                    self._ask(port)
            elif self._parent is not None and same_root(bpdu.root, self.root):
                self._consider(port, bpdu, self._parent, now)

    def _consider(self, port: Port, bpdu: Bpdu, parent: Port, now: float) -> None:
        """Whether another path to the same root is worth leaving a live parent for."""
        if not self._feasible(bpdu):
            if bpdu.seq == self.root_seq:
                port.better_since = None
            return
        hello = self.config.hello_s
        if seq_newer(bpdu.seq, self.root_seq) and port.fresh_at - parent.fresh_at > 3 * hello:
            self._follow(port, now)  # the parent hangs: others have heard of the root for three hellos
            return
        port.resample()
        cost = bpdu.path_cost_us + port.link_cost_us
        if now < self._settled_at:  # the root is new and the tree still forming: take the best path at once
            if port.rank(cost) < parent.rank(self.path_cost_us):
                self._follow(port, now)
            return
        gain = self.path_cost_us - cost
        enough = max(self.config.hysteresis_ms * 1000, self.config.hysteresis_ratio * self.path_cost_us)
        # Fewer hops for no more latency is a gain too: each costs a broker work, and a LAN never saves 2 ms.
        if gain < enough and not (gain >= 0 and bpdu.hops + 1 < self.hops):
            port.better_since = None
        elif port.better_since is None:
            port.better_since = now
        elif now - port.better_since >= 0.9 * hello:
            self._follow(port, now)

    def _reselect(self, now: float) -> None:
        """Elect from all ports (802.1D 17.21.25 updtRolesTree). The parent is kept while it names the same root.

        Keeping needs no feasibility, see FeasibilityTable.
        """
        old, parent = self.root, self._parent
        best: Port | None = None
        best_key: tuple[object, ...] = (self._own_vector.key,)
        for port in self.ports.values():
            if not self._usable(port, now):
                continue
            bpdu = port.bpdu
            assert bpdu is not None
            kept = port is parent and same_root(bpdu.root, old)
            if not kept and not self._feasible(bpdu):
                continue
            key = (bpdu.root.key, not kept, port.rank(bpdu.path_cost_us + port.link_cost_us))
            if key < best_key:
                best, best_key = port, key
        if best is not None:
            self._follow(best, now)
        elif parent is not None or not same_root(old, self._own_vector):
            self._become_root(now)
        if better_root(old, self.root):
            self._lost(old)
        self._ask_starved(now)

    def _follow(self, port: Port, now: float) -> None:
        """Take (or keep) a port as root port and its claim as ours."""
        bpdu = port.bpdu
        assert bpdu is not None
        moved = port is not self._parent
        new_root = not same_root(bpdu.root, self.root)
        if moved or new_root or bpdu.seq != self.root_seq:
            port.resample()  # costs stand still under one seq
        cost = bpdu.path_cost_us + port.link_cost_us
        hops = min(_MAX_HOPS, bpdu.hops + 1)
        news = moved or new_root or bpdu.seq != self.root_seq or cost != self.path_cost_us or hops != self.hops
        roles = moved or new_root or cost != self.path_cost_us
        self._parent, self.root, self.root_seq, self.path_cost_us, self.hops = port, bpdu.root, bpdu.seq, cost, hops
        self._feasibility.advertise(bpdu.root, bpdu.seq, cost, now)
        if moved:
            port.better_since = None
            self._bump_at = _NEVER
        if new_root:
            self._root_changed(now)
        if news:
            self._announce_all(now)
        if roles:
            self._update_ports(now)

    def _become_root(self, now: float) -> None:
        self._parent, self.root = None, self._own_vector
        self.path_cost_us = self.hops = 0
        self._root_changed(now)
        self._bump(now)
        self._number_change()
        self._update_ports(now)

    def _root_changed(self, now: float) -> None:
        self._changes_out.append(RootChanged(self.root))
        self._settled_at = now + 2 * self.config.hello_s
        for port in self.ports.values():
            port.better_since = None

    def _drop_port(self, peer_id: bytes, now: float, failed: bool) -> None:
        port = self.ports.pop(peer_id)
        self._dirty.pop(peer_id, None)
        was_tree = port.forwarding or port is self._parent
        if port.forwarding:
            self._changes_out.append(ForwardingChanged(peer_id, False))
        if port is self._parent:
            self._reselect(now)
            failed = failed and self._parent is not None  # becoming root has numbered the change
        if failed and was_tree:
            self._number_change()

    # ---- sequence numbers ------------------------------------------------------------------------

    def _bump(self, now: float) -> None:
        self._own_seq = self.root_seq = (self._own_seq + 1) & _U32
        self._bumped_at = now
        self._bump_at = _NEVER
        self._announce_all(now)

    def _lost(self, root: RootVector) -> None:
        """The root that we followed is out of reach for now: along with the news, ask all for a newer seq of it."""
        if self._feasibility.stale(root):
            return
        request = SeqRequest(root.id, root.boot, self._feasibility.seq(root) or 0)
        for port in self.ports.values():
            port.request = port.asked = request
            self._announce(port)

    def _ask(self, port: Port) -> None:
        """The neighbour knows a better root, but to follow it could close a loop: ask for a seq that cannot."""
        bpdu = port.bpdu
        assert bpdu is not None
        request = SeqRequest(bpdu.root.id, bpdu.root.boot, self._feasibility.seq(bpdu.root) or 0)
        if port.asked != request:
            port.request = port.asked = request
            self._announce(port)

    def _ask_starved(self, now: float) -> None:
        for port in self.ports.values():
            bpdu = port.bpdu
            if bpdu is None or port is self._parent or not better_root(bpdu.root, self.root):
                continue
            if self._usable(port, now) and not self._feasible(bpdu):
                self._ask(port)

    def _requested(self, port: Port, request: SeqRequest, now: float) -> None:
        """Answer a sequence request, mint for it, or hand it on towards the root once."""
        if request.root_id != self.root.id or request.boot != self.root.boot:
            return
        parent = self._parent
        if seq_newer(self.root_seq, request.seq):
            self._announce(port)
        elif parent is None:
            self._own_seq = request.seq  # only a lie is ahead of us; going past it recovers from it
            if now - self._bumped_at >= self.config.seq_gap_s:
                self._bump(now)
            else:
                self._bump_at = self._bumped_at + self.config.seq_gap_s
        elif parent is not port and parent.asked != request:
            parent.request = parent.asked = request
            self._announce(parent)

    # ---- roles -----------------------------------------------------------------------------------

    def _role_of(self, port: Port, now: float) -> Role:
        """MQTT-ST II-C4. Costs are compared as advertised, so both ends decide alike."""
        if port is self._parent:
            return Role.ROOT
        bpdu = port.bpdu
        if self._parent is None or bpdu is None or bpdu.role is Role.ROOT or not self._fresh(port, now):
            return Role.DESIGNATED
        if not same_root(bpdu.root, self.root):
            return Role.DESIGNATED if better_root(self.root, bpdu.root) else Role.BLOCKED
        mine = (self.path_cost_us, -self._tenths, self._own_key, self.own.id)
        return Role.DESIGNATED if mine < port.rank(bpdu.path_cost_us) else Role.BLOCKED

    def _update_port(self, port: Port, now: float) -> None:
        role = self._role_of(port, now)
        if role is not port.role:
            port.role = role
            self._changes_out.append(RoleChanged(port.peer.id, role))
            self._announce(port)
        bpdu = port.bpdu
        if bpdu is None:
            forwarding = False
        elif role is Role.ROOT:
            forwarding = bpdu.role is Role.DESIGNATED and bpdu.echo is Role.ROOT
        else:
            forwarding = role is Role.DESIGNATED and bpdu.role is Role.ROOT
        if forwarding != port.forwarding:
            port.forwarding = forwarding
            self._changes_out.append(ForwardingChanged(port.peer.id, forwarding))

    def _update_ports(self, now: float) -> None:
        for port in self.ports.values():
            self._update_port(port, now)

    # ---- topology changes ------------------------------------------------------------------------

    def _number_change(self) -> None:
        self._spread(self._changes.mint(self.own.id, self.own.boot), None)

    def _changes_received(self, changes: tuple[ChangeNumber, ...], source: Port, now: float) -> None:
        config = self.config
        earned = (now - source.changes_at) * config.changes_per_s
        source.changes_left = min(config.changes_burst, source.changes_left + earned)
        source.changes_at = now
        applied = False
        for change in changes:
            if source.changes_left < 1:
                break  # it is said twice, so that what a repair brings is not lost to a moment's flood
            if change.origin != self.own.id and self._changes.is_new(change):
                source.changes_left -= 1
                self._spread(change, source)
                applied = True
        if applied:
            self._reselect(now)

    def _spread(self, change: ChangeNumber, source: Port | None) -> None:
        self.epoch += 1
        self._changes_out.append(TopologyChange(change.number, change.origin))
        for port in self.ports.values():
            if port is not source:
                port.note_change(change)
                self._announce(port)

    # ---- time ------------------------------------------------------------------------------------

    def _wake(self, now: float) -> None:
        """Every event passes here first: notice that this process itself was stopped.

        Then the parent's claim gets a respite to be renewed from the sockets, while its true age is what the
        neighbours are told, so that they do not believe what we slept over.
        """
        if now - self._deadline > self.config.stall_s and not self._forgiven:
            self._forgiven = True
            self._grace_until = now + 2 * self.config.hello_s
            self._hold_until = now + self.config.settle_s
        self._now = now

    def _sweep(self, now: float) -> None:
        """Once a hello: what no event would show - claims that aged, entries that expired."""
        self._sweep_at = now + self.config.hello_s
        self._feasibility.expire(now, self.root.id)
        self._reselect(now)
        self._update_ports(now)
