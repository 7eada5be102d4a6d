"""The spanning tree of one broker as a pure object (MQTT-ST II-C; Overlays 4; after 802.1D 17 and
RFC 8966 3.5).

Three mechanisms, each with one job:

* **election**: the best root that any believable, fresh claim names; self if there is none better;
* **feasibility** (`priority_vector.FeasibilityTable`): a broker newly follows a claim only if that
  cannot close a loop; when no claim qualifies it asks the root for a newer sequence number, which
  makes every claim under it qualify;
* **age**: a claim says how long ago its root was known to live; older than max_age it is dead
  everywhere at the same time, so that claims about a dead root cannot circulate.

Everything is announced when it changes; the hello timer only refreshes. The caller hands in what
happened with `now` (seconds, monotonic), then sends what `take_bpdus` returns and looks at
`take_changes`.
"""

from __future__ import annotations

import math
import random

from mqttree.broker.base.address import sort_key
from mqttree.broker.base.broker_id import Identity
from mqttree.stp.bpdu import Bpdu, ChangeNumber, Role, SeqRequest
from mqttree.stp.changes import (
    Change,
    ChangeLog,
    ForwardingChanged,
    RootChanged,
    TopologyChange,
)
from mqttree.stp.claims import Claims
from mqttree.stp.config import TreeConfig
from mqttree.stp.ports import Port
from mqttree.stp.priority_vector import (
    MAX_COST_US,
    RootVector,
    better_root,
    same_root,
    seq_newer,
    to_tenths,
)
from mqttree.stp.transmit import Transmission

_U32 = 0xFFFFFFFF
_MAX_HOPS = 255
_NEVER = math.inf


class Tree:
    """One broker's view of the tree and its side of the protocol."""

    def __init__(
        self, own: Identity, capability: float, config: TreeConfig, now: float, rng: random.Random
    ) -> None:
        """A broker on its own: the root of itself, without ports.

        `own`: its id, boot number and address. `capability`: the highest one becomes the root.
        `config`: settings. `now`: s, monotonic. `rng`: spreads what brokers would do at the same
        time.

        Raises ValueError for a capability that is no number >= 0.
        """
        self.own = own
        self.config = config
        self.ports: dict[bytes, Port] = {}
        self.root = self._own_vector = RootVector.of(own, capability)
        self.root_seq = self._own_seq = 1
        self.path_cost_us = 0
        self.hops = 0
        self.epoch = 0
        self._tenths = to_tenths(capability)
        self._own_key = sort_key(own.address)
        self._claims = Claims(own.id, self.ports, config)
        self._rng = rng
        self._out = Transmission(config)
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
        self._retired_us = 0

    # ---- state -----------------------------------------------------------------------------------

    @property
    def capability(self) -> float:
        """This broker's capability, to one decimal."""
        return self._tenths / 10

    @property
    def is_root(self) -> bool:
        """Whether this broker is the root of its tree."""
        return self._claims.parent is None

    @property
    def parent(self) -> bytes | None:
        """The neighbour towards the root; None at the root."""
        return self._claims.parent.peer.id if self._claims.parent is not None else None

    @property
    def path_cost_ms(self) -> float:
        """Cost of the path to the root in ms; 0 at the root."""
        return self.path_cost_us / 1000

    @property
    def agreed(self) -> bool:
        """Return whether every neighbour that is not silent names the same root, and both ends
        agree on every link."""
        silent = self._now - self.config.max_age_s
        return all(
            port.agrees(self.root) for port in self.ports.values() if port.heard_at >= silent
        )

    @property
    def is_leaf(self) -> bool:
        """Whether no messages pass through this broker: its only link in the tree is the one to its
        parent."""
        return not any(
            port.forwarding for port in self.ports.values() if port is not self._claims.parent
        )

    # ---- what happens to it ----------------------------------------------------------------------

    def port_up(self, peer: Identity, capability: float, now: float) -> None:
        """Add a port at `now` (s): the link to `peer` is ready, and its capability is `capability`.
        A second call for a peer replaces its link and all that was known of it.

        Raises ValueError if the peer has this broker's own id or the capability is no number >= 0.
        """
        if peer.id == self.own.id:
            raise ValueError("a neighbour has this broker's own id")
        tenths = to_tenths(capability)
        self._wake(now)
        if peer.id in self.ports:
            self._drop_port(peer.id, now, failed=False)
        self._claims.feasibility.forget(peer.id, peer.boot)
        port = self.ports[peer.id] = Port(peer, tenths, now)
        self._out.announce(port)
        self._count_ports()
        if self.root.id == peer.id and self.root.boot != peer.boot:
            self._reselect(now)

    def port_down(self, peer_id: bytes, now: float, failed: bool) -> None:
        """Remove a port at `now` (s): the link to the neighbour `peer_id` is gone. `failed`:
        neither end closed it on purpose. Unknown neighbours are ignored."""
        self._wake(now)
        if peer_id in self.ports:
            self._drop_port(peer_id, now, failed)

    def retire(self, now: float) -> None:
        """Prepare to leave: be root no longer if there is another candidate, and be no parent if
        there is another way. Messages pass as before until the neighbours have changed."""
        self._wake(now)
        self._tenths = 0
        self._own_vector = RootVector.of(self.own, 0.0)
        self._retired_us = self.config.retired_cost_us
        if self._claims.parent is not None:
            self._follow(self._claims.parent, now)
        else:
            self.root = self._own_vector
            self._bump(now)
            self._reselect(now)

    def set_capability(self, capability: float, now: float) -> None:
        """Set this broker's capability, which may make it the root or end that. Raises ValueError
        as the constructor does."""
        tenths = to_tenths(capability)
        self._wake(now)
        if self._retired_us or tenths == self._tenths:
            return
        self._tenths = tenths
        self._own_vector = RootVector.of(self.own, capability)
        if self._claims.parent is None:
            self.root = self._own_vector
            self._bump(now)
        self._reselect(now)
        self._update_ports(now)
        self._announce_all(now)

    def bpdu_received(self, peer_id: bytes, bpdu: Bpdu, now: float) -> bool:
        """Take `bpdu`, which the neighbour `peer_id` sent, at `now` (s), in the order of sending.
        Returns False if it is ignored because there is no such port."""
        port = self.ports.get(peer_id)
        if port is None:
            return False
        self._wake(now)
        if port.echo is not bpdu.role:
            self._out.announce(port)  # the neighbour waits for its echo before it forwards
        port.accept(bpdu, now)
        self._evaluate(port, now)
        if bpdu.request is not None:
            self._requested(port, bpdu.request, now)
        if bpdu.changes:
            self._changes_received(bpdu.changes, port, now)
        self._update_port(port, now)
        return True

    def rtt_sample(self, peer_id: bytes, rtt_ms: float, now: float) -> bool:
        """Take a round-trip time `rtt_ms` (ms) to the neighbour `peer_id`, measured at `now` (s).
        Returns whether that changed the link's cost. Impossible values are ignored."""
        port = self.ports.get(peer_id)
        if port is None:
            return False
        self._wake(now)
        if now < self._out.hold_until:
            return False  # the answer waited for us, not for the network
        if not port.sample(rtt_ms, now):
            return False
        if port.bpdu is not None:
            self._evaluate(port, now)
        return True

    def heard(self, peer_id: bytes, now: float) -> None:
        """Bytes came in from a neighbour in the middle of a packet: it lives, though its BPDUs wait
        behind the packet.

        Only the parent's claim is kept alive by this (no other claim is needed), and not for longer
        than feasibility distances are remembered: beyond that a broker may have forgotten what
        protects it from old claims.
        """
        port = self.ports.get(peer_id)
        if port is None:
            return
        self._wake(now)
        port.touch(now)
        if port is self._claims.parent:
            limit = port.bpdu_at + self.config.feasibility_expiry_s - self.config.max_age_s
            port.fresh_at = max(port.fresh_at, min(now, limit))

    def tick(self, now: float) -> None:
        """Do what time has made due; cheap when nothing is."""
        self._wake(now)
        if self._claims.parent is not None and not self._claims.fresh(self._claims.parent, now):
            self._reselect(now)
        if now >= self._sweep_at:
            self._sweep(now)
        if now >= min(self._refresh_at, self._bump_at):
            if self._claims.parent is None:
                self._bump(now)
            else:
                self._announce_all(now)
        self._deadline = self.next_deadline()
        self._forgiven = False

    def next_deadline(self) -> float:
        """When `tick` has to be called next, at the latest."""
        deadline = min(
            self._refresh_at, self._sweep_at, self._bump_at, self._out.next_deadline(self._now)
        )
        return (
            deadline
            if self._claims.parent is None
            else min(deadline, self._claims.expiry(self._claims.parent))
        )

    # ---- what it wants ---------------------------------------------------------------------------

    def take_bpdus(self, now: float) -> list[tuple[bytes, Bpdu]]:
        """The BPDUs to send now, in order; usually at most one for each neighbour."""
        out: list[tuple[bytes, Bpdu]] = []
        for port in self._out.due(now):
            out.append((port.peer.id, self._bpdu_for(port, now)))
            while port.changes:
                out.append((port.peer.id, self._bpdu_for(port, now)))
        return out

    def take_changes(self) -> list[Change]:
        """What changed since the last call, in order."""
        changes, self._changes_out = self._changes_out, []
        return changes

    def _bpdu_for(self, port: Port, now: float) -> Bpdu:
        port.number_out = (port.number_out + 1) & _U32
        request, port.request = port.request, None
        age_ms = 0
        if self._claims.parent is not None:
            age_ms = min(_U32, max(0, round((now - self._claims.parent.fresh_at) * 1000)))
        return Bpdu(
            self.root,
            self.root_seq,
            self.path_cost_us,
            self._tenths,
            port.role,
            port.echo,
            self.hops,
            age_ms,
            port.number_out,
            request,
            port.take_changes(),
        )

    def _announce_all(self, now: float) -> None:
        self._out.announce_all(self.ports)
        # Below the root a broker usually speaks because a new seq arrived; its own timer must not
        # run just ahead.
        self._refresh_at = now + (
            self._hello() if self._claims.parent is None else 1.25 * self.config.hello_s
        )

    def _hello(self) -> float:
        return self.config.hello_s * self._rng.uniform(0.95, 1.0)

    # ---- selection -------------------------------------------------------------------------------

    def _evaluate(self, port: Port, now: float) -> None:
        """Look at one port's new claim or new cost, without a look at the others unless it
        matters."""
        bpdu = port.bpdu
        assert bpdu is not None
        outdated = (
            not self._claims.contradicted(bpdu.root, now)
            and self._claims.feasibility.saw_boot(bpdu.root.id, bpdu.root.boot)
            and bpdu.root.id == self.root.id
        )
        if port is self._claims.parent:
            if self._claims.usable(port, now) and same_root(bpdu.root, self.root):
                if bpdu.root.tenths == self.root.tenths:
                    self._follow(port, now)
                else:  # it has retired
                    self.root = bpdu.root
                    self._reselect(now)
            else:
                self._reselect(now)
        elif outdated:
            self._reselect(now)
        elif self._claims.usable(port, now):
            if better_root(bpdu.root, self.root):
                if self._claims.feasible(bpdu):
                    self._reselect(now)
                else:
                    self._ask(port)
            elif self._claims.parent is not None and same_root(bpdu.root, self.root):
                self._consider(port, bpdu, self._claims.parent, now)

    def _consider(self, port: Port, bpdu: Bpdu, parent: Port, now: float) -> None:
        """Whether another path to the same root is worth leaving a live parent for."""
        if not self._claims.feasible(bpdu):
            if bpdu.seq == self.root_seq:
                port.better_since = None
            return
        hello = self.config.hello_s
        if seq_newer(bpdu.seq, self.root_seq) and port.fresh_at - parent.fresh_at > 3 * hello:
            # The parent hangs: others have heard of the root for three hellos.
            self._follow(port, now)
            return
        port.resample()
        cost = self._cost(bpdu, port)
        # The root is new and the tree still forming: take the best path at once.
        if now < self._settled_at:
            if port.rank(cost) < parent.rank(self.path_cost_us):
                self._follow(port, now)
            return
        gain = self.path_cost_us - cost
        enough = max(
            self.config.hysteresis_ms * 1000, self.config.hysteresis_ratio * self.path_cost_us
        )
        # Fewer hops for no more latency is a gain too: each costs a broker work, and a LAN never
        # saves 2 ms.
        if gain < enough and not (gain >= 0 and bpdu.hops + 1 < self.hops):
            port.better_since = None
        elif port.better_since is None:
            port.better_since = now
        elif now - port.better_since >= 0.9 * hello:
            self._follow(port, now)

    def _reselect(self, now: float) -> None:
        """Elect from all ports (802.1D 17.21.25 updtRolesTree). The parent is kept while it names
        the same root.

        Keeping needs no feasibility, see FeasibilityTable.
        """
        old, parent = self.root, self._claims.parent
        best: Port | None = None
        best_key: tuple[object, ...] = (self._own_vector.key,)
        for port in self.ports.values():
            if not self._claims.usable(port, now):
                continue
            bpdu = port.bpdu
            assert bpdu is not None
            kept = port is parent and same_root(bpdu.root, old)
            if not kept and not self._claims.feasible(bpdu):
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
        moved = port is not self._claims.parent
        new_root = not same_root(bpdu.root, self.root)
        if moved or new_root or bpdu.seq != self.root_seq:
            port.resample()  # costs stand still under one seq
        cost = self._cost(bpdu, port)
        hops = min(_MAX_HOPS, bpdu.hops + 1)
        news = (
            moved
            or new_root
            or bpdu.seq != self.root_seq
            or cost != self.path_cost_us
            or hops != self.hops
        )
        roles = moved or new_root or cost != self.path_cost_us
        self._claims.parent, self.root, self.root_seq, self.path_cost_us, self.hops = (
            port,
            bpdu.root,
            bpdu.seq,
            cost,
            hops,
        )
        self._claims.feasibility.advertise(bpdu.root, bpdu.seq, cost, now)
        if moved:
            port.better_since = None
            self._bump_at = _NEVER
        if new_root:
            self._root_changed(now)
        if news:
            self._announce_all(now)
        if roles:
            self._update_ports(now)

    def _cost(self, bpdu: Bpdu, port: Port) -> int:
        return min(MAX_COST_US, bpdu.path_cost_us + port.link_cost_us + self._retired_us)

    def _become_root(self, now: float) -> None:
        self._claims.parent, self.root = None, self._own_vector
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
        self._out.forget(peer_id)
        self._count_ports()
        followed = port is self._claims.parent
        was_tree = port.forwarding or followed
        if port.forwarding:
            self._changes_out.append(ForwardingChanged(peer_id, False))
        if followed:
            self._reselect(now)
            # Becoming root has numbered the change.
            failed = failed and self._claims.parent is not None
        if failed and was_tree:
            self._number_change()

    def _count_ports(self) -> None:
        self._out.gap_s = self.config.bpdu_gap_s if len(self.ports) > self.config.few_ports else 0.0

    # ---- sequence numbers ------------------------------------------------------------------------

    def _bump(self, now: float) -> None:
        self._own_seq = self.root_seq = (self._own_seq + 1) & _U32
        self._bumped_at = now
        self._bump_at = _NEVER
        self._announce_all(now)

    def _lost(self, root: RootVector) -> None:
        """The root that we followed is out of reach for now: along with this change, ask all for a
        newer seq of it."""
        if self._claims.feasibility.stale(root):
            return
        request = self._claims.request(root)
        for port in self.ports.values():
            port.request = port.asked = request
            self._out.announce(port)

    def _ask(self, port: Port) -> None:
        """The neighbour knows a better root, but to follow it could close a loop: ask for a seq
        that cannot."""
        bpdu = port.bpdu
        assert bpdu is not None
        request = self._claims.request(bpdu.root)
        if port.asked != request:
            port.request = port.asked = request
            self._out.announce(port)

    def _ask_starved(self, now: float) -> None:
        for port in self.ports.values():
            bpdu = port.bpdu
            if bpdu is None or port is self._claims.parent or not better_root(bpdu.root, self.root):
                continue
            if self._claims.usable(port, now) and not self._claims.feasible(bpdu):
                self._ask(port)

    def _requested(self, port: Port, request: SeqRequest, now: float) -> None:
        """Answer a sequence request, mint for it, or hand it on towards the root once."""
        if request.root_id != self.root.id or request.boot != self.root.boot:
            return
        parent = self._claims.parent
        if seq_newer(self.root_seq, request.seq):
            self._out.announce(port)
        elif parent is None:
            self._own_seq = request.seq  # only a lie is ahead of us; going past it recovers from it
            if now - self._bumped_at >= self.config.seq_gap_s:
                self._bump(now)
            else:
                self._bump_at = self._bumped_at + self.config.seq_gap_s
        elif parent is not port and parent.asked != request:
            parent.request = parent.asked = request
            self._out.announce(parent)

    # ---- roles -----------------------------------------------------------------------------------

    def _role_of(self, port: Port, now: float) -> Role:
        """MQTT-ST II-C4. Costs are compared as advertised, so both ends decide alike."""
        if port is self._claims.parent:
            return Role.ROOT
        bpdu = port.bpdu
        if (
            self._claims.parent is None
            or bpdu is None
            or bpdu.role is Role.ROOT
            or not self._claims.fresh(port, now)
        ):
            return Role.DESIGNATED
        if not same_root(bpdu.root, self.root):
            return Role.DESIGNATED if better_root(self.root, bpdu.root) else Role.BLOCKED
        mine = (self.path_cost_us, -self._tenths, self._own_key, self.own.id)
        return Role.DESIGNATED if mine < port.rank(bpdu.path_cost_us) else Role.BLOCKED

    def _update_port(self, port: Port, now: float) -> None:
        role = self._role_of(port, now)
        if role is not port.role:
            port.role = role
            self._out.announce(port)
        forwarding = port.may_forward(role)
        if forwarding != port.forwarding:
            port.forwarding = forwarding
            self._changes_out.append(ForwardingChanged(port.peer.id, forwarding))

    def _update_ports(self, now: float) -> None:
        for port in self.ports.values():
            self._update_port(port, now)

    # ---- topology changes ------------------------------------------------------------------------

    def _number_change(self) -> None:
        self._spread(self._changes.mint(self.own.id, self.own.boot), None)

    def _changes_received(
        self, changes: tuple[ChangeNumber, ...], source: Port, now: float
    ) -> None:
        config = self.config
        source.earn_changes(now, config.changes_burst, config.changes_per_s)
        applied = False
        for change in changes:
            if source.changes_left < 1:
                # It is said twice, so that what a repair brings is not lost to a moment's flood.
                break
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
                self._out.announce(port)

    # ---- time ------------------------------------------------------------------------------------

    def _wake(self, now: float) -> None:
        """Every event passes here first: notice that this process itself was stopped.

        Then the parent's claim gets a respite to be renewed from the sockets, while BPDUs carry its
        true age to the neighbours, so that they do not believe what we slept over.
        """
        if now - self._deadline > self.config.stall_s and not self._forgiven:
            self._forgiven = True
            self._claims.grace_until = now + 2 * self.config.hello_s
            self._out.hold_until = now + self.config.settle_s
        self._now = now

    def _sweep(self, now: float) -> None:
        """Once a hello: what no event would show - claims that aged, entries that expired."""
        self._sweep_at = now + self.config.hello_s
        self._claims.feasibility.expire(now, self.root.id)
        self._reselect(now)
        self._update_ports(now)
