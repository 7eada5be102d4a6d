"""Packets of one chunk of a publisher, as they go over a link."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.cluster.link.message_batch import MAX_BATCH_PACKETS, MAX_BYTES
from mqttree.broker.core.qos_fast_path import STRETCH, STRETCH_BYTES
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Publish
from mqttree.broker.wire.properties import Property
from tests.kit.effort import examples
from tests.kit.link_harness import Neighbour, lone
from tests.unit.core.test_publish_run import told


@pytest.mark.parametrize(
    ("count", "size"), [(3 * MAX_BATCH_PACKETS + 5, 5), (300, 700), (9, MAX_BYTES)]
)
def test_a_long_run_of_equal_packets_goes_in_batches_that_neighbours_take(
    count: int, size: int
) -> None:
    world = lone(routing="flood")
    neighbour = Neighbour(world, 101).child()
    world.connect("publisher", 4).send(encode_packet(Publish("t", b"x" * size), 4) * count)
    found = neighbour.batches()
    assert all(
        batch.count <= MAX_BATCH_PACKETS and (batch.count == 1 or len(batch.packets) <= MAX_BYTES)
        for batch in found
    )
    numbers = [batch.sequence + n for batch in found for n in range(batch.count)]
    assert numbers == list(range(1, count + 1))
    assert all(len(list(batch.messages())) == batch.count for batch in found)


def test_a_piece_of_the_largest_size_fits_into_a_batch() -> None:
    assert STRETCH <= MAX_BATCH_PACKETS
    assert STRETCH_BYTES <= MAX_BYTES


packets = st.tuples(
    st.sampled_from([0, 1, 1, 2, 2]),
    st.sampled_from(["a/1", "a/2", "b/1", "none/1", "none/2", "left/1"]),
    st.sampled_from([0, 5, 200, 200, 20_000]),
    st.sampled_from([*range(1, 7)] * 5 + [0]),
    st.booleans(),
    st.sampled_from([1, 1, 1, 2, 5]),
)
"""QoS, topic, bytes of the payload, packet identifier, with a User Property, how often."""


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(packets, min_size=1, max_size=25),
    st.sampled_from([4, 5]),
)
def test_a_chunk_does_what_its_packets_do_one_by_one(
    said: list[tuple[int, str, int, int, bool, int]], version: int
) -> None:
    """Whatever topics, sizes and identifiers follow each other: receivers here, other brokers and
    the publisher get the same."""
    pieces: list[bytes] = []
    for qos, topic, size, number, user, times in said:
        properties = {Property.USER_PROPERTY: [("k", "v")]} if user and version == 5 else None
        packet = encode_packet(
            Publish(topic, b"x" * size, qos, packet_id=7 if qos else None, properties=properties),
            version,
        )
        at = packet.index(topic.encode()) + len(topic)
        for more in range(times):
            identifier = (number + more if number else 0).to_bytes(2, "big")
            pieces.append(packet[:at] + identifier + packet[at + 2 :] if qos else packet)
    results = []
    for chunks in (pieces, [b"".join(pieces)]):
        world = lone(routing="flood")
        neighbour = Neighbour(world, 101).child()
        subscribers = []
        for name, filters, level in (("one", "a/+", 1), ("two", "+/1", 2), ("three", "b/#", 0)):
            subscriber = world.connect(name, version if level != 2 else 9 - version)
            subscriber.subscribe(filters, qos=level)
            subscribers.append(subscriber)
        neighbour.take()
        client = world.connect("publisher", version)
        client.chunks(chunks)
        link = told(bytes(neighbour.transport.written))
        results.append(
            (
                bytes(client.transport.written),
                [subscriber.take() for subscriber in subscribers],
                link,
                client.closed or world.session("publisher").incoming,
            )
        )
    assert results[0] == results[1]
