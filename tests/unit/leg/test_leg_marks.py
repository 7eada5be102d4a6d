"""Marks of federations: what leaves by a leg has one, and does not come in again."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.leg.effects import LegEffect, ToForeign
from mqttree.broker.leg.marks import FEDERATIONS, HEAD, NAME, Federation, Marks
from mqttree.broker.wire.constants import MAX_PACKET_SIZE
from mqttree.broker.wire.decode import decode_publish
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Puback, Publish, Pubrec
from mqttree.broker.wire.properties import Properties, Property
from mqttree.broker.wire.varint import read_length
from tests.kit.leg_harness import Joined
from tests.kit.node_harness import World

OWN, OTHER, FOREIGN = (bytes([n]) * 8 for n in (1, 2, 3))


def marks(room: int = MAX_PACKET_SIZE) -> Marks:
    """Those of a leg of broker OWN, which is in a federation with OTHER."""
    made = Marks(Federation(OWN, lambda broker_id: broker_id in (OWN, OTHER)))
    made.begin(room)
    return made


def entry(broker_id: bytes, topic: str) -> str:
    return f"{broker_id.hex()}.{crc32(topic.encode()):08x}"


def packet(topic: str, *values: str, qos: int = 0, **more: object) -> bytes:
    """A PUBLISH with marks of these values, and an ordinary User Property."""
    pairs = [("a", "b"), *((NAME, value) for value in values)]
    properties = {Property.USER_PROPERTY: pairs, **more}
    packet_id = 7 if qos else None
    return encode_packet(Publish(topic, b"x", qos, packet_id=packet_id, properties=properties), 5)


def decoded(packets: bytes) -> list[Publish]:
    """The PUBLISH packets among these."""
    found = []
    position = 0
    while position < len(packets):
        length, body = read_length(packets, position + 1)
        if packets[position] >> 4 == 3:
            found.append(decode_publish(packets[position], packets[body : body + length], 5))
        position = body + length
    return found


PROPERTIES: st.SearchStrategy[Properties | None] = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            Property.CONTENT_TYPE: st.text("ab", max_size=200),
            Property.CORRELATION_DATA: st.one_of(st.binary(max_size=40), st.just(HEAD)),
            Property.USER_PROPERTY: st.lists(
                st.tuples(st.sampled_from(["a", NAME]), st.sampled_from(["", "x", "1.2"])),
                min_size=1,
                max_size=3,
            ),
        },
    ).map(lambda found: found or None),
)
MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(["t", "a/b", "long/" * 30]),
        st.binary(max_size=200),
        st.integers(0, 2),
        PROPERTIES,
    ),
    max_size=5,
)


@given(MESSAGES)
def test_each_message_gets_one_entry_and_stays_as_it_is_otherwise(
    drawn: list[tuple[str, bytes, int, Properties | None]],
) -> None:
    sent = [
        Publish(topic, payload, qos, packet_id=9 if qos else None, properties=properties)
        for topic, payload, qos, properties in drawn
    ]
    data = b"".join(encode_packet(each, 5) + encode_packet(Puback(3), 5) for each in sent)
    out = marks().outwards(data)
    assert out.count(encode_packet(Puback(3), 5)) >= len(sent)
    got = decoded(out)
    assert len(got) == len(sent)
    for before, after in zip(sent, got, strict=True):
        properties = dict(after.properties or {})
        pairs = list(properties.pop(Property.USER_PROPERTY))
        assert pairs.pop() == (NAME, entry(OWN, before.topic))
        others = dict(before.properties or {})
        kept = [pair for pair in others.pop(Property.USER_PROPERTY, []) if pair[0] != NAME]
        assert (pairs, properties) == (kept, others)
        assert (after.topic, after.payload, after.qos, after.packet_id) == (
            before.topic,
            before.payload,
            before.qos,
            before.packet_id,
        )


@pytest.mark.parametrize("broker_id", [OWN, OTHER])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_with_an_entry_of_this_federation_is_dropped(broker_id: bytes, qos: int) -> None:
    made = marks()
    value = ",".join([entry(FOREIGN, "u"), entry(broker_id, "t"), entry(FOREIGN, "t")])
    other = packet("t", entry(FOREIGN, "t"))
    first, second = decoded(made.inwards(packet("t", value, qos=qos) + other))
    assert (first.topic, first.payload, first.qos) == ("$mqttree/leg/dropped", b"", qos)
    assert first.packet_id == (7 if qos else None)
    assert encode_packet(second, 5) == other
    assert made.came_back == 1


def test_an_answer_that_copies_user_properties_under_another_topic_comes_in() -> None:
    made, answer = marks(), packet("answers/t", entry(OWN, "t"))
    assert made.inwards(answer) == answer
    assert made.came_back == 0


@pytest.mark.parametrize("value", ["", "x", entry(OWN, "t")[:-1], entry(OWN, "t").upper()])
def test_what_is_no_entry_does_not_count(value: str) -> None:
    made = marks()
    data = packet("t", value)
    assert made.inwards(data) == data
    (out,) = decoded(made.outwards(data))
    assert (out.properties or {})[Property.USER_PROPERTY] == [("a", "b"), (NAME, entry(OWN, "t"))]


def test_a_message_on_its_way_through_federations_has_an_entry_of_each() -> None:
    made = marks()
    foreign = [entry(bytes([9]) * 8, f"t{number}") for number in range(FEDERATIONS)]
    (out,) = decoded(made.outwards(packet("t", ",".join(foreign[:3]))))
    pairs = (out.properties or {})[Property.USER_PROPERTY]
    assert pairs == [("a", "b"), (NAME, ",".join([*foreign[:3], entry(OWN, "t")]))]
    (last,) = decoded(made.outwards(packet("t", ",".join(foreign))))
    assert last.topic == "$mqttree/leg/dropped"
    assert (made.far, made.came_back) == (1, 0)


def test_a_message_that_came_back_by_no_leg_does_not_leave_again() -> None:
    made = marks()
    (out,) = decoded(made.outwards(packet("t", entry(OTHER, "t"), qos=2)))
    assert (out.topic, out.packet_id) == ("$mqttree/leg/dropped", 7)
    assert made.came_back == 1


def test_a_message_without_room_for_a_mark_goes_without() -> None:
    data = encode_packet(Publish("t", b"x" * 50), 5)
    assert marks(room=80).outwards(data) == data
    assert marks(room=len(data) + 50).outwards(data) != data
    other = packet("t", entry(FOREIGN, "t"))
    assert marks(room=len(other) + 5).outwards(other) == other


# ---------------------------------------------------------------- no subscribers there


@pytest.mark.parametrize("lines", [("a/# out 1", "b/# out 2", "c out 1"), ("# out 2",)])
def test_messages_without_a_subscriber_there_are_counted_by_rule(lines: tuple[str, ...]) -> None:
    """As Mosquitto says it."""
    joined = Joined(*lines)
    client, answers = joined.here.connect("p"), {"a/1": 0x10, "b/1": 0x10, "a/2": 0x10, "c": 0}

    def answer(effect: LegEffect) -> LegEffect | None:
        if not isinstance(effect, ToForeign) or effect.data[0] >> 4 != 3:
            return effect
        for packet in decoded(effect.data):
            kind = Pubrec if packet.qos == 2 else Puback
            code = answers[packet.topic]
            said = encode_packet(kind(packet.packet_id or 0, code), 5)
            joined.leg.foreign_received(said, joined.here.now)
        return None

    joined.edit = answer
    for number, (topic, qos) in enumerate([("a/1", 1), ("b/1", 2), ("a/2", 1), ("c", 1)]):
        joined.send(client, Publish(topic, b"x", qos, packet_id=number + 1))
    rules = {"a/#": 2, "b/#": 1} if len(lines) > 1 else {}
    assert joined.leg.relay.unmatched() == {
        "answered": 4,
        "no_subscribers": 3,
        "no_subscribers_by_rule": rules,
    }


def test_a_broker_knows_its_own_federation_alone() -> None:
    """The process tests have one of two brokers."""
    world = World()
    assert world.node.cluster.knows(world.node.config.id)
    assert not world.node.cluster.knows(FOREIGN)
