"""The connection's table of states: all pairs of state and input, and all sequences of inputs."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.state_table import ImpossibleInputError
from mqttree.broker.core.connection_states import (
    TRANSITIONS,
    Action,
    Input,
    State,
    transition,
)
from mqttree.broker.wire.packets import Publish
from tests.kit.node_harness import World

WAITING = (State.WAITING, State.WAITING_HELD)


@pytest.mark.parametrize(("state", "given_input"), list(product(State, Input)))
def test_each_pair_has_one_outcome_or_cannot_come(state: State, given_input: Input) -> None:
    if (state, given_input) not in TRANSITIONS:
        # A driver tells once that a peer has gone, and with nothing to wait for that is the end.
        assert given_input is Input.PEER_GONE and state not in WAITING
        with pytest.raises(ImpossibleInputError, match=given_input.value):
            transition(state, given_input)
        return
    action, after = transition(state, given_input)
    # What is closed stays so, and what is being closed handles nothing any more.
    assert (after is State.CLOSED) == (state is State.CLOSED or given_input is Input.GONE)
    assert after.over == (state.over or given_input in (Input.CLOSE, Input.GONE))
    # A peer that has gone does not come back.
    assert after.ended == (not after.over and (state.ended or given_input is Input.PEER_GONE))
    # Who is held stops to be read once, and is read again once.
    assert (action is Action.STOP_READING) == (after.held and not state.held)
    assert (action is Action.READ_AGAIN) == (given_input is Input.RELEASE and state.held)
    if given_input not in (Input.HOLD, Input.RELEASE, Input.GONE):
        assert after.held == state.held
    # An answer is waited for by who is neither closing nor closed.
    if given_input is Input.WAIT:
        assert after.waiting == (not state.over)
    elif given_input is Input.ANSWERED:
        assert not after.waiting
    elif not after.over:
        assert after.waiting == state.waiting
    # Last words are said once, and what is kept is dropped once.
    assert (action is Action.SAY_LAST_WORDS) == (after.closing and not state.over)
    assert (action is Action.LET_GO) == (after.closed and not state.closed)


STEPS = ("publish", "wait", "answer", "hold", "release", "other", "lost", "close", "time")


@given(st.lists(st.sampled_from(STEPS), max_size=40))
def test_packets_before_the_end_are_handled_once_and_in_order(steps: list[str]) -> None:
    """Whatever happens to a connection meanwhile. Nothing that comes after its end is handled."""
    world = World()
    reader, writer = world.connect("reader").subscribed("t"), world.connect("writer")
    conn, transport = writer.conn, writer.transport
    due: list[bytes] = []
    number = 0
    complete = True  # nothing that came had to be dropped
    for step in steps:
        before = conn.state
        if step == "publish" and not conn.ended and not conn.closed and transport.reading:
            number += 1
            payload = b"%d" % number
            if not before.over:
                due.append(payload)
            writer.publish("t", payload)
        elif step == "wait":
            conn.wait()
        elif step == "answer":
            conn.resume(world.now)
        elif step == "hold":
            world.node.flow_control.hold(conn, "reason")
        elif step == "release":
            world.node.flow_control.release("reason")
        elif step == "other":
            world.node.flow_control.hold(conn, "another reason")
            world.node.flow_control.release("another reason")
        elif step == "lost":
            complete &= before in WAITING or not conn.unhandled
            world.node.connection_lost(conn, "gone", world.now)
        elif step == "close":
            complete = False
            conn.close()
        world.advance(1.0 if step == "time" else 0.01)
        if not conn.state.over and not conn.ended:
            assert transport.reading == (not conn.state.held)
    world.node.flow_control.release("reason")
    conn.resume(world.now)
    world.advance(0.01)
    came = [packet.payload for packet in reader.take() if isinstance(packet, Publish)]
    assert came == due[: len(came)]
    assert came == due or not complete
    assert conn.state in (State.READING, State.CLOSING, State.CLOSED)
