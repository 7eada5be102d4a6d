"""The driver of a leg: it carries out what the leg asks for, and tells it what happens. It decides
nothing; the leg does."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mqttree.broker.base.log_format import log_line
from mqttree.broker.base.rate_limit import Budget
from mqttree.broker.config.leg_options import LegModel
from mqttree.broker.io.driver import Driver
from mqttree.broker.io.leg_connections import ForeignProtocol, HereTransport
from mqttree.broker.io.leg_report import drops_of, leg_report
from mqttree.broker.io.leg_retained import RetainedHere
from mqttree.broker.io.leg_watch import LegWatch, own_broker
from mqttree.broker.io.tls import describe_error
from mqttree.broker.leg.backoff import OWN_PAUSE
from mqttree.broker.leg.effects import (
    Close,
    DialForeign,
    Enter,
    LegEffect,
    Log,
    Prepare,
    RetainHere,
    ToForeign,
    ToHere,
    TryAddress,
)
from mqttree.broker.leg.leg import PATIENCE, Leg
from mqttree.broker.leg.leg_settings import LegSettings
from mqttree.broker.leg.leg_states import CROSSES, State
from mqttree.broker.leg.marks import Federation
from mqttree.broker.leg.retained_exchange import RetainedExchange
from mqttree.broker.leg.session_pair import LocalSession

if TYPE_CHECKING:
    from mqttree.broker.core.session import Session


class LegDriver:
    """Runs one leg beside the node of a `Driver`, in its event loop."""

    def __init__(
        self,
        driver: Driver,
        settings: LegSettings,
        model: LegModel,
        context: ssl.SSLContext | None,
    ) -> None:
        """`driver`: of this broker's node; `settings`: of the leg; `model`: the options that these
        were made of; `context`: of TLS, None: without."""
        self.driver = driver
        self.settings = settings
        now = driver.time()
        node = driver.node
        cluster = node.cluster
        federation = Federation(node.config.id, cluster.knows)
        self._rng = random.Random()
        self._retained = RetainedHere(driver.node, settings.session)
        self._exchange = RetainedExchange(settings, self._retained, self._rng)
        self.leg = Leg(settings, self._exchange, self._rng, now, federation, standby=True)
        self._sync: ForeignProtocol | None = None
        self._sync_dialling: asyncio.Task[None] | None = None
        self._sync_reads = True
        self._place = 0  # which address was dialled
        self._model = model
        self._context = context
        self._foreign: ForeignProtocol | None = None
        self._here: HereTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ticks_at = 0.0  # s
        self._dialling: asyncio.Task[None] | None = None
        self._trying: asyncio.Task[None] | None = None
        self._reads = True
        self._full = False  # the foreign broker takes no more for now
        self._budget: Budget | None = None
        if rate := model.max_rate:
            self._budget = Budget(max(1.0, rate / 10), rate, now)
        self._sent = 0  # messages that the budget knows of
        self._slowed: asyncio.TimerHandle | None = None
        self._watch = LegWatch(settings.name)

    @property
    def session(self) -> Session | None:
        """The session here."""
        return self.driver.node.sessions.get(self.settings.session)

    def attach(self) -> None:
        """Hear of retained messages that the leg publishes here, as its options are in force."""
        self.driver.node.retained_watchers[self.settings.session] = self._exchange.on_published_here

    def take_turn(self, *, heir: bool) -> None:
        """Begin to dial. `heir`: another gateway of this name may have done so before."""
        self.leg.take_turn(self.driver.time(), heir=heir)
        self.act()

    def stand_by(self, why: str) -> None:
        """Leave, as another gateway of this name is active; `why`: for the log."""
        self.leg.stand_by(why, self.driver.time())
        self.act()

    def stop(self) -> None:
        """End the leg: say goodbye to the foreign broker; both sessions stay."""
        self.leg.stop(self.driver.time())
        self.act()
        for task in (self._dialling, self._trying, self._sync_dialling):
            if task is not None:
                task.cancel()
        if self._slowed is not None:
            self._slowed.cancel()

    # ---------------------------------------------------------------- once a second

    def look(self) -> None:
        """Look at what nothing reports (`LegWatch`). To be called about once a second."""
        self.bound_queue()
        session = self.session
        if session is not None:
            self._watch.look_at_queue(session)
        leg = self.leg
        self._watch.look_at_drops(drops_of(leg, session), leg.counters.connects)
        if self.leg.state in CROSSES and self._foreign is not None:
            node, transport = self.driver.node, self._foreign.transport
            own = own_broker(node, self.settings.client_id, transport, self.driver.time())
            if own:
                self.on_lost(f"{self.leg.address} is {own}, and no foreign one", OWN_PAUSE)

    def bound_queue(self) -> None:
        """Give the session here the queue of a leg."""
        session = self.session
        if session is not None:
            session.max_queued = self._model.max_queued
            session.max_queued_bytes = self._model.max_queued_bytes

    def report(self) -> dict[str, Any]:
        """Return the leg's state, for people and programs."""
        url, now = str(self._model.url), self.driver.time()
        return leg_report(self.leg, self._exchange, self.session, url, now)

    def _tick(self) -> None:
        self._timer = None
        session = self.session
        self.leg.waiting = 0 if session is None else len(session.queue) + len(session.inflight)
        self.leg.tick(self.driver.time())
        self.act()

    # ---------------------------------------------------------------- effects

    def act(self) -> None:
        """Carry out what the leg asks for, and arm the timer."""
        while effects := self.leg.take_effects():
            for effect in effects:
                self._do(effect)
        if self._reads != self.leg.reads:
            self._reads = self.leg.reads
            self.pace()
        if self._sync is not None and self._sync_reads != self._exchange.reads:
            self._sync_reads = not self._sync_reads
            with contextlib.suppress(RuntimeError):
                if self._sync_reads:
                    self._sync.transport.resume_reading()
                else:
                    self._sync.transport.pause_reading()
        self._arm()

    def _arm(self) -> None:
        """Have the leg ticked when it is due. A timer that comes earlier stays, as most acts move
        the deadline a little further: the tick then does nothing but arm the next one."""
        due, timer = self.leg.next_deadline(), self._timer
        if timer is not None:
            if due is not None and self._ticks_at <= due:
                return
            timer.cancel()
            self._timer = None
        if due is None:
            return
        self._ticks_at = due
        wait = max(0.0, due - self.driver.time())
        self._timer = self.driver.loop.call_later(wait + 0.0005, self._tick)

    def _do(self, effect: LegEffect) -> None:
        match effect:
            case ToForeign(data, sync=sync):
                connection = self._sync if sync else self._foreign
                if connection is not None:
                    connection.transport.write(data)
            case ToHere(data):
                self._to_here(self._here, data)
            case DialForeign(sync=True):
                self._sync_dialling = self.driver.loop.create_task(self._dial_sync())
            case DialForeign(place):
                if self._dialling is not None:
                    self._dialling.cancel()
                self._place = place
                self._dialling = self.driver.loop.create_task(self._dial(place))
            case TryAddress(place):
                self._trying = self.driver.loop.create_task(self._try(place))
            case Prepare():
                self._prepare(effect)
            case Enter():
                self._here = HereTransport(
                    self.driver,
                    self.settings.name,
                    self.here_received,
                    self.here_lost,
                    self.pace,
                )
            case Close(sync=True):
                self._close_sync()
            case Close():
                self._close()
            case Log(level, text):
                log_line(level, text)
            case RetainHere(message):
                self._retained.publish(message, self.driver.time())
                self.driver.wake()

    def _prepare(self, effect: Prepare) -> None:
        session = self.session
        if session is None or any(f not in session.subscriptions for f in effect.filters):
            self._to_here(HereTransport(self.driver, self.settings.name), effect.data)
            self.bound_queue()

    def _to_here(self, transport: HereTransport | None, data: bytes) -> None:
        if transport is not None:
            transport.conn.receive(data, self.driver.time())
            self.driver.wake(transport.conn)

    def _close_sync(self) -> None:
        connection, self._sync = self._sync, None
        if connection is not None:
            connection.transport.close()

    def _close(self) -> None:
        foreign, self._foreign = self._foreign, None
        here, self._here = self._here, None
        if foreign is not None:
            foreign.transport.close()
        if here is not None:
            here.leave()

    async def _dial(self, place: int) -> None:
        try:
            self.leg.password = self._model.password()
            await self._connect(place, self.foreign_protocol)
        except (OSError, TimeoutError, ValueError, OverflowError) as error:
            if self._foreign is None:
                self._dialling = None
                self.on_lost(describe_error(error) or "timed out")

    async def _dial_sync(self) -> None:
        try:
            self._exchange.sync.password = self._model.password()
            await self._connect(self._place, self.sync_protocol)
        except (OSError, TimeoutError, ValueError, OverflowError) as error:
            if self._sync is None:
                self.sync_lost(None, describe_error(error) or "timed out")

    def foreign_protocol(self) -> ForeignProtocol:
        """Return what serves a new connection to the foreign broker."""
        return ForeignProtocol(
            self.on_dialled, self.foreign_received, self.foreign_lost, self.foreign_full
        )

    def sync_protocol(self) -> ForeignProtocol:
        """Return what serves a new second connection, on which retained messages are read."""
        return ForeignProtocol(self.sync_dialled, self.sync_received, self.sync_lost)

    async def _connect(self, place: int, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Open a connection to an address (`place`) of the foreign broker. Raises OSError and
        TimeoutError."""
        url = self._model.urls[place]
        name = None if self._context is None else url.host
        dialling = self.driver.loop.create_connection(
            protocol, url.host, url.port, ssl=self._context, server_hostname=name
        )
        await asyncio.wait_for(dialling, PATIENCE / 2)

    async def _try(self, place: int) -> None:
        url = self._model.urls[place]
        with contextlib.suppress(OSError, TimeoutError, OverflowError):
            dialling = self.driver.loop.create_connection(asyncio.Protocol, url.host, url.port)
            transport, _ = await asyncio.wait_for(dialling, PATIENCE / 2)
            transport.close()
            self.on_tried(place)

    # ---------------------------------------------------------------- what happens

    def on_tried(self, place: int) -> None:
        """Note that an address (`place`) answers."""
        self.leg.on_answer(place, self.driver.time())
        self.act()

    def on_dialled(self, protocol: ForeignProtocol) -> None:
        """Take the connection to the foreign broker, which stands."""
        self._foreign, self._dialling, self._full = protocol, None, False
        self._retained.full = False
        self.leg.on_dialled(self._local_session(), self.driver.time())
        self.act()

    def _local_session(self) -> LocalSession | None:
        session = self.session
        if session is None:
            return None
        return LocalSession(
            {f: each.qos for f, each in session.subscriptions.items()},
            tuple(session.incoming),
            tuple(number for number in session.inflight if session.qos_in_flight(number) == 2),
        )

    def sync_dialled(self, protocol: ForeignProtocol) -> None:
        """Take the second connection to the foreign broker, which stands."""
        self._sync, self._sync_reads = protocol, True
        self._exchange.sync.on_dialled(self.driver.time())
        self.act()

    def sync_received(self, protocol: ForeignProtocol, data: bytes) -> None:
        """Take bytes of the foreign broker on its second connection."""
        if protocol is self._sync:
            self._exchange.sync_received(data, self.driver.time())
            self.act()

    def sync_lost(self, protocol: ForeignProtocol | None, why: str) -> None:
        """Note that the second connection has ended, for the reason `why`, or (None) could not be
        opened."""
        if protocol is self._sync:
            self._sync = None
            self._exchange.sync_lost(why, self.driver.time())
            self.act()

    def on_lost(self, why: str, least: float = 0.0) -> None:
        """Note that one of the connections has ended, or could not be opened. `why`: for the log;
        `least`: s until the next dial at least."""
        self.leg.on_lost(why, self.driver.time(), least)
        self.act()

    def foreign_received(self, _protocol: ForeignProtocol, data: bytes) -> None:
        """Take bytes of the foreign broker."""
        self.leg.foreign_received(data, self.driver.time())
        self.act()

    def foreign_lost(self, protocol: ForeignProtocol, why: str) -> None:
        """Note that a connection to the foreign broker has ended, for the reason `why`."""
        if protocol is self._foreign:
            self._foreign = None
            self.on_lost(why)

    def foreign_full(self, full: bool) -> None:
        """Have this broker send no more, or go on."""
        self._full = self._retained.full = full
        self._let_out()

    def _let_out(self) -> None:
        """Have this broker send, unless the foreign one takes no more or the rate is spent."""
        if self._here is not None:
            if self._full or self._slowed is not None:
                self._here.conn.pause()
            else:
                self._here.conn.writable(self.driver.time())
                self.driver.wake()

    def _spend(self, budget: Budget) -> None:
        """Count what went out against the rate; wait while that is spent."""
        sent, self._sent = self.leg.messages_out - self._sent, self.leg.messages_out
        budget.earn(self.driver.time())
        budget.left -= sent
        if budget.left < 0 and self._slowed is None:
            wait = -budget.left / self._model.max_rate
            self._slowed = self.driver.loop.call_later(wait, self._resume)
            self._let_out()

    def _resume(self) -> None:
        self._slowed = None
        self._let_out()

    def here_received(self, data: bytes) -> None:
        """Take bytes of this broker."""
        if self.leg.state is State.ENTERING:
            self.bound_queue()
            self.leg.entered = self._local_session()
        self.leg.here_received(data, self.driver.time())
        self.act()
        if self._budget is not None:
            self._spend(self._budget)

    def here_lost(self, transport: HereTransport, why: str) -> None:
        """Note that this broker has closed its connection, for the reason `why`."""
        if transport is self._here:
            self._here = None
            self.on_lost(why)

    def pace(self) -> None:
        """Read the foreign broker, unless the leg or this broker does not want more now."""
        if self._foreign is not None:
            held = self._here is not None and self._here.held
            with contextlib.suppress(RuntimeError):
                if held or not self._reads:
                    self._foreign.transport.pause_reading()
                else:
                    self._foreign.transport.resume_reading()
