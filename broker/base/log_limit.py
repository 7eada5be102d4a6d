"""Log lines that peers cause: one line a minute for each cause and host; the others are counted.

A peer that sends garbage as fast as it can must not fill the disk with lines, nor hide what others
do. The first line of a cause from a host is logged at once. Those that follow within a minute are
logged at the level debug only, and one line at the end of the minute gives their number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from mqttree.broker.base.counters import Counters
from mqttree.broker.base.timers import TimedBroker

REPEAT_INTERVAL_S = 60.0
"""s in which one line is logged of each cause and host that peers bring about; the others are
counted [log_lines_suppressed]."""

MAX_SOURCES = 1024
"""pairs of cause and host that the log's limit distinguishes, 300 bytes each; further hosts
count as one for each cause."""

MAX_CAUSES_PER_HOST = 20
"""causes of one host that the log's limit distinguishes: what is wrong with a packet is one
each, and a peer can make many up."""

MANY = "several hosts"
"""Replaces hosts that are too many to be distinguished."""

OTHER = "other causes"
"""Replaces causes of one host that are too many to be distinguished."""


class Logging(TimedBroker, Protocol):
    """What the limit asks of the broker."""

    @property
    def log(self) -> Callable[[str, str], None]:
        """Writes a line at a level."""

    @property
    def counters(self) -> Counters:
        """The counters of this broker, in which each suppressed line is counted."""


class _Minute:
    """The lines of one cause and host since the first one that was logged."""

    __slots__ = ("level", "logged", "suppressed")

    def __init__(self, level: str) -> None:
        self.level = level
        self.logged = 0
        self.suppressed = 0


class LogLimit:
    """Logs lines that peers cause. Its table holds about `MAX_SOURCES` pairs of cause and
    host at most."""

    def __init__(self, node: Logging) -> None:
        self._node = node
        self._minutes: dict[tuple[str, str], _Minute] = {}
        # Number of entries of each host.
        self._causes: Counter[str] = Counter()

    def line(self, level: str, cause: str, peer: str, text: str, most: int = 1) -> None:
        """Log `text` at `level`, unless `most` lines of the same `cause` from the same host were
        logged within the last minute.

        `cause`: a few words that all such lines share. `peer`: HOST:PORT; the port does not count,
        because every connection has another one.
        """
        key = (cause, host_of(peer))
        minute = self._minutes.get(key)
        if minute is None:
            minute = self._begin(level, *key)
        if minute.logged < most:
            minute.logged += 1
            self._node.log(level, text)
        else:
            minute.suppressed += 1
            self._node.counters.log_lines_suppressed += 1
            self._node.log("debug", text)

    def _begin(self, level: str, cause: str, host: str) -> _Minute:
        """Return a new entry for a pair of cause and host; one for many hosts or causes where the
        table is full."""
        if len(self._minutes) >= MAX_SOURCES:
            host = MANY
        if self._causes[host] >= MAX_CAUSES_PER_HOST:
            cause = OTHER
        key = (cause, host)
        minute = self._minutes.get(key)
        if minute is None:
            minute = self._minutes[key] = _Minute(level)
            self._causes[host] += 1
            self._node.timers.schedule(
                self._node.now + REPEAT_INTERVAL_S, lambda now: self._over(key)
            )
        return minute

    def _over(self, key: tuple[str, str]) -> None:
        """Log how many lines were suppressed. The next minute begins with the next line."""
        minute = self._minutes.pop(key)
        self._causes[key[1]] -= 1
        if not self._causes[key[1]]:
            del self._causes[key[1]]
        if minute.suppressed:
            cause, host = key
            count = minute.suppressed
            text = (
                f"{cause}: {count:,} more {'line' if count == 1 else 'lines'} from {host} "
                f"within {REPEAT_INTERVAL_S:g} s"
            )
            self._node.log(minute.level, text)


def host_of(peer: str) -> str:
    """Return the host of HOST:PORT, and any other text as it is."""
    host, colon, port = peer.rpartition(":")
    return host if colon and port.isdecimal() else peer
