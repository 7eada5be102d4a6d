"""What origins offer, with flooding, to brokers that were away: malformed messages are harmless."""

from __future__ import annotations

from binascii import a2b_base64
from contextlib import suppress

import pytest

from mqttree.broker.base.sequence_set import LAST
from mqttree.broker.cluster.delivery.answers import PART
from mqttree.broker.cluster.delivery.forwarder import Forwarder
from mqttree.broker.cluster.delivery.local_window import LocalWindow
from mqttree.broker.cluster.delivery.tail_offers import (
    TAIL_LACK,
    TAIL_OFFER,
    TAIL_PIECE,
    decode_ranges,
    encode_ranges,
)
from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.core.message import Message
from mqttree.broker.limits import Limits
from mqttree.broker.wire.errors import MalformedPacket, WireError
from tests.kit.link_harness import entry_of, some_link
from tests.kit.node_harness import World

FAR = b"far-away"
KEY = origin_key(FAR, 7)
TOP = (5).to_bytes(6, "big")


LINK = some_link()


def test_encoded_ranges_decode_to_the_same() -> None:
    for ranges in ([], [(1, 1)], [(1, 5), (7, LAST)]):
        assert decode_ranges(encode_ranges(KEY, ranges)) == (KEY, ranges)


BACKWARDS = bytes(12) + b"\0\0\0\0\0\2" + b"\0\0\0\0\0\1"


@pytest.mark.parametrize(
    "body", [b"", bytes(11), bytes(13), bytes(24), BACKWARDS, bytes(12 + 12 * 65)]
)
def test_malformed_ranges_are_refused(body: bytes) -> None:
    with pytest.raises(MalformedPacket):
        decode_ranges(body)


@pytest.mark.parametrize(
    "data",
    [b"", bytes(3), bytes(4) + b"\x32", bytes(4) + b"\x32\x05\0\1a", b"\0\0\0\x20" + bytes(20)],
)
def test_malformed_pieces_are_dropped(data: bytes) -> None:
    """They are dropped, and what is missing goes on missing."""
    node = World(discovery="static").node
    late, now = node.cluster.tail_offers, node.now
    window = node.cluster.forwarder.vector[KEY] = LocalWindow(0, now, None, Limits().max_gaps)
    late._offer_received(FAR, encode_ranges(KEY, [(1, 5)]), now)
    late._offer_received(FAR, encode_ranges(origin_key(b"unknown!", 1), [(1, 5)]), now)
    assert list(late._asked) == [(FAR, KEY)]
    head = a2b_base64(KEY) + (1).to_bytes(4, "big")
    with pytest.raises(MalformedPacket):
        late._piece_received(FAR, head, now, LINK)
    # Its beginning did not come.
    late._piece_received(FAR, head + (5).to_bytes(4, "big") + b"\1" + TOP + data, now, LINK)
    assert window.top == 0
    with suppress(WireError):
        late._piece_received(FAR, head + bytes(4) + b"\1" + TOP + data, now, LINK)
    assert window.top == 0
    assert late._coming == 0
    assert {TAIL_OFFER, TAIL_LACK, TAIL_PIECE}.isdisjoint({13, 14, 16})


def test_pieces_that_never_end_are_forgotten() -> None:
    node = World(discovery="static", max_packet_size=1000).node
    late, now = node.cluster.tail_offers, node.now
    node.cluster.forwarder.vector[KEY] = LocalWindow(0, now, None, Limits().max_gaps)
    late._offer_received(FAR, encode_ranges(KEY, [(1, 5)]), now)
    for index in range(40):
        head = a2b_base64(KEY) + (1).to_bytes(4, "big") + index.to_bytes(4, "big")
        late._piece_received(FAR, head + b"\0" + TOP + bytes(60_000), now, LINK)
    assert late._coming < 1_200_000


def test_a_piece_of_several_parts_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part has the head that the receiver takes off, so that what it joins is the piece."""
    sender, receiver = World(discovery="static").node, World(discovery="static").node
    now = sender.now
    sent = Message(b"large", bytes(3 * PART), 1, False, b"", None, None)
    entry = entry_of(KEY, 3, sent, now)
    parts: list[bytes] = []
    monkeypatch.setattr(
        UnicastBus, "send", lambda _, receiver, kind, body, **how: parts.append(body)
    )
    sender.cluster.tail_offers._send(FAR, KEY, [(1, 5)], [entry], 5)
    assert len(parts) == 4

    taken: list[Message] = []
    monkeypatch.setattr(
        Forwarder, "received", lambda _, link, entry, message, *rest: taken.append(message)
    )
    late = receiver.cluster.tail_offers
    receiver.cluster.forwarder.vector[KEY] = LocalWindow(0, now, None, Limits().max_gaps)
    late._offer_received(FAR, encode_ranges(KEY, [(3, 3)]), now)
    for part in parts[:4]:
        late._piece_received(FAR, part, now, LINK)
    assert [message.payload for message in taken] == [sent.payload]


def test_numbers_that_a_piece_covers_are_not_asked_for_again() -> None:
    """Numbers between those that it brings were wanted by no subscriber here: a broker that asked
    for them went on asking for ever."""
    node = World(discovery="static").node
    late, now = node.cluster.tail_offers, node.now
    node.cluster.forwarder.vector[KEY] = LocalWindow(0, now, None, Limits().max_gaps)
    late._offer_received(FAR, encode_ranges(KEY, [(1, 9)]), now)
    late._piece_received(FAR, a2b_base64(KEY) + bytes(8) + b"\1" + TOP + bytes(4), now, LINK)
    assert late._asked[FAR, KEY] == [(6, 9)]
    late._piece_received(
        FAR, a2b_base64(KEY) + bytes(8) + b"\1" + (9).to_bytes(6, "big") + bytes(4), now, LINK
    )
    assert not late._asked
