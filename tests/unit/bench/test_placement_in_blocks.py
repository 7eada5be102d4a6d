"""Clients that are placed in blocks: about as well as one by one, with what is kept up exact."""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mqttree.bench.placement as package
from mqttree.bench.cli import main
from mqttree.bench.model.clients import Clients, Rows
from mqttree.bench.model.state import Placement
from mqttree.bench.placement import blocks
from mqttree.bench.placement.blocks import Numbering, Placed, Wanted
from mqttree.bench.workloads import simulator, workload, workload_file
from mqttree.bench.workloads.workload import Workload
from tests.kit.effort import examples
from tests.kit.placement import DATA, check, load

GOLDEN = [(name, int(m)) for name in ("social-100", "iot-300") for m in load(name)["by_brokers"]]


def named(work: Workload) -> list[tuple[str, list[str]]]:
    """The clients of a workload as they arrive."""
    return [(f"c{number}", list(map(str, topics))) for number, topics in enumerate(work.clients)]


def in_blocks(work: Workload, brokers: int, seed: int = 1) -> Clients:
    """A workload that is placed in blocks."""
    clients = Clients(simulator.publish(work, brokers, seed), work.gamma)
    blocks.join_all(clients, named(work), work.sessions)
    return clients


def one_by_one(work: Workload, brokers: int, seed: int = 1) -> Clients:
    """The same, exactly."""
    clients = Clients(simulator.publish(work, brokers, seed), work.gamma)
    clients.join_all(named(work), work.sessions)
    return clients


@pytest.mark.parametrize(("name", "brokers"), GOLDEN)
def test_few_clients_are_placed_one_by_one_and_so_as_well(name: str, brokers: int) -> None:
    work = workload_file.read((DATA / f"{name}.json").read_text())
    found, exact = in_blocks(work, brokers), one_by_one(work, brokers)
    assert found.placement.figures() == exact.placement.figures()
    assert found.sessions == exact.sessions
    for number in range(len(work.clients)):
        there, other = (dict(each.sessions_of(f"c{number}")) for each in (found, exact))
        assert {broker: set(topics) for broker, topics in there.items()} == {
            broker: set(topics) for broker, topics in other.items()
        }


@pytest.mark.parametrize(
    ("rates", "brokers"), [("equal", 2), ("equal", 4), ("equal", 8), ("lognormal", 8)]
)
def test_thousands_in_blocks_make_a_tenth_more_traffic_at_most(rates: str, brokers: int) -> None:
    work = workload.social(2000, 8000, 10, 1.13, 1)
    work.rates = dict(enumerate(workload.drawn_rates(rates, 2000, 1.0, 1)))
    found, exact = in_blocks(work, brokers), one_by_one(work, brokers)
    assert found.placement.internal <= 1.1 * exact.placement.internal
    assert found.placement.figures().jain > exact.placement.figures().jain - 0.002
    check(found.placement)


@dataclass
class Case:
    """Brokers, topics and clients that are placed in blocks from the first one on."""

    capacities: list[float]
    drained: bool
    """whether the first of several brokers takes no clients."""
    rates: list[list[float]]
    """for each topic the rates at brokers, of which as many as there are count."""
    clients: list[list[int]]
    """topics of each client, as they are named."""
    sessions: int
    gamma: float
    first: int
    share: float
    seed: int

    def placement(self, prefix: str = "b") -> Placement:
        """Brokers and topics without subscribers."""
        found = Placement()
        for number, capacity in enumerate(self.capacities):
            found.add_broker(f"{prefix}{number}", capacity)
        for topic, rates in enumerate(self.rates):
            for number, rate in enumerate(rates[: len(self.capacities)]):
                found.publish(
                    f"t{topic}", f"{prefix}{(topic + number) % len(self.capacities)}", rate
                )
        if self.drained and len(self.capacities) > 1:
            found.drain(f"{prefix}0")
        return found

    def place(self, there: Placement) -> Placed:
        """Place the clients."""
        numbering = Numbering()
        numbering.add([f"t{topic}" for topic in topics] for topics in self.clients)
        return blocks.place(
            there,
            numbering.names,
            numbering.wanted(),
            self.sessions,
            self.gamma,
            self.seed,
            self.first,
            self.share,
        )


RATE = st.sampled_from([1, 1, 1, 2, 0, 7, 60, 300, 0.3])

CASES = st.builds(
    Case,
    capacities=st.one_of(
        st.integers(1, 10).map(lambda count: [1.0] * count),
        st.lists(st.sampled_from([1.0, 2.0, 0.5]), min_size=1, max_size=5),
    ),
    drained=st.booleans(),
    rates=st.lists(
        st.one_of(st.lists(st.just(1.0), max_size=1), st.lists(RATE, max_size=3)),
        min_size=1,
        max_size=6,
    ),
    # Some name a topic twice, some want none, or what nobody publishes.
    clients=st.lists(st.lists(st.integers(0, 6), max_size=8), min_size=1, max_size=30),
    sessions=st.integers(1, 4),
    gamma=st.sampled_from([1.0, 1.1, 2.0]),
    first=st.sampled_from([0, 1, 5]),
    share=st.sampled_from([1.0, 100.0]),
    seed=st.integers(0, 3),
)


@settings(max_examples=examples(50))
@given(CASES)
def test_whoever_is_placed_in_blocks_is_counted_once(case: Case) -> None:
    there = case.placement()
    found = case.place(there)
    check(there)
    counted: Counter[tuple[str, int]] = Counter()
    starts = found.wanted.starts.tolist()
    for client, topics in enumerate(case.clients):
        part = slice(starts[client], starts[client + 1])
        names = [found.topics[number].name for number in found.wanted.numbers[part].tolist()]
        assert sorted(names) == sorted({f"t{topic}" for topic in topics})
        slots = found.slots[part].tolist()
        assert set(slots) <= set(there.open)
        assert found.sessions[client] == len(set(slots)) <= case.sessions
        counted.update(zip(names, slots, strict=True))
    for topic in there.topics.values():
        for slot in range(len(case.capacities)):
            assert there.count(topic, slot) == counted[topic.name, slot]


@settings(max_examples=examples(50))
@given(CASES)
def test_nobody_has_more_than_its_bound_and_one_client(case: Case) -> None:
    there = case.placement()
    found = case.place(there)
    weights = [topic.weight for topic in found.topics]
    heaviest = max(sum(weights[at] for at in row) for row in rows_of(found.wanted))
    due = case.gamma * sum(there.aeo) / sum(there.capacities[slot] for slot in there.open)
    for slot in there.open:
        assert there.aeo[slot] <= due * there.capacities[slot] + heaviest + 1e-6


def rows_of(wanted: Wanted) -> list[list[int]]:
    """The numbers of the topics of each client."""
    starts = wanted.starts.tolist()
    return [wanted.numbers[a:b].tolist() for a, b in pairwise(starts)]


@settings(max_examples=examples(50))
@given(CASES)
def test_names_of_brokers_do_not_matter_and_a_seed_is_a_placement(case: Case) -> None:
    slots = [case.place(case.placement(prefix)).slots.tolist() for prefix in ("b", "b", "x")]
    assert slots[0] == slots[1] == slots[2]


@settings(max_examples=examples(50))
@given(CASES, st.randoms(use_true_random=False))
def test_clients_in_rows_are_clients_like_others(case: Case, drawn: random.Random) -> None:
    """The same is done with clients in rows and with those that are attached one by one."""
    there, other = case.placement(), case.placement()
    rows, single = Clients(there, case.gamma), Clients(other, case.gamma)
    found = case.place(there)
    ids = [f"c{number}" for number in range(len(case.clients))]
    found.settle(rows, ids)
    for client in ids:
        single.attach(client, rows.sessions_of(client))
    both = (rows, single)
    for _ in range(10):
        client = drawn.choice(ids)
        broker = f"b{drawn.randrange(len(case.capacities))}"
        act = drawn.choice(["leave", "join", "move", "add", "fail", "rows"])
        if act == "leave" and client in rows:
            for each in both:
                each.leave(client)
        elif act == "join":
            for each in both:
                each.join(client, ["t0", "new"], case.sessions)
        elif act == "move" and client in rows and broker in there.slots:
            for topic in [topic for _, topics in rows.sessions_of(client) for topic in topics][:1]:
                for each in both:
                    each.move(client, topic, broker)
        elif act == "add" and client in rows:
            further = f"further {drawn.random()}"
            for each in both:
                each.add(client, [further], 4)
        elif act == "fail" and len(there.open) > 1 and broker in there.slots:
            assert rows.fail(broker) == single.fail(broker)
            if not there.open:
                return
        elif act == "rows":
            ids.append(f"c{len(ids)}")
            for each in both:
                each.settle_rows([ids[-1]], Rows([], [0, 0], [], b""), 0)
        same(rows, single, ids)
    for each in both:
        for client in ids:
            if client in each:
                each.leave(client)
        check(each.placement)
        assert len(each) == each.sessions == 0
        assert not any(topic.present for topic in each.placement.topics.values())


def same(one: Clients, other: Clients, ids: list[str]) -> None:
    """Both have the same clients at the same brokers."""
    assert (len(one), one.sessions) == (len(other), other.sessions)
    for client in ids:
        assert (client in one) == (client in other)
        if client in one:
            assert one.sessions_of(client) == other.sessions_of(client)
    for broker in one.placement.slots:
        assert one.at(broker) == other.at(broker)
    topics = [topic for topic in one.placement.topics.values() if topic.present]
    for topic in topics:
        others = other.placement.topics[topic.name]
        for slot in one.placement.slots.values():
            mine, theirs = {(topic, slot)}, {(others, slot)}
            assert list(one.holders(mine).values()) == list(other.holders(theirs).values())
    check(one.placement)


def test_there_is_a_client_for_each_row_and_it_is_new() -> None:
    placement = Placement()
    placement.add_broker("a")
    clients = Clients(placement)
    clients.join("there", ["t"])
    for ids in ([], ["there"], ["c", "d"]):
        with pytest.raises(ValueError, match="new clients for 1 rows"):
            clients.settle_rows(ids, Rows([], [0, 0], [], b""), 0)
    assert len(clients) == 1


def test_clients_of_a_block_that_want_a_new_topic_meet_at_one_broker() -> None:
    placement = Placement()
    for slot in range(5):
        placement.add_broker(f"b{slot}")
    # Whoever wants it pays, as its publisher's broker takes no clients.
    placement.drain("b0")
    for topic in range(50):
        placement.publish(f"t{topic}", "b0", 1)
    numbering = Numbering()
    numbering.add([["t0"]] + [[f"t{client % 49 + 1}"] for client in range(490)])
    blocks.place(placement, numbering.names, numbering.wanted(), 4, 9.0, 1, 1, 1000.0)
    assert placement.internal == 50


def test_who_is_there_already_is_placed_again_with_what_it_wants_last() -> None:
    placement = Placement()
    for broker in ("a", "b"):
        placement.add_broker(broker)
    clients = Clients(placement)
    clients.join("c", ["old"])
    blocks.join_all(clients, [("c", ["first"]), ("d", ["t", "t"]), ("c", ["last"])])
    assert [topics for _, topics in clients.sessions_of("c")] == [("last",)]
    assert [topics for _, topics in clients.sessions_of("d")] == [("t",)]
    assert set(placement.topics) == {"last", "t"}
    check(placement)


def test_subscribers_before_publishers_are_placed_one_by_one() -> None:
    work = workload.social(200, 300, 10, 1.13, 1)
    found, exact = (Clients(simulator.expect(work, 5)) for _ in range(2))
    numbering = Numbering()
    numbering.add(topics for _, topics in named(work))
    blocks.place(found.placement, numbering.names, numbering.wanted(), first=0)
    # In the order in which they are looked at.
    names = numbering.names
    for client, row in enumerate(rows_of(numbering.wanted())):
        exact.join(f"c{client}", [names[number] for number in row])
    assert found.placement.figures() == exact.placement.figures()


def test_without_a_broker_nobody_is_placed_in_blocks() -> None:
    placement = Placement()
    clients = Clients(placement)
    with pytest.raises(ValueError, match="no broker takes clients"):
        blocks.join_all(clients, [("c", ["a"])])
    with pytest.raises(ValueError, match="no broker takes clients"):
        blocks.place(placement, [], Wanted(np.array([0]), np.zeros(0, np.int32)))
    assert not placement.topics
    assert "c" not in clients


@pytest.mark.parametrize(
    ("names", "starts", "numbers", "why"),
    [
        (["a", "a"], [0, 1], [0], "a topic has two numbers"),
        (["a"], [], [], "do not follow"),
        (["a", "b"], [0, 2, 1, 2], [0, 1], "do not follow"),
        (["a"], [0, 1], [1], "no topic"),
        (["a"], [0, 1], [-1], "no topic"),
        (["a", "b"], [0, 2], [1, 0], "not in order"),
    ],
)
def test_numbers_that_do_not_say_who_wants_what_are_refused(
    names: list[str], starts: list[int], numbers: list[int], why: str
) -> None:
    placement = Placement()
    placement.add_broker("a")
    wanted = Wanted(np.array(starts, np.intp), np.array(numbers, np.int32))
    with pytest.raises(ValueError, match=why):
        blocks.place(placement, names, wanted)
    assert not placement.topics


def test_the_speed_of_blocks_is_told_as_that_of_single_clients(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--clients", "1000", "--topics", "500", "--brokers", "4", "--blocks")
    assert main(["placement", "speed", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1,000 clients in ")
    assert lines[1].startswith("numbers of their topics: ")


def test_what_blocks_need_is_named_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(package, "blocks")
    monkeypatch.delitem(sys.modules, "mqttree.bench.placement.blocks")
    monkeypatch.setitem(sys.modules, "numpy", None)
    words = ("--clients", "10", "--topics", "50", "--each", "2", "--blocks")
    assert main(["placement", "speed", *words]) != 0
    assert "numpy is not installed: pip install 'mqttree[bench]'" in capsys.readouterr().err
