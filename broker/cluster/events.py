"""What happens in a cluster, as data, and the one place that dispatches it.

The module that notices something dispatches an event. Which modules are called, in which order and
why, is one table (`event_order`). Dispatching is synchronous: when it returns, all
subscribers have been called, and so have those of the events that these dispatched meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mqttree.broker.base.record import Record

if TYPE_CHECKING:
    from mqttree.broker.cluster.link.link import Link
    from mqttree.stp.changes import TopologyChange


class LinkUp(Record):
    """The handshake of a link is complete."""

    link: Link
    now: float
    """s"""


class LinkDown(Record):
    """A link is gone, in whatever state it was. Its state is "closed" by now."""

    link: Link
    reason: str
    now: float
    """s"""
    was_up: bool
    """Its handshake had been completed."""
    quiet: bool
    """It ended on purpose: that is not logged."""
    replaced: bool
    """The next link to the same broker is up already."""


class LinkForwards(Record):
    """The tree says that a link forwards messages from now on, or no longer."""

    link: Link
    forwarding: bool
    now: float
    """s"""


class LinkLeftTree(Record):
    """A link no longer leads to other brokers: it does not forward, or is gone."""

    link: Link
    now: float
    """s"""


class LinkBehind(Record):
    """The queue of a link is longer than it may be."""

    link: Link


class LinkDrained(Record):
    """A link that was behind has drained."""

    link: Link


class RouteChanged(Record):
    """Another neighbour leads to a broker over the tree now (`via`), or none does (None)."""

    broker_id: bytes
    via: bytes | None


class MemberGone(Record):
    """The tree has lost a broker, which had posted entries with these keys in the directory. After
    this event the entries are forgotten, and `RouteChanged` follows."""

    broker_id: bytes
    keys: tuple[bytes, ...]


class EntriesHandled(Record):
    """Watchers of the directory have got its new entries; neighbours get them next."""

    now: float
    """s"""


class EntriesSent(Record):
    """The directory's new entries have been sent to the neighbours."""

    now: float
    """s"""
    whole: bool
    """All that was posted here has been sent."""


class OriginLost(Record):
    """A broker can no longer be asked for the messages of an incarnation: it was restarted without
    them, or no link leads to it."""

    broker_id: bytes


class TopologyChanged(Record):
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
    | EntriesHandled
    | EntriesSent
    | OriginLost
    | TopologyChanged
)

EventOrder = Mapping[type[Event], Sequence[Callable[[Any], None]]]
"""The subscribers of each event, in the order in which they are called."""


class ClusterEvents:
    """Dispatches events to their subscribers."""

    def __init__(self) -> None:
        self.order: EventOrder = {}

    def subscribe(self, order: EventOrder) -> None:
        """Take the table of all subscribers."""
        self.order = order

    def dispatch(self, event: Event) -> None:
        """Tell all subscribers of an event, in the order of the table."""
        for take in self.order[type(event)]:
            take(event)
