"""What the floors above - cluster, persistence, drivers - may use of one broker
(docs/decisions/0032-floors.md). `Node` is one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from broker.base.timers import Scheduler

if TYPE_CHECKING:
    from broker.auth.authorization import Access, Permissions
    from broker.auth.enhanced_auth import Method
    from broker.base.counters import Counters
    from broker.base.limits import Limits
    from broker.base.log_limit import LogLimit
    from broker.base.rate_limit import RateLimit
    from broker.base.turns import Turns
    from broker.config.node_config import NodeConfig
    from broker.core.client import Client
    from broker.core.connect import ConnectHandshake
    from broker.core.connection import Connection
    from broker.core.dispatcher import Dispatcher
    from broker.core.effects import Effect, Hooks
    from broker.core.memory_limit import MemoryLimit
    from broker.core.message import Message
    from broker.core.ports import Cluster, Draining, Journal
    from broker.core.predecessor import Predecessors
    from broker.core.retained_feed import RetainedFeeds
    from broker.core.retained_store import RetainedStore
    from broker.core.session import Session


class LocalBroker(Scheduler, Protocol):
    """One broker, as far as its own clients are concerned."""

    now: float
    """The time of this turn (s, monotonic). A function that a timer calls sets it first."""

    federated: bool
    """Another broker was there: what is published is numbered and logged for it."""

    # ---------------------------------------------------------------- what it is made of

    @property
    def config(self) -> NodeConfig:
        """The broker's settings."""

    @property
    def limits(self) -> Limits:
        """What it keeps to."""

    @property
    def counters(self) -> Counters:
        """What is counted."""

    @property
    def log(self) -> Callable[[str, str], None]:
        """Called with a level and a line."""

    @property
    def log_limit(self) -> LogLimit:
        """Logs lines that peers cause."""

    @property
    def turns(self) -> Turns:
        """How much is done in one turn of the event loop."""

    @property
    def effects(self) -> list[Effect]:
        """What the driver is to do; append."""

    @property
    def hooks(self) -> Hooks:
        """The hooks that plugins implement."""

    @property
    def journal(self) -> Journal:
        """What keeps its state."""

    @property
    def cluster(self) -> Cluster:
        """The other brokers."""

    @property
    def memory(self) -> MemoryLimit:
        """How much memory clients and their queues may take."""

    # ---------------------------------------------------------------- clients

    @property
    def access(self) -> Access | None:
        """Users and rules in force; None: plugins alone decide."""

    @property
    def methods(self) -> dict[str, Method]:
        """Authentication Methods (MQTT 5) and what begins an exchange."""

    @property
    def rate(self) -> RateLimit | None:
        """How many connections may be accepted in a second."""

    checking: int
    """Passwords that are being checked."""

    @property
    def stopping(self) -> bool:
        """Whether this broker is saying goodbye to its clients."""

    @property
    def drain(self) -> Draining | None:
        """What sends clients to other brokers, while it does."""

    @property
    def connections(self) -> set[Connection]:
        """All that stand."""

    def connection_gone(self, conn: Connection, reason: str, now: float) -> None:
        """A connection (`conn`) is closed for a `reason` at `now` (s), and no packet that came on
        it waits; harmless when repeated."""

    def handshake_over(self, handshake: ConnectHandshake) -> None:
        """A connection's CONNECT was accepted or refused, or the connection is gone."""

    def new_client_id(self) -> str:
        """Make a client id for a client that brought none."""

    def client_came(self, client: Client, now: float) -> None:
        """A client is connected."""

    def client_gone(self, client: Client) -> None:
        """A client's connection ended; harmless when repeated."""

    def client_refused(self, client: Client, /) -> None:
        """A client is refused for which a session was already found."""

    def revoke(self, session: Session) -> None:
        """Drop what is queued for a session that may not receive it any more."""

    @property
    def connected(self) -> int:
        """How many clients are connected."""

    @property
    def dirty(self) -> list[Connection | Session]:
        """Whose outbox is flushed at the end of this turn: all that are not empty."""

    @property
    def sessions(self) -> dict[str, Session]:
        """By client id."""

    @property
    def predecessors(self) -> Predecessors:
        """New connections wait there until the old ones of their clients are read to the end."""

    def permissions(
        self, username: str | None, client_id: str, listener: str
    ) -> Permissions | None:
        """Return what the client `client_id` of the user `username` may do that came by `listener`;
        None: everything."""

    def take_over(self, session: Session) -> None:
        """Disconnect a client that has connected once more, here or elsewhere."""

    def redirect(self, client: Client, reference: str, permanent: bool) -> None:
        """Send a `client` to another broker (`reference`: "HOST:PORT"); `permanent`: it is not to
        come back."""

    def forget(self, conn: Connection) -> None:
        """A connection that was refused has nothing more to say."""

    def end_session(self, session: Session, source: Connection | None) -> None:
        """Forget a session. `source`: the connection that is answered once that is durable."""

    def expire_later(self, session: Session) -> None:
        """Keep a session without a connection for as long as its client wants."""

    def expire(self, session: Session) -> None:
        """End a session whose client has been away for too long."""

    def send_will(self, session: Session) -> None:
        """Publish the will of a session, if it still has one."""

    # ---------------------------------------------------------------- messages

    @property
    def dispatcher(self) -> Dispatcher:
        """Subscriptions of all sessions, and the way of every message to them."""

    @property
    def retained(self) -> RetainedStore:
        """Retained messages."""

    @property
    def feeds(self) -> RetainedFeeds:
        """Sends retained messages to new subscribers."""

    @property
    def fast(self) -> bool:
        """Whether runs of PUBLISH packets need not be shown to plugins one by one."""

    @property
    def forwarding(self) -> Sequence[object]:
        """Links on which messages are forwarded."""

    def publish(self, message: Message, source: Connection | None) -> None:
        """Take over a message that was published here: deliver it and pass it on. `source`: its
        publisher, which may have to wait."""

    def event(self, name: str, **arguments: Any) -> None:
        """Tell plugins, if one listens to this."""

    def publish_internal(self, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        """Publish a message of the broker itself. `topic`, `payload`, `qos`, `retain`: as in
        PUBLISH; a topic that begins with `$` stays here."""

    def retain(self, message: Message) -> None:
        """A message has become the retained one of its topic."""

    # ---------------------------------------------------------------- backpressure

    paused: int
    """How many transports hold enough; not 0: the driver flushes after each read."""

    @property
    def unheld(self) -> deque[Connection]:
        """Publishers that were held, and had been read further than was handled."""

    def holds(self, source: Connection) -> bool:
        """Whether a connection is not read because a subscriber is behind."""

    def withholds(self, conn: Connection) -> bool:
        """Whether something for a connection waits for the journal."""

    def hold_publishers(self, slow: Connection, source: Connection | None) -> None:
        """Do not read the publisher `source` until `slow` has caught up."""

    def watched(self, slow: Connection) -> bool:
        """Whether publishers may wait for `slow`."""

    def hold(self, source: Connection | None, reason: object) -> None:
        """Do not read `source` until `release_publishers(reason)`."""

    def release_publishers(self, slow: object) -> None:
        """Read the publishers again that waited for `slow` alone."""
