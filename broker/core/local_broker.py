"""What the floors above - cluster, persistence, drivers - may use of one broker
(docs/decisions/0032-floors.md). `Node` is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from broker.base.timers import Scheduler

if TYPE_CHECKING:
    from broker.auth.authorization import Permissions
    from broker.base.counters import Counters
    from broker.base.log_limit import LogLimit
    from broker.base.turns import Turns
    from broker.config.node_config import NodeConfig
    from broker.core.client import Client
    from broker.core.connection import Connection
    from broker.core.dispatcher import Dispatcher
    from broker.core.effects import Effect, Hooks
    from broker.core.message import Message
    from broker.core.ports import Journal
    from broker.core.predecessor import Predecessors
    from broker.core.retained_store import RetainedStore
    from broker.core.session import Session


class LocalBroker(Scheduler, Protocol):
    """One broker, as far as its own clients are concerned."""

    now: float
    """The time of this turn (s, monotonic). Who is called by a timer sets it first."""

    federated: bool
    """Another broker was there: what is published is numbered and logged for it."""

    # ---------------------------------------------------------------- what it is made of

    @property
    def config(self) -> NodeConfig:
        """What it was told."""

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
        """What plugins want to be asked and told."""

    @property
    def journal(self) -> Journal | None:
        """What keeps its state, None for a broker that keeps nothing."""

    # ---------------------------------------------------------------- clients

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
        """Return what a client may; None: everything."""

    def take_over(self, session: Session) -> None:
        """Disconnect a client that has connected once more, here or elsewhere."""

    def redirect(self, client: Client, reference: str, permanent: bool) -> None:
        """Send a client to another broker (`reference`: "HOST:PORT")."""

    def forget(self, conn: Connection) -> None:
        """A connection that was refused has nothing more to say."""

    def end_session(self, session: Session) -> None:
        """Forget a session."""

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

    def publish_internal(self, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        """Publish on behalf of the broker."""

    def retain(self, message: Message) -> None:
        """A message has become the retained one of its topic."""

    # ---------------------------------------------------------------- backpressure

    current: Connection | None
    """Whose bytes are being handled."""

    def hold_publishers(self, slow: Connection) -> None:
        """Do not read the present publisher until `slow` has caught up."""

    def watched(self, slow: Connection) -> bool:
        """Whether publishers may wait for `slow`."""

    def hold_publisher(self, reason: object) -> None:
        """Do not read the present publisher until `release_publishers(reason)`."""

    def hold(self, source: Connection, reason: object) -> None:
        """Do not read `source` until `release_publishers(reason)`."""

    def release_publishers(self, slow: object) -> None:
        """Read the publishers again that waited for `slow` alone."""
