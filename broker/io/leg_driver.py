"""The driver of a leg: the connection to the foreign broker, and one to this broker that has no
socket. It decides nothing; the leg does."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import Callable
from typing import Any, cast

from broker.base.log_format import log_line
from broker.config.broker_url import BrokerUrl
from broker.core.connection import Connection
from broker.core.session_owner import LEG_LISTENER
from broker.io.driver import Driver
from broker.io.interest_driver import InterestDriver
from broker.io.subscription_reader import ReadError, SubscriptionReader
from broker.io.tls import describe_error
from broker.leg.effects import (
    AskInterest,
    Close,
    DialForeign,
    Enter,
    LegEffect,
    Log,
    ToForeign,
    ToHere,
)
from broker.leg.leg import PATIENCE, Leg, LegSettings, LocalSession
from broker.leg.marks import Federation

HIGH_WATER = 256 * 1024
"""bytes that may wait for the foreign broker before this one sends no more."""


class LegDriver:
    """Runs one leg beside the node of a `Driver`, in its event loop."""

    def __init__(
        self,
        driver: Driver,
        settings: LegSettings,
        url: BrokerUrl,
        context: ssl.SSLContext | None,
        password: Callable[[], bytes | None],
        reader: SubscriptionReader | None = None,
    ) -> None:
        """`driver`: of this broker's node; `settings`: of the leg; `url`: of the foreign broker;
        `context`: of TLS, None: without; `password`: returns that of the user there, or raises
        ValueError with one line; it is called for each connection; `reader`: reads what foreign
        clients subscribe to, None: nothing does over HTTP."""
        self.driver = driver
        self.settings = settings
        node = driver.node
        cluster = node.cluster
        federation = Federation(node.config.id, cluster.knows)
        self.leg = Leg(settings, random.Random(), driver.time(), federation)
        self._url = url
        self._context = context
        self._password = password
        self._foreign: ForeignProtocol | None = None
        self._here: HereTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._reads = True
        self._interest = None if reader is None else InterestDriver(reader, self._interest_read)

    def start(self) -> None:
        """Begin to dial."""
        self._tick()

    def stop(self) -> None:
        """End the leg: say goodbye to the foreign broker; both sessions stay."""
        self.leg.stop(self.driver.time())
        self.act()
        if self._dialling is not None:
            self._dialling.cancel()
        if self._interest is not None:
            self._interest.stop()

    def report(self) -> dict[str, Any]:
        """Return the leg's state, for people and programs."""
        leg = self.leg
        counters, interest = leg.counters, leg.interest
        return {
            "name": self.settings.name,
            "broker": str(self._url),
            "state": leg.state.value,
            "mqtt": "5" if leg.version == 5 else "3.1.1",
            "messages_in": leg.messages_in,
            "messages_out": leg.messages_out,
            "dropped": leg.drops(),
            "connects": counters.connects,
            "failures": counters.failures,
            "sessions_lost": counters.sessions_lost,
            "rings": leg.rings,
            "loops": leg.loops,
            "same_broker": leg.same_broker(self.driver.time()),
            **leg.unmatched(),
            "interest_failures": 0 if interest is None else interest.failures,
            "refused_filters": list(counters.refused_filters),
            "last_error": leg.last_error,
            "interest": interest_report(leg),
        }

    def _tick(self) -> None:
        self._timer = None
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
        if self._timer is not None:
            self._timer.cancel()
        due = self.leg.next_deadline()
        if due is not None:
            wait = max(0.0, due - self.driver.time())
            self._timer = self.driver.loop.call_later(wait + 0.0005, self._tick)

    def _do(self, effect: LegEffect) -> None:
        match effect:
            case ToForeign(data):
                if self._foreign is not None:
                    self._foreign.transport.write(data)
            case ToHere(data):
                if self._here is not None:
                    self._here.conn.receive(data, self.driver.time())
                    self.driver.wake(self._here.conn)
            case DialForeign():
                self._dialling = self.driver.loop.create_task(self._dial())
            case Enter():
                self._here = HereTransport(self)
            case AskInterest():
                if self._interest is not None:
                    self._interest.ask(self.driver.loop)
            case Close():
                self._close()
            case Log(level, text):
                log_line(level, text)

    def _close(self) -> None:
        foreign, self._foreign = self._foreign, None
        here, self._here = self._here, None
        if foreign is not None:
            foreign.transport.close()
        if here is not None:
            here.leave()

    async def _dial(self) -> None:
        host, port = self._url.host, self._url.port
        loop = self.driver.loop
        name = None if self._context is None else host
        try:
            self.leg.password = self._password()
            dialling = loop.create_connection(
                lambda: ForeignProtocol(self), host, port, ssl=self._context, server_hostname=name
            )
            await asyncio.wait_for(dialling, PATIENCE / 2)
        except (OSError, TimeoutError, ValueError, OverflowError) as error:
            if self._foreign is None:
                self.lost(describe_error(error) or "timed out")

    # ---------------------------------------------------------------- what happens

    def dialled(self, protocol: ForeignProtocol) -> None:
        """Take the connection to the foreign broker, which stands."""
        self._foreign = protocol
        session = self.driver.node.sessions.get(self.settings.session)
        known = (
            None
            if session is None
            else LocalSession(
                {f: each.qos for f, each in session.subscriptions.items()}, tuple(session.incoming)
            )
        )
        self.leg.dialled(known, self.driver.time())
        self.act()

    def lost(self, why: str) -> None:
        """Note that one of the connections has ended, or could not be opened."""
        self.leg.lost(why, self.driver.time())
        self.act()

    def _interest_read(self, answer: set[str] | ReadError) -> None:
        now = self.driver.time()
        if isinstance(answer, ReadError):
            self.leg.interest_failed(str(answer), now)
        else:
            self.leg.interest_answered(answer, now)
        self.act()

    def foreign_received(self, data: bytes) -> None:
        """Take bytes of the foreign broker."""
        self.leg.foreign_received(data, self.driver.time())
        self.act()

    def foreign_lost(self, protocol: ForeignProtocol, why: str) -> None:
        """Note that a connection to the foreign broker has ended, for the reason `why`."""
        if protocol is self._foreign:
            self._foreign = None
            self.lost(why)

    def foreign_full(self, full: bool) -> None:
        """Have this broker send no more, or go on."""
        if self._here is not None:
            if full:
                self._here.conn.pause()
            else:
                self._here.conn.writable(self.driver.time())
                self.driver.wake()

    def here_received(self, data: bytes) -> None:
        """Take bytes of this broker."""
        self.leg.here_received(data, self.driver.time())
        self.act()

    def here_lost(self, transport: HereTransport, why: str) -> None:
        """Note that this broker has closed its connection, for the reason `why`."""
        if transport is self._here:
            self._here = None
            self.lost(why)

    def pace(self) -> None:
        """Read the foreign broker, unless the leg or this broker does not want more now."""
        if self._foreign is not None:
            held = self._here is not None and self._here.held
            with contextlib.suppress(RuntimeError):
                if held or not self._reads:
                    self._foreign.transport.pause_reading()
                else:
                    self._foreign.transport.resume_reading()


def interest_report(leg: Leg) -> dict[str, Any] | None:
    """Return what is known of the interest of foreign clients, for people and programs; None if it
    is not asked for."""
    interest = leg.interest
    if interest is None:
        return None
    return {
        "source": leg.settings.interest.value,
        "state": interest.state.value,
        "filters": interest.filters,
        "sends_all": leg.sends_all,
        "last_error": interest.last_error,
    }


class ForeignProtocol(asyncio.Protocol):
    """The connection to the foreign broker."""

    def __init__(self, leg: LegDriver) -> None:
        self._leg = leg
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tell the leg that it stands."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(HIGH_WATER)
        self._leg.dialled(self)

    def data_received(self, data: bytes) -> None:
        """Give the leg the bytes."""
        self._leg.foreign_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the leg that it has ended."""
        self._leg.foreign_lost(self, "it closes" if exc is None else describe_error(exc))

    def pause_writing(self) -> None:
        """Have this broker send no more."""
        self._leg.foreign_full(True)

    def resume_writing(self) -> None:
        """Have it go on."""
        self._leg.foreign_full(False)


class HereTransport:
    """The transport of the leg's connection to this broker. What the node writes reaches the leg in
    the next turn, as the node is in the middle of something."""

    def __init__(self, leg: LegDriver) -> None:
        self._leg = leg
        self._written: list[bytes] = []
        self._over = False
        self.held = False
        driver = leg.driver
        name = leg.settings.name
        self.conn: Connection = driver.node.connection_made(
            "in", f"leg {name}", LEG_LISTENER, self, driver.time()
        )

    def leave(self) -> None:
        """End the connection from the leg's side: the session stays."""
        self._over = True
        driver = self._leg.driver
        driver.node.connection_lost(self.conn, "the leg is down", driver.time())
        driver.wake()

    def _hand_over(self) -> None:
        if not self._over and self._written:
            data = b"".join(self._written)
            self._written.clear()
            self._leg.here_received(data)

    def _end(self) -> None:
        self._hand_over()
        if not self._over:
            self.leave()
            self._leg.here_lost(self, "this broker closes its session")

    def write(self, data: bytes) -> None:
        """Pass bytes on to the leg, in the next turn."""
        if not self._written:
            self._leg.driver.loop.call_soon(self._hand_over)
        self._written.append(data)

    def close(self) -> None:
        """Close once all is passed on."""
        self._leg.driver.loop.call_soon(self._end)

    def abort(self) -> None:
        """Close at once."""
        self._leg.driver.loop.call_soon(self._end)

    def pause_reading(self) -> None:
        """Read the foreign broker no further."""
        self.held = True
        self._leg.pace()

    def resume_reading(self) -> None:
        """Read it again."""
        self.held = False
        self._leg.pace()

    def unread(self) -> bool:
        """Nothing waits here."""
        return False

    def unsent(self) -> int:
        """Return the bytes that are not passed on yet."""
        return sum(map(len, self._written))
