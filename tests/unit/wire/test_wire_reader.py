from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mqttree.broker.wire.errors import MalformedPacket, ProtocolViolation, WireError
from mqttree.broker.wire.reader import PacketReader
from mqttree.broker.wire.varint import encode_varint
from tests.kit.effort import examples

BODIES = st.lists(
    st.tuples(
        st.integers(0, 255),
        st.one_of(st.binary(max_size=5), st.sampled_from([127, 128, 300, 16384]).map(bytes)),
    ),
    max_size=5,
)


@settings(max_examples=examples(200), deadline=None)
@example([(0x30, bytes(300)), (0x32, bytes(16_384)), (0x34, b"x")], [1])
@given(BODIES, st.lists(st.integers(1, 200), min_size=1, max_size=10))
def test_any_cutting_gives_the_same_packets(
    bodies: list[tuple[int, bytes]], sizes: list[int]
) -> None:
    stream = b"".join(bytes((first,)) + encode_varint(len(body)) + body for first, body in bodies)
    reader = PacketReader()
    got: list[tuple[int, bytes]] = []
    pos = turn = 0
    while pos < len(stream):
        size = sizes[turn % len(sizes)]
        got += reader.feed(stream[pos : pos + size])
        pos, turn = pos + size, turn + 1
    assert got == bodies
    assert reader.feed(b"") == []


def test_a_large_packet_byte_by_byte_costs_linear_work() -> None:
    """The buffer is extended in place: no call may allocate anything like the size of what was
    received before."""
    size = 300_000
    reader = PacketReader()
    reader.feed(b"\x30" + encode_varint(size) + bytes(size // 2))
    tracemalloc.start()
    try:
        grown = 0
        for _ in range(2000):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            reader.feed(b"x")
            grown += tracemalloc.get_traced_memory()[1] - before > size // 4
    finally:
        tracemalloc.stop()
    assert grown <= 5, "the buffer may be moved a few times when it grows, not for each byte"
    (packet,) = reader.feed(bytes(size - size // 2 - 2000))
    assert len(packet[1]) == size


@pytest.mark.parametrize("cut", range(6))
def test_remaining_length_of_five_bytes(cut: int) -> None:
    reader = PacketReader()
    data = b"\x30\xff\xff\xff\xff\x01"
    with pytest.raises(MalformedPacket):
        reader.feed(data[:cut])
        reader.feed(data[cut:])
    with pytest.raises(MalformedPacket):
        reader.feed(b"\xc0\x00")


def test_limit_counts_the_whole_packet_and_needs_only_its_header() -> None:
    reader = PacketReader(max_packet_size=10)
    assert reader.feed(b"\x30\x08" + bytes(8)) == [(0x30, bytes(8))]
    with pytest.raises(ProtocolViolation) as caught:
        reader.feed(b"\x30\x09")
    assert caught.value.reason == 0x95
    assert "11" in caught.value.message
    assert "10" in caught.value.message


def test_packets_before_a_fault_are_handed_over_with_it() -> None:
    reader = PacketReader(max_packet_size=100)
    with pytest.raises(WireError) as caught:
        reader.feed(b"\xc0\x00\xd0\x00\x30\xff\x01")
    assert caught.value.packets == [(0xC0, b""), (0xD0, b"")]
    with pytest.raises(WireError) as caught:
        reader.feed(b"\xc0\x00")
    assert caught.value.packets == []
