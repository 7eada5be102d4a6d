"""The controller answers where clients should connect."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.placement.broker_table import BrokerLoad
from mqttree.placement.case import Unit
from mqttree.placement.controller import PENDING, TTL, Controller
from mqttree.placement.question import MAX_FILTERS, Answer, Question, TooMuchError, read_question


class Federation:
    """What a controller knows, as tests say it."""

    def __init__(self, brokers: int = 4) -> None:
        self.loads = {
            f"b{n}": BrokerLoad(f"b{n}", f"10.0.0.{n}:1883", 1.0, False, 1e5, 1e5, 0.0, 0.0)
            for n in range(brokers)
        }
        self.published: dict[str, dict[str, float]] = {}
        self.subscribed: dict[str, set[str]] = {}

    def brokers(self) -> Sequence[BrokerLoad]:
        return list(self.loads.values())

    def rates(self, topic: str) -> Mapping[str, float]:
        return self.published.get(topic, {})

    def wanted(self, topic: str) -> Collection[str]:
        return self.subscribed.get(topic, ())

    def rare(self) -> float:
        return 0.5

    def state(self) -> None:
        return None

    def change(self, broker: str, **values: Any) -> None:
        self.loads[broker] = self.loads[broker]._replace(**values)


class Kept(Federation):
    """The same, and it says when it has changed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = object()

    def state(self) -> object:  # type: ignore[override]
        return self.now


def alone(*topics: str) -> list[Unit]:
    """Filters that are topics."""
    return [Unit((topic,), (topic,)) for topic in topics]


def ask(
    controller: Controller,
    view: Federation,
    *topics: str,
    now: float = 0.0,
    units: list[Unit] | None = None,
    **question: Any,
) -> Answer:
    found = alone(*topics) if units is None else units
    filters = tuple(name for unit in found for name in unit.filters)
    asked = Question(**{"client": "c", "subscribe": filters} | question)
    return controller.place(asked, found, view, now)


def where(answer: Answer) -> dict[str, tuple[str, ...]]:
    return {session.broker: session.subscribe for session in answer.sessions}


def test_each_topic_goes_to_the_broker_where_it_is_published() -> None:
    view = Federation()
    view.published = {"a": {"b1": 5.0}, "b": {"b3": 2.0}}
    answer = ask(Controller(), view, "a", "b")
    assert where(answer) == {"b1": ("a",), "b3": ("b",)}
    assert answer.internal == 0.0
    assert answer.internal_single == 2.0
    assert [session.client_id for session in answer.sessions] == ["c", "c~2"]
    assert answer.sessions[0].address.startswith("10.0.0.")


def test_a_broker_with_a_subscriber_of_the_topic_costs_nothing_further() -> None:
    view = Federation()
    view.published = {"a": {"b1": 5.0}}
    view.subscribed = {"a": {"b2"}}
    view.change("b1", aeo=1e6)
    assert where(ask(Controller(), view, "a")) == {"b2": ("a",)}


def test_a_client_has_no_more_sessions_than_it_wants() -> None:
    view = Federation()
    view.published = {f"t{n}": {f"b{n}": float(n + 1)} for n in range(4)}
    for sessions in range(1, 5):
        answer = ask(Controller(), view, "t0", "t1", "t2", "t3", sessions=sessions)
        assert len(answer.sessions) <= sessions
    assert len(answer.sessions) == 4


def test_further_sessions_have_to_save_something() -> None:
    view = Federation()
    view.published = {"a": {"b1": 5.0}, "b": {"b1": 5.0}}
    answer = ask(Controller(), view, "a", "b", "never published")
    assert len(answer.sessions) == 1
    assert answer.internal == answer.internal_single == 0.0


def test_filters_that_overlap_stay_in_one_session() -> None:
    view = Federation()
    view.published = {"a/1": {"b1": 5.0}, "a/2": {"b2": 1.0}}
    units = [Unit(("a/+", "a/2"), ("a/1", "a/2"))]
    answer = ask(Controller(), view, units=units)
    assert where(answer) == {"b1": ("a/+", "a/2")}
    assert answer.internal == 1.0


def test_a_publisher_goes_where_its_subscribers_are() -> None:
    view = Federation()
    view.published = {"x": {"b0": 3.0}}
    view.subscribed = {"x": {"b2"}}
    answer = ask(Controller(), view, publish=("x",))
    assert [(session.broker, session.publish) for session in answer.sessions] == [("b2", ("x",))]


def test_a_client_that_is_somewhere_stays_there_if_that_costs_the_same() -> None:
    view = Federation()
    for broker in view.loads:
        answer = ask(Controller(), view, "unknown", publish=("unknown too",), at=broker)
        assert [session.broker for session in answer.sessions] == [broker]


def test_brokers_that_are_avoided_drained_or_without_address_get_no_session() -> None:
    view = Federation()
    view.published = {"a": {"b0": 5.0}}
    view.change("b1", drained=True)
    view.change("b2", address="")
    assert where(ask(Controller(), view, "a", avoid=frozenset(("b0",)))) == {"b3": ("a",)}
    with pytest.raises(ValueError, match="no broker"):
        ask(Controller(), view, "a", avoid=frozenset(("b0", "b3")))


def test_a_broker_above_its_share_gets_no_session() -> None:
    view = Federation(2)
    view.published = {"a": {"b0": 5.0}}
    view.change("b0", aeo=1.5e5)
    assert where(ask(Controller(), view, "a")) == {"b1": ("a",)}
    view.change("b0", capacity=4.0)
    assert where(ask(Controller(), view, "a")) == {"b0": ("a",)}


def test_an_answer_counts_as_load_at_once_and_not_for_ever() -> None:
    view = Federation(2)
    view.published = {"a": {"b0": 6e4}, "b": {"b0": 6e4}}
    controller = Controller()
    assert where(ask(controller, view, "a", client="c1")) == {"b0": ("a",)}
    assert where(ask(controller, view, "b", client="c2")) == {"b1": ("b",)}
    # That "a" is wanted at b0 counts, too.
    view.published["a"] = {"b1": 6e4}
    view.change("b1", aeo=4e5)
    assert where(ask(controller, view, "a", client="c3")) == {"b0": ("a",)}
    assert controller.pending == 3
    later = PENDING + 1
    view = Federation(2)
    view.published = {"b": {"b0": 6e4}}
    assert where(ask(controller, view, "b", client="c4", now=later)) == {"b0": ("b",)}
    assert controller.pending == 1


def test_the_same_question_gets_the_same_answer_with_a_new_time() -> None:
    view = Federation()
    view.published = {"a": {"b1": 5.0}, "b": {"b3": 2.0}}
    controller = Controller()
    first = ask(controller, view, "a", "b")
    again = ask(controller, view, "a", "b", now=100.0)
    assert again == first
    assert controller.told("c", 100.0 + TTL - 1) is not None
    assert controller.told("c", 100.0 + TTL) is None


def test_a_client_moves_only_if_that_saves_much() -> None:
    view = Federation()
    view.published = {"a": {"b1": 5.0}}
    controller = Controller()
    first = ask(controller, view, "a")
    view.published = {"a": {"b1": 5.0, "b2": 5.5}}
    assert ask(controller, view, "a").sessions == first.sessions
    view.published = {"a": {"b1": 1.0, "b2": 9.0}}
    moved = ask(controller, view, "a")
    assert where(moved) == {"b2": ("a",)}
    assert moved.version > first.version
    assert controller.moves == 1


def test_when_a_broker_is_gone_only_its_filters_move() -> None:
    view = Federation()
    view.published = {"a": {"b1": 5.0}, "b": {"b3": 2.0}, "d": {"b2": 9.0}}
    controller = Controller()
    first = ask(controller, view, "a", "b", "d")
    assert where(first) == {"b1": ("a",), "b3": ("b",), "b2": ("d",)}
    del view.loads["b3"]
    view.published["b"] = {"b0": 2.0}
    after = where(ask(controller, view, "a", "b", "d", now=1.0))
    assert after["b1"] == ("a",)
    assert after["b2"] == ("d",)
    assert sorted(name for names in after.values() for name in names) == ["a", "b", "d"]


def test_new_filters_leave_the_others_where_they_are() -> None:
    view = Federation()
    view.published = {"a": {"b1": 5.0}}
    controller = Controller()
    first = ask(controller, view, "a")
    view.published |= {"b": {"b2": 7.0}}
    after = ask(controller, view, "a", "b")
    assert where(after) == {"b1": ("a",), "b2": ("b",)}
    assert after.version > first.version
    ids = {session.broker: session.client_id for session in after.sessions}
    assert ids["b1"] == "c"


def test_sessions_keep_their_client_identifiers_where_they_stay() -> None:
    view = Federation()
    view.published = {"a": {"b1": 9.0}, "b": {"b3": 2.0}, "d": {"b2": 3.0}}
    controller = Controller()
    first = {s.broker: s.client_id for s in ask(controller, view, "a", "b", "d").sessions}
    second = {s.broker: s.client_id for s in ask(controller, view, "b", "d").sessions}
    assert "c" in second.values()
    kept = [broker for broker in second if second[broker] == first[broker]]
    assert len(kept) == 1  # the other one has become the first session


def test_a_client_that_had_a_later_answer_elsewhere_gets_a_higher_version() -> None:
    view = Federation()
    assert ask(Controller(), view, "a", version=41).version == 42


def test_a_client_that_is_forgotten_is_placed_as_a_new_one() -> None:
    view = Federation()
    controller = Controller()
    ask(controller, view, "a")
    assert controller.forget("c")
    assert not controller.forget("c")
    assert (len(controller), controller.pending) == (0, 0)


def test_the_table_of_clients_is_bounded_and_answers_expire() -> None:
    view = Federation()
    controller = Controller(most=3)
    for number in range(3):
        ask(controller, view, "a", client=f"c{number}", now=number)
    with pytest.raises(TooMuchError):
        ask(controller, view, "a", client="c9", now=10.0)
    ask(controller, view, "b", client="c1", now=10.0)
    ask(controller, view, "a", client="c9", now=TTL + 0.5)
    assert len(controller) == 3


def test_what_answers_take_is_counted_and_bounded() -> None:
    view = Federation()
    controller = Controller(memory=400)
    ask(controller, view, "a" * 1000, client="c1")
    assert controller.memory > 1000
    ask(controller, view, "a", client="c1")
    assert controller.memory < 1000
    with pytest.raises(TooMuchError):
        ask(controller, view, "a", client="c2")
    controller.forget("c1")
    assert controller.memory == 0


def test_pending_answers_have_a_bounded_number_of_topics() -> None:
    view = Federation()
    controller = Controller(entries=10)
    for number in range(10):
        ask(controller, view, *[f"t/{number}/{at}" for at in range(5)], client=f"c{number}")
    assert controller.pending == 2


QUESTIONS = st.tuples(
    st.sampled_from(["c1", "c2", "c3", "c4"]),
    st.lists(st.sampled_from("abcdef"), unique=True, max_size=6),
    st.lists(st.sampled_from("abcxyz"), unique=True, max_size=3),
    st.integers(1, 5),
    st.sets(st.sampled_from(["b0", "b1"])),
    st.integers(0, 400),
)


@given(
    st.lists(QUESTIONS, max_size=25),
    st.dictionaries(
        st.sampled_from("abcdef"),
        st.dictionaries(st.sampled_from(["b0", "b1", "b2", "b3"]), st.floats(0, 100), min_size=1),
    ),
)
def test_every_filter_and_topic_has_one_place_whatever_is_asked(
    questions: list[tuple[str, list[str], list[str], int, set[str], int]],
    published: dict[str, dict[str, float]],
) -> None:
    view, controller, now = Federation(), Controller(), 0.0
    view.published = published
    for client, filters, topics, sessions, avoid, wait in questions:
        now += wait
        answer = ask(
            controller,
            view,
            *filters,
            now=now,
            client=client,
            publish=tuple(topics),
            sessions=sessions,
            avoid=frozenset(avoid),
        )
        assert sorted(f for s in answer.sessions for f in s.subscribe) == sorted(filters)
        assert sorted(t for s in answer.sessions for t in s.publish) == sorted(topics)
        assert 1 <= len(answer.sessions) <= sessions
        assert avoid.isdisjoint(s.broker for s in answer.sessions)
        ids = [s.client_id for s in answer.sessions]
        assert len(set(ids)) == len(ids)
        assert ids[0] == client
        assert answer.internal <= answer.internal_single + 1e-6 or len(answer.sessions) > 0
    controller.expire(now + TTL + PENDING)
    assert (len(controller), controller.pending) == (0, 0)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([], "JSON object"),
        ({"client": "c", "filters": []}, "'filters' is not one of"),
        ({}, "client"),
        ({"client": 7}, "client"),
        ({"client": ""}, "client"),
        ({"client": "a\udfffb"}, "client: not a client identifier"),
        ({"client": "c", "subscribe": "a"}, "subscribe: not a list of texts"),
        ({"client": "c", "subscribe": [1]}, "subscribe: not a list of texts"),
        ({"client": "c", "sessions": 0}, "sessions: not a whole number from 1 to 64"),
        ({"client": "c", "sessions": True}, "sessions"),
        ({"client": "c", "sessions": 1e9}, "sessions"),
        ({"client": "c", "version": -1}, "version"),
        ({"client": "c", "at": None}, "at"),
    ],
)
def test_what_is_no_question_is_refused_in_one_line(value: object, why: str) -> None:
    with pytest.raises(ValueError, match=why) as error:
        read_question(value)
    assert "\n" not in str(error.value)
    assert not isinstance(error.value, TooMuchError)


def test_a_question_has_a_bounded_number_of_filters() -> None:
    names = [f"t/{number}" for number in range(10_000)]
    half = MAX_FILTERS // 2 + 1
    for value in (
        {"client": "c", "subscribe": names},
        {"client": "c", "subscribe": names[:half], "publish": names[:half]},
        {"client": "c", "avoid": names},
    ):
        with pytest.raises(TooMuchError):
            read_question(value)
    assert len(read_question({"client": "c", "subscribe": names[:1000]}).subscribe) == 1000


def test_a_question_of_the_largest_size_is_answered() -> None:
    view = Federation(8)
    names = [f"t/{number}" for number in range(500)]
    view.published = {name: {f"b{at % 8}": 1.0 + at} for at, name in enumerate(names)}
    answer = ask(Controller(), view, *names, publish=tuple(names), sessions=8)
    assert sum(len(session.subscribe) for session in answer.sessions) == 500


@pytest.mark.parametrize("seed", range(20))
def test_answers_are_the_same_when_topics_are_not_asked_for_again(seed: int) -> None:
    """Rates and subscribers change, clients come, come again and go, answers stop pending."""
    draw = random.Random(seed)
    kept, asked = Kept(), Federation()
    loads = tuple(kept.loads.values())
    kept.brokers = asked.brokers = lambda: loads  # type: ignore[method-assign]
    one, two = Controller(), Controller()
    names = [f"t{n}" for n in range(8)]
    for step in range(200):
        now = step * draw.choice((0.0, 1.0, 3.0))
        name, broker = draw.choice(names), f"b{draw.randrange(4)}"
        match draw.randrange(8):
            case 0:
                rates = {broker: draw.uniform(0, 9)}
                kept.published[name] = asked.published[name] = rates
                kept.now = object()
            case 1:
                kept.subscribed[name] = asked.subscribed[name] = {broker}
                kept.now = object()
            case 2:
                client = f"c{draw.randrange(6)}"
                assert one.forget(client) == two.forget(client)
            case _:
                client, topics = f"c{draw.randrange(6)}", draw.sample(names, 3)
                found = ask(one, kept, *topics, now=now, client=client)
                assert found == ask(two, asked, *topics, now=now, client=client)
