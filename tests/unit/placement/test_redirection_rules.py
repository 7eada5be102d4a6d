"""Which clients with one connection are sent to another broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.placement.broker_table import SPARE, BrokerLoad
from mqttree.placement.case import Unit
from mqttree.placement.controller import Controller
from mqttree.placement.question import Question, TooMuchError
from mqttree.placement.redirection import (
    AGAIN,
    LOOKS,
    MOVE_COST,
    SETTLING,
    Advice,
    Candidate,
    Overload,
    Redirections,
    pays,
)
from tests.unit.placement.test_controller import Federation, alone


def client(
    *topics: str, at: str = "b0", name: str = "c", sole: bool = True, **question: Any
) -> Candidate:
    """A client that subscribes to topics, as the only one at its broker or not."""
    asked = Question(name, topics, at=at, sessions=1, **question)
    return Candidate(asked, alone(*topics), frozenset(topics if sole else ()))


def advised(view: Federation, candidate: Candidate, now: float = 0.0, **options: Any) -> str:
    """The broker where a client is sent, "": it stays."""
    advice = Redirections(Controller()).advise(candidate, view, now, **options)
    return "" if advice is None else advice.target


def publishing(**rates: dict[str, float]) -> Federation:
    view = Federation()
    view.published = rates
    return view


@pytest.mark.parametrize(
    ("rate", "other", "target"),
    [
        (5.0, 0.0, "b1"),
        (1.0, 0.0, "b1"),
        # A message a second at least,
        (0.99, 0.0, ""),
        # and a tenth of what the client gets.
        (5.0, 45.0, "b1"),
        (5.0, 45.1, ""),
    ],
)
def test_a_subscriber_goes_where_its_topic_is_published_if_that_pays(
    rate: float, other: float, target: str
) -> None:
    view = publishing(a={"b1": rate}, x={"b2": other})
    # Both brokers get the other topic anyway.
    view.subscribed = {"x": {"b0", "b1"}}
    topics = ("a", "x") if other else ("a",)
    candidate = Candidate(Question("c", topics, at="b0"), alone(*topics), frozenset(("a",)))
    assert advised(view, candidate) == target


def test_a_topic_that_others_want_there_too_is_no_reason_to_leave() -> None:
    view = publishing(a={"b1": 5.0})
    view.subscribed = {"a": {"b0"}}
    assert advised(view, client("a", sole=False)) == ""
    assert advised(view, client("a")) == "b1"


def test_a_unit_is_alone_only_if_each_of_its_filters_is() -> None:
    view = publishing(**{"a/1": {"b1": 5.0}})
    view.subscribed = {"a/1": {"b0"}}
    question = Question("c", ("a/+", "a/1"), at="b0")
    units = [Unit(("a/+", "a/1"), ("a/1",))]
    assert advised(view, Candidate(question, units, frozenset(("a/+",)))) == ""
    assert advised(view, Candidate(question, units, frozenset(("a/+", "a/1")))) == "b1"


def test_a_publisher_goes_where_its_subscribers_are() -> None:
    view = publishing(x={"b0": 3.0})
    view.subscribed = {"x": {"b2"}}
    assert advised(view, client(publish=("x",))) == "b2"
    view.subscribed = {"x": {"b0", "b2"}}
    assert advised(view, client(publish=("x",))) == ""


def test_a_client_is_sent_once_in_ten_minutes_wherever_it_is() -> None:
    view = publishing(a={"b1": 5.0})
    redirections = Redirections(Controller())
    assert redirections.advise(client("a"), view, 0.0)
    view.published = {"a": {"b2": 50.0}}
    assert redirections.advise(client("a", at="b1"), view, AGAIN - 0.001) is None
    advice = redirections.advise(client("a", at="b1"), view, AGAIN)
    assert advice is not None
    assert (advice.source, advice.target, advice.address) == ("b1", "b2", "10.0.0.2:1883")


def test_a_client_that_goes_later_is_asked_about_again() -> None:
    view = publishing(a={"b1": 5.0})
    controller = Controller()
    redirections = Redirections(controller)
    assert redirections.advise(client("a"), view, 0.0, later=True) is not None
    assert (len(redirections), controller.pending) == (0, 0)
    assert redirections.advise(client("a"), view, 1.0) is not None
    assert redirections.advise(client("a"), view, 2.0, later=True) is None


def test_a_client_that_places_itself_is_left_alone() -> None:
    view = publishing(a={"b1": 5.0}, b={"b2": 5.0})
    controller = Controller()
    controller.place(Question("c", ("a", "b")), alone("a", "b"), view, 0.0)
    redirections = Redirections(controller)
    for name in ("c", "c~2"):
        assert redirections.advise(client("a", name=name), view, 1.0) is None
        assert redirections.advise(client("a", name=name), view, 1.0, leave=True) is None
    assert redirections.advise(client("a", name="c~x"), view, 1.0) is not None


def test_the_other_broker_stays_within_its_due_with_the_client() -> None:
    view = publishing(a={"b1": 2e4})
    due = (4e5 + 4 * SPARE) / 4
    view.change("b1", aeo=1.1 * due - SPARE - 2e4)
    view.change("b2", aeo=2e5 - view.loads["b1"].aeo)
    assert advised(view, client("a")) == "b1"
    view.change("b1", aeo=view.loads["b1"].aeo + 1.0)
    view.change("b2", aeo=2e5 - view.loads["b1"].aeo)
    assert advised(view, client("a")) == ""


def test_clients_that_were_just_sent_count_as_load_at_once() -> None:
    """Fifty clients are not sent to the one broker all together."""
    view = publishing(**{f"t{n}": {"b1": 2000.0} for n in range(50)})
    redirections = Redirections(Controller())
    found = [
        redirections.advise(client(f"t{n}", name=f"c{n}"), view, 0.0) is not None for n in range(50)
    ]
    assert found == sorted(found, reverse=True)
    assert 3 <= sum(found) <= 7


def test_brokers_that_drain_or_have_no_address_get_nobody() -> None:
    view = publishing(a={"b1": 5.0})
    view.change("b1", drained=True)
    assert advised(view, client("a")) == ""
    view = publishing(a={"b1": 5.0})
    view.change("b1", address="")
    assert advised(view, client("a")) == ""
    # Nor is a client sent away from where it could not be sent back.
    view = publishing(a={"b1": 5.0})
    view.change("b0", address="")
    assert advised(view, client("a")) == ""


def test_a_client_that_has_to_leave_goes_where_it_costs_least() -> None:
    view = publishing(a={"b2": 5.0})
    view.change("b0", drained=True)
    assert advised(view, client("a"), leave=True) == "b2"
    # Even if nothing is known of it, or it was sent there just before.
    redirections = Redirections(Controller())
    for _ in range(2):
        assert redirections.advise(client("none"), view, 0.0, leave=True) is not None
    for broker in ("b1", "b2", "b3"):
        view.change(broker, drained=True)
    with pytest.raises(ValueError, match="no broker"):
        redirections.advise(client("none"), view, 0.0, leave=True)


def test_a_full_table_sends_nobody_away() -> None:
    view = publishing(a={"b1": 5.0})
    redirections = Redirections(Controller(), most=2)
    assert redirections.advise(client("a", name="c0"), view, 0.0)
    assert redirections.advise(client("a", name="c1"), view, 1.0)
    with pytest.raises(TooMuchError):
        redirections.advise(client("a", name="c2"), view, 2.0)
    assert len(redirections) == 2
    # Those that have to leave go all the same.
    view.change("b0", drained=True)
    assert redirections.advise(client("a", name="c3"), view, 2.0, leave=True)
    assert len(redirections) == 2
    view.change("b0", drained=False)
    assert redirections.advise(client("a", name="c2"), view, AGAIN + 0.5)


# ---------------------------------------------------------------- plans


def planned(
    redirections: Redirections,
    view: Federation,
    candidates: Sequence[Candidate],
    over: dict[str, float] | None = None,
    now: float = 0.0,
) -> list[Advice]:
    found: list[tuple[Advice, int]] = []
    for _ in redirections.plan(candidates, view, now, found, over or {}):
        pass
    return [advice for advice, _ in found]


def test_a_plan_begins_with_what_saves_most() -> None:
    view = publishing(a={"b1": 5.0}, b={"b2": 9.0}, c={"b3": 0.5})
    candidates = [client(name, name=f"c-{name}") for name in "abc"]
    redirections = Redirections(Controller())
    found = planned(redirections, view, candidates)
    assert [(each.client, each.target) for each in found] == [("c-b", "b2"), ("c-a", "b1")]
    assert [redirections.commit(advice, 0.0) for advice in found] == [True, True]
    assert planned(redirections, view, candidates, now=1.0) == []


def test_a_broker_with_too_much_is_relieved_without_further_traffic() -> None:
    view = publishing(a={"b0": 300.0}, w={"b3": 300.0})
    view.subscribed = {"w": {"b0", "b1", "b2"}}
    view.change("b0", aeo=2e5)
    candidates = [
        # To move the reader of `a` would bring it to another broker.
        client("a", name="reader"),
        *[client("w", name=f"w{n}", sole=False) for n in range(5)],
    ]
    redirections = Redirections(Controller())
    found = planned(redirections, view, candidates, {"b0": 700.0})
    # No more than is too much.
    assert [each.client for each in found] == ["w0", "w1", "w2"]
    assert all(each.saved == 0 and each.target in ("b1", "b2", "b3") for each in found)
    assert planned(Redirections(Controller()), view, candidates) == []


def test_what_a_plan_does_not_use_is_no_load() -> None:
    view = publishing(a={"b1": 5.0})
    controller = Controller()
    redirections = Redirections(controller)
    [advice] = planned(redirections, view, [client("a")])
    assert controller.pending == 1
    redirections.drop(advice)
    assert controller.pending == 0
    assert len(redirections) == 0


def test_a_plan_does_not_send_a_client_that_was_sent_meanwhile() -> None:
    view = publishing(a={"b1": 5.0})
    redirections = Redirections(Controller())
    [advice] = planned(redirections, view, [client("a")])
    assert redirections.advise(client("a"), view, 0.0) is not None
    assert not redirections.commit(advice, 0.0)


@pytest.mark.parametrize(
    ("saved", "internal", "queued", "enough"),
    [
        ([10.0], 100.0, 0, True),
        ([9.9], 100.0, 0, False),
        ([5.0, 5.0], 100.0, 0, True),
        ([MOVE_COST / 600], 0.0, 0, True),
        ([MOVE_COST / 601], 0.0, 0, False),
        ([1.0], 0.0, 550, True),
        ([1.0], 0.0, 551, False),
        ([], 0.0, 0, False),
        ([0.0], 0.0, 0, False),
    ],
)
def test_moves_pay_by_a_tenth_and_within_ten_minutes(
    saved: list[float], internal: float, queued: int, enough: bool
) -> None:
    found = [(Advice("c", "b0", "b1", "h:1", each), queued) for each in saved]
    assert pays(found, internal) is enough


# ---------------------------------------------------------------- overload


def loads(*out: float) -> list[BrokerLoad]:
    return [
        BrokerLoad(f"b{n}", "h:1", 1.0, False, 0.0, each, 0.0, 0.0) for n, each in enumerate(out)
    ]


def test_a_broker_is_relieved_after_three_looks_in_a_row() -> None:
    overload = Overload(1.1)
    many, even = loads(2e5, 1e5, 1e5, 1e5), loads(1e5, 1e5, 1e5, 1e5)
    for now in range(LOOKS - 1):
        assert overload.look(many, float(now)) == {}
    assert overload.look(even, float(LOOKS)) == {}
    found = [overload.look(many, 10.0 + now) for now in range(LOOKS)]
    assert [list(each) for each in found] == [[], [], ["b0"]]
    due = 1.25e5 + SPARE
    assert found[-1]["b0"] == pytest.approx(2e5 + SPARE - 1.1 * due)


def test_a_relieved_broker_is_judged_when_its_load_can_show_it() -> None:
    overload = Overload(1.1)
    many = loads(2e5, 1e5, 1e5, 1e5)
    for now in range(LOOKS):
        overload.look(many, float(now))
    overload.relieved("b0", 3.0)
    assert overload.look(many, 3.0 + SETTLING - 1) == {}
    found = [overload.look(many, 3.0 + SETTLING + now) for now in range(LOOKS)]
    assert [list(each) for each in found] == [[], [], ["b0"]]


def test_brokers_with_little_to_do_have_never_too_much() -> None:
    overload = Overload(1.1)
    for now in range(5):
        assert overload.look(loads(200.0, 0.0, 0.0), float(now)) == {}
    assert overload.look([], 9.0) == {}


# ---------------------------------------------------------------- properties

RATES = st.floats(0.0, 50.0)


@given(
    st.lists(st.tuples(st.integers(0, 3), RATES, st.frozensets(st.integers(0, 3))), max_size=6),
    st.integers(0, 3),
    st.booleans(),
)
def test_no_advice_adds_traffic_or_leads_back(
    topics: list[tuple[int, float, frozenset[int]]], at: int, sole: bool
) -> None:
    """Who follows an advice costs less than before, is not sent on, and in ten minutes is not sent
    back as nothing else has changed."""
    view = Federation()
    names = [f"t{n}" for n in range(len(topics))]
    here = f"b{at}"
    others = {
        name: {f"b{n}" for n in wanted} for name, (_, _, wanted) in zip(names, topics, strict=True)
    }
    for name, (broker, rate, _) in zip(names, topics, strict=True):
        view.published[name] = {f"b{broker}": rate}
        view.subscribed[name] = others[name] | {here}
    apart = frozenset(name for name in names if here not in others[name]) if sole else frozenset()
    redirections = Redirections(Controller())
    candidate = Candidate(Question("c", tuple(names), at=here), alone(*names), apart)
    advice = redirections.advise(candidate, view, 0.0)
    if advice is None:
        return

    def cost(broker: str) -> float:
        return sum(
            rate
            for name, (source, rate, _) in zip(names, topics, strict=True)
            if broker not in others[name] | {f"b{source}"} and (name in apart or broker != here)
        )

    assert cost(advice.target) <= cost(here) - 1.0
    assert advice.saved == pytest.approx(cost(here) - cost(advice.target))
    there = advice.target
    for name in names:
        view.subscribed[name] = others[name] | {there} | (set() if name in apart else {here})
    apart = frozenset(name for name in names if there not in others[name])
    moved = Candidate(Question("c", tuple(names), at=there), alone(*names), apart)
    assert redirections.advise(moved, view, 10.0) is None
    again = Redirections(Controller()).advise(moved, view, AGAIN + 1)
    assert again is None or again.saved >= 1.0
