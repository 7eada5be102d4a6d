"""A process of the generator that has a worker, and carries out what it is asked for."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
from collections.abc import Callable
from typing import Any, Protocol

from mqttree.bench.load.outcome import LoadError


class ClosedAtTheEnd(Protocol):
    """A worker, whatever else it does."""

    def close(self) -> None:
        """Close what it has open."""


class WorkerProcess:
    """A worker in a process of its own, led through a pipe."""

    def __init__(self, make: Callable[..., ClosedAtTheEnd], *arguments: Any) -> None:
        """`make`: a function of a module that makes the worker there, from `arguments`."""
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()
        self._heard: list[Any] = []

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid

    def ask(self, method: str, *arguments: Any) -> None:
        """Have it call a method of its worker. Raises LoadError."""
        try:
            self.pipe.send((method, arguments))
        except OSError as error:
            raise LoadError(f"a load process is gone: {error}") from error

    @property
    def spoke(self) -> bool:
        """Whether a result has come that was not asked for yet."""
        return bool(self._heard)

    def listen(self, timeout: float = 0.0) -> None:
        """Hear a result that comes within `timeout` (s). Raises LoadError: the method's, or that
        the process is gone."""
        try:
            if self._heard or not self.pipe.poll(timeout):
                return
            said = self.pipe.recv()
        except (OSError, EOFError) as error:
            raise LoadError(f"a load process is gone: {error}") from error
        if isinstance(said, Exception):
            raise said
        self._heard.append(said)

    def answer(self, timeout: float) -> Any:
        """Wait for the method's result, at most so long (s). Raises LoadError: the method's, or
        that none came."""
        self.listen(timeout)
        if not self._heard:
            raise LoadError(f"a load process did not answer within {timeout:g} s")
        return self._heard.pop()

    def close(self) -> None:
        """End it."""
        self.pipe.close()
        self._process.join(2.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(
    pipe: multiprocessing.connection.Connection,
    make: Callable[..., ClosedAtTheEnd],
    arguments: tuple[Any, ...],
) -> None:
    """Carry out what the driver asks for until it closes the pipe."""
    worker: ClosedAtTheEnd | None = None
    try:
        worker = make(*arguments)
        while True:
            method, given = pipe.recv()
            try:
                pipe.send(getattr(worker, method)(*given))
            except LoadError as error:
                pipe.send(error)
    except (EOFError, OSError, KeyboardInterrupt):
        pass
    finally:
        if worker is not None:
            worker.close()
