"""`--routing srt` in simulation: what it promises, in random schedules, and what is lost, to the
message."""

from __future__ import annotations

import os

import pytest

from tests.sim.lossy_modes import EvenScene, NothingOwed, missing
from tests.sim.srt import run_srt, table_faults
from tests.sim.test_federation import Event

SEEDS = int(os.environ.get("SEEDS", "12"))
FIRST = int(os.environ.get("FIRST", "0"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_random_schedules_keep_what_srt_promises(seed: int) -> None:
    result = run_srt(seed)
    assert result.violations == [], "\n".join(result.transcript)
    assert result.messages


class Line(EvenScene):
    """b0 - b1 - b2 - ..."""

    def __init__(self, brokers: int, events: list[Event] | None = None, **config: object) -> None:
        every = range(brokers)
        apart = [(a, b) for a in every for b in every if abs(a - b) > 1]
        super().__init__(brokers, events or [], apart, routing="srt", **config)

    def check(self) -> None:
        """All that is promised at any time, and the tables."""
        NothingOwed(self.world, self.ledger, self.clients, self.meetings, self.splits).check()
        for kind, text in table_faults(self.world):
            self.world.violation(kind, text)
        assert self.world.violations == []


@pytest.mark.parametrize("burst", (1, 3, 10))
def test_exactly_what_is_counted_is_lost_until_the_way_is_open(burst: int) -> None:
    """The subscriber waits two hops away. The topic's messages of the first round trip are lost;
    then none is."""
    scene = Line(3)
    subscriber = scene.client("sub", 2, "t/#")
    publisher = scene.client("pub", 0)
    world = scene.world
    for number in range(40):
        for _ in range(burst):
            world.after(number * 0.005, publisher.publish, "t/1", 1 + number % 2)
    world.run(2.0)
    lost = missing(publisher, subscriber)
    assert 0 < len(lost) < 20 * burst
    assert lost == list(range(len(lost)))
    assert scene.lost() == len(lost)
    # One more topic of the same filter: the way of the first one is its way, too.
    publisher.publish("t/2", 1)
    world.run(1.0)
    assert missing(publisher, subscriber) == lost
    assert scene.lost() == len(lost)
    scene.check()
