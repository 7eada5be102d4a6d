"""PUBLISH on a link: both readers read what is written, and refuse the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.counters import Counters
from mqttree.broker.cluster.link.codec import (
    choice_of,
    encode_for_links,
    expiry_of,
    explicit,
    origin_key,
    payload_at,
    read_link_packets,
    with_expiry,
)
from mqttree.broker.cluster.link.publish_reader import PublishReader
from mqttree.broker.core.message import Message, Stamp, encode_halves
from mqttree.broker.core.publish_run import PublishRun
from mqttree.broker.core.receiver_assignment import ReceiverAssignment
from mqttree.broker.wire.errors import WireError
from mqttree.broker.wire.varint import read_length
from mqttree.routing.group_selection import GROUP_ID_SIZE

KEY = origin_key(b"an-origi", 7)
NOW = 100.0

Read = tuple[bytes, int, Message, ReceiverAssignment | None]


class Batches:
    """No batch is among what is read."""

    def received(self, link: str, data: bytes, now: float) -> None:
        raise AssertionError


class Taker:
    """Takes what a reader reads."""

    def __init__(self) -> None:
        self.found: list[Read] = []
        self.reader: PublishReader[str] = PublishReader("link", self, Batches(), self, Counters())

    def check(
        self, topic: bytes, first: int, sequence: int, count: int, often: bool = True
    ) -> None:
        pass

    def accept(self, key: bytes, first: int, count: int, now: float, late: bool = True) -> int:
        return count

    def received(
        self,
        link: str,
        message: Message,
        key: bytes,
        sequence: int,
        data: bytes,
        now: float,
        choice: ReceiverAssignment | None = None,
    ) -> None:
        self.found.append((key, sequence, message, choice))

    def restored(
        self, link: str, message: Message, key: bytes, sequence: int, data: bytes, now: float
    ) -> None:
        self.found.append((key, sequence, message, None))

    def run_received(
        self, link: str, batch: PublishRun, key: bytes, sequence: int, data: bytes, now: float
    ) -> None:
        for number, message in enumerate(batch.messages(), sequence):
            self.found.append((key, number, message, None))

    def take(self, data: bytes) -> list[Read]:
        """Everything in some packets."""
        position = 0
        while position < len(data):
            length, body = read_length(data, position + 1)
            position = self.reader.read(data, position, body, body + length, NOW)
        return self.found


def told(found: list[Read]) -> list[tuple[Any, ...]]:
    """What there is to compare."""
    return [
        (
            key,
            sequence,
            (message.topic, message.payload, message.qos, message.retain, message.properties),
            message.expires_at,
            message.stamp if message.retain else None,
            None if choice is None else choice.encode(),
        )
        for key, sequence, message, choice in found
    ]


@st.composite
def messages(draw: Any) -> tuple[Message, ReceiverAssignment | None]:
    retain = draw(st.booleans())
    message = Message(
        draw(st.sampled_from((b"t", b"a/b"))),
        draw(st.binary(max_size=5)),
        draw(st.integers(0, 2)),
        retain,
        draw(st.sampled_from((b"", b"\x26\0\1a\0\2bc", b"\x01\1", b"\x03\0\1x"))),
        draw(st.none() | st.integers(1, 1000).map(lambda left: NOW + left)),
        None,
    )
    if retain:
        message.stamp = Stamp(draw(st.integers(0, 1 << 60)), draw(st.integers(0, 1 << 47)))
    entries = [(b"12345678" + bytes(4), bytes(GROUP_ID_SIZE))]
    choice = draw(st.none() | st.just(entries).map(ReceiverAssignment))
    return message, choice


@given(st.lists(messages(), min_size=1, max_size=5), st.integers(1, 1 << 40))
def test_both_readers_read_what_is_written(
    written: list[tuple[Message, ReceiverAssignment | None]], first: int
) -> None:
    expected: list[Read] = []
    data = b""
    for sequence, (message, choice) in enumerate(written, first):
        text = b"" if choice is None else choice.encode()
        packet = encode_for_links(message, KEY, sequence, NOW, text)
        expected.append((KEY, sequence, message, choice))
        found = choice_of(packet)
        assert (found and found.encode()) == (text or None)
        left = None if message.expires_at is None else round(message.expires_at - NOW)
        assert expiry_of(packet) == left
        if left is not None:
            assert expiry_of(with_expiry(packet, left + 1)) == left + 1
        assert packet[payload_at(packet) :] == message.payload
        data += packet
    assert told(Taker().take(data)) == told(expected)
    assert told([read[:4] for read in read_link_packets(data, NOW)]) == told(expected)


@given(
    st.integers(1, 2),
    st.lists(st.sampled_from((b"a", b"b", b"cd")), min_size=1, max_size=6),
)
def test_both_readers_read_packets_that_continue_a_run(qos: int, payloads: list[bytes]) -> None:
    packets = [
        b"\0\1".join(encode_halves(b"t", payload, 5, qos, False, b"")) for payload in payloads
    ]
    data = explicit(packets[0], KEY, 5) + b"".join(packets[1:])
    expected = [
        (KEY, sequence, Message(b"t", payload, qos, False, b"", None, None), None)
        for sequence, payload in enumerate(payloads, 5)
    ]
    assert told(Taker().take(data)) == told(expected)
    assert told([read[:4] for read in read_link_packets(data, NOW)]) == told(expected)


@given(messages(), st.data())
def test_a_truncated_publish_is_refused(
    written: tuple[Message, ReceiverAssignment | None], data: Any
) -> None:
    message, choice = written
    packet = encode_for_links(message, KEY, 1, NOW, b"" if choice is None else choice.encode())
    # A body without its end: the length is right, the fields are not whole.
    _, body = read_length(packet, 1)
    short = packet[body : data.draw(st.integers(body, payload_at(packet) - 1))]
    cut = packet[:1] + bytes((len(short),)) + short
    if len(short) < 128:
        for read in (Taker().take, lambda cut: list(read_link_packets(cut, NOW))):
            with pytest.raises(WireError):
                read(cut)
