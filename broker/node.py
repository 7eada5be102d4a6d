"""A whole broker as one synchronous object: bytes in, bytes out, `now` handed in
(docs/decisions/0001).

It reads no clock, opens no socket and awaits nothing. A driver calls the inputs, then `flush` and
`take_effects`, and `tick` at `next_deadline`. Nothing here raises for what peers send.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.auth.authorization import Access
from broker.auth.enhanced_auth import Method
from broker.base import limits
from broker.base.counters import Counters
from broker.base.log_limit import LogLimit
from broker.base.rate_limit import RateLimit
from broker.base.timer_wheel import TimerWheel
from broker.base.timers import Timer, Timers
from broker.base.turns import Rest, Turns
from broker.cluster.cluster import Cluster
from broker.cluster.link.link import Link
from broker.cluster.retained_sync import kept
from broker.config.node_config import NodeConfig
from broker.core import unsent
from broker.core.access_control import AccessControl
from broker.core.client import Client
from broker.core.client_registry import ClientRegistry
from broker.core.connect import ConnectHandshake
from broker.core.connection import Connection, Transport
from broker.core.connection_states import State
from broker.core.dispatcher import Dispatcher
from broker.core.effect_answers import EffectAnswers
from broker.core.effects import (
    AppendFrame,
    Authenticate,
    AuthorizePublish,
    AuthorizeReceive,
    AuthorizeSubscribe,
    BeginSegment,
    Dial,
    Effect,
    Event,
    Hooks,
    TailRead,
    TailSync,
    TailWrite,
)
from broker.core.memory_limit import MemoryLimit
from broker.core.message import Message
from broker.core.predecessor import Predecessors
from broker.core.retained_feed import RetainedFeeds
from broker.core.retained_store import RetainedStore
from broker.core.session import Session
from broker.core.session_registry import SessionRegistry
from broker.core.shutdown import Shutdown
from broker.core.wills import Wills
from broker.persistence.absent_members import AbsentMembers

if TYPE_CHECKING:
    from broker.cluster.drain import Drain
    from broker.persistence.journal import Journal


GONE_WORK = 5
"""steps for a connection that is gone."""


Log = Callable[[str, str], None]
"""Called with ("debug" | "info" | "warning" | "error", one line)."""


def no_log(level: str, text: str) -> None:
    """Drop log lines."""


class Node:
    """The broker."""

    def __init__(
        self,
        config: NodeConfig,
        now: float,
        wall: float,
        rng: random.Random,
        *,
        hooks: Hooks | None = None,
        log: Log = no_log,
    ) -> None:
        """`now`: s, monotonic; `wall`: the time of day at `now` (s since the epoch)."""
        self.config = config
        self.now = now
        self.rng = rng
        self.log = log
        self.log_limit: LogLimit = LogLimit(self)
        self.timers: Timers = Timers()
        self.schedule: Callable[[float, Callable[[float], None]], Timer] = self.timers.schedule
        self.cancel: Callable[[Timer], None] = self.timers.cancel
        self.hooks = hooks or Hooks()
        self.fast = not self.hooks.every_packet
        self.turns: Turns = Turns(self)
        # connections whose transport holds enough; not 0: flush after every read, see
        # `hold_publishers`
        self.paused = 0
        self.counters: Counters = Counters()
        self.dirty: list[Connection | Session] = []
        # Publishers that were held, and had been read further than was handled.
        self.unheld: deque[Connection] = deque()
        self.ended = 0  # connections whose peer has gone and whose last packets wait for plugins
        self.effects: list[Effect] = []
        self.connections: set[Connection] = set()
        self.checking = 0  # passwords
        self.retained: RetainedStore = RetainedStore(self.counters, config.retained_limit())
        self.feeds: RetainedFeeds = RetainedFeeds(self)
        self.dispatcher: Dispatcher = Dispatcher(self)
        self._compose_clients()
        self.forwarding: list[Link] = []  # links in the live stream
        # Somebody else was there: what is published must be numbered and kept.
        self.federated = False
        self._handshakes: TimerWheel[ConnectHandshake] = TimerWheel(
            self.schedule, self._check_handshake, self.turns.full
        )
        # Slow subscriber (or plugins) -> publishers not read for it.
        self._holding: dict[object, set[Connection]] = {}
        self._hold_timers: dict[object, Timer] = {}
        self.methods: dict[str, Method] = {}
        """Authentication Method -> what begins an exchange; the driver puts them in (they need
        secrets and true randomness)."""
        self.drain: Drain | None = None
        self.journal: Journal | None = None
        self.predecessors: Predecessors = Predecessors(self)
        self.rate: RateLimit | None = (
            RateLimit(config.connection_rate, now) if config.connection_rate else None
        )
        self.cluster: Cluster = Cluster(self, now, wall, rng)
        self.absent_members: AbsentMembers = AbsentMembers(self, self.cluster)
        self.cluster.attach(self.absent_members)
        self.forwarder = self.cluster.forwarder
        self.takeover = self.cluster.takeover
        self.memory: MemoryLimit = MemoryLimit(self)
        self.federated = self.cluster.enabled
        self.shutdown: Shutdown = Shutdown(self, self.cluster.leave)
        self.answers: EffectAnswers = EffectAnswers(self.counters, self.log_limit)
        self._compose_answers()

    def _compose_answers(self) -> None:
        """Say who takes the answers to effects; of the journal, `attach_journal` does."""
        answers = self.answers
        answers.take_once(
            Authenticate, lambda asked, result, now: asked.client.answered(bool(result), now)
        )
        answers.take_once(
            AuthorizePublish,
            lambda asked, result, now: asked.then(bool(result), now),
        )
        answers.take_once(
            AuthorizeSubscribe,
            lambda asked, result, now: asked.then(list(result), now),
        )
        answers.take_once(
            AuthorizeReceive,
            lambda asked, result, now: self.dispatcher.answered(asked, set(result)),
        )
        answers.take_by(Dial, self.cluster.dial_answered)
        tail = self.absent_members.tail
        answers.take_by(TailWrite, tail.written)
        answers.take_by(TailRead, tail.was_read)
        answers.take_by(TailSync, tail.synced)

    def attach_journal(self, journal: Journal) -> None:
        """Have the state of this broker kept by a journal, from now on."""
        self.journal = journal
        self.answers.take_by(AppendFrame, journal.written)
        self.answers.take_by(BeginSegment, journal.begun)

    def _compose_clients(self) -> None:
        """Make what sessions and clients come to, and bind what others ask of it."""
        self.wills: Wills = Wills(self)
        self.session_registry: SessionRegistry = SessionRegistry(self, self.wills)
        self.sessions: dict[str, Session] = self.session_registry.by_client_id
        self.new_session = partial(Session, self)
        self.expire_later = self.session_registry.expire_later
        self.expire = self.session_registry.expire
        self.send_will = self.wills.send
        self.access_control: AccessControl = AccessControl(
            self.config, self.hooks, self.turns, self.dispatcher, self.sessions
        )
        self.permissions = self.access_control.permissions
        self.revoke = self.access_control.revoke
        self.clients: ClientRegistry = ClientRegistry(self, self.wills)
        self.client_refused = self.clients.refused
        self.take_over = self.clients.take_over
        self.redirect = self.clients.redirect

    # ---------------------------------------------------------------- inputs

    def connection_made(
        self,
        kind: str,
        peer: str,
        listener: str,
        transport: Transport,
        now: float,
        dial: Dial | None = None,
    ) -> Connection:
        """A connection was accepted ("in") or a dial succeeded ("out", with its effect). Feed
        `Connection.receive`."""
        self.now = now
        self.counters.connections_accepted += 1
        conn = Connection(self, kind, peer, listener, transport, now)
        self.connections.add(conn)
        if dial is not None:
            self.cluster.dialled(conn, dial, now)
        else:
            conn.owner = handshake = ConnectHandshake(self, conn)
            handshake.timer = self._handshakes.add(handshake, now + self.config.connect_timeout)
        return conn

    def handshake_over(self, handshake: ConnectHandshake) -> None:
        """Note that a connection's CONNECT was accepted or refused, or that it is gone."""
        self._handshakes.discard(handshake.timer, handshake)

    def _check_handshake(self, handshake: ConnectHandshake, now: float) -> None:
        conn = handshake.conn
        if conn.owner is handshake and not conn.closed and not conn.waiting:
            self.counters.connect_timeout += 1
            what = "no CONNECT" if conn.owner.connect is None else "its authentication did not end"
            self.log_limit.line(
                "info",
                what,
                conn.peer,
                f"{conn.peer}: {what} within {self.config.connect_timeout:g} s; closed",
            )
            conn.abort(what)
            self.turns.work += limits.PACKET_WORK

    def connection_lost(self, conn: Connection, reason: str, now: float) -> None:
        """A connection is closed, by whomever; harmless when repeated.

        A client may publish, disconnect and be gone while a plugin is still asked about its first
        message. What it sent counts all the same, its DISCONNECT above all (MQTT-3.14.4-3).
        """
        if (
            conn.state in (State.WAITING, State.WAITING_HELD)
            and (
                isinstance(conn.owner, Client)
                or (isinstance(conn.owner, ConnectHandshake) and conn.owner.in_line)
            )
            and self.ended < limits.MAX_ENDED
        ):
            self.ended += 1
            conn.peer_gone(reason or "closed")
            conn.writable(now)
            return
        self.connection_gone(conn, reason, now)

    def connection_gone(self, conn: Connection, reason: str, now: float) -> None:
        """A connection is closed, and nothing that came on it waits; harmless when repeated."""
        if conn.closed:
            return
        self.now = now
        self.turns.work += GONE_WORK
        if isinstance(conn.owner, Client):
            unsent.lost(conn.owner)
        conn.gone()
        if conn.ended:
            self.ended -= 1
        self.connections.discard(conn)
        self.release_publishers(conn)
        for publishers in self._holding.values():
            publishers.discard(conn)
        if conn.owner is not None:
            conn.owner.lost(reason, now)
        conn.link = None
        if self.journal is not None:
            self.journal.connection_closed(conn)
        conn.owner = conn.conn = None  # free at once, without the garbage collector

    def forget(self, conn: Connection) -> None:
        """Note that a connection that was refused has nothing more to say."""
        if isinstance(conn.owner, ConnectHandshake):
            self.handshake_over(conn.owner)
        conn.owner = None

    def datagram_received(self, data: bytes, source: tuple[str, int], now: float) -> None:
        """A datagram of the discovery group came from `source` (host, port)."""
        self.now = now
        self.cluster.datagram_received(data, source, now)

    def set_wall(self, wall: float, now: float) -> None:
        """Tell the time of day anew (s since the epoch): clocks are set while a broker runs."""
        self.now = now
        self.cluster.membership.set_wall(wall, now)
        step = self.cluster.clock.set_wall(wall, now)
        if self.journal is not None:
            self.journal.clock_set(step)

    def answer(self, effect: Effect, result: Any, now: float) -> None:
        """Give the answer to an effect (see `effects` for what each expects)."""
        self.now = now
        self.answers.answer(effect, result, now)

    def tick(self, now: float) -> None:
        """Do what is due, as much of it as goes into one turn (`turns`); what is left is due at
        once."""
        self.now = now
        self.cluster.awake(now)
        self.timers.fire(now, self.turns.full)
        self.cluster.tick(now)

    # ---------------------------------------------------------------- outputs

    def next_deadline(self) -> float | None:
        """When `tick` is due (s), None when never."""
        due = self.cluster.next_deadline()
        mine = self.timers.next_deadline()
        return mine if due is None or (mine is not None and mine < due) else due

    def flush(self, source: Connection | None = None) -> None:
        """Hand every outbox to its transport, each once; then handle what held publishers had sent
        whose subscribers have caught up.

        `source`: the only connection that was read since the last flush; it is held for subscribers
        that turn out to be too slow. None: several were read, or none.
        """
        self._flush(source)
        while self.unheld:
            conn = self.unheld.popleft()
            conn.go_on(self.now)
            self._flush(conn)
        if self.journal is not None:
            self.journal.seal()

    def withholds(self, conn: Connection) -> bool:
        """Whether something for a connection waits for the journal."""
        return self.journal is not None and self.journal.gates_output(conn)

    def _flush(self, source: Connection | None) -> None:
        while self.dirty:  # closing a slow consumer while flushing may queue wills
            dirty, self.dirty = self.dirty, []
            for outlet in dirty:
                outbox = outlet.outbox
                if outbox:
                    conn = outlet.conn
                    if conn is None:
                        if isinstance(outlet, Session):
                            outlet.miss_runs()
                        outbox.clear()
                    elif conn.gate and self.journal is not None:
                        self.journal.gate_output(conn, outbox, source)
                    else:
                        conn.flush(outbox, source)

    def take_effects(self) -> list[Effect]:
        """Drain what the driver is to do."""
        self.turns.work = 0
        effects, self.effects = self.effects, []
        return effects

    # ---------------------------------------------------------------- messages

    def publish(self, message: Message, source: Connection | None) -> None:
        """Take over an application message that was published here: deliver it here and pass it
        on. `source`: the publisher that waits for slow subscribers and for the journal, None for a
        will and for the broker's own."""
        self.counters.published_single += 1
        if message.retain:
            self.cluster.retained_written(message, source)
        if self.cluster.shares:
            self.cluster.share(self.dispatcher.route(message.topic), message, source)
            return
        self.dispatcher.publish(message, source)
        if self.federated:
            self.cluster.forward(message, source)

    def publish_internal(self, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        """Publish on behalf of the broker; topics that begin with `$` stay here."""
        self.counters.published_internally += 1
        self.publish(Message(topic.encode(), payload, qos, retain, b"", None, None), None)

    def retain(self, message: Message) -> None:
        """Note that a retained message has become its topic's (empty: that it was deleted;
        MQTT-3.3.1-5 to -8)."""
        if self.hooks.events:
            self.event("broker_retained_message", message=kept(message))

    def event(self, name: str, **arguments: Any) -> None:
        """Tell plugins, if one listens to this."""
        if name in self.hooks.events:
            self.effects.append(Event(name, arguments))

    # ---------------------------------------------------------------- access

    def set_access(self, access: Access | None, now: float) -> None:
        """Put users and rules in force, for all from their next packet on; of some thousand clients
        a few ms later, as they take turns. Nobody is disconnected."""
        self.now = now
        self.access_control.put_in_force(access)

    @property
    def access(self) -> Access | None:
        """Users and rules in force; None: the plugins alone have a say."""
        return self.access_control.access

    # ---------------------------------------------------------------- clients

    @property
    def connected(self) -> int:
        """How many clients are connected."""
        return self.clients.connected

    def new_client_id(self) -> str:
        """Make a client id for a client that brought none (MQTT-3.1.3-6)."""
        return f"mqttree-{self.rng.getrandbits(80):020x}"

    def client_came(self, client: Client, now: float) -> None:
        """A client is connected."""
        self.clients.came(client, now)

    def client_gone(self, client: Client) -> None:
        """A client's connection ended. Harmless when repeated."""
        self.clients.gone(client)

    def end_session(self, session: Session, source: Connection | None = None) -> None:
        """Forget a session. `source`: the connection that is answered once that is durable."""
        self.session_registry.end(session, source)

    # ---------------------------------------------------------------- backpressure

    def hold_publishers(self, slow: Connection, source: Connection | None) -> None:
        """Do not read `source` until `slow` has caught up; for a client that is slow at most
        HOLD_TIME without progress, for a link as long as it lives (`LinkAcks` closes one that takes
        nothing)."""
        if source is not None and source is not slow and self.watched(slow):
            self.hold(source, slow)

    def watched(self, slow: Connection) -> bool:
        """Whether publishers may wait for `slow`. It is looked at from now on: they do so until
        HOLD_TIME without progress."""
        if slow not in self._holding and slow.link is None and not slow.stalled:
            slow.waiting_since = self.now
            self._watch_hold(slow)
            self._holding[slow] = set()
        return not slow.stalled

    def hold(self, source: Connection | None, reason: object) -> None:
        """Do not read `source` until `release_publishers(reason)`. A link is read on: those are
        held whose messages it brings."""
        if source is None or source.closed:
            return
        publishers = self._holding.setdefault(reason, set())
        if source.link is not None and not isinstance(reason, Rest):
            self.cluster.remote_flow_control.note(reason, source.link.arrival)
        elif source not in publishers:
            publishers.add(source)
            source.hold()

    def holds(self, source: Connection) -> bool:
        """Whether a connection is not read because somebody is behind."""
        return any(source in publishers for publishers in self._holding.values())

    def _watch_hold(self, slow: Connection) -> None:
        when = slow.waiting_since + limits.HOLD_TIME
        self._hold_timers[slow] = self.schedule(when, lambda now: self._check_hold(slow, now))

    def _check_hold(self, slow: Connection, now: float, *, again: bool = False) -> None:
        if slow.waiting_since + limits.HOLD_TIME > now:
            self._watch_hold(slow)
        elif not again:
            # We may have been stopped: what it has sent meanwhile is read before the next look.
            look = now + limits.HOLD_LOOK
            self._hold_timers[slow] = self.schedule(
                look, lambda now: self._check_hold(slow, now, again=True)
            )
        else:
            slow.stalled = True
            if isinstance(slow.owner, Client):
                self.cluster.session_away(slow.owner.session)
            text = f"{slow.peer} reads too slowly; publishers are no longer paused for it"
            self.log_limit.line("info", "slow subscriber", slow.peer, text)
            self.release_publishers(slow)

    def release_publishers(self, slow: object) -> None:
        """Read the publishers again that waited for `slow` alone."""
        publishers = self._holding.pop(slow, None)
        if publishers is not None:
            self.cluster.remote_flow_control.released(slow)
            if (timer := self._hold_timers.pop(slow, None)) is not None:
                self.cancel(timer)
            for source in publishers:
                if not self.holds(source):
                    source.unhold()

    # ---------------------------------------------------------------- end

    def stop(self, now: float, then: Callable[[], None] = lambda: None) -> None:
        """Say goodbye to everybody: links, announcements, MQTT 5 clients (0x8B). Flush, then close.
        Of very many clients some go in each turn, and for the others everything goes on until
        theirs; nobody else is let in. `then` is called at the end."""
        self.now = now
        self.shutdown.begin(then)

    @property
    def stopping(self) -> bool:
        """Whether this broker is saying goodbye to its clients, and lets nobody else in."""
        return self.shutdown.under_way
