"""The connections of a leg: two to the foreign broker, and one to this broker that has no socket.
They decide nothing."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from mqttree.broker.core.connection import Connection
from mqttree.broker.core.session_owner import LEG_LISTENER
from mqttree.broker.io.driver import Driver
from mqttree.broker.io.tls import describe_error
from mqttree.broker.leg.backoff import CLOSED

HIGH_WATER = 256 * 1024
"""bytes that may wait for the foreign broker before this one sends no more."""


class ConnectionOwner(Protocol):
    """Hears of the connections: the driver of a leg."""

    driver: Driver

    def on_dialled(self, protocol: ForeignProtocol, /) -> None:
        """The connection to the foreign broker stands."""

    def foreign_received(self, data: bytes, /) -> None:
        """Bytes of the foreign broker have come."""

    def foreign_lost(self, protocol: ForeignProtocol, why: str, /) -> None:
        """A connection to the foreign broker has ended, for the reason `why`."""

    def foreign_full(self, full: bool, /) -> None:
        """The foreign broker takes no more for now, or goes on."""

    def here_received(self, data: bytes, /) -> None:
        """Bytes of this broker have come."""

    def here_lost(self, transport: HereTransport, why: str, /) -> None:
        """This broker has closed its connection, for the reason `why`."""

    def pace(self) -> None:
        """Whether this broker wants to read more has changed."""


class SyncOwner(Protocol):
    """Hears of the second connection."""

    def sync_dialled(self, protocol: SyncProtocol, /) -> None:
        """It stands."""

    def sync_received(self, protocol: SyncProtocol, data: bytes, /) -> None:
        """Bytes have come on it."""

    def sync_lost(self, protocol: SyncProtocol, why: str, /) -> None:
        """It has ended, for the reason `why`."""


class ForeignProtocol(asyncio.Protocol):
    """The connection to the foreign broker."""

    def __init__(self, leg: ConnectionOwner) -> None:
        self._leg = leg
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tell the leg that it stands."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(HIGH_WATER)
        self._leg.on_dialled(self)

    def data_received(self, data: bytes) -> None:
        """Give the leg the bytes."""
        self._leg.foreign_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the leg that it has ended."""
        self._leg.foreign_lost(self, CLOSED if exc is None else describe_error(exc))

    def pause_writing(self) -> None:
        """Have this broker send no more."""
        self._leg.foreign_full(True)

    def resume_writing(self) -> None:
        """Have it go on."""
        self._leg.foreign_full(False)


class SyncProtocol(asyncio.Protocol):
    """The second connection to the foreign broker, on which its retained messages are read."""

    def __init__(self, leg: SyncOwner) -> None:
        self._leg = leg
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tell the leg that it stands."""
        self.transport = cast(asyncio.Transport, transport)
        self._leg.sync_dialled(self)

    def data_received(self, data: bytes) -> None:
        """Give the leg the bytes."""
        self._leg.sync_received(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the leg that it has ended."""
        self._leg.sync_lost(self, "it closes" if exc is None else describe_error(exc))


class HereTransport:
    """The transport of the leg's connection to this broker. What the node writes reaches the leg in
    the next turn, as the node is in the middle of something."""

    def __init__(self, leg: ConnectionOwner, name: str) -> None:
        """`leg`: its driver; `name`: of the leg."""
        self._leg = leg
        self._written: list[bytes] = []
        self._over = False
        self.held = False
        """Whether this broker wants no more of the foreign one for now."""
        driver = leg.driver
        self.conn: Connection = driver.node.connection_registry.made(
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
