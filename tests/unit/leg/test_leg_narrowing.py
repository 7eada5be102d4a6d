"""A leg that subscribes here to what foreign clients want, between two nodes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.limits import Limits
from mqttree.broker.leg.backoff import LONGEST
from mqttree.broker.leg.beacons import HOLD
from mqttree.broker.leg.effects import AskInterest, LegEffect
from mqttree.broker.leg.interest import LINGER, POLL, Source
from mqttree.broker.leg.interest import State as Known
from mqttree.broker.leg.leg import Leg
from mqttree.broker.wire import Publish
from mqttree.routing.topic_filter import matches
from tests.kit.leg_harness import Joined
from tests.kit.node_harness import FakeClient, World


class Narrowed(Joined):
    """A leg that asks what foreign clients want."""

    def __init__(self, *lines: str, **more: Any) -> None:
        super().__init__(*lines, **({"interest": Source.EMQX} | more))

    def answer(self, *filters: str) -> None:
        """Say that foreign clients subscribe to these."""
        self.leg.interest_answered(filters, self.here.now)
        self.run()

    def fail(self) -> None:
        """Say that there was no answer."""
        self.leg.interest_failed("connection refused", self.here.now)
        self.run()

    def filters(self) -> set[str]:
        """What the session here has subscribed to, without notes."""
        found = self.here.node.sessions[self.settings.session].subscriptions
        return {f for f in found if not f.startswith("$leg/")}


def publisher(joined: Joined) -> FakeClient:
    return joined.here.connect("publisher")


def sent(joined: Joined, client: FakeClient, topic: str) -> bool:
    """Whether a message to a topic is sent to the foreign broker."""
    before = joined.leg.messages_out
    joined.send(client, Publish(topic, b"x"))
    return joined.leg.messages_out > before


@pytest.mark.parametrize("version", [4, 5])
def test_only_what_is_wanted_there_is_sent(version: int) -> None:
    joined = Narrowed("# out 1", version=version)
    client = publisher(joined)
    assert joined.questions == 1
    assert sent(joined, client, "a"), "nothing is known yet"
    joined.answer("b/#")
    assert joined.filters() == {"b/#"}
    assert not sent(joined, client, "a")
    assert sent(joined, client, "b/1")
    joined.advance(POLL)
    assert joined.questions == 2
    joined.answer("b/#", "a")
    assert sent(joined, client, "a")
    joined.answer("a")
    assert sent(joined, client, "b/1")
    joined.advance(LINGER)
    assert not sent(joined, client, "b/1")
    assert joined.leg.counters.refused_filters == []


def test_all_is_sent_at_once_when_there_is_no_answer() -> None:
    joined = Narrowed("a/# out 1", "b/# both 1")
    client = publisher(joined)
    joined.answer()
    assert joined.filters() == set()
    assert not sent(joined, client, "a/1")
    joined.fail()
    assert sent(joined, client, "a/1")
    assert joined.filters() == {"a/#", "b/#"}
    assert any("all is sent: connection refused" in line for line in joined.log)
    joined.answer("b/+")
    assert joined.filters() == {"a/#", "b/#"}
    joined.advance(LINGER)
    assert joined.filters() == {"b/+"}


def test_an_answer_before_the_leg_is_up_counts() -> None:
    joined = Narrowed("# out 1")
    joined.reachable = False
    joined.answer("a")
    joined.cut()
    joined.answer("a", "b")
    joined.reachable = True
    joined.advance(2 * LONGEST)
    assert joined.up
    assert joined.filters() == {"a", "b"}
    assert joined.questions >= 2


def test_an_answer_while_the_leg_subscribes_counts() -> None:
    class Quick(Narrowed):
        def _do(self, effect: LegEffect) -> None:
            super()._do(effect)
            if isinstance(effect, AskInterest):
                assert not self.up
                self.leg.interest_answered(["a"], self.here.now)

    joined = Quick("# out 1")
    assert joined.up
    assert joined.filters() == {"a"}
    assert not joined.leg.sends_all


def test_a_leg_that_is_started_again_sends_all_until_there_is_an_answer() -> None:
    joined = Narrowed("# out 1")
    joined.answer("a", "b")
    joined.leg.stop(joined.here.now)
    joined.run()
    joined.leg = Leg(joined.settings, random.Random(1), joined.here.now)
    joined.run()
    assert joined.filters() == {"#"}
    joined.answer("b")
    assert joined.filters() == {"b"}


def test_names_of_the_foreign_broker_are_mapped_back() -> None:
    joined = Narrowed('# out 1 "here/" "there/"')
    joined.answer("+/a", "$SYS/#", "elsewhere/#")
    assert joined.filters() == {"here/a"}
    watcher = joined.there.connect("w")
    watcher.subscribe("#")
    joined.send(publisher(joined), Publish("here/a", b"1"))
    assert [p.topic for p in watcher.take_publishes()] == ["there/a"]


def test_retained_messages_come_with_new_interest_and_not_again_with_less() -> None:
    joined = Narrowed("# out 1")
    joined.answer("c")
    client = publisher(joined)
    for topic in ("a/1", "b/1"):
        joined.send(client, Publish(topic, b"x", retain=True))
    assert joined.leg.messages_out == 0
    joined.answer("c", "a/#")
    assert joined.leg.messages_out == 1
    joined.answer("c", "a/#", "a/1")
    joined.advance(LINGER)
    joined.answer("c", "a/1")
    joined.advance(LINGER)
    assert joined.filters() == {"c", "a/1"}
    assert joined.leg.messages_out == 1


def test_filters_that_this_broker_refuses_have_all_sent() -> None:
    joined = Narrowed("# out 1", here=World(limits=Limits(max_forms=2)))
    joined.answer("+/a", "a/+/b", "+/+/c", "d")
    assert joined.filters() >= {"#"}
    assert joined.leg.interest is not None
    assert joined.leg.interest.state is Known.CROWDED
    assert any("refuses the filter" in line for line in joined.log)
    joined.advance(POLL)
    joined.answer("d")
    joined.advance(LINGER)
    assert joined.filters() == {"#"}


def test_beacons_say_what_is_wanted_and_do_not_come_in() -> None:
    joined = Narrowed("# both 1", interest=Source.BEACON)
    here, there = joined.here.connect("h"), joined.there.connect("t")
    here.subscribe("#")
    joined.send(there, Publish("federator/beacon/a", b"", 1, packet_id=1))
    assert joined.filters() == {"#"}
    joined.advance(HOLD - 5.0)
    joined.send(there, Publish("federator/beacon/a", b""))
    joined.advance(6.0)
    assert joined.filters() == {"a", "federated/a"}
    joined.send(there, Publish("federator/beacon/b/1", b""))
    joined.advance(1.0)
    assert joined.filters() == {"a", "federated/a", "b/1", "federated/b/1"}
    assert here.take_publishes() == []
    assert joined.leg.drops()["unnamed"] == 0
    joined.advance(HOLD + LINGER + POLL)
    assert joined.filters() == set()


@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("answer"),
                st.sets(st.sampled_from(["#", "a/#", "a/b", "+/b", "c", "$share/g/a/+"])),
            ),
            st.tuples(st.just("fail"), st.just(set[str]())),
            st.tuples(st.just("wait"), st.just(set[str]())),
        ),
        max_size=12,
    ),
    st.sampled_from([1, 2]),
)
def test_each_message_that_is_wanted_crosses_once_whatever_the_answers_were(
    steps: list[tuple[str, set[str]]], qos: int
) -> None:
    """Overlapping subscriptions of the session here bring a message once."""
    joined = Narrowed("# out 2", "a/# out 1")
    client, watcher = publisher(joined), joined.there.connect("w")
    watcher.subscribe("#")
    wanted = {"#"}
    for number, (what, filters) in enumerate(steps):
        if what == "answer":
            joined.answer(*filters)
            wanted = {f.removeprefix("$share/g/") for f in filters}
        elif what == "fail":
            joined.fail()
            wanted = {"#"}
        else:
            joined.advance(LINGER + 1.0)
        for topic in ("a/b", "c", "d/b"):
            payload = b"%d %b" % (number, topic.encode())
            joined.send(client, Publish(topic, payload))
            got = watcher.payloads().count(payload)
            assert got <= 1
            if any(matches(f, topic) for f in wanted):
                assert got == 1
