"""Faults of runs, and when what they broke was repaired. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mqttree.bench.trace.repair import FOREVER, STRIKES, lasts, repaired

SERVED = ("kill", "pause", "cut", "half-open")
"""Those after which all that are left can be reached again."""
UNDO = {"restart": "kill", "start": "kill", "resume": "pause"}


@dataclass
class Fault:
    """One fault of a run. at, ends: ns; until then what happens is put down to it. down: brokers
    that do not run meanwhile.

    tree_s: until all living brokers agreed on a tree again.
    service_s: until every pair of a publisher and a subscriber that live had a message that was
        published after the fault.
    unserved: pairs that had none.
    pairs: all of them.

    tree_s and service_s are None where it did not come to that before `ends`.
    """

    no: int
    kind: str
    target: str
    at: int
    ends: int
    down: frozenset[str]
    tree_s: float | None = None
    service_s: float | None = None
    pairs: int = 0
    unserved: int = 0

    @property
    def state(self) -> str:
        """In a word: repaired, or what not."""
        if self.kind == "partition":
            return "repaired" if self.tree_s is not None else "no tree again"
        if self.unserved:
            return f"{self.unserved} of {self.pairs} pairs not served again"
        return (
            "repaired" if self.tree_s is not None or self.service_s is not None else "not repaired"
        )


@dataclass
class Repairs:
    """Of all runs. convergence: s (None: never agreed) of those that note starts; agreeing: those
    that note agreement.

    started: the brokers whose start a run notes. parents: (broker, its neighbour towards the root)
    when the measured time ended, of runs that note roles.
    """

    convergence: dict[int, float | None]
    faults: list[Fault]
    agreeing: set[int]
    started: dict[int, set[str]]
    parents: dict[int, list[tuple[str, str]]]


def repairs(marks: Iterable[Any]) -> Repairs:
    """Return how long it took all federations to agree first, and after each fault; `serve` fills
    in the rest.

    `marks` are the rows of faults, agreements and roles (no, t, kind, name, broker, peer); of roles
    those before the measured time ended that are no states.
    """
    rows = list(marks)
    parents = _parents([row for row in rows if row["kind"] == "role"])
    rows = [row for row in rows if row["kind"] != "role"]
    rows = sorted(rows, key=lambda row: (row["no"], row["t"], row["kind"] == "fault"))
    convergence: dict[int, float | None] = {}
    faults: list[Fault] = []
    agreeing: set[int] = set()
    started: dict[int, set[str]] = {}
    for number in sorted({row["no"] for row in rows}):
        mine = [row for row in rows if row["no"] == number]
        agreed = [row["t"] for row in mine if row["kind"] == "agreed"]
        happened = [row for row in mine if row["kind"] == "fault"]
        if agreed:
            agreeing.add(number)
        breaks = [row["t"] for row in happened if row["name"] in STRIKES]
        first = min(breaks, default=FOREVER)
        started[number] = {row["broker"] for row in happened if row["name"] == "start"}
        starts = [row["t"] for row in happened if row["name"] == "start" and row["t"] < first]
        if starts:
            since = [t for t in agreed if max(starts) <= t < first]
            convergence[number] = (min(since) - min(starts)) / 1e9 if since else None
        faults += _faults(number, happened, agreed)
    return Repairs(convergence, faults, agreeing, started, parents)


def serve(faults: Sequence[Fault], rows: Iterable[Any]) -> None:
    """Fill in when all clients were served again: `rows` have, by the index of one of the `faults`
    (fault): pairs, how many of them were served, and when the last of these was (last)."""
    for row in rows:
        fault = faults[row["fault"]]
        fault.pairs, fault.unserved = row["pairs"], row["pairs"] - row["served"]
        if not fault.unserved:
            fault.service_s = (row["last"] - fault.at) / 1e9


def _faults(number: int, happened: Sequence[Any], agreed: Sequence[int]) -> list[Fault]:
    """Return the faults of one run in turn; each lasts until the next one, or until something is
    undone."""
    result = []
    down: dict[str, str] = {}
    for row in happened:
        kind, target, at = row["name"], row["broker"] or "", row["t"]
        if UNDO.get(kind, "") == down.get(target, "-"):
            del down[target]
        if kind in ("kill", "pause"):
            down[target] = kind
        if kind in STRIKES:
            ends = lasts(at, (other["t"] for other in happened))
            fault = Fault(number, kind, target, at, ends, frozenset(down))
            fault.tree_s = repaired(at, ends, agreed)
            result.append(fault)
    return result


def _parents(roles: Sequence[Any]) -> dict[int, list[tuple[str, str]]]:
    """Return each run's trees by the last `roles` of its links."""
    last: dict[tuple[int, str, str], str] = {}
    for row in sorted(roles, key=lambda row: int(row["t"])):
        last[row["no"], row["broker"], row["peer"]] = row["name"]
    result: dict[int, list[tuple[str, str]]] = {}
    for (number, broker, peer), role in last.items():
        if role == "root":
            result.setdefault(number, []).append((broker, peer))
    return result
