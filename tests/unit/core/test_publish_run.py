"""Runs of QoS 1 and 2 packets are the same as their packets one by one, also on links and in the
log (decision 5)."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.base.counters import Counters
from mqttree.broker.base.sequence_set import merge
from mqttree.broker.cluster.delivery.replay_log import NEVER, Looked, ReplayLog
from mqttree.broker.cluster.link.message_batch import MessageBatch, encode_batch
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.core.message import encode_halves
from mqttree.broker.core.publish_run import PublishRun
from mqttree.broker.limits import Limits
from mqttree.broker.wire.packets import Packet, Publish
from mqttree.broker.wire.properties import Property, encode_properties
from mqttree.broker.wire.reader import PacketReader
from mqttree.broker.wire.varint import encode_varint
from tests.kit.effort import examples
from tests.kit.link_harness import FAR, Neighbour, batch_entry, lone, message
from tests.unit.cluster.test_replay_log import KEYS
from tests.unit.core.test_qos_fast_path import settle_exchanges
from tests.unit.core.test_qos_fast_path import stream as published

KEY = origin_key(FAR, 2_000)
USER = encode_properties({Property.USER_PROPERTY: [("name", "value")]})[1:]
LONG = encode_properties({Property.USER_PROPERTY: [("k" * 60, "v" * 200)]})[2:]
LIKE_AN_ORIGIN = b"\x26\0\1o\0\x18" + b"x" * 24

Told = list[tuple[bytes, int, bytes, int, bytes, bytes, float | None, bool]]
"""(origin, sequence, topic, QoS, properties, payload, expiry, RETAIN) of messages on a link."""


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


def told(data: bytes) -> Told:
    """Read what goes over a link."""
    found: Told = []
    for first, body in PacketReader().feed(data):
        if first >> 4 == 3:
            batch = MessageBatch.read(bytes((first,)) + encode_varint(len(body)) + body)
            found += [
                (batch.key, number, m.topic, m.qos, m.properties, m.payload, m.expires_at, m.retain)
                for number, m in batch.messages()
            ]
    return found


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
    neighbour = Neighbour(world, 1).child()
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
    neighbour = Neighbour(world, 1).child()
    publisher = world.connect("publisher", version=4)
    publisher.publish("a", b"known", 0)
    neighbour.take()
    publisher.chunks([published(4, [("a", b"x", 1, False, None, 50)])])
    assert len(world.node.cluster.forwarder.log) == 1
    assert len(neighbour.transport.written) == 50 * (2 + 3 + 2 + 1) + 47
    assert world.counters.forwarded == 51


# ------------------------------------------------------------------ what comes over a link

STEPS = st.lists(
    st.tuples(
        st.sampled_from((b"a", b"a/b")),
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
        if explicitly or not qos:
            pieces += one
        else:
            payloads = [payload + b"%04d" % n for n in range(sequence, sequence + count)]
            run = batch_of(5, qos, properties, payloads, topic)
            pieces.append(encode_batch(KEY, sequence, run.data, count, 5, qos))
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


def test_messages_from_before_an_origin_was_met_are_not_delivered() -> None:
    """A run that is older in part: the rest of it is."""
    world = lone()
    source = Neighbour(world, 1).child()
    client = world.connect("c").subscribed("t", qos=1)
    old = origin_key(FAR, 1)  # began before the node: its first message need not be the first
    source.send(message(key=old, sequence=20, payload=b"met"))
    window = world.node.cluster.forwarder.vector[old]
    assert window.feed is not None
    window.feed.add_outstanding([(13, 15)])
    window.gaps, window.history = [(10, 15)], []
    client.take()
    run = batch_of(5, 1, b"", [b"%d" % n for n in range(10, 16)])
    source.send(encode_batch(old, 10, run.data, 6, 5, 1))
    assert [p.payload for p in client.take() if isinstance(p, Publish)] == [b"13", b"14", b"15"]
    assert window.gaps == []


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
        messages = [(b"t", b"%d" % number) for number in range(sequence, sequence + count)]
        kept.append(batch_entry(key, sequence, messages, at=10.0), None)
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
