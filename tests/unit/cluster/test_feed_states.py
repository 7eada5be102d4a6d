"""An ordered feed goes through its states as its table says, whatever happens."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.state_table import ImpossibleInputError
from mqttree.broker.cluster.delivery.feed_states import TRANSITIONS, Action, Input, State
from mqttree.broker.cluster.delivery.gap_recovery import PATIENCE
from mqttree.broker.cluster.delivery.ordered_feed import HeldPackets, OrderedFeed
from mqttree.broker.core.message import Message
from tests.kit.state_tables import check_table
from tests.unit.cluster.test_gap_recovery import FAR, NEAR, ORIGIN, Asking, feed


def means_what_it_says(found: OrderedFeed) -> None:
    """Fail unless what is looked at for each message is what the state says."""
    assert (found.source is not None) is (found.state is State.FED)
    assert (found.behind is not None) is (found.state is State.RELEASING)
    assert found.unordered is (found.state is State.UNORDERED)


def paths() -> dict[State, list[Input]]:
    """The shortest way to each state, from the first one."""
    found: dict[State, list[Input]] = {State.ASKING: []}
    waiting = deque(found)
    while waiting:
        state = waiting.popleft()
        for (before, happens), (_, after) in TRANSITIONS.items():
            if before is state and after not in found:
                found[after] = [*found[state], happens]
                waiting.append(after)
    return found


def test_the_table_is_whole() -> None:
    """Every state is reached and left, every input and action is used."""
    check_table(TRANSITIONS, Action, [State.ASKING])


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("happens", list(Input))
def test_every_input_leads_to_the_tables_state_or_is_impossible(
    state: State, happens: Input
) -> None:
    found, _ = feed()
    for before in paths()[state]:
        found.step(before, NEAR if before is Input.ANSWERED else None)
        means_what_it_says(found)
    assert found.state is state
    if (state, happens) in TRANSITIONS:
        action = found.step(happens, NEAR if happens is Input.ANSWERED else None)
        assert (action, found.state) == TRANSITIONS[state, happens]
    else:
        with pytest.raises(ImpossibleInputError):
            found.step(happens)
        assert found.state is state
    means_what_it_says(found)


@pytest.mark.parametrize("state", list(State))
def test_a_doubt_makes_every_feed_ask(state: State) -> None:
    """Nothing that comes is trusted to be complete after it."""
    assert TRANSITIONS[state, Input.DOUBT][1] is State.ASKING


event = st.one_of(
    st.tuples(st.sampled_from([NEAR, FAR]), st.integers(1, 12)),
    st.sampled_from(["whole", "whole", "more", "gone", "doubt", "break", "wait", "lost", "back"]),
)


@given(st.lists(event, max_size=30))
def test_whatever_happens_each_step_is_the_tables(events: list[object]) -> None:
    """Messages come over any link, the origin answers or does not, paths break: each step is in the
    table, and a feed with a source holds nothing back."""
    asking = Asking()
    found, recovery, now = asking.feed, asking.gap_recovery, 1.0
    recovery.node.dispatcher.publish = lambda *_: None  # type: ignore[method-assign]
    listings = asking.directory.database.listings
    listing = listings[ORIGIN]
    step = OrderedFeed.step

    def watched(fed: OrderedFeed, happens: Input, link: object = None) -> Action:
        """Take a step, and see that it leads to the table's state."""
        before = fed.state
        action = step(fed, happens, link)  # type: ignore[arg-type]
        assert (action, fed.state) == TRANSITIONS[before, happens]
        return action

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OrderedFeed, "step", watched)
        for one in events:
            if isinstance(one, tuple):
                link, number = one
                crosses = asking.window.accept(number, 1, skipped=True)
                if crosses and not found.take(link, number, 1) and number > found.done:
                    message = Message(b"t", b"", 1, False, b"", None, None)
                    recovery.release.hold(found, HeldPackets(number, 1, (message, None), b"t", 1))
            elif one == "doubt":
                recovery.lose(found)
            elif one == "break":
                recovery._break_received(ORIGIN, b"", now, FAR)
            elif one == "wait":
                now += PATIENCE
                recovery.node.now = now
                recovery._due(found, now)
            elif one in ("lost", "back"):
                listings.clear()
                if one == "back":
                    listings[ORIGIN] = listing
            elif not found.fed:
                asking.answer(
                    asking.ask(),
                    max(found.done, asking.window.top),
                    flags=3 if one == "more" else 1,
                    gone=1 if one == "gone" else 0,
                    now=now,
                )
            means_what_it_says(found)
            assert found.state is not State.FED or not found.waiting
            assert found.state in (State.ASKING, State.UNORDERED) or not found.more
