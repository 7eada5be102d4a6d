"""A seed is the same run in every process: nothing that a broker does goes by the order of sets."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mqttree.broker import CORE

SEEDS = (70218, 70233, 5000004, 5000013, 5000020, 5000025, 70200, 70203, 70205, 70228)
"""All modes of routing, shared subscriptions, journals and sessions that move are among them."""

RUN = """
import sys
ballast = [object() for _ in range(int(sys.argv[1]))]
from tests.sim.__main__ import play
for seed in sys.argv[2:]:
    print(seed, play(int(seed)).digest)
for seed in (2, 3, 6):
    print(seed, play(seed, "legs").digest)
"""
"""Prints the digests of schedules; objects that are allocated first shift the addresses of all
others."""


def start(*, hashes: int, ballast: int, core: str) -> subprocess.Popen[str]:
    """Start a process that plays all schedules.

    `hashes`: decides how strings are hashed; `ballast`: objects that are allocated first; `core`:
    which code of the core runs.
    """
    settings = {"PYTHONHASHSEED": str(hashes), "MQTTREE_CORE": core}
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(ballast), *map(str, SEEDS)],
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.long
def test_a_seed_is_the_same_run_in_every_process() -> None:
    core = CORE.running
    processes = [
        start(hashes=0, ballast=0, core=core),
        start(hashes=1, ballast=1_000_003, core=core),
        start(hashes=2, ballast=0, core="python"),
    ]
    first, *others = [process.communicate()[0].splitlines() for process in processes]
    assert len(first) == len(SEEDS) + 3
    for found in others:
        assert found == first
