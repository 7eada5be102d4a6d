"""Trees of messages, of a broker alone; with others: tests/process/test_api.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.io.api.delivery_tree import _links, delivery_tree
from mqttree.broker.io.api.routes import RequestError
from tests.kit.link_harness import lone


@pytest.mark.parametrize("routing", ["flood", "interest", "topic"])
def test_a_broker_alone_has_a_tree_without_links(routing: str) -> None:
    node = lone(routing=routing).node
    own = node.config.id.hex()
    found = delivery_tree(node, "", "")
    assert found["links"] == []
    assert found["receivers"] == [own]
    assert found["kind"] == "spanning"
    assert delivery_tree(node, own, "a/b")["receivers"] == ([own] if routing == "flood" else [])


@pytest.mark.parametrize("routing", ["srt", "ort"])
def test_trees_that_no_broker_knows_as_a_whole_are_not_made_up(routing: str) -> None:
    node = lone(routing=routing).node
    with pytest.raises(RequestError, match=f"with routing {routing} no broker knows"):
        delivery_tree(node, "", "")


@pytest.mark.parametrize(("origin", "topic"), [("00", ""), ("x", ""), ("", "a/#"), ("", "a\0")])
def test_an_origin_or_topic_that_is_none_is_refused(origin: str, topic: str) -> None:
    node = lone(routing="topic").node
    with pytest.raises(RequestError):
        delivery_tree(node, origin, topic)


@given(st.lists(st.integers(0, 100), max_size=30), st.sets(st.integers(0, 30)))
def test_the_links_of_a_tree_lead_to_all_receivers_and_end_there(
    draws: list[int], wanting: set[int]
) -> None:
    name = [bytes([number]) * 8 for number in range(32)]
    parents = {name[at + 1]: name[draw % (at + 1)] for at, draw in enumerate(draws)}
    receivers = {name[number] for number in wanting if name[number] in parents}
    links = _links(parents, receivers)
    below = {link[1] for link in links}
    assert receivers <= below
    assert len(below) == len(links)
    assert below - {link[0] for link in links} <= receivers
    assert all(above == name[0] or above in below for above, _ in links)
