"""What the tables should say of a trace, worked out message by message in plain Python; and how test traces are written."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.load.histogram import bucket, upper
from bench.trace import Writer

Event = tuple[str, tuple[Any, ...]]
"""A method of Writer and its arguments, the time first."""


@dataclass
class Script:
    """A run: what its two processes note, in order; killed: those that are ended before they complete their last file."""

    run: str
    publishers: list[Event] = field(default_factory=list)
    subscribers: list[Event] = field(default_factory=list)
    window: tuple[int, int] | None = None
    killed: frozenset[str] = frozenset()
    about: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write run.json and the trace."""
        place = folder / self.run
        place.mkdir(parents=True)
        about = {"run": self.run, "scenario": "random", "status": "complete", "topology": {"brokers": ["b0", "b1"]}} | self.about
        if self.window:
            about |= {"measure_from_ns": self.window[0], "measure_to_ns": self.window[1]}
        (place / "run.json").write_text(json.dumps(about))
        for process, events in (("publishers", self.publishers), ("subscribers", self.subscribers)):
            writer = Writer(place / "trace", run=self.run, scenario="random", process=process)
            for name, arguments in events:
                getattr(writer, name)(*arguments)
            if process in self.killed:
                end(writer)
            else:
                writer.close()


def end(writer: Writer) -> None:
    """Leave a writer's trace as kill -9 does: complete files, and one that is not."""
    writer.rotate()
    writer.note(1, "lost")
    writer._flush_all()
    part = writer._names()
    while not writer._queue.empty():
        pass
    part.with_name(f".{part.name}.part").write_bytes(b"PAR1")


def matches(filter: str, topic: str) -> bool:
    """Whether a filter without a share matches."""
    if topic.startswith("$") and filter[0] in "+#":
        return False
    wanted, have = filter.split("/"), topic.split("/")
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= len(have) or level not in ("+", have[index]):
            return False
    return len(wanted) == len(have)


def expected(script: Script) -> dict[str, Any]:
    """Return the figures of a run as a whole, by the names of the table of runs."""
    since, until = script.window or (-math.inf, math.inf)
    sent: dict[tuple[int, int], tuple[Any, ...]] = {}
    for name, arguments in sorted(script.publishers, key=lambda event: event[1][0]):
        if name == "published":
            sent.setdefault((arguments[1], arguments[2]), arguments)
    answered = {arguments[1:3] for name, arguments in script.publishers if name == "accepted"}
    counted = {key for key, arguments in sent.items() if since <= arguments[0] < until}
    came = [arguments for name, arguments in script.subscribers if name == "delivered"]
    spells = _spells(script)
    receiver = _receivers(spells)
    first: dict[tuple[str, tuple[int, int]], int] = {}
    figures: dict[str, Any] = defaultdict(int)
    for arguments in sorted(came, key=lambda each: each[0]):
        at, key, who = arguments[0], arguments[1:3], receiver.get(arguments[3], arguments[3])
        figures["strays"] += key not in sent
        if (who, key) in first:
            figures["duplicates"] += key in counted
        else:
            first[who, key] = at
    topics = {key: arguments[5] for key, arguments in sent.items()}
    topics |= {arguments[1:3]: arguments[5] for arguments in came if arguments[1:3] not in topics}
    for (who, key), at in first.items():
        newer = [
            other_at
            for (other, later), other_at in first.items()
            if other == who and later[0] == key[0] and later[1] > key[1] and topics[later] == topics[key]
        ]
        late = key in counted and not who.startswith("$share/") and any(at > other for other in newer)
        figures["disordered"] += late
    delays = sorted(max(at - sent[key][0], 0) for (who, key), at in first.items() if key in counted)
    figures["early"] = sum(at < sent[key][0] for (who, key), at in first.items() if key in counted)
    figures |= {"published": len(counted), "accepted": len(counted & answered), "delivered": len(delays)}
    _losses(figures, spells, first, counted, answered, sent, topics, "subscribers" in script.killed)
    if delays:
        figures["delay_mean_ms"] = sum(delays) / len(delays) / 1e6
        figures["delay_max_ms"] = delays[-1] / 1e6
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)):
            exact = delays[max(math.ceil(len(delays) * share), 1) - 1]
            figures[f"delay_{name}_ms"] = min(upper(bucket(exact)), delays[-1]) / 1e6
    return dict(figures)


def _spells(script: Script) -> list[tuple[str, str, float, float]]:
    """Receiver's client, filter with share, since, until."""
    found = []
    for name, arguments in script.subscribers:
        if name == "subscribed":
            at, client, _broker, filter, _qos = arguments
            ends = [
                a[0] for n, a in script.subscribers if n == "unsubscribed" and a[1] == client and a[3] == filter and a[0] > at
            ]
            found.append((client, filter, at, min(ends, default=math.inf)))
    return found


def _group(client: str, filter: str) -> tuple[str, str]:
    share = re.match(r"\$share/([^/]+)/(.*)$", filter)
    return (f"$share/{share[1]}", share[2]) if share else (client, filter)


def _receivers(spells: list[tuple[str, str, float, float]]) -> dict[str, str]:
    """Clients that are members of one group only."""
    all_of = defaultdict(set)
    for client, filter, _since, _until in spells:
        all_of[client].add(_group(client, filter)[0])
    return {client: next(iter(found)) for client, found in all_of.items() if len(found) == 1}


def _losses(
    figures: dict[str, Any], spells: Any, first: Any, counted: Any, answered: Any, sent: Any, topics: Any, killed: bool
) -> None:
    if not spells:
        return
    due = set()
    for key in counted:
        at, topic = sent[key][0], topics[key]
        for client, filter, since, until in spells:
            who, plain = _group(client, filter)
            if matches(plain, topic) and since <= at < until:
                due.add((who, key))
    missing = {each for each in due if each not in first}
    figures["expected"] = len(due)
    figures["unknown" if killed else "lost"] = len(missing)
    figures["lost" if killed else "unknown"] = 0
    figures["lost_accepted"] = 0 if killed else sum(key in answered for _, key in missing)
    figures["unexpected"] = sum(key in counted and (who, key) not in due for who, key in first)
