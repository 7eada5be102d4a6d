"""A broker dies between the delivery of a QoS 2 message and its PUBREC: the publisher, whose
session it keeps, sends it again."""

from __future__ import annotations

import pytest

from tests.sim.checkers import Meetings, Messages, Splits
from tests.sim.clients import Ledger, SimClient
from tests.sim.disk import Disk, Stayer
from tests.sim.schedule import quiet
from tests.sim.world import World


@pytest.mark.parametrize(
    "clean", [True, False], ids=["begins a new session", "goes on with its session"]
)
@pytest.mark.parametrize("seed", range(2))
def test_only_a_new_session_gets_an_unacknowledged_qos_2_message_again(
    seed: int, clean: bool
) -> None:
    """A subscriber of that broker that begins a new session, and no other: sessions that are
    kept, and links, wait for the journal (decision 21)."""
    world = World(seed)
    ledger = Ledger()
    disks: dict[int, Disk] = {}
    world.on_start.append(lambda host: disks[host.index].started())
    meetings, splits = Meetings(world), Splits(world)
    for index in range(2):
        disks[index] = Disk(world, world.add(discovery="multicast", routing="topic"), sync=True)
        world.hosts[index].start()
    here, there = world.hosts
    publisher = Stayer(world, ledger, "pub", here, version=4, clean=False)
    near = Stayer(world, ledger, "near", here, version=4, clean=clean, filters=[("t", 2)])
    far = Stayer(world, ledger, "far", there, version=4, clean=True, filters=[("t", 2)])
    clients: list[SimClient] = [publisher, near, far]
    for client in clients:
        client.connect()
    world.run(2.0)
    publisher.publish("t", 2)
    if clean:
        world.run(5.0, lambda: bool(near.got), every=0.0001)
    here.kill()
    disks[0].under_way.clear()  # the record of it was not written
    publisher._stay_down = True
    world.run(0.5)
    here.start()
    world.run(2.0)
    publisher._stay_down = False
    publisher.connect()
    quiet(world, 5.0)
    Messages(world, ledger, clients, meetings, splits).check()
    assert world.violations == []
    assert len(far.got) == 1
    assert len(near.got) == 1 + clean
    assert ledger.sent[0].acked is not None
