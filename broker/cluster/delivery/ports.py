"""What delivery asks of the floors above it: sharing, sessions, retained messages, the log's tail.

The modules there are built after those of delivery, which they take in their constructors; so
delivery reaches them by way of the cluster at each call (`Above`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mqttree.broker.cluster.ports import MemberBroker
from mqttree.broker.core.ports import Journal

if TYPE_CHECKING:
    from mqttree.broker.base.sequence_set import Ranges
    from mqttree.broker.cluster.delivery.replay_log import LogEntry
    from mqttree.broker.cluster.events import LinkDown, LinkUp, MemberGone, RouteChanged
    from mqttree.broker.cluster.link.link import Link
    from mqttree.broker.cluster.link.version_vector import Vector
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.message import Message
    from mqttree.broker.core.receiver_assignment import ReceiverAssignment
    from mqttree.broker.core.session import Session


class LogJournal(Journal, Protocol):
    """The journal, which keeps the messages that are published here."""

    def logged(self, entry: LogEntry, source: Connection | None) -> None:
        """Record an entry of the log; `source`: the publisher of its messages."""

    def arriving(self, entry: LogEntry, /) -> None:
        """A batch from a link is about to be delivered."""

    def arrived(self, entry: LogEntry, source: Connection, /) -> None:
        """Record the batch, which came over the link `source`, if a durable session got one of its
        messages."""


class DeliveringBroker(MemberBroker, Protocol):
    """One broker that sends messages to others."""

    forwarding: list[Link]
    """The live links. A new list replaces it each time a link becomes live or stops being so."""

    @property
    def journal(self) -> LogJournal:
        """The journal, in which logged messages and origins are recorded."""


TakeEntries = Callable[["list[LogEntry] | None"], None]
"""Takes the entries that were read from the disk; None: they cannot be read."""


class TailPiece(NamedTuple):
    """Some messages of one origin in the log's tail."""

    ahead: int
    """The highest number before all of the tail; 0: there is more of the tail before these."""
    last: int
    """Their highest number."""
    read: Callable[[TakeEntries], None]
    """Starts reading them; the entries are handed over later."""


class SharedGroups(Protocol):
    """Shared subscriptions, for messages that come over links."""

    def chosen_behind(self, link: Link, entry: LogEntry) -> bool:
        """Whether a message is for a member behind a link."""

    def published_behind(self, link: Link, key: bytes) -> bool:
        """Whether the broker of the origin `key` is behind a link, or at its end: what its disk
        lacks may be for its own members, and others ask it for the rest."""

    def received(
        self,
        message: Message,
        choice: ReceiverAssignment,
        source: Connection | None,
        *,
        ordinary: bool,
    ) -> None:
        """Deliver `message` to the local members that `choice` names; `ordinary`: to the ordinary
        subscribers as well. `source`: as of `Dispatcher.publish`."""


class EvaluatedMessages(Protocol):
    """What sessions had at the broker from which they came."""

    def deliver(
        self,
        key: bytes,
        sequence: int,
        message: Message,
        choice: ReceiverAssignment | None,
        source: Connection | None,
    ) -> None:
        """Deliver a `message` with number `sequence` of the origin `key` to the local subscribers
        that have not had it. `choice`: which members of shared subscriptions get it, if any;
        `source`: as of `Dispatcher.publish`."""

    def owe(self, session: Session, key: bytes, ranges: Ranges) -> None:
        """Note that `session` alone lacks the numbers `ranges` of the origin `key`."""

    def ranges_fetched_for_one_session(self, key: bytes) -> Ranges:
        """Return the numbers that single sessions are owed, and no other local session."""


class RetainedMessages(Protocol):
    """Retained messages, which all brokers keep."""

    def restored(
        self, link: Link, message: Message, key: bytes, sequence: int, data: bytes, now: float
    ) -> None:
        """Take the `message` that a comparison brought over `link` at `now` (s): number `sequence`
        of the origin `key`. `data`: the batch as it came.

        Raises:
            MalformedPacket: its origin is invalid.
        """

    def numbered(self, message: Message, sequence: int) -> None:
        """Note the number of a retained message that was published here."""

    def received(
        self, message: Message, key: bytes, sequence: int, now: float, source: Connection | None
    ) -> bool:
        """Take a retained `message` with number `sequence` of the origin `key`, another broker;
        `now`: s; `source`: the link that it came on, None: an answer brought it, to this broker
        alone. Returns whether it is newer than the one here."""


class Comparing(Protocol):
    """Neighbours whose retained messages are compared with local ones."""

    def entered(self, link: Link) -> None:
        """Note that a link is live."""

    def left(self, link: Link) -> None:
        """Note that a link is not live any more."""


class AbsentBrokers(Protocol):
    """Brokers that were away, and what the log's tail has for them."""

    def __len__(self) -> int: ...

    def expects(self, broker_id: bytes, *, newest: bool) -> bool:
        """Whether a broker is away and may be back, or (`newest`: in this incarnation) is there."""

    def patience(self, least: float) -> float:
        """Return for how long (s) something is remembered for brokers that are away: `least` if
        none is."""

    def lacks(self, broker_id: bytes, key: bytes, lacked: Ranges) -> TailPiece | None:
        """Note that the broker `broker_id` lacks the numbers `lacked` of the origin `key`, as it
        said. Returns the oldest of these that the tail keeps for it; None: there are none."""

    def sent(self, broker_id: bytes, key: bytes) -> None:
        """Note that a broker has been sent everything that it said it lacks."""

    def pieces(self, broker_id: bytes) -> Iterator[Callable[[TakeEntries], None]]:
        """Return for each part of what is kept for a broker in the tail, the oldest first, what
        reads it."""

    def to_offer(self, pause: float, now: float) -> Iterable[tuple[bytes, bytes, Ranges]]:
        """Return what is to be offered to brokers that have been back, and silent, for `pause` s at
        `now` (s): broker, origin, numbers. Origins of this broker are offered until they are
        asked."""


class AbsentMembers(AbsentBrokers, Protocol):
    """Brokers that were away, as the cluster sees them: it reports events to them."""

    @property
    def memory(self) -> int:
        """Bytes of memory of all notes, about."""

    def link_down(self, event: LinkDown) -> None:
        """Note what was on its way over a link that is gone."""

    def member_gone(self, event: MemberGone) -> None:
        """Note which filters a broker had that the tree has lost."""

    def route_changed(self, event: RouteChanged) -> None:
        """Note that a broker is back."""

    def tick(self, now: float) -> None:
        """Note brokers that are back and have got everything, and those that stay away. To be
        called once a second."""


class SeenWatcher(Protocol):
    """Waits until neighbours have had all messages (`Drain`)."""

    def seen(self, link: Link, seen: Vector, now: float) -> None:
        """Take the version vector `seen` of the neighbour at the end of `link`; `now`: s."""


class Streamed(Protocol):
    """This broker's own stream (`Stream`)."""

    pending: int
    """Bytes that the standby has not acknowledged."""

    @property
    def lag(self) -> float:
        """s for which the standby has acknowledged nothing while a frame waits."""

    @property
    def alone(self) -> float:
        """How long the broker has had no standby (s); 0: it has one."""

    @property
    def unprotected(self) -> int:
        """Sessions that the death of this broker would take with it."""

    def report(self) -> dict[str, Any]:
        """Return what operators are told."""

    def have(self, link: Link, epoch: int, lsn: int) -> None:
        """Take what the standby at `link` says: up to which `lsn` it has the stream `epoch`."""

    def link_down(self) -> None:
        """Note that a link is gone."""

    @property
    def doubts(self) -> bool:
        """Whether this broker does not know which of its sessions its standby has given away."""

    @property
    def fencing(self) -> Fenced:
        """Hears of that."""

    def on_suspended(self, seconds: float, now: float) -> None:
        """Note that this broker did not run for `seconds` until `now` (s)."""


class Fenced(Protocol):
    """Hears which of this broker's sessions others have given away."""

    def heard(self, sender: bytes, body: bytes, now: float) -> None:
        """Carry out what the broker `sender` says in `body` that it has given away, at `now` (s).
        Raises MalformedPacket."""


class StandbyImages(Protocol):
    """The images of other brokers whose standby this one is."""

    stream: Streamed | None
    """This broker's own stream; None: it wants no standby."""

    def received(self, link: Link, data: bytes, body: int) -> None:
        """Take a packet of a stream (`data`) that came over `link`. `body`: where it begins behind
        its length.

        Raises:
            MalformedPacket: it cannot be read.
        """

    def link_up(self, event: LinkUp) -> None:
        """Note that there is a neighbour."""

    def link_down(self, event: LinkDown) -> None:
        """Note that a link is gone."""

    def route_changed(self, event: RouteChanged) -> None:
        """Note that another broker can be reached, or no longer."""

    def on_suspended(self, seconds: float, now: float) -> None:
        """Note that this broker did not run for `seconds` until `now` (s)."""

    @property
    def size(self) -> int:
        """Bytes of the frames of all images."""

    @property
    def unadopted(self) -> int:
        """Sessions of brokers that are gone which are nowhere else."""


class Above(Protocol):
    """What messages lead to on the floors above delivery."""

    @property
    def sharing(self) -> SharedGroups:
        """Gives messages to members of shared subscriptions."""

    @property
    def evaluated(self) -> EvaluatedMessages:
        """What sessions have had at other brokers."""

    @property
    def retained_sync(self) -> RetainedMessages:
        """The retained messages of this broker."""

    @property
    def retained_comparison(self) -> Comparing:
        """Comparisons of these with neighbours."""

    @property
    def images(self) -> StandbyImages:
        """The images of other brokers here."""

    @property
    def absent_members(self) -> AbsentBrokers:
        """Keeps what brokers that are away will want, or counts it."""
