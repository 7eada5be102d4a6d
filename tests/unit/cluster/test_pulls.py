"""What other brokers than the origin are asked for (pulls.py): malformed messages are harmless."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from mqttree.broker.base.sequence_set import LAST, MAX_GAPS
from mqttree.broker.cluster.delivery.answers import PART, Asked
from mqttree.broker.cluster.delivery.incoming_batch import IncomingBatches
from mqttree.broker.cluster.delivery.local_window import LocalWindow
from mqttree.broker.cluster.delivery.pull_messages import (
    NO_TIMES,
    PULL,
    EntriesPart,
    Pull,
    decode_entries_part,
    decode_pull,
)
from mqttree.broker.cluster.delivery.pulls import (
    MAX_PAUSE_S,
    OFFER_INTERVAL,
    decode_offer,
    encode_offer,
)
from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
from mqttree.broker.cluster.link.message_batch import MessageBatch
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.core.message import Message
from mqttree.broker.limits import Limits
from mqttree.broker.node import Node
from mqttree.broker.wire.errors import MalformedPacket, WireError
from tests.kit.link_harness import Neighbour, entry_of, lone, pull_body, some_link
from tests.kit.node_harness import World

FAR = b"far-away"
KEY = origin_key(FAR, 7)
PLACE = (FAR, KEY, False)
LINK = some_link()


def part(
    node: Node, data: bytes, *, position: int = 0, last: bool = True, more: bool = False, top: int
) -> EntriesPart:
    """A part of an answer to the question that is open."""
    number = node.cluster.pulls.open[PLACE].number
    return EntriesPart(number, position, last, more, top, 0, data)


def take(node: Node, part: EntriesPart, sender: bytes = FAR) -> None:
    node.cluster.gap_recovery._questions._answer_received(
        sender, part.encode(bytes(12)), node.now, LINK
    )


def offered(node: Node, *ranges: tuple[int, int]) -> LocalWindow:
    """Have these numbers offered to a broker that knows the origin."""
    window = LocalWindow(0, node.now, None, Limits().max_gaps)
    node.cluster.forwarder.vector[KEY] = window
    node.cluster.pulls._offer_received(FAR, encode_offer(KEY, list(ranges)), node.now)
    return window


@pytest.fixture
def node() -> Node:
    return World(discovery="static", max_packet_size=1000).node


def test_encoded_messages_decode_to_the_same() -> None:
    for ranges in ([], [(1, 1)], [(1, 5), (7, LAST)]):
        assert decode_offer(encode_offer(KEY, ranges)) == (KEY, ranges)
        times = b"\2" + bytes(5) + b"\1" + bytes(5) + b"\2"
        pull = Pull(b"s" * 12, 7, KEY, True, times, ranges)
        assert decode_pull(pull.encode()) == pull
        assert pull.times_s() == [0.001, 0.002]
    for gone in (0, 3):
        answer = EntriesPart(7, 1, True, False, 9, gone, b"data")
        assert decode_entries_part(answer.encode(b"s" * 12)) == answer


BACKWARDS = b"\0\0\0\0\0\2" + b"\0\0\0\0\0\1"


@pytest.mark.parametrize(
    "body", [b"", bytes(11), bytes(13), bytes(24), bytes(12) + BACKWARDS, bytes(12 + 12 * 65)]
)
def test_malformed_offers_are_refused(body: bytes) -> None:
    with pytest.raises(MalformedPacket):
        decode_offer(body)


@pytest.mark.parametrize(
    "behind",
    [
        b"",
        b"\1",
        b"\xff" + bytes(600),
        *(NO_TIMES + x for x in (b"x", BACKWARDS, bytes(12 * (MAX_GAPS + 1)))),
    ],
)
def test_malformed_questions_are_refused(behind: bytes) -> None:
    with pytest.raises(MalformedPacket):
        decode_pull(pull_body(KEY)[:29] + behind)
    with pytest.raises(MalformedPacket):
        decode_pull(pull_body(KEY)[:28])


@pytest.mark.parametrize(
    "data",
    [b"", bytes(3), bytes(4) + b"\x32", bytes(4) + b"\x32\x05\0\1a", b"\0\0\0\x20" + bytes(20)],
)
def test_malformed_answers_are_dropped(node: Node, data: bytes) -> None:
    """They are dropped, and what is missing goes on missing, and may be offered again."""
    pulls, now = node.cluster.pulls, node.now
    window = offered(node, (1, 5))
    pulls._offer_received(FAR, encode_offer(origin_key(b"unknown!", 1), [(1, 5)]), now)
    assert list(pulls.open) == [PLACE]
    # Its beginning did not come.
    take(node, part(node, data, position=5, top=5))
    # Another broker, and another number.
    take(node, part(node, data, top=5), b"somebody")
    take(node, part(node, data, top=5)._replace(number=77))
    pull = pulls.open[PLACE]
    assert pull.number
    with suppress(WireError):
        take(node, part(node, data, top=5))
    assert window.top == 0
    assert pull.size == 0
    pulls.tick(now + OFFER_INTERVAL)
    assert not pulls.open
    offered(node, (1, 5))
    assert list(pulls.open) == [PLACE]


def test_an_answer_of_several_parts_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    sender, receiver = World(discovery="static").node, World(discovery="static").node
    now = sender.now
    sent = Message(b"large", bytes(3 * PART), 1, False, b"", None, None)
    entry = entry_of(KEY, 3, sent, now)
    bodies: list[bytes] = []
    monkeypatch.setattr(
        UnicastBus, "send", lambda _, receiver, kind, body, **how: bodies.append(body)
    )
    offered(receiver, (3, 3))
    pull = decode_pull(bodies.pop())
    assert pull == Pull(pull.state, pull.number, KEY, False, NO_TIMES, [(3, 3)])
    sender.cluster.answers._send(Asked(FAR, pull, None, own=False), [], [entry], 5, now, more=True)
    assert len(bodies) == 4

    taken: list[bytes] = []

    def received(self: IncomingBatches, link: Any, data: bytes, body: int, now: float) -> None:
        taken.extend(message.payload for _, message in MessageBatch.read(data).messages(now))

    monkeypatch.setattr(IncomingBatches, "received", received)
    for body in bodies[:4]:
        take(receiver, decode_entries_part(body))
    assert taken == [sent.payload]


def test_numbers_that_an_answer_covers_are_not_asked_for_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers between those that it brings were wanted by no subscriber here: a broker that asked
    for them went on asking for ever. The other broker hears that nothing is missing."""
    pulls = node.cluster.pulls
    asked: list[Any] = []
    monkeypatch.setattr(
        UnicastBus,
        "send",
        lambda _, receiver, kind, body, **how: asked.append((kind, decode_pull(body).lacks)),
    )
    offered(node, (1, 9))
    take(node, part(node, bytes(4), more=True, top=5))
    take(node, part(node, bytes(4), more=True, top=9))
    assert asked == [(PULL, [(1, 9)]), (PULL, [(6, 9)]), (PULL, [])]
    take(node, part(node, bytes(4), top=LAST - 1))
    assert not pulls.open and len(asked) == 3


def test_a_broker_that_does_not_answer_is_asked_again_for_a_while(node: Node) -> None:
    """Ever more rarely, with the same number: over a slow link an answer may come late."""
    pulls, now = node.cluster.pulls, node.now
    offered(node, (1, 9))
    first, times = part(node, bytes(4), top=9), 0
    while PLACE in pulls.open:
        assert part(node, bytes(4), top=9) == first
        times += 1
        pulls.tick(now + times)
    assert 0 <= times - node.limits.log_age_s <= MAX_PAUSE_S


def test_what_has_come_another_way_is_not_asked_for_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = lone()
    node, pulls = world.node, world.node.cluster.pulls
    neighbour = Neighbour(world, 1)
    window = LocalWindow(9, node.now, None, Limits().max_gaps)
    window.gaps = [(1, 5)]
    node.cluster.forwarder.vector[KEY] = window
    pulls.want(KEY, [(1, 9)], node.now)
    (place,) = pulls.open
    world.advance(0.01)
    (body,) = neighbour.routed(PULL)
    assert decode_pull(body).lacks == [(1, 5)] and decode_pull(body).behind
    pulls.want(KEY, [(4, 9)], node.now)
    world.advance(0.01)
    assert not neighbour.routed(PULL), "it is being asked"
    monkeypatch.setattr(type(node.dispatcher), "waiting", node.limits.hold_queued)
    answer = EntriesPart(pulls.open[place].number, 0, True, True, 2, 0, bytes(4))
    pulls.part_received(pulls.open[place], answer, node.now, neighbour.link())
    window.gaps = []
    pulls.want(KEY, [(1, 9)], node.now)
    assert not pulls.open
    monkeypatch.setattr(type(node.dispatcher), "waiting", 0)
    world.advance(0.1)
    assert not pulls.open and not neighbour.routed(PULL)
