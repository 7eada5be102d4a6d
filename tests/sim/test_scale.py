"""More brokers than are all linked to each other: they choose neighbours on a ring, agree on one
tree and repair it."""

from __future__ import annotations

import math

import pytest

from mqttree.broker.limits import DEFAULTS
from mqttree.discovery.neighbour_selection import REVIEW, SURPLUS_AFTER
from tests.sim.checkers import directory_faults
from tests.sim.scale import Scale
from tests.sim.world import Host

COUNT = 20


def linked(host: Host) -> set[bytes]:
    return {peer for peer, link in host.running.cluster.links.items() if link.up}


def chosen(host: Host) -> set[bytes]:
    found = host.running.cluster.membership._table.chosen
    return found if found is not None else linked(host)


def check(scale: Scale) -> None:
    """One tree; everybody known; the graph of links connected, with every link that both ends
    choose."""
    world = scale.world
    alive = {host.id: host for host in world.alive()}
    assert world.violations == []
    assert scale.agreed()
    assert directory_faults(world, world.alive()) == []
    for host in alive.values():
        cluster = host.running.cluster
        assert {
            broker for broker in alive if cluster.membership.is_member(broker)
        } == alive.keys() - {host.id}
        assert chosen(host) & alive.keys() <= linked(host)
        assert scale.depths(host).keys() == alive.keys()


def check_sparse(scale: Scale) -> None:
    """Beyond what one of both ends chooses, only what the tree uses."""
    alive = {host.id: host for host in scale.world.alive()}
    bound = 2 * math.floor(math.log2(len(alive)))
    for host in alive.values():
        tree = host.running.cluster.tree
        for peer in linked(host):
            assert (
                peer in chosen(host)
                or host.id in chosen(alive[peer])
                or tree.ports[peer].forwarding
            )
        assert len(chosen(host) & alive.keys()) <= bound
        assert len(linked(host)) < len(alive) - 1


@pytest.mark.long
def test_many_brokers_agree_again_after_kills_cuts_and_restarts() -> None:
    scale = Scale(COUNT, 1)
    world = scale.world
    for host in world.hosts:
        host.start()
    scale.until_agreed()
    check(scale)
    root = scale.root()
    root.kill()
    scale.until_agreed()
    scale.run(2.0)
    world.partition([range(0, COUNT, 2)])
    scale.run(4.0)
    hosts = [host for host in world.alive() if host is not scale.root()]
    for host in world.rng.sample(hosts, 3):
        host.kill(reset=False)
        world.after(3.0, host.start)
    root.start()
    scale.run(4.0)
    world.heal()
    scale._add(COUNT).start()
    scale.run(8.0)
    scale.until_agreed()
    scale.run(SURPLUS_AFTER + 2 * REVIEW)
    check(scale)
    check_sparse(scale)
    assert sum(host.running.counters.links_surplus for host in world.alive()) > 0


def test_one_seed_is_enough_for_many() -> None:
    scale = Scale(20, 3, discovery="static", seeds=(("10.0.0.1", 1883),))
    for host in scale.world.hosts:
        host.start()
    scale.until_agreed()
    scale.run(2.0)
    check(scale)
    scale.world.hosts[0].kill()
    scale.until_agreed()
    check(scale)


def test_many_brokers_in_a_line_make_a_long_tree() -> None:
    """Neighbours on the ring cannot be reached; whoever can is kept, and sought at once when it is
    back."""
    scale = Scale(16, 4, line=True)
    for host in scale.world.hosts:
        host.start()
    scale.until_agreed()
    scale.run(1.0)
    assert max(scale.depths(scale.world.hosts[0]).values()) >= 7
    middle = scale.world.hosts[7]
    middle.kill()
    scale.until_agreed()
    middle.start()
    scale.run(3.0)
    scale.until_agreed()
    assert scale.world.violations == []
    assert linked(middle) >= {scale.world.hosts[number].id for number in (6, 8)}


def test_up_to_the_limit_all_brokers_link_to_each_other() -> None:
    scale = Scale(DEFAULTS.full_mesh + 1, 5)
    for host in scale.world.hosts:
        host.start()
    scale.until_agreed()
    scale.run(2.0)
    assert all(len(linked(host)) == DEFAULTS.full_mesh for host in scale.world.hosts)
    scale.world.hosts[3].kill()
    scale.run(SURPLUS_AFTER + REVIEW)
    assert all(len(linked(host)) == DEFAULTS.full_mesh - 1 for host in scale.world.alive())
