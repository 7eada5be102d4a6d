"""Workloads from files: ours (`clients`, `rates`, and for numbers of brokers who publishes where),
those that the authors of the paper published (`publisher`, `subscriber`), and graphs (lines of who
follows whom). Pure."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from mqttree.bench.model.state import MAX_BROKERS
from mqttree.bench.workloads.workload import Workload
from mqttree.placement.greedy import GAMMA
from mqttree.placement.question import SESSIONS

MAX_TOPICS = 10_000_000
MAX_RATE = 1e15
"""Messages/s of a topic; sums of such rates are finite."""
_TRAILING = re.compile(r",(\s*[\]}])")
_EDGES = re.compile(r"(\s*#[^\n]*\n)*\s*\d+[ \t,]+\d+\s*(\n|$)")
"""How an edge list begins: comments, then two numbers in a line."""


class WorkloadError(ValueError):
    """A file is no workload; the text is one line that says why."""


def read(text: str) -> Workload:
    """Return the workload that a file says. Raises WorkloadError."""
    if _EDGES.match(text):
        return _graph(text)
    try:
        # The published files have commas behind the last entry, and ids that are no numbers: 1.10
        # is not 1.1.
        said = json.loads(_TRAILING.sub(r"\1", text), parse_float=_Decimal)
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"no JSON: {error}") from None
    if not isinstance(said, dict):
        raise WorkloadError("expected an object with clients, or with publisher and subscriber")
    if "clients" in said:
        return _ours(said)
    if "subscriber" in said:
        return _published(said)
    raise WorkloadError("neither clients nor subscriber is in it")


def _graph(text: str) -> Workload:
    """Return the workload of a graph: lines of who follows whom. Each follower is a client, each
    who is followed a topic, with the same numbers."""
    follows: dict[int, dict[int, None]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        if len(words) != 2 or not all(word.isascii() and word.isdecimal() for word in words):
            raise WorkloadError(f"line {number}: no two numbers, who follows and who is followed")
        follower, followed = (_whole(int(word), f"line {number}") for word in words)
        follows.setdefault(follower, {})[followed] = None
    clients = [sorted(each) for _, each in sorted(follows.items())]
    return Workload(clients, dict.fromkeys(sorted({t for each in clients for t in each}), 1))


class _Decimal(float):
    """A number with a point, as it is written."""

    text: str

    def __new__(cls, text: str) -> _Decimal:
        found = super().__new__(cls, text)
        found.text = text
        return found


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise WorkloadError(f"{what} is no list")
    return value


def _whole(value: Any, what: str, least: int = 0, most: int = MAX_TOPICS) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise WorkloadError(f"{what}: {value!r:.40} is not a whole number from {least} to {most}")
    return value


def _number(value: Any, what: str, least: float = 0, most: float = math.inf) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not least <= value <= most
        or value == math.inf
    ):
        bounds = f"to {most:g}" if most < math.inf else "on"
        raise WorkloadError(f"{what}: {value!r:.40} is no number from {least} {bounds}")
    return float(value) if isinstance(value, float) else value


def _rate(value: Any, what: str) -> float:
    return _number(value, what, most=MAX_RATE)


def _topics(value: Any, what: str) -> list[int]:
    topics = [_whole(topic, what) for topic in _list(value, what)]
    return list(dict.fromkeys(topics))


def _ours(said: dict[str, Any]) -> Workload:
    clients = [
        _topics(topics, f"clients[{number}]")
        for number, topics in enumerate(_list(said["clients"], "clients"))
    ]
    by_brokers = said.get("by_brokers", {})
    if not isinstance(by_brokers, dict):
        raise WorkloadError("by_brokers is no object")
    work = Workload(clients, {})
    work.gamma = _number(said.get("gamma", GAMMA), "gamma", 1)
    work.sessions = _whole(said.get("nses", SESSIONS), "nses", 1)
    for key, there in by_brokers.items():
        if not re.fullmatch(r"[1-9]\d{0,2}", key) or int(key) > MAX_BROKERS:
            raise WorkloadError(f"by_brokers: {key!r:.40} is no number of brokers")
        if not isinstance(there, dict):
            raise WorkloadError(f"by_brokers {key} is no object")
        brokers, last = int(key), int(key) - 1
        if "publishers" in there:
            slots = _list(there["publishers"], f"publishers of {key}")
            work.publishers[brokers] = {
                topic: _whole(slot, f"publishers of {key}", 0, last)
                for topic, slot in enumerate(slots)
            }
        if "random_attach" in there:
            slots = _list(there["random_attach"], f"random_attach of {key}")
            if len(slots) != len(clients):
                raise WorkloadError(f"random_attach of {key} has not one broker for each client")
            work.attached[brokers] = [
                _whole(slot, f"random_attach of {key}", 0, last) for slot in slots
            ]
    work.rates = _rates(said.get("rates", 1), work, said.get("about"))
    return work


def _rates(value: Any, work: Workload, about: Any) -> dict[int, float]:
    """The rate of each topic that is published or wanted."""
    topics = {topic for client in work.clients for topic in client}
    for publishers in work.publishers.values():
        topics |= publishers.keys()
    if isinstance(about, dict) and "ntop" in about:
        topics |= set(range(_whole(about["ntop"], "about.ntop")))
    if isinstance(value, list):
        rates = {topic: _rate(rate, f"rates[{topic}]") for topic, rate in enumerate(value)}
    elif isinstance(value, dict):
        try:
            rates = {int(topic): _rate(rate, f"rates {topic}") for topic, rate in value.items()}
        except ValueError as error:
            raise WorkloadError(f"rates: {error}") from None
    else:
        return dict.fromkeys(sorted(topics), _rate(value, "rates"))
    if missing := topics - rates.keys():
        raise WorkloadError(f"rates has nothing for topic {min(missing)}")
    return rates


def _entries(said: dict[str, Any], kind: str) -> list[tuple[str, int, list[int]]]:
    """The client, broker and topics of each session of a published file."""
    found = []
    for number, entry in enumerate(_list(said.get(kind, []), kind)):
        what = f"{kind}[{number}]"
        if not isinstance(entry, dict):
            raise WorkloadError(f"{what} is no object")
        name = entry.get(f"{kind[:3]}_id")
        text = name.text if isinstance(name, _Decimal) else str(name)
        client = text.split(".", 1)[0]
        if name is None or not client:
            raise WorkloadError(f"{what} has no {kind[:3]}_id")
        broker = _whole(entry.get("node_id"), f"node_id of {what}", 1, MAX_BROKERS) - 1
        found.append((client, broker, _topics(entry.get("topic_list"), f"topic_list of {what}")))
    return found


def _published(said: dict[str, Any]) -> Workload:
    publishing, subscribing = _entries(said, "publisher"), _entries(said, "subscriber")
    clients: dict[str, dict[int, list[int]]] = {}
    for client, broker, topics in subscribing:
        clients.setdefault(client, {}).setdefault(broker, []).extend(topics)
    publishers = {topic: broker for _, broker, topics in publishing for topic in topics}
    brokers = 1 + max((broker for _, broker, _ in publishing + subscribing), default=0)
    given = list(clients.values())
    wanted = [sorted({topic for topics in each.values() for topic in topics}) for each in given]
    everything = publishers.keys() | {topic for client in wanted for topic in client}
    return Workload(
        wanted,
        dict.fromkeys(sorted(everything), 1),
        {brokers: publishers} if publishers else {},
        given={brokers: given},
    )
