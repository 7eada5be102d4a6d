"""A run's folder: run.json says what was run, on what, and what came of it; trace/ has the events.
OUT/SCENARIO/CELL/rN."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import platform
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from mqttree.bench.lab.launcher import search_path

SCHEMA = 4
"""of run.json; rises when a figure changes its meaning: older runs are repeated, not averaged with
newer ones."""
COMPLETE, FAILED, NOT_AVAILABLE, INTERRUPTED, RUNNING = (
    "complete",
    "failed",
    "not available",
    "interrupted",
    "running",
)
HOST = "local"
"""How traces call the machine, whose clock is that of all times in run.json, too."""
ROOT = Path(__file__).resolve().parents[2]


def read(folder: Path) -> dict[str, Any] | None:
    """Return a folder's run.json; None if there is none that can be read."""
    try:
        found = json.loads((folder / "run.json").read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def write(folder: Path, run: dict[str, Any]) -> None:
    """Write run.json in one go. Raises OSError that names it."""
    part = folder / ".run.json.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(run, indent=1, default=str) + "\n")
        part.rename(folder / "run.json")
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise OSError(error.errno, error.strerror, str(folder / "run.json")) from None


def unwritable(error: OSError) -> str:
    """Say in one line what cannot be written."""
    return f"cannot write {error.filename}: {error.strerror}" if error.filename else str(error)


def taken(folder: Path) -> bool:
    """Whether there is anything in a run's folder, readable or not."""
    try:
        return any(folder.iterdir())
    except FileNotFoundError:
        return False
    except OSError:
        return True


@contextlib.contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Have a folder of results for this command alone; made if need be. Raises ValueError in one
    line.

    Runs are forked with the lock: it is free when the last of them has ended, even if the command
    itself was killed before.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out}: is no folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(out / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise ValueError(f"--out {out}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"--out {out}: another `bench run` is at work there") from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)


def fresh(folder: Path) -> None:
    """Remove what an earlier attempt has left. Raises OSError."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def new_id() -> str:
    """A name for a run that no other has."""
    return uuid.uuid4().hex[:12]


@functools.cache
def machine() -> dict[str, Any]:
    """What this is measured on."""
    cpu = memory = ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
        memory = Path("/proc/meminfo").read_text().splitlines()[0].split(":")[1].strip()
    except (OSError, IndexError):
        pass
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "ram": memory,
        "kernel": platform.release(),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def said(words: list[str]) -> str:
    """Return what the program `words` prints; nothing where it is not there, or fails."""
    program = shutil.which(words[0], path=search_path())
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, *words[1:]],
            check=False,
            capture_output=True,
            text=True,
            timeout=20,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return (
        done.stdout.strip() or done.stderr.strip()
        if words[0] != "git" or not done.returncode
        else ""
    )


@functools.cache
def versions() -> dict[str, str]:
    """Versions of what takes part; "" where it is not there."""
    found = {
        "mosquitto": (said(["mosquitto", "-h"]) or "\n")
        .splitlines()[0]
        .removeprefix("mosquitto version ")
    }
    for name in ("mqttree", "amqtt", "uvloop"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found


@functools.cache
def commit() -> tuple[str, bool]:
    """(commit, whether something is changed) of the program; ("", False) where it is no
    checkout."""
    name = said(["git", "rev-parse", "HEAD"]) if (ROOT / ".git").exists() else ""
    return (name, bool(said(["git", "status", "--porcelain"]))) if name else ("", False)


def description() -> dict[str, Any]:
    """What all runs of a command have in common, for run.json."""
    name, dirty = commit()
    return {
        "schema": SCHEMA,
        "machine": machine(),
        "commit": name,
        "dirty": dirty,
        "versions": versions(),
        "command": ["mqttree", *sys.argv[1:]],
    }
