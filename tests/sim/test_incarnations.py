"""Brokers with journals that are killed together and come back: what a publisher published before
comes before what it published after, to subscribers at brokers that never were down.

SEEDS=n runs n schedules instead of the default, FIRST=k begins with seed k.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.sim.clients import Ledger, SimClient
from tests.sim.disk import Disk, Stayer
from tests.sim.schedule import quiet
from tests.sim.test_durability import check
from tests.sim.world import World

SEEDS = int(os.environ.get("SEEDS", "2"))
FIRST = int(os.environ.get("FIRST", "0"))


def play(seed: int) -> list[tuple[str, str]]:
    """Run a schedule; returns what went wrong."""
    rng = random.Random(seed)
    world = World(seed)
    ledger = Ledger()
    disks: dict[int, Disk] = {}
    world.on_start.append(lambda host: disks[host.index].started())
    routing = os.environ.get("ROUTING") or ("flood", "interest", "topic")[seed % 3]
    brokers = rng.choice((3, 4, 5))
    for index in range(brokers):
        host = world.add(discovery="multicast", routing=routing)
        disks[index] = Disk(world, host, sync=seed % 2 == 0)
        host.start()
    killed = rng.sample(world.hosts, rng.choice((1, 2, 2, 3)))
    subscribers: list[SimClient] = []
    publishers: list[SimClient] = []
    for host in world.hosts:
        version, name, retry = rng.choice((4, 5)), f"sub{host.index}", rng.choice((0.02, 0.3))
        subscribers.append(
            Stayer(world, ledger, name, host, version=version, clean=False, filters=[("#", 2)])
        )
        publishers.append(
            Stayer(world, ledger, f"pub{host.index}", host, version=4, clean=False, retry=retry)
        )
    for client in (*subscribers, *publishers):
        world.after(rng.uniform(0.0, 0.3), client.connect)
    world.run(3.0)
    length, pause = 5.0, rng.choice((0.03, 0.01))
    for publisher in publishers:
        for number in range(int(length / pause)):
            world.after(
                number * pause + rng.uniform(0, pause),
                publisher.publish,
                f"t/{publisher.name}",
                1 + number % 2,
            )
    when = rng.uniform(1.0, 2.0)
    for host in killed:
        world.after(when, host.kill, rng.random() < 0.7)
        world.after(when + rng.choice((0.05, 0.5, 2.0, 2.0)), host.start)
    world.run(length + 1.0)
    quiet(world)
    world.run(8.0)
    for client in subscribers:
        check(world, ledger, client)
        if client.host not in killed:
            check_order(world, ledger, client)
    return world.violations


def check_order(world: World, ledger: Ledger, client: SimClient) -> None:
    """What a publisher published to a topic, on whatever connection, and never repeated, comes in
    its order."""
    last: dict[tuple[SimClient, str], int] = {}
    seen: set[int] = set()
    for got in client.got:
        sent = ledger.sent[got.number]
        if got.number in seen or sent.repeated or sent.acked is None:
            continue
        seen.add(got.number)
        key = (sent.client, sent.topic)
        if last.get(key, -1) > got.number:
            before = ledger.sent[last[key]]
            world.violation(
                "order",
                f"{client.name} at {client.host.name} got {got.number} "
                f"({sent.life}, {sent.at - world.started:.3f}) after {before.number} "
                f"({before.life}, {before.at - world.started:.3f}) at {got.at - world.started:.3f}",
            )
        last[key] = max(last.get(key, -1), got.number)


@pytest.mark.parametrize("seed", (1058, 1066))
def test_messages_of_an_earlier_incarnation_come_first(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later incarnation answered first, and what it said was delivered at once."""
    monkeypatch.setenv("ROUTING", "interest")
    assert play(seed) == []


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_random_kills_of_all_brokers_keep_the_publishers_order(seed: int) -> None:
    assert play(seed) == []
