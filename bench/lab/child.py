"""A child process that does one thing for as long as its parent wants it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def child(run: Callable[[Callable[[], bool]], None]) -> Iterator[int]:
    """Have a process of its own `run` meanwhile; yields its pid. `run` is given what says whether
    its parent is still there, and returns when it is not."""
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        try:
            run(lambda: os.getppid() == parent)
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
