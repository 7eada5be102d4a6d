"""Clients that roam between brokers, in simulation: one session each, nothing lost, QoS 2 once.

SEEDS=n runs n random schedules of each routing instead of the quick ones, FIRST=k begins with seed
k.
"""

from __future__ import annotations

import os

import pytest

from tests.sim.checkers import moves, session_faults
from tests.sim.clients import SimClient
from tests.sim.schedule import FILTERS, Result, Schedule

SEEDS = int(os.environ.get("SEEDS", "0"))
FIRST = int(os.environ.get("FIRST", "0"))
QUICK = {
    "flood": (0, 1, 3, 9, 20, 23),
    "interest": (0, 1, 3, 9, 20, 23),
    "topic": (0, 1, 3, 9, 20, 23),
}
MERGED = 60.0
"""virtual s in which sessions are one again."""


class Roaming(Schedule):
    """A schedule with clients that do not stay. `calm`: nothing else happens."""

    def __init__(
        self,
        seed: int,
        brokers: int | None = None,
        verbose: int = 0,
        *,
        calm: bool = False,
        routing: str = "",
    ) -> None:
        super().__init__(seed, brokers, verbose)
        self.calm = calm
        self.routing = routing
        self.roamers: list[SimClient] = []
        self.world.skew = self.rng.choice((0.0, 0.0, 1.0))
        if calm:
            self.apart = []

    def _routing(self, index: int) -> str:
        return self.routing or super()._routing(index)

    def _clients(self) -> None:
        super()._clients()
        rng, world = self.rng, self.world
        for number in range(rng.choice((2, 4, 8))):
            filters = [
                (f, rng.choice((0, 1, 2, 2))) for f in rng.sample(FILTERS, rng.choice((1, 2)))
            ]
            roamer = self._client(
                f"roam{number}", rng.choice(world.hosts), filters=filters, clean=False
            )
            roamer.hasty = world.skew > 0
            roamer.forked = not self.calm
            self.roamers.append(roamer)
            if rng.random() < 0.3:
                self.publishers.append(roamer)
            at = rng.uniform(0.5, 2.0)
            pause = rng.choice((0.05, 0.3, 1.0))
            while at < self.length:
                world.after(
                    at, self._roam, roamer, rng.choice(("leave", "cut", "hop")), rng.getrandbits(16)
                )
                at += rng.uniform(0.2, 2.0) * pause

    def _roam(self, client: SimClient, how: str, choice: int) -> None:
        alive = self.world.alive()
        if alive:
            client.roam(alive[choice % len(alive)], how)

    def faults(self) -> None:
        if not self.calm:
            super().faults()

    def _settle(self) -> None:
        """An older session is added to the newer one when it has what was missing there, or has
        waited for that long enough."""
        self.world.run(
            MERGED, lambda: not any(moves(host) for host in self.world.alive()), every=1.0
        )

    def _end(self) -> None:
        super()._end()
        world = self.world
        for group in world.components():
            for kind, text in session_faults(world, group):
                world.violation(kind, text)


def show(result: Result) -> None:
    """Print what went wrong."""
    for kind, text in result.violations[:10]:
        print(f"seed {result.seed}: {kind}: {text}")


@pytest.mark.parametrize("routing", QUICK)
def test_roaming_clients_lose_nothing(routing: str) -> None:
    bad = []
    moved = 0
    for seed in range(FIRST, FIRST + SEEDS) if SEEDS else QUICK[routing]:
        result = Roaming(seed, routing=routing, calm=seed % 3 == 0).run()
        moved += result.counters["session_takeovers"]
        if result.violations:
            bad.append(seed)
            show(result)
    assert not bad
    assert moved


class OneFloods(Roaming):
    """Brokers that route by topic, and one that floods: it may get what it missed from the origin,
    a while later."""

    def _routing(self, index: int) -> str:
        return "flood" if index == 2 else "topic"


def test_a_flooding_taker_takes_a_session_whose_vector_comes_late() -> None:
    """The taker waits 0.3 s for what the holder had been through, and passes the session over when
    it comes later than that."""
    result = OneFloods(112).run()
    show(result)
    assert result.violations == []
    assert not result.counters["session_takeovers_uncertain"]
