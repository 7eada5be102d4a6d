"""Looks at a broker once a second: rates, alarms, the history of an hour, changes of the
topology."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from mqttree.broker.io.api import federation
from mqttree.broker.io.api.alarm_history import AlarmHistory
from mqttree.broker.io.api.link_rates import LinkRates

if TYPE_CHECKING:
    import asyncio

    from mqttree.broker.node import Node

INTERVAL: Final = 1.0
"""s between two looks."""

HISTORY: Final = 10
"""looks to one row of the history."""

ROWS: Final = 360
"""rows of the history: an hour."""

MAX_CHANGES: Final = 200
"""changes of the topology that are remembered."""

RATES: Final = (
    "published",
    "delivered",
    "link_in",
    "link_out",
    "bytes_in",
    "bytes_out",
    "dropped",
)
"""Counters whose rates are shown, as of `_counted`."""

COLUMNS: Final = (
    "time",
    *[f"{name}_per_s" for name in RATES],
    "cpu",
    "clients",
    "sessions",
    "subscriptions",
    "retained",
    "queued_bytes",
    "memory_bytes",
    "links_up",
    "brokers",
)
"""Of the history."""


class Monitor:
    """What has been seen of one broker."""

    def __init__(
        self,
        node: Node,
        loop: asyncio.AbstractEventLoop,
        *,
        began: float,
        legs: Callable[[], list[dict[str, Any]]],
        tell: Callable[[str, dict[str, Any]], None],
    ) -> None:
        """`node`: the broker; `loop`: has the clock; `began`: when the broker did (s); `legs`:
        returns the state of its legs; `tell`: is called with kind and data of each event, if
        anybody reads them."""
        self._node = node
        self._loop = loop
        self._legs = legs
        self._tell = tell
        self.watched: Callable[[], bool] = lambda: False
        """Whether anybody reads events."""
        self._began = began
        self._at = loop.time()
        self._counts: Mapping[str, int] = _counted(node)
        self._row_at = self._at
        self._row_counts: Mapping[str, int] = self._counts
        self._cpu = self._row_cpu = time.process_time()
        self.link_rates: LinkRates = LinkRates(self._at)
        """Of the links of this broker."""
        self.link_rates.look(node.cluster.links, self._at)
        self._looks = 0
        self.rows: deque[list[float]] = deque(maxlen=ROWS)
        self.changes: deque[dict[str, Any]] = deque(maxlen=MAX_CHANGES)
        self._shape = federation.shape(node)
        self._names: dict[bytes, str] = {}
        self._rates = dict.fromkeys(RATES, 0.0)
        self.cpu = 0.0
        """The share of one processor core that the broker used in the last second."""
        self._before = _faults(node)
        self._new_faults: dict[str, tuple[int, float]] = {}
        self.alarm_history = AlarmHistory()
        self._note([])
        self._due = self._at + INTERVAL
        self._timer = loop.call_at(self._due, self._look)

    def close(self) -> None:
        """Look no more."""
        self._timer.cancel()

    # ---------------------------------------------------------------- once a second

    def _look(self) -> None:
        now = self._loop.time()
        # Looks that a broker which was stopped has missed are not made up for.
        self._due = max(self._due + INTERVAL, now)
        self._timer = self._loop.call_at(self._due, self._look)
        counts, cpu = _counted(self._node), time.process_time()
        seconds = max(1e-3, now - self._at)
        self._rates = {name: (counts[name] - self._counts[name]) / seconds for name in RATES}
        self.cpu = (cpu - self._cpu) / seconds
        self._at, self._counts, self._cpu = now, counts, cpu
        self.link_rates.look(self._node.cluster.links, now)
        self._look_for_faults(now)
        self.alarm_history.look(self.alarms(), time.time())
        self._looks += 1
        if self._looks % HISTORY == 0:
            self._add_row(now, counts, cpu)
        changed = self._look_at_shape()
        if self.watched():
            self._tell("summary", self.summary())
            if changed or self._looks % 5 == 0:
                self._tell("topology", federation.topology(self._node, now, self.link_rates))

    def _look_for_faults(self, now: float) -> None:
        faults = _faults(self._node)
        for name, number in faults.items():
            if number > self._before[name]:
                before, at = self._new_faults.get(name, (0, now))
                since = before if now - at < FRESH else 0
                self._new_faults[name] = (since + number - self._before[name], now)
        self._before = faults

    def _add_row(self, now: float, counts: Mapping[str, int], cpu: float) -> None:
        seconds = max(1e-3, now - self._row_at)
        rates = [(counts[name] - self._row_counts[name]) / seconds for name in RATES]
        share = (cpu - self._row_cpu) / seconds
        self._row_at, self._row_counts, self._row_cpu = now, counts, cpu
        sizes = self._sizes()
        rest = [float(sizes[name]) for name in COLUMNS[len(RATES) + 2 :]]
        self.rows.append(
            [round(each, 3) for each in (time.time(), *rates)] + [round(share, 4), *rest]
        )

    def _look_at_shape(self) -> bool:
        shape = federation.shape(self._node)
        if shape == self._shape:
            return False
        (old_root, old_there, old_tree), (root, there, tree) = self._shape, shape
        lines = [f"{self._name(each)} can be reached" for each in sorted(there - old_there)]
        lines += [f"{self._name(each)} cannot be reached" for each in sorted(old_there - there)]
        if root != old_root:
            lines.append(f"{self._name(root)} is the root, before it was {self._name(old_root)}")
        for text, ends in (("is part of", tree - old_tree), ("has left", old_tree - tree)):
            lines += [
                f"the link between {self._name(a)} and {self._name(b)} {text} the tree"
                for a, b in sorted(ends)
            ]
        self._shape = shape
        self._note(lines)
        return True

    def _note(self, lines: list[str]) -> None:
        root, there, tree = self._shape
        change = {
            "time": round(time.time(), 3),
            "text": lines,
            "root": root.hex(),
            "brokers": [each.hex() for each in sorted(there)],
            "links": [[a.hex(), b.hex()] for a, b in sorted(tree)],
        }
        self.changes.append(change)
        if lines and self.watched():
            self._tell("change", change)

    def _name(self, broker_id: bytes) -> str:
        """Return the name of a broker, or its id; of one that is forgotten, its last name."""
        config = self._node.config
        if broker_id == config.id:
            return config.name
        name = self._node.cluster.membership.name_of(broker_id)
        if name and len(self._names) < 2048:
            self._names[broker_id] = name
        return name or self._names.get(broker_id) or broker_id.hex()

    # ---------------------------------------------------------------- what it has seen

    def _sizes(self) -> dict[str, int]:
        node = self._node
        return {
            "clients": node.clients.connected,
            "sessions": len(node.sessions),
            "subscriptions": node.dispatcher.subscriptions,
            "retained": len(node.retained),
            "queued_bytes": node.memory.queued,
            "memory_bytes": node.memory.used,
            "links_up": sum([link.up for link in node.cluster.links.values()]),
            "brokers": 1 + len(node.cluster.database.reachable()),
        }

    def summary(self) -> dict[str, Any]:
        """Return rates of the last second, and counts."""
        return {
            "time": round(time.time(), 3),
            "uptime_s": round(self._loop.time() - self._began, 3),
            **{f"{name}_per_s": round(rate, 3) for name, rate in self._rates.items()},
            "cpu": round(self.cpu, 4),
            **self._sizes(),
            "memory_limit_bytes": self._node.memory.limit,
            "alarms": len(self.alarms()),
        }

    def history(self) -> dict[str, Any]:
        """Return the last hour."""
        return {
            "interval_s": INTERVAL * HISTORY,
            "columns": list(COLUMNS),
            "rows": list(self.rows),
        }

    def alarms(self) -> list[dict[str, Any]]:
        """Return what needs attention, errors first."""
        found: list[dict[str, Any]] = [{"text": text} for text in self._errors()]
        found += self._node.cluster.gone_brokers.alarms()
        found += [{"level": "warning", "text": text} for text in self._warnings()]
        return [{**ALARM, **each} for each in found]

    def _errors(self) -> list[str]:
        node, now = self._node, self._loop.time()
        errors = []
        if not node.journal.healthy:
            errors.append("the journal is not written")
        if node.cluster.id_conflict.refuses_clients:
            errors.append(f"another broker has this one's id: {node.cluster.id_conflict.other}")
        reachable = {listing.id for listing in node.cluster.database.reachable()}
        for broker_id, _, _, alive in node.cluster.membership.members(now):
            if alive and broker_id not in reachable:
                errors.append(f"no path leads to {self._name(broker_id)}, which is alive")
        for leg in self._legs():
            if leg["state"] != "up":
                errors.append(f"leg {leg['name']} is not up: {leg['state']}")
        if node.memory.limit and node.memory.used > 0.8 * node.memory.limit:
            errors.append("more than 80 % of memory_limit are in use")
        return errors

    def _warnings(self) -> list[str]:
        warnings = [] if self._node.drain is None else ["this broker drains"]
        warnings += [
            f"the link to {self._name(peer)} is not up"
            for peer, link in self._node.cluster.links.items()
            if not link.up
        ]
        now = self._loop.time()
        for name, (number, at) in self._new_faults.items():
            if now - at < FRESH:
                warnings.append(f"{FAULTS[name]}: {number:,} within {FRESH:g} s")
        return warnings


ALARM: Final[Mapping[str, Any]] = {
    "level": "error",
    "text": "",
    "id": None,
    "name": None,
    "since": None,
    "seen_by": [],
    "ended": None,
}
"""An alarm of no broker that is gone; `schemas` says what the keys mean."""

FRESH: Final = 60.0
"""s for which something that was counted is an alarm."""

FAULTS: Final = {
    "dropped_slow_consumer": "messages dropped, as clients read too slowly",
    "dropped_queue_full": "messages dropped, as queues of clients are full",
    "dropped_memory": "messages dropped, as memory is short",
    "dropped_link": "messages dropped at a link",
    "retained_clock_ahead": "messages of brokers whose clock is ahead",
    "link_wrong_secret": "links with a wrong cluster secret",
    "turns_long": "times that clients waited for more than 50 ms, as broker or machine was busy",
    "plugin_errors": "errors of plugins",
    "admin_unauthorized": "requests to the admin port without its token",
}
"""Counters that are alarms while they grow."""


def _faults(node: Node) -> dict[str, int]:
    return {name: int(getattr(node.counters, name)) for name in FAULTS}


def _counted(node: Node) -> dict[str, int]:
    counters = node.counters
    return {
        "published": counters.published,
        "delivered": counters.delivered,
        "link_in": counters.received_link,
        "link_out": counters.forwarded,
        "bytes_in": counters.bytes_received,
        "bytes_out": counters.to_clients.sent,
        "dropped": counters.dropped + counters.dropped_memory + counters.dropped_link,
    }
