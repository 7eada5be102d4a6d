"""What happens in a cluster, as data, and the one place that tells it.

Whoever notices something dispatches an event; who hears of it, in which order and why, is one table
(`Cluster._event_order`). Dispatching is synchronous: when it returns, all
subscribers have been told, and what they dispatch themselves is told before that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.cluster.link.link import Link
    from stp.tree import TopologyChange


@dataclass(slots=True, frozen=True)
class LinkUp:
    """The handshake of a link is complete."""

    link: Link
    now: float
    """s"""


@dataclass(slots=True, frozen=True)
class LinkDown:
    """A link is gone, in whatever state it was. Its state is "closed" by now."""

    link: Link
    reason: str
    now: float
    """s"""
    was_up: bool
    """Its handshake had been completed."""
    quiet: bool
    """It ended on purpose: nobody has to be told."""
    replaced: bool
    """The next one to the same broker stands already."""


@dataclass(slots=True, frozen=True)
class LinkForwards:
    """The tree says that a link forwards messages from now on, or does not any more."""

    link: Link
    forwarding: bool
    now: float
    """s"""


@dataclass(slots=True, frozen=True)
class LinkLeftTree:
    """A link does not lead to other brokers any more: it does not forward, or is gone."""

    link: Link
    now: float
    """s"""


@dataclass(slots=True, frozen=True)
class LinkBehind:
    """More waits for a link than it may have waiting."""

    link: Link


@dataclass(slots=True, frozen=True)
class LinkDrained:
    """A link that was behind has drained."""

    link: Link


@dataclass(slots=True, frozen=True)
class RouteChanged:
    """Another neighbour leads to a broker over the tree now (`via`), or none does (None)."""

    broker_id: bytes
    via: bytes | None


@dataclass(slots=True, frozen=True)
class MemberGone:
    """The tree has lost a broker, which had posted entries with these keys in the directory. What
    was posted is forgotten, and its route told as changed, after this."""

    broker_id: bytes
    keys: tuple[bytes, ...]


@dataclass(slots=True, frozen=True)
class NewsLearnt:
    """Watchers of the directory have been told what is new in it; neighbours are told next."""

    now: float
    """s"""


@dataclass(slots=True, frozen=True)
class NewsTold:
    """Neighbours have been told what is new in the directory."""

    now: float
    """s"""
    whole: bool
    """Nothing that was posted here is still to be told."""


@dataclass(slots=True, frozen=True)
class OriginLost:
    """A broker that was started again can't be asked for what it published before, or no links lead
    to it any more."""

    broker_id: bytes


@dataclass(slots=True, frozen=True)
class TopologyChanged:
    """A broker has changed its place in the tree, and has numbered that."""

    change: TopologyChange
    now: float
    """s"""


Event = (
    LinkUp
    | LinkDown
    | LinkForwards
    | LinkLeftTree
    | LinkBehind
    | LinkDrained
    | RouteChanged
    | MemberGone
    | NewsLearnt
    | NewsTold
    | OriginLost
    | TopologyChanged
)

EventOrder = Mapping[type[Event], Sequence[Callable[[Any], None]]]
"""Who is told of each event, in this order."""


class ClusterEvents:
    """Tells events to their subscribers."""

    __slots__ = ("order",)

    def __init__(self) -> None:
        self.order: EventOrder = {}

    def subscribe(self, order: EventOrder) -> None:
        """Take the table of all subscribers."""
        self.order = order

    def dispatch(self, event: Event) -> None:
        """Tell all subscribers of an event, in the order of the table."""
        for take in self.order[type(event)]:
            take(event)
