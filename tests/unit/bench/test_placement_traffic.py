"""The model of clients at random brokers, against values that were computed elsewhere."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.bench.model import traffic
from mqttree.placement.figures import jain, overhead
from tests.kit.placement import load

THEORY = load("theory")


def about(value: float) -> Any:
    """Equal to 1e-4 of the value."""
    return pytest.approx(value, rel=1e-4)


def social(
    topics: int, each: int, alpha: float, subscribers: int, brokers: int
) -> dict[str, float]:
    """What the model says of subscribers that each want some topics."""
    return model(traffic.wanted(topics, each, alpha), subscribers, brokers)


def model(chances: list[float], subscribers: int, brokers: int) -> dict[str, float]:
    """What the model says for topics of one message a second."""
    rates = [1.0] * len(chances)
    out = traffic.external_out(chances, rates, subscribers)
    inside = traffic.internal(chances, rates, subscribers, brokers)
    return {"Ai": inside, "h_rt": overhead(inside, len(rates)), "h_fw": overhead(inside, out)}


def tree(nodes: list[int], alpha: float, subscribers: int, brokers: int) -> dict[str, float]:
    """What the model says of subscribers that each want one part of a topic tree."""
    chance = traffic.wanted_of_tree(traffic.level_chances(len(nodes), alpha), nodes)
    return model([chance] * nodes[-1], subscribers, brokers)


def test_popularity_and_chances_are_those_of_equations_1_and_2() -> None:
    known = THEORY["fig7"]
    popular = traffic.popularity(1000, 1.13)
    assert popular[0] == about(known["c"])
    assert traffic.draws(popular, 10) == about(known["tau"])
    chances = traffic.wanted(1000, 10, 1.13)
    for topic, chance in known["Ps"].items():
        assert chances[int(topic) - 1] == about(chance)
    assert math.fsum(chances) == about(10)
    rates = [1.0] * 1000
    assert traffic.external_out(chances, rates, 1000) == about(known["Aeo"])
    for brokers, internal in known["Ai"].items():
        assert traffic.internal(chances, rates, 1000, int(brokers)) == about(internal)
    endless = traffic.internal(chances, rates, 1000, 10**9)
    assert endless == about(10_000)


def test_a_topic_tree_is_wanted_as_equation_3_says() -> None:
    known = THEORY["fig8"]
    chance = traffic.wanted_of_tree([0, 0.03, 0.3, 0.67], [1, 10, 100, 1000])
    assert chance == about(known["Ps"])
    for brokers, internal in known["Ai"].items():
        assert model([chance] * 1000, 1000, int(brokers))["Ai"] == about(internal)


@pytest.mark.parametrize("each", [1, 40])
def test_traffic_for_one_topic_and_many_topics_of_a_subscriber(each: int) -> None:
    for brokers, internal in THEORY["fig10"][f"Nsxs={each}"].items():
        assert social(1000, each, 1.13, 1000, int(brokers))["Ai"] == about(internal)


def test_the_number_of_placements_is_that_of_equation_12() -> None:
    known = THEORY["fig11"]
    for topics in (5, 10):
        for sessions, number in enumerate(known["M=8"][str(topics)], 1):
            assert traffic.decision_space(8, topics, sessions) == number
        for brokers, number in known["Nses=4"][str(topics)].items():
            assert traffic.decision_space(int(brokers), topics, 4) == number
    assert traffic.decision_space(8, 10, 8) == 8**10


@pytest.mark.parametrize("figure", ["fig13", "fig14", "fig15", "fig17"])
def test_overheads_of_social_workloads(figure: str) -> None:
    for x, known in THEORY[figure].items():
        if x == "tau":
            continue
        options: dict[str, Any] = {"topics": 5000, "each": 10, "alpha": 1.13}
        options |= {"subscribers": 5000, "brokers": 8}
        name = {"fig13": "brokers", "fig14": "subscribers", "fig15": "each", "fig17": "alpha"}
        options[name[figure]] = float(x) if figure == "fig17" else int(x)
        assert social(**options) == {key: about(value) for key, value in known.items()}


@pytest.mark.parametrize(
    ("variant", "nodes"), [("A", [1, 30, 900, 5000]), ("B", [1, 17, 289, 4913])]
)
def test_overheads_of_topic_trees(variant: str, nodes: list[int]) -> None:
    for brokers, known in THEORY[f"fig19{variant}"].items():
        found = tree(nodes, 1.5, 5000, int(brokers))
        assert found == {key: about(value) for key, value in known.items()}
    for alpha, known in THEORY[f"fig21{variant}"].items():
        found = tree(nodes, float(alpha), 5000, 8)
        assert found == {key: about(value) for key, value in known.items()}


def test_levels_are_chosen_as_equation_15_says() -> None:
    for alpha, chances in THEORY["eq15"].items():
        assert traffic.level_chances(4, float(alpha)) == [about(chance) for chance in chances]


def test_pairs_of_a_publisher_and_a_subscriber_scale_to_half() -> None:
    for brokers, ratio in THEORY["fig2_ratio_to_linear"].items():
        inside = (int(brokers) - 1) * traffic.sent(1, int(brokers), 1)
        assert 1 / overhead(inside, 1) == about(ratio)


@pytest.mark.parametrize("alpha", ["0.68", "1.13"])
def test_ratios_to_linear_scaling_at_random_brokers(alpha: str) -> None:
    for brokers, known in THEORY[f"fig22_random_alpha_{alpha}"].items():
        found = social(1000, 10, float(alpha), 100, int(brokers))
        assert found["Ai"] == about(known["Ai"])
        assert 1 / found["h_rt"] == about(known["ratio"])


def test_traffic_on_trees_of_brokers() -> None:
    chances = traffic.wanted(1000, 10, 1.13)
    for shape, known in THEORY["trees_M8_1000_1000_10"].items():
        sides = traffic.tree_sides(shape, 8)
        assert traffic.internal_on_tree(chances, [1.0] * 1000, 1000, sides) == about(known)


@given(
    chance=st.floats(1e-6, 1),
    more=st.floats(0, 1),
    brokers=st.integers(1, 64),
    subscribers=st.integers(1, 10_000),
)
def test_interest_grows_with_chance_and_subscribers_and_falls_with_brokers(
    chance: float, more: float, brokers: int, subscribers: int
) -> None:
    here = traffic.sent(chance, brokers, subscribers)
    assert 0 < here <= 1
    assert traffic.sent(chance + more * (1 - chance), brokers, subscribers) >= here * (1 - 1e-12)
    assert traffic.sent(chance, brokers, subscribers + 1) >= here * (1 - 1e-12)
    assert traffic.sent(chance, brokers + 1, subscribers) <= here * (1 + 1e-12)
    inside = traffic.internal([chance], [1.0], subscribers, brokers)
    further = traffic.internal([chance], [1.0], subscribers, brokers + 1)
    assert inside <= further * (1 + 1e-9)
    assert inside <= min(brokers - 1, subscribers * chance) * (1 + 1e-9)


@given(loads=st.lists(st.floats(0, 1e9), min_size=1, max_size=20))
def test_the_index_of_fairness_is_between_one_nth_and_one(loads: list[float]) -> None:
    assert 1 / len(loads) - 1e-9 <= jain(loads) <= 1 + 1e-9
