"""What one federator is told at its start: who it is, its neighbours, times, bounds, and which
variant of the protocol it speaks."""

from __future__ import annotations

from enum import Enum

from mqttree.broker.base.record import Record

MAX_ID = (1 << 32) - 1
"""The highest broker id, sequence number and publication number: they are 32 bits on the wire."""

MAX_NEIGHBOURS = 256
"""neighbours of one federator; each takes a connection."""

MAX_LOG = 1_000_000
"""ids that the log of one topic may be set to: about 150 MB."""


class Codec(Enum):
    """How messages between federators are written."""

    BINCODE = "bincode"
    """As the public implementation in Rust does."""
    JSON = "json"
    """As those in Go do."""


class NonMember(Enum):
    """Where a broker outside of the mesh sends a publication."""

    ONE = "one"
    """To one of its parents, as the paper says."""
    ALL = "all"
    """To all of its parents, as the public implementations do."""


class Settings(Record):
    """Times in seconds. The defaults are those of the paper, or else of the public implementation
    in Rust.

    Raises:
        ValueError: a value is out of its range.
    """

    id: int
    """This federator's broker."""
    neighbours: tuple[int, ...]
    """The brokers at which it can publish."""
    redundancy: int = 2
    """How many parents a broker has at most (the paper's R)."""
    core_interval: float = 10.0
    """The core announces itself so often. A core that was silent for three times as long, or a
    child, is gone."""
    beacon_interval: float = 5.0
    """Clients publish beacons so often. Interest ends three times as long after the last one."""
    log_size: int = 5_000
    """Publications of one topic that are remembered."""
    log_time: float = 0.0
    """A publication is remembered for so long, even if more than `log_size` are (up to the log's
    bound)."""
    nonmember: NonMember = NonMember.ONE
    preferred_parent: int | None = None
    """The parent that a broker outside of the mesh sends to if it has this one; None, or it has
    not: the one with the lowest id."""
    relays_nearer: bool = False
    """Relay an announcement again that comes with a shorter distance, as the public implementations
    do; the paper relays each one once."""
    doubles_distance: bool = False
    """Add 2 for each hop to the distance in announcements, as the public implementations do."""
    codec: Codec = Codec.BINCODE

    def __post_init__(self) -> None:
        neighbours = self.neighbours
        if not all(0 <= each <= MAX_ID for each in (self.id, *neighbours)):
            raise ValueError(f"a broker id is a number from 0 to {MAX_ID}")
        if self.id in neighbours or len(set(neighbours)) != len(neighbours):
            raise ValueError("a neighbour's id is this broker's own, or another neighbour's")
        if len(neighbours) > MAX_NEIGHBOURS:
            raise ValueError(f"{len(neighbours)} neighbours are more than {MAX_NEIGHBOURS}")
        if not 1 <= self.redundancy <= MAX_NEIGHBOURS:
            raise ValueError(f"redundancy is from 1 to {MAX_NEIGHBOURS}, not {self.redundancy}")
        # This is false for nan as well.
        if not all(0.01 <= each <= 86_400 for each in (self.core_interval, self.beacon_interval)):
            raise ValueError("intervals are from 0.01 to 86400 seconds")
        if not 1 <= self.log_size <= MAX_LOG:
            raise ValueError(f"the log has from 1 to {MAX_LOG} ids, not {self.log_size}")
        if not 0 <= self.log_time <= 86_400:
            raise ValueError("the time of the log is from 0 to 86400 seconds")
        if self.preferred_parent is not None and self.preferred_parent not in neighbours:
            raise ValueError("the preferred parent is not a neighbour")

    def as_public_code(self) -> Settings:
        """Return these settings with all variants as the public implementation in Rust has them."""
        return self.replace(
            nonmember=NonMember.ALL,
            preferred_parent=None,
            relays_nearer=True,
            doubles_distance=True,
            codec=Codec.BINCODE,
        )
