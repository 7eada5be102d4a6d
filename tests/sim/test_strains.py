"""Federations under load and faults at once.

SEEDS=n runs n seeds instead of the default, FIRST=k begins with seed k.
"""

from __future__ import annotations

import os

import pytest

from tests.sim.strains import run_strain

SEEDS = int(os.environ.get("SEEDS", "2"))
FIRST = int(os.environ.get("FIRST", "5"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_random_strains_keep_all_promises(seed: int) -> None:
    assert run_strain(seed).violations == []
