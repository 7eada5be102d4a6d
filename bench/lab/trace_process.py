"""Writes the trace of a process that must not be held up, in a process of its own: events are
passed on in batches."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from mqttree.bench.lab.network import Recorder

PACK = 128
"""Events that are passed on at once: a tenth of a ms for who tells them."""
_fork = multiprocessing.get_context("fork")


class TraceProcess(Recorder):
    """A `Recorder` whose work is done elsewhere. To be made before the process has threads or a
    higher priority."""

    def __init__(self, make: Callable[[], Recorder]) -> None:
        """`make` is called in the new process."""
        self._conn, theirs = _fork.Pipe()
        self._process = _fork.Process(target=_write, args=(make, theirs, self._conn), name="trace")
        self._process.start()
        theirs.close()
        self._pack: list[tuple[str, tuple[Any, ...]]] = []

    def _tell(self, what: str, *values: Any) -> None:
        self._pack.append((what, values))
        if len(self._pack) >= PACK:
            self._pass_on()

    def _pass_on(self) -> None:
        if self._pack:
            pack, self._pack = self._pack, []
            self._conn.send(pack)

    def forwarded(
        self, at: int, publisher: int, sequence: int, source: str, target: str, size: int
    ) -> None:
        """Pass it on."""
        self._tell("forwarded", at, publisher, sequence, source, target, size)

    def control(self, at: int, source: str, target: str, kind: str, size: int) -> None:
        """Pass it on."""
        self._tell("control", at, source, target, kind, size)

    def link(
        self,
        at: int,
        source: str,
        target: str,
        packets: int,
        bytes: int,
        control_bytes: int,
        data_bytes: int,
        dropped: int,
    ) -> None:
        """Pass it on."""
        self._tell("link", at, source, target, packets, bytes, control_bytes, data_bytes, dropped)

    def resources(
        self, at: int, process: str, role: str, cpu_s: float, rss: int, threads: int
    ) -> None:
        """Pass it on."""
        self._tell("resources", at, process, role, cpu_s, rss, threads)

    def tick(self) -> None:
        """Pass on what there is, and let the other process have time."""
        self._tell("tick")
        self._pass_on()

    def close(self) -> None:
        """Pass on the rest, and wait until all is written."""
        self._pass_on()
        self._conn.close()
        self._process.join()


def _write(make: Callable[[], Recorder], orders: Connection, kept: Connection) -> None:
    """The process: write what comes until nothing more does. If it cannot be, one line says so, and
    the network goes on."""
    kept.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        recorder = make()
        try:
            while True:
                for what, values in orders.recv():
                    getattr(recorder, what)(*values)
        except EOFError:
            pass
        finally:
            recorder.close()
    except Exception as error:
        print(f"the network's trace ends: {error}", file=sys.stderr, flush=True)
        with contextlib.suppress(EOFError):
            while True:
                orders.recv()
