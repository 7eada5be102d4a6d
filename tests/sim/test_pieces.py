"""What brokers announce of themselves is handled later, one by one, whatever comes between: whole
schedules hold."""

from __future__ import annotations

import pytest

from mqttree.broker.limits import Limits
from tests.sim.__main__ import play
from tests.sim.world import World


@pytest.fixture(autouse=True)
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each broker announced thousands of sessions, filters and groups each time."""
    monkeypatch.setattr(World, "limits", Limits(listing_changes=0, listing_sessions=1))


@pytest.mark.parametrize("seed", range(193_001_000, 193_001_010))
def test_random_schedules_hold_with_announcements_in_pieces(seed: int) -> None:
    result = play(seed)
    assert not result.violations, result.violations
