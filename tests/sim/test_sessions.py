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
    "flood": (0, 1, 3, 6, 7, 8, 9, 19, 20, 22, 23, 29, 33, 36, 39),
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


ONCE_BAD = {
    ("topic", 26): (
        "the way to the holder hung while the rest of a session was fetched, "
        "which went on without it"
    ),
    ("topic", 53): (
        "a broker that messages passed through hung while a session moved, "
        "which did not wait until it knew of that"
    ),
    ("flood", 3052): (
        "what came from one older session was not known by number "
        "when the session was merged once more"
    ),
    ("flood", 307): (
        "a link brought messages that were seconds old; "
        "what was delivered before that was told was merged as well"
    ),
    ("flood", 60019): "the same, 56 messages",
    ("interest", 3008): (
        "a retained message that a comparison brought had been delivered, and was merged as well"
    ),
    ("topic", 3008): "the same",
    ("topic", 60031): "a retained message was merged, and a comparison brought it afterwards",
    ("topic", 3023): (
        "parts of a session were sent again every second over a link that takes longer, "
        "until it was full of them"
    ),
    ("flood", 60000): (
        "the last entry of a session was withdrawn before its new one was known: "
        "its client began another one"
    ),
    ("interest", 50006): (
        "a broker that was killed while it took a session, with a clock that was ahead, "
        "never got it afterwards"
    ),
    ("topic", 64019): (
        "what a session had got from an older one was told roughly "
        "when it was merged once more; QoS 2 came twice"
    ),
    ("flood", 65048): (
        "two brokers each took themselves to have the newer session of a client, "
        "and refused each other for ever"
    ),
    ("interest", 65011): (
        "a broker that took a newer session ended its own as if its client had: "
        "older ones elsewhere were lost"
    ),
    ("interest", 65051): (
        "a session that its client left before it said anything took the place "
        "of the one with subscriptions"
    ),
    ("interest", 1009): (
        "a retained copy and the message itself waited, and the copy was taken for the message"
    ),
    ("topic", 66015): (
        "an older session was added to one that another broker had encoded already, "
        "and forgotten with that"
    ),
    ("interest", 66015): "the same",
    ("flood", 70085): (
        "what a broker out of reach had published "
        "before the newer session subscribed came to neither session"
    ),
    ("flood", 70087): "the same",
    ("interest", 7701004): (
        "a message and its retained copy waited; "
        "what a comparison had brought was taken for the copy"
    ),
    ("interest", 7701037): (
        "the checker's: a broker wants what a session wants that is to be added "
        "to a newer one elsewhere"
    ),
    ("interest", 7701034): (
        "the checker's: a session had gone to a broker that died before its client was told"
    ),
    ("flood", 7701072): (
        "the checker's: in MQTT 3.1 CONNACK has no Session Present flag, "
        "and what is sent again is no new message"
    ),
    ("flood", 62024): (
        "a subscription was taken to be younger than a message that was published 6 ms "
        "after its SUBACK"
    ),
}


@pytest.mark.parametrize(("routing", "seed"), ONCE_BAD)
def test_roaming_schedules_that_once_failed_keep_all_promises(routing: str, seed: int) -> None:
    """Schedules that showed faults of moving and merging sessions."""
    result = Roaming(seed, routing=routing, calm=seed % 3 == 0).run()
    show(result)
    assert result.violations == []


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
