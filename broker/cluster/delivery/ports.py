"""What delivery asks of the floors above it: sharing, sessions, retained messages, the log's tail.

These are built later than what is here, and take what is here in their constructors; so they are
reached by way of the cluster, each time (`Above`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from broker.core.local_broker import LocalBroker
from broker.core.ports import Journal

if TYPE_CHECKING:
    from broker.cluster.delivery.replay_log import LogEntry
    from broker.cluster.events import LinkDown, MemberGone, RouteChanged
    from broker.cluster.link.codec import Ranges, Vector
    from broker.cluster.link.link import Link
    from broker.core.message import Message
    from broker.core.receiver_assignment import ReceiverAssignment
    from broker.core.session import Session


class LogJournal(Journal, Protocol):
    """What keeps the messages that are published here."""

    def logged(self, entry: LogEntry) -> None:
        """Record an entry of the log."""


class DeliveringBroker(LocalBroker, Protocol):
    """One broker that sends messages to others."""

    forwarding: list[Link]
    """Links in the live stream. Another list each time one enters or leaves it."""

    @property
    def journal(self) -> LogJournal | None:
        """What keeps its state, None for a broker that keeps nothing."""


TakeEntries = Callable[["list[LogEntry] | None"], None]
"""Takes what was read from the disk; None: it cannot be read."""


class TailPiece(NamedTuple):
    """Some messages of one origin in the log's tail: the numbers of the first and the last."""

    first: int
    last: int
    read: Callable[[TakeEntries], None]
    """Has them read; the call comes later."""


class SharedGroups(Protocol):
    """Shared subscriptions, as far as messages of links are for their members."""

    def chosen_behind(self, link: Link, entry: LogEntry) -> bool:
        """Whether a message is for a member behind a link."""

    def received(self, message: Message, choice: ReceiverAssignment, *, ordinary: bool) -> None:
        """Deliver a message to chosen members here; `ordinary`: to all other subscribers, too."""


class DeliveredElsewhere(Protocol):
    """What sessions had at the broker that they come from."""

    def deliver(
        self, key: bytes, sequence: int, message: Message, choice: ReceiverAssignment | None
    ) -> None:
        """Deliver a message to those here that have not had it."""

    def fetch(self, session: Session, key: bytes, ranges: Ranges) -> None:
        """Note what an origin is asked for as this session alone lacks it."""

    def alone(self, key: bytes) -> Ranges:
        """Return what an origin is asked for as some sessions alone lack it."""


class RetainedMessages(Protocol):
    """What is retained, at all brokers alike."""

    def numbered(self, message: Message, sequence: int) -> None:
        """Note the number of a retained message that was published here."""

    def received(self, message: Message, key: bytes, sequence: int, now: float) -> bool:
        """Take a retained message of another broker; returns whether it is new here."""

    def entered(self, link: Link) -> None:
        """Note that a link is in the live stream."""

    def left(self, link: Link) -> None:
        """Note that a link is not in the live stream any more."""


class AbsentBrokers(Protocol):
    """Brokers that were away, and what the log's tail has for them."""

    def lacks(self, broker_id: bytes, key: bytes, lacked: Ranges) -> None:
        """Take a broker's word for which numbers of an origin it lacks."""

    def sent(self, broker_id: bytes, key: bytes) -> None:
        """Note that a broker has been sent everything that it said it lacks."""

    def seen(self, broker_id: bytes, vector: Vector) -> None:
        """Take a neighbour's word for what has been there."""

    def holds(self, broker_id: bytes, key: bytes) -> bool:
        """Whether anything of an origin is kept, or has been lost, for a broker."""

    def oldest_piece(self, broker_id: bytes, key: bytes, lacks: Ranges) -> TailPiece | None:
        """Return the oldest messages of an origin in the tail that a broker lacks."""

    def tail_begins(self, broker_id: bytes, key: bytes) -> int:
        """Return the first number of an origin that the tail has for a broker."""

    def to_offer(
        self, asked: Container[bytes], pause: float, now: float
    ) -> Iterable[tuple[bytes, bytes, Ranges]]:
        """Return what is to be offered to brokers that have been back, and silent, for `pause` s:
        broker, origin, numbers. `asked`: origins that are asked for theirs."""


class AbsentMembers(AbsentBrokers, Protocol):
    """The same for the cluster, which tells what happens."""

    def __len__(self) -> int: ...

    @property
    def memory(self) -> int:
        """Bytes of memory of all notes, about."""

    def link_down(self, event: LinkDown) -> None:
        """Note what was on its way over a link that is gone."""

    def member_gone(self, event: MemberGone) -> None:
        """Note what a broker wanted that the tree has lost."""

    def route_changed(self, event: RouteChanged) -> None:
        """Note that a broker is back."""

    def tick(self, now: float) -> None:
        """Once a second: who is back and asks for nothing more, or stays away."""


class SeenWatcher(Protocol):
    """Who waits until neighbours have had everything (`Drain`)."""

    def seen(self, link: Link, seen: Vector, now: float) -> None:
        """Take a neighbour's word for what has been there."""


class Above(Protocol):
    """The floors above delivery."""

    @property
    def sharing(self) -> SharedGroups:
        """Shared subscriptions."""

    @property
    def delivered_ranges(self) -> DeliveredElsewhere:
        """What sessions have had elsewhere."""

    @property
    def retained_sync(self) -> RetainedMessages:
        """Retained messages."""

    @property
    def absent_members(self) -> AbsentBrokers:
        """Brokers that are away."""
