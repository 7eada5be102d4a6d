"""Where clients are placed: published results exactly, and the traffic that is kept up against the
same from nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mqttree.bench.model.clients import Clients
from mqttree.bench.model.greedy import greedy, greedy_items
from mqttree.bench.model.optimum import cheapest_set
from mqttree.bench.model.state import Placement, bits
from mqttree.bench.model.strategies import STRATEGIES, publisher_slot
from mqttree.bench.placement.rebalancing import apply, plan
from tests.kit.effort import examples
from tests.kit.placement import KEYS, check, load, placed, published, row

CASES = [
    (name, brokers) for name in ("social-100", "iot-300") for brokers in load(name)["by_brokers"]
]

NAMES = {"greedy": "paper", "best_matching": "best", "greedy_ties_by_load": "load"}


def all_placed(data: Any, brokers: str, strategy: str) -> tuple[Any, Clients]:
    """All clients of a file, placed."""
    there = data["by_brokers"][brokers]
    placement = published(there["publishers"], int(brokers), data["rates"])
    clients = Clients(placement, data["gamma"], STRATEGIES[strategy])
    found = [
        placed(clients.join(f"c{number}", map(str, topics), data["nses"]))
        for number, topics in enumerate(data["clients"])
    ]
    return found, clients


@pytest.mark.parametrize("strategy", NAMES)
@pytest.mark.parametrize(("name", "brokers"), CASES)
def test_published_placements_are_found_exactly(name: str, brokers: str, strategy: str) -> None:
    data = load(name)
    known = data["by_brokers"][brokers][strategy]
    found, clients = all_placed(data, brokers, NAMES[strategy])
    figures = row(clients.placement.figures(), clients.sessions)
    assert figures == {key: known[key] for key in KEYS}
    if "placement" in known:
        assert found == known["placement"]
    check(clients.placement)


@pytest.mark.parametrize(("name", "brokers"), CASES)
def test_random_attach_has_the_published_traffic(name: str, brokers: str) -> None:
    data = load(name)
    there = data["by_brokers"][brokers]
    placement = published(there["publishers"], int(brokers), data["rates"])
    clients = Clients(placement)
    for number, topics in enumerate(data["clients"]):
        at = str(there["random_attach"][number])
        clients.attach(f"c{number}", [(at, tuple(map(str, topics)))])
    assert row(placement.figures(), clients.sessions) == there["random"]


@pytest.mark.parametrize("case", load("tiny"))
def test_the_optimum_for_one_client_is_that_of_all_assignments(case: Any) -> None:
    costs = [
        [
            0 if case["active"][topic] >> slot & 1 else case["rates"][topic]
            for slot in range(case["m"])
        ]
        for topic in case["topics"]
    ]
    least, slots = cheapest_set(costs, case["candidates"], case["nses"])
    assert least == case["least_increase"]
    assert len(slots) <= case["nses"]
    assert set(slots) <= set(case["candidates"])


def test_a_client_with_two_sessions_spares_what_one_would_cost() -> None:
    placement = Placement()
    for broker in ("1", "2"):
        placement.add_broker(broker)
    placement.publish("tennis", "1", 5)
    placement.publish("baseball", "2", 5)
    clients = Clients(placement)
    assert clients.join("one", ["tennis", "baseball"], 1) == [("1", ("tennis", "baseball"))]
    assert placement.figures().internal == 5
    clients.leave("one")
    assert len(clients.join("two", ["tennis", "baseball"], 2)) == 2
    assert placement.figures().internal == 0


def test_a_drained_broker_gets_no_client_and_keeps_those_that_it_has() -> None:
    placement = published([0, 0, 1, 1], 2, 1)
    clients = Clients(placement)
    clients.join("before", ["0"])
    assert clients.at("0") == {"before"}
    placement.drain("0")
    for number in range(20):
        assert clients.join(f"c{number}", ["0", "1"]) == [("1", ("0", "1"))]
    assert clients.at("0") == {"before"}
    placement.drain("1")
    with pytest.raises(ValueError, match="no broker takes clients"):
        clients.join("late", ["0"])


def test_a_broker_gets_load_by_its_capacity() -> None:
    placement = Placement()
    placement.add_broker("0")
    placement.add_broker("1", 3)
    for topic in range(50):
        placement.publish(str(topic), "0", 1)
    clients = Clients(placement)
    for number in range(2000):
        clients.join(f"c{number}", [str(number % 50)])
    small, large = placement.figures().aeo
    assert 2.6 < large / small < 3.4


def test_only_clients_of_a_failed_broker_are_orphans() -> None:
    data = load("social-100")
    _, clients = all_placed(data, "8", "load")
    before = {f"c{number}": clients.sessions_of(f"c{number}") for number in range(100)}
    orphans = clients.fail("3")
    assert set(orphans) == {
        name for name, sessions in before.items() if any(broker == "3" for broker, _ in sessions)
    }
    for name, sessions in before.items():
        kept = [each for each in sessions if each[0] != "3"]
        assert sorted(clients.sessions_of(name)) == sorted(kept)
        lost = [topics for broker, topics in sessions if broker == "3"]
        assert orphans.get(name, ()) == (lost[0] if lost else ())
    check(clients.placement)


def test_a_plan_saves_most_of_what_a_placement_from_nothing_would() -> None:
    data = load("social-100")
    _, clients = all_placed(data, "8", "best")
    before = clients.placement.figures()
    planned = plan(clients, 200)
    apply(clients, planned)
    after = clients.placement.figures()
    check(clients.placement)
    assert len(planned) == 200
    assert after.internal == before.internal - sum(move.saving for move in planned)
    assert after.internal < 0.75 * before.internal
    assert max(after.aeo) <= 1.1 * sum(after.aeo) / 8


def test_a_plan_relieves_a_broker_that_has_too_much() -> None:
    data = load("social-100")
    placement = published(data["by_brokers"]["2"]["publishers"], 2, 1)
    clients = Clients(placement)
    for number, topics in enumerate(data["clients"]):
        clients.attach(f"c{number}", [(str(int(number < 20)), tuple(map(str, topics)))])
    bound = 1.1 * sum(placement.aeo) / 2
    assert placement.aeo[0] > bound
    before = placement.figures().internal
    apply(clients, plan(clients, 1000))
    assert placement.aeo[0] <= bound
    assert placement.figures().internal <= before
    check(placement)


def test_a_publisher_goes_to_the_least_loaded_broker_with_a_subscriber() -> None:
    placement = Placement(affinity=True)
    for broker in "012":
        placement.add_broker(broker)
    for topic in ("a", "b"):
        placement.expect(topic, 5)
    clients = Clients(placement)
    clients.join("first", ["a", "b"])
    # Nobody publishes yet, but both want the same.
    assert clients.join("second", ["a"], 1) != clients.join("third", ["c"], 1)
    placement.subscribe("a", "1")
    placement.subscribe("a", "2")
    placement.publish("other", "1", 3)
    wanted = [placement.topic("a")]
    placement.drain("0")
    assert publisher_slot(placement, wanted, 5) == 2
    assert publisher_slot(placement, wanted, 5, avoid=1 << 2) == 1
    placement.publish("a", "2", 5)
    assert placement.figures().internal == 5 * (len(list(bits(wanted[0].present))) - 1)
    with pytest.raises(ValueError, match="no broker takes clients"):
        publisher_slot(placement, wanted, 5, avoid=-1)


def plain_rules(
    brokers: int, publishers: list[int], rates: list[float], clients: list[list[int]], by_load: bool
) -> list[dict[str, list[int]]]:
    """The greedy strategy as its rules are written down, with four sessions and gamma 1.1."""
    active: list[set[int]] = [{slot} for slot in publishers]
    out = [0.0] * brokers
    found = []
    for topics in clients:
        left, used = list(topics), dict[int, list[int]]()
        while left:
            fair = [k for k in range(brokers) if out[k] < 1.1 * sum(out) / brokers]
            fair = fair if sum(out) else list(range(brokers))

            def cost(k: int, left: list[int] = left) -> tuple[float, float, int]:
                more = sum(rates[t] for t in left if k not in active[t])
                return more, out[k] if by_load else 0, k

            k = min(fair, key=cost)
            each = {t: 0 if k in active[t] else rates[t] for t in left}
            take = [t for t in left if each[t] == min(each.values())]
            used.setdefault(k, [])
            if len(used) == 4:
                take = left
            left = [t for t in left if t not in take]
            for t in take:
                used[k].append(t)
                active[t].add(k)
                out[k] += rates[t]
        found.append({str(k): sorted(used[k]) for k in sorted(used)})
    return found


@pytest.mark.parametrize("by_load", [False, True])
@pytest.mark.parametrize("kind", ["equal", "whole", "fractions"])
@pytest.mark.parametrize("brokers", [2, 3, 8, 13])
def test_greedy_follows_its_rules_for_any_rates(kind: str, brokers: int, by_load: bool) -> None:
    drawn = random.Random(f"{kind} {brokers}")
    topics = 60
    rates: list[float] = {
        "equal": [1.0] * topics,
        "whole": [drawn.randint(1, 9) for _ in range(topics)],
        "fractions": [round(drawn.lognormvariate(0, 1), 3) for _ in range(topics)],
    }[kind]
    publishers = [drawn.randrange(brokers) for _ in range(topics)]
    wanted = [drawn.sample(range(topics), drawn.randint(1, 12)) for _ in range(200)]
    placement = published(publishers, brokers, rates)
    clients = Clients(placement, 1.1, STRATEGIES["load" if by_load else "paper"])
    found = [
        placed(clients.join(f"c{number}", map(str, each))) for number, each in enumerate(wanted)
    ]
    assert found == plain_rules(brokers, publishers, rates, wanted, by_load)
    check(placement)


RATES = st.sampled_from([0, 1, 2, 5, 0.5, 0.3, 1e6])
TOPICS = st.sampled_from([f"t{number}" for number in range(8)])
NUMBERS = st.integers(0, 9)


class Changes(RuleBasedStateMachine):
    """Brokers, publishers and clients that come and go, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.placement = Placement()
        self.clients = Clients(self.placement)
        self.names = 0
        # Client -> connections that it may have had.
        self.most: dict[str, int] = {}
        self.add_broker(1)

    def broker(self, number: int) -> str:
        """One of the brokers that there are."""
        there = sorted(self.placement.slots)
        return there[number % len(there)]

    @precondition(lambda self: len(self.placement.slots) < 6)
    @rule(capacity=st.sampled_from([1, 2, 0.5]))
    def add_broker(self, capacity: float) -> None:
        self.names += 1
        self.placement.add_broker(f"b{self.names}", capacity)

    @precondition(lambda self: len(self.placement.slots) > 1)
    @rule(number=NUMBERS, sessions=st.integers(1, 4))
    def fail(self, number: int, sessions: int) -> None:
        for client, topics in self.clients.fail(self.broker(number)).items():
            had = {name for _, each in self.clients.sessions_of(client) for name in each}
            assert topics
            assert not had & set(topics)
            self.clients.add(client, topics, sessions)
            found = self.clients.sessions_of(client)
            assert {name for _, each in found for name in each} == had | set(topics)
            assert len(found) <= max(sessions, self.most[client])

    @rule(topic=TOPICS, number=NUMBERS, rate=RATES)
    def publish(self, topic: str, number: int, rate: float) -> None:
        self.placement.publish(topic, self.broker(number), rate)

    @rule(topic=TOPICS, rate=RATES)
    def expect(self, topic: str, rate: float) -> None:
        self.placement.expect(topic, rate)

    @rule(topic=TOPICS, number=NUMBERS, n=st.integers(1, 3))
    def subscribe_and_unsubscribe(self, topic: str, number: int, n: int) -> None:
        broker = self.broker(number)
        self.placement.subscribe(topic, broker, n)
        check(self.placement)
        self.placement.unsubscribe(topic, broker, n)

    @rule(client=NUMBERS, topics=st.sets(TOPICS), sessions=st.integers(1, 4))
    def join(self, client: int, topics: set[str], sessions: int) -> None:
        wanted = sorted(topics)
        found = self.clients.join(f"c{client}", wanted, sessions)
        self.most[f"c{client}"] = 6
        assert len(found) <= sessions
        assert sorted(topic for _, each in found for topic in each) == wanted

    @rule(topics=st.sets(TOPICS), sessions=st.integers(1, 4), by_load=st.booleans())
    def both_forms_of_greedy_agree(self, topics: set[str], sessions: int, by_load: bool) -> None:
        found = [
            self.placement.topics[name] for name in sorted(topics & set(self.placement.topics))
        ]
        one = greedy(self.placement, found, sessions, 1.1, by_load=by_load)
        other = greedy_items(self.placement, [(each,) for each in found], sessions, 1.1, by_load)
        assert one == other

    @rule(client=NUMBERS, topic=TOPICS, number=NUMBERS)
    def move(self, client: int, topic: str, number: int) -> None:
        name, broker = f"c{client}", self.broker(number)
        if name not in self.clients:
            return
        before = dict(self.clients.sessions_of(name))
        if not any(topic in topics for topics in before.values()):
            with pytest.raises(KeyError):
                self.clients.move(name, topic, broker)
            return
        self.clients.move(name, topic, broker)
        after = dict(self.clients.sessions_of(name))
        assert topic in after[broker]
        assert sum(map(len, after.values())) == sum(map(len, before.values()))

    @rule(moves=st.integers(0, 6), sessions=st.integers(1, 4))
    def planned_moves_save_what_they_say(self, moves: int, sessions: int) -> None:
        before = self.placement.figures()
        planned = plan(self.clients, moves, sessions)
        assert len(planned) <= moves
        assert self.placement.figures().internal == pytest.approx(before.internal, abs=1e-6)
        apply(self.clients, planned)
        saved = sum(move.saving for move in planned)
        after = self.placement.figures().internal
        assert after == pytest.approx(before.internal - saved, rel=1e-9, abs=1e-3)

    @rule(client=NUMBERS)
    def leave(self, client: int) -> None:
        if f"c{client}" in self.clients:
            self.clients.leave(f"c{client}")

    @invariant()
    def what_is_kept_is_what_is_found_anew(self) -> None:
        check(self.placement)

    @invariant()
    def sessions_are_counted(self) -> None:
        names = [f"c{number}" for number in range(10) if f"c{number}" in self.clients]
        assert self.clients.sessions == sum(len(self.clients.sessions_of(name)) for name in names)
        assert len(self.clients) == len(names)


TestChanges = Changes.TestCase
TestChanges.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
