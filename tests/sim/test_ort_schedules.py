"""`--routing ort` in simulation: what it promises, in random schedules, and what is lost, to the
message."""

from __future__ import annotations

import os

import pytest

from tests.sim.lossy_modes import EvenScene, missing
from tests.sim.ort import Unowed, overlay_faults, run_ort

SEEDS = int(os.environ.get("SEEDS", "4"))
FIRST = int(os.environ.get("FIRST", "0"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_random_schedules_keep_what_ort_promises(seed: int) -> None:
    result = run_ort(seed)
    assert result.violations == [], "\n".join(result.transcript)
    assert result.messages


class Mesh(EvenScene):
    """All brokers are linked to each other, but for some pairs."""

    def __init__(
        self, brokers: int, apart: tuple[tuple[int, int], ...] = (), **config: object
    ) -> None:
        super().__init__(brokers, [], apart, routing="ort", **config)

    def check(self) -> None:
        """All that is promised at any time, and the overlays."""
        Unowed(self.world, self.ledger, self.clients, self.meetings, self.splits).check()
        for kind, text in overlay_faults(self.world):
            self.world.violation(kind, text)
        assert self.world.violations == []


@pytest.mark.parametrize("burst", (1, 3, 10))
@pytest.mark.parametrize("topic", ("a", "a/b"))
def test_exactly_what_is_counted_is_lost_until_the_overlay_is_there(topic: str, burst: int) -> None:
    """The subscriber's broker is a member before the first message, or joins by a wildcard."""
    scene = Mesh(3)
    subscriber = scene.client("sub", 2, "a", "a/#")
    publisher = scene.client("pub", 1)
    world = scene.world
    for number in range(100):
        for _ in range(burst):
            world.after(number * 0.02, publisher.publish, topic, 1 + number % 2)
    world.run(4.0)
    lost = missing(publisher, subscriber)
    assert 0 < len(lost) < 60 * burst
    assert lost == list(range(len(lost)))
    assert scene.lost() == len(lost)
    scene.check()
