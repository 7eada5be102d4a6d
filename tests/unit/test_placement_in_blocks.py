"""Clients that are placed in blocks: about as well as one by one, with what is kept up exact."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cli import main
from bench.workloads import simulator, workload, workload_file
from bench.workloads.workload import Workload
from placement.blocks import ROOM, Blocks
from placement.clients import Clients
from placement.state import NARROW_SLOTS, Placement
from tests.kit.placement import DATA, check, load

GOLDEN = [(name, int(m)) for name in ("social-100", "iot-300") for m in load(name)["by_brokers"]]


def named(work: Workload) -> list[tuple[str, list[str]]]:
    """The clients of a workload as they arrive."""
    return [(f"c{number}", list(map(str, topics))) for number, topics in enumerate(work.clients)]


def in_blocks(work: Workload, brokers: int, seed: int = 1, room: float = ROOM) -> Clients:
    """A workload that is placed in blocks."""
    clients = Clients(simulator.publish(work, brokers, seed), work.gamma)
    Blocks(clients, room).join_all(named(work), work.sessions)
    return clients


def one_by_one(work: Workload, brokers: int, seed: int = 1) -> Clients:
    """The same, exactly."""
    clients = Clients(simulator.publish(work, brokers, seed), work.gamma)
    clients.join_all(named(work), work.sessions)
    return clients


@pytest.mark.parametrize(("name", "brokers"), GOLDEN)
def test_workloads_that_are_known_are_as_well_placed_in_blocks(name: str, brokers: int) -> None:
    work = workload_file.read((DATA / f"{name}.json").read_text())
    found, exact = in_blocks(work, brokers), one_by_one(work, brokers)
    assert found.placement.internal <= 1.1 * exact.placement.internal
    assert found.placement.figures().jain > exact.placement.figures().jain - 0.001


def test_thousands_of_clients_in_blocks_make_a_tenth_more_traffic_at_most() -> None:
    internal: dict[str, list[float]] = {"blocks": [], "exact": []}
    for seed in (1, 2):
        work = workload.social(2000, 4000, 10, 1.13, seed)
        blocks, exact = in_blocks(work, 8, seed), one_by_one(work, 8, seed)
        internal["blocks"].append(blocks.placement.internal)
        internal["exact"].append(exact.placement.internal)
        fair, fairest = (each.placement.figures() for each in (blocks, exact))
        assert fair.jain > fairest.jain - 0.001
        assert max(fair.aeo) < 1.01 * max(fairest.aeo)
        check(blocks.placement)
    assert statistics.fmean(internal["blocks"]) <= 1.1 * statistics.fmean(internal["exact"])


def test_blocks_end_when_a_broker_has_its_room_and_so_grow_with_the_load() -> None:
    work = workload.social(500, 3000, 10, 1.13, 1)
    clients = Clients(simulator.publish(work, 8, 1), work.gamma)
    blocks = Blocks(clients, 0.05)
    arriving = named(work)
    counts = []
    for first in range(0, 3000, 1000):
        before = blocks.blocks
        blocks.join_all(arriving[first : first + 1000], 4)
        counts.append(blocks.blocks - before)
    assert counts[0] > 2 * counts[1]
    assert counts[1] > counts[2] > 3


def test_without_room_blocks_are_clients_one_by_one() -> None:
    work = workload.social(200, 300, 10, 1.13, 1)
    found, exact = in_blocks(work, 5, room=0.0), one_by_one(work, 5)
    for number in range(300):
        assert found.sessions_of(f"c{number}") == exact.sessions_of(f"c{number}")


RATES = st.sampled_from([1, 1, 1, 2, 0, 7, 8, 60, 0.3])


@given(
    brokers=st.integers(1, NARROW_SLOTS + 1),
    rates=st.lists(RATES, min_size=1, max_size=6),
    clients=st.lists(st.lists(st.integers(0, 5), max_size=8), min_size=1, max_size=40),
    sessions=st.integers(1, 4),
    room=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_whoever_is_placed_in_blocks_is_counted_once(
    brokers: int, rates: list[float], clients: list[list[int]], sessions: int, room: float
) -> None:
    placement = Placement()
    for slot in range(brokers):
        placement.add_broker(str(slot))
    for topic, rate in enumerate(rates):
        placement.publish(str(topic), str(topic % brokers), rate)
    there = Clients(placement)
    # Some come again with other topics, some name a topic twice, some want what nobody publishes.
    arriving: list[tuple[str, list[str]]] = [
        (f"c{number % 30}", list(map(str, topics))) for number, topics in enumerate(clients)
    ]
    Blocks(there, room).join_all(arriving, sessions)
    check(placement)
    for client, topics in dict(arriving).items():
        found = there.sessions_of(client)
        assert sorted(topic for _, each in found for topic in each) == sorted(set(topics))
        assert len(found) <= sessions
    assert there.sessions == sum(len(there.sessions_of(client)) for client in dict(arriving))


def test_without_a_broker_nobody_is_placed_in_blocks() -> None:
    placement = Placement()
    clients = Clients(placement)
    with pytest.raises(ValueError, match="no broker takes clients"):
        Blocks(clients).join_all([("c", ["a"])], 4)
    assert not placement.topics
    assert "c" not in clients


def test_the_speed_of_blocks_is_told_as_that_of_single_clients(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--clients", "1000", "--topics", "500", "--brokers", "4", "--blocks")
    assert main(["placement", "speed", *words]) == 0
    assert capsys.readouterr().out.startswith("1,000 clients in ")


def test_rates_that_lanes_have_no_bits_for_are_placed_all_the_same() -> None:
    said: dict[str, Any] = {"rates": [300, 1, 0.5, 7], "clients": [[0, 1], [1, 2, 3]] * 40}
    work = workload_file.read(json.dumps(said))
    for brokers in (2, NARROW_SLOTS + 2):
        found, exact = in_blocks(work, brokers), one_by_one(work, brokers)
        assert found.placement.figures() == exact.placement.figures()
        check(found.placement)
