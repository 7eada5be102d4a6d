"""One set of runs beside another one of the same scenarios: whether what was found once is found
again. Pure.

What is compared are ratios: of each kind of broker to mqttree with flooding in the same cell, in
the measures of the scenario's figure, and those that the papers state. A machine that is slower
today is so for all kinds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from mqttree.bench.report import figures, papers
from mqttree.bench.report.data import Results
from mqttree.bench.report.papers import Claim, Comparison

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
    def half(self) -> float | None:
        """Half of the 95 % interval of the difference: of two independent figures, whose squares
        add up. That both intervals touch says less, as it also happens with a difference that is
        1.4 times as large. None when `why` says why there is none."""
        if self.why or self.second is None:
            return None
        return math.hypot(self.first.half or 0.0, self.second.half or 0.0)

    @property
    def agrees(self) -> bool | None:
        """Whether no difference is seen: zero lies in the interval of the difference; None when
        `why` says why that cannot be asked."""
        first, second, half = self.first, self.second, self.half
        if half is None or second is None or first.ours is None or second.ours is None:
            return None
        return abs(first.ours - second.ours) <= half

    @property
    def seen(self) -> float | None:
        """The least difference that would have been seen, as a part of the first ratio; None when
        `why` says why there is none, or where the ratio is zero."""
        half, ours = self.half, self.first.ours
        return half / abs(ours) if half is not None and ours else None


def pairs(first: Results, second: Results) -> list[Pair]:
    """Return every ratio of the first set with that of the second."""
    again = {_key(each): each for each in _ratios(second)}
    return [Pair(each, again.get(_key(each))) for each in _ratios(first)]


def summary(found: Sequence[Pair]) -> str:
    """Return how many show no difference, and how large one would have to be to be seen, in one
    line."""
    told = [pair.agrees for pair in found if pair.agrees is not None]
    text = f"{sum(told)} of {len(told)} ratios show no difference (95 %)"
    if seen := [pair.seen for pair in found if pair.agrees and pair.seen is not None]:
        text += (
            f"; of these, half would show one of {median(seen):.0%}, and all one of {max(seen):.0%}"
        )
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
        for measure in measures or figures.DEFAULT_Y:
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
