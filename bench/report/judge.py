"""Whether what a paper states holds in our runs: figures of cells, compared by equal draws, and the
verdict that follows from them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mqttree.bench.report.data import Case
from mqttree.bench.report.papers import fits
from mqttree.bench.tables.means import mean

HOLDS = "holds"
FAILS = "does not hold"
UNSURE = "not decided"
UNTESTED = "cannot be tested here"
ABSENT = "not measured"
VERDICTS = (HOLDS, FAILS, UNSURE, UNTESTED, ABSENT)
CLOSE = 0.25
"""A number of a paper holds where ours differs by a quarter of it at most."""


@dataclass(frozen=True)
class Check:
    """What a statement says of a measure.

    scenarios: names.
    measure: of a run (`mqttree.bench.scenarios.measures`, `mqttree.bench.report.derived`).
    where: factors of the cells that are asked.
    against: factors of the cells that each is compared with, where they differ from it: their mean.
        Nothing: the measure itself counts.
    how: ratio (measure / mean of the others), increase (ratio - 1), difference, or growth: of two
        others, how often the step from the first to the second goes into the step from the first
        to this one.
    least, most: bounds of what has to come out, which some outcome breaks. near: a number of the
        paper instead, which holds where ours differs from it by CLOSE at most.
    flow: the class of traffic; alone: the others are runs of that class alone, which has no figures
        of its own there.
    """

    scenarios: tuple[str, ...]
    measure: str
    where: Mapping[str, Any]
    against: tuple[Mapping[str, Any], ...] = ()
    how: str = "ratio"
    least: float | None = None
    most: float | None = None
    near: float | None = None
    flow: str = ""
    alone: bool = False

    @property
    def low(self) -> float | None:
        """The least that may come out; None: there is no bound."""
        return self.least if self.near is None else self.near * (1 - CLOSE)

    @property
    def high(self) -> float | None:
        """The most that may come out; None: there is no bound."""
        return self.most if self.near is None else self.near * (1 + CLOSE)

    @property
    def bounds(self) -> str:
        """What has to come out, in words."""
        words = [] if self.low is None else [f"at least {self.low:.3g}"]
        return ", ".join(words if self.high is None else [*words, f"at most {self.high:.3g}"])


@dataclass(frozen=True)
class Statement:
    """What a paper states. place: where it does. text: in our words. checks: all have to come out.
    untested: why it cannot be tested here, instead of checks. remark: what differs here, and
    matters for it."""

    paper: str
    place: str
    text: str
    checks: tuple[Check, ...] = ()
    untested: str = ""
    remark: str = ""


@dataclass(frozen=True)
class Finding:
    """What came out of a check in one cell. value: None with the reason in `why`. half: of the 95 %
    interval, None for a single run. n: runs that count. limited: by the generator, so that it says
    nothing of brokers."""

    check: Check
    case: Case
    value: float | None
    half: float | None = None
    n: int = 0
    why: str = ""
    limited: bool = False

    @property
    def holds(self) -> bool | None:
        """Whether the value is within the bounds; None where there is none, or of one run only, or
        its interval has a bound in it."""
        if self.value is None or self.half is None:
            return None
        low, high = self.value - self.half, self.value + self.half
        least, most = self.check.low, self.check.high
        if (least is None or low >= least) and (most is None or high <= most):
            return True
        if (least is not None and high < least) or (most is not None and low > most):
            return False
        return None


@dataclass(frozen=True)
class Judgement:
    """A statement, and what came out."""

    statement: Statement
    findings: Sequence[Finding] = field(default_factory=tuple)

    @property
    def verdict(self) -> str:
        """One of VERDICTS. Cells that the generator limited are in none."""
        if self.statement.untested:
            return UNTESTED
        known = [each for each in self.findings if each.value is not None]
        if not known:
            limited = any(each.limited for each in self.findings)
            return UNTESTED if limited else ABSENT
        told = [each.holds for each in known]
        if False in told:
            return FAILS
        # Every check has to have been asked.
        missing = len({id(each.check) for each in known}) < len(self.statement.checks)
        return UNSURE if None in told or missing else HOLDS

    @property
    def reason(self) -> str:
        """Why, in one sentence."""
        if self.statement.untested:
            return self.statement.untested
        known = [each for each in self.findings if each.value is not None]
        told = [each.holds for each in known]
        if not known:
            reasons = dict.fromkeys(each.why for each in self.findings if each.why)
            return "; ".join(reasons) or "no run is about it"
        alone = sum(each.half is None for each in known)
        words = []
        for count, what in (
            (told.count(True), "it came out"),
            (told.count(False), "it did not"),
            (told.count(None) - alone, "the interval has a bound in it"),
            (alone, "there is one run"),
        ):
            if count:
                words.append(f"{what} in {count} of {len(told)} cells")
        if limited := sum(each.limited for each in self.findings):
            words.append(f"the generator limited {limited} more")
        return ", ".join(words)


def judge(statements: Sequence[Statement], cases: Sequence[Case]) -> list[Judgement]:
    """Return each statement with what came out of its checks in the `cases` that they are about."""
    return [
        Judgement(each, tuple(found for check in each.checks for found in _findings(check, cases)))
        for each in statements
    ]


def _findings(check: Check, cases: Sequence[Case]) -> list[Finding]:
    return [
        _finding(check, case, cases)
        for case in cases
        if case.scenario in check.scenarios
        and fits(case.cell, check.where)
        and case.flow == check.flow
    ]


def _finding(check: Check, case: Case, cases: Sequence[Case]) -> Finding:
    others: list[Case] = []
    for changes in check.against:
        other = _other(check, case, {**case.cell, **changes}, cases)
        if other is None:
            words = ", ".join(f"{key} {value}" for key, value in changes.items())
            return Finding(check, case, None, why=f"no run with {words} that is otherwise equal")
        others.append(other)
    for each in (case, *others):
        if why := each.limit(check.measure):
            return Finding(check, case, None, why=why, limited=True)
    values = []
    for draw in case.runs:
        own = case.value(draw, check.measure)
        theirs = [each.value(draw, check.measure) for each in others]
        found = _compared(check.how, own, theirs) if check.against else own
        if found is not None:
            values.append(found)
    outcome = mean(values)
    if outcome is None:
        return Finding(
            check, case, None, why=f"no run has {check.measure} and all it is compared to"
        )
    return Finding(check, case, outcome.mean, outcome.half, outcome.n)


def _other(check: Check, case: Case, cell: Mapping[str, Any], cases: Sequence[Case]) -> Case | None:
    """Return the case of a cell that is equal in everything else."""
    # Alone, a class is all of the traffic, and then it has no figure of its own.
    flows = ("", check.flow) if check.alone else (check.flow,)
    alike = [
        each
        for each in cases
        if each.scenario == case.scenario
        and each.variant == case.variant
        and each.flow in flows
        and each.cell.keys() == cell.keys()
        and fits(each.cell, cell)
    ]
    return next((each for each in alike if each.flow == check.flow), alike[0] if alike else None)


def _compared(how: str, own: float | None, theirs: Sequence[float | None]) -> float | None:
    known = [each for each in theirs if each is not None]
    if own is None or len(known) < len(theirs):
        return None
    if how == "growth":
        step = known[1] - known[0]
        return (own - known[0]) / step if step else None
    middle = sum(known) / len(known)
    if how == "difference":
        return own - middle
    if not middle:
        return None
    return own / middle - (how == "increase")
