"""The journal's table of states: all pairs of state and input, and all sequences of inputs."""

from __future__ import annotations

import random
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.state_table import ImpossibleInputError
from mqttree.broker.persistence.journal_states import (
    HEALTHY,
    TRANSITIONS,
    Action,
    Input,
    State,
    transition,
)
from mqttree.broker.persistence.write_ahead_log import RETRY, STEP_PAUSE, WriteAheadLog
from tests.kit.journal_harness import Durable
from tests.unit.persistence.test_journal import durable_client

FAILURES = {Action.FAIL, Action.FAIL_AGAIN, Action.RETRY_LATER}


@pytest.mark.parametrize(("state", "given_input"), list(product(State, Input)))
def test_each_pair_has_one_outcome_or_cannot_come(state: State, given_input: Input) -> None:
    if (state, given_input) not in TRANSITIONS:
        with pytest.raises(ImpossibleInputError, match=given_input.value):
            transition(state, given_input)
        return
    action, after = transition(state, given_input)
    # What cannot be written is dropped, whatever the journal did, and nothing else makes it fail.
    assert (after is State.FAILED) == (action in FAILURES or state is after is State.FAILED)
    assert (given_input is Input.WRITE_FAILED) <= (after is State.FAILED)
    # A failure ends only with a snapshot that is durable.
    if state not in HEALTHY and after in HEALTHY:
        assert (state, given_input) == (State.REBUILD_ENDING, Input.END_DURABLE)
    # Older segments go only when a snapshot is durable.
    assert (action in {Action.DROP_OLDER, Action.RECOVER}) == (given_input is Input.END_DURABLE)
    # Nothing goes back to the time before the start.
    assert after is not State.NEW


def test_the_table_has_every_answer_of_a_driver_or_timer() -> None:
    """While the journal writes or tries to, whatever the disk does. An answer to a segment cannot
    come while a failure is made good, as none is asked for then."""
    for state in set(State) - {State.NEW}:
        assert (state, Input.WRITE_FAILED) in TRANSITIONS
        assert (state, Input.RETRY_DUE) in TRANSITIONS
        rebuilds = state in (State.REBUILDING, State.REBUILD_ENDING)
        for answer in (Input.SEGMENT_BEGUN, Input.SEGMENT_REFUSED):
            assert ((state, answer) in TRANSITIONS) is not rebuilds


STEPS = ("publish", "breaks", "works", "crowded", "begins", "waits", "step", "tell", "snapshot")


@given(steps=st.lists(st.sampled_from(STEPS), max_size=60), sync=st.booleans())
def test_the_journal_recovers_whatever_the_disk_does(steps: list[str], sync: bool) -> None:
    """No pair that is not in the table comes; what is said of the states holds at each step."""
    world = Durable(sync=sync)
    frames = world.journal.frames
    durable_client(world, "k").subscribe("a", qos=1)
    publisher = world.connect("p")
    for number, step in enumerate(steps, 1):
        before = frames.durable_lsn
        match step:
            case "publish":
                publisher.publish("a", b"%d" % number, 1, number)
            case "breaks":
                world.files.broken = "No space left on device"
            case "works":
                world.files.broken = ""
            case "crowded":
                world.files.crowded = "Too many open files"
            case "begins":
                world.files.crowded = ""
            case "waits":
                world.files.lazy = not world.files.lazy
            case "step":
                world.advance(random.Random(number).choice((STEP_PAUSE, RETRY)))
            case "tell":
                world.tell()
            case "snapshot":
                frames.want_snapshot()
        assert frames.durable_lsn >= before
        _holds(frames)
    world.files.broken = world.files.crowded = ""
    world.files.lazy = False
    world.tell()
    world.settle()
    for _ in range(20):
        world.advance(RETRY)
        _holds(frames)
    publisher.publish("a", b"last", 1, 60_000)
    assert frames.state is State.WRITING
    assert frames.durable_lsn == frames.lsn
    assert not len(frames.gate)
    published = [b"%d" % number for number, step in enumerate(steps, 1) if step == "publish"]
    assert durable_client(world.again(), "k").payloads() == [*published, b"last"]


def _holds(frames: WriteAheadLog) -> None:
    takes = frames.state in (State.SNAPSHOT, State.REBUILDING)
    assert (frames.snapshot is not None) == takes
    ending = frames.state in (State.SNAPSHOT_ENDING, State.REBUILD_ENDING)
    assert (frames._snapshot_end > 0) == ending
    assert frames.durable_lsn <= frames.lsn
    assert frames.healthy == (frames.state in HEALTHY)
    if frames.state is State.FAILED:
        assert frames._retrying or frames._replacement == frames._requested_segment
