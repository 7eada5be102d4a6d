"""`mqttree top`: brokers, topics and alarms of a federation, drawn again and again.

begins -(the first answer)-> shows -(no answer)-> shows what it had, as old
                             shows -(q, Ctrl-C, SIGTERM, --count)-> over
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from typing import Any, NamedTuple

from mqttree.broker.base.log_format import json_text, printable
from mqttree.broker.cli.admin_client import AdminPort, StatusError, admin_port
from mqttree.broker.cli.table import cut, duration, rate, size, table
from mqttree.broker.cluster.drain import counted

TOPICS = 20
"""topics that are asked for."""

ANSWER_TIMEOUT = 3.0
"""s for a broker to answer, then what is shown is old."""

SORTS = {
    "name": "name",
    "clients": "clients",
    "published": "published_per_s",
    "delivered": "delivered_per_s",
    "links": "link_out_per_s",
}
"""What brokers are sorted by -> key of a row; numbers: the highest first."""

HEAD = (
    "BROKER",
    "STATE",
    "CLIENTS",
    "SESSIONS",
    "PUBLISHED/S",
    "DELIVERED/S",
    "FROM LINKS/S",
    "TO LINKS/S",
)


class Look(NamedTuple):
    """What one broker says at one moment."""

    summary: dict[str, Any]
    topology: dict[str, Any]
    topics: dict[str, Any]
    alarms: list[dict[str, str]]


def look(port: AdminPort) -> Look:
    """Return what the broker at an admin port says. Raises StatusError."""
    summary = port.get("/summary", timeout=ANSWER_TIMEOUT)
    topology = port.get("/topology", timeout=ANSWER_TIMEOUT)
    alarms = port.get("/alarms", timeout=ANSWER_TIMEOUT)["alarms"]
    topics: dict[str, Any] = {"topics": [], "total": 0, "others": 0, "others_per_s": 0.0}
    # It may not count topics.
    with contextlib.suppress(StatusError):
        topics = port.get("/topics", {"limit": TOPICS}, ANSWER_TIMEOUT)
    return Look(summary, topology, topics, alarms)


def draw(seen: Look, sort: str, height: int, columns: int, old: str = "") -> list[str]:
    """Return lines of text.

    `seen`: what they show; `sort`: a key of SORTS; `height`, `columns`: of the terminal; `old`: why
    there is nothing newer, "" if there is.
    """
    own = next(broker for broker in seen.topology["brokers"] if broker["here"])
    summary = seen.summary
    counts = "  ".join(
        counted(summary[f"{name}s"], name) for name in ("client", "session", "subscription")
    )
    lines = [
        f"{own['name']}  cluster {seen.topology['cluster']}  "
        f"{counted(summary['brokers'], 'broker')}  {counted(summary['links_up'], 'link')} here  "
        f"up {duration(summary['uptime_s'])}  sorted by {sort}",
        f"here: {counts}  {summary['retained']:,} retained  "
        f"cpu {summary['cpu']:.0%}  kept {size(summary['memory_bytes'])}  "
        f"queued {size(summary['queued_bytes'])}  dropped {rate(summary['dropped_per_s'])}/s",
    ]
    if old:
        lines.append(f"old: {old}")
    lines += [f"{alarm['level']}: {alarm['text']}" for alarm in seen.alarms]
    lines += ["", *table(HEAD, [_broker(row) for row in sorted_brokers(seen.topology, sort)], 40)]
    rows = [[row["topic"], row["per_s"], row["receivers"]] for row in seen.topics["topics"]]
    if rows:
        lines += ["", *table(("TOPIC", "MESSAGES/S", "RECEIVERS HERE"), rows, columns // 2)]
    return [cut(printable(line), columns) for line in lines[:height]]


def sorted_brokers(topology: dict[str, Any], sort: str) -> list[dict[str, Any]]:
    """Return the brokers of a `topology` in order; `sort`: a key of SORTS."""
    key = SORTS[sort]
    if sort == "name":
        return list(topology["brokers"])
    return sorted(topology["brokers"], key=lambda row: -(row[key] or 0))


def _broker(row: dict[str, Any]) -> list[object]:
    state = [
        word
        for word, said in (
            ("root", row["root"]),
            ("draining", row["draining"]),
            ("not reachable", not row["reachable"]),
            ("silent", not row["alive"]),
        )
        if said
    ]
    rates = ("published_per_s", "delivered_per_s", "link_in_per_s", "link_out_per_s")
    numbers = [None if row[key] is None else float(row[key]) for key in rates]
    name = row["name"] or row["address"] or row["id"]
    return [name, ", ".join(state), row["clients"], row["sessions"], *numbers]


class Top:
    """The picture, until it is over."""

    def __init__(
        self, port: AdminPort, *, interval: float, count: int, sort: str, as_json: bool
    ) -> None:
        """`port`: is asked; `interval`: s between two pictures; `count`: pictures, 0: without end;
        `sort`: a key of SORTS; `as_json`: one line of JSON instead of each picture."""
        self._port = port
        self._interval = interval
        self._count = count
        self._sort = sort
        self._json = as_json
        self._seen: Look | None = None
        self._old = ""
        self._keys = not as_json and sys.stdin is not None and sys.stdin.isatty()
        self._terminal = (
            not as_json
            and sys.stdout is not None
            and sys.stdout.isatty()
            and os.environ.get("TERM") != "dumb"
        )

    def run(self) -> int:
        """Show until it is over, and return the exit code. Raises StatusError if there is no first
        answer, and without a terminal if there is no further one."""
        shown = 0
        with self._screen():
            while True:
                self._look()
                self._show()
                shown += 1
                if shown == self._count or self._over(time.monotonic() + self._interval):
                    return 0

    def _look(self) -> None:
        try:
            self._seen, self._old = look(self._port), ""
        except StatusError as error:
            if self._seen is None or not self._terminal:
                raise
            self._old = str(error)

    def _show(self) -> None:
        seen = self._seen
        if seen is None or sys.stdout is None:
            return
        if self._json:
            sys.stdout.write(json_text(seen._asdict()) + "\n")
        elif not self._terminal:
            sys.stdout.write("\n".join(draw(seen, self._sort, 1000, 200)) + "\n\n")
        else:
            columns, height = shutil.get_terminal_size()
            lines = draw(seen, self._sort, height - 2, columns, self._old)
            lines.append(cut("q: end   s: sort by something else", columns))
            sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\r\n" for line in lines) + "\x1b[J")
        sys.stdout.flush()

    def _over(self, end: float) -> bool:
        """Wait for a key until `end` (s, monotonic); return whether it is the one to end."""
        while (left := end - time.monotonic()) > 0:
            if not self._keys:
                time.sleep(left)
                return False
            if not select.select([sys.stdin], [], [], left)[0]:
                return False
            key = os.read(sys.stdin.fileno(), 1)
            if key in (b"q", b"Q", b"\x03", b""):
                return True
            if key in (b"s", b"S"):
                names = list(SORTS)
                self._sort = names[(names.index(self._sort) + 1) % len(names)]
                self._show()
        return False

    @contextlib.contextmanager
    def _screen(self) -> Iterator[None]:
        """Take the terminal, and give it back as it was, however this ends."""
        before = signal.signal(signal.SIGTERM, _interrupt)
        modes = termios.tcgetattr(sys.stdin) if self._keys else None
        try:
            if modes is not None:
                tty.setcbreak(sys.stdin)
            if self._terminal:
                # The other screen, without a cursor.
                sys.stdout.write("\x1b[?1049h\x1b[?25l")
            yield
        finally:
            if self._terminal:
                sys.stdout.write("\x1b[?25h\x1b[?1049l")
                sys.stdout.flush()
            if modes is not None:
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, modes)
            signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def top(arguments: argparse.Namespace) -> int:
    """Carry out `mqttree top`; return the exit code. Raises ConfigError and StatusError."""
    if sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    return Top(
        admin_port(arguments),
        interval=arguments.interval,
        count=arguments.count,
        sort=arguments.sort,
        as_json=arguments.json,
    ).run()
