"""The states of discovery as a table: every state with every input."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.address import Address
from mqttree.broker.base.broker_id import Identity
from mqttree.discovery.effects import MembershipConfig, StateChanged
from mqttree.discovery.membership import DISCOVERY_STRETCH, Membership
from mqttree.discovery.states import TRANSITIONS, Action, Input, State, step
from tests.kit.state_tables import check_walk

LIVE = (State.DISCOVERY, State.FORMING, State.RUNTIME)


def test_the_table_is_whole() -> None:
    actions = {action for given_actions, _ in TRANSITIONS.values() for action in given_actions}
    assert actions == set(Action)
    check_walk(TRANSITIONS, [State.DISCOVERY], last=State.LEFT)


WHAT = st.one_of(
    st.tuples(st.just("time"), st.floats(0.01, 3.0)),
    st.tuples(st.just("met"), st.integers(1, 5)),
    st.tuples(st.just("agreed"), st.booleans()),
    st.tuples(st.just("leave"), st.just(0)),
)


class Model:
    """What the steps of the table make of the inputs, without anything else of a membership."""

    def __init__(self, td: float) -> None:
        self.td = td
        self.now = self.since = 0.0
        self.until = td
        self.state = State.DISCOVERY
        self.agreed = False
        self.told: list[State] = []

    def take(self, happened: Input) -> None:
        if self.state not in LIVE:
            return
        before = self.state
        actions, self.state = step(before, happened)
        if self.state not in (before, State.LEFT):
            self.told.append(self.state)
        for action in actions:
            if action is Action.BEGIN_DISCOVERY:
                self.since = self.now
            elif action is Action.EXTEND_TD:
                longest = self.since + DISCOVERY_STRETCH * self.td
                self.until = min(self.now + self.td, longest)
            elif action is Action.LOOK_AT_TREE and self.agreed:
                self.take(Input.AGREED)

    def tree(self, agreed: bool) -> None:
        if agreed is not self.agreed:
            self.agreed = agreed
            self.take(Input.AGREED if agreed else Input.DISAGREED)

    def pass_time(self) -> None:
        if self.state is State.DISCOVERY and self.now >= self.until:
            self.take(Input.TD_OVER)


@given(st.lists(WHAT, max_size=30))
def test_membership_follows_the_table(happenings: list[tuple[str, float]]) -> None:
    config = MembershipConfig()
    own = Identity(b"o" * 8, 1, Address("10.0.0.1", 1883))
    membership = Membership(config, own, 0.0, 1e9, random.Random(1))
    model = Model(config.discovery_time)
    membership.take_effects()
    for number, (what, value) in enumerate(happenings, 1):
        if what == "time":
            model.now += value
            membership.tick(model.now)
        elif what == "met":  # every time with a higher boot number: a new incarnation
            membership.member_learnt(b"%08d" % value, number, [], model.now)
            model.take(Input.MET)
        elif what == "agreed":
            membership.tree_agreed(bool(value), model.now)
            model.tree(bool(value))
        else:
            membership.leave(model.now)
            model.take(Input.LEAVE)
        # Time passes for whatever comes.
        model.pass_time()
        effects = membership.take_effects()
        assert membership.state is model.state
        assert membership.left is (model.state is State.LEFT)
        assert [e.state for e in effects if isinstance(e, StateChanged)] == model.told
        model.told.clear()
