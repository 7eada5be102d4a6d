"""Plain TCP and Unix connections of one node, read and written without a transport in between.

One epoll object holds all of them and is itself watched by the event loop. Each time that the loop
finds it readable, every connection with bytes is read once, then every connection with an outbox is
written once: two system calls for a message, and no object of the loop per connection. TLS and
WebSocket go through the loop's own transports (driver.py).

    parked (no place yet) -> open -> closing (the last bytes go out)
                                  or lingering (closed for writing, incoming bytes are ignored)
                                  -> gone

What the node may rely on is what asyncio's transports promise: docs/decisions/0012 lists it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import socket
import termios
from array import array
from collections.abc import Callable
from os import readv, write
from typing import TYPE_CHECKING, Final

from mqttree.broker.core.connection import CLOSE_TIMEOUT_S
from mqttree.broker.io.loop_turns import MAX_READ_S, LoopTurns

if TYPE_CHECKING:
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.effects import Dial

READ_SIZE = 256 * 1024
"""bytes read of one connection in one turn, while the others wait."""

HIGH_WATER = 256 * 1024
"""bytes that the kernel refused and a stream holds, before the node keeps the rest: small, so that
control packets of a link overtake most of the queue."""

EVENTS = 1024
"""connections handled in one turn of the loop, so that its other work gets its turn."""

MAX_TURN = 0.02
"""s; a turn that takes longer ends: connections that were not read or written come first in the
next one, which follows at once. After a stop of the process the turn goes on: all that came
meanwhile is read first."""

STILL = 0.1
"""s without a turn, after which connections that were closed meanwhile are handled first."""

LAST_READS = 64
"""times that such a connection is read in that turn, at most: its end comes behind its bytes."""

PIECES = 1024
"""pieces written by one system call (IOV_MAX)."""

AVAILABLE = hasattr(select, "epoll")
"""Linux. Elsewhere the event loop's transports carry all connections."""

# As Linux numbers them (select.EPOLLIN and so on): elsewhere the names are not there.
IN: Final = 0x1
OUT: Final = 0x4
LEFT: Final = 0x2000
FAILED: Final = 0x18
BROKEN: Final = FAILED | LEFT

PARKED: Final = 0
OPEN: Final = 1
CLOSING: Final = 2
LINGERING: Final = 3
GONE: Final = 4


class EpollTransport:
    """The connections of one driver."""

    __slots__ = (
        "_epoll",
        "_flush_time",
        "_into",
        "_left",
        "_poll",
        "_view",
        "driver",
        "due",
        "streams",
    )

    def __init__(self, driver: LoopTurns) -> None:
        buffer = bytearray(READ_SIZE)
        self.driver = driver
        self.streams: dict[int, EpollStream] = {}
        self._into = (buffer,)
        self._view = memoryview(buffer)
        self._epoll = select.epoll()
        self._poll = self._epoll.poll
        # s; a turn that takes longer flushes before its end.
        self._flush_time = min(MAX_READ_S, STILL)
        self.due = 0.0
        """When `look` is to be called (s), unless a turn begins before."""
        # Connections that the last turn had no time for, and their order.
        self._left: dict[int, int] = {}
        driver.loop.add_reader(self._epoll.fileno(), self.run)

    def close(self) -> None:
        """Abort all connections, and watch none any more; what has not gone out is lost."""
        for stream in list(self.streams.values()):
            stream.abort()
        self.driver.loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def run(self) -> None:
        """Read connections with bytes, write those with room again, then flush."""
        driver = self.driver
        node = driver.node
        clock = driver.time
        streams, into, view = self.streams, self._into, self._view
        # A flush follows at the end of this method.
        driver.flushing = True
        began = now = clock()
        flush_after = began + self._flush_time
        try:
            turn = iter(self._events(now))
            for number, event in turn:
                stream = streams.get(number)
                # It was closed since the poll, because of bytes of another connection.
                if stream is None:
                    continue
                try:
                    if event == IN and stream.reading and stream.state == OPEN:
                        # The same as `_read`, without a call: nearly all events are of this kind.
                        try:
                            size = readv(number, into)
                        except OSError as error:
                            stream.unreadable(error)
                        else:
                            if size:
                                stream.conn.receive(view[:size].tobytes(), now)
                            else:
                                stream.ended()
                    else:
                        if event & OUT:
                            stream.writable(now)
                        if event != OUT:
                            self._read(stream, event, now)
                except Exception as error:
                    self._fault(stream, error)
                now = clock()
                if now > flush_after or node.paused:
                    if now > self.due:
                        self.look(now)
                    # A subscriber or link is behind, and the publisher that was just read is the
                    # one that is paused; or the turn takes long.
                    node.output.flush(getattr(stream, "conn", None) if node.paused else None)
                    flush_after = now + self._flush_time
                    if now - began > MAX_TURN and not driver.went_on(now):
                        self._left = {number: place for place, (number, _) in enumerate(turn)}
        finally:
            driver.end_turn()
            if began >= driver.chores_at:
                driver.chores(began)
            if (seconds := clock() - began) > driver.turns.noted:
                driver.turns.took(seconds)

    def _events(self, now: float) -> list[tuple[int, int]]:
        """Return the events of this turn: first those that the last turn had no time for."""
        was_still, self.due = now > self.due, now + STILL
        events = self._poll(0, EVENTS)
        if was_still:
            self.driver.node.on_resumed(now)
            self.driver.went_on(now)
            events = self._read_ended(events, now)
        if self._left:
            left, self._left = self._left, {}
            events.sort(key=lambda event: left.get(event[0], EVENTS))
        return events

    def look(self, now: float) -> None:
        """Find connections that have been closed, before they are sent anything that has come
        meanwhile. `now`: s."""
        self.due = now + STILL
        self.driver.node.on_resumed(now)
        self._read_ended(self._poll(0, EVENTS), now)

    def _read_ended(self, events: list[tuple[int, int]], now: float) -> list[tuple[int, int]]:
        """Read the connections to their end that were closed while nothing was read (the process
        was stopped), and return the events of the others. What these clients have sent must be
        handled before they are sent anything: it would count as sent to a client that may have got
        it elsewhere (MQTT-4.3.3-1). Neighbours that gave up this broker have sent most, so links
        come last, and connections are read in the order of how little they have sent."""
        ended = [
            stream
            for number, event in events
            if event & BROKEN and (stream := self.streams.get(number)) is not None
        ]
        ended.sort(
            key=lambda stream: (
                stream.state == OPEN and stream.conn.link is not None,
                in_kernel(stream.number),
            )
        )
        for stream in ended:
            try:
                for _ in range(LAST_READS):
                    if not stream.reading or stream.state != OPEN:
                        break
                    self._read(stream, BROKEN, now)
            except Exception as error:
                self._fault(stream, error)
        return [(number, event) for number, event in events if not event & BROKEN]

    def _read(self, stream: EpollStream, event: int, now: float) -> None:
        if not stream.reading:
            # It is paused or closing, possibly only since the poll: the bytes stay in the kernel.
            if event & (BROKEN if stream.state == PARKED else FAILED) and stream.mask:
                how = "closed" if stream.state == PARKED else "reset"
                stream.connection_lost(f"{how} by peer")
            return
        try:
            size = os.readv(stream.number, self._into)
        except OSError as error:
            stream.unreadable(error)
            return
        if not size:
            stream.ended()
        elif stream.state == OPEN:
            stream.conn.receive(self._view[:size].tobytes(), now)

    def read_early(self, stream: EpollStream) -> None:
        """Read a connection out of its turn. Its end is reported later, because the node is in the
        middle of something."""
        node = self.driver.node
        try:
            size = os.readv(stream.number, self._into)
            if size:
                stream.conn.receive(self._view[:size].tobytes(), self.driver.time())
            else:
                stream.ended(told=False)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            stream.fail(error)
        except Exception as error:
            self._fault(stream, error)
        if node.paused:
            node.output.flush(getattr(stream, "conn", None))  # as in `run`

    def _fault(self, stream: EpollStream, error: Exception) -> None:
        """Close the one connection on which a fault of the broker occurred, as the loop's own
        transports do."""
        self.driver.loop.call_exception_handler(
            {"message": f"on the connection of {stream.peer}", "exception": error}
        )
        stream.abort()

    def watch(self, number: int, old: int, new: int) -> None:
        """Watch the file `number` for the events `new` (IN, OUT, LEFT) in place of `old`. A file
        without events is not watched at all: it would still wake the loop when it is reset.

        Raises OSError: the system watches no more files for this user (fs.epoll.max_user_watches).
        """
        if not old:
            self._epoll.register(number, new)
        elif not new:
            self._epoll.unregister(number)
        else:
            self._epoll.modify(number, new)

    def admit(self, stream: EpollStream) -> None:
        """Begin with a connection, and with the bytes that have come already. The caller has the
        driver run."""
        node = self.driver.node
        now = self.driver.time()
        if node.federated and self.driver.went_on(now) and has_left(stream.number):
            # Its client may have connected elsewhere since: this older CONNECT would take the
            # session back.
            self.driver.counters.connections_abandoned += 1
            stream.connection_lost("given up while this broker was stopped")
            return
        try:
            stream.begin(now)
            self._read(stream, IN, now)
            stream.watched()
        except Exception as error:
            self._fault(stream, error)
        if node.paused:
            node.output.flush(getattr(stream, "conn", None))  # as in `run`

    def admit_parked(self, stream: EpollStream) -> None:
        """Begin with a connection that had to wait. It is read in the loop's next turn: if it ended
        at once and gave its place to the next, thousands of them would be a deep recursion."""
        try:
            stream.begin(self.driver.time())
            stream.watched()
        except Exception as error:
            self._fault(stream, error)


class EpollStream:
    """One connection; the node's `Transport` for it."""

    __slots__ = (
        "_leave",
        "_out",
        "_out_size",
        "_timer",
        "conn",
        "dial",
        "listener",
        "mask",
        "number",
        "peer",
        "poller",
        "reading",
        "state",
    )

    # What a compiled class lets go of by `del`.
    __deletable__ = ("conn",)

    conn: Connection

    def __init__(
        self,
        poller: EpollTransport,
        number: int,
        peer: str,
        listener: str,
        leave: Callable[[EpollStream], None] | None = None,
        dial: Dial | None = None,
    ) -> None:
        """`poller`: the transport that it belongs to. `number`: its file, which does not block.
        `peer`: HOST:PORT of the other end. `listener`: the name of its listener. `leave`: called
        once when it is closed. `dial`: the effect that this broker dialled for, None if it was
        accepted."""
        self.poller = poller
        self.number = number
        self.peer = peer
        self.listener = listener
        self.dial = dial
        self.reading = True
        self.state = OPEN
        self.mask = 0
        self._leave = leave
        self._out: list[bytes | memoryview] = []
        self._out_size = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, now: float) -> None:
        """Tell the node of the connection; `now`: s."""
        self.poller.streams[self.number] = self
        node = self.poller.driver.node
        self.conn = node.connection_registry.made(self.peer, self.listener, self, now, self.dial)

    def park(self) -> None:
        """Wait for a place. Nothing is read; if the peer closes, it leaves the queue."""
        self.state = PARKED
        self.reading = False
        self.poller.streams[self.number] = self
        self._watch(LEFT)

    def admitted(self) -> None:
        """Begin: there is a place now."""
        # Else the place is given back when the end has been reported.
        if self.state == PARKED:
            self.state = OPEN
            self.reading = True
            self.poller.admit_parked(self)

    def watched(self) -> None:
        """Watch for the events that are wanted now, and for no others."""
        mask = (IN | LEFT if self.reading else 0) | (OUT if self._out else 0)
        if mask != self.mask:
            self._watch(mask)

    def _watch(self, mask: int) -> None:
        try:
            self.poller.watch(self.number, self.mask, mask)
        except OSError as error:
            self._end(error.strerror or str(error))
        else:
            self.mask = mask

    # ---------------------------------------------------------------- out

    def write(self, data: bytes) -> None:
        """Send bytes; may call `Connection.pause` before it returns. Bytes that come after `close`
        are dropped."""
        if self.state != OPEN:
            return
        if self._out:
            self._out.append(data)
            self._out_size += len(data)
        else:
            try:
                sent = write(self.number, data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                # What a client sent before it went is still read, and then its end.
                if not isinstance(error, ConnectionError) or self.conn.link is not None:
                    self._end(error.strerror or str(error))
                return
            if sent == len(data):
                return
            self._out.append(memoryview(data)[sent:])
            self._out_size = len(data) - sent
            self.watched()
        if self._out_size > HIGH_WATER:
            self.conn.pause()

    def writable(self, now: float) -> None:
        """Send what has waited at `now` (s), as far as the kernel takes it; the node learns when
        there is room again."""
        while self._out:
            try:
                sent = os.writev(self.number, self._out[:PIECES])
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self.connection_lost(error.strerror or str(error))
                return
            if self._sent(sent):
                break
        if self.state == OPEN and self.conn.paused and self._out_size <= HIGH_WATER // 4:
            self.conn.writable(now)
        if self._out or self.state == OPEN:
            self.watched()
        elif self.state == CLOSING:
            self._end("closed" if self.conn.closing else "closed by peer")
        elif self.state == LINGERING:
            self._shut()

    def _sent(self, size: int) -> bool:
        """Drop the first `size` bytes of the output queue; returns whether they end within a piece:
        the socket has no room for more."""
        out = self._out
        self._out_size -= size
        whole = 0
        for piece in out:
            if size < len(piece):
                break
            size -= len(piece)
            whole += 1
        del out[:whole]
        if size:
            out[0] = memoryview(out[0])[size:]
        return size > 0

    def unsent(self) -> int:
        """Return the bytes that the peer's system has not taken yet."""
        return self._out_size + (unacknowledged(self.number) if self.state != GONE else 0)

    # ---------------------------------------------------------------- end

    def close(self) -> None:
        """Close once everything written has gone out. After an error (`Connection.linger`): say
        that nothing more comes, and read on for a while what the peer still sends, so that it gets
        to read why."""
        if self.state != OPEN:
            return
        if self.conn.linger:
            self.state = LINGERING
            self.reading = True
            if not self._out:
                self._shut()
            else:
                self.watched()
        elif self._out:
            self.state = CLOSING
            self.reading = False
            self.watched()
        else:
            self._end("closed")

    def ended(self, *, told: bool = True) -> None:
        """Close the connection, as the peer sends no more; what was written still goes out, if the
        peer takes it. `told`: the node hears of it at once."""
        if self._out:
            self.state = CLOSING
            self.reading = False
            self._later(CLOSE_TIMEOUT_S)
            self.watched()
        elif told:
            self.connection_lost("closed by peer")
        else:
            self._end("closed by peer")

    def _shut(self) -> None:
        """Send the end of the stream; the peer has `linger_s` to end its own."""
        self._later(self.poller.driver.limits.linger_s)
        # Whatever it is: it is not asked for that.
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, self.number)
        try:
            sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._end(error.strerror or str(error))
        else:
            self.watched()
        finally:
            sock.detach()

    def _later(self, delay: float) -> None:
        """Close at the latest in `delay` s."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.poller.driver.loop.call_later(delay, self.abort)

    def abort(self) -> None:
        """Close the connection at once; what has not gone out is lost."""
        self._end("closed")

    def unreadable(self, error: OSError) -> None:
        """Close after an `error` of the system at a read, and tell the node; nothing is done if it
        was only too early to read."""
        if not isinstance(error, (BlockingIOError, InterruptedError)):
            self.connection_lost(error.strerror or str(error))

    def fail(self, error: OSError) -> None:
        """Close after an error of the system, and tell the node later."""
        self._end(error.strerror or str(error))

    def _end(self, reason: str) -> None:
        """Close, and tell the node later: it may be in the middle of something."""
        if self.state != GONE:
            self._free()
            self.poller.driver.loop.call_soon(self._tell, reason)

    def connection_lost(self, reason: str) -> None:
        """Close, and tell the node."""
        if self.state != GONE:
            self._free()
            self._tell(reason)

    def _free(self) -> None:
        self.state = GONE
        self.reading = False
        if self._timer is not None:
            self._timer.cancel()
        self.poller.streams.pop(self.number, None)
        self._out.clear()
        self._out_size = 0
        if self.mask:  # closing alone ends that only while no forked process has the file, too
            self.poller.watch(self.number, self.mask, 0)
            self.mask = 0
        os.close(self.number)

    def _tell(self, reason: str) -> None:
        driver = self.poller.driver
        conn = getattr(self, "conn", None)
        # Without a connection it had no place yet. About `del` see `Node.connection_lost`.
        if conn is not None:
            del self.conn
            driver.node.connection_lost(conn, reason, driver.time())
        if self._leave is not None:
            self._leave(self)
        driver.wake()

    # ---------------------------------------------------------------- reading

    def pause_reading(self) -> None:
        """Stop reading; TCP slows the peer down."""
        if self.reading and self.state == OPEN:
            self.reading = False
            if self.mask:
                self.watched()

    def resume_reading(self) -> None:
        """Read from the peer again after `pause_reading`."""
        if not self.reading and self.state == OPEN:
            self.reading = True
            self.watched()

    def unread(self) -> bool:
        """Read once, and say whether there is more."""
        if self.state == OPEN and self.reading:
            self.poller.read_early(self)
        return self.state == OPEN and in_kernel(self.number) > 0


def in_kernel(number: int) -> int:
    """Return how many bytes the kernel holds of what has come on the socket with this file
    number."""
    size = array("i", [0])
    try:
        fcntl.ioctl(number, termios.FIONREAD, size)
    except (OSError, ValueError):  # it is closed
        return 0
    return size[0]


def has_left(number: int) -> bool:
    """Return whether the peer of the socket with this file number has closed it, or sends no
    more."""
    look = select.poll()
    look.register(number, select.POLLRDHUP)
    return bool(look.poll(0))


def unacknowledged(number: int) -> int:
    """Return how many bytes sent on the socket with this file number the peer's system has not
    acknowledged."""
    size = array("i", [0])
    try:
        fcntl.ioctl(number, termios.TIOCOUTQ, size)
    except (OSError, ValueError):  # it is closed, or cannot say
        return 0
    return size[0]
