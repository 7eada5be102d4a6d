"""Who owns what a lab makes: names that tell whether their owner still lives, a reaper, and what
dead owners left behind.

A lab can end in every way that there is, also by kill -9. A small child process, the reaper, holds
the other end of a pipe; when that closes it ends the brokers and removes what was made. Should the
reaper be killed too, the next lab removes what is left.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

MARK = "NETLAB_OWNER"
"""Environment variable of every process that a lab starts."""
PREFIX = "netlab-"
NETNS = Path("/run/netns")
CGROUPS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))


def open_standard() -> None:
    """Have descriptors 0 to 2: where one was closed, the next file would get its number, and be
    taken for input or output."""
    while True:
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor > 2:
            os.close(descriptor)
            break
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def started(pid: int) -> int | None:
    """Return when a process was started (clock ticks since boot); None: there is none, or it is
    dead and not yet waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def owner() -> str:
    """Return the name of this process, which no other has before the next boot."""
    return f"{os.getpid()}-{started(os.getpid())}"


def alive(name: str) -> bool:
    """Whether the owner in "PID-TICKS..." lives; names that are not of this form have no owner
    business: True."""
    pid, _, rest = name.partition("-")
    ticks = rest.partition("-")[0]
    if not (pid.isdigit() and ticks.isdigit()):
        return True
    return started(int(pid)) == int(ticks)


def end_processes(pids: Iterable[tuple[int, int | None]]) -> None:
    """Kill processes that are still those that were started at these ticks, and wait until they are
    gone."""
    waiting = []
    for pid, ticks in pids:
        if ticks is not None and started(pid) == ticks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                waiting.append((pid, ticks))
    end = time.monotonic() + 5
    while waiting and time.monotonic() < end:
        waiting = [(pid, ticks) for pid, ticks in waiting if started(pid) == ticks]
        time.sleep(0.005)


def delete_namespace(name: str) -> None:
    """Remove a network namespace if it is there."""
    if (NETNS / name).exists():
        subprocess.run(
            ["ip", "netns", "delete", name],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )


def delete_cgroup(path: Path) -> None:
    """Remove a cgroup if it is there and empty; a process that was killed stays in it until its
    parent has waited for it."""
    end = time.monotonic() + 2
    while path.is_dir():
        try:
            path.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > end:
                return
            time.sleep(0.01)


def _marked(of: str | None) -> list[tuple[int, int | None]]:
    """Processes that a lab of this owner, or of any dead one, has started."""
    found = []
    wanted = f"{MARK}={of}".encode() if of is not None else None
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for word in words:
            left = (
                of is None
                and word.startswith(MARK.encode() + b"=")
                and not alive(word.decode().split("=")[1])
            )
            if left or word == wanted:
                found.append((int(entry.name), started(int(entry.name))))
    return found


def remove(of: str | None) -> list[str]:
    """Remove all that an owner, or (None) every dead one, has left; return what it was."""

    def left(name: str) -> bool:
        rest = name.removeprefix(PREFIX)
        return rest != name and (rest.startswith(f"{of}-") if of is not None else not alive(rest))

    gone = []
    processes = _marked(of)
    gone += [f"process {pid}" for pid, _ in processes]
    end_processes(processes)
    for name in sorted(os.listdir(NETNS) if NETNS.is_dir() else []):
        if left(name):
            delete_namespace(name)
            gone.append(f"namespace {name}")
    for root in CGROUPS:
        for path in root.glob(f"{PREFIX}*"):
            if left(path.name):
                delete_cgroup(path)
                gone.append(f"cgroup {path.name}")
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if left(path.name):
            shutil.rmtree(path, ignore_errors=True)
            gone.append(f"folder {path.name}")
    return gone


class Reaper:
    """Removes everything of this process's labs when it is gone, however it went."""

    def __init__(self) -> None:
        """Fork. To be made before other children are: they must not hold its pipe (`let_go` in
        each)."""
        self._owner = owner()
        open_standard()
        reading, self._writing = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                os.close(self._writing)
                self._wait(reading)
            finally:
                os._exit(0)
        os.close(reading)

    def _wait(self, reading: int) -> None:
        os.setsid()  # Ctrl-C is for others
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):  # a reader of our output must not wait for us
            os.dup2(null, descriptor)
        limit = os.sysconf("SC_OPEN_MAX")
        os.closerange(3, reading)
        os.closerange(reading + 1, min(limit, 4096))
        while os.read(reading, 100):
            pass
        remove(self._owner)

    def let_go(self) -> None:
        """Forget the pipe, in a forked child."""
        os.close(self._writing)

    def close(self) -> None:
        """Let it remove what may still be there, and wait for its end."""
        os.close(self._writing)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
