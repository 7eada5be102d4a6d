"""Brokers with journals that are killed and start again, in simulation: nothing acknowledged is
lost, QoS 2 comes once.

All clients want their sessions kept, and stay with their brokers. SEEDS=n runs n schedules instead
of the default, FIRST=k begins with seed k.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.sim.clients import Ledger, SimClient, matches
from tests.sim.disk import Disk, Stayer
from tests.sim.schedule import quiet
from tests.sim.world import World

SEEDS = int(os.environ.get("SEEDS", "12"))
FIRST = int(os.environ.get("FIRST", "0"))
BLOCKS = 2
TOPICS = ("a", "a/b", "c")
FILTERS = ("a", "a/#", "#", "c")


def play(seed: int) -> list[tuple[str, str]]:
    """Run a schedule; returns what went wrong."""
    rng = random.Random(seed)
    world = World(seed)
    ledger = Ledger()
    disks: dict[int, Disk] = {}
    world.on_start.append(lambda host: disks[host.index].started())
    routing = os.environ.get("ROUTING") or ("flood", "interest", "flood", "topic")[seed // 2 % 4]
    for index in range(rng.choice((1, 2, 3, 4))):
        host = world.add(discovery="multicast", routing=routing)
        disks[index] = Disk(world, host, sync=seed % 2 == 0)
        host.start()
    clients: list[SimClient] = []
    publishers: list[SimClient] = []
    for host in world.hosts:
        for number in range(rng.choice((1, 2))):
            filters = [(rng.choice(FILTERS), rng.choice((1, 2, 2)))]
            name, version = f"sub{host.index}.{number}", rng.choice((4, 5))
            client = Stayer(
                world, ledger, name, host, version=version, clean=False, filters=filters
            )
            client.ack_delay = rng.choice((0.0, 0.0, 0.05))
            clients.append(client)
        publishers.append(
            Stayer(world, ledger, f"pub{host.index}", host, version=rng.choice((4, 5)), clean=False)
        )
    for client in (*clients, *publishers):
        world.after(rng.uniform(0.0, 0.3), client.connect)
    length = rng.choice((5.0, 15.0))
    at = 2.0
    while at < length:
        publisher, topic, qos = rng.choice(publishers), rng.choice(TOPICS), rng.choice((1, 2))
        if rng.random() < 0.2:
            world.after(at, publisher.burst, topic, qos, rng.randrange(2, 30), 5)
        else:
            world.after(at, publisher.publish, topic, qos)
        at += rng.expovariate(1 / 0.03)
    killed = set()
    for _ in range(rng.choice((1, 3, 5))):
        host, when = rng.choice(world.hosts), rng.uniform(2.0, length)
        killed.add(host)
        world.after(when, host.kill, rng.random() < 0.7)
        world.after(when + rng.choice((0.05, 0.5, 3.0)), host.start)
    calm = rng.random() < 0.5
    if not calm:
        more_faults(world, disks, rng, length)
    world.run(length + 4.0)
    world.heal()
    for host in world.hosts:
        host.resume()
        host.start()
    world.run(3.0)
    quiet(world)
    world.run(8.0)
    for client in (*clients, *publishers):
        for error in client.errors:
            world.violation("client", f"{client.name}: {error}")
    for client in clients:
        check(world, ledger, client)
        # Otherwise some may come late, when the only one that still has them is back.
        if calm and len(killed) == 1:
            check_order(world, ledger, client)
    return world.violations


def more_faults(world: World, disks: dict[int, Disk], rng: random.Random, length: float) -> None:
    """Cuts between brokers, brokers that stand still, and disks that are full: with sync, as else
    that costs what is acknowledged, and alone, as links do not wait for a full disk
    (docs/decisions/0021)."""
    for _ in range(rng.choice((1, 3))):
        when, lasts = rng.uniform(1.5, length), rng.choice((0.2, 1.0, 3.0))
        disk = disks[rng.randrange(len(disks))]
        kind = rng.choice(("cut", "pause", "full"))
        if kind == "full" and disk.sync and len(disks) == 1:
            world.after(when, setattr, disk.files, "broken", "No space left on device")
            world.after(when + lasts, setattr, disk.files, "broken", "")
        elif kind == "pause":
            world.after(when, disk.host.pause)
            world.after(when + lasts, disk.host.resume)
        elif kind == "cut" and len(disks) > 1:
            a, b = rng.sample(range(len(disks)), 2)
            world.after(when, world.block, a, b)
            world.after(when + lasts, world.heal)


def check(world: World, ledger: Ledger, client: SimClient) -> None:
    """All that was acknowledged, and what is QoS 2 at both ends once."""
    if not client.interests or client.session != 1:
        world.violation(
            "session", f"{client.name} has its session for the time number {client.session}"
        )
        return
    interest = client.interests[0]
    got = [got.number for got in client.got]
    for sent in ledger.sent:
        if not matches(interest.filter, sent.topic):
            continue
        copies = got.count(sent.number)
        when = f"{sent.at - world.started:.4f}"
        told = (
            f"{client.name} at {client.host.name}: message {sent.number} "
            f"(QoS {sent.qos}, {sent.life}, {when})"
        )
        if sent.acked is not None and not copies and sent.at > interest.since:
            world.violation("lost", f"{told} was acknowledged and did not come")
        if copies > 1 and sent.qos == interest.qos == 2:
            world.violation("twice", f"{told} came {copies} times")


def check_order(world: World, ledger: Ledger, client: SimClient) -> None:
    """What was published on one connection to one topic, and never repeated, comes in its order the
    first time that it comes."""
    last: dict[tuple[SimClient, int, str], int] = {}
    seen: set[int] = set()
    for got in client.got:
        sent = ledger.sent[got.number]
        if got.number in seen or sent.repeated:
            continue
        seen.add(got.number)
        key = (sent.client, sent.epoch, sent.topic)
        if last.get(key, -1) > got.number:
            world.violation(
                "order", f"{client.name} got message {got.number} ({sent.life}) after {last[key]}"
            )
        last[key] = max(last.get(key, -1), got.number)


def test_a_message_that_a_killed_broker_never_wrote_delays_no_other() -> None:
    """Others have had its last message, its next incarnation does not know of it: that was asked
    for it for 30 s."""
    assert play(926) == []


def test_a_broker_that_starts_again_is_asked_at_once_for_missing_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With routing by topic a feed was not asked for when its origin's new life became known:
    seed 408."""
    monkeypatch.setenv("ROUTING", "topic")
    assert play(408) == []


@pytest.mark.parametrize("block", range(BLOCKS))
def test_killed_brokers_with_journals_lose_nothing(block: int) -> None:
    bad = []
    for seed in range(FIRST + block, FIRST + SEEDS, BLOCKS):
        violations = play(seed)
        for kind, text in violations[:5]:
            print(f"seed {seed}: {kind}: {text}")
        if violations:
            bad.append(seed)
    assert not bad


@pytest.mark.parametrize("qos", (1, 2))
def test_what_is_in_flight_is_recorded_behind_a_client_that_is_away(qos: int) -> None:
    world, ledger = World(1), Ledger()
    disks: dict[int, Disk] = {}
    world.on_start.append(lambda host: disks[host.index].started())
    for _ in range(2):
        host = world.add(discovery="multicast", replicas=0)
        disks[host.index] = Disk(world, host, sync=True)
        host.start()
    near, far = world.hosts
    away, there = (
        Stayer(world, ledger, name, far, clean=False, filters=[("t", qos)])
        for name in ("away", "there")
    )
    publisher = SimClient(world, ledger, "p", near)
    for client in (away, there, publisher):
        client.connect()
        world.run(1.0)
    publisher.publish("t", qos)  # the route is made while both are there
    world.run(1.0)
    away.retry = 5.0
    away.cut()
    there.ack_delay = 10.0
    publisher.publish("t", qos)
    world.run(0.5)
    sessions = disks[far.index].files.image().sessions.values()
    found = {each.head.client_id: (len(each.queue), len(each.inflight)) for each in sessions}
    assert found == {b"away": (1, 0), b"there": (0, 1)}
