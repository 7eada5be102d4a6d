"""Priority vectors: which root is better, and which claims about a root may be believed.

A *claim* is what a neighbour's BPDU says: "my root is R (boot b), its newest sequence number that
reached me is s, my path to it costs c". Roots are ordered by capability (Overlays 4.2.1) and then
by address. Claims are believed under the feasibility condition of DSDV and Babel (RFC 8966, 3.5.1),
which keeps parent pointers free of loops at every moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mqttree.broker.base.address import Address, SortKey, sort_key
from mqttree.broker.base.broker_id import Identity

MAX_COST_US = 3_600_000_000
"""The highest path cost that is believed: one hour, in microseconds."""

_SEQ_MASK = 0xFFFFFFFF
_SEQ_HALF = 0x80000000


def seq_newer(a: int, b: int) -> bool:
    """Return whether sequence number `a` comes after `b`; u32 serial arithmetic (RFC 1982), so
    wrapping is harmless."""
    return a != b and (a - b) & _SEQ_MASK < _SEQ_HALF


def to_tenths(capability: float) -> int:
    """Return the capability as it is compared and sent: whole tenths in a u32. Raises ValueError if
    that is impossible."""
    if not 0.0 <= capability <= 429_496_729.0:
        raise ValueError(f"capability must be between 0 and 429496729, not {capability!r}")
    return round(capability * 10)


@dataclass(frozen=True, slots=True)
class RootVector:
    """A root as brokers compare it. `key` orders: the smaller key is the better root."""

    id: bytes
    boot: int
    tenths: int
    address: Address
    key: tuple[int, SortKey, bytes, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        key = (-self.tenths, sort_key(self.address), self.id, -self.boot)
        object.__setattr__(self, "key", key)

    @classmethod
    def of(cls, identity: Identity, capability: float) -> RootVector:
        """Return the vector with which a broker claims to be root."""
        return cls(identity.id, identity.boot, to_tenths(capability), identity.address)


def same_root(a: RootVector, b: RootVector) -> bool:
    """Return whether two vectors name the same incarnation of the same broker."""
    return a is b or (a.id == b.id and a.boot == b.boot)


def better_root(a: RootVector, b: RootVector) -> bool:
    """Return whether `a` is strictly better: higher capability, lower address, lower id; of one
    broker, the later incarnation."""
    if a.id == b.id:
        return a.boot > b.boot
    return a.key < b.key


@dataclass(slots=True, eq=False, repr=False)
class _Distance:
    """Feasibility distance to one root: the smallest (newest seq, lowest cost) that was ever
    advertised."""

    boot: int
    # None: a newer incarnation is known, and nothing was advertised for it yet.
    seq: int | None
    cost_us: int
    used_at: float


class FeasibilityTable:
    """Feasibility distances by root id (RFC 8966, 3.2.5, the source table).

    Why parent pointers cannot loop: order distances by newer seq, then lower cost. A broker moves
    to a parent only when the parent's claim is below its own distance, and the parent's distance is
    at most that claim, for ever, since distances only fall. What a broker advertises is its
    parent's claim plus a positive link cost, so its own distance stays above its parent's also
    while it keeps the parent, whatever the parent's cost becomes. A loop would be a distance below
    itself.
    """

    __slots__ = ("_entries", "expiry_s", "limit")

    def __init__(self, expiry_s: float, limit: int) -> None:
        """Entries live `expiry_s` seconds after their last use; at `limit` entries the longest
        unused one goes."""
        self._entries: dict[bytes, _Distance] = {}
        self.expiry_s = expiry_s
        self.limit = limit

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._entries)

    def stale(self, root: RootVector) -> bool:
        """Return whether a later incarnation of this root is known, so that claims about this one
        do not count."""
        entry = self._entries.get(root.id)
        return entry is not None and root.boot < entry.boot

    def feasible(self, root: RootVector, seq: int, cost_us: int) -> bool:
        """Return whether a claim may be newly followed: of the root `root`, with the sequence
        number `seq`, at the cost `cost_us` (microseconds) of the broker that makes it."""
        entry = self._entries.get(root.id)
        if entry is None or root.boot > entry.boot:
            return True
        if root.boot < entry.boot:
            return False
        return (
            entry.seq is None
            or seq_newer(seq, entry.seq)
            or (seq == entry.seq and cost_us < entry.cost_us)
        )

    def seq(self, root: RootVector) -> int | None:
        """Newest sequence number advertised for this incarnation of the root, or None."""
        entry = self._entries.get(root.id)
        return entry.seq if entry is not None and entry.boot == root.boot else None

    def advertise(self, root: RootVector, seq: int, cost_us: int, now: float) -> None:
        """Record at `now` (s) what this broker is about to tell its neighbours: the root `root`,
        the sequence number `seq`, its own cost `cost_us` (microseconds)."""
        entry = self._entries.get(root.id)
        if entry is None:
            if len(self._entries) >= self.limit:
                del self._entries[
                    min(self._entries, key=lambda root_id: self._entries[root_id].used_at)
                ]
            self._entries[root.id] = _Distance(root.boot, seq, cost_us, now)
            return
        entry.used_at = now
        if entry.boot != root.boot or entry.seq is None or seq_newer(seq, entry.seq):
            entry.boot, entry.seq, entry.cost_us = root.boot, seq, cost_us
        elif seq == entry.seq and cost_us < entry.cost_us:
            entry.cost_us = cost_us

    def saw_boot(self, root_id: bytes, boot: int) -> bool:
        """Note the incarnation of a root that a claim names. Returns True if it outdates the known
        one."""
        entry = self._entries.get(root_id)
        if entry is None or boot <= entry.boot:
            return False
        entry.boot, entry.seq = boot, None
        return True

    def forget(self, root_id: bytes, boot: int) -> None:
        """Take the word of the broker itself that its incarnation is `boot`: entries of any other
        one are removed, later ones too."""
        entry = self._entries.get(root_id)
        if entry is not None and entry.boot != boot:
            entry.boot, entry.seq = boot, None

    def expire(self, now: float, keep: bytes) -> None:
        """Drop entries that were not used for the expiry time, except the one of root id `keep`."""
        gone = [
            i
            for i, entry in self._entries.items()
            if now - entry.used_at > self.expiry_s and i != keep
        ]
        for root_id in gone:
            del self._entries[root_id]
