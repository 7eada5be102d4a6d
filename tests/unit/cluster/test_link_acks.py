"""What neighbours have acknowledged of the replay log: what it keeps for them, and who waits for
that."""

from __future__ import annotations

from typing import Any

import pytest

from mqttree.broker.cluster.delivery.link_acks import PARTITION_GRACE_S, REPAIR_TIMEOUT_S
from mqttree.broker.cluster.delivery.replay_log import NEVER
from mqttree.broker.cluster.delivery.resync import DIRECTORY_WAIT_S
from mqttree.broker.cluster.link.control_records import PING, SEEN, decode_records
from mqttree.broker.cluster.link.version_vector import OriginWindow, encode_vector
from mqttree.broker.limits import Limits
from mqttree.broker.wire.packets import Publish
from tests.kit.link_harness import Neighbour, lone, ping
from tests.kit.node_harness import FakeClient, World

LOG = 100_000
"""Bytes of the log."""
SPARE = 20_000
"""Bytes beyond it that neighbours may lack before publishers wait."""
KEPT = 400_000
SIZE = 1_000
"""Bytes of a payload."""


class Answering(Neighbour):
    """A neighbour that acknowledges marks when a test says."""

    def marks(self) -> list[bytes]:
        """Numbers of the marks that came, each behind the messages that it is for."""
        bodies = [
            record
            for first, body in self.take()
            if first == 0xC0
            for record in decode_records(body)
        ]
        return [body for kind, body in bodies if kind == PING and body[0] >= 0xC0]

    def answer(self, *numbers: bytes) -> None:
        self.send(b"".join(b"\xd0\x04" + number for number in numbers))


SMALL = Limits(log_bytes=LOG, hold_log_bytes=SPARE, log_kept_bytes=KEPT, mark_bytes=SIZE)


@pytest.fixture
def limits() -> Limits:
    return SMALL


@pytest.fixture
def world(limits: Limits) -> World:
    world = lone(link_timeout=10_000.0, limits=limits)
    assert world.node.cluster.forwarder.log.limit == LOG
    return world


def joined(world: World, number: int = 101, **more: Any) -> Answering:
    neighbour = Answering(world, number, **more)
    neighbour.child()
    return neighbour


def publish(client: FakeClient, count: int, size: int = SIZE, **more: Any) -> None:
    for number in range(count):
        client.send(Publish("t", bytes(size), 1, packet_id=1 + number % 60_000, **more))


def test_the_log_keeps_what_is_not_acknowledged_and_publishers_wait(world: World) -> None:
    neighbour, client = joined(world), world.connect("c")
    log = world.node.cluster.forwarder.log
    while client.transport.reading:
        publish(client, 1)
    assert LOG + SPARE < log.size <= LOG + SPARE + 2 * SIZE
    assert log.begin == 0
    marks = neighbour.marks()
    assert marks
    neighbour.answer(*marks)
    assert not client.conn.held
    assert log.size <= LOG


def test_an_acknowledgement_covers_all_marks_before_it(world: World) -> None:
    neighbour, client = joined(world), world.connect("c")
    publish(client, LOG // SIZE)
    publish(client, LOG // SIZE)
    world.advance(0.0)
    marks = neighbour.marks()
    assert len(marks) > 1
    neighbour.answer(marks[-1])
    assert not neighbour.link().marks
    assert not client.conn.held


def test_a_message_larger_than_the_log_is_let_go_when_it_is_acknowledged(world: World) -> None:
    neighbour, client = joined(world), world.connect("c")
    publish(client, 1, 2 * LOG)
    assert client.conn.held
    world.advance(0.0)
    neighbour.answer(*neighbour.marks())
    assert not client.conn.held


def test_no_mark_overtakes_what_it_acknowledges(world: World) -> None:
    """A message is logged, and makes the log full, before it is sent: that is acknowledged by what
    comes behind it."""
    neighbour, client = joined(world), world.connect("c")
    publish(client, LOG // SIZE)
    publish(client, 1, LOG)
    neighbour.answer(*neighbour.marks())
    position = world.node.cluster.forwarder.log.end - LOG
    assert position - 2 * SIZE < world.node.cluster.forwarder.log.floor <= position
    world.advance(0.0)
    data = bytes(neighbour.transport.written)
    neighbour.answer(*neighbour.marks())
    assert not data.endswith(bytes(SIZE))
    assert world.node.cluster.forwarder.log.floor == world.node.cluster.forwarder.log.end


def test_a_neighbour_that_is_gone_holds_no_publisher(world: World) -> None:
    neighbour, client = joined(world), world.connect("c")
    publish(client, 2 * LOG // SIZE)
    assert client.conn.held
    world.node.connection_lost(neighbour.conn, "reset", world.now)
    world.settle()
    world.advance(PARTITION_GRACE_S + 1.1)
    assert not client.conn.held
    assert world.node.cluster.forwarder.log.floor == NEVER
    publish(client, LOG // SIZE)
    assert world.node.cluster.forwarder.log.size <= LOG


def test_the_log_waits_for_a_silent_neighbour_for_repair_time(world: World) -> None:
    """It is part of the tree and sends no SEEN: the log is kept for it for `REPAIR_TIMEOUT_S`."""
    client = world.connect("c")
    liar = Answering(world, 101)
    liar.child()
    world.node.cluster.forwarder.leave(liar.link())
    publish(client, 2 * LOG // SIZE)
    assert client.conn.held
    for _ in range(int(REPAIR_TIMEOUT_S) + 2):
        liar.take()
        liar.send(ping())
        world.advance(1.0)
    assert not client.conn.held


def test_messages_lost_to_a_link_in_repair_are_counted(world: World) -> None:
    client = world.connect("c")
    neighbour = joined(world)
    world.node.cluster.forwarder.leave(neighbour.link())
    for _ in range(5):
        publish(client, LOG // SIZE)
        # As if a publisher came from elsewhere, which does not wait.
        world.node.flow_control.release(world.node.cluster.acks)
    log = world.node.cluster.forwarder.log
    published = 5 * LOG // SIZE
    assert world.counters.replay_log_lost == published - len(log)
    neighbour.take()
    world.advance(1.1)
    assert [
        line for line in world.logged if f"{published - len(log)} messages for it are lost" in line
    ]
    neighbour.send(
        ping((SEEN, encode_vector({world.node.cluster.forwarder.key: OriginWindow(0, 0.0)})))
    )
    world.advance(DIRECTORY_WAIT_S)
    assert len(neighbour.messages()) == len(log)
    assert neighbour.link().live


@pytest.mark.parametrize("takes", [True, False])
def test_a_link_that_takes_nothing_is_closed(takes: bool) -> None:
    """It goes on talking; a slow one that goes on taking, however little, is left alone."""
    world = lone(limits=Limits(hold_link_bytes=10_000))
    neighbour, client = joined(world), world.connect("c")
    neighbour.transport.capacity = 1_000
    publish(client, 50)
    assert client.conn.held
    for _ in range(10):
        neighbour.send(ping())
        if takes:
            del neighbour.transport.written[:10]
        world.advance(1.0)
    assert neighbour.up == takes
    assert client.conn.held == takes
    assert world.counters.link_timeouts == (not takes)


def test_marks_are_answered_however_much_else_waits() -> None:
    """A neighbour that waits for one holds its publishers. Behind a large message that leaves a
    slow link nothing else does."""
    world = lone()
    neighbour = joined(world)
    neighbour.conn.pause()
    mark = (0xC0000001).to_bytes(4, "big")
    neighbour.send(ping((PING, mark)))
    for _ in range(1000):
        neighbour.send(ping((PING, bytes(4))))
    world.advance(1.0)
    assert neighbour.link().control_first().count(b"\xd0\x04" + mark) == 1


@pytest.mark.parametrize("limits", [SMALL.replace(log_large_bytes=10 * SIZE)])
def test_a_log_that_is_too_large_is_acknowledged_though_nothing_more_comes(world: World) -> None:
    """A neighbour joins that needs a part of an entry; no mark was asked for any more when room for
    large messages ended."""
    client, log = world.connect("c"), world.node.cluster.forwarder.log
    first = joined(world)
    for _ in range(4):
        publish(client, 1, 40 * SIZE)
        world.advance(0.0)
        first.answer(*first.marks())
    neighbour = joined(world, 102)
    assert log.size > LOG
    for _ in range(round(SMALL.log_large_s) + 2):
        world.advance(1.1)
        for one in (first, neighbour):
            one.answer(*one.marks())
    assert log.size <= LOG


@pytest.mark.parametrize("limits", [SMALL.replace(log_large_bytes=10 * SIZE)])
def test_room_for_large_messages_lets_no_client_publish_more(world: World) -> None:
    neighbour, client = joined(world), world.connect("c")
    log = world.node.cluster.forwarder.log
    for _ in range(2):
        while client.transport.reading:
            publish(client, 1, 10 * SIZE)
        assert LOG + SPARE < log.owed <= LOG + SPARE + 11 * SIZE
        world.advance(0.0)
        neighbour.answer(*neighbour.marks())
        assert not client.conn.held
    assert 2 * LOG < log.size <= SMALL.away_logs * LOG
