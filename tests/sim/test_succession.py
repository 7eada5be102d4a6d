"""Brokers that are killed with their disks, in simulation: their clients find their sessions at any
other broker. SEEDS=n runs n schedules instead of the default, FIRST=k begins with seed k."""

from __future__ import annotations

import os
import random

import pytest

from tests.sim.clients import Ledger, SimClient
from tests.sim.disk import Disk, Stayer
from tests.sim.schedule import quiet
from tests.sim.test_durability import FILTERS, TOPICS, check, check_order
from tests.sim.world import Host, World

SEEDS = int(os.environ.get("SEEDS", "12"))
FIRST = int(os.environ.get("FIRST", "0"))
BLOCKS = 2


class Refugee(Stayer):
    """A client that goes to another broker when its own dies."""

    def leave_for(self, seconds: float) -> None:
        """Disconnect, and come back where a broker is."""
        if self.state == "up" and self._end is not None:
            self._end.close()
            self._down("leaves for a while")
            self.world.after(seconds, self.connect)

    def connect(self) -> None:
        if not self.host.alive:
            self.host = self.world.rng.choice(list(self.world.alive()))
        super().connect()


def kill(world: World, host: Host, reset: bool) -> None:
    """Kill a broker, with its disk, if it has a standby."""
    stream = host.running.images.stream if host.alive else None
    if stream is None or stream.alone or len(list(world.alive())) == 1:
        world.say(f"{host.name} is alone")
    else:
        host.kill(reset)


def play(seed: int) -> list[tuple[str, str]]:
    """Run a schedule; returns what went wrong."""
    rng = random.Random(seed)
    world = World(seed)
    world.verbose = int(os.environ.get("VERBOSE", "0"))
    ledger = Ledger()
    disks: dict[int, Disk] = {}
    world.on_start.append(lambda host: disks[host.index].started())
    routing = os.environ.get("ROUTING") or ("flood", "interest", "topic", "topic")[seed // 2 % 4]
    for index in range(rng.choice((2, 3, 4, 5))):
        host = world.add(discovery="multicast", routing=routing, replicas=1, standby_hosts="any")
        disks[index] = Disk(world, host, sync=seed % 2 == 0)
        host.start()
    clients: list[SimClient] = []
    for number in range(rng.choice((2, 4, 6))):
        filters = [(rng.choice(FILTERS), rng.choice((1, 2, 2)))]
        host, version = rng.choice(world.hosts), rng.choice((4, 5))
        name = f"sub{number}"
        client = Refugee(world, ledger, name, host, version=version, clean=False, filters=filters)
        client.ack_delay = rng.choice((0.0, 0.0, 0.05))
        clients.append(client)
    publishers: list[SimClient] = [
        Refugee(world, ledger, f"pub{host.index}", host, version=rng.choice((4, 5)), clean=False)
        for host in world.hosts
    ]
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
    for client in clients:
        if rng.random() < 0.3:  # it is away for a while
            world.after(rng.uniform(1.0, length), client.leave_for, rng.choice((0.1, 2.0, 6.0)))
    when = rng.uniform(2.0, length)
    for victim in rng.sample(world.hosts, rng.choice((1, 1, min(2, len(world.hosts) - 1)))):
        world.after(when, kill, world, victim, rng.random() < 0.7)
        if seed % 3 == 0:  # its disk is there
            world.after(when + rng.choice((0.5, 2.0, 5.0)), victim.start)
        when += 4.0
    world.run(length + 12.0)
    quiet(world)
    world.run(8.0)
    for client in (*clients, *publishers):
        for error in client.errors:
            world.violation("client", f"{client.name}: {error}")
    for client in clients:
        check(world, ledger, client)
        check_order(world, ledger, client)
    return world.violations


@pytest.mark.parametrize("block", range(BLOCKS))
def test_sessions_of_a_broker_that_died_with_its_disk_go_on(block: int) -> None:
    bad = []
    for seed in range(FIRST + block, FIRST + SEEDS, BLOCKS):
        violations = play(seed)
        for kind, text in violations[:5]:
            print(f"seed {seed}: {kind}: {text}")
        if violations:
            bad.append(seed)
    assert not bad


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("stops", [True, False])
@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_the_standby_publishes_the_wills_of_clients_that_do_not_return(
    seed: int, returns: bool, stops: bool, clean: bool
) -> None:
    world, ledger = World(seed), Ledger()
    disks: dict[int, Disk] = {}
    world.on_start.append(lambda host: disks[host.index].started())
    for _ in range(3):
        host = world.add(discovery="multicast", replicas=1, standby_hosts="any")
        disks[host.index] = Disk(world, host, sync=False)
        host.start()
    listener = SimClient(world, ledger, "l", world.hosts[1], filters=[("will", 1)])
    kind = Refugee if returns else SimClient
    device = kind(world, ledger, "d", world.hosts[0], clean=clean, will=("will", 1, True))
    listener.connect()
    device.connect()
    world.run(4.0)
    if stops:  # it publishes them itself
        world.hosts[0].leave()
    else:
        kill(world, world.hosts[0], reset=True)
    world.run(1.5)
    assert not world.hosts[0].alive
    assert len(listener.got) == (1 if stops else 0)
    world.run(3.0)
    assert len(listener.got) == (0 if returns and not stops else 1)
