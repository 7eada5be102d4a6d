"""Legs to foreign brokers that do not take QoS 2, or take none but QoS 0."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.leg.effects import LegEffect, Log, ToForeign
from mqttree.broker.leg.lower_qos import LowerQos
from mqttree.broker.leg.packets import PacketCutter, messages_with_ids
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Connack, Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback
from mqttree.broker.wire.publish_header import PUBACK, PUBREC, PUBREL
from tests.kit.leg_harness import Joined, new_leg, settings
from tests.kit.node_harness import FakeClient, World
from tests.unit.leg.test_leg import connect, settle


def named(joined: Joined) -> list[str]:
    """The lines about it."""
    return [line for line in joined.log if "takes QoS" in line]


def publish(joined: Joined, client: FakeClient, *payloads: bytes, topic: str = "t") -> None:
    """Publish at QoS 2."""
    for number, payload in enumerate(payloads, 1):
        joined.send(client, Publish(topic, payload, 2, packet_id=number), Pubrel(number))


def in_flight(joined: Joined) -> int:
    """Messages that wait for an answer of the foreign broker."""
    return len(joined.here.node.sessions[joined.settings.session].inflight)


@pytest.mark.parametrize("version", [4, 5])
def test_a_leg_keeps_to_the_qos_of_a_foreign_broker_by_itself(version: int) -> None:
    """It is said in CONNACK (MQTT 5), or shown by SUBACK."""
    joined = Joined(version=version, foreign=World(max_qos=1))
    here, there = joined.here.connect("h", 4).subscribed("u", qos=2), joined.there.connect("t", 4)
    there.subscribe("t", qos=1)
    for connection in range(3):
        first = b"%d" % connection
        publish(joined, here, first, b"x" + first)
        assert [p.payload for p in settle(joined, there)] == [first, b"x" + first]
        joined.send(there, Publish("u", first, 1, packet_id=7))
        assert [p.payload for p in settle(joined, here)] == [first]
        assert in_flight(joined) == 0
        joined.cut()
        joined.advance(31.0)
        assert joined.up
    (line,) = named(joined)
    assert "the foreign broker takes QoS 1 at most" in line
    assert "max-qos 1" in line
    assert joined.leg.max_qos == 1
    assert joined.leg.counters.failures == 3


def as_rabbitmq_does(effect: LegEffect) -> LegEffect:
    """Have the foreign broker take a message at QoS 2 as one at QoS 1, and answer so."""
    if isinstance(effect, ToForeign) and effect.data[0] & 0xF6 == 0x34:
        return ToForeign(bytes((effect.data[0] ^ 6,)) + effect.data[1:])
    return effect


@pytest.mark.parametrize("version", [4, 5])
def test_a_foreign_broker_that_answers_qos_2_as_qos_1_is_found_out(version: int) -> None:
    """This broker closes the leg's session at such an answer. It did so again and again."""
    joined = Joined("# out 2", version=version, edit=as_rabbitmq_does)
    here, there = joined.here.connect("h", 4), joined.there.connect("t", 4).subscribed("#", qos=2)
    publish(joined, here, b"1", b"2", b"3")
    joined.advance(31.0)
    assert joined.up
    assert {p.payload for p in settle(joined, there)} == {b"1", b"2", b"3"}
    publish(joined, here, b"4", b"5")
    assert [p.payload for p in settle(joined, there)] == [b"4", b"5"]
    assert in_flight(joined) == 0
    assert joined.leg.counters.failures == 1
    assert 1 <= joined.leg.relay.lower_qos.lowered <= 3
    assert len(named(joined)) == 1


@pytest.mark.parametrize("most", [0, 1])
def test_messages_from_before_cross_at_a_lower_qos(most: int) -> None:
    """The foreign broker took QoS 2 when they came."""
    joined = Joined(foreign=World())
    here = joined.here.connect("h", 4)
    joined.reachable = False
    joined.cut()
    publish(joined, here, b"1", b"2")
    joined.places = (World(max_qos=most),)
    there = joined.there.connect("t", 4).subscribed("#", qos=1)
    joined.reachable = True
    joined.advance(31.0)
    assert joined.up
    got = settle(joined, there)
    assert [(p.payload, p.qos) for p in got] == [(b"1", most), (b"2", most)]
    assert in_flight(joined) == 0
    assert joined.leg.relay.lower_qos.lowered == 2


@pytest.mark.parametrize("version", [4, 5])
def test_a_filter_that_is_granted_less_than_others_is_named(version: int) -> None:
    """It takes QoS 2, but does not give it to this user for all topics."""
    leg = new_leg(settings("a/# both 2", "b/# both 2", version=version))
    connect(leg, 0.0)
    leg.foreign_received(encode_packet(Connack(False, 0), leg.version), 0.1)
    leg.here_received(encode_packet(Connack(False, 0), leg.version), 0.1)
    leg.take_effects()
    leg.foreign_received(encode_packet(Suback(0xFFFF, [1, 2]), leg.version), 0.2)
    assert leg.max_qos == 2
    (line,) = [effect.text for effect in leg.take_effects() if isinstance(effect, Log)]
    assert "the foreign broker grants QoS 1 where more was asked for" in line


MESSAGES = st.lists(
    st.one_of(
        st.builds(
            Publish,
            st.sampled_from(("t", "a/b")),
            st.binary(max_size=200),
            st.sampled_from((1, 2)),
            st.booleans(),
            packet_id=st.integers(1, 65535),
        ),
        st.builds(Publish, st.just("t"), st.binary(max_size=9), st.just(0)),
        st.builds(Pubrel, st.integers(1, 65535)),
        st.builds(Puback, st.integers(1, 65535)),
        st.builds(Pubrec, st.integers(1, 65535)),
        st.builds(Pubcomp, st.integers(1, 65535)),
    ),
    max_size=12,
)


@given(MESSAGES, st.sampled_from((0, 1)))
def test_nothing_of_a_higher_qos_and_no_pubrel_goes_there(
    packets: list[Publish | Pubrel | Puback | Pubrec | Pubcomp], most: int
) -> None:
    """Each message that was lowered is answered as one of its own QoS, all others as they are."""
    lower = LowerQos()
    lower.accepted(most)
    data = b"".join(encode_packet(packet, 4) for packet in packets)
    sent = lower.outwards(data)
    there = [each for chunk in PacketCutter().take(sent) for each in split(chunk)]
    assert all((each[0] & 6) >> 1 <= most for each in there if each[0] >> 4 == 3)
    assert not any(each[0] == PUBREL for each in there)
    high = [p for p in packets if isinstance(p, Publish) and p.qos > most]
    assert lower.lowered == len(high)
    kept = [p.payload for p in packets if isinstance(p, Publish)]
    assert [
        each[len(each) - len(p) :] for each, p in zip(publishes(there), kept, strict=True)
    ] == kept
    answers = split(lower.take_answers())
    if most:
        ids = list(dict.fromkeys(number for number, _ in messages_with_ids(sent)))
        came = split(lower.inwards(b"".join(bytes((PUBACK, 2)) + number for number in ids)))
        twos = {p.packet_id for p in high}
        assert [each[0] for each in came] == [
            PUBREC if int.from_bytes(number, "big") in twos else PUBACK for number in ids
        ]
        assert len(answers) == sum(isinstance(p, Pubrel) for p in packets)
    else:
        assert len(answers) == sum(isinstance(p, Pubrel) for p in packets) + len(high)


def split(packets: bytes) -> list[bytes]:
    """Cut packets of types that cross apart."""
    found = []
    while packets:
        size = 2
        length = packets[1] & 0x7F
        while packets[size - 1] & 0x80:
            length |= (packets[size] & 0x7F) << 7 * (size - 1)
            size += 1
        found.append(packets[: size + length])
        packets = packets[size + length :]
    return found


def publishes(packets: list[bytes]) -> list[bytes]:
    return [each for each in packets if each[0] >> 4 == 3]


@given(st.randoms(use_true_random=False))
def test_proof_is_an_answer_to_a_message_at_qos_2_alone(rng: random.Random) -> None:
    lower = LowerQos()
    ids = [rng.randrange(1, 9) for _ in range(5)]
    waiting = {rng.randrange(1, 9) for _ in range(3)}
    packets = b"".join(encode_packet(Puback(number), 4) for number in ids)
    assert lower.look_for_proof(packets, waiting) == bool(waiting & set(ids))
    assert (lower.taken == 1) == bool(waiting & set(ids))
    lower.other_broker()
    assert lower.taken == 2
    assert not lower.look_for_proof(encode_packet(Pubrec(ids[0]), 4), {ids[0]})
