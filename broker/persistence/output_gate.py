"""Output of connections that must not be sent before the journal is durable up to some frame
(docs/decisions/0021). Pure.

Nothing overtakes on a connection: its output waits as bytes in their order, each piece with the LSN
of its frame, and LSNs never fall.
"""

from __future__ import annotations

from collections import deque

from mqttree.broker.core.connection import Connection
from mqttree.broker.persistence.limits import PersistenceLimits


class OutputGate:
    """The output that waits, of all connections."""

    def __init__(self, limits: PersistenceLimits) -> None:
        self._most = limits.client_backlog_bytes  # that wait for one connection
        # LSN, connection, output, its bytes, publisher.
        self._held: deque[tuple[int, Connection, list[bytes], int, Connection | None]] = deque()
        # Bytes that wait for each connection, and those of its largest piece.
        self._bytes: dict[Connection, tuple[int, int]] = {}
        # All bytes, and those of them whose connection is gone.
        self._size = 0
        self._orphaned = 0

    def __contains__(self, conn: Connection) -> bool:
        return conn in self._bytes

    def __len__(self) -> int:
        return len(self._held)

    def put(
        self, lsn: int, conn: Connection, outbox: list[bytes], source: Connection | None
    ) -> bool:
        """Keep a copy of an outbox until frame `lsn` is safe. False: it would be too much for one
        connection. The largest piece does not count: a session that goes on, or a new subscription,
        gets in one turn all that there is for it, and a client for which that is too much would be
        closed each time it comes.

        `conn`: whose `outbox` it is, whole packets. `source`: as of `Connection.flush`.
        """
        size = sum(map(len, outbox))
        waiting = self._bytes.get(conn)
        if waiting is None:
            self._bytes[conn] = (size, size)
        else:
            total, largest = waiting[0] + size, max(waiting[1], size)
            if total - largest > self._most:
                return False
            self._bytes[conn] = (total, largest)
        self._size += size
        self._held.append((lsn, conn, outbox.copy(), size, source))
        return True

    def output_of(self, conn: Connection) -> list[bytes]:
        """Return the output that waits for a connection."""
        if conn not in self._bytes:
            return []
        return [chunk for _, other, chunks, _, _ in self._held if other is conn for chunk in chunks]

    def release(self, lsn: int) -> None:
        """Send the output that waited for frames up to `lsn`."""
        while self._held and self._held[0][0] <= lsn:
            self._send(*self._held.popleft())

    def release_links(self, lsn: int) -> None:
        """Send the output of links that waited for frames up to `lsn`."""
        held, self._held = self._held, deque()
        for entry in held:
            if entry[1].link is not None and entry[0] <= lsn:
                self._send(*entry)
            else:
                self._held.append(entry)

    def _send(
        self, lsn: int, conn: Connection, chunks: list[bytes], size: int, source: Connection | None
    ) -> None:
        self._size -= size
        waiting = self._bytes.get(conn)
        if waiting is None:
            self._orphaned -= size
            return
        if waiting[0] > size:
            self._bytes[conn] = (waiting[0] - size, waiting[1])
        else:
            del self._bytes[conn]
        if lsn >= conn.gate:
            conn.gate = 0
        conn.flush(chunks, source)

    def on_closed(self, conn: Connection) -> None:
        """Drop the output of a connection that is closed: on a full disk nothing else would, and
        clients try again and again. The queue is searched when half of it belongs to closed
        connections, so that the cost for each is small however many there are."""
        self._orphaned += self._bytes.pop(conn, (0, 0))[0]
        if 2 * self._orphaned > self._size:
            self._held = deque(entry for entry in self._held if entry[1] in self._bytes)
            self._size -= self._orphaned
            self._orphaned = 0
