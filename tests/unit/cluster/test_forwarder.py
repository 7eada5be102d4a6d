"""Messages over links: what is kept for whom, and when."""

from __future__ import annotations

import random

import pytest

from mqttree.broker.base.counters import Counters
from mqttree.broker.base.sequence_set import LAST, MAX_GAPS
from mqttree.broker.cluster.delivery.forwarder import FORGET_S, MAX_QUIET_ORIGINS
from mqttree.broker.cluster.delivery.local_window import LocalWindow
from mqttree.broker.cluster.delivery.pull_messages import PULL, decode_pull
from mqttree.broker.cluster.delivery.resync import DIRECTORY_WAIT_S
from mqttree.broker.cluster.link.control_records import (
    MAX_PING_PAYLOAD,
    ORIGINS,
    SEEN,
)
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.link.version_vector import OriginWindow, decode_vector, encode_vector
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.stp.bpdu import Role
from tests.kit.link_harness import FAR, Neighbour, bid, lone, message, ping, unharmed
from tests.sim.clients import Ledger, SimClient
from tests.sim.world import Host
from tests.sim.world import World as Network

# ------------------------------------------------------------------ whole federations


class Federation:
    """Brokers on a virtual network, each with a subscriber of everything."""

    def __init__(self, seed: int, count: int) -> None:
        self.network = Network(seed)
        self.ledger = Ledger()
        self.hosts = [
            self.network.add(discovery="multicast", capability=float(9 - n)) for n in range(count)
        ]
        for host in self.hosts:
            host.start()
        self.subscribers = [
            self.client(f"s{host.index}", host, filters=[("#", 2)]) for host in self.hosts
        ]
        self.network.run(4.0)

    def client(self, name: str, host: Host, **more: object) -> SimClient:
        client = SimClient(self.network, self.ledger, name, host, **more)  # type: ignore[arg-type]
        client.connect()
        return client

    def publish(self, client: SimClient, count: int, every: float) -> None:
        """Publish one after the other from when the client is connected."""
        assert self.network.run(1.0, lambda: client.state == "up", 0.001)
        for number in range(count):
            self.network.after(number * every, client.publish, "t", 1 + number % 2)

    def check(self, client: SimClient, count: int, subscribers: list[int]) -> None:
        """Every one of these has got everything that was acknowledged, once and in order."""
        self.network.run(10.0)
        sent = [s for s in self.ledger.sent if s.client is client]
        assert len(sent) == count
        assert all(s.acked is not None for s in sent)
        for index in subscribers:
            got = [g.number for g in self.subscribers[index].got if g.topic == "t"]
            assert got == [s.number for s in sent], index
        assert not self.network.violations


@pytest.mark.parametrize("seed", range(5))
def test_what_is_published_right_after_a_restart_reaches_everybody(seed: int) -> None:
    world = Federation(seed, 3)
    world.hosts[1].kill()
    world.network.run(3.0)
    world.hosts[1].start()
    client = world.client("p", world.hosts[1])
    world.publish(client, 100, 0.002)
    world.check(client, 100, [0, 2])


@pytest.mark.parametrize("seed", range(5))
def test_messages_of_a_broker_restarted_in_a_split_reach_the_other_side(
    seed: int,
) -> None:
    world = Federation(seed, 4)
    world.network.partition([(0, 1), (2, 3)])
    world.network.run(3.0)
    world.hosts[2].kill()
    world.network.run(2.0)
    world.hosts[2].start()
    client = world.client("p", world.hosts[2])
    world.publish(client, 100, 0.01)
    world.network.run(4.0)
    world.network.heal()
    world.check(client, 100, [0, 1, 3])


def test_a_broker_that_joins_gets_no_older_messages() -> None:
    world = Federation(3, 2)
    client = world.client("p", world.hosts[0])
    world.publish(client, 20, 0.001)
    world.network.run(3.0)
    late = world.network.add(discovery="multicast")
    late.start()
    subscriber = world.client("late", late, filters=[("#", 2)])
    world.network.run(5.0)
    assert subscriber.got == []
    world.network.after(0.0, client.publish, "t", 1)
    world.network.run(1.0)
    assert len(subscriber.got) == 1


# ------------------------------------------------------------------ one node


def test_a_history_with_many_gaps_is_asked_for_in_messages_that_fit() -> None:
    """However many holes there are between what a neighbour lacks and what is history here."""
    world = lone()
    first, second, third = (Neighbour(world, n) for n in (1, 2, 3))
    key = origin_key(FAR, 1)
    known, lacks = OriginWindow(9_000, 0.0), OriginWindow(9_000, 0.0)
    known.gaps = [(n, n + 9) for n in range(1, 50 * MAX_GAPS, 50)]
    lacks.gaps = [(n + 15, n + 64) for n in range(1, 50 * MAX_GAPS, 50)]
    first.send(ping((ORIGINS, encode_vector({key: known}))))
    second.bpdu(world.node.cluster.tree.root, Role.ROOT, Role.DESIGNATED, path_cost_us=50)
    third.take()
    second.send(
        ping(
            (
                SEEN,
                encode_vector({key: lacks, world.node.cluster.forwarder.key: OriginWindow(0, 0.0)}),
            )
        )
    )
    world.advance(DIRECTORY_WAIT_S)
    (body,) = third.routed(PULL)
    asked = decode_pull(body)
    assert asked.key == key and asked.behind and 0 < len(asked.lacks) <= MAX_GAPS
    assert second.link().live, "what comes is passed on"
    window = world.node.cluster.forwarder.vector[key]
    assert len(window.gaps) <= MAX_GAPS
    unharmed(world)


def test_made_up_origins_displace_none_and_do_not_circulate() -> None:
    world = lone()
    liar, honest, publisher = (Neighbour(world, n) for n in (1, 2, 3))
    relay = world.node.cluster.forwarder
    key = origin_key(bid(77), 2_000)
    publisher.child()
    publisher.send(message(key=key, sequence=1))
    honest.take()
    rng = random.Random(1)
    told = 0
    for _ in range(20):
        liar.send(
            ping(
                (
                    ORIGINS,
                    encode_vector(
                        {
                            origin_key(rng.randbytes(8), 1): OriginWindow(5, 0.0)
                            for _ in range(1_000)
                        }
                    ),
                )
            )
        )
        told += sum(len(decode_vector(body, 0.0)) for body in honest.records(ORIGINS))
        world.advance(0.1)
        for neighbour in (liar, honest, publisher):
            neighbour.send(ping())
    assert told <= MAX_QUIET_ORIGINS + 20
    assert len(relay.vector) <= MAX_QUIET_ORIGINS + 20
    assert relay.vector[key].top == 1
    # Who publishes is known all the same; those that never did make room.
    for number in range(2, 8):
        publisher.send(message(key=key, sequence=number))
        publisher.send(
            *(message(key=origin_key(rng.randbytes(8), 2_000), sequence=1) for _ in range(1_000))
        )
        world.advance(0.1)
    assert len(relay.vector) <= DEFAULTS.max_origins
    assert relay.vector[key].top == 7
    assert relay.key in relay.vector
    publisher.send(message(key=key, sequence=1))
    assert world.counters.duplicates == 1
    world.advance(0.0)
    relay.sweep(world.now + FORGET_S + 1)
    assert set(relay.vector) == {relay.key}


def test_many_new_origins_at_once_are_made_known_in_one_piece() -> None:
    world = lone()
    publisher, other = Neighbour(world, 1).child(), Neighbour(world, 2)
    other.take()
    rng = random.Random(1)
    keys = [origin_key(rng.randbytes(8), 2_000) for _ in range(500)]
    publisher.send(*(message(key=key) for key in keys), ping())
    world.advance(1.0)
    records = other.records(ORIGINS)
    assert len(records) == 1
    assert set(decode_vector(records[0], 0.0)) == set(keys)


def test_a_full_table_of_origins_fits_into_one_message() -> None:
    """All origins with all their gaps fit into what a neighbour takes."""
    vector = {}
    for number in range(DEFAULTS.max_origins - 1):
        window = vector[origin_key(bid(number), 1)] = OriginWindow(LAST - 1, 0.0)
        window.gaps = [(n, n) for n in range(1, 2 * MAX_GAPS, 2)]
    body = encode_vector(vector)
    assert 2 * len(body) < MAX_PING_PAYLOAD
    assert {key: window.top for key, window in decode_vector(body, 0.0).items()} == dict.fromkeys(
        vector, LAST - 1
    )
    assert decode_vector(body, 0.0)[origin_key(bid(7), 1)].gaps == [(127, 127)]
    world = lone()
    neighbour = Neighbour(world, 1)
    for _ in range(10):
        neighbour.send(ping((SEEN, body)))
        assert neighbour.up, "no broker closes a link because a neighbour filled its table"
        assert len(world.node.cluster.forwarder.vector) == MAX_QUIET_ORIGINS + 1


def test_holes_that_are_given_up_are_counted() -> None:
    counters = Counters()
    window = LocalWindow(0, 0.0, counters, Limits().max_gaps)
    window.begin = LAST  # as of an earlier incarnation of the broker
    for hole in range(MAX_GAPS):
        window.accept(2 + 4 * hole, 1)
    assert counters.gaps_forgotten == 0
    assert window.missing(1)
    window.accept(2 + 4 * MAX_GAPS, 1)  # one more
    assert counters.gaps_forgotten == 1
    assert not window.missing(1)
    window.accept(4, 1)  # the oldest hole that is left is split
    assert counters.gaps_forgotten == 2
    assert not window.missing(3)
    assert window.missing(5)
    window.accept(window.top + 1, 1)
    assert counters.gaps_forgotten == 2
    assert len(window.gaps) == MAX_GAPS
