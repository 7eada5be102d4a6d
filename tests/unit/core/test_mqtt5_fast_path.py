"""Messages of MQTT 5 clients that expire, that name their topic by an alias or that have many
properties: the fast path sends the same bytes as the path for everything else, while the clock goes
on."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.core.client_packets import ClientPackets
from mqttree.broker.core.topic_resolution import MAX_RESOLVED_BYTES, resolve
from mqttree.broker.wire.constants import PacketType
from mqttree.broker.wire.decode import decode_packet
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Puback, Publish, Pubrec, Pubrel
from mqttree.broker.wire.properties import Property
from mqttree.broker.wire.reader import PacketReader
from tests.kit.effort import examples
from tests.kit.link_harness import Neighbour, lone
from tests.kit.node_harness import FakeClient, World
from tests.unit.core.test_publish_run import told

TOPICS = ("a", "a/b", "x/yy", "long/" + "z" * 130, "$stays")
EXPIRY = Property.MESSAGE_EXPIRY_INTERVAL
USER = Property.USER_PROPERTY
SECTIONS: tuple[dict[int, Any], ...] = (
    {},
    {EXPIRY: 30},
    {EXPIRY: 0},
    {EXPIRY: 2, Property.CONTENT_TYPE: "t"},
    {Property.CONTENT_TYPE: "t", EXPIRY: 3, USER: [("name", "v\u00e4lue"), ("", "")]},
    {EXPIRY: 0xFFFFFFFF, USER: [("key", "v" * length) for length in range(30)]},
    {USER: [("k" * 70, "v" * 90)]},
    {USER: [("k" * 70, "w" * 90)], EXPIRY: 4},
    {Property.PAYLOAD_FORMAT_INDICATOR: 1, EXPIRY: 5},
    {EXPIRY: 5, Property.PAYLOAD_FORMAT_INDICATOR: 1},
    {Property.PAYLOAD_FORMAT_INDICATOR: 1},
)


class Said(NamedTuple):
    """What a publisher sends."""

    topic: str
    payload: bytes
    qos: int
    flags: int
    """1: RETAIN, 2: the packet identifier of the last one again."""
    section: dict[int, Any]
    alias: int
    """0: none; above 10: brought without a topic."""
    times: int


said = st.builds(
    Said,
    st.sampled_from((*TOPICS[:4] * 4, TOPICS[4])),
    st.sampled_from((b"", b"1", b"p" * 200, b"\xc3\xa4", b"\xff\xff")),
    st.integers(0, 2),
    st.sampled_from((0,) * 8 + (1, 2)),
    st.sampled_from(SECTIONS),
    st.sampled_from((0, 0, 1, 2, 3, 11, 11, 12, 13)),
    st.sampled_from((1, 1, 1, 2, 5)),
)
chunks = st.lists(
    st.tuples(
        st.sampled_from((0.0, 0.4, 0.5, 1.0, 2.0, 7.0)),
        st.sampled_from(("", "", "", "slow", "away")),
        st.lists(said, max_size=6),
    ),
    max_size=6,
)
"""Chunks: s since the last one; who comes and takes what waits for it ahead of it; messages."""


def packets(messages: list[Said], known: set[int], first: int) -> tuple[bytes, int]:
    """The packets of a chunk, and the next packet identifier. An alias that is not `known` comes
    with its topic."""
    out, number = b"", first
    for one in messages:
        for _ in range(one.times):
            number += not one.flags & 2
            alias = one.alias % 10
            topic = "" if one.alias > 10 and alias in known else one.topic
            known.add(alias)
            properties = dict(one.section)
            if alias:
                properties[Property.TOPIC_ALIAS] = alias
            packet_id = max(1, number) if one.qos else None
            publish = Publish(
                topic, one.payload, one.qos, bool(one.flags & 1), False, packet_id, properties
            )
            out += encode_packet(publish, 5)
            if one.qos == 2 and number % 3 == 0:
                out += encode_packet(Pubrel(number), 5)
    return out, number


def acknowledge(client: FakeClient) -> bytes:
    """Acknowledge everything as it comes, until nothing more does; the bytes that came."""
    seen = b""
    while data := bytes(client.transport.written):
        client.transport.written.clear()
        seen += data
        answers = b""
        for first, body in PacketReader().feed(data):
            packet = decode_packet(first, body, client.version)
            if isinstance(packet, Publish) and packet.packet_id:
                kind = Puback if packet.qos == 1 else Pubrec
                answers += encode_packet(kind(packet.packet_id), client.version)
            elif first >> 4 == PacketType.PUBREL:
                answers += b"\x70\x02" + body[:2]
        if answers:
            client.send(answers)
    return seen


def receivers(world: World, alike: bool) -> list[FakeClient]:
    """Subscribers of MQTT 5, all but one or two; `alike`: they all take packets as they came."""
    kept = {Property.SESSION_EXPIRY_INTERVAL: 1000}
    found = [
        world.connect("five"),
        world.connect("slow", properties={Property.RECEIVE_MAXIMUM: 3}),
        world.connect("away", properties=kept),
        world.connect("gone", properties=kept),
    ]
    found[0].subscribe("#", qos=2)
    found[0].subscribe("a/+", qos=1)
    found[1].subscribe("a/+", "x/+", qos=1)
    found[2].subscribe("#", qos=2)
    found[3].subscribe("a", "x/yy", qos=1)
    found[3].vanish()
    if not alike:
        found += [world.connect("four", version=4), world.connect("limited")]
        found[4].subscribe("a", "x/#", qos=2)
        found[5].subscribe("long/+", qos=1, properties={Property.SUBSCRIPTION_IDENTIFIER: [9]})
    for one in found:
        one.transport.written.clear()
    return found


def run(fast: bool, chosen: list[Any], alike: bool, *, linked: bool) -> tuple[Any, ...]:
    """Publish what was `chosen`; what everybody gets, as bytes. `linked`: there is another
    broker."""
    config = {"keep_missed": True, "topic_alias_maximum": 3}
    world = lone(**config) if linked else World(**config)
    world.node.fast = fast
    neighbour: Neighbour | None = None
    if linked:
        neighbour = Neighbour(world, 101).child()
    clients = receivers(world, alike)
    publisher = world.connect("publisher")
    publisher.transport.written.clear()
    known: set[int] = set()
    number = 0
    got = [b""] * len(clients)
    for wait, comes, messages in chosen:
        world.now += wait
        for at, client in enumerate(clients):
            if comes == "slow" or at not in {1, 2, 3}:
                got[at] += acknowledge(client)
        if comes == "away":
            got[2] += bytes(clients[2].transport.written)  # and it acknowledges nothing
            clients[2].vanish()
            clients[2] = world.connect("away", clean=False, properties={0x11: 1000})
            clients[3] = world.connect("gone", clean=False, properties={0x11: 1000})
            got[3] += acknowledge(clients[3])
            clients[3].vanish()
        data, number = packets(messages, known, number)
        if data and not publisher.closed:
            publisher.send(data)
    for at, client in enumerate(clients):
        got[at] += acknowledge(client)
    session = world.node.sessions.get("publisher")
    kept = {
        name: [getattr(o, "message", o) for o in world.session(name).inflight.values()]
        for name in ("five", "slow", "away", "gone")
    }
    in_flight = {
        name: [(m.topic, m.payload, m.properties, m.expires_at) for m in found]
        for name, found in kept.items()
        if all(not isinstance(m, bytes) for m in found)
    }
    over_link = told(bytes(neighbour.transport.written)) if neighbour is not None else []
    return (
        bytes(publisher.transport.written),
        got,
        in_flight,
        publisher.closed,
        session and (sorted(session.incoming), publisher.owner.aliases),
        publisher.closed or publisher.owner.aliases_memory,
        world.counters.expired,
        over_link,
    )


@settings(max_examples=examples(150), deadline=None)
@given(chunks, st.booleans(), st.booleans())
def test_both_paths_send_the_same_bytes_while_the_clock_goes_on(
    chosen: list[Any], alike: bool, linked: bool
) -> None:
    assert run(True, chosen, alike, linked=linked) == run(False, chosen, alike, linked=linked)


def introduced(world: World, *topics: str) -> tuple[FakeClient, int]:
    """A publisher that has given each of these topics an alias, from 1 on; bytes in its topics."""
    publisher = world.connect("publisher")
    for alias, topic in enumerate(topics, 1):
        publisher.publish(topic, properties={Property.TOPIC_ALIAS: alias})
    return publisher, sum(map(len, topics))


def aliased(topic: str, alias: int, payload: bytes = b"x") -> bytes:
    return encode_packet(Publish(topic, payload, properties={Property.TOPIC_ALIAS: alias}), 5)


def test_an_alias_that_gets_another_topic_waits_for_the_packets_ahead_of_it() -> None:
    """They may be handled later, and must not get the new topic then."""
    world = World()
    publisher, memory = introduced(world, "one")
    client = publisher.owner
    assert isinstance(client, ClientPackets)
    data = aliased("", 1, b"1") + aliased("two", 2, b"2") + aliased("other", 1, b"3")
    found = resolve(client, data, 0)
    assert found is not None
    assert found.packets == b"".join(
        encode_packet(Publish(topic, payload), 5)
        for topic, payload in (("one", b"1"), ("two", b"2"))
    )
    assert client.aliases == {1: b"one", 2: b"two"}
    behind = found.position(len(found.packets))
    assert data[behind:] == aliased("other", 1, b"3")
    assert data[found.position(len(found.packets) // 2) :] == data[len(aliased("", 1, b"1")) :]
    resolve(client, data, behind)
    assert client.aliases == {1: b"other", 2: b"two"}
    assert client.aliases_memory == memory + len("two") + len("other") - len("one")


def test_long_topics_of_short_packets_are_written_out_some_at_a_time() -> None:
    world = World()
    topic = "x" * 60_000
    publisher, _ = introduced(world, topic)
    client = publisher.owner
    assert isinstance(client, ClientPackets)
    found = resolve(client, aliased("", 1) * 10_000, 0)
    assert found is not None
    assert len(found.packets) < MAX_RESOLVED_BYTES + len(topic) + 100
    subscriber = world.connect("subscriber").subscribed("#")
    publisher.send(aliased("", 1) * 20)
    assert [len(packet.topic) for packet in subscriber.take_publishes()] == [len(topic)] * 20


def test_a_packet_that_grows_beyond_the_largest_is_taken_all_the_same() -> None:
    """The limit is on what comes in."""
    world = World(max_packet_size=300)
    publisher, _ = introduced(world, "x" * 250)
    subscriber = world.connect("subscriber").subscribed("#")
    publisher.send(aliased("", 1, b"y" * 280) + aliased("", 1, b"z"))
    assert subscriber.payloads() == [b"y" * 280, b"z"]
    assert not publisher.closed


def test_bytes_that_came_are_counted_as_they_came() -> None:
    world = World()
    publisher, _ = introduced(world, "x" * 250)
    before = world.counters.bytes_received
    data = aliased("", 1) * 9
    publisher.send(data)
    assert world.counters.bytes_received - before == len(data)


def test_what_expires_is_kept_for_who_is_away_as_long_as_it_says() -> None:
    world = World(keep_missed=True)
    kept = {Property.SESSION_EXPIRY_INTERVAL: 100}
    client = world.connect("s", properties=kept).subscribed("t", qos=1)
    world.node.connection_lost(client.conn, "gone", world.now)
    publisher = world.connect("p")
    for seconds in (5, 20):
        publisher.publish("t", b"%d" % seconds, 0, properties={EXPIRY: seconds})
    world.advance(10.0)
    found = world.connect("s", clean=False, properties=kept).take_publishes()
    assert [(one.payload, one.properties) for one in found] == [(b"20", {EXPIRY: 10})]
