"""Plain connections: what the node may rely on (docs/decisions/0012), on real sockets and an event
loop that takes one turn at a time; at the end the whole with the loops that brokers run in."""

from __future__ import annotations

import asyncio
import errno
import gc
import itertools
import logging
import os
import random
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop

from mqttree.broker.base.counters import Counters
from mqttree.broker.base.timers import Deadline
from mqttree.broker.base.turns import Turns
from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.core.connection import CLOSE_TIMEOUT_S
from mqttree.broker.core.effects import Dial
from mqttree.broker.io import epoll_transport, listeners
from mqttree.broker.io.discovery_driver import DiscoveryDriver
from mqttree.broker.io.driver import Driver
from mqttree.broker.io.epoll_transport import HIGH_WATER, PIECES, EpollStream
from mqttree.broker.io.listener import Listener
from mqttree.broker.io.listeners import ACCEPT_PAUSE, StreamServer, UnixSocket, bind_all
from mqttree.broker.io.listeners import dial as dial_address
from mqttree.broker.io.loop_turns import COLLECT_INTERVAL_S
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.node import Node
from tests.kit.core import needs_python
from tests.kit.loop_harness import Loop, Timer


class PollingLoop(Loop):
    """An event loop that looks at sockets; its clock moves by `sleep` alone."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.wakes = 0
        self._selector = selectors.DefaultSelector()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.faults.append(str(context["exception"]))

    def add_reader(self, fileobj: Any, call: Callable[..., None], *arguments: Any) -> None:
        self._selector.register(fileobj, selectors.EVENT_READ, lambda: call(*arguments))

    def remove_reader(self, fileobj: Any) -> None:
        with suppress(KeyError):
            self._selector.unregister(fileobj)

    def turn(self) -> None:
        """Everything that can be read is, then what was asked for by `call_soon`."""
        for key, _ in self._selector.select(0):
            self.wakes += 1
            key.data()
        super().turn()

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer.when <= self.now]
        self.timers = [timer for timer in self.timers if timer.when > self.now]
        for timer in due:
            if not timer.cancelled:
                timer.call()
        self.turn()


class Conn:
    """What the node keeps of a connection, as far as a transport sees it."""

    def __init__(self, node: Recorder, transport: EpollStream) -> None:
        self.node = node
        self.transport = transport
        self.linger = self.closing = self.paused = False
        self.link: object | None = None
        self.received = b""
        self.outbox: list[bytes] = []
        self.pauses = self.resumed = 0
        self.lost: list[str] = []

    def receive(self, data: bytes, now: float) -> None:
        self.received += data
        with self.node.inside():
            self.node.on_receive(self, data)

    def send(self, data: bytes) -> None:
        self.outbox.append(data)
        self.node.dirty.append(self)

    def pause(self) -> None:
        if not self.paused:
            self.paused = True
            self.pauses += 1

    def writable(self, now: float) -> None:
        self.paused = False
        self.resumed += 1
        with self.node.inside():
            self.node.on_writable(self)


class Recorder:
    """A node that does what a test says, and checks that no end is reported in the middle of a
    call."""

    def __init__(self) -> None:
        self.paused = 0
        self.federated = True
        self.large_message = False
        self.limits = DEFAULTS
        self.counters = Counters()
        self.turns = Turns(self)  # type: ignore[arg-type]
        self.deadline = Deadline()
        self.memory = SimpleNamespace(worked=lambda seconds: None)
        self.output = self.connection_registry = self
        self.effects: list[Any] = []
        self.dirty: list[Conn] = []
        self.conns: list[Conn] = []
        self.flushes = 0
        self.on_receive: Callable[[Conn, bytes], None] = lambda conn, data: None
        self.on_writable: Callable[[Conn], None] = lambda conn: None
        self._busy = False

    def on_resumed(self, now: float) -> None:
        pass

    def inside(self) -> Recorder:
        return self

    def __enter__(self) -> None:
        assert not self._busy
        self._busy = True

    def __exit__(self, *_: object) -> None:
        self._busy = False

    def made(
        self,
        peer: str,
        listener: str,
        transport: EpollStream,
        now: float,
        dial: Dial | None,
    ) -> Conn:
        assert not self._busy
        self.conns.append(Conn(self, transport))
        return self.conns[-1]

    def connection_lost(self, conn: Conn, reason: str, now: float) -> None:
        assert not self._busy, "in the middle of something"
        conn.lost.append(reason)

    def flush(self, source: object = None) -> None:
        self.flushes += 1
        dirty, self.dirty = self.dirty, []
        with self.inside():
            for conn in dirty:
                data, conn.outbox = b"".join(conn.outbox), []
                if data:
                    conn.transport.write(data)

    def next_deadline(self) -> None:
        return None


class Scene:
    """A poller, and socket pairs of which it has one end."""

    def __init__(self) -> None:
        self.loop = PollingLoop()
        self.node = Recorder()
        self.driver = Driver(
            cast(Node, self.node), cast(asyncio.AbstractEventLoop, self.loop), lambda: None
        )
        self.poller = self.driver.poller
        self.left: list[EpollStream] = []
        self.peers: list[socket.socket] = []

    def stream(self, *, tcp: bool = False) -> tuple[EpollStream, socket.socket]:
        """A stream that is not in use yet, and the other end."""
        ours, peer = tcp_pair() if tcp else socket.socketpair()
        for each in (ours, peer):
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        self.peers.append(peer)
        return EpollStream(self.poller, ours.detach(), "peer", "tcp", self.left.append), peer

    def open(self, *, tcp: bool = False) -> tuple[EpollStream, Conn, socket.socket]:
        """A connection in use."""
        stream, peer = self.stream(tcp=tcp)
        self.poller.admit(stream)
        return stream, self.node.conns[-1], peer

    def full(
        self, size: int = HIGH_WATER, *, tcp: bool = False
    ) -> tuple[EpollStream, Conn, socket.socket, bytes]:
        """A connection with data that its kernel buffer does not take; and that data."""
        stream, conn, peer = self.open(tcp=tcp)
        data = random.Random(size).randbytes(size)
        stream.write(data)
        assert stream.mask & epoll_transport.OUT, "it waits"
        return stream, conn, peer, data

    def turns(self, number: int = 3) -> None:
        for _ in range(number):
            self.loop.turn()

    def until(self, condition: Callable[[], bool]) -> None:
        """Loopback TCP takes its time, but not long; the limit is that of the test."""
        while not condition():
            self.loop.turn()

    def drain(self, peer: socket.socket) -> bytes:
        """Read all that comes, in turns, until nothing does or it ends."""
        found = bytearray()
        while data := take(peer):
            found += data
            self.loop.turn()
        return bytes(found)

    def quiet(self) -> bool:
        """Whether nothing wakes us: no socket is read in vain, turn after turn."""
        before = self.loop.wakes
        self.turns(5)
        return self.loop.wakes == before


def take(peer: socket.socket) -> bytes:
    """All that can be read now. (Who closes without having read resets the connection behind what
    he wrote.)"""
    found = bytearray()
    with suppress(BlockingIOError, ConnectionResetError):
        while data := peer.recv(1 << 20):
            found += data
    return bytes(found)


def ended(peer: socket.socket) -> bool:
    """Whether the stream to a peer has come to its end, and properly."""
    try:
        return peer.recv(1) == b""
    except BlockingIOError:
        return False


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = socket.create_connection(server.getsockname())
        return server.accept()[0], peer


def reset(peer: socket.socket) -> None:
    """Close with a reset."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    needs_python("its connections are of another class")
    found = Scene()
    yield found
    found.driver.stop()
    found.turns()
    for peer in found.peers:
        peer.close()
    assert not found.poller.streams
    assert all(len(conn.lost) <= 1 for conn in found.node.conns)


# ---------------------------------------------------------------- reading and writing


def test_an_answer_is_on_its_way_in_the_turn_of_the_question(scene: Scene) -> None:
    _, conn, peer = scene.open()
    scene.node.on_receive = lambda conn, data: conn.send(data.upper())
    peer.send(b"hello")
    scene.loop.turn()
    assert conn.received == b"hello"
    assert take(peer) == b"HELLO"
    assert scene.quiet()


def test_objects_that_replace_others_are_collected_in_steps(scene: Scene) -> None:
    """The collector counts what was made, less what went: of a full log it would look through all
    the entries at once."""
    log: deque[list[object]] = deque(([] for _ in range(30_000)), 30_000)
    gc.collect()
    scene.driver.time = lambda: scene.loop.now
    scene.driver.collect_at = 0.0
    scene.node.on_receive = lambda conn, data: log.extend([] for _ in range(500))
    _, _, peer = scene.open()
    for _ in range(60):
        peer.send(b"x")
        scene.loop.sleep(COLLECT_INTERVAL_S)
    young = sum(
        found in ([], [None])
        for found in gc.get_objects(0) + gc.get_objects(1)
        if isinstance(found, list)
    )
    assert young < 2_000, "30,000 without"


@pytest.mark.parametrize("still", [True, False])
def test_ended_connections_are_handled_before_others_are_read(scene: Scene, still: bool) -> None:
    """What another one sent meanwhile is for a session without a connection then, not on its way to
    a client that is gone."""
    (_, other, busy), (_, gone, peer) = scene.open(), scene.open()
    found: list[tuple[str, bool]] = []
    scene.node.on_receive = lambda conn, data: found.append((data.decode(), bool(gone.lost)))
    busy.send(b"message")
    peer.send(b"ack")
    peer.close()
    scene.poller.due = 0.0 if still else time.monotonic() + 3600
    scene.turns()
    assert sorted(found) == [("ack", False), ("message", still)]
    assert not other.lost


def test_clients_that_left_are_handled_before_lost_links(
    scene: Scene,
) -> None:
    """A neighbour has given the broker up, as it was stopped: what it had sent is not on its way to
    clients that are gone."""
    links = [scene.open() for _ in range(2)]
    (_, gone, client) = scene.open()
    heard: list[bool] = []
    scene.node.on_receive = lambda conn, data: heard.append(bool(gone.lost))
    for _, conn, peer in links:
        conn.link = object()
        peer.send(b"messages")
        peer.close()
    client.close()
    scene.poller.due = 0.0
    scene.turns()
    assert heard == [True, True]


@pytest.mark.parametrize(
    ("late", "leaves", "others"),
    [(True, True, True), (True, False, True), (False, True, True), (True, True, False)],
)
def test_a_client_that_gave_up_before_accept_is_not_read(
    scene: Scene, late: bool, leaves: bool, others: bool
) -> None:
    """While the broker was stopped his client has gone to another one: his CONNECT would take the
    session back from there."""
    scene.node.federated = others
    scene.driver.time = lambda: scene.loop.now
    scene.driver._timer_at = scene.loop.now + 1.0
    scene.driver._timer = cast(asyncio.TimerHandle, Timer(0.0, lambda: None))
    scene.loop.sleep(3.0 if late else 1.5)
    stream, peer = scene.stream(tcp=True)
    peer.send(b"CONNECT")
    if leaves:
        peer.close()
    scene.until(lambda: not leaves or epoll_transport.has_left(stream.number))
    scene.poller.admit(stream)
    scene.turns()
    taken = [conn.received for conn in scene.node.conns]
    assert taken == ([] if late and leaves and others else [b"CONNECT"])
    assert scene.node.counters.connections_abandoned == (late and leaves and others)
    assert (scene.left == [stream]) == leaves


@pytest.mark.parametrize("still", [True, False])
def test_ended_connections_are_read_before_anything_is_sent(scene: Scene, still: bool) -> None:
    """The broker stood still in the middle of a turn, or before a timer."""
    _, conn, peer = scene.open()
    peer.close()
    if still:
        scene.poller.due = 0.0
    else:
        scene.poller.due = time.monotonic() + 3600
    scene.driver.run()
    assert bool(conn.lost) == still
    scene.turns()
    assert conn.lost


def test_bytes_that_came_before_the_stream_are_read_at_once(scene: Scene) -> None:
    stream, peer = scene.stream()
    peer.send(b"early")
    scene.poller.admit(stream)
    assert scene.node.conns[-1].received == b"early"


def test_output_that_the_kernel_does_not_take_waits_and_pauses_the_node(
    scene: Scene,
) -> None:
    stream, conn, peer, data = scene.full(HIGH_WATER)
    assert not conn.pauses, "some of it went"
    stream.write(data)
    stream.write(data)
    assert conn.pauses == 1
    found = bytearray()
    while len(found) < 3 * len(data):
        left = stream._out_size
        assert bool(conn.resumed) is (left <= HIGH_WATER // 4)
        found += take(peer)
        scene.loop.turn()
    assert bytes(found) == 3 * data
    assert conn.resumed == 1
    assert scene.quiet(), "nothing waits, nothing is woken"


def test_small_pieces_are_sent_together(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, _, peer, data = scene.full(20_000)
    for number in range(3 * PIECES):
        stream.write(b"%05d" % number)
    calls: list[int] = []
    real = os.writev
    monkeypatch.setattr(
        os, "writev", lambda number, pieces: calls.append(len(pieces)) or real(number, pieces)
    )
    found = scene.drain(peer)
    assert found == data + b"".join(b"%05d" % number for number in range(3 * PIECES))
    assert len(calls) < 30
    assert max(calls) == PIECES


def test_more_is_written_while_the_node_learns_that_there_is_room(scene: Scene) -> None:
    stream, conn, peer, data = scene.full(HIGH_WATER + 100_000)
    more = b"m" * (HIGH_WATER + 5000)
    scene.node.on_writable = lambda conn: stream.write(more) if conn.resumed == 1 else None
    assert conn.paused
    assert scene.drain(peer) == data + more
    assert (conn.pauses, conn.resumed) == (2, 2)


def test_an_exception_in_the_node_closes_one_connection(scene: Scene) -> None:
    _, broken, first = scene.open()
    _, sound, second = scene.open()

    def fail(conn: Conn, data: bytes) -> None:
        if conn is broken:
            raise ValueError("a fault")
        conn.send(data)

    scene.node.on_receive = fail
    first.send(b"1")
    second.send(b"2")
    scene.turns()
    assert scene.loop.faults == ["a fault"]
    assert broken.lost == ["closed"]
    assert take(second) == b"2"
    assert not sound.lost
    third, peer = scene.stream()
    scene.node.on_receive = lambda conn, data: 1 / 0
    peer.send(b"3")
    scene.poller.admit(third)
    scene.turns()
    assert scene.node.conns[-1].lost == ["closed"]


def test_the_driver_goes_on_after_a_flush_that_failed(scene: Scene) -> None:
    _, conn, peer = scene.open()
    scene.node.paused = 1
    flush = scene.node.flush

    def fail() -> None:
        scene.node.flush = flush
        raise ValueError

    scene.node.flush = fail
    peer.send(b"1")
    with pytest.raises(ValueError):
        scene.loop.turn()
    assert not scene.driver.flushing, "or nothing would ever be flushed again"
    conn.send(b"2")
    scene.driver.wake()
    scene.turns()
    assert take(peer) == b"2"


def test_while_a_client_is_behind_every_read_is_flushed(scene: Scene) -> None:
    """Else the node would hold the wrong publisher."""
    for _ in range(3):
        _, _, peer = scene.open()
        peer.send(b"x")
    scene.node.paused = 1
    before = scene.node.flushes
    scene.loop.turn()
    assert scene.node.flushes >= before + 3
    stream, peer = scene.stream()
    peer.send(b"x")
    before = scene.node.flushes
    scene.poller.admit(stream)
    assert scene.node.flushes == before + 1


def test_a_turn_that_takes_long_ends_and_all_have_their_turn(scene: Scene) -> None:
    """Each read takes 7 ms, and there is always more: those come first for whom there was no
    time."""
    conns = [scene.open() for _ in range(10)]
    read: list[Conn] = []

    def receive(conn: Conn, data: bytes) -> None:
        read.append(conn)
        scene.loop.now += 0.007

    scene.driver.time = lambda: scene.loop.now
    scene.node.on_receive = receive
    for turn in range(1, 11):
        for _, _, peer in conns:
            peer.send(b"x")
        before = len(read)
        scene.poller.due = scene.loop.now + epoll_transport.STILL
        scene.poller.run()
        assert len(read) - before == 3, "20 ms, and the last one to its end"
        if turn == 4:  # who comes first now is gone
            stream = next(iter(scene.poller._left))
            scene.poller._left[10_000] = -1
            assert stream in scene.poller.streams
    for _, conn, _ in conns:
        turns = [number // 3 for number, each in enumerate(read) if each is conn]
        assert (
            max(later - earlier for earlier, later in itertools.pairwise((-1, *turns, 10))) <= 4
        ), turns


def test_a_system_that_watches_no_more_files_costs_one_connection(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, conn, _ = scene.open()

    def watch(number: int, old: int, new: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    stream, _ = scene.stream()
    monkeypatch.setattr(
        epoll_transport.EpollTransport,
        "watch",
        lambda self, number, old, new: watch(number, old, new),
    )
    scene.poller.admit(stream)
    monkeypatch.undo()
    scene.turns()
    assert scene.node.conns[-1].lost == ["No space left on device"]
    assert not conn.lost


# ---------------------------------------------------------------- ends


def test_what_was_written_goes_out_after_the_peers_end(scene: Scene) -> None:
    stream, conn, peer, data = scene.full()
    peer.shutdown(socket.SHUT_WR)
    scene.turns()
    assert not conn.lost
    stream.write(b"too late")
    assert scene.drain(peer) == data
    scene.turns()
    assert conn.lost == ["closed by peer"]
    assert ended(peer)


def test_a_peer_that_ended_and_does_not_read_is_not_waited_for_long(scene: Scene) -> None:
    _, conn, peer, _ = scene.full()
    peer.shutdown(socket.SHUT_WR)
    scene.turns()
    assert scene.quiet()
    scene.loop.sleep(CLOSE_TIMEOUT_S)
    scene.turns()
    assert len(conn.lost) == 1


def test_close_sends_what_waits_first(scene: Scene) -> None:
    stream, conn, peer, data = scene.full()
    conn.closing = True
    stream.close()
    stream.close()
    peer.send(b"nobody looks at this")
    stream.write(b"too late")
    stream.pause_reading()
    stream.resume_reading()
    scene.turns()
    assert not conn.received
    assert scene.drain(peer) == data
    scene.turns()
    assert conn.lost == ["closed"]


def test_close_with_an_empty_queue_ends_in_the_next_turn(scene: Scene) -> None:
    stream, conn, peer = scene.open()
    stream.write(b"bye")
    stream.close()
    assert not conn.lost, "the node is in the middle of something"
    scene.turns()
    assert conn.lost == ["closed"]
    assert take(peer) == b"bye"
    for call in (
        stream.close,
        stream.abort,
        stream.pause_reading,
        stream.resume_reading,
        stream.watched,
    ):
        call()
    stream.write(b"1")
    stream.connection_lost("again")
    scene.turns()
    assert conn.lost == ["closed"]


@pytest.mark.parametrize("waiting", [False, True])
def test_a_peer_that_goes_on_sending_can_read_the_last_packet(scene: Scene, waiting: bool) -> None:
    if waiting:
        stream, conn, peer, data = scene.full(tcp=True)
    else:
        (stream, conn, peer), data = scene.open(tcp=True), b""
    stream.pause_reading()
    conn.linger = True
    peer.send(b"x" * 1000)
    scene.turns()
    stream.write(b"why")
    stream.close()
    found = b""
    for _ in range(20):
        peer.send(b"more")
        scene.loop.turn()
    while not found.endswith(b"why"):
        found += take(peer)
        scene.loop.turn()
    assert found == data + b"why"
    assert not conn.received
    assert not conn.lost
    scene.until(lambda: ended(peer))
    scene.loop.sleep(DEFAULTS.linger_s)
    scene.turns()
    assert conn.lost == ["closed"]


def test_a_peer_that_closes_after_the_last_packet_is_gone_at_once(scene: Scene) -> None:
    stream, conn, peer = scene.open()
    stream.pause_reading()
    conn.linger = True
    stream.close()
    assert ended(peer)
    peer.close()
    scene.turns()
    assert conn.lost == ["closed by peer"]


def test_a_peer_that_reads_the_last_packet_late_is_waited_for(scene: Scene) -> None:
    """`Connection.close` sees to it that it is not for ever."""
    stream, conn, peer, data = scene.full()
    conn.linger = True
    stream.close()
    scene.loop.sleep(3 * DEFAULTS.linger_s)
    peer.shutdown(socket.SHUT_WR)
    scene.turns()
    assert scene.drain(peer) == data
    scene.turns()
    assert len(conn.lost) == 1


def test_a_write_that_fails_in_a_flush_harms_no_other_connection(scene: Scene) -> None:
    stream, gone, peer = scene.open()
    _, here, other = scene.open()
    peer.close()
    gone.send(b"to nobody")
    here.send(b"to somebody")
    scene.node.output.flush()
    assert not gone.lost
    assert take(other) == b"to somebody"
    stream.write(b"again")
    stream.close()
    scene.turns()
    assert len(gone.lost) == 1


@pytest.mark.parametrize("link", [None, object()])
def test_what_a_client_sent_before_it_went_is_read_although_it_takes_no_answer(
    scene: Scene, link: object
) -> None:
    stream, conn, peer = scene.open()
    conn.link = link
    stream.pause_reading()
    peer.send(b"last words")
    peer.close()
    stream.write(b"answer")
    scene.turns()
    stream.resume_reading()
    scene.turns()
    assert conn.received == (b"last words" if link is None else b"")
    assert conn.lost == ["closed by peer" if link is None else "Broken pipe"]


@pytest.mark.parametrize("reading", [True, False])
def test_a_reset_during_a_write_ends_the_connection(scene: Scene, reading: bool) -> None:
    stream, conn, peer, _ = scene.full(4_000_000, tcp=True)
    if not reading:
        stream.pause_reading()
    reset(peer)
    scene.until(lambda: bool(conn.lost))
    assert conn.lost == ["Connection reset by peer"]
    assert scene.quiet()


@pytest.mark.parametrize("tcp", [False, True])
def test_a_client_that_leaves_while_it_is_not_read_wakes_nothing(scene: Scene, tcp: bool) -> None:
    stream, conn, peer = scene.open(tcp=tcp)
    stream.pause_reading()
    peer.send(b"before")
    peer.close()
    assert scene.quiet()
    assert not conn.lost
    stream.resume_reading()
    scene.until(lambda: bool(conn.lost))
    assert conn.received == b"before"
    assert conn.lost == ["closed by peer"]


def test_a_reset_of_a_client_that_is_not_read_wakes_nothing(scene: Scene) -> None:
    stream, conn, peer = scene.open(tcp=True)
    stream.pause_reading()
    reset(peer)
    assert scene.quiet()
    stream.resume_reading()
    scene.until(lambda: bool(conn.lost))
    assert conn.lost == ["Connection reset by peer"]


# ---------------------------------------------------------------- several in one turn


def test_a_peer_that_is_held_after_the_poll_loses_nothing(scene: Scene) -> None:
    first, one, peer = scene.open()
    second, two, other = scene.open()
    others = {one: second, two: first}
    scene.node.on_receive = lambda conn, data: others[conn].pause_reading()
    peer.send(b"1")
    other.send(b"2")
    scene.loop.turn()
    held = two if one.received else one
    assert not held.received
    assert not held.lost
    scene.node.on_receive = lambda conn, data: None
    for stream in (first, second):
        stream.resume_reading()
    scene.turns()
    assert one.received + two.received == b"12"


def test_a_peer_that_is_closed_after_the_poll_gets_queued_output(scene: Scene) -> None:
    stream, conn, peer, data = scene.full()
    _, _, other = scene.open()
    scene.node.on_receive = lambda conn, data: stream.close()
    scene.poller.streams = dict(reversed(scene.poller.streams.items()))
    other.send(b"close it")
    scene.loop.turn()
    stream.resume_reading()
    peer.send(b"still here")
    scene.turns()
    assert not conn.lost
    assert scene.drain(peer) == data


def test_a_reused_file_descriptor_gets_no_event_of_the_old_one(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is opened gets the lowest number that is free: that of one closed before."""
    stream, _, peer = scene.open()
    number = stream.number
    newcomer, another = scene.stream()
    ours = newcomer.number
    fake = [(-1, epoll_transport.IN), (number, epoll_transport.IN | epoll_transport.BROKEN)]

    class Epoll:
        def poll(self, timeout: int, size: int) -> Iterator[tuple[int, int]]:
            yield fake[0]
            stream.abort()
            os.dup2(ours, number)
            os.close(ours)
            newcomer.number = number
            scene.poller.admit(newcomer)
            newcomer.pause_reading()
            yield fake[1]

        register = modify = unregister = lambda self, *arguments: None

        def close(self) -> None: ...

    os.set_blocking(number, False)
    monkeypatch.setattr(scene.poller, "_epoll", Epoll(), raising=True)
    scene.poller.run()
    assert newcomer.state == epoll_transport.OPEN
    assert not scene.node.conns[-1].lost
    another.close()
    peer.close()


def test_a_closed_file_that_a_forked_process_has_wakes_nothing(scene: Scene) -> None:
    stream, conn, peer = scene.open()
    copy = os.dup(stream.number)  # what a fork leaves
    stream.abort()
    peer.send(b"x")
    scene.turns()
    assert scene.quiet()
    assert conn.lost
    os.close(copy)


# ---------------------------------------------------------------- places


class Parking:
    """A listener with places, and the ends of those who came."""

    def __init__(self, scene: Scene, places: int) -> None:
        self.scene = scene
        self.listener = Listener("tcp", None, places, limits=Limits())
        self.server = StreamServer([], lambda: scene.driver, self.listener, "tcp")

    def come(self) -> socket.socket:
        ours, peer = socket.socketpair()
        peer.setblocking(False)
        os.set_blocking(ours.fileno(), False)
        self.server.accepted(ours.detach(), "")
        self.scene.peers.append(peer)
        return peer


def test_a_parked_connection_is_read_when_it_has_a_place(scene: Scene) -> None:
    parking = Parking(scene, 1)
    first, second = parking.come(), parking.come()
    second.send(b"hello")
    assert scene.quiet()
    assert len(scene.node.conns) == 1
    first.close()
    scene.turns()
    assert scene.node.conns[1].received == b"hello"
    assert parking.listener.conn_count == 1
    second.close()
    scene.turns()
    assert parking.listener.conn_count == 0


@pytest.mark.parametrize("how", ["closed", "half-closed", "aborted"])
def test_a_parked_connection_that_ends_makes_room(scene: Scene, how: str) -> None:
    parking = Parking(scene, 1)
    first, second, third = parking.come(), parking.come(), parking.come()
    third.send(b"hello")
    second.send(b"unread")
    if how == "aborted":
        parking.listener.parked[0].abort()
    elif how == "closed":
        second.close()
    else:
        second.shutdown(socket.SHUT_WR)
    scene.turns()
    assert len(parking.listener.parked) == 1
    assert not scene.loop.faults
    assert scene.quiet()
    first.close()
    scene.turns()
    assert [conn.received for conn in scene.node.conns] == [b"", b"hello"]


def test_a_stop_ends_every_connection_once(scene: Scene) -> None:
    parking = Parking(scene, 1)
    parking.come()
    waiting = parking.come()
    scene.full()
    scene.driver.stop()
    scene.turns()
    assert [conn.lost for conn in scene.node.conns] == [["closed"], ["closed"]]
    assert ended(waiting)
    assert parking.listener.conn_count == 0
    assert scene.quiet()


# ---------------------------------------------------------------- accepting


def listening(
    loop: PollingLoop, scene: Scene, make: type[socket.socket] = socket.socket
) -> tuple[StreamServer, Listener, Any]:
    sock = make(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    sock.setblocking(False)
    places = Listener("tcp", None, limits=Limits())
    return StreamServer([sock], lambda: scene.driver, places, "tcp"), places, sock.getsockname()


def test_accepted_connections_are_not_inherited_do_not_block_and_do_not_wait(scene: Scene) -> None:
    server, places, address = listening(scene.loop, scene)
    peer = socket.create_connection(address)
    scene.until(lambda: bool(scene.node.conns))
    stream = scene.node.conns[0].transport
    host, port = peer.getsockname()
    assert stream.peer == f"{host}:{port}"
    assert not os.get_inheritable(stream.number)
    assert not os.get_blocking(stream.number)
    with socket.socket(fileno=os.dup(stream.number)) as copy:
        assert copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert places.conn_count == 1
    peer.close()
    scene.until(lambda: places.conn_count == 0)
    server.close()
    server.close()


class Full(socket.socket):
    """A listening socket for whose connections the system has no files."""

    full = True

    def _accept(self) -> Any:
        if Full.full:
            raise OSError(errno.EMFILE, "Too many open files")
        return super()._accept()


def test_without_file_descriptors_connections_wait_and_one_line_says_so(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Full, "full", True)
    server, _, address = listening(scene.loop, scene, Full)
    with socket.create_connection(address), caplog.at_level(logging.WARNING):
        for _ in range(3):
            scene.until(lambda: bool(scene.loop.timers))
            assert scene.quiet(), "it is not tried all the time"
            scene.loop.sleep(ACCEPT_PAUSE)
        assert [record.getMessage() for record in caplog.records] == [
            f"connections wait at {address[0]}:{address[1]}: Too many open files"
        ]
        Full.full = False
        scene.loop.sleep(ACCEPT_PAUSE)
        scene.until(lambda: bool(scene.node.conns))
    Full.full = True
    peer = socket.create_connection(address)
    scene.until(lambda: bool(scene.loop.armed))
    server.close()
    scene.loop.sleep(ACCEPT_PAUSE)
    assert scene.quiet()
    peer.close()


def test_addresses_that_this_system_does_not_have_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    four = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
    six = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))
    real = socket.create_server

    def create(address: Any, *, family: int, backlog: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return real(address, family=family, backlog=backlog)

    monkeypatch.setattr(socket, "create_server", create)
    found = bind_all([six, four, four], 5)
    assert len(found) == 1
    with pytest.raises(OSError) as error:
        bind_all([six], 5)
    assert error.value.errno == errno.EADDRNOTAVAIL
    taken = (*four[:4], found[0].getsockname())
    with pytest.raises(OSError) as error:
        bind_all([four, taken], 5)
    assert error.value.errno == errno.EADDRINUSE
    found[0].close()


# --------------------------------------------------------------- with the loops that brokers run in

LOOPS = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=LOOPS)
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as found:
        yield found


def driver_of(node: Node) -> Driver:
    """A node's driver in the loop that runs."""
    return Driver(node, asyncio.get_running_loop(), lambda: None)


def new_node(**config: Any) -> Node:
    config = {"discovery": "off"} | config
    return Node(NodeConfig(**config), asyncio.get_running_loop().time(), 1.7e9, random.Random(1))


def test_a_dial_that_fails_is_reported(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        node = new_node()
        driver = driver_of(node)
        answers: list[str] = []
        monkeypatch.setattr(node, "answer", lambda effect, result, now: answers.append(result))
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        discovery_driver = DiscoveryDriver(None, DEFAULTS)
        await discovery_driver.dial(Dial("127.0.0.1", port), driver)
        assert answers.pop() == "Connection refused"
        await discovery_driver.dial(Dial("127.0.0.1", 99999), driver)
        assert answers.pop() == "port must be 0-65535"
        discovery_driver = DiscoveryDriver(None, Limits(dial_timeout_s=0.0))
        full = socket.create_server(("127.0.0.1", 0), backlog=0)
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:  # there is no accept: later connections wait
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        await discovery_driver.dial(Dial(*full.getsockname()), driver)
        assert answers.pop() == "timed out"
        assert not node.connections
        for each in (full, *waiting):
            each.close()
        driver.stop()

    runner.run(scenario())


def test_a_dial_that_succeeds_makes_a_link_until_the_stop(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        node = new_node(discovery="static")
        driver, dialling = driver_of(node), DiscoveryDriver(None, DEFAULTS)
        with socket.create_server(("127.0.0.1", 0)) as server:
            host, port = server.getsockname()
            await dialling.dial(Dial(host, port), driver)
            (conn,) = node.connections
            assert (conn.peer, conn.listener) == (f"{host}:{port}", "link")
            driver.stop()
            await dialling.dial(Dial(host, port), driver)
            server.accept()[0].close()
            with server.accept()[0] as accepted:
                assert accepted.recv(1) == b""
        while node.connections:
            await asyncio.sleep(0)

    runner.run(scenario())


def test_addresses_are_dialled_in_turn(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_server(("127.0.0.1", 0)) as closing,
        ):
            there, gone = server.getsockname(), closing.getsockname()
            closing.close()
            tried: list[Any] = []
            entries = [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", address)
                for address in (gone, there, gone)
            ]

            async def resolve(host: str, port: int) -> list[Any]:
                tried.append((host, port))
                return entries

            monkeypatch.setattr(listeners, "resolve", resolve)
            sock, peer = await dial_address("name", 1)
            assert peer == f"{there[0]}:{there[1]}"
            assert not sock.getblocking()
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            sock.close()
            entries[1:] = [(99, socket.SOCK_STREAM, 6, "", there)]
            with pytest.raises(
                OSError, match="Connection refused; Address family not supported by protocol"
            ):
                await dial_address("name", 1)
            entries.clear()
            with pytest.raises(OSError, match="no address"):
                await dial_address("name", 1)

    runner.run(scenario())


def test_the_interface_of_an_address_is_kept(runner: asyncio.Runner) -> None:
    name = socket.if_indextoname(1)
    found = runner.run(listeners.resolve(f"fe80::1%{name}", 1883, passive=True))
    assert [address for *_, address in found] == [("fe80::1", 1883, 0, 1)]
    assert runner.run(listeners.resolve("localhost", 1883))


def test_a_unix_socket_is_served_and_removed(runner: asyncio.Runner, tmp_path: Path) -> None:
    path = str(tmp_path / "broker")
    unix = UnixSocket(path, 0o600, 5)
    unix.remove()
    unix.sock.close()
    assert not os.path.exists(path)
