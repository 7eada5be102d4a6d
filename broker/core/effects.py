"""What a node asks its driver to do, as data; some are answered with `Node.answer`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from mqttree.broker.core.connection import Arrival, Connection
    from mqttree.broker.core.message import Message
    from mqttree.broker.core.session import Session, SharedGroup
    from mqttree.broker.wire.packets import Connect, Subscribe


class ConnectingClient(Protocol):
    """A client that waits for the answer to its CONNECT."""

    @property
    def conn(self) -> Connection:
        """The connection on which the client waits."""

    @property
    def checking(self) -> bool:
        """Whether its password is to be checked."""

    def on_authenticated(self, allowed: bool, now: float, /) -> None:
        """Go on after the answer; `now`: s."""


class AskingClient(Protocol):
    """A connected client of which plugins are asked what it may do."""

    @property
    def conn(self) -> Connection:
        """The connection on which the client waits."""

    @property
    def session(self) -> Session:
        """The session with which it is connected."""


@dataclass(slots=True, eq=False, repr=False)
class Authenticate:
    """May this client connect? Answer: bool. Its connection waits."""

    client: ConnectingClient
    connect: Connect
    answered: bool = False
    """Whether the answer has come."""


@dataclass(slots=True, eq=False, repr=False)
class AuthorizePublish:
    """May this client publish this message? Answer: bool. Its connection waits."""

    client: AskingClient
    message: Message
    then: Callable[[bool, float], None]
    """Called with the answer and now (s)."""
    answered: bool = False
    """Whether the answer has come."""


@dataclass(slots=True, eq=False, repr=False)
class AuthorizeSubscribe:
    """Which filters may this client subscribe to? Answer: list[bool]. Its connection waits."""

    client: AskingClient
    packet: Subscribe
    then: Callable[[list[bool], float], None]
    """Called with the answer and now (s)."""
    answered: bool = False
    """Whether the answer has come."""


@dataclass(slots=True, eq=False, repr=False)
class AuthorizeReceive:
    """Which sessions may receive this message? Answer: set of those that may. Messages wait for
    each other, in order."""

    message: Message
    receivers: list[Session]
    groups: list[SharedGroup]
    """Shared subscriptions that get it from a member here."""
    only: bool = False
    """Ordinary subscriptions do not get it."""
    allowed: set[Session] | None = None
    source: Connection | None = None
    """Where it came from."""
    arrival: Arrival | None = None
    """The message, if a link has brought it."""
    answered: bool = False
    """Whether the answer has come."""


@dataclass(slots=True, eq=False, repr=False)
class Event:
    """An event for amqtt's plugins (`on_<name>`). No answer."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False, repr=False)
class Dial:
    """Open a link to an address. Answer: nothing when it stands (`ConnectionRegistry.made` came
    first), else the error's text."""

    host: str
    port: int


@dataclass(slots=True, eq=False, repr=False)
class Datagram:
    """Send an announcement to the discovery group, from each interface as
    `mqttree.discovery.announcement.bind` makes it. No answer."""

    data: bytes


@dataclass(slots=True, eq=False, repr=False)
class AppendFrame:
    """Write a frame to the journal. Answer: None when it is durable, else the error's text. One
    answer to the last of several frames stands for all of them. A second answer, an error, says
    that frames which the kernel had did not get to the disk."""

    data: bytes
    lsn: int
    """The number of the frame."""


@dataclass(slots=True, eq=False, repr=False)
class BeginSegment:
    """Begin a new segment of the journal. Later frames go there; if it cannot begin, they go where
    they went before, unless `full_snapshot` is set.

    Answer: None when it has begun, else the error's text. A second answer, an error, says that what
    was written to the segment may be lost.
    """

    segment: int
    """Its number."""
    full_snapshot: bool = False
    """A write has failed: the segment starts with a full snapshot, and recovery ignores it until
    the end of that. Only such a segment can begin after an error."""


@dataclass(slots=True, eq=False, repr=False)
class DiscardSegments:
    """Delete the segments before `segment`, whose records the snapshot in it replaces. No
    answer."""

    segment: int
    incomplete: bool = False
    """The snapshot in `segment` was not completed: delete this segment alone."""


@dataclass(slots=True, eq=False, repr=False)
class TailWrite:
    """Write at a place of a segment of the log tail; a segment begins at place 0. Answer: None when
    the kernel has the data, else the error's text, in the order of the effects."""

    segment: int
    offset: int
    """Bytes from the beginning of the segment."""
    data: bytes
    request: int
    """Distinguishes the answers to requests, here and below."""


@dataclass(slots=True, eq=False, repr=False)
class TailRead:
    """Read a piece of a segment of the log tail. Answer: its bytes, None if the segment is gone, or
    the error's text."""

    segment: int
    offset: int
    """Bytes from the beginning of the segment."""
    size: int
    """Bytes."""
    request: int


@dataclass(slots=True, eq=False, repr=False)
class TailSync:
    """Put on the disk what was written to the log tail before. Answer: None when it is there, else
    the error's text."""

    request: int


@dataclass(slots=True, eq=False, repr=False)
class TailDrop:
    """Delete a segment of the log tail. No answer."""

    segment: int


Effect = (
    Authenticate
    | AuthorizePublish
    | AuthorizeSubscribe
    | AuthorizeReceive
    | Event
    | Dial
    | Datagram
    | AppendFrame
    | BeginSegment
    | DiscardSegments
    | TailWrite
    | TailRead
    | TailSync
    | TailDrop
)


@dataclass(slots=True)
class Hooks:
    """Which effects plugins want; all off costs nothing."""

    authenticate: bool = False
    topics: bool = False
    packets: bool = False
    events: frozenset[str] = frozenset()
    verifies: bool = True  # those who authenticate do not believe a name without a password

    @property
    def verified(self) -> bool:
        """Whether plugins have checked that clients are who they say."""
        return self.authenticate and self.verifies

    @property
    def every_packet(self) -> bool:
        """Whether the fast path must be left: each PUBLISH has to be shown to a plugin."""
        return (
            self.topics
            or self.packets
            or "broker_message_received" in self.events
            or "broker_message_broadcast" in self.events
        )
