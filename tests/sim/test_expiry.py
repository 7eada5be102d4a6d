"""Schedules in which messages expire: nothing comes later than its promise allows, and what lasts
is not lost with what has expired."""

from __future__ import annotations

import pytest

from tests.sim.schedule import Result, Schedule

EXPIRIES = (3600, 1, 3600, 3, 3600, 3600)
"""s"""


def run(seed: int) -> Result:
    schedule = Schedule(seed)
    schedule.expiries = EXPIRIES
    return schedule.run()


@pytest.mark.parametrize("seed", [1002, 1032, 1080, 1101])
def test_messages_that_expire_do_no_harm_to_others(seed: int) -> None:
    """In two of these, what had expired was not replayed: brokers that lacked its numbers lost and
    disordered others."""
    assert run(seed).violations == []
