"""What the tables should say of a trace, worked out message by message in plain Python; and how
test traces are written."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mqttree.bench.load.histogram import bucket, upper
from mqttree.bench.trace import Writer

UNSURE = 6
"""ns around an interruption; a trace in which all happens within some hundred ns has no use for a
second."""
Spell = tuple[str, str, float, float]
"""Client, filter with share, since, until."""

Event = tuple[str, tuple[Any, ...]]
"""A method of Writer and its arguments, the time first."""


@dataclass
class Script:
    """A run: what its two processes note, in order; killed: those that are ended before they
    complete their last file."""

    run: str
    publishers: list[Event] = field(default_factory=list)
    subscribers: list[Event] = field(default_factory=list)
    window: tuple[int, int] | None = None
    load: tuple[int, int] | None = None
    """The window with the ramps beside it."""
    killed: frozenset[str] = frozenset()
    about: dict[str, Any] = field(default_factory=dict)
    hosts: tuple[str, str] = ("local", "local")
    """Of the publishers' process, and of the subscribers'."""

    def write(self, folder: Path) -> None:
        """Write run.json and the trace."""
        place = folder / self.run
        place.mkdir(parents=True)
        about = {
            "run": self.run,
            "scenario": "random",
            "status": "complete",
            "topology": {"brokers": ["b0", "b1"]},
        } | self.about
        if self.window:
            about |= {"measure_from_ns": self.window[0], "measure_to_ns": self.window[1]}
        if self.load:
            about |= {"load_from_ns": self.load[0], "load_to_ns": self.load[1]}
        (place / "run.json").write_text(json.dumps(about))
        both = (("publishers", self.publishers), ("subscribers", self.subscribers))
        for host, (process, events) in zip(self.hosts, both, strict=True):
            writer = Writer(
                place / "trace",
                run=self.run,
                scenario=about["scenario"],
                process=process,
                host=host,
            )
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
    begins, ends = script.load or (since, until)
    counted = {key for key, arguments in sent.items() if begins <= arguments[0] < ends}
    timed = {key for key, arguments in sent.items() if since <= arguments[0] < until}
    due = {key: each[0] - (each[9] if len(each) > 9 else 0) for key, each in sent.items()}
    came = [arguments for name, arguments in script.subscribers if name == "delivered"]
    topics = {key: arguments[5] for key, arguments in sent.items()}
    topics |= {arguments[1:3]: arguments[5] for arguments in came if arguments[1:3] not in topics}
    spells = _spells(script)
    receivers, vague = _receivers(spells, {topics[key] for key in counted})
    copies: dict[Any, int] = defaultdict(int)
    first: dict[tuple[str, tuple[int, int]], int] = {}
    figures: dict[str, Any] = defaultdict(int)
    for arguments in sorted(came, key=lambda each: each[0]):
        at, key, client = arguments[0], arguments[1:3], arguments[3]
        mine = receivers.get((client, topics[key]), [client])
        who = mine[min(copies[client, key], len(mine) - 1)]
        copies[client, key] += 1
        figures["unmatched"] += key not in sent
        if (who, key) in first:
            figures["duplicates"] += key in counted and (who, topics[key]) not in vague
        else:
            first[who, key] = at
    for (who, key), at in first.items():
        newer = [
            other_at
            for (other, later), other_at in first.items()
            if other == who
            and later[0] == key[0]
            and later[1] > key[1]
            and topics[later] == topics[key]
        ]
        late = (
            key in counted and not who.startswith("$share/") and any(at > other for other in newer)
        )
        figures["reordered"] += late
    delays = sorted(max(at - due[key], 0) for (who, key), at in first.items() if key in timed)
    after = [max(at - sent[key][0], 0) for (who, key), at in first.items() if key in timed]
    figures["early"] = sum(at < sent[key][0] for (who, key), at in first.items() if key in counted)
    figures |= {
        "published": len(counted),
        "accepted": len(counted & answered),
        "delivered": sum(key in counted for _, key in first),
    }
    _losses(
        figures,
        spells,
        first,
        counted,
        answered,
        sent,
        topics,
        vague,
        "subscribers" in script.killed,
    )
    _delays(figures, delays, after)
    return dict(figures)


def _delays(figures: Any, delays: list[int], after: list[int]) -> None:
    """Set the figures of delays: from when messages were due (sorted), and `after` the send."""
    if delays:
        figures["delay_mean_ms"] = sum(delays) / len(delays) / 1e6
        figures["delay_max_ms"] = delays[-1] / 1e6
        figures["delay_sent_mean_ms"] = sum(after) / len(after) / 1e6
        least = min(upper(bucket(sorted(after)[math.ceil(len(after) * 0.99) - 1])), delays[-1])
        figures["delay_sent_p99_ms"] = least / 1e6
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)):
            exact = delays[max(math.ceil(len(delays) * share), 1) - 1]
            figures[f"delay_{name}_ms"] = min(upper(bucket(exact)), delays[-1]) / 1e6


def _spells(script: Script) -> list[Spell]:
    """Every subscription."""
    found = []
    for name, arguments in script.subscribers:
        if name == "subscribed":
            at, client, broker, filter, _qos = arguments
            mine = (client, broker, filter)
            ends = [
                a[0]
                for n, a in script.subscribers
                if n == "unsubscribed" and a[1:4] == mine and a[0] > at
            ]
            found.append((client, filter, at, min(ends, default=math.inf)))
    return found


def _receiver(spell: Spell) -> tuple[str, str]:
    """Whom a subscription is of, and its filter."""
    share = re.match(r"\$share/[^/]+/(.*)$", spell[1])
    return (spell[1], share[1]) if share else (spell[0], spell[1])


def _receivers(
    spells: list[Spell], topics: set[str]
) -> tuple[dict[tuple[str, str], list[str]], set[tuple[str, str]]]:
    """By client and topic, for whom messages come: the client itself first; and receivers and
    topics that cannot be distinguished."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for spell in spells:
        who, plain = _receiver(spell)
        for topic in topics:
            if matches(plain, topic):
                found[spell[0], topic].add(who)
    vague = set()
    for (client, topic), all_of in found.items():
        if len(all_of - {client}) > 1:
            vague |= {(who, topic) for who in all_of}
    return {
        key: sorted(all_of, key=lambda who: (who.startswith("$share/"), who))
        for key, all_of in found.items()
    }, vague


def _gaps(spells: list[Spell], who: str, topic: str) -> list[tuple[float, float]]:
    """When each member of a receiver did not get a topic, after it once did."""
    mine: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for spell in spells:
        if _receiver(spell)[0] == who and matches(_receiver(spell)[1], topic):
            mine[spell[0]].append((spell[2], spell[3]))
    result = []
    for each in mine.values():
        for lost in {until for _, until in each if until < math.inf}:
            if not any(since <= lost < until for since, until in each):
                result.append(
                    (lost, min((since for since, _ in each if since > lost), default=math.inf))
                )
    return result


def _losses(
    figures: Any,
    spells: Any,
    first: Any,
    counted: Any,
    answered: Any,
    sent: Any,
    topics: Any,
    vague: Any,
    killed: bool,
) -> None:
    """Compare what should have come with what did. vague: receivers and topics; killed: whoever
    noted deliveries."""
    if not spells:
        return
    due = set()
    for key in counted:
        at, topic = sent[key][0], topics[key]
        for spell in spells:
            who, plain = _receiver(spell)
            if matches(plain, topic) and spell[2] <= at < spell[3]:
                due.add((who, key))
    figures["unexpected"] = sum(key in counted and (who, key) not in due for who, key in first)
    for who, key in sorted(due - first.keys()):
        if any(
            lost - UNSURE <= sent[key][0] <= back + UNSURE
            for lost, back in _gaps(spells, who, topics[key])
        ):
            due.discard((who, key))
    figures["expected"] = len(due)
    missing = due - first.keys()
    known = (
        set() if killed else {(who, key) for who, key in missing if (who, topics[key]) not in vague}
    )
    figures["lost"], figures["unknown"] = len(known), len(missing - known)
    figures["lost_accepted"] = sum(key in answered for _, key in known)
