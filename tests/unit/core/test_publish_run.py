"""Runs of QoS 1 and 2 packets, on links and in the log, are the same as their packets one by one
(decisions 4 and 5)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.base.counters import Counters
from mqttree.broker.base.sequence_set import LAST, merge
from mqttree.broker.cluster.delivery.local_window import LocalWindow
from mqttree.broker.cluster.delivery.replay_log import NEVER, LogEntry, Looked, ReplayLog
from mqttree.broker.cluster.link.codec import (
    MARK,
    SIZE,
    decode_sequence,
    encode_for_links,
    encode_run_for_links,
    explicit,
    origin_key,
)
from mqttree.broker.cluster.link.control_records import SEEN
from mqttree.broker.cluster.link.version_vector import encode_vector
from mqttree.broker.core.message import Message, encode_halves
from mqttree.broker.core.publish_run import PublishRun
from mqttree.broker.core.qos_fast_path import FEWEST
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.wire import Packet, Property, Publish, encode_packet
from mqttree.broker.wire.decode import decode_packet
from mqttree.broker.wire.properties import encode_properties
from mqttree.broker.wire.reader import PacketReader
from mqttree.stp.bpdu import Role
from tests.kit.effort import examples
from tests.kit.link_harness import FAR, Neighbour, lone, message, ping, singles, unharmed
from tests.kit.node_harness import World
from tests.unit.cluster.test_replay_log import KEYS, missed
from tests.unit.core.test_qos_fast_path import settle_exchanges
from tests.unit.core.test_qos_fast_path import stream as published

KEY = origin_key(FAR, 2_000)
USER = encode_properties({Property.USER_PROPERTY: [("name", "value")]})[1:]
LONG = encode_properties({Property.USER_PROPERTY: [("k" * 60, "v" * 200)]})[2:]
LIKE_AN_ORIGIN = MARK + b"x" * 24

Told = list[tuple[bytes, int, bytes, int, bytes, bytes]]
"""(origin, sequence, topic, QoS, properties, payload) of messages on a link."""


def batch_of(
    version: int, qos: int, properties: bytes, payloads: list[bytes], topic: bytes = b"t"
) -> PublishRun:
    """A run as a publisher sends it."""
    section = properties if version == 5 else b""
    halves = [encode_halves(topic, payload, version, qos, False, section) for payload in payloads]
    data = b"".join(head + n.to_bytes(2, "big") + tail for n, (head, tail) in enumerate(halves, 5))
    head, tail = halves[0]
    payload = len(head) + 2 + len(tail) - len(payloads[0])
    return PublishRun(
        topic, qos, section, version, data, len(head), payload, len(data) // len(payloads)
    )


def told(data: bytes, before: tuple[bytes, int] = (b"", 0)) -> Told:
    """Read what goes over a link as its rules say: what names no origin continues its
    predecessor."""
    found: Told = []
    key, sequence = before
    packets = [one for packet in PacketReader().feed(data) for one in singles(*packet)]
    for first, body in packets:
        if first >> 4 != 3:
            continue
        start = 2 + int.from_bytes(body[:2], "big")
        at = start + (2 if first & 6 else 0)
        packet = decode_packet(first, body, 5)  # every one of them is MQTT 5
        assert isinstance(packet, Publish)
        section = encode_properties(packet.properties or None)
        section = section[1 if section[0] < 128 else 2 :]
        if section.startswith(MARK):
            key, sequence = section[6:22], decode_sequence(section[22:30])
            section = section[SIZE:]
        else:
            sequence += 1
        assert at < len(body)
        found.append((key, sequence, packet.topic.encode(), packet.qos, section, packet.payload))
    return found


@pytest.mark.parametrize("properties", [b"", USER, LONG])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_a_run_has_the_same_forms_as_its_packets(version: int, qos: int, properties: bytes) -> None:
    payloads = [b"%03d" % n for n in range(9)]
    batch = batch_of(version, qos, properties, payloads)
    section = batch.properties
    for wanted in (3, 4, 5):
        for lower in range(qos + 1):
            form = batch.form(wanted, lower)
            data = form.numbered(300) if lower else form.data
            halves = [
                encode_halves(b"t", payload, wanted, lower, False, section if wanted == 5 else b"")
                for payload in payloads
            ]
            numbers = [n.to_bytes(2, "big") if lower else b"" for n in range(300, 309)]
            assert data == b"".join(
                number.join(parts) for number, parts in zip(numbers, halves, strict=True)
            )
            assert form.count == 9
    assert [m.payload for m in batch.messages()] == payloads
    assert [m.payload for m in batch.part(2, 5).messages()] == payloads[2:5]
    one = batch.messages()[3]
    assert one.packet(version, qos, False, 8) == batch.data[3 * batch.size : 4 * batch.size]
    assert one.packet(9 - version, qos, False, 8) == batch.form(9 - version, qos).part(
        3, 4
    ).numbered(8)
    assert told(encode_run_for_links(batch.form(5, qos), KEY, 70)) == [
        (KEY, 70 + n, b"t", qos, section, payload) for n, payload in enumerate(payloads)
    ]


@pytest.mark.parametrize("size", [0, 90, 91, 92, 93, 94, 120, 16_344, 16_350, 16_374])
@pytest.mark.parametrize("properties", [b"", USER, LONG])
def test_a_packet_that_continues_is_made_one_that_does_not(size: int, properties: bytes) -> None:
    """At all lengths of length fields."""
    for qos in (0, 1, 2):
        head, tail = encode_halves(b"topic", b"x" * size, 5, qos, False, properties)
        packet = head + (b"\0\1" if qos else b"") + tail
        whole = Message(b"topic", b"x" * size, qos, False, properties, None, None)
        assert explicit(packet, KEY, 77) == encode_for_links(whole, KEY, 77, 0.0)


RUNS = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3)), min_size=1, max_size=8)
GAPS = st.lists(st.integers(1, 80), max_size=10, unique=True)


@settings(max_examples=examples(300), deadline=None)
@given(RUNS, st.integers(0, 80), GAPS)
def test_a_log_of_runs_gives_the_missed_messages(
    runs: list[tuple[int, int]], top: int, lacks: list[int]
) -> None:
    log = ReplayLog(Counters(), limits=Limits())
    sequence = 1
    kept: dict[int, bytes] = {}
    size = 0
    for count, skipped in runs:
        sequence += skipped
        payloads = [b"%03d" % n for n in range(sequence, sequence + count)]
        if count == 1:
            one = Message(b"t", payloads[0], 1, False, b"", None, None)
            entry = LogEntry(KEY, sequence, encode_for_links(one, KEY, sequence, 0.0), one, 0.0)
        else:
            batch = batch_of(5, 1, b"", payloads)
            entry = LogEntry.run(
                KEY, sequence, count, encode_run_for_links(batch, KEY, sequence), batch.size, 0.0
            )
        log.append(entry, None)
        size += entry.size
        kept |= {sequence + n: payload for n, payload in enumerate(payloads)}
        sequence += count
    assert log._bytes == size == sum(len(entry.data(0.0)) for entry in log._entries)
    window = LocalWindow(top, 0.0, None, Limits().max_gaps)
    window.gaps = [(n, n) for n in sorted(lacks) if n <= top]
    lacked = missed(log, {KEY: window})
    expected = [(KEY, n, b"t", 1, b"", kept[n]) for n in sorted(kept) if window.missing(n)]
    assert told(b"".join(entry.data(0.0) for entry in lacked)) == expected
    assert sum(entry.count for entry in lacked) == len(expected)
    assert missed(log, {origin_key(b"another.", 1): window}) == []


# ---------------------------------------------------------- what a publisher sends goes over a link

MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(("a", "a/b")),
        st.sampled_from((b"", b"1", b"p" * 200)),
        st.integers(0, 2),
        st.sampled_from((False, False, True)),
        st.sampled_from(
            (
                None,
                {Property.USER_PROPERTY: [("name", "value")]},
                {Property.USER_PROPERTY: [("o", "x" * 24)]},
                {Property.CORRELATION_DATA: b"\0"},
                {Property.MESSAGE_EXPIRY_INTERVAL: 60},
            )
        ),
        st.integers(1, 9),
    ),
    max_size=8,
)


def forwarded(fast: bool, version: int, chosen: list[Any], cuts: list[int]) -> tuple[Any, ...]:
    world = lone()
    world.node.fast = fast
    neighbour = Neighbour(world, 1)
    neighbour.child()
    publisher = world.connect("publisher", version=version)
    for topic in ("a", "a/b"):
        publisher.publish(topic, b"known", 0)
    neighbour.take()
    publisher.take()
    data = published(version, chosen)
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    for begin, end in zip([0, *places], [*places, len(data)], strict=True):
        if begin < end:
            publisher.chunks([data[begin:end]])
    stream = bytes(neighbour.transport.written)
    log = world.node.cluster.forwarder.log
    kept = [entry.data(world.now) for entry in log._entries]
    return (
        told(stream),
        told(b"".join(kept)),
        publisher.take(),
        sorted(world.session("publisher").incoming),
    )


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from((4, 5)), MESSAGES, st.lists(st.integers(0, 5000), max_size=3))
def test_a_run_goes_over_a_link_like_its_packets_one_by_one(
    version: int, chosen: list[Any], cuts: list[int]
) -> None:
    assert forwarded(True, version, chosen, cuts) == forwarded(False, version, chosen, [])


def test_a_run_is_one_piece_and_one_entry() -> None:
    world = lone()
    neighbour = Neighbour(world, 1)
    neighbour.child()
    publisher = world.connect("publisher", version=4)
    publisher.publish("a", b"known", 0)
    neighbour.take()
    publisher.chunks([published(4, [("a", b"x", 1, False, None, 50)])])
    assert len(world.node.cluster.forwarder.log) == 1
    assert len(neighbour.transport.written) == 50 * (2 + 3 + 2 + 1 + 1) + 30
    assert world.counters.forwarded == 51


# ------------------------------------------------------------------ what comes over a link

STEPS = st.lists(
    st.tuples(
        st.sampled_from((b"a", b"a/b", b"$x")),
        st.integers(0, 2),
        st.sampled_from((b"", USER, LONG, LIKE_AN_ORIGIN)),
        st.sampled_from((b"1", b"p" * 100)),
        st.integers(1, 9),  # messages
        st.integers(-12, 3),  # where they begin, seen from where the last ones ended
        st.booleans(),  # one by one
    ),
    max_size=10,
)


class Receiver:
    """A broker between two others, with subscribers of every kind."""

    def __init__(self) -> None:
        self.world = world = lone()
        self.source, self.other = Neighbour(world, 1), Neighbour(world, 2)
        self.source.child()
        self.other.child()
        self.subscribers = [
            world.connect("four", version=4),
            world.connect("five", version=5),
            world.connect("zero", version=4),
        ]
        self.subscribers += [
            world.connect("local", version=5),
            world.connect("slow", version=5, properties={0x21: 5}),
        ]
        for subscriber, qos in zip(self.subscribers, (2, 1, 0, 2, 2), strict=True):
            subscriber.subscribe("a" if subscriber is self.subscribers[3] else "#", qos=qos)
        self.other.take()

    def result(self) -> tuple[Any, ...]:
        """Everything that came out of it."""
        passed = told(bytes(self.other.transport.written))
        kept = told(
            b"".join(entry.data(0.0) for entry in self.world.node.cluster.forwarder.log._entries)
        )
        got: list[list[Packet]] = [settle_exchanges(subscriber) for subscriber in self.subscribers]
        window = self.world.node.cluster.forwarder.vector.get(KEY)
        counters = self.world.counters
        counted = (
            counters.duplicates,
            counters.received_link,
            counters.delivered,
            counters.forwarded,
        )
        return passed, kept, got, counted, window and (window.top, window.gaps)


@settings(max_examples=examples(200), deadline=None)
@given(STEPS, st.lists(st.integers(0, 5000), max_size=4))
def test_any_mixture_of_runs_and_duplicates_is_as_one_by_one(
    steps: list[Any], cuts: list[int]
) -> None:
    singles: list[bytes] = []
    pieces: list[bytes] = []
    sequence = 1
    for topic, qos, properties, payload, count, back, explicitly in steps:
        sequence = max(1, sequence + back)
        one = [
            message(
                topic, payload + b"%04d" % n, qos=qos, key=KEY, sequence=n, properties=properties
            )
            for n in range(sequence, sequence + count)
        ]
        singles += one
        if explicitly or not qos or properties == LIKE_AN_ORIGIN:
            pieces += one
        else:
            batch = batch_of(
                5,
                qos,
                properties,
                [payload + b"%04d" % n for n in range(sequence, sequence + count)],
                topic,
            )
            pieces.append(encode_run_for_links(batch, KEY, sequence))
        sequence += count
    reference, receiver = Receiver(), Receiver()
    for packet in singles:
        reference.source.send(packet)
    data = b"".join(pieces)
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    for begin, end in zip([0, *places], [*places, len(data)], strict=True):
        if begin < end:
            receiver.source.send(data[begin:end])
    assert receiver.source.up
    assert receiver.result() == reference.result()


CONTINUED = batch_of(5, 1, b"", [b"0", b"1", b"2"])
BAD = {
    "nothing before it": CONTINUED.data,
    "RETAIN": message(key=KEY) + b"\x33" + CONTINUED.data[1:],
    "DUP": message(key=KEY) + b"\x3a" + CONTINUED.data[1:],
    "QoS 3": message(key=KEY) + b"\x36" + CONTINUED.data[1:],
    "QoS 0 with properties": message(key=KEY)
    + encode_packet(Publish("t", b"", 0, False, False, None, {0x26: [("a", "b")]}), 5),
    "an expiry": message(key=KEY) + encode_packet(Publish("t", b"", 1, False, False, 1, {2: 5}), 5),
    "an alias": message(key=KEY)
    + encode_packet(Publish("t", b"", 1, False, False, 1, {0x23: 5}), 5),
    "a subscription identifier": message(key=KEY) + batch_of(5, 1, b"\x0b\x01", [b"0", b"1"]).data,
    "half an origin": message(key=KEY) + batch_of(5, 1, MARK, [b"0", b"1"]).data,
    "a wildcard": message(key=KEY) + batch_of(5, 1, b"", [b"0", b"1"], b"a/#").data,
    "no topic": message(key=KEY) + batch_of(5, 2, b"", [b"0", b"1"], b"").data,
    "beyond the last number": message(key=KEY, sequence=LAST - 2) + CONTINUED.data,
    "a run beyond the last number": encode_run_for_links(CONTINUED, KEY, LAST - 2),
    "a run of wildcards": encode_run_for_links(batch_of(5, 1, b"", [b"0", b"1"], b"+"), KEY, 1),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_runs_cost_the_link(name: str) -> None:
    world = lone()
    liar, honest = Neighbour(world, 1), Neighbour(world, 2)
    liar.child()
    honest.child()
    liar.send(BAD[name])
    assert not liar.up
    assert world.counters.duplicates == 0
    assert all(
        topic == b"t" and 0 < sequence < LAST
        for _, sequence, topic, *_ in told(bytes(honest.transport.written))
    )
    unharmed(world)


def test_messages_from_before_an_origin_was_met_are_not_delivered() -> None:
    """A run that is older in part: the rest of it is."""
    world = lone()
    source = Neighbour(world, 1)
    source.child()
    client = world.connect("c")
    client.subscribe("t", qos=1)
    old = origin_key(FAR, 1)  # began before the node: its first message need not be the first
    source.send(message(key=old, sequence=20, payload=b"met"))
    world.node.cluster.forwarder.vector[old].begin = 12
    window = world.node.cluster.forwarder.vector[old]
    window.gaps, window.history = [(10, 15)], []
    client.take()
    source.send(
        encode_run_for_links(batch_of(5, 1, b"", [b"%d" % n for n in range(10, 16)]), old, 10)
    )
    assert [p.payload for p in client.take() if isinstance(p, Publish)] == [b"13", b"14", b"15"]
    assert window.gaps == []


def test_a_neighbour_gets_the_part_that_it_lacks() -> None:
    world = lone()
    publisher = world.connect("publisher", version=4)
    first = Neighbour(world, 1)
    first.child()
    publisher.publish("a", b"known", 0)
    publisher.chunks([published(4, [("a", b"x", 1, False, None, 20)])])
    late = Neighbour(world, 2)
    late.bpdu(world.node.cluster.tree.root, Role.ROOT, Role.DESIGNATED, path_cost_us=50)
    late.take()
    window = LocalWindow(15, 0.0, None, Limits().max_gaps)
    window.gaps = [(3, 4), (8, 8)]
    late.send(ping((SEEN, encode_vector({world.node.cluster.forwarder.key: window}))))
    world.advance(1.0)
    stream = bytes(late.transport.written)
    assert [sequence for _, sequence, *_ in told(stream)] == [3, 4, 8, 16, 17, 18, 19, 20]
    assert world.counters.replayed == 8


def test_the_oldest_runs_make_room() -> None:
    log = ReplayLog(Counters(), 1000, limits=Limits())
    batch = batch_of(5, 1, b"", [b"x" * 80] * 5)
    data = encode_run_for_links(batch, KEY, 1)
    for number in range(5):
        log.append(LogEntry.run(KEY, 1 + 5 * number, 5, data, batch.size, 0.0), None)
    assert len(log) == 1000 // len(data) == log._bytes // len(data)
    log.forget_old(DEFAULTS.log_age_s + 1)
    assert (len(log), log._bytes) == (0, 0)


def test_few_packets_are_not_made_a_run() -> None:
    """Their cost is that of before."""
    world = World()
    client, publisher = world.connect("c"), world.connect("publisher", version=4)
    client.subscribe("a", qos=1)
    publisher.publish("a", b"known", 0)
    client.take()
    publisher.chunks([published(4, [("a", b"x", 1, False, None, FEWEST - 1)])])
    assert len([p for p in client.take() if isinstance(p, Publish)]) == FEWEST - 1


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=60),
    st.lists(st.tuples(st.integers(1, 80), st.integers(0, 12)), min_size=1, max_size=6),
    st.integers(0, 30),
)
def test_our_own_messages_are_found_from_the_oldest_on(
    said: list[tuple[bool, int]], asked: list[tuple[int, int]], gone: int
) -> None:
    """The same as by the way back, whatever has left the log."""
    kept = ReplayLog(Counters(), limits=Limits())
    own, other = 0, 0
    for ours, count in said:
        key, sequence = (KEYS[0], own + 1) if ours else (KEYS[1], other + 1)
        if count > 1:
            payloads = [b"%03d" % number for number in range(sequence, sequence + count)]
            batch = batch_of(5, 1, b"", payloads)
            kept.append(
                LogEntry.run(
                    key,
                    sequence,
                    count,
                    encode_run_for_links(batch, key, sequence),
                    batch.size,
                    10.0,
                ),
                None,
            )
        else:
            kept.append(
                LogEntry(
                    key,
                    sequence,
                    b"",
                    Message(b"t", b"%d" % sequence, 1, False, b"", None, None),
                    10.0,
                ),
                None,
            )
        own, other = (own + count, other) if ours else (own, other + count)
    for _ in range(min(gone, len(kept))):
        kept._gone += 1
        kept._entries.popleft()
    numbers = merge([(low, low + more) for low, more in asked])
    expected = kept.those({KEYS[0]: numbers}, 0.0)
    found = list(kept.own(KEYS[0], numbers, Looked()))
    assert [(e.sequence, e.count, e.data(0.0)) for e in found] == [
        (e.sequence, e.count, e.data(0.0)) for e in expected
    ]
    first = kept.first_of(KEYS[0])
    here = [
        n
        for e in kept.latest()
        if e.key == KEYS[0]
        for n in range(e.sequence, e.sequence + e.count)
    ]
    assert first == min(here, default=NEVER)
