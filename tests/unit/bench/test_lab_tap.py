"""The tap: MQTT packets found in TCP segments, however these are cut, repeated or shuffled."""

from __future__ import annotations

import random
import struct
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from mqttree.bench.federator.codec import encode
from mqttree.bench.federator.messages import CoreAnnouncement, Data, Membership, PublicationId
from mqttree.bench.federator.settings import Codec
from mqttree.bench.lab.federator_traffic import FederatorTraffic
from mqttree.bench.lab.network import Meter
from mqttree.bench.lab.tap import MAX_HELD, Seen, Stream, Talk, Tap
from mqttree.bench.load import packets
from mqttree.broker.cluster.link.message_batch import encode_batch
from mqttree.broker.cluster.link.origin_keys import origin_key

HOSTS = (b"\x0a\x4d\x00\x01", b"\x0a\x4d\x00\x02")
PORTS = (40_000, 1883)


def numbered(publisher: int, sequence: int, size: int = 20) -> bytes:
    return struct.pack("!HHI", publisher, 0, sequence) + bytes(size - 8)


def segment(number: int, payload: bytes, flags: int = 0x10, back: bool = False) -> bytes:
    (source, target), (near, far) = (HOSTS, PORTS) if not back else (HOSTS[::-1], PORTS[::-1])
    tcp = struct.pack("!HHIIBBHHH", near, far, number & 0xFFFFFFFF, 0, 5 << 4, flags, 1000, 0, 0)
    return (
        struct.pack("!BBHHHBBH", 0x45, 0, 40 + len(payload), 0, 0, 64, 6, 0)
        + source
        + target
        + tcp
        + payload
    )


class Listener:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str, Seen]] = []
        self.tap = Tap(
            lambda source, target, seen: self.seen.append((source, target, seen)),
            frozenset((1883,)),
        )

    def open(self, first: int = 1000) -> None:
        self.tap.packet("a", "b", segment(first - 1, b"", 2))
        self.tap.packet("b", "a", segment(first - 1, b"", 0x12, back=True))


STREAM = b"".join(
    (
        packets.connect("x", 5),
        packets.publish("topic-tree/1", numbered(3, 5), 1, 5, user_properties=2)[0],
        packets.PINGREQ_BYTES,
        packets.publish("$TC", b"change", 0, 5)[0],
        packets.publish("t", b"short", 0, 5)[0],
    )
)
KINDS = [("connect", -1), ("publish", 5), ("pingreq", -1), ("other", -1), ("publish", -1)]


@given(
    st.lists(st.integers(1, len(STREAM) - 1), max_size=8, unique=True),
    st.randoms(use_true_random=False),
    st.integers(0, 2**32 - 1),
)
def test_packets_are_found_in_segments_in_any_order(
    cuts: list[int], source: random.Random, first: int
) -> None:
    listener = Listener()
    listener.open(first)
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [(first + a, STREAM[a:b]) for a, b in pairwise(edges)]
    pieces += [source.choice(pieces)]
    source.shuffle(pieces)
    for number, data in pieces:
        listener.tap.packet("a", "b", segment(number, data))
    assert [(seen.kind, seen.sequence) for _, _, seen in listener.seen] == KINDS
    assert sum(seen.size for _, _, seen in listener.seen) == len(STREAM)


def test_a_hole_in_a_large_window_is_given_up() -> None:
    listener = Listener()
    listener.open()
    words = [
        packets.publish("t", numbered(1, number, 1400), 0, 4)[0] for number in range(MAX_HELD + 1)
    ]
    at = [1000 + number * len(words[0]) for number in range(len(words))]
    for number, word in [*zip(at, words, strict=True)][1:]:
        listener.tap.packet("a", "b", segment(number, word))
    assert not listener.seen
    listener.tap.packet("a", "b", segment(at[0], words[0]))
    assert [seen.sequence for _, _, seen in listener.seen] == [
        *range(MAX_HELD + 1)
    ] and not listener.tap.broken


def test_the_answering_side_knows_the_version() -> None:
    listener = Listener()
    listener.open()
    listener.tap.packet("a", "b", segment(1000, packets.connect("x", 5)))
    listener.tap.packet(
        "b", "a", segment(1000, packets.publish("t", numbered(1, 7), 0, 5)[0], back=True)
    )
    source, target, seen = listener.seen[-1]
    assert (source, target, seen.kind, seen.publisher, seen.sequence) == ("b", "a", "publish", 1, 7)


def test_what_federators_publish_is_told_apart_by_its_topic() -> None:
    listener = Listener()
    listener.open()
    announced = encode(CoreAnnouncement(2, 7, 3, 4), Codec.BINCODE)
    answered = encode(Membership(2, 7, 4), Codec.BINCODE)
    routed = encode(Data(PublicationId(6, 300), 7, numbered(1, 9)), Codec.BINCODE)
    said = {
        "federator/core_ann/a/b": announced,
        "federator/memb_ann/a/b": answered,
        "federator/beacon/a/b": b"",
        "federator/routing/a/b": routed,
        "federator/core_ann/short": b"x",
        "federated/a/b": numbered(1, 9),
    }
    stream = b"".join(packets.publish(topic, load, 2, 5)[0] for topic, load in said.items())
    listener.tap.packet("a", "b", segment(1000, packets.connect("x", 5) + stream))
    assert [(each.kind, each.publisher, each.sequence) for _, _, each in listener.seen[1:]] == [
        ("core_ann", 2, 7),
        ("memb_ann", 2, 7),
        ("beacon", -1, -1),
        ("routing", 1, 9),
        ("core_ann", -1, -1),
        ("publish", 1, 9),
    ]


def test_rounds_of_announcements_and_ways_of_publications_are_counted() -> None:
    traffic = FederatorTraffic()
    at = 0
    for number, memberships in enumerate((7, 7, 6, 1)):
        for kind, packets_of_round in (("core_ann", 16), ("memb_ann", memberships)):
            for way in range(packets_of_round):
                at += 1
                traffic.seen(at, f"b{way}", "b", Seen(kind, 60, 2, number))
    for sequence, ways in enumerate((10, 10, 12)):
        for _ in range(ways):
            traffic.seen(at, "a", "b", Seen("routing", 130, 0, sequence))
    found = traffic.as_dict()
    assert found["rounds"] == {"core_ann": {"16": 3}, "memb_ann": {"7": 2, "6": 1}}, (
        "the last round may not be over"
    )
    assert found["publications"] == {"10": 2, "12": 1}
    assert found["packets"] == {"core_ann": 64, "memb_ann": 21, "routing": 32}
    assert found["bytes"]["routing"] == 32 * 130
    assert (found["core_ns"], found["mesh_ns"]) == (1, 16 + 7)


def test_meters_know_data_of_federators_from_their_signalling() -> None:
    meter = Meter(None)
    for kind, size in (("core_ann", 60), ("memb_ann", 50), ("routing", 130), ("publish", 70)):
        meter.seen("a", "b", Seen(kind, size, 1, 1))
    assert (meter.control["a", "b"], meter.data["a", "b"]) == (110, 200)


def test_only_the_head_of_a_large_payload_is_kept() -> None:
    seen: list[Seen] = []
    stream = Stream(Talk(), seen.append)
    packet = packets.publish("t", numbered(2, 9, 3_000_000), 0, 4)[0] + packets.PINGREQ_BYTES
    for at in range(0, len(packet), 1448):
        stream.feed(packet[at : at + 1448])
    assert [(each.kind, each.size, each.sequence) for each in seen] == [
        ("publish", len(packet) - 2, 9),
        ("pingreq", 2, -1),
    ]
    assert len(stream._data) == 0


def test_a_stream_that_is_no_mqtt_is_given_up() -> None:
    stream = Stream(Talk(), lambda _: None)
    stream.feed(b"\x30\xff\xff\xff\xff\xff\xff")
    assert stream.broken
    stream.feed(b"anything")


@example(b"0\x00")
@example(b"0\x00\x01")
@example(b"\x10\x02\xff\xff")
@given(st.binary(max_size=80))
def test_any_packet_is_survived(data: bytes) -> None:
    listener = Listener()
    listener.open()
    listener.tap.packet("a", "b", data)
    listener.tap.packet("a", "b", segment(1000, data))


@given(st.lists(st.integers(1, 30), max_size=4), st.sampled_from([0, 1]))
def test_the_packets_of_a_batch_count_one_by_one(cuts: list[int], qos: int) -> None:
    each = [packets.publish(f"t/{n}", numbered(n, 7 + n), qos, 4)[0] for n in range(3)]
    batch = encode_batch(origin_key(b"a-broker", 1), 5, b"".join(each), 3, 4, qos)
    stream = packets.connect("x", 5) + batch + packets.PINGREQ_BYTES
    seen: list[Seen] = []
    reader = Stream(Talk(), seen.append)
    for begin, end in pairwise(sorted({0, *(cut * 5 for cut in cuts), len(stream)})):
        reader.feed(stream[begin:end])
    assert [one.kind for one in seen] == ["connect", *["publish"] * 3, "pingreq"]
    assert [(one.publisher, one.sequence) for one in seen[1:4]] == [(0, 7), (1, 8), (2, 9)]
    assert sum(one.size for one in seen) == len(stream)
