"""Times and limits of a spanning tree."""

from __future__ import annotations

from mqttree.broker.base.record import Record

HELLO_S = 0.5
MAX_AGE_S = 2.0
"""s; `TreeConfig` has their meaning."""


class TreeConfig(Record):
    """Times in seconds. The defaults suit links from loopback to intercontinental."""

    hello_s: float = HELLO_S
    """How often the root mints a sequence number (802.1D hello time)."""
    max_age_s: float = MAX_AGE_S
    """A root that has not been known to live for so long is dead."""
    hysteresis_ms: float = 2.0
    """A live parent is left for another path to the same root only if that saves at least this
    ..."""
    hysteresis_ratio: float = 0.25
    """... and at least this part of the path cost."""
    seq_gap_s: float = 0.02
    """Least time between sequence numbers, however many are requested."""
    stall_s: float = 1.0
    """A timer that is later than this means that the process was stopped, and not that neighbours
    are silent."""
    settle_s: float = 0.05
    """Nothing is announced for so long after such a stop: the bytes in the sockets are read
    first."""
    feasibility_expiry_s: float = 60.0
    feasibility_limit: int = 64
    change_limit: int = 4096
    """Origins of topology changes that are remembered. A change whose origin is forgotten while it
    is under way would circulate."""
    few_ports: int = 8
    bpdu_gap_s: float = 0.005
    """Least time between two BPDUs to one neighbour for a broker with more than `few_ports` ports;
    the first goes at once. While a tree forms again among many, each hears of the new root on every
    link, over one path after the other: to pass on each of them at once costs hundreds of BPDUs a
    link (BGP's MinRouteAdvertisementInterval; RFC 4271, 9.2.1.1)."""
    bpdus_burst: int = 50
    bpdus_per_s: float = 100.0
    """BPDUs sent to one neighbour, at once and for long (802.1D's transmit hold count); what comes
    more often is sent in one. A neighbour that changes its mind all the time must not keep the
    whole federation busy."""
    retired_cost_us: int = 600_000_000
    """Cost that a leaving broker adds to paths through it (microseconds): more than any way around
    it costs, and so little that several in a row stay below the highest cost that is believed."""
    changes_burst: int = 256
    changes_per_s: float = 20.0
    """Topology changes that are taken from one neighbour: at once, and in the long run."""
