"""What the live view knows: counts of windows of each run, and lines made of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from mqttree.bench.load.histogram import Histogram, upper
from mqttree.bench.tables.render import figure

HEAD = (
    "run",
    "s",
    "published/s",
    "accepted/s",
    "delivered/s",
    "delay ms",
    "p99 ms",
    "joined",
    "control B",
    "data B",
    "cpu",
    "faults",
    "notes",
)
MAX_WINDOWS = 2_000
"""Windows that are remembered; older ones are forgotten first."""
SETTLED_S = 15.0
"""s after which nothing more is expected of a window: other processes complete a file every 5 s."""
_FAULTS = ("fault", "restart")


class Key(NamedTuple):
    """What is counted together. window: number of the window by the host's clock. complete: when
    the files were complete (a part of a window each). who: a broker, of what is of one."""

    run: str
    host: str
    window: int
    complete: int
    what: str
    who: str


class Count(NamedTuple):
    """How many events, bytes in all, ns of the first and the last one, s of CPU at the first and
    the last sample."""

    n: int
    size: int
    first: int
    last: int
    cpu_first: float | None
    cpu_last: float | None


@dataclass
class _Window:
    """One window of one run and host."""

    counts: dict[tuple[int, str, str], Count] = field(default_factory=dict)
    delays: Histogram = field(default_factory=Histogram)
    changed: float = 0.0

    def total(self, *what: str) -> int:
        return sum(count.n for key, count in self.counts.items() if key[1] in what)

    def bytes(self, what: str) -> int | None:
        sizes = [count.size for key, count in self.counts.items() if key[1] == what]
        return sum(sizes) if sizes else None

    def cpu(self) -> list[float]:
        """Cores that each broker used between its first and its last sample; of one that was
        started again meanwhile nothing is known."""
        anew = {key[2] for key in self.counts if key[1] in ("start", "restart")}
        used: dict[str, list[Count]] = {}
        for key, count in self.counts.items():
            if key[1] == "resources" and key[2] not in anew and count.cpu_first is not None:
                used.setdefault(key[2], []).append(count)
        found = []
        for mine in used.values():
            time = max(count.last for count in mine) - min(count.first for count in mine)
            spent = max(count.cpu_last or 0 for count in mine) - min(
                count.cpu_first or 0 for count in mine
            )
            if time > 0:
                found.append(spent / time * 1e9)
        return found


class LiveView:
    """Takes what the streams say, in whatever order, and makes lines of it."""

    def __init__(self, window_s: float) -> None:
        """A window has `window_s` seconds."""
        self._width = window_s
        self._windows: dict[tuple[str, str, int], _Window] = {}
        self._zero: dict[tuple[str, str], int] = {}
        self._printed: set[tuple[str, int]] = set()

    def counted(self, rows: Iterable[tuple[Key, Count]], now: float = 0.0) -> None:
        """Take counts as they are `now` (s): those of the same key that were said before are no
        more."""
        for key, count in rows:
            window = self._window(key.run, key.host, key.window, now)
            window.counts[key.complete, key.what, key.who] = count

    def delayed(self, rows: Iterable[tuple[str, str, int, int, int]], now: float = 0.0) -> None:
        """Take deliveries whose publication is known `now` (s), beside those that were said before:
        run, host, window, bucket (mqttree.bench.load.histogram), how many."""
        for run, host, number, bucket, n in rows:
            delays = self._window(run, host, number, now).delays
            delays.counts[bucket] = delays.counts.get(bucket, 0) + n
            delays.total += n
            delays.maximum = max(delays.maximum, upper(bucket))

    def _window(self, run: str, host: str, number: int, now: float) -> _Window:
        self._zero[run, host] = min(self._zero.get((run, host), number), number)
        found = self._windows.get((run, host, number))
        if found is None:
            found = self._windows[run, host, number] = _Window()
            while len(self._windows) > MAX_WINDOWS:
                del self._windows[next(iter(self._windows))]
        found.changed = now
        return found

    def rows(self) -> list[tuple[str, int, list[str]]]:
        """Return each run's windows in turn: run, number of the window since the run's first one,
        and what stands below HEAD. Hosts' clocks differ: each counts from its own first window."""
        groups: dict[tuple[str, int], list[_Window]] = {}
        for (run, host, number), window in self._windows.items():
            groups.setdefault((run, number - self._zero[run, host]), []).append(window)
        order = {run: place for place, run in enumerate(dict.fromkeys(run for run, _ in groups))}
        return [
            (run, number, self._cells(run, number, groups[run, number]))
            for run, number in sorted(groups, key=lambda key: (order[key[0]], key[1]))
        ]

    def settled(self, now: float, over: bool = False) -> list[list[str]]:
        """Return what was not returned before of windows that have not changed for SETTLED_S until
        `now` (s); of all windows when it is `over`."""
        young = {
            (run, number - self._zero[run, host])
            for (run, host, number), window in self._windows.items()
            if now - window.changed < SETTLED_S
        }
        found = []
        for run, number, cells in self.rows():
            if (run, number) not in self._printed and (over or (run, number) not in young):
                self._printed.add((run, number))
                found.append(cells)
        return found

    def _cells(self, run: str, number: int, windows: list[_Window]) -> list[str]:
        def rate(what: str) -> str:
            return figure(sum(window.total(what) for window in windows) / self._width)

        def sizes(what: str) -> str:
            known = [size for window in windows if (size := window.bytes(what)) is not None]
            return figure(sum(known)) if known else "-"

        delays = Histogram()
        delays.merge(window.delays for window in windows)
        came = sum(window.total("delivered") for window in windows)
        cpu = [share for window in windows for share in window.cpu()]
        mean = sum(upper(bucket) * n for bucket, n in delays.counts.items()) / max(delays.total, 1)
        return [
            run,
            f"{number * self._width:g}",
            *(rate(what) for what in ("published", "accepted", "delivered")),
            figure(mean / 1e6) if delays.total else "-",
            figure(delays.percentile(99)) if delays.total else "-",
            f"{min(delays.total / came, 1):.0%}" if delays.total and came else "-",
            sizes("control"),
            sizes("forwarded"),
            figure(sum(cpu) / len(cpu)) if cpu else "-",
            str(sum(window.total(*_FAULTS) for window in windows)),
            str(sum(window.total("note") for window in windows)),
        ]
