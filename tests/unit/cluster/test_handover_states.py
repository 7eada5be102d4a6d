"""The handover of a session goes through its states as its table says, whatever is asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.turns import PAUSE
from mqttree.broker.cluster.sessions.handover import Handover
from mqttree.broker.cluster.sessions.pending_handover import (
    TRANSITIONS,
    Asked,
    Input,
    State,
)
from mqttree.broker.cluster.sessions.session_records import WRITE_WORK
from mqttree.broker.cluster.sessions.takeover_messages import (
    COMING,
    DONE,
    ENDED,
    FOREIGN,
    MERGE,
    MOVED,
    NEWER,
    NOTHING,
    SESSION_ANSWER,
    SESSION_REQUEST,
    TAKE,
    decode_takeover,
    encode_takeover,
)
from mqttree.broker.core.session_owner import digest
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.wire.properties import Property
from tests.kit.link_harness import Neighbour, bid, lone, routed
from tests.kit.node_harness import connect_packet

ONE_AT_A_TIME = Limits(session_written=1, turn_work=WRITE_WORK)
"""Each subscription takes a turn of its own."""


class Holding:
    """The node has, or had, the session of `k`, and two neighbours ask for it."""

    def __init__(self, limits: Limits = DEFAULTS) -> None:
        self.world = lone(routing="flood", link_timeout=1000.0, limits=limits)
        self.takers = [Neighbour(self.world, number).child().known() for number in (101, 102)]
        self.handover = self.world.node.cluster.handover
        self.connect()
        self.stamp = self.world.session("k").stamp
        self.steps: list[tuple[State, Input]] = []
        """What has happened, and the state in which it did."""

    def connect(self) -> None:
        """The client comes and goes; it waits in between if a neighbour has its session."""
        client = self.world.open().sent(
            connect_packet("k", clean=False, properties={Property.SESSION_EXPIRY_INTERVAL: 1000})
        )
        if client.take():
            for number in range(3):
                client.subscribe(f"t/{number}", qos=1)
        client.vanish()

    def ask(self, taker: int, request: int, later: int, *, owner: str | None = None) -> list[int]:
        """Send a request; returns the answers."""
        body = encode_takeover(
            request,
            self.stamp + later,
            "k",
            bytes(4) + digest(owner) + self.stamp.to_bytes(8, "big"),
        )
        neighbour = self.takers[taker]
        neighbour.take()
        neighbour.send(routed(SESSION_REQUEST, body, sender=bid(101 + taker)))
        return [decode_takeover(answer)[0] for answer in neighbour.routed(SESSION_ANSWER)]

    def turn(self, seconds: float = PAUSE) -> None:
        self.world.now += seconds
        self.world.node.tick(self.world.now)
        self.world.settle()


def test_a_session_is_taken() -> None:
    holding = Holding()
    state = holding.handover._state
    assert state("k") is State.HERE
    assert holding.ask(0, TAKE, -1) == [NEWER]
    assert holding.ask(0, TAKE, 5, owner="another") == [FOREIGN]
    assert holding.ask(0, TAKE, 5) == [COMING]
    assert state("k") is State.ENCODED
    assert holding.ask(1, TAKE, 4) == [NEWER]
    assert holding.ask(0, MERGE, 5) == [COMING]
    assert state("k") is State.ENCODED
    assert holding.ask(1, DONE, 5) == [NEWER]
    assert holding.ask(0, DONE, 5) == [ENDED]
    assert state("k") is State.GIVEN
    assert holding.ask(0, DONE, 5) == [ENDED]
    assert holding.ask(1, TAKE, 9) == [MOVED]
    assert holding.ask(0, TAKE, 9) == [NOTHING]
    for _ in range(8):
        holding.turn(1.0)
    assert state("k") is State.NONE
    assert holding.ask(1, TAKE, 9) == [NOTHING]


event = st.one_of(
    st.tuples(
        st.sampled_from([TAKE, TAKE, MERGE, DONE]),
        st.integers(0, 1),
        st.integers(-1, 3),
        st.sampled_from([None, None, None, "another"]),
    ),
    st.sampled_from(["turn", "second", "minute", "connect", "end"]),
)


@given(st.lists(event, max_size=25))
def test_random_requests_take_only_steps_of_the_table(
    events: list[str | tuple[int, int, int, str | None]],
) -> None:
    """Every request is answered; every step is in the table and leads where it says; and in the
    end nothing is left that was encoded."""
    holding = Holding(ONE_AT_A_TIME)
    done = Handover._step

    def step(handover: Handover, asked: Asked, state: State, happens: Input, now: float) -> None:
        """Take a step, and see that it leads to the table's state."""
        assert (state, happens) in TRANSITIONS
        holding.steps.append((state, happens))
        before = len(holding.steps)
        done(handover, asked, state, happens, now)
        if len(holding.steps) == before:  # no step within this one
            assert handover._state("k") is TRANSITIONS[state, happens][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handover, "_step", step)
        for one in events:
            if isinstance(one, tuple):
                request, taker, later, owner = one
                assert len(holding.ask(taker, request, later, owner=owner)) == 1
            elif one == "connect":
                holding.connect()
            elif one == "end":
                if (session := holding.world.node.sessions.get("k")) is not None:
                    holding.world.node.end_session(session, None)
            else:
                holding.turn({"turn": PAUSE, "second": 1.0, "minute": 60.0}[one])
        for _ in range(4):
            holding.turn(60.0)
    assert not holding.handover._exports
    assert not holding.handover._given
    assert holding.handover.size == 0
    assert not holding.world.counters.session_takeovers_unexpected
