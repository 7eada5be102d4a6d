"""Answers of a driver that come twice, too late, in another order or for nothing: each costs a line
and a counter, and nothing else."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.log_limit import MAX_SOURCES
from mqttree.broker.core.effects import (
    AppendFrame,
    Authenticate,
    AuthorizePublish,
    AuthorizeReceive,
    AuthorizeSubscribe,
    BeginSegment,
    DiscardSegments,
    Effect,
    Event,
    Hooks,
    TailRead,
)
from mqttree.broker.persistence.journal_states import State
from mqttree.broker.wire import Publish, Subscribe, SubscriptionRequest
from tests.kit.journal_harness import DiskEffect, Durable
from tests.kit.node_harness import World, connect_packet


def asked(world: World, kind: type[Effect]) -> Any:
    """The one effect of a kind that waits for its answer."""
    found = [effect for effect in world.effects if isinstance(effect, kind)]
    assert len(found) == 1, found
    return found[0]


def refused(world: World, effect: Effect, result: Any) -> bool:
    """Whether an answer is one that nothing waits for."""
    before = world.counters.answers_unexpected
    world.node.answer(effect, result, world.now)
    world.settle()
    return bool(world.counters.answers_unexpected > before)


def test_a_client_is_authenticated_once() -> None:
    world = World(hooks=Hooks(authenticate=True))
    client = world.open()
    client.send(connect_packet())
    effect = asked(world, Authenticate)
    assert not refused(world, effect, True)
    assert refused(world, effect, False)
    assert refused(world, effect, True)
    assert len(client.take()) == 1
    assert not client.closed
    assert world.counters.connects == 1
    assert "nothing waits for this answer to Authenticate: it is left out" in world.logged


def test_a_message_is_published_once() -> None:
    world = World(hooks=Hooks(topics=True))
    subscriber, client = world.connect("s"), world.connect("p")
    subscriber.send(Subscribe(1, [SubscriptionRequest("t", 1)]))
    effect = asked(world, AuthorizeSubscribe)
    assert not refused(world, effect, [True])
    assert refused(world, effect, [False])
    subscriber.take()
    client.send(Publish("t", b"x", 1, packet_id=1))
    effect = asked(world, AuthorizePublish)
    assert not refused(world, effect, True)
    assert refused(world, effect, True)
    assert len(client.take()) == 1
    effect = asked(world, AuthorizeReceive)
    assert not refused(world, effect, {world.session("s")})
    assert refused(world, effect, {world.session("s")})
    assert subscriber.payloads() == [b"x"]


@pytest.mark.parametrize(
    "effect", [Event("broker_client_connected"), DiscardSegments(1), AppendFrame(b"", 1)]
)
def test_an_answer_that_nothing_waits_for_is_refused(effect: Effect) -> None:
    """Two kinds have no answer, and this broker has no journal."""
    assert refused(World(), effect, None)


def test_a_piece_of_the_tail_that_was_not_asked_for_is_refused() -> None:
    assert refused(World(), TailRead(1, 0, 10, 7), b"x")


# ---------------------------------------------------------------- the journal


def lazy(*, sync: bool = False) -> Durable:
    """A broker with a journal and a durable session "c" that gets "t" at QoS 1, whose disk says
    nothing by itself from now on."""
    world = Durable(sync=sync)
    world.connect("c", version=4, clean=False).subscribe("t", qos=1)
    world.files.lazy = True
    return world


def told(world: Durable) -> list[DiskEffect]:
    """Effects that the disk has carried out, taken from it so that it does not say so."""
    untold, world.files.untold = world.files.untold, []
    return [effect for effect, _ in untold]  # type: ignore[misc]


def test_a_frame_is_durable_once() -> None:
    world = lazy()
    world.connect("p").publish("t", b"x", 1)
    *_, last = told(world)
    assert isinstance(last, AppendFrame)
    assert not refused(world, last, None)
    assert refused(world, last, None)
    assert refused(world, AppendFrame(b"", last.lsn + 5), None)
    # What the kernel had did not get to the disk.
    assert not refused(world, last, "Input/output error")
    assert world.journal.frames.state is State.FAILED


def test_a_segment_that_was_refused_does_not_begin() -> None:
    world = lazy()
    world.begin_snapshot()
    world.settle()
    (begin,) = (effect for effect in told(world) if isinstance(effect, BeginSegment))
    assert not refused(world, begin, "Too many open files")
    assert refused(world, begin, None)
    assert refused(world, begin, "Too many open files")
    assert world.journal.frames.state is State.WRITING


def test_a_replacement_is_lost_before_anything_is_written_to_it() -> None:
    """Without `sync` a file that has begun may turn out later not to be on the disk, while
    everything is recorded in it."""
    world = lazy()
    world.connect("p").publish("t", b"x", 1)
    *_, last = told(world)
    assert not refused(world, last, "No space left on device")
    world.advance(1.5)
    begin = next(effect for effect in told(world) if isinstance(effect, BeginSegment))
    assert not refused(world, begin, None)
    assert world.rebuilding
    assert not refused(world, begin, "Input/output error")
    assert world.journal.frames.state is State.FAILED
    world.files.lazy = False
    world.files.failed = ""
    world.advance(10.0)
    assert world.journal.frames.state is State.WRITING


ERRORS = (None, None, None, "Input/output error", "No space left on device")


@given(seed=st.integers(0, 2**32), sync=st.booleans())
def test_no_answer_of_a_disk_is_impossible(seed: int, sync: bool) -> None:
    """Answers in any order, some again and again, some for what was never asked: nothing raises,
    and a disk that is sound again leads to a journal that is."""
    chance = random.Random(seed)
    world = lazy(sync=sync)
    publisher = world.connect("p")
    known: list[DiskEffect] = [
        AppendFrame(b"", 1 << 40),
        BeginSegment(1 << 20),
        BeginSegment(0),
        AppendFrame(b"", 0),
    ]
    for _ in range(40):
        known += told(world)
        match chance.randrange(5):
            case 0:
                world.begin_snapshot() if world.journal.frames.state is State.WRITING else None
            case 1:
                world.advance(chance.choice((0.01, 0.5, 1.1)))
            case 2:
                publisher.publish("t", b"x" * chance.randrange(100), 1)
            case _:
                effect = chance.choice(known[-6:] if chance.random() < 0.7 else known)
                world.node.answer(effect, chance.choice(ERRORS), world.now)
                world.settle()
    assert len(world.lines) < MAX_SOURCES
    for effect in known + told(world):
        world.node.answer(effect, "Input/output error", world.now)
    world.files.lazy, world.files.failed = False, ""
    world.settle()
    for _ in range(3):
        world.advance(5.0)
        publisher.publish("t", b"x", 1)
    assert world.journal.healthy
