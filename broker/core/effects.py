"""What a node asks its driver to do, as data; some are answered with `Node.answer`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.core.client import Client
    from broker.core.connect import ConnectHandshake
    from broker.core.connection import Connection
    from broker.core.dispatcher import SharedGroup
    from broker.core.message import Message
    from broker.core.session import Session
    from broker.wire import Connect, Subscribe


@dataclass(slots=True, eq=False)
class Authenticate:
    """May this client connect? Answer: bool. Its connection waits."""

    client: ConnectHandshake
    connect: Connect
    answered: bool = False
    """Whether the answer has come."""


@dataclass(slots=True, eq=False)
class AuthorizePublish:
    """May this client publish this message? Answer: bool. Its connection waits."""

    client: Client
    message: Message
    packet_id: int
    answered: bool = False
    """Whether the answer has come."""


@dataclass(slots=True, eq=False)
class AuthorizeSubscribe:
    """Which filters may this client subscribe to? Answer: list[bool]. Its connection waits."""

    client: Client
    packet: Subscribe
    answered: bool = False
    """Whether the answer has come."""


@dataclass(slots=True, eq=False)
class AuthorizeReceive:
    """Which sessions may receive this message? Answer: set of those that may. Messages wait for
    each other, in order."""

    message: Message
    receivers: list[Session]
    groups: list[SharedGroup]
    """Shared subscriptions that get it from a member here."""
    only: bool = False
    """Nobody else gets it."""
    allowed: set[Session] | None = None
    source: Connection | None = None
    """Where it came from."""
    at_hand: tuple[bytes, bytes, float] | None = None
    """From a link: see `RemoteFlowControl.at_hand`."""
    answered: bool = False
    """Whether the answer has come."""


@dataclass(slots=True, eq=False)
class Event:
    """Something that amqtt's plugins are told (`on_<name>`). No answer."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Dial:
    """Open a link to an address. Answer: nothing when it stands (`Node.connection_made` came
    first), else the error's text."""

    host: str
    port: int


@dataclass(slots=True, eq=False)
class Datagram:
    """Send an announcement to the discovery group, from each interface as
    `discovery.announcement.bind` makes it. No answer."""

    data: bytes


@dataclass(slots=True, eq=False)
class Append:
    """Write a frame to the journal. Answer: nothing when it is safe, else the error's text; for
    many frames at once for the last one of them, in their order. A second answer, an error, says
    that what was safe for the process did not get to the disk."""

    data: bytes
    mark: int


@dataclass(slots=True, eq=False)
class Begin:
    """Begin a new generation of the journal; frames after it go there, or where they went, if it
    cannot begin. `anew`: something could not be written, and this one says everything again; until
    it has, it does not count. Nothing else can follow an error.

    Answer: nothing when it has begun, else the error's text. A second answer, an error, says that
    what was written to it may be lost.
    """

    generation: int
    anew: bool = False


@dataclass(slots=True, eq=False)
class Discard:
    """Delete the generations of the journal before this one, or, if it could not be completed, this
    one alone. No answer."""

    generation: int
    failed: bool = False


@dataclass(slots=True, eq=False)
class TailWrite:
    """Write at a place of a segment of the log's tail; a segment begins at place 0. Answer: nothing
    when the kernel has it, else the error's text; in their order."""

    segment: int
    offset: int
    data: bytes
    mark: int


@dataclass(slots=True, eq=False)
class TailRead:
    """Read a piece of a segment. Answer: its bytes, or the error's text."""

    segment: int
    offset: int
    size: int
    mark: int


@dataclass(slots=True, eq=False)
class TailSync:
    """Put on the disk what was written before. Answer: nothing when it is there, else the error's
    text."""

    mark: int


@dataclass(slots=True, eq=False)
class TailDrop:
    """Delete a segment. No answer."""

    segment: int


Effect = (
    Authenticate
    | AuthorizePublish
    | AuthorizeSubscribe
    | AuthorizeReceive
    | Event
    | Dial
    | Datagram
    | Append
    | Begin
    | Discard
    | TailWrite
    | TailRead
    | TailSync
    | TailDrop
)


@dataclass(slots=True)
class Hooks:
    """Which effects somebody wants; all off costs nothing."""

    authenticate: bool = False
    topics: bool = False
    packets: bool = False
    events: frozenset[str] = frozenset()
    verifies: bool = True  # those who authenticate do not believe a name without a password

    @property
    def verified(self) -> bool:
        """Whether somebody has checked that clients are who they say."""
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
