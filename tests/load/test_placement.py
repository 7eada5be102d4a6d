"""A million clients are placed in bounded memory, at a cost that does not grow with their number;
all of the paper's figures that have known draws, with more of them."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from mqttree.bench.placement import grid
from tests.unit.bench.test_bench_placement import SIMULATED, simulated_case

SPEED = """
import sys
from mqttree.bench.placement.speed import measure
found = measure(int(sys.argv[1]), 100_000, 8, 10, 1.13, 4, seed=1)
print(found.seconds / found.clients, found.memory, found.jain, found.join_p99, found.leave_p99)
"""


def speed(clients: int) -> list[float]:
    """What placing costs, measured in a process of its own: its memory counts."""
    done = subprocess.run(
        [sys.executable, "-c", SPEED, str(clients)],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    return [float(word) for word in done.stdout.split()]


@pytest.mark.timeout(1200)
def test_a_million_clients_take_a_gigabyte_and_no_more_time_each_than_a_few() -> None:
    few, _, _, _, _ = speed(100_000)
    each, memory, jain, _, _ = speed(1_000_000)
    assert memory < 1 << 30
    assert each < 2 * few
    assert jain > 0.999


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("key", SIMULATED)
def test_ten_draws_have_the_known_means(key: str) -> None:
    seeds = 10
    for curve, known in SIMULATED[key].items():
        rows = [grid.run(simulated_case(key, curve), seed) for seed in range(1, seeds + 1)]
        mean, deviation = known["Ai"]
        found = sum(row["internal"] for row in rows) / seeds
        # Three deviations of the difference of two means of ten, with some for the many figures.
        assert abs(found - mean) <= 4 * deviation * math.sqrt(2 / seeds) + 1e-4, (key, curve)
