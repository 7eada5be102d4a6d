"""The filter of announcements: it refuses other clusters, wrong secrets, replays and garbage,
counts each, and logs seldom."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from mqttree.discovery.announcement import Announcement, AnnouncementError, decode

MAX_SEEN = 2048
"""Brokers whose last announcement is remembered: twice the members, so that announcements of those
that left cannot be replayed."""
MAX_COMPLAINTS = 256
"""Source hosts about which a line was logged within the last minute; more of them are only
counted."""
COMPLAINT_INTERVAL = 60.0
REPEAT_WINDOW = 2.0
"""Seconds in which a second copy of a datagram is no replay: it came over another interface."""
REORDER_WINDOW = 10.0
"""Without a secret, an older announcement is refused only this long: a forged counter must not
silence a broker."""
STALE_WINDOW = 60.0
"""The same for a forged boot number, in seconds since it was heard."""

_COUNTER_OF_KIND = {
    "garbage": "garbage",
    "version": "wrong_version",
    "cluster": "wrong_cluster",
    "secret": "wrong_secret",
    "source": "replayed",
    "replay": "replayed",
    "clock": "wrong_clock",
}


@dataclass(slots=True, eq=False, repr=False)
class _Seen:
    boot: int
    counter: int
    at: float


class AnnouncementFilter:
    """Accepts or refuses each datagram before anything else sees it. Its tables are bounded and
    contain accepted announcements only."""

    def __init__(
        self,
        cluster: str,
        secret: bytes | None,
        clock_window: float,
        counters: dict[str, int],
        complain: Callable[[str], None],
    ) -> None:
        """`cluster`: the cluster's name. `secret`: its secret, None for none. `clock_window`: by
        how many seconds clocks may differ. `counters`: refused announcements are counted there, by
        kind. `complain`: called with a line for the log."""
        self._cluster = cluster
        self._secret = secret
        self._clock_window = clock_window
        self._counters = counters
        self._complain = complain
        # Least recently heard first.
        self._seen: OrderedDict[bytes, _Seen] = OrderedDict()
        # Source host -> time, oldest first.
        self._complaints: dict[str, float] = {}

    def decode(self, data: bytes, source: tuple[str, int], now: float) -> Announcement | None:
        """Return the announcement in the datagram `data` from `source` (host, UDP port), received
        at `now` (s); None if it is refused, which is then counted and logged."""
        try:
            announcement = decode(data, self._secret, self._cluster, source[0])
            announcement.address_from(source)
        except AnnouncementError as error:
            self.refuse(error.kind, str(error), source, now)
        except ValueError as error:
            self.refuse("garbage", f"source of a datagram: {error}", source, now)
        else:
            return announcement
        return None

    def fresh(
        self, announcement: Announcement, source: tuple[str, int], now: float, wall: float
    ) -> bool:
        """Return whether `announcement`, which came from `source` (host, UDP port), is newer than
        all others of its broker, and remember it if so.

        `now`: s, monotonic. `wall`: the time of day (s since the epoch). With a secret every older
        announcement is a replay. Without one anything can be forged: then only old boot numbers and
        announcements out of order are refused.
        """
        secret = self._secret is not None
        if secret and abs(announcement.wall - wall) > self._clock_window:
            difference = f"{announcement.wall - wall:+.0f} s, more than {self._clock_window:g} s"
            self.refuse(
                "clock",
                f"clock of broker {announcement.id.hex()} differs by {difference}",
                source,
                now,
            )
            return False
        seen = self._seen.get(announcement.id)
        if seen is not None:
            age = now - seen.at
            if announcement.boot < seen.boot:
                if secret:
                    self.refuse(
                        "replay",
                        f"announcement of an earlier incarnation of {announcement.id.hex()}",
                        source,
                        now,
                    )
                    return False
                if age < STALE_WINDOW:
                    self._counters["stale_boot"] += 1
                    return False
            if announcement.boot == seen.boot and announcement.counter <= seen.counter:
                if age < REPEAT_WINDOW or (not secret and age < REORDER_WINDOW):
                    self._counters["repeated"] += 1
                    return False
                if secret:
                    self.refuse(
                        "replay",
                        f"announcement of {announcement.id.hex()} was received before",
                        source,
                        now,
                    )
                    return False
            del self._seen[announcement.id]
        elif len(self._seen) >= MAX_SEEN and not self._make_room(now):
            self._counters["table_full"] += 1
            return False
        self._seen[announcement.id] = _Seen(announcement.boot, announcement.counter, now)
        return True

    def refuse(self, kind: str, reason: str, source: tuple[str, int], now: float) -> None:
        """Count a refused announcement, and log it once a minute for each host at most.

        `kind`: which counter. `reason`: for the log. `source`: host and UDP port. `now`: s.
        Announcements of other clusters are not logged: they are no fault.
        """
        self._counters[_COUNTER_OF_KIND[kind]] += 1
        if kind == "cluster":
            return
        complaints = self._complaints
        while complaints:
            host, at = next(iter(complaints.items()))
            if now - at < COMPLAINT_INTERVAL:
                break
            del complaints[host]
        if source[0] in complaints or len(complaints) >= MAX_COMPLAINTS:
            return
        complaints[source[0]] = now
        self._complain(f"datagram from {source[0]} ignored: {reason}")

    def _make_room(self, now: float) -> bool:
        """Forget the broker that was silent longest; with a secret only when the clock check
        refuses every replay."""
        broker_id, seen = next(iter(self._seen.items()))
        if self._secret is not None and now - seen.at <= 2 * self._clock_window:
            return False
        del self._seen[broker_id]
        return True
