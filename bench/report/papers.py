"""What we want of our own routing, where a paper has a number for its own: our targets, and our
figures beside them. What the papers state of theirs is in `mqttree.bench.report.statements`.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mqttree.bench.report.data import Case
from mqttree.bench.tables.means import mean


@dataclass(frozen=True)
class Claim:
    """One target, and what of ours stands beside it.

    scenarios: names (their beginnings).
    measure: of the table of cases.
    where: factors that a case must have.
    per: the factor whose value `base` is divided by; None: the measure itself.
    value: the paper's number; text: in its words.
    wanted: ours should be at most this; each: in every run, not only on average.
    """

    paper: str
    text: str
    scenarios: tuple[str, ...]
    measure: str
    value: float | None
    where: Mapping[str, Any] = field(default_factory=dict)
    per: str | None = None
    base: str | None = None
    wanted: float | None = None
    flow: str | None = None
    each: bool = False


CLAIMS = (
    Claim(
        "Overlays, table 2",
        "convergence time, five brokers: 19.5 s (sd 0.02)",
        ("overlays-convergence",),
        "convergence_s",
        19.5,
        wanted=1.5,
    ),
    Claim(
        "Overlays, table 2",
        "repair time after a broker's hard disconnection: 59.1 s (sd 0.01)",
        ("overlays-convergence",),
        "repair_s",
        59.1,
        {"fault": "crash"},
        wanted=0.3,
    ),
    Claim(
        "Overlays, table 2",
        "the same, a broker chosen at random",
        ("overlays-convergence",),
        "repair_s",
        59.1,
        {"fault": "crash-random"},
        wanted=0.3,
    ),
    Claim(
        "Overlays, table 2",
        "the same after silence (a paused broker)",
        ("overlays-convergence",),
        "repair_s",
        59.1,
        {"fault": "silence"},
        wanted=3.0,
    ),
    Claim(
        "Overlays 6.1",
        "our routing by topic: the delay at 50 % locality is at most half of flooding's",
        ("overlays-text", "overlays-table1"),
        "delay_mean_ms",
        0.5,
        {"locality": "50", "broker": "mqttree-topic"},
        "broker",
        "mqttree-flood",
        0.5,
    ),
    Claim(
        "Overlays 6.2",
        "our routing by topic, 3 topics: signalling, start included, against flooding's",
        ("overlays-text", "overlays-table1"),
        "control_bytes_run",
        1.3,
        {"topics": 3, "broker": "mqttree-topic"},
        "broker",
        "mqttree-flood",
        1.3,
    ),
    Claim(
        "Overlays 6.2",
        "the same, 60 topics",
        ("overlays-text", "overlays-table1"),
        "control_bytes_run",
        16.0,
        {"topics": 60, "broker": "mqttree-topic"},
        "broker",
        "mqttree-flood",
        1.3,
    ),
    Claim(
        "ours",
        "QoS 2 under faults: nothing that was accepted is lost",
        ("faults",),
        "lost_accepted",
        None,
        wanted=0.0,
        each=True,
    ),
    Claim(
        "ours",
        "QoS 2 under faults: nothing comes twice",
        ("faults",),
        "duplicates",
        None,
        wanted=0.0,
        each=True,
    ),
)


@dataclass(frozen=True)
class Comparison:
    """A claim beside one of our cases. ours: None with the reason in `why`; half: of its interval.

    n: how many of all `runs` (or repetitions) have a figure.
    most: the largest of a single run.
    unknown: deliveries of which it is not known whether they are lost.
    """

    claim: Claim
    case: Case
    ours: float | None
    half: float | None
    why: str = ""
    n: int = 0
    runs: int = 0
    most: float | None = None
    unknown: float = 0.0

    @property
    def verdict(self) -> str:
        """Whether it is what was wanted, and by how many runs where some have no figure; empty when
        nothing was wanted. One run decides nothing, but that what is wanted of each is not met."""
        if self.claim.wanted is None or self.ours is None:
            return ""
        found = self.most if self.claim.each and self.most is not None else self.ours
        if found > self.claim.wanted and (self.claim.each or self.n > 1):
            return "not met"
        if self.n == 1:
            return "not decided: one run"
        if self.unknown:
            return "not known"
        return "met" if self.n >= self.runs else f"met by {self.n} of {self.runs}"


def compare(cases: Sequence[Case], claims: Sequence[Claim] = CLAIMS) -> list[Comparison]:
    """Return each claim with every case that it is about."""
    result = []
    for claim in claims:
        for case in cases:
            if not case.scenario.startswith(claim.scenarios) or not fits(case.cell, claim.where):
                continue
            if claim.per is None:
                if not case.flow:
                    result.append(_plain(claim, case))
            elif case.flow == (claim.flow or ""):
                result.append(_ratio(claim, case, cases))
    return result


def fits(cell: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    """Whether a cell has the factors of `where`."""
    return all(_same(cell.get(key), value) for key, value in where.items())


def _same(one: Any, other: Any) -> bool:
    """Whether two values of a factor are the same: as numbers where both are (10, 10.0, "10"), else
    as they are written."""
    try:
        return float(one) == float(other)
    except (TypeError, ValueError):
        return str(one) == str(other)


def _plain(claim: Claim, case: Case) -> Comparison:
    if limit := case.limit(claim.measure):
        return Comparison(claim, case, None, None, limit)
    row = case.measures.get(claim.measure, {})
    unknown = (
        case.measures.get("unknown", {}).get("most") if claim.measure.startswith("lost") else None
    )
    return Comparison(
        claim,
        case,
        case.mean(claim.measure),
        case.half(claim.measure),
        _why(case, claim.measure),
        row.get("n", 0),
        row.get("runs", 0),
        row.get("most"),
        unknown or 0.0,
    )


def _why(case: Case, measure: str) -> str:
    found = case.measures.get(measure)
    return str(found["why"] or "") if found else "not measured"


def _ratio(claim: Claim, case: Case, cases: Sequence[Case]) -> Comparison:
    """Divide by the case that differs in one factor only, repetition by repetition: each has its
    own network and places."""
    assert claim.per is not None
    cell = {**case.cell, claim.per: claim.base}
    # Alone, a class is all of the traffic, and then it has no figure of its own.
    bases = [
        each
        for each in cases
        if each.scenario == case.scenario and each.cell == cell and each.flow in ("", case.flow)
    ]
    alike = [each for each in bases if each.variant == case.variant]
    if not alike:
        there = " that is otherwise equal" if bases else ""
        return Comparison(claim, case, None, None, f"no run with {claim.per}={claim.base}{there}")
    base = next((each for each in alike if each.flow == case.flow), alike[0])
    name = claim.measure
    if limit := case.limit(name) or base.limit(name):
        return Comparison(claim, case, None, None, limit)
    pairs = [
        (case.runs[number].get(name), base.runs[number].get(name))
        for number in case.runs
        if number in base.runs
    ]
    ratios = [above / below for above, below in pairs if above is not None and below]
    found = mean(ratios)
    if found is None:
        return Comparison(
            claim,
            case,
            None,
            None,
            _why(case, name) or _why(base, name) or "no repetition has both",
        )
    runs = max(_runs(case), _runs(base))
    why = f"{runs - len(ratios)} repetitions without" if runs > len(ratios) else ""
    return Comparison(claim, case, found.mean, found.half, why, len(ratios), runs, found.most)


def _runs(case: Case) -> int:
    """Return how many runs a case has, complete or not."""
    known = [len(case.runs), *(int(row.get("runs", 0)) for row in case.measures.values())]
    return max(known)
