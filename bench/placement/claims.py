"""Sentences of the paper that can be checked against simulations. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mqttree.bench.placement.averages import Point
from mqttree.bench.placement.grid import Case, cases, model
from mqttree.bench.tables.means import Mean

Means = Mapping[Point, Mapping[str, Mean]]

Finding = tuple[str, bool]
"""What was found, in words, and whether that is what the paper says."""


class Claim(NamedTuple):
    """A sentence of the paper."""

    figure: str
    statement: str
    paper: str
    check: Callable[[Means], Finding]

    def judge(self, found: Means) -> tuple[str, bool | None]:
        """Return what was found and whether the sentence is met; None if runs for it are
        missing."""
        try:
            return self.check(found)
        except KeyError:
            return "-", None


def _value(found: Means, figure: str, curve: str, x: float, measure: str = "internal") -> float:
    return found[figure, curve, float(x)][measure].mean


def _model_overlaps(figure: str, most: float) -> Callable[[Means], Finding]:
    """The largest difference of model and simulation, of all numbers of brokers."""

    def check(found: Means) -> Finding:
        worst = 0.0
        for case in cases():
            if case.figure == figure and case.brokers > 1:
                known = _modelled(case)
                mine = _value(found, figure, case.curve, case.x)
                worst = max(worst, abs(mine - known) / known)
        return f"at most {worst:.1%} apart", worst <= most

    return check


def _modelled(case: Case) -> float:
    return model(case)["internal"]


def _gain(each: int) -> Callable[[Means], float]:
    """The part of the traffic that best matching saves, with eight brokers."""

    def check(found: Means) -> float:
        of_each = f"{each} topic{'s' * (each > 1)}"
        attached = _value(found, "10", f"random, {of_each}", 8)
        return 1 - _value(found, "10", f"best, {of_each}", 8) / attached

    return check


def _one_topic(found: Means) -> Finding:
    part = _gain(1)(found)
    return f"{part:.0%} less", part > 0.5


def _forty_topics(found: Means) -> Finding:
    part = _gain(40)(found)
    return f"{part:.0%} less", part < 0.25


def _space(found: Means) -> Finding:
    bound = next(
        model(case)["space"]
        for case in cases()
        if case.figure == "11" and case.curve == "10 topics" and case.sessions == 4
    )
    real = _value(found, "11", "10 topics", 4, "space")
    return f"{real:.2e} of {bound:.2e}", 0.1 * bound < real <= bound


def _optimum(found: Means) -> Finding:
    parts = [
        _value(found, "12", "load", sessions) / _value(found, "12", "optimum", sessions)
        for sessions in range(1, 6)
    ]
    return f"{min(parts):.2f} to {max(parts):.2f} times", min(parts) >= 0.75 and max(parts) <= 1.25


def _saturates(found: Means) -> Finding:
    five, eight = (_value(found, "12", "paper", sessions) for sessions in (5, 8))
    return f"{five:.0f}, then {eight:.0f}", abs(five - eight) <= 0.05 * five


def _four(found: Means) -> Finding:
    value = _value(found, "13", "random", 20, "h_rt")
    return f"{value:.2f}", 3.5 <= value <= 4.5


def _halved(found: Means) -> Finding:
    part = _value(found, "13", "paper", 20, "h_rt") / _value(found, "13", "random", 20, "h_rt")
    return f"{part:.2f} of it", 0.4 <= part <= 0.6


def _falls(figure: str, curve: str, measure: str) -> Callable[[Means], Finding]:
    """Whether a measure falls all along a curve."""
    return _goes(figure, curve, measure, -1)


def _rises(figure: str, curve: str, measure: str) -> Callable[[Means], Finding]:
    """Whether a measure rises all along a curve."""
    return _goes(figure, curve, measure, 1)


def _goes(figure: str, curve: str, measure: str, sign: int) -> Callable[[Means], Finding]:
    """Whether a measure goes one way all along a curve: up (`sign` 1) or down (-1)."""

    def check(found: Means) -> Finding:
        points = sorted(x for key, name, x in found if (key, name) == (figure, curve))
        if not points:
            raise KeyError(figure)
        values = [_value(found, figure, curve, x, measure) for x in points]
        pairs = itertools.pairwise(values)
        met = all(sign * a <= sign * b + 0.01 for a, b in pairs)
        return f"{values[0]:.2f} to {values[-1]:.2f}", met

    return check


def _fair(curve: str, least: float) -> Callable[[Means], Finding]:
    def check(found: Means) -> Finding:
        value = min(
            _value(found, "13", curve, x, "jain")
            for key, name, x in found
            if (key, name) == ("13", curve)
        )
        return f"at least {value:.3f}", value >= least

    return check


def _scaling(curve: str, paper: float, within: float) -> Callable[[Means], Finding]:
    def check(found: Means) -> Finding:
        value = _value(found, "22", curve, 4, "mean_scaling")
        return f"{value:.2f}", abs(value - paper) <= within

    return check


CLAIMS = (
    Claim("7", "Model and simulation overlap", "overlap", _model_overlaps("7", 0.03)),
    Claim("8", "The same for topic trees", "overlap", _model_overlaps("8", 0.1)),
    Claim("10", "Best matching saves much with one topic", "strongly reduced", _one_topic),
    Claim("10", "It saves little with 40 topics", "less and less", _forty_topics),
    Claim("11", "The decision space is close to its bound", "quite similar", _space),
    Claim(
        "12",
        "Greedy is slightly above the optimum for each client, both with ties by load",
        "slightly greater",
        _optimum,
    ),
    Claim("12", "As many sessions as topics are enough", "no change from 5 on", _saturates),
    Claim("13", "Routing overhead at 20 random brokers", "about 4", _four),
    Claim("13", "Greedy halves it", "practically halved", _halved),
    Claim("14", "It grows with subscribers", "grows", _rises("14", "random", "h_rt")),
    Claim("14", "Forwarding overhead falls", "falls", _falls("14", "random", "h_fw")),
    Claim("15", "It grows with topics each", "grows", _rises("15", "random", "h_rt")),
    Claim("16", "It falls with sessions", "falls", _falls("16", "paper", "h_rt")),
    Claim("17", "It falls with alpha", "falls", _falls("17", "random", "h_rt")),
    Claim("18", "Random attach is fair", "about .99", _fair("random", 0.985)),
    Claim("18", "Greedy is fair", "about .96", _fair("paper", 0.95)),
    Claim("19", "It grows with brokers on topic trees", "grows", _rises("19", "random", "h_rt")),
    Claim("20", "It falls with sessions on topic trees", "falls", _falls("20", "paper", "h_rt")),
    Claim("21", "Routing overhead falls with alpha", "falls", _falls("21", "random", "h_rt")),
    Claim("21", "Forwarding overhead falls, too", "falls", _falls("21", "random", "h_fw")),
    Claim(
        "22",
        "Ratio at four brokers, random, alpha .68",
        ".67",
        _scaling("random, 0.68", 0.67, 0.05),
    ),
    Claim(
        "22", "Ratio at four brokers, greedy, alpha .68", ".95", _scaling("paper, 0.68", 0.95, 0.05)
    ),
    Claim(
        "22",
        "Ratio at four brokers, random, alpha 1.13",
        ".67",
        _scaling("random, 1.13", 0.67, 0.05),
    ),
)
