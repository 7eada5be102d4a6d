"""Brokers that publish while they know no other one, and that meet later: each message of a session
comes once, whoever is killed, and no broker asks for what it was not there for."""

from __future__ import annotations

import pytest

from mqttree.broker.core.session import Session
from tests.sim.test_merge import StuckDisk
from tests.sim.test_takeover import Client, Row
from tests.sim.world import World

ROUTINGS = ("flood", "interest", "topic")


def apart(routing: str, *, journals: bool = True) -> tuple[Row, dict[int, StuckDisk]]:
    """Two brokers, and their disks, that have not heard of each other, for so long that both know
    themselves alone."""
    row = Row.__new__(Row)
    row.world = world = World(7)
    world.skew, world.rate, world.loss = 0.0, 1.25e7, 0.0
    world.partition([[1]])
    disks: dict[int, StuckDisk] = {}
    if journals:
        world.on_start.append(lambda host: disks[host.index].started())
    for index in range(2):
        host = world.add(discovery="multicast", capability=float(9 - index), routing=routing)
        if journals:
            disks[index] = StuckDisk(world, host, sync=False)
        host.start()
    row.run(15.0)
    assert not any(row.node(index).federated for index in range(2))
    return row, disks


def left(row: Row, index: int, topic: str) -> None:
    """The client's session at a broker, with two messages in its queue."""
    client = row.connect(index).subscribed(topic)
    row.run(0.3)
    client.leave()
    row.run(0.3)
    row.connect(index, f"p{index}").publish(topic, b"%d-1" % index, b"%d-2" % index)
    row.run(0.3)


def restart(row: Row, *indices: int) -> None:
    for index in indices:
        row.host(index).kill()
    row.run(0.5)
    for index in indices:
        row.host(index).start()


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("restarted", [(), (0,), (1,), (0, 1)])
def test_what_waits_at_two_brokers_that_meet_comes_once(
    routing: str, restarted: tuple[int, ...]
) -> None:
    row, _ = apart(routing)
    left(row, 0, "a")
    left(row, 1, "b")
    restart(row, *restarted)
    row.run(15.0)
    row.world.partition([])
    row.join()
    row.until(lambda: row.node(1).counters.sessions_merged)
    row.connect(0, "p").publish("b", b"3", b"4")
    row.run(1.0)
    client = row.connect(1)
    row.run(2.0)
    assert sorted(client.payloads) == [b"0-1", b"0-2", b"1-1", b"1-2", b"3", b"4"]
    assert client.payloads[-2:] == [b"3", b"4"]
    for index in range(2):
        counters = row.node(index).counters
        assert (counters.replay_log_lost, counters.gaps_forgotten) == (0, 0)
    row.one_session()


@pytest.mark.parametrize("routing", ROUTINGS)
def test_what_is_published_for_a_broker_that_was_just_met_waits_for_nothing(routing: str) -> None:
    """The publisher's broker has numbered much that is in no log."""
    row, _ = apart(routing, journals=False)
    publisher, client = row.connect(0, "p"), row.connect(1).subscribed("a")
    for number in range(50):
        publisher.publish("a", b"alone %d" % number)
    row.run(0.3)
    row.world.partition([])
    row.join()
    publisher.publish("a", b"1")
    row.run(0.2)
    assert client.payloads == [b"1"]


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("killed", [(0,), (1,), (0, 1)])
def test_a_session_is_merged_once_though_brokers_are_killed_before_its_own_forgets_it(
    routing: str, killed: tuple[int, ...]
) -> None:
    """The newer session has settled what it got, and no subscription of it matches that."""
    row, client = merged(routing)
    client.leave()
    restart(row, *killed)
    row.world.partition([])
    row.join()
    row.one_session()
    assert not row.connect(1).payloads


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_session_that_was_taken_gets_nothing_twice_though_its_holder_comes_back_with_it(
    routing: str,
) -> None:
    """The holder is killed long after that, and has not written that it was taken."""
    row, disks = apart(routing)
    left(row, 0, "a")
    row.world.partition([])
    row.join()
    disks[0].stuck = True
    client = row.connect(1)
    row.until(lambda: len(client.payloads) == 2)
    row.host(0).kill()
    row.run(200.0)
    restart(row, 1)
    row.host(0).start()
    assert "c" in row.node(0).sessions
    row.join()
    row.one_session()
    assert not row.node(1).counters.sessions_merged
    assert not row.connect(1).payloads


def merged(routing: str) -> tuple[Row, Client]:
    """A session has been merged, its messages are settled, and its broker has not heard of it."""
    row, _ = apart(routing)
    left(row, 0, "a")
    client = row.connect(1).subscribed("b")
    row.run(0.3)
    row.world.partition([])
    row.until(lambda: row.node(1).counters.sessions_merged, 30.0)
    row.world.partition([[1]])
    row.run(3.0)
    assert client.payloads == [b"0-1", b"0-2"]
    assert "c" in row.node(0).sessions
    return row, client


def test_names_alone_do_not_say_that_a_session_was_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the newer session has settled is nowhere by name: that the older one was merged is."""
    monkeypatch.setattr(Session, "absorb", lambda session, *absorbed: None)
    row, client = merged("flood")
    client.leave()
    restart(row, 1)
    row.world.partition([])
    row.join()
    row.one_session()
    assert row.connect(1).payloads == [b"0-1", b"0-2"]
