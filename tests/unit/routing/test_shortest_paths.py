"""Overlays (shortest_paths.py): every broker finds the same trees, they reach everybody, and they
are the shortest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.routing.shortest_paths import MAX_COST, MAX_LINKS, Graph, Tree

A, B, C, D, E = (bytes([n]) * 8 for n in range(1, 6))
BROKERS = (A, B, C, D, E)


def graph(
    own: bytes, *edges: tuple[bytes, bytes, int], relays: dict[bytes, int] | None = None
) -> Graph:
    found = Graph(own)
    for one, other, cost in edges:
        found.post(one, other, cost)
        found.post(other, one, cost)
    for broker, cost in (relays or {}).items():
        found.relay(broker, cost)
    return found


@given(
    st.lists(
        st.tuples(st.sampled_from(BROKERS), st.sampled_from(BROKERS), st.integers(0, 5)),
        max_size=12,
    ),
    st.dictionaries(st.sampled_from(BROKERS), st.integers(0, 5)),
    st.sampled_from(BROKERS),
)
def test_all_parents_at_once_are_those_that_each_broker_finds(
    edges: list[tuple[bytes, bytes, int]], relays: dict[bytes, int], origin: bytes
) -> None:
    parents = graph(origin, *edges, relays=relays).parents(origin)
    for broker in BROKERS:
        assert graph(broker, *edges, relays=relays).tree(origin).parent == parents.get(broker)


@pytest.mark.parametrize(
    ("direct", "relay", "way"),
    [(100, 0, B), (100, 89, B), (100, 90, C), (100, 91, C), (5, 0, C)],
    ids=["shorter by a relay", "still shorter", "equal: fewer hops", "the relay is dear", "direct"],
)
def test_a_path_through_a_relay_adds_the_relays_cost(direct: int, relay: int, way: bytes) -> None:
    found = graph(A, (A, B, 5), (B, C, 5), (A, C, direct), relays={B: relay})
    assert found.tree(A).next[C] == way


def test_a_link_is_there_when_both_ends_say_so() -> None:
    found = Graph(A)
    found.post(A, B, 7)
    assert found.tree(A).next == {}
    assert found.cost(A, B) is None
    found.post(B, A, 9)
    assert found.tree(A).next == {B: B}
    assert found.cost(A, B) == found.cost(B, A) == 9
    found.post(B, A, None)
    assert found.tree(A).next == {}
    found.post(B, A, None)  # once more is harmless


def test_a_leaf_passes_nothing_on() -> None:
    """It is reached, and its own messages go everywhere."""
    found = graph(A, (A, B, 1), (B, C, 1), (A, C, 100))
    assert found.tree(A).next == {B: B, C: B}
    found.leaf(B, only=True)
    assert found.tree(A).next == {B: B, C: C}
    assert found.tree(B).next == {}
    assert found.tree(B).parent == B
    assert found.tree(C).parent == C
    found.leaf(B, only=False)
    assert found.tree(A).next == {B: B, C: B}
    found.leaf(B, only=True)
    found.forget(B)
    found.post(B, A, 1)
    found.post(B, C, 1)
    assert found.tree(A).next == {B: B, C: B}


def test_brokers_that_cannot_be_reached_have_no_path() -> None:
    found = graph(A, (A, B, 1), (C, D, 1))
    tree = found.tree(C)
    assert tree.parent is None
    assert tree.next == {}
    assert found.tree(E).next == {}


def test_no_broker_is_its_own_neighbour() -> None:
    found = graph(A, (A, A, 0), (A, B, 1))
    assert found.tree(A).next == {B: B}


def test_posted_costs_are_bounded() -> None:
    found = graph(A, (A, B, MAX_COST * 9), relays={B: MAX_COST * 9})
    assert found.cost(A, B) == MAX_COST
    found.relay(B, None)
    assert found.tree(A).next == {B: B}


edges = st.lists(
    st.tuples(st.sampled_from(BROKERS), st.sampled_from(BROKERS), st.integers(0, 30)), max_size=14
)
relays = st.dictionaries(st.sampled_from(BROKERS), st.integers(0, 20), max_size=5)


@given(edges, relays, st.sampled_from(BROKERS))
def test_all_agree_and_everybody_is_reached_once(
    links: list[tuple[bytes, bytes, int]], through: dict[bytes, int], origin: bytes
) -> None:
    """Following what each broker says leads from the origin to everybody that can be reached, each
    over its parent."""
    places = {own: graph(own, *links, relays=through).tree(origin) for own in BROKERS}
    costs = shortest(graph(A, *links), origin, through)
    reached = {origin: 0}
    edge = [origin]
    for broker in edge:
        for neighbour in set(places[broker].next.values()):
            assert neighbour not in reached
            assert places[neighbour].parent == broker
            reached[neighbour] = reached[broker] + 1
            edge.append(neighbour)
        for behind, neighbour in places[broker].next.items():
            assert behind == neighbour or behind in places[neighbour].next
    assert reached.keys() == costs.keys()
    assert all(places[broker].hops == reached for broker in reached)
    assert set(places[origin].next) == costs.keys() - {origin}
    for broker, cost in costs.items():
        assert cost == length(graph(A, *links), places, origin, broker, through)


def shortest(found: Graph, origin: bytes, through: dict[bytes, int]) -> dict[bytes, int]:
    """Bellman and Ford's, over all links."""
    costs = {origin: 0}
    for _ in BROKERS:
        for one in BROKERS:
            for other in BROKERS:
                edge = found.cost(one, other)
                if one in costs and edge is not None and one != other:
                    cost = costs[one] + edge + (through.get(one, 0) if one != origin else 0)
                    costs[other] = min(cost, costs.get(other, cost))
    return costs


def length(
    found: Graph, places: dict[bytes, Tree], origin: bytes, broker: bytes, through: dict[bytes, int]
) -> int:
    """What the way costs that the trees lead."""
    total = 0
    while broker != origin:
        above = places[broker].parent
        assert above is not None
        edge = found.cost(above, broker)
        assert edge is not None
        total += edge + (through.get(above, 0) if above != origin else 0)
        broker = above
    return total


def test_links_are_bounded() -> None:
    found = Graph(A)
    for number in range(MAX_LINKS):
        found.post(B, number.to_bytes(8, "big"), 1)
    with pytest.raises(ValueError, match="more links"):
        found.post(B, A, 1)
    found.post(B, bytes(8), 2)  # what is there may change, and go
    found.post(B, bytes(8), None)
    found.post(B, A, 1)
    found.forget(B)
    assert found.edges() == {}
