"""A whole broker as one synchronous object: bytes in, bytes out, `now` handed in
(docs/decisions/0001).

It reads no clock, opens no socket and awaits nothing. A driver calls the inputs, then `flush` and
`take_effects`, and `tick` at `next_deadline`. Nothing here raises for what peers send.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from mqttree.broker.auth.authorization import Access
from mqttree.broker.auth.enhanced_auth import Method
from mqttree.broker.base.counters import Counters
from mqttree.broker.base.log_limit import LogLimit
from mqttree.broker.base.rate_limit import RateLimit
from mqttree.broker.base.timers import NEVER, Deadline, Timers
from mqttree.broker.base.turns import Turns
from mqttree.broker.cluster.cluster import Cluster
from mqttree.broker.cluster.link.link import Link
from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.core.access_control import AccessControl
from mqttree.broker.core.bridge import Bridges
from mqttree.broker.core.client import Client
from mqttree.broker.core.client_registry import ClientRegistry
from mqttree.broker.core.connect import ConnectHandshake
from mqttree.broker.core.connection import Connection
from mqttree.broker.core.connection_registry import ConnectionRegistry
from mqttree.broker.core.delivery_queue import DeliveryQueue
from mqttree.broker.core.dispatcher import Dispatcher
from mqttree.broker.core.effect_answers import EffectAnswers, take_questions
from mqttree.broker.core.effects import Dial, Effect, Event, Hooks
from mqttree.broker.core.flow_control import FlowControl
from mqttree.broker.core.memory_limit import MemoryLimit
from mqttree.broker.core.message import Message
from mqttree.broker.core.output import Output
from mqttree.broker.core.ports import NullJournal
from mqttree.broker.core.predecessor import Predecessors
from mqttree.broker.core.publisher import Publisher
from mqttree.broker.core.retained_feed import RetainedFeeds
from mqttree.broker.core.retained_store import RetainedStore
from mqttree.broker.core.session import Session
from mqttree.broker.core.session_registry import SessionRegistry
from mqttree.broker.core.shutdown import Shutdown
from mqttree.broker.core.traffic_meter import TrafficMeter
from mqttree.broker.core.wills import Wills
from mqttree.broker.persistence.absent_members import AbsentMembers
from mqttree.broker.persistence.images import Images
from mqttree.broker.persistence.journal import Journal
from mqttree.broker.persistence.limits import PersistenceLimits

if TYPE_CHECKING:
    from mqttree.broker.cluster.drain import Drain

DEFAULTS = PersistenceLimits()


Log = Callable[[str, str], None]
"""Called with ("debug" | "info" | "warning" | "error", one line)."""


def no_log(level: str, text: str) -> None:
    """Take log lines and drop them, for a node without a log."""


class Node:
    """One broker: puts its parts together, and passes on what its driver gives it."""

    def __init__(
        self,
        config: NodeConfig,
        now: float,
        wall: float,
        rng: random.Random,
        *,
        limits: PersistenceLimits = DEFAULTS,
        hooks: Hooks | None = None,
        log: Log = no_log,
    ) -> None:
        """`config`: this broker's settings; `now`: s, monotonic; `wall`: the time of day at
        `now` (s since the epoch); `rng`: draws ids and delays; `limits`: what bounds its memory
        and its turns; `hooks`: which effects plugins want; `log`: called with a level and a
        line."""
        self.config, self.limits = config, limits
        self.now = now
        self.rng, self.log = rng, log
        self.log_limit: LogLimit = LogLimit(self)
        self.deadline: Deadline = Deadline()
        self.timers: Timers = Timers(self.deadline)
        self.hooks = hooks or Hooks()
        self.fast = not self.hooks.every_packet
        self.turns: Turns = Turns(self)
        # How many transports hold enough. While it is not 0, the driver flushes after each read, so
        # that `hold_publishers` knows the publisher.
        self.paused = 0
        self.large_message = False
        """Whether a packet of LARGE bytes or more has come since the driver last looked."""
        self.counters: Counters = Counters()
        self.effects: list[Effect] = []
        self.flow_control: FlowControl = FlowControl(self)
        self.output: Output = Output(self, self.flow_control.unheld)
        self.dirty: list[Connection | DeliveryQueue] = self.output.dirty
        self.publisher: Publisher = Publisher(self)
        self.checking = 0  # passwords
        self.retained = RetainedStore(self.counters, config.retained_limit(limits), limits=limits)
        self.retained_watchers: dict[str, Callable[[bytes, float], None]] = {}
        """Client id -> called with the topic of each retained message that this client has
        published, and the time (s)."""
        self.feeds: RetainedFeeds = RetainedFeeds(self)
        self.dispatcher: Dispatcher = Dispatcher(self)
        self.traffic: TrafficMeter | None = TrafficMeter(self) if config.topic_rates else None
        self._compose_clients()
        self._compose_connections()
        self.forwarding: list[Link] = []  # the live links
        # Another broker was there: what is published must be numbered and kept.
        self.federated = False
        self.methods: dict[str, Method] = {}
        """Authentication Method -> what begins an exchange; the driver puts them in (they need
        secrets and true randomness)."""
        self.drain: Drain | None = None
        self.journal: Journal | NullJournal = NullJournal()
        self.predecessors: Predecessors = Predecessors(self)
        self.rate: RateLimit | None = (
            RateLimit(config.connection_rate, now) if config.connection_rate else None
        )
        self.cluster: Cluster = Cluster(self, now, wall, rng)
        self.absent_members: AbsentMembers = AbsentMembers(self, self.cluster)
        self.images: Images = Images(self, self.cluster)
        self.cluster.attach(self.absent_members, self.images)
        self.memory: MemoryLimit = MemoryLimit(self)
        self.federated = self.cluster.enabled
        self.shutdown: Shutdown = Shutdown(self, self.cluster.leave)
        self.answers: EffectAnswers = EffectAnswers(self.counters, self.log_limit)
        take_questions(self.answers, self.dispatcher)
        self.answers.take_by(Dial, self.cluster.dial_answered)
        self.absent_members.take_answers(self.answers)

    def attach_journal(self, journal: Journal) -> None:
        """Have the state of this broker kept by a journal, from now on."""
        self.journal = journal
        journal.take_answers(self.answers)

    def record_without_disk(self, now: float) -> None:
        """Have a standby get what a journal would have, from `now` (s) on."""
        if not self.journal.recording:
            journal = Journal(self, self.cluster, self.absent_members, sync=False, disk=False)
            self.attach_journal(journal)
            journal.begin_without_disk(now)

    def forget_state(self) -> None:
        """Forget all sessions and retained messages here; other brokers keep theirs."""
        self.sessions.clear()
        self.retained.clear()

    def _compose_clients(self) -> None:
        """Make what sessions and clients come to."""
        self.wills: Wills = Wills(self)
        self.bridges: Bridges = Bridges(self)
        self.session_registry: SessionRegistry = SessionRegistry(self, self.wills)
        self.sessions: dict[str, Session] = self.session_registry.by_client_id
        self.access_control: AccessControl = AccessControl(self)
        self.clients: ClientRegistry = ClientRegistry(self, self.wills, self.rng)

    def _compose_connections(self) -> None:
        """Make what connections come to."""
        self.connection_registry: ConnectionRegistry = ConnectionRegistry(
            self, self.flow_control, partial(Connection, self), partial(ConnectHandshake, self)
        )
        self.connections: dict[Connection, None] = self.connection_registry.connections

    # ---------------------------------------------------------------- inputs

    def connection_lost(self, conn: Connection, reason: str, now: float) -> None:
        """Note that `conn` is closed, by either side; harmless when repeated. `reason`: for the
        log; `now`: s."""
        self.connection_registry.connection_lost(conn, reason, now)

    def datagram_received(self, data: bytes, source: tuple[str, int], now: float) -> None:
        """Take a datagram (`data`) of the discovery group from `source` (host, port) at `now`
        (s)."""
        self.now = now
        self.cluster.datagram_received(data, source, now)

    def set_wall(self, wall: float, now: float) -> None:
        """Take the time of day `wall` (s since the epoch) at `now` (s): clocks are set while a
        broker runs."""
        self.now = now
        self.journal.clock_set(self.cluster.set_wall(wall, now))

    def answer(self, effect: Effect, result: Any, now: float) -> None:
        """Take the driver's answer `result` to an `effect` (`core.effects` says what each expects)
        at `now` (s)."""
        self.now = now
        self.answers.answer(effect, result, now)

    def on_resumed(self, now: float) -> None:
        """Note that there was no turn for a while until `now` (s), as this process did not run or a
        turn took long. To be called ahead of all that has come meanwhile."""
        self.now = now
        self.cluster.agenda.awake(now)

    def tick(self, now: float) -> None:
        """Do what is due, as much of it as goes into one turn (`turns`); what is left is due at
        once."""
        self.now = now
        self.cluster.agenda.awake(now)
        self.timers.fire(now, self.turns.full)
        self.cluster.tick(now)
        due = self.next_deadline()
        self.deadline.at = NEVER if due is None else due

    # ---------------------------------------------------------------- outputs

    def next_deadline(self) -> float | None:
        """When `tick` is due (s), None when never. `deadline` has the same without asking
        anybody."""
        due = self.cluster.agenda.next_deadline()
        mine = self.timers.next_deadline()
        return mine if due is None or (mine is not None and mine < due) else due

    def take_effects(self) -> list[Effect]:
        """Drain what the driver is to do."""
        self.turns.work = 0
        effects, self.effects = self.effects, []
        return effects

    # ---------------------------------------------------------------- plugins

    def retain(self, message: Message) -> None:
        """Note that a retained message has become its topic's (empty: that it was deleted;
        MQTT-3.3.1-5 to -8)."""
        if self.hooks.events:
            self.event("broker_retained_message", message=message.as_retained())

    def event(self, name: str, **arguments: Any) -> None:
        """Tell plugins, if one listens to this."""
        if name in self.hooks.events:
            self.effects.append(Event(name, arguments))

    # ---------------------------------------------------------------- access

    def set_access(self, access: Access | None, now: float) -> None:
        """Put users and rules in force, for all from their next packet on; of some thousand clients
        a few ms later, as they take turns. No client is disconnected."""
        self.now = now
        self.access_control.put_in_force(access)

    @property
    def access(self) -> Access | None:
        """Users and rules in force; None: the plugins alone have a say."""
        return self.access_control.access

    # ---------------------------------------------------------------- clients

    def client_connected(self, client: Client, now: float) -> None:
        """Count a client that is connected, and note at `now` (s) that it came."""
        self.clients.on_client_connected(client, now)

    def client_disconnected(self, client: Client) -> None:
        """A client's connection ended. Harmless when repeated."""
        self.clients.on_client_disconnected(client)

    def end_session(self, session: Session, source: Connection | None) -> None:
        """Forget a session. `source`: the connection that is answered once that is durable."""
        self.session_registry.end(session, source)

    # ---------------------------------------------------------------- end

    def stop(self, now: float, then: Callable[[], None] = lambda: None) -> None:
        """Disconnect all clients (MQTT 5: 0x8B) and links, and leave the federation. The driver
        flushes, then closes. Of very many clients some go in each turn, and the others are served
        until theirs; no new one is let in. `then` is called at the end."""
        self.now = now
        self.shutdown.begin(then)
