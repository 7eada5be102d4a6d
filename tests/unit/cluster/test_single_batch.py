"""Batches of one QoS 0 message, which a broker takes in fewer steps than any other batch."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.base.sequence_set import LAST
from mqttree.broker.cluster.delivery.incoming_batch import IncomingBatches
from mqttree.broker.cluster.link.message_batch import encode_batch
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Publish
from mqttree.broker.wire.properties import Property
from tests.kit.link_harness import Neighbour, bid, lone

KEY = origin_key(bid(101), 2_000)

PROPERTIES = (
    {},
    {Property.USER_PROPERTY: [("k", "v")]},
    {Property.USER_PROPERTY: [("k", "v" * 200)]},
    {Property.MESSAGE_EXPIRY_INTERVAL: 5},
    {Property.TOPIC_ALIAS: 1},
    {Property.SUBSCRIPTION_IDENTIFIER: [1]},
)

COUNTED = ("delivered", "duplicates", "expired", "forwarded", "link_garbage", "received_link")


def taken(data: bytes) -> list[object]:
    """What a broker makes of bytes of a neighbour: what it counts, and what it sends to clients and
    to another neighbour."""
    world = lone(routing="flood")
    one, other = Neighbour(world, 101).child(), Neighbour(world, 102).child()
    clients = []
    for number, (version, topic_filter) in enumerate(
        ((4, "a/#"), (5, "b/#"), (4, "c/d"), (5, "#"))
    ):
        client = world.connect(f"c{number}", version)
        if number < 3:
            client.subscribe(topic_filter)
        clients.append(client)
    other.take()
    for _ in range(2):  # a duplicate the second time
        if one.up:
            one.send(data)
    counters = world.node.counters
    return [
        one.up,
        bytes(other.transport.written),
        [bytes(client.transport.written) for client in clients],
        [getattr(counters, name) for name in COUNTED],
    ]


@settings(deadline=None)
@given(
    st.sampled_from(["a/b", "b/c", "c/d", "none", "$SYS/x", "", "a/+", "\u00e4" * 100]),
    st.sampled_from([0, 1, 100, 150, 20_000]),
    st.sampled_from(PROPERTIES),
    st.sampled_from([4, 5]),
    st.sampled_from([1, 2, 1 << 40, LAST - 1, LAST, 0]),
    st.sampled_from([0, 0, 0, 1, -1]),
    st.none() | st.tuples(st.integers(0, 120), st.integers(0, 255)),
)
def test_a_batch_of_one_message_is_taken_as_any_other(
    topic: str,
    size: int,
    properties: dict[Property, object],
    version: int,
    sequence: int,
    more: int,
    altered: tuple[int, int] | None,
) -> None:
    said = properties if version == 5 else None
    packet = encode_packet(Publish(topic, b"x" * size, properties=said), version)
    packet = packet + bytes(more) if more > 0 else packet[: len(packet) + more]
    data = bytearray(encode_batch(KEY, sequence, packet, 1, version, 0))
    if altered is not None:
        data[altered[0] % len(data)] = altered[1]
    short = taken(bytes(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IncomingBatches, "_take_single", lambda *_: False)
        assert taken(bytes(data)) == short
