"""What ordered feeds keep, and for how long; what a neighbour may have them do
(gap_recovery.py)."""

from __future__ import annotations

from typing import Any

import pytest

from mqttree.broker.cluster.delivery.answers import LOOKS
from mqttree.broker.cluster.delivery.gap_recovery import CHANGED
from mqttree.broker.cluster.delivery.local_window import LocalWindow
from mqttree.broker.cluster.delivery.pull_messages import ENTRIES, ENTRIES_PIECE, PULL
from mqttree.broker.cluster.delivery.replay_log import LogEntry, Looked, ReplayLog
from mqttree.broker.cluster.directory.link_state_directory import INTEREST
from mqttree.broker.cluster.link.control_records import ROUTED, decode_records
from mqttree.broker.cluster.link.message_batch import read_messages
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.core.message import Message, Stamp
from mqttree.broker.limits import Limits
from mqttree.broker.wire.properties import Property
from tests.kit.core import needs_python
from tests.kit.link_harness import (
    Neighbour,
    batch_entry,
    bid,
    entry_of,
    lone,
    message,
    ping,
    pull_body,
    routed,
)
from tests.kit.node_harness import World


def asks(neighbour: Neighbour) -> list[bytes]:
    return [body for body in neighbour.records(ROUTED) if body[17] == PULL]


@pytest.fixture
def world() -> World:
    return lone(routing="interest", link_timeout=1000.0)


def test_an_origin_that_is_forgotten_is_not_asked_any_more(world: World) -> None:
    neighbour = Neighbour(world, 101).child().known()
    key = origin_key(bid(101), neighbour.boot)
    neighbour.send(message(key=key))
    world.advance(5)
    assert len(asks(neighbour)) > 2
    del world.node.cluster.forwarder.vector[key]
    world.advance(10)
    neighbour.take()
    timers = len(world.node.timers)
    world.advance(10)
    assert asks(neighbour) == []
    assert len(world.node.timers) <= timers


def test_messages_of_an_answer_do_not_slow_down_newer_ones(world: World) -> None:
    """Only a batch with a number that came by an answer is looked at message by message."""
    neighbour = Neighbour(world, 101).child()
    relay, gap_recovery = world.node.cluster.forwarder, world.node.cluster.gap_recovery
    key = origin_key(bid(101), 1)
    window = relay.vector[key] = LocalWindow(9, world.now, world.node.counters, Limits().max_gaps)
    window.history = [(3, 5)]
    gap_recovery.met(key, window)
    assert window.feed is not None
    gap_recovery._questions._keep(
        window.feed, 4, Message(b"t", b"x", 1, False, b"", None, None), None, world.now
    )
    assert window.feed.kept == [(4, 4)]
    single = relay.received
    seen: list[int] = []

    def received(link: Any, entry: LogEntry, *rest: Any) -> None:
        seen.append(entry.sequence)
        single(link, entry, *rest)

    needs_python("replaces a method")
    relay.received = received  # type: ignore[method-assign]
    neighbour.send(batch_entry(key, 10, [(b"t", b"x")] * 3).kept())
    assert seen == []
    neighbour.send(batch_entry(key, 3, [(b"t", b"x")] * 3).kept())
    assert seen == [3, 4, 5]


def test_a_neighbour_cannot_have_the_log_searched_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A question costs what it takes to answer it; who asks too often is answered later."""
    world = lone(routing="interest", link_timeout=1000.0, limits=Limits(link_requests=500.0))
    neighbour = Neighbour(world, 101).child().known()
    client = world.connect("p")
    for number in range(500):
        client.publish("t", b"x", 1, properties={Property.CONTENT_TYPE: str(number)})
    assert len(world.node.cluster.forwarder.log) == 500
    log, searched = world.node.cluster.forwarder.log, [0]
    own = type(log).own

    def counting(self: Any, *args: Any) -> Any:
        searched[0] += 1
        return own(self, *args)

    monkeypatch.setattr(type(log), "own", counting)
    body = pull_body(world.node.cluster.forwarder.key, (1, 1))
    neighbour.send(routed(PULL, *[body] * 2000))
    assert neighbour.up
    assert 300 < searched[0] <= 500
    world.advance(10)
    before = searched[0]
    neighbour.send(routed(PULL, body))
    assert searched[0] == before + 1


def test_a_question_for_very_much_is_answered_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer looks at no more of the log than it takes, and says how far it looked."""
    looks: list[Looked] = []
    own = ReplayLog.own

    def noting(self: ReplayLog, *args: Any) -> Any:
        looks.append(args[-1])
        return own(self, *args)

    monkeypatch.setattr(ReplayLog, "own", noting)
    count = 60_000
    world = lone(routing="interest", link_timeout=1000.0)
    neighbour = Neighbour(world, 101).child().known((INTEREST + b"t", b""))
    listing = world.node.cluster.strategy.table
    relay = world.node.cluster.forwarder
    for number in range(1, count + 1):
        relay.own.top = number
        one = Message(
            b"t" if number % 1000 == 0 else b"u", b"%d" % number, 1, False, b"", None, None
        )
        relay.log.append(entry_of(relay.key, number, one, world.now), None)
    assert listing.brokers_wanting("t")
    assert not listing.brokers_wanting("u")
    got: list[int] = []
    begin, answers = 1, 0
    while begin <= count:
        neighbour.send(routed(PULL, pull_body(world.node.cluster.forwarder.key, (begin, count))))
        (answer,) = neighbour.routed(ENTRIES, ENTRIES_PIECE)
        begin = int.from_bytes(answer[21:27], "big") + 1
        got += [int(message.payload) for _, _, message in read_messages(answer[40:], world.now)]
        answers += 1
        assert 0 < looks[-1].entries <= begin + LOOKS
        assert bool(answer[20] & 2) == (begin <= count)
        world.advance(0.1)
    assert got == list(range(1000, count + 1, 1000))
    assert answers == len(looks) == 1 + count // LOOKS


def changes(neighbour: Neighbour) -> list[bytes]:
    """What came, in order: origins whose messages come another way to the neighbour, and
    messages."""
    found = []
    for first, body in neighbour.take():
        if first == 0xC0:
            found += [
                text[18:]
                for kind, text in decode_records(body)
                if kind == ROUTED and text[17] == CHANGED
            ]
        elif first >> 4 == 3:
            found.append(b"message")
    return found


def retained(key: bytes, sequence: int) -> bytes:
    """A retained message, newer than those with a lower number."""
    return message(key=key, sequence=sequence, stamp=Stamp(sequence << 16, 0))


def test_neighbours_hear_of_a_path_change_ahead_of_its_messages(world: World) -> None:
    """Retained messages take all links, in a circle, too, and overtake others there;
    once, until an answer of the origin has passed, behind which everything has to come over the
    tree's way."""
    origin, circle, behind = (Neighbour(world, number) for number in (101, 102, 103))
    for neighbour in (origin, circle, behind):
        neighbour.child()
        neighbour.known()
    key = origin_key(bid(101), 2_000)
    origin.send(retained(key, 1))
    changes(behind)
    circle.send(retained(key, 3))
    assert changes(behind) == [bid(101), b"message"]
    assert changes(circle) == [b"message"]
    assert bid(101) not in changes(origin)
    circle.send(retained(key, 5))
    assert changes(behind) == [b"message"]
    answer = (
        bid(103)
        + bid(101)
        + bytes((0, ENTRIES))
        + bytes(12)
        + bytes(4)
        + bytes(4)
        + b"\1"
        + bytes(6)
    )
    origin.send(ping((ROUTED, answer)))
    circle.send(retained(key, 7))
    assert changes(behind) == [bid(101), b"message"]
