"""One set of runs beside another one of the same scenarios: whether what was found once is found
again. Pure.

What is compared are ratios: of each kind of broker to mqttree with flooding in the same cell, in
the measures of the scenario's figure, and those that the papers state. A machine that is slower
today is so for all kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.report import figures, papers
from bench.report.data import Results
from bench.report.papers import Claim, Comparison
from bench.scenarios.measures import current_name

BASE = "mqttree-flood"


@dataclass(frozen=True)
class Pair:
    """A ratio of the first set, and the same of the second; None where the second has no such
    case."""

    first: Comparison
    second: Comparison | None

    @property
    def why(self) -> str:
        """Why nothing can be said of it; empty when something can."""
        if self.second is None:
            return "not repeated"
        for each in (self.first, self.second):
            if each.ours is None:
                return each.why or "no ratio"
        return (
            "one repetition has no interval"
            if self.first.half is None or self.second.half is None
            else ""
        )

    @property
    def agrees(self) -> bool | None:
        """Whether the two intervals meet; None when `why` says why that cannot be asked."""
        first, second = self.first, self.second
        if self.why or second is None or first.ours is None or second.ours is None:
            return None
        return abs(first.ours - second.ours) <= (first.half or 0.0) + (second.half or 0.0)


def pairs(first: Results, second: Results) -> list[Pair]:
    """Return every ratio of the first set with that of the second."""
    again = {_key(each): each for each in _ratios(second)}
    return [Pair(each, again.get(_key(each))) for each in _ratios(first)]


def summary(found: Sequence[Pair]) -> str:
    """Return how many agree, in one line."""
    told = [pair.agrees for pair in found if pair.agrees is not None]
    text = f"{sum(told)} of {len(told)} ratios agree within their 95 % intervals"
    if left := len(found) - len(told):
        text += f"; nothing can be said of {left}"
    return text


def _ratios(results: Results) -> list[Comparison]:
    claims = [claim for claim in papers.CLAIMS if claim.per is not None]
    for scenario in results.scenarios():
        measures = next(
            (about["figure"].get("y") for about in results.of(scenario) if about.get("figure")),
            None,
        )
        kinds = dict.fromkeys(
            case.cell.get("broker") for case in results.cases if case.scenario == scenario
        )
        for measure in map(current_name, measures or figures.DEFAULT_Y):
            for kind in kinds:
                if kind not in (None, BASE) and measure in figures.NAMES:
                    text = f"{figures.NAMES[measure]}: against {BASE}"
                    claims += [
                        Claim(
                            "",
                            text,
                            (scenario,),
                            measure,
                            None,
                            {"broker": kind},
                            "broker",
                            BASE,
                            flow=flow,
                        )
                        for flow in dict.fromkeys(
                            case.flow for case in results.cases if case.scenario == scenario
                        )
                    ]
    found: dict[tuple[str, ...], Comparison] = {}
    for each in papers.compare(results.cases, claims):
        if each.claim.paper or each.case.scenario in each.claim.scenarios:  # names may begin alike
            found.setdefault(_key(each), each)
    return list(found.values())


def _key(each: Comparison) -> tuple[str, ...]:
    case, claim = each.case, each.claim
    return (
        case.scenario,
        case.name,
        case.flow,
        case.fingerprint,
        claim.measure,
        str(claim.per),
        str(claim.base),
    )
