"""asyncio protocols around a `Node`: bytes, flush, deadline; no decisions."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from broker.base.timers import NEVER, Deadline
from broker.core.connection import Connection
from broker.io.epoll_transport import HIGH_WATER, EpollTransport, in_kernel, unacknowledged
from broker.io.proxy_protocol import ProxiedCertificate, ProxyHeader

if TYPE_CHECKING:
    from broker.base.counters import Counters
    from broker.base.limits import Limits
    from broker.base.turns import Turns
    from broker.core.effects import Dial
    from broker.node import Node


CHORES_PERIOD = 0.02
"""s between two times that chores are done, if there are turns: as often as memory is counted at
most."""

WENT_ON = 1.0
"""s after a stop of the process in which new connections may have waited in the kernel during
it."""


class Driver:
    """Runs `node` in the event loop `loop`: flushes once in each turn of the loop, and ticks at the
    node's deadline. `on_effects` is called when the node has effects."""

    def __init__(
        self, node: Node, loop: asyncio.AbstractEventLoop, on_effects: Callable[[], None]
    ) -> None:
        self.node = node
        self.limits: Limits = node.limits
        self.counters: Counters = node.counters
        self.turns: Turns = node.turns
        self.turn_time = node.limits.turn_time
        self.loop = loop
        # The clock of both loops in ns: uvloop rounds its time to ms, too coarse for round trips.
        self.time = time.monotonic
        self._on_effects = on_effects
        self.flushing = False
        self._deadline: Deadline = node.deadline
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self.stopped = False
        self._poller: EpollTransport | None = None
        # When a stop of the process was last noticed (s).
        self._went_on = -WENT_ON
        # When the garbage collector is due (s); never in a process that is not only a broker.
        self.collect_at = NEVER
        # When chores are due (s), and the CPU time of this thread when they were done last (s).
        self.chores_at = 0.0
        self._worked = time.thread_time()

    def went_on(self, now: float) -> bool:
        """Return whether this process was stopped until a moment before `now` (s), for so long that
        clients may have gone elsewhere."""
        if now > self._timer_at + self.limits.move_time:
            self._went_on = now
        return now < self._went_on + WENT_ON

    def chores(self, now: float) -> None:
        """Do what is to be done now and then while there are turns: tell the node how long it has
        worked, and run the garbage collector over new objects (it ignores those of before the
        start). `now`: s."""
        self.chores_at = now + CHORES_PERIOD
        worked = time.thread_time()
        self.node.worked(worked - self._worked)
        self._worked = worked
        if now >= self.collect_at:
            self.collect_at = now + self.limits.collect
            gc.collect(1)

    @property
    def poller(self) -> EpollTransport:
        """The epoll transport, made at its first use."""
        if self._poller is None:
            self._poller = EpollTransport(self)
        return self._poller

    def wake(self, source: Connection | None = None) -> None:
        """Plan a flush for the end of this turn of the loop, however many connections were read in
        it.

        While a subscriber or link is behind, flush at once too, so that the publisher that was just
        read is the one that is paused.
        """
        if self.node.paused:
            self.node.flush(source)
        if not self.flushing:
            self.flushing = True
            self.loop.call_soon(self.run)

    def run(self) -> None:
        """End a turn in which `EpollTransport` may not have looked for connections that were
        closed."""
        now = self.time()
        poller = self._poller
        if poller is not None and now > poller.due:
            poller.look(now)
        self.end_turn()
        if now >= self.chores_at:
            self.chores(now)

    def end_turn(self) -> None:
        """Flush, hand out effects, arm the timer."""
        self.flushing = False
        node = self.node
        node.flush()
        if node.effects:
            self._on_effects()
            if node.dirty:
                node.flush()
        self.turns.work = 0
        if self._deadline.at < self._timer_at and not self.stopped:
            self._arm()

    def _arm(self) -> None:
        """Have the node called at its deadline."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._deadline.at
        # uvloop rounds to ms, possibly down.
        self._timer = self.loop.call_at(self._timer_at + 0.0005, self._tick)

    def _tick(self) -> None:
        began = self.time()
        self.went_on(began)
        self._timer = None
        self._timer_at = NEVER
        self.node.tick(began)
        self.run()
        self.turns.took(self.time() - began)

    def stop(self) -> None:
        """End the ticks of the node."""
        self.stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._timer_at = NEVER
        if self._poller is not None:
            self._poller.close()
            self._poller = None


class StreamProtocol(asyncio.Protocol):
    """One TCP, TLS or Unix connection, accepted at the listener named `listener` or dialled for the
    effect `dial`. Also the node's `Transport` for it.

    `driver` runs the node. `on_open`: called when the connection is open, returns False to close
    it. `on_close`: called when it has ended. `proxied`: its PROXY header, None without one.
    """

    __slots__ = (
        "_asked",
        "_on_close",
        "_on_open",
        "_proxied",
        "conn",
        "dial",
        "driver",
        "listener",
        "transport",
        "write",
    )

    def __init__(
        self,
        driver: Driver,
        listener: str,
        dial: Dial | None = None,
        on_open: Callable[[StreamProtocol], bool] | None = None,
        on_close: Callable[[StreamProtocol], None] | None = None,
        proxied: ProxyHeader | None = None,
    ) -> None:
        self.driver = driver
        self.listener = listener
        self.dial = dial
        self.conn: Connection | None = None
        self._on_open = on_open
        self._on_close = on_close
        self._proxied = proxied
        self._asked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tell the node of the connection."""
        # uvloop has classes of its own.
        transport = cast(asyncio.Transport, transport)
        self.transport = transport
        self.write = transport.write
        transport.set_write_buffer_limits(HIGH_WATER)
        if self._on_open is not None and not self._on_open(self):
            transport.abort()
            return
        driver = self.driver
        peer, secure = describe(transport, self._proxied)
        kind = "in" if self.dial is None else "out"
        self.conn = driver.node.connection_made(
            kind, peer, self.listener, self, driver.time(), self.dial
        )
        self.conn.secure = secure
        driver.wake()

    def data_received(self, data: bytes) -> None:
        """Give the node the bytes."""
        conn = self.conn
        if conn is not None:
            driver = self.driver
            began = driver.time()
            conn.receive(data, began)
            if not driver.flushing or driver.node.paused:
                driver.wake(conn)
            if driver.time() - began > driver.turn_time:
                self._rest()

    def _rest(self) -> None:
        """Read no more of this connection in this turn of the loop: handling its bytes took long,
        and others wait."""
        self.pause_reading()
        self.driver.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        conn = self.conn
        if conn is not None and not (conn.held or conn.closed):
            self.resume_reading()

    def eof_received(self) -> bool:
        """Close the connection: a half-closed one is not kept."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the node that the connection has ended."""
        if self._on_close is not None:
            self._on_close(self)
        if self.conn is not None:
            reason = "closed by peer" if exc is None else (str(exc) or type(exc).__name__)
            self.driver.node.connection_lost(self.conn, reason, self.driver.time())
            self.driver.wake()
            if self.dial is None:
                # See `Node.connection_lost`.
                self.conn = None

    def pause_writing(self) -> None:
        """Tell the node that the transport's buffer is full."""
        if self.conn is not None:
            self.conn.pause()

    def resume_writing(self) -> None:
        """Tell the node that there is room again."""
        if self.conn is not None:
            self.conn.writable(self.driver.time())
            self.driver.wake()

    def close(self) -> None:
        """Close once all bytes have gone out. After an error: close the connection for writing, and
        read on for a while, so that the peer gets to read the reason (TLS knows no half-closed
        connections)."""
        transport = self.transport
        if isinstance(transport.get_protocol(), Lingering):
            return
        if (
            self.conn is not None
            and self.conn.linger
            and transport.can_write_eof()
            and not transport.is_closing()
        ):
            transport.set_protocol(Lingering(self, transport, self.driver.loop))
            self.resume_reading()
            transport.write_eof()
        else:
            transport.close()

    def abort(self) -> None:
        """Close the connection at once; what has not gone out is lost."""
        self.transport.abort()

    def pause_reading(self) -> None:
        """Stop reading. A transport that is closing raises RuntimeError, which is ignored here and
        below."""
        with suppress(RuntimeError):
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the peer again after `pause_reading`."""
        with suppress(RuntimeError):
            self.transport.resume_reading()

    def unread(self) -> bool:
        """Return whether there may be more to read: the first time always, as bytes that TLS has
        decrypted may come in a later turn of the loop."""
        first, self._asked = not self._asked, True
        return not self.transport.is_closing() and (first or kernel_holds(self.transport))

    def unsent(self) -> int:
        """Return the bytes that the peer's system has not taken yet, with TLS as they go over the
        wire."""
        sock = self.transport.get_extra_info("socket")
        number = -1 if sock is None else sock.fileno()
        return self.transport.get_write_buffer_size() + (
            unacknowledged(number) if number >= 0 else 0
        )


class Lingering(asyncio.Protocol):
    """Replaces the protocol `of` on a `transport` that is being closed: bytes that still come in
    are ignored, and after `Limits.linger` (s, on `loop`) the transport is closed."""

    __slots__ = ("_of", "_timer")

    def __init__(
        self, of: StreamProtocol, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._of = of
        self._timer = loop.call_later(of.driver.limits.linger, transport.close)

    def eof_received(self) -> bool:
        """Close: the peer has read the reason, or is gone."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the node that the connection has ended."""
        self._timer.cancel()
        self._of.connection_lost(exc)

    def pause_writing(self) -> None:
        """Tell the node that the transport's buffer is full."""
        self._of.pause_writing()

    def resume_writing(self) -> None:
        """Tell the node that there is room again."""
        self._of.resume_writing()


def kernel_holds(transport: asyncio.Transport) -> bool:
    """Return whether bytes have come on a connection that the event loop has not read yet."""
    sock = transport.get_extra_info("socket")
    return sock is not None and in_kernel(sock.fileno()) > 0


def describe(transport: asyncio.BaseTransport, proxied: ProxyHeader | None) -> tuple[str, Any]:
    """Return the name of the other end and its TLS object; behind a load balancer, as its PROXY
    header says."""
    secure = transport.get_extra_info("ssl_object")
    if proxied is None:
        return peer_name(transport), secure
    if proxied.common_name is not None:
        secure = ProxiedCertificate(proxied.common_name)
    return proxied.peer or peer_name(transport), secure


def peer_name(transport: asyncio.BaseTransport) -> str:
    """Return HOST:PORT of the other end, or the path of a Unix socket."""
    return socket_name(transport.get_extra_info("peername"))


def socket_name(name: object) -> str:
    """Return a socket's address as HOST:PORT; of a Unix socket its path, or "unix" without one."""
    if isinstance(name, tuple):
        host = f"[{name[0]}]" if ":" in name[0] else name[0]
        return f"{host}:{name[1]}"
    return str(name or "unix")
