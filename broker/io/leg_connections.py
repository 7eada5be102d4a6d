"""The connections of a leg: two to the foreign broker, and one to this broker that has no socket.
They decide nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from mqttree.broker.core.connection import Connection
from mqttree.broker.core.session_owner import LEG_LISTENER
from mqttree.broker.io.driver import Driver
from mqttree.broker.io.tls import describe_error
from mqttree.broker.leg.backoff import CLOSED, RESET

HIGH_WATER = 256 * 1024
"""bytes that may wait for the foreign broker before this one sends no more."""


class ForeignProtocol(asyncio.Protocol):
    """A connection to the foreign broker."""

    def __init__(
        self,
        made: Callable[[ForeignProtocol], None],
        received: Callable[[ForeignProtocol, bytes], None],
        lost: Callable[[ForeignProtocol, str], None],
        full: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """What hears of it: that it stands (`made`), of bytes (`received`), why it has ended
        (`lost`), and that the foreign broker takes no more for now, or goes on (`full`)."""
        self._made, self._received, self._lost, self._full = made, received, lost, full
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tell the leg that it stands."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(HIGH_WATER)
        self._made(self)

    def data_received(self, data: bytes) -> None:
        """Give the leg the bytes."""
        self._received(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the leg that it has ended."""
        if isinstance(exc, ConnectionResetError | BrokenPipeError):
            self._lost(self, RESET)
        else:
            self._lost(self, CLOSED if exc is None else describe_error(exc))

    def pause_writing(self) -> None:
        """Have this broker send no more."""
        self._full(True)

    def resume_writing(self) -> None:
        """Have it go on."""
        self._full(False)


class HereTransport:
    """The transport of the leg's connection to this broker. What the node writes reaches the leg in
    the next turn, as the node is in the middle of something."""

    def __init__(
        self,
        driver: Driver,
        name: str,
        received: Callable[[bytes], None] = lambda _: None,
        lost: Callable[[HereTransport, str], None] = lambda *_: None,
        pace: Callable[[], None] = lambda: None,
    ) -> None:
        """`driver`: of this broker's node; `name`: of the leg. What hears of it: of bytes
        (`received`), why this broker has closed it (`lost`), and that this broker wants to read
        more, or no more (`pace`)."""
        self._driver = driver
        self._received, self._lost, self._pace = received, lost, pace
        self._written: list[bytes] = []
        self._over = False
        self.held = False
        """Whether this broker wants no more of the foreign one for now."""
        self.conn: Connection = driver.node.connection_registry.made(
            f"leg {name}", LEG_LISTENER, self, driver.time()
        )

    def leave(self) -> None:
        """End the connection from the leg's side: the session stays."""
        self._over = True
        driver = self._driver
        driver.node.connection_lost(self.conn, "the leg is down", driver.time())
        driver.wake()

    def _hand_over(self) -> None:
        if not self._over and self._written:
            data = b"".join(self._written)
            self._written.clear()
            self._received(data)

    def _end(self) -> None:
        self._hand_over()
        if not self._over:
            self.leave()
            self._lost(self, "this broker closes its session")

    def write(self, data: bytes) -> None:
        """Pass bytes on to the leg, in the next turn."""
        if not self._written:
            self._driver.loop.call_soon(self._hand_over)
        self._written.append(data)

    def close(self) -> None:
        """Close once all is passed on."""
        self._driver.loop.call_soon(self._end)

    def abort(self) -> None:
        """Close at once."""
        self._driver.loop.call_soon(self._end)

    def pause_reading(self) -> None:
        """Read the foreign broker no further."""
        self.held = True
        self._pace()

    def resume_reading(self) -> None:
        """Read it again."""
        self.held = False
        self._pace()

    def unread(self) -> bool:
        """Nothing waits here."""
        return False

    def unsent(self) -> int:
        """Return the bytes that are not passed on yet."""
        return sum(map(len, self._written))
