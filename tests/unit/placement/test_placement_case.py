"""A question and the part of the federation that it concerns: its costs are those of a placement
with all brokers and topics, and a table of brokers serves several questions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from mqttree.bench.model.greedy import greedy_items, item_costs
from mqttree.bench.model.state import Placement
from mqttree.placement.broker_table import SPARE, BrokerLoad, BrokerTable
from mqttree.placement.case import NOWHERE, Case, Plan, Unit
from mqttree.placement.controller import Controller
from mqttree.placement.pending_load import PendingLoad
from mqttree.placement.question import Question

IDS = tuple(f"b{n}" for n in range(5))
"""The last one cannot be reached."""

TOPICS = tuple(f"t{n}" for n in range(6))

Rates = Mapping[str, Mapping[str, float]]
Wanted = Mapping[str, Collection[str]]


class Known:
    """What is known of a federation, always the same."""

    def __init__(self, published: Rates, wanted: Wanted) -> None:
        self._published = published
        self._wanted = wanted
        self.loads = tuple(
            BrokerLoad(name, f"{name}:1883", 1.0, False, 10.0, 20.0, 0.0, 0.0) for name in IDS[:-1]
        )

    def brokers(self) -> Sequence[BrokerLoad]:
        return self.loads

    def rates(self, topic: str) -> Mapping[str, float]:
        return self._published.get(topic, {})

    def wanted(self, topic: str) -> Collection[str]:
        return self._wanted.get(topic, ())

    def rare(self) -> float:
        return 0.5

    def state(self) -> None:
        return None


def case_of(known: Known, units: Sequence[Unit], sessions: int = 4) -> Case:
    filters = tuple(name for unit in units for name in unit.filters)
    question = Question("c", filters, sessions=sessions)
    pending = PendingLoad(10, 10)
    return Case(question, units, known, BrokerTable(known.loads), pending, 1.1)


def placement_of(known: Known) -> Placement:
    placement = Placement()
    for load in known.loads:
        placement.add_broker(load.id, load.capacity)
    for topic in TOPICS:
        for broker, rate in known.rates(topic).items():
            if broker in placement.slots and rate > 0:
                placement.publish(topic, broker, rate)
        if not known.rates(topic):
            placement.expect(topic, known.rare())
        for broker in known.wanted(topic):
            if broker in placement.slots:
                placement.subscribe(topic, broker)
    for load in known.loads:
        placement.aeo[placement.slots[load.id]] = load.aeo + SPARE
    return placement


rates = st.dictionaries(
    st.sampled_from(TOPICS),
    st.dictionaries(st.sampled_from(IDS), st.floats(0, 100), max_size=3),
)
wanted = st.dictionaries(st.sampled_from(TOPICS), st.frozensets(st.sampled_from(IDS)))
cuts = st.lists(st.integers(1, 3), min_size=len(TOPICS), max_size=len(TOPICS))


def units_of(sizes: Sequence[int]) -> list[Unit]:
    """The topics in units of these sizes."""
    found, left = [], list(TOPICS)
    for size in sizes:
        if left:
            found.append(Unit(tuple(f"{name}/#" for name in left[:size]), tuple(left[:size])))
            left = left[size:]
    return found


@given(rates, wanted, cuts)
def test_a_case_costs_what_a_placement_of_its_topics_says(
    published: Rates, want: Wanted, sizes: list[int]
) -> None:
    known = Known(published, want)
    units = units_of(sizes)
    case, placement = case_of(known, units), placement_of(known)
    for index, unit in enumerate(units):
        item = tuple(placement.topic(name) for name in unit.topics)
        costs = item_costs(placement, item)
        plan = Plan([NOWHERE] * len(units), [])
        for slot, cost in enumerate(costs):
            plan.units[index] = slot
            assert case.cost(plan) == cost


@given(rates, wanted, cuts, st.integers(1, 4))
def test_the_plan_of_a_case_is_that_of_greedy_or_one_connection(
    published: Rates, want: Wanted, sizes: list[int], sessions: int
) -> None:
    known = Known(published, want)
    units = units_of(sizes)
    case, placement = case_of(known, units, sessions), placement_of(known)
    items = [tuple(placement.topic(name) for name in unit.topics) for unit in units]
    found = greedy_items(placement, items, sessions, 1.1)
    at = {topic.name: slot for slot, topics in found.items() for topic in topics}
    plan, cost, single = case.best()
    assert cost == case.cost(plan) <= single
    if len(plan.used()) > 1:
        assert plan.units == [at[unit.topics[0]] for unit in units]


def test_a_table_of_brokers_serves_until_another_one_is_known() -> None:
    controller = Controller()
    known = Known({"t0": {"b1": 5.0}}, {})
    unit = Unit(("t0",), ("t0",))
    question = Question("c", ("t0",))
    first = controller.case(question, [unit], known).brokers
    assert controller.case(question, [unit], known).brokers is first
    known.loads = known.loads[:1]
    again = controller.case(question, [unit], known)
    assert again.brokers.names == ["b0"]
    assert again.traffic() == (0.0, 0.0)


def test_what_is_known_of_a_topic_is_kept_until_it_changes() -> None:
    table = BrokerTable(Known({}, {}).loads)
    rates, wanted, waiting = {"b1": 5.0}, ("b2",), ("b0",)
    first = table.topic("t", rates, wanted, waiting, 0.5)
    assert (first.active, first.costs, first.weight) == (0b101, [0.0, 0.0, 0.0, 5.0], 5.0)
    assert table.topic("t", rates, wanted, waiting, 0.5) is first
    for changed in (
        table.topic("t", {"b1": 6.0}, wanted, waiting, 0.5),
        table.topic("t", rates, (), waiting, 0.5),
        table.topic("t", rates, wanted, (), 0.5),
        table.topic("t", rates, wanted, waiting, 0.25),
    ):
        assert changed is not first
    assert table.topic("t", {}, (), (), 0.25).weight == 0.25


def test_a_topic_is_not_asked_for_again_until_something_has_changed() -> None:
    table = BrokerTable(Known({}, {}).loads)
    waiting, state = ("b0",), object()
    assert table.known("t", state, waiting) is None
    found = table.topic("t", {"b1": 5.0}, (), waiting, 0.5)
    assert table.known("t", state, waiting) is None
    found.state = state
    assert table.known("t", state, waiting) is found
    assert table.known("t", object(), waiting) is None
    assert table.known("t", state, ("b0", "b1")) is None
    assert table.known("u", state, waiting) is None


def test_questions_behind_each_other_cost_what_each_does_by_itself() -> None:
    known = Known({"t0": {"b1": 5.0}, "t1": {"b2": 3.0, "b0": 1.0}}, {"t1": ("b3",)})
    controller = Controller()
    units = [Unit((name,), (name,)) for name in ("t0", "t1", "t2")]
    for number in range(6):
        question = Question(f"c{number}", ("t0", "t1", "t2"), sessions=1 + number % 3)
        kept = controller.case(question, units, known)
        # Another table knows nothing of former questions.
        loads = tuple(known.loads)
        table = BrokerTable(loads)
        pending = controller._pending
        fresh = Case(question, units, known, table, pending, controller.gamma)
        assert kept.best()[1:] == fresh.best()[1:]
        for slot in range(len(loads)):
            assert kept.cost(kept.all_at(slot)) == fresh.cost(fresh.all_at(slot))
        controller.place(question, units, known, 0.0)
