"""The short form of `make bridged`: three Mosquittos, their gateways and two brokers, each kind of
fault twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bridged import FAULTS, Bridged
from tests.kit.foreign import MOSQUITTO

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="Mosquitto is not installed")

KILLS = 2


@pytest.mark.long
@pytest.mark.timeout(600)
def test_nothing_is_lost_or_repeated_over_kills_and_restarts(tmp_path: Path) -> None:
    with Bridged(tmp_path, 1) as run:
        for kind in FAULTS * KILLS:
            print(run.round(kind))
        assert run.check() == []
