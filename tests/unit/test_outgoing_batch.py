"""Packets of one chunk of a publisher, as they go over a link."""

from __future__ import annotations

import pytest

from broker.cluster.link.message_batch import LARGEST, MOST, MessageBatch, is_batch
from broker.wire import Publish, encode_packet
from broker.wire.reader import PacketReader
from broker.wire.varint import encode_varint
from tests.unit.link_harness import Neighbour, lone


def batches(data: bytes) -> list[MessageBatch]:
    """The batches among the packets that a neighbour was sent."""
    packets = [
        bytes((first,)) + encode_varint(len(body)) + body
        for first, body in PacketReader().feed(data)
    ]
    return [MessageBatch.read(p) for p in packets if p[0] >> 4 == 3 and is_batch(p)]


@pytest.mark.parametrize(("count", "size"), [(3 * MOST + 5, 5), (300, 700), (9, LARGEST)])
def test_a_long_run_of_equal_packets_goes_in_batches_that_neighbours_take(
    count: int, size: int
) -> None:
    world = lone(routing="flood")
    neighbour = Neighbour(world, 101)
    neighbour.child()
    client = world.connect("publisher", 4)
    client.send(encode_packet(Publish("t", b"x" * size), 4) * count)
    found = batches(bytes(neighbour.transport.written))
    assert all(
        batch.count <= MOST and (batch.count == 1 or len(batch.packets) <= LARGEST)
        for batch in found
    )
    numbers = [batch.sequence + n for batch in found for n in range(batch.count)]
    assert numbers == list(range(1, count + 1))
    assert all(len(list(batch.messages())) == batch.count for batch in found)
