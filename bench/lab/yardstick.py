"""A yardstick for the speed of a core: what the same work costs there again and again.

A virtual machine is not always as fast. A loop of arithmetic does not show that, as it needs
neither caches nor the kernel; so this work is like a broker's: messages through a connection, and
objects in memory beyond the nearest cache.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial

from mqttree.bench.lab.child import child
from mqttree.bench.lab.priority import have_a_larger_share

PAUSE = 0.005
"""s between two times; each takes some .06 ms, so 1 % of a core."""
BYTES = 100
"""of a message, one each time,"""
OBJECTS = 20_000
"""objects, a few hundred bytes each,"""
LOOKED_AT = 30
"""of which these are looked at for it."""

_READING = struct.Struct("=QQ")


class Yardstick:
    """Counts how often the work was done, and what it cost."""

    def __init__(self) -> None:
        """Begin at zero."""
        self._shared = mmap.mmap(-1, _READING.size)

    def read(self) -> tuple[int, float]:
        """Return how often the work was done so far, and the CPU time that it took (s)."""
        times, cost = _READING.unpack_from(self._shared)
        return times, cost / 1e9

    def run(self, core: int, wanted: Callable[[], bool]) -> None:
        """Work on a `core` while it is `wanted`. Raises OSError when that is not possible."""
        os.sched_setaffinity(0, {core})
        have_a_larger_share()
        times = cost = 0
        with _connection() as (sender, receiver):
            work = _work(sender, receiver)
            while wanted():
                time.sleep(PAUSE)
                before = time.thread_time_ns()
                work()
                times, cost = times + 1, cost + time.thread_time_ns() - before
                _READING.pack_into(self._shared, 0, times, cost)


@contextlib.contextmanager
def yardstick(core: int) -> Iterator[Yardstick]:
    """Have a process of its own work on a `core` meanwhile."""
    found = Yardstick()
    with child(partial(found.run, core)):
        yield found


@contextlib.contextmanager
def _connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    with sender, receiver:
        for end in (sender, receiver):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sender, receiver


def _work(sender: socket.socket, receiver: socket.socket) -> Callable[[], None]:
    """What is done each time."""
    objects: dict[str, tuple[int, dict[str, int]]] = {
        f"topic/{number}": (number, {"last": 0}) for number in range(OBJECTS)
    }
    names = list(objects)
    random.Random(1).shuffle(names)
    poll = select.epoll()
    poll.register(receiver.fileno(), select.EPOLLIN)
    message, place = bytes(BYTES), 0

    def work() -> None:
        nonlocal place
        sender.sendall(message)
        poll.poll(1)
        length = len(receiver.recv(4096))
        for _ in range(LOOKED_AT):
            place = (place + 1) % OBJECTS
            number, seen = objects[names[place]]
            seen["last"] = number + length

    return work
