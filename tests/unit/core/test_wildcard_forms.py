"""Which filters of a session match a topic, found by their forms instead of by looking at all of
them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.core.session import Session, Subscription
from mqttree.broker.core.wildcard_forms import WildcardForms, form_of
from mqttree.routing.topic_filter import matches, split_shared, valid_topic_filter
from tests.kit.node_harness import World

words = st.sampled_from(["a", "b", "", "$x", "$share"])
topics = st.lists(words, min_size=1, max_size=4).map("/".join).filter(bool)
levels = st.one_of(words, st.sampled_from("+#"))
plain = st.lists(levels, min_size=1, max_size=5).map("/".join)
filters = st.one_of(plain, plain.map("$share/g/{}".format)).filter(valid_topic_filter)


def expected(among: set[str], topic: str) -> set[str]:
    return {found for found in among if split_shared(found)[0] is None and matches(found, topic)}


@given(st.sets(filters, max_size=30), st.sets(filters, max_size=10), topics)
def test_the_filters_that_match(kept: set[str], gone: set[str], topic: str) -> None:
    forms = WildcardForms()
    for topic_filter in [*kept, *(gone - kept)]:
        forms.add_filter(topic_filter)
    for topic_filter in gone - kept:
        if (form := form_of(topic_filter)) is not None:
            forms.remove(form)
    found = list(forms.matching(topic))
    assert len(found) == len(set(found)) <= len(forms) + 1
    assert kept.intersection(found) == expected(kept, topic)


@given(st.sets(filters, max_size=30), topics)
def test_the_subscriptions_of_a_session_that_want_a_topic(among: set[str], topic: str) -> None:
    world = World()
    session = Session(world.node, "c")
    for topic_filter in among:
        world.node.dispatcher.subscribe(
            Subscription(session, topic_filter, 1), *split_shared(topic_filter)
        )
    assert {s.filter for s in session.wanting(topic)} == expected(among, topic)
