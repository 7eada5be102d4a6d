"""What becomes of a placement when the rates of topics change."""

from __future__ import annotations

import math
import statistics

import pytest

from mqttree.bench.cli import main
from mqttree.bench.placement.drift import PERIOD, Drift, Rates, simulate
from mqttree.bench.workloads.workload import social

CLIENTS = 60


def test_rates_that_only_jitter_move_nobody() -> None:
    drift = Drift(4.0, 10.0, 0.0, 0.3)
    for seed in (1, 2):
        work = social(CLIENTS, CLIENTS, 5, 1.13, seed)
        found = simulate(work, 4, drift, 600.0, seed, come=False)
        assert found.moves == 0


@pytest.mark.long
def test_measured_rates_are_about_as_good_as_known_ones() -> None:
    """One run depends on where a few topics with very high rates happen to be."""
    found = []
    for seed in range(1, 21):
        work = social(CLIENTS, CLIENTS, 5, 1.13, seed)
        found.append(simulate(work, 4, Drift(4.0, 10.0, 0.1, 0.0), 900.0, seed))
    measured = sum(each.measured for each in found)
    assert measured <= 1.1 * sum(each.known for each in found)


def test_rates_have_the_mean_and_the_deviation_that_is_asked_for() -> None:
    rates = Rates(20_000, Drift(1.0, 5.0, 0.1, 0.0), 1).true
    assert statistics.fmean(rates) == pytest.approx(5.0, rel=0.05)
    assert statistics.pstdev(rates) == pytest.approx(5.0, rel=0.1)


def test_a_tenth_of_the_topics_gets_another_rate() -> None:
    rates = Rates(100, Drift(4.0, 5.0, 0.1, 0.0), 1)
    rates.go_on()
    before = rates.true
    rates.redraw()
    rates.go_on()
    assert sum(a != b for a, b in zip(before, rates.true, strict=True)) == 10


def test_brokers_learn_another_rate_with_a_half_life_of_a_minute() -> None:
    rates = Rates(2_000, Drift(0.1, 20.0, 1.0, 0.0), 1)
    old = math.fsum(rates.true)
    rates._base = [40.0] * 2_000
    for _ in range(round(60 / PERIOD)):
        rates.go_on()
    assert math.fsum(rates.measured) == pytest.approx((old + 80_000) / 2, rel=0.02)


def test_the_command_prints_a_line_for_each_kind_of_change(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["placement", "drift", "--clients", "12", "--each", "3", "--brokers", "2"]
    assert main([*words, "--seeds", "1", "--seconds", "300"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["rates", "redrawn", "jitter"]
