"""A port: this broker's end of a link to one neighbour, the neighbour's last BPDU, and the link's
cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from mqttree.broker.base.address import SortKey, sort_key
from mqttree.broker.base.broker_id import Identity
from mqttree.stp.bpdu import MAX_CHANGES, Bpdu, ChangeNumber, Role, SeqRequest
from mqttree.stp.priority_vector import RootVector, same_root

MIN_LINK_COST_US = 50
"""The lowest cost of a link in microseconds: the proof against loops needs a positive cost."""

UNKNOWN_RTT_MS = 10.0
"""The cost of a link before its first round trip is measured."""

_MEDIAN_OF = 9
_OTHER_PATH = 4.0
_SLOWEST_GAIN = 1 / 32
_BAND_US = 1000
_BAND_RATIO = 0.125
_MAX_RTT_MS = 600_000.0
_STALL_S = 1.0
_CHANGE_REPEATS = 2

PortRank = tuple[int, int, SortKey, bytes]


@dataclass(slots=True, eq=False, repr=False)
class Port:
    """One link of the tree. Status pages read the public fields; only the Tree writes them."""

    peer: Identity
    tenths: int
    """The neighbour's capability in tenths."""
    opened_at: float
    role: Role = Role.DESIGNATED
    forwarding: bool = False
    rtt_ms: float | None = None
    """Smoothed round trip time in ms; None before the first sample."""
    link_cost_us: int = round(UNKNOWN_RTT_MS * 1000)
    """The link's cost as used in path costs (microseconds): follows rtt_ms in steps, see
    `resample`."""
    bpdu: Bpdu | None = None
    """The neighbour's last BPDU."""
    fresh_at: float = 0.0
    """When the root that `bpdu` names was last known to live, in this broker's clock (s)."""
    bpdu_at: float = 0.0
    """When `bpdu` arrived (s)."""
    heard_at: float = 0.0
    """When the neighbour last sent anything (s)."""
    silent_until: float = 0.0
    """When the neighbour last broke a silence of more than a second."""
    number_out: int = 0
    better_since: float | None = None
    """Since when this port has been clearly better than the root port."""
    request: SeqRequest | None = None
    """The sequence request for the next BPDU."""
    asked: SeqRequest | None = None
    """The last request that this broker sent to the neighbour, so that it is sent once."""
    changes: dict[bytes, ChangeNumber] = field(default_factory=dict)
    """Topology changes that the neighbour has not been sent yet, the newest of each origin."""
    repeats: dict[bytes, tuple[ChangeNumber, int]] = field(default_factory=dict)
    """Topology changes that were sent, and how often they are still repeated."""
    bpdus_left: float = math.inf
    """BPDUs that may be sent to the neighbour now."""
    bpdus_at: float = 0.0
    """Since when more of them accrue (s)."""
    bpdu_after: float = -math.inf
    """No BPDU is sent to this neighbour before (s)."""
    changes_left: float = math.inf
    """Topology changes that may be taken from the neighbour now."""
    changes_at: float = 0.0
    """Since when more of them accrue (s)."""
    peer_key: SortKey = field(init=False)
    _recent: list[float] = field(default_factory=list)
    _samples: int = 0

    def __post_init__(self) -> None:
        self.peer_key = sort_key(self.peer.address)
        self.heard_at = self.changes_at = self.bpdus_at = self.opened_at

    @property
    def echo(self) -> Role:
        """The role that the neighbour last announced."""
        return self.bpdu.role if self.bpdu is not None else Role.NONE

    def agrees(self, root: RootVector) -> bool:
        """Return whether the neighbour names this root, and both ends agree on the link's roles."""
        bpdu = self.bpdu
        if bpdu is None or bpdu.echo is not self.role or not same_root(bpdu.root, root):
            return False
        if Role.ROOT in (self.role, bpdu.role):
            return self.forwarding
        if self.role is Role.BLOCKED:
            return bpdu.role is Role.DESIGNATED
        return self.role is Role.DESIGNATED and bpdu.role is Role.BLOCKED

    def may_forward(self, role: Role) -> bool:
        """Return whether messages may pass in this role: not before both ends agree on which one is
        the parent."""
        bpdu = self.bpdu
        if bpdu is None:
            return False
        if role is Role.ROOT:
            return bpdu.role is Role.DESIGNATED and bpdu.echo is Role.ROOT
        return role is Role.DESIGNATED and bpdu.role is Role.ROOT

    def rank(self, cost_us: int) -> PortRank:
        """The order of paths to one root: cost, then the neighbour's capability (MQTT-ST II-C4),
        then its address."""
        return (cost_us, -self.tenths, self.peer_key, self.peer.id)

    def accept(self, bpdu: Bpdu, now: float) -> None:
        """Store a BPDU and compute how old its claim about the root is: the age in it plus half a
        round trip."""
        old = self.bpdu
        # A quarter of a second at most: a round trip that was measured too long must not make live
        # claims look dead.
        fresh_at = now - bpdu.age_ms / 1000 - min(self.rtt_ms or 0.0, 500.0) / 2000
        if old is not None and old.seq == bpdu.seq and same_root(old.root, bpdu.root):
            fresh_at = max(fresh_at, self.fresh_at)
        self.bpdu = bpdu
        self.tenths = bpdu.tenths
        self.fresh_at = fresh_at
        self.bpdu_at = now
        self.touch(now)

    def touch(self, now: float) -> None:
        """Note that the neighbour has sent something."""
        if now - self.heard_at > _STALL_S:
            self.silent_until = now
        self.heard_at = now

    def sample(self, rtt_ms: float, now: float) -> bool:
        """Take a round trip time in ms; True if it was the first, which counts at once.

        The median of the last nine drops late answers (a collector's pause, a burst of data); the
        mean over the first 32 samples and an exponential mean with gain 1/32 behind them damp
        jitter. A median four times off is no jitter but another path: the mean starts afresh.
        Ignored: nonsense (nan, negative) and answers that a silent neighbour, stopped or cut off,
        gave when it came back.
        """
        self.touch(now)
        if not 0.0 <= rtt_ms <= _MAX_RTT_MS or (
            rtt_ms > _STALL_S * 1000 and now - rtt_ms / 1000 < self.silent_until
        ):
            return False
        self._recent = [*self._recent[1 - _MEDIAN_OF :], rtt_ms]
        median = sorted(self._recent)[(len(self._recent) - 1) // 2]
        first = self.rtt_ms is None
        if (
            self.rtt_ms is None
            or median > self.rtt_ms * _OTHER_PATH
            or median * _OTHER_PATH < self.rtt_ms
        ):
            self.rtt_ms = median
            self._samples = 1
        else:
            self._samples += 1
            self.rtt_ms += (median - self.rtt_ms) * max(_SLOWEST_GAIN, 1 / self._samples)
        if first:
            self.link_cost_us = self._smoothed_us()
        return first

    def resample(self) -> None:
        """Let the cost follow the smoothed RTT if they are more than max(1 ms, 12.5 %) apart.

        In between the cost stands still, and with it every path cost and role that hangs on it.
        """
        if self.rtt_ms is None:
            return
        smoothed = self._smoothed_us()
        if abs(smoothed - self.link_cost_us) > max(_BAND_US, self.link_cost_us * _BAND_RATIO):
            self.link_cost_us = smoothed

    def _smoothed_us(self) -> int:
        return max(MIN_LINK_COST_US, round((self.rtt_ms or 0.0) * 1000))

    def charge_bpdu(self, now: float, burst: int, per_s: float) -> float:
        """Take one BPDU from what may be sent to this neighbour at `now` (s): `burst` at once,
        `per_s` a second. Returns 0, or the seconds to wait if none is left."""
        self.bpdus_left = min(burst, self.bpdus_left + (now - self.bpdus_at) * per_s)
        self.bpdus_at = now
        if self.bpdus_left < 1:
            return (1 - self.bpdus_left) / per_s + 1e-6
        self.bpdus_left -= 1
        return 0.0

    def earn_changes(self, now: float, burst: int, per_s: float) -> None:
        """Add to `changes_left` what has accrued until `now` (s): `per_s` a second, `burst` at
        most."""
        self.changes_left = min(burst, self.changes_left + (now - self.changes_at) * per_s)
        self.changes_at = now

    def note_change(self, change: ChangeNumber) -> None:
        """Tell the neighbour of a topology change with the next BPDUs."""
        self.changes[change.origin] = change
        self.repeats.pop(change.origin, None)

    def take_changes(self) -> tuple[ChangeNumber, ...]:
        """Return the topology changes for the next BPDU: new ones first, then repeated ones."""
        if not self.changes and not self.repeats:
            return ()
        sent = list(self.changes.values())[:MAX_CHANGES]
        again = list(self.repeats.values())[: MAX_CHANGES - len(sent)]
        for change in sent:
            del self.changes[change.origin]
            self.repeats[change.origin] = (change, _CHANGE_REPEATS - 1)
        for change, left in again:
            if left <= 1:
                del self.repeats[change.origin]
            else:
                self.repeats[change.origin] = (change, left - 1)
        return (*sent, *(change for change, _ in again))
