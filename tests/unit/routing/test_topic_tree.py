"""`mqttree.routing.topic_tree` against the plain definition of what a filter matches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqttree.routing.topic_filter import matches, well_formed
from mqttree.routing.topic_tree import TopicTree

LEVELS = st.sampled_from(["", "a", "b", "c"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = (
    st.lists(st.sampled_from(["", "a", "b", "+", "#"]), min_size=1, max_size=4)
    .map("/".join)
    .filter(lambda text: bool(text) and well_formed(text))
)


@given(st.lists(st.tuples(st.booleans(), TOPICS)), FILTERS)
def test_a_filter_matches_a_tree_if_it_matches_a_topic(
    steps: list[tuple[bool, str]], topic_filter: str
) -> None:
    tree = TopicTree()
    model: dict[str, None] = {}
    for added, topic in steps:
        if added:
            tree.add(topic)
            model[topic] = None
        else:
            tree.remove(topic)
            model.pop(topic, None)
        assert list(tree) == list(model)
        assert len(tree) == len(model)
    assert tree.matches(topic_filter) == any(matches(topic_filter, topic) for topic in model)
    assert all(topic in tree for topic in model)


def test_a_filter_of_very_many_levels_is_no_recursion() -> None:
    tree = TopicTree()
    topic = "/".join("a" * 30_000)
    tree.add(topic)
    assert tree.matches("+/" * 29_999 + "a")
    assert tree.matches("+/" * 29_000 + "#")
    tree.remove(topic)
    assert not tree.matches("#")
