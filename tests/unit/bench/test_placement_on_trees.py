"""Clients of brokers that are linked as a tree: what passes through counts, by the model, by draws,
and by hand; and a placement that knows the links."""

from __future__ import annotations

import json
import statistics
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.bench.cli import main
from mqttree.bench.model import traffic
from mqttree.bench.model.state import Placement
from mqttree.bench.placement import grid
from mqttree.bench.workloads import simulator, workload
from mqttree.bench.workloads.tree_network import TreeNetwork, by_hops
from mqttree.placement.figures import Figures
from tests.kit.placement import DATA, published

SEEDS = (1, 2, 3, 4)


@lru_cache
def drawn(network: str, strategy: str, seed: int) -> Figures:
    """The traffic of 1,000 clients of ten of 1,000 topics on eight brokers."""
    work = workload.social(1000, 1000, 10, 1.13, seed)
    return simulator.place(work, 8, strategy, seed, network=network).figures


def mean_internal(network: str, strategy: str) -> float:
    """Messages/s over all links."""
    return statistics.fmean(drawn(network, strategy, seed).internal for seed in SEEDS)


@pytest.mark.parametrize(
    ("shape", "model"), [("star", 2865.4), ("binary", 3582.5), ("line", 4014.1)]
)
def test_random_clients_on_a_tree_make_the_traffic_of_the_model(shape: str, model: float) -> None:
    case = grid.Case("tree", "random", 8, 8, network=shape, **grid.SOCIAL_1000)
    assert grid.model(case)["internal"] == pytest.approx(model, rel=1e-4)
    # Single draws are known to be within some 1.4 % of it.
    assert mean_internal(shape, "random") == pytest.approx(model, rel=0.014)


KNOWN = {
    "mesh": (0.52, 0.76, 0.89),
    "star": (0.26, 0.49, 0.64),
    "line": (0.37, 0.60, 0.72),
}


@pytest.mark.parametrize("network", KNOWN)
def test_ratios_to_linear_scaling_on_trees_are_those_known_of_draws(network: str) -> None:
    for strategy, known in zip(("random", "paper", "load"), KNOWN[network], strict=True):
        found = [drawn(network, strategy, seed).bottleneck_scaling(3.0) for seed in SEEDS]
        # One draw is known, and draws of greedy strategies scatter.
        spread = 3 * statistics.stdev(found) + 0.01
        assert abs(statistics.fmean(found) - known) <= spread, (strategy, found)


@pytest.mark.parametrize("shape", traffic.TREES)
def test_costs_by_hops_save_a_fifth_of_what_greedy_blind_to_the_tree_sends(shape: str) -> None:
    assert mean_internal(shape, simulator.HOPS) <= 0.8 * mean_internal(shape, "load")


def test_a_subscriber_costs_the_hops_to_the_nearest_broker_that_has_the_topic() -> None:
    # 0 - 1 - 2 - 3 - 4, and 5 at 1
    network = TreeNetwork([-1, 0, 1, 2, 3, 1])
    placement = published([0], 6, 7)
    topic = placement.topic("0")
    assert network.costs(topic) == [0, 7, 14, 21, 28, 14]
    placement.subscribe("0", "2")
    assert network.costs(topic) == [0, 0, 0, 7, 14, 7]
    assert network.figures(placement).aii == (0, 7, 7, 0, 0, 0)
    assert network.figures(placement).aio == (7, 7, 0, 0, 0, 0)
    placement.publish("0", "4", 2)
    assert network.costs(topic) == [4, 2, 0, 7, 14, 11]


def test_a_placement_of_other_brokers_than_the_trees_is_refused() -> None:
    with pytest.raises(ValueError, match="3 brokers"):
        TreeNetwork([-1, 0, 0]).figures(published([0], 2, 1))


@st.composite
def trees(draw: Any) -> list[int]:
    """Any tree of up to 12 brokers, the first one its root."""
    return [-1, *(draw(st.integers(0, broker)) for broker in range(draw(st.integers(0, 11))))]


@given(parents=trees(), data=st.data())
def test_a_subscriber_adds_what_its_cost_says_on_any_tree(parents: list[int], data: Any) -> None:
    network, brokers = TreeNetwork(parents), len(parents)
    slots = st.integers(0, brokers - 1)
    placement = published([], brokers, 1)
    for at in data.draw(st.sets(slots, max_size=3)):
        placement.publish("t", str(at), data.draw(st.sampled_from([1, 2.5, 7])))
    for at in data.draw(st.lists(slots, min_size=1, max_size=6)):
        cost = network.costs(placement.topic("t"))[at]
        before = network.figures(placement).internal
        placement.subscribe("t", str(at))
        figures = network.figures(placement)
        assert figures.internal == pytest.approx(before + cost)
        assert sum(figures.aii) == pytest.approx(sum(figures.aio))
        # Brokers that messages pass have them as well, so there is never less than in a mesh.
        assert figures.internal >= placement.figures().internal - 1e-9


def test_a_client_goes_where_its_topics_pass_anyway() -> None:
    placement = Placement()
    for broker in ("end", "middle", "other end"):
        placement.add_broker(broker)
    placement.publish("a", "end", 3)
    placement.subscribe("a", "other end")
    strategy = by_hops(TreeNetwork([-1, 0, 1]))
    # The middle has the topic, which a full mesh would not have brought there, and no load yet.
    placement.publish("b", "middle", 1)
    topics = placement.known(["a", "b"])
    assert strategy(placement, topics, 1, 1.1, 0) == {1: topics}


def test_a_star_of_two_brokers_is_a_mesh_of_two() -> None:
    work = workload.social(50, 40, 5, 1.0, 1)
    assert simulator.place(work, 2, "load", network="star") == simulator.place(work, 2, "load")
    with pytest.raises(ValueError, match="needs a tree"):
        simulator.place(work, 2, simulator.HOPS)


def test_the_command_places_clients_of_brokers_on_a_tree(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def place(file: Path, *words: str) -> Any:
        assert main(["placement", "place", str(file), "--json", "--brokers", "8", *words]) == 0
        return json.loads(capsys.readouterr().out)

    file = DATA / "social-100.json"
    blind = place(file, "--network", "line")
    assert blind["placement"] == place(file)["placement"]
    assert blind["Ai"] == sum(blind["aii"]) > place(file)["Ai"]
    assert place(file, "--network", "line", "--strategy", "hops")["Ai"] < 0.8 * blind["Ai"]
    assert main(["placement", "place", str(file), "--brokers", "8", "--strategy", "hops"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "needs a tree" in line
