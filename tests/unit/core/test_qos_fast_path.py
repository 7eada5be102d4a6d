"""The fast paths (runs, packets in flight as bytes, properties as they came) behave like the path
for everything else."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.core.delivery_queue import RELEASED
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel
from mqttree.broker.wire.properties import (
    NOT_AS_IS,
    Property,
    encode_properties,
    forwardable,
    inspect_cached,
)
from mqttree.broker.wire.varint import read_length
from tests.kit.effort import examples
from tests.kit.node_harness import FakeClient, World

TOPICS = ("a", "a/b", "x/yy", "long/" + "z" * 130)
PROPERTIES: tuple[dict[int, Any] | None, ...] = (
    None,
    {Property.USER_PROPERTY: [("name", "value")]},
    {Property.USER_PROPERTY: [("name", "w\u00e4lue"), ("", "")], Property.CONTENT_TYPE: "t"},
    {Property.CORRELATION_DATA: b"\0\xff", Property.RESPONSE_TOPIC: "answer/here"},
    {Property.PAYLOAD_FORMAT_INDICATOR: 0},
    {Property.PAYLOAD_FORMAT_INDICATOR: 1, Property.MESSAGE_EXPIRY_INTERVAL: 30},
    {Property.USER_PROPERTY: [("k" * 70, "v" * 90)]},
    {Property.USER_PROPERTY: [("k" * 70, "w" * 90)], Property.PAYLOAD_FORMAT_INDICATOR: 1},
    {Property.PAYLOAD_FORMAT_INDICATOR: 1, Property.CONTENT_TYPE: "application/json"},
    {Property.USER_PROPERTY: [("key", "v" * length) for length in range(200)]},
)

messages = st.lists(
    st.tuples(
        st.sampled_from(TOPICS),
        st.sampled_from((b"", b"1", b"22", b"p" * 200, b"\xc3\xa4", b"\xff\xff")),
        st.integers(0, 2),
        st.booleans(),
        st.sampled_from(PROPERTIES),
        st.integers(1, 9),
    ),
    max_size=12,
)


def stream(version: int, chosen: list[Any]) -> bytes:
    """PUBLISH packets; each message is repeated, so that there are runs, and QoS 2 is released now
    and then."""
    out = b""
    number = 0
    for topic, payload, qos, retain, properties, times in chosen:
        for _ in range(times):
            number += 1
            packet_id = number if qos else None
            out += encode_packet(
                Publish(
                    topic,
                    payload,
                    qos,
                    retain,
                    False,
                    packet_id,
                    properties if version == 5 else None,
                ),
                version,
            )
            if qos == 2 and number % 3 == 0:
                out += encode_packet(Pubrel(number), version)
    return out


def settle_exchanges(client: FakeClient) -> list[Packet]:
    """Acknowledge everything as it comes, until nothing more does."""
    seen: list[Packet] = []
    while packets := client.take():
        seen += packets
        answers: list[Packet] = []
        for packet in packets:
            if isinstance(packet, Publish) and packet.packet_id:
                answers.append(
                    Puback(packet.packet_id) if packet.qos == 1 else Pubrec(packet.packet_id)
                )
            elif isinstance(packet, Pubrel):
                answers.append(Pubcomp(packet.packet_id))
        if answers:
            client.send(*answers)
    return seen


def run(
    fast: bool, version: int, chosen: list[Any], cuts: list[int], alike: bool
) -> tuple[Any, ...]:
    """Publish what was `chosen`, cut at `cuts`; all receivers take the publisher's version, and
    its packets as they are, if they are `alike`."""
    world = World()
    world.node.fast = fast
    subscribers = [
        world.connect("four", version=version if alike else 4),
        world.connect("five", version=version if alike else 5),
        world.connect("plain", version=version if alike else 5),
        world.connect("three", version=version if alike else 3),
        world.connect(
            "slow",
            version=version if alike else 5,
            properties={Property.RECEIVE_MAXIMUM: 11},
        ),
    ]
    world.session("four").next_packet_id = 65_520
    for topic, qos in (("#", 2), ("a/+", 1)):
        subscribers[0].subscribe(topic, qos=qos)
    subscribers[1].subscribe("#", qos=1)
    subscribers[2].subscribe("a", qos=2)
    subscribers[3].subscribe("x/yy", qos=0)
    subscribers[4].subscribe("x/yy", qos=1)
    publisher = world.connect("publisher", version=version)
    for topic in TOPICS:  # a known route is what the fast path needs
        publisher.publish(topic, b"known", 0)
    for subscriber in subscribers:
        settle_exchanges(subscriber)
    data = stream(version, chosen)
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    for begin, end in zip([0, *places], [*places, len(data)], strict=True):
        if begin < end:
            publisher.chunks([data[begin:end]])
    answers = publisher.take()
    received = [settle_exchanges(subscriber) for subscriber in subscribers]
    left = [
        (len(world.session(c).inflight), len(world.session(c).queue))
        for c in ("four", "five", "plain", "three", "slow")
    ]
    session = world.node.sessions.get("publisher")  # None: it was disconnected
    return answers, received, left, publisher.closed, session and sorted(session.incoming)


@settings(max_examples=examples(400))
@given(st.sampled_from((4, 5)), messages, st.lists(st.integers(0, 5000), max_size=3), st.booleans())
def test_fast_and_slow_path_agree(
    version: int, chosen: list[Any], cuts: list[int], alike: bool
) -> None:
    assert run(True, version, chosen, cuts, alike) == run(False, version, chosen, [], alike)


def acknowledge(
    fast: bool, version: int, sent: list[tuple[int, int]], said: list[tuple[int, int, int]]
) -> tuple[Any, ...]:
    world = World()
    world.node.fast = fast
    client, publisher = world.connect("c", version=version), world.connect("p", version=4)
    client.subscribe("t", qos=2)
    publisher.publish("t", b"known", 0)
    number = 0
    for qos, times in sent:
        for _ in range(times):
            number += 1
            publisher.send(Publish("t", b"x", qos, False, False, number))
    for first in (0x50, 0x40):  # half of those at QoS 2 are released
        publisher.send(b"".join(bytes((0x62, 2, 0, n)) for n in range(1, number // 2)))
        if first == 0x50:
            client.send(b"".join(bytes((first, 2, 0, n)) for n in range(1, 6)))
    client.take()
    for first, begin, times in said:
        client.chunks([b"".join(bytes((first, 2, 0, begin + n)) for n in range(times))])
    session = world.node.sessions.get("c")
    inflight = {} if session is None else session.inflight
    state = {
        n: 0 if p is RELEASED else p[0] if isinstance(p, bytes) else 0x30 | p.qos << 1
        for n, p in inflight.items()
    }
    return (
        state,
        client.take(),
        client.closed,
        publisher.take(),
        sorted(world.session("p").incoming),
    )


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sampled_from((4, 5)),
    st.lists(st.tuples(st.integers(1, 2), st.integers(1, 9)), max_size=5),
    st.lists(
        st.tuples(st.sampled_from((0x40, 0x50, 0x70)), st.integers(0, 30), st.integers(1, 12)),
        max_size=6,
    ),
)
def test_acknowledgements_in_runs_are_those_one_by_one(
    version: int, sent: list[Any], said: list[Any]
) -> None:
    assert acknowledge(True, version, sent, said) == acknowledge(False, version, sent, said)


@given(
    st.dictionaries(
        st.sampled_from((Property.CONTENT_TYPE, Property.RESPONSE_TOPIC)),
        st.text(max_size=5),
        max_size=2,
    ),
    st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), max_size=3),
    st.binary(max_size=6),
    st.integers(0, 40),
)
def test_properties_forwarded_as_they_came_can_be_decoded(
    texts: dict[Any, str], pairs: list[Any], noise: bytes, at: int
) -> None:
    """A damaged section is forwarded only when it still decodes."""
    from mqttree.broker.wire.constants import PacketType
    from mqttree.broker.wire.errors import WireError
    from mqttree.broker.wire.properties import decode_properties
    from mqttree.broker.wire.varint import encode_varint

    properties: dict[int, Any] = dict(texts)
    if pairs:
        properties[Property.USER_PROPERTY] = pairs
    try:
        whole = encode_properties(properties or None)
    except ValueError:
        return
    section = whole[read_length(whole, 0)[1] :]
    damaged = section[:at] + noise + section[at + len(noise) :]
    for candidate in (section, damaged):
        if len(candidate) < 128:
            assert forwardable(candidate) == (not inspect_cached(candidate) & NOT_AS_IS)
        if forwardable(candidate):
            try:
                decode_properties(encode_varint(len(candidate)) + candidate, 0, PacketType.PUBLISH)
            except WireError as error:
                raise AssertionError(f"{candidate!r} goes through: {error.message}") from None


def test_what_an_absent_client_missed_keeps_its_properties() -> None:
    """Packets that the fast path left for a client that is away are told apart from their
    properties."""
    world = World(keep_missed=True)
    kept = {Property.SESSION_EXPIRY_INTERVAL: 100}
    world.connect("s", properties=kept).subscribe("t", qos=1)
    world.connect("f", version=4, clean=False).subscribe("t", qos=1)
    for client_id in ("s", "f"):
        connection = world.session(client_id).conn
        assert connection is not None
        world.node.connection_lost(connection, "gone", world.now)
    publisher = world.connect("p")
    sent = [properties for properties in PROPERTIES if properties != PROPERTIES[5]]
    for properties in sent:
        publisher.publish("t", b"x", 0, properties=properties)
    five = world.connect("s", clean=False, properties=kept).take_publishes()
    assert [(m.payload, m.properties) for m in five] == [(b"x", each) for each in sent]
    four = world.connect("f", version=4, clean=False).take_publishes()
    assert [m.payload for m in four] == [b"x"] * len(sent)
