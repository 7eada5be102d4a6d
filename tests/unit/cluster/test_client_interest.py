"""What a broker knows of the topics of its clients."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.cluster.placement.client_interest import (
    MAX_COMPARED,
    MAX_FILTERS,
    MAX_SAID,
    TOPICS,
    question_of,
    said_interest,
    session_interest,
    unshared_filters,
)
from mqttree.broker.cluster.placement.redirect_table import Interest
from mqttree.broker.wire.packets import Connect
from mqttree.broker.wire.properties import Property
from mqttree.placement.question import TooMuchError
from mqttree.routing.topic_filter import overlaps
from tests.kit.node_harness import World


def connect(*said: tuple[str, str]) -> Connect:
    properties: Any = {Property.USER_PROPERTY: list(said)} if said else None
    return Connect("MQTT", 5, True, 0, "c", None, None, None, properties)


def world_of(**filters: list[str]) -> World:
    """Clients with their filters."""
    world = World()
    for name, wanted in filters.items():
        client = world.connect(name)
        if wanted:
            client.subscribe(*wanted)
    return world


def alone_in(world: World, client: str, *filters: str) -> list[str]:
    return unshared_filters(client, Interest(filters), world.node.dispatcher)


def test_a_connect_that_says_nothing_says_nothing() -> None:
    assert not said_interest(connect(), None)
    assert not said_interest(connect(("other", "x")), None)
    assert not said_interest(connect((TOPICS, "{}")), None)


def test_a_connect_says_filters_and_topics() -> None:
    found = said_interest(connect((TOPICS, '{"subscribe": ["a/+", "b"], "publish": ["x"]}')), None)
    assert (found.subscribe, found.publish) == (("a/+", "b"), ("x",))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing",
        "[" * 5000,
        "[]",
        '{"client": "other"}',
        '{"subscribe": {}}',
        '{"subscribe": [1]}',
        '{"subscribe": ["a/#/b"]}',
        '{"subscribe": ["\\ud800"]}',
        '{"publish": ["a/#"]}',
        '{"publish": ["$SYS"]}',
        '{"publish": [""]}',
    ],
)
def test_what_is_invalid_is_said_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{TOPICS}: .+$") as caught:
        said_interest(connect((TOPICS, text)), None)
    assert "\n" not in str(caught.value)


def test_more_than_the_limits_is_too_much() -> None:
    many = [f"t/{n}" for n in range(MAX_FILTERS)]
    assert said_interest(connect((TOPICS, json.dumps({"subscribe": many}))), None)
    with pytest.raises(TooMuchError):
        said_interest(connect((TOPICS, json.dumps({"subscribe": many, "publish": ["x"]}))), None)
    with pytest.raises(TooMuchError):
        said_interest(connect((TOPICS, " " * MAX_SAID + "{}")), None)
    with pytest.raises(ValueError, match="more than one"):
        said_interest(connect((TOPICS, "{}"), (TOPICS, "{}")), None)


def test_what_the_rules_do_not_allow_is_refused() -> None:
    class Rules:
        def may_subscribe(self, name: str) -> bool:
            return name == "mine"

        may_publish = may_subscribe

    rules: Any = Rules()
    allowed = '{"subscribe": ["mine", "$share/g/mine"], "publish": ["mine"]}'
    assert said_interest(connect((TOPICS, allowed)), rules)
    for text in ('{"subscribe": ["$share/g/other"]}', '{"publish": ["other"]}'):
        with pytest.raises(PermissionError, match="not allowed"):
            said_interest(connect((TOPICS, text)), rules)


def test_a_filter_is_alone_if_nobody_else_has_a_part_of_it() -> None:
    world = world_of(c=["a", "b/+", "d/#", "e", "$share/g/s"], other=["b/1", "e"], groups=[])
    names = ("a", "b/+", "d/#", "e", "$share/g/s")
    assert alone_in(world, "c", *names) == ["a", "d/#"]
    # Of a client that is not here everything counts that anybody has.
    assert alone_in(world, "new", *names, "f", "g/+") == ["f", "g/+"]


def test_with_a_filter_for_everything_nothing_is_alone() -> None:
    world = world_of(c=["a", "b/+"], other=["#"])
    assert alone_in(world, "c", "a", "b/+") == []


def test_filters_are_compared_with_a_bounded_number_of_others() -> None:
    world = world_of(c=["a", "b/+"])
    others = world.connect("other")
    for start in range(0, MAX_COMPARED, 100):
        others.subscribe(*[f"t/{n}" for n in range(start, start + 100)])
    assert alone_in(world, "c", "a", "b/+") == ["a"]


LEVELS = st.sampled_from(["a", "b", "+", "#"])
FILTERS = (
    st.lists(LEVELS, min_size=1, max_size=3).map("/".join).filter(lambda text: "#" not in text[:-1])
)


@given(st.frozensets(FILTERS, max_size=5), st.frozensets(FILTERS, max_size=5))
def test_alone_is_what_overlaps_no_filter_of_another_client(
    mine: frozenset[str], others: frozenset[str]
) -> None:
    world = world_of(c=sorted(mine), other=sorted(others))
    expected = {name for name in mine if not any(overlaps(name, each) for each in others)}
    assert set(alone_in(world, "c", *mine)) == expected


def test_a_session_with_very_many_filters_is_not_looked_at() -> None:
    world = world_of(c=[f"t/{n}" for n in range(MAX_FILTERS)])
    session = world.node.sessions["c"]
    assert len(session_interest(session).subscribe) == MAX_FILTERS
    assert not session_interest(session, ("x",))


def test_the_question_has_what_waits_in_the_session() -> None:
    world = world_of(c=["a"])
    session = world.node.sessions["c"]
    interest = session_interest(session, ("x",))
    assert question_of("c", interest, world.node.dispatcher, session) == {
        "client": "c",
        "subscribe": ["a"],
        "publish": ["x"],
        "sessions": 1,
        "alone": ["a"],
        "queued": 0,
    }
