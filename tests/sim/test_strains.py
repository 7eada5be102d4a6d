"""Federations under load and faults at once, and devices that move.

SEEDS=n runs n seeds instead of the default, FIRST=k begins with seed k.
"""

from __future__ import annotations

import os

import pytest

from tests.sim.devices import run_devices
from tests.sim.strains import run_strain

SEEDS = int(os.environ.get("SEEDS", "2"))
FIRST = int(os.environ.get("FIRST", "5"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_random_strains_keep_all_promises(seed: int) -> None:
    assert run_strain(seed).violations == []


@pytest.mark.parametrize("seed", range(10 * FIRST, 10 * (FIRST + SEEDS)))
def test_what_a_device_wrote_last_is_retained(seed: int) -> None:
    assert run_devices(seed).violations == []
