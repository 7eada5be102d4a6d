"""The state machine of a leg: its table, its packets, and what crosses it, whatever is lost."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.leg.backoff import BRIEF, CLOSED, LONGEST, SHORTEST, STABLE
from mqttree.broker.leg.effects import (
    Close,
    DialForeign,
    Enter,
    LegEffect,
    Log,
    Prepare,
    ToForeign,
    ToHere,
)
from mqttree.broker.leg.leg import PATIENCE, Leg
from mqttree.broker.leg.leg_states import State
from mqttree.broker.leg.packets import PacketCutter
from mqttree.broker.leg.session_pair import LocalSession
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import (
    Connack,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
)
from mqttree.broker.wire.properties import Property
from tests.kit.leg_harness import Joined, new_leg, settings
from tests.kit.node_harness import FakeClient, World

# ---------------------------------------------------------------- states


# ---------------------------------------------------------------- packets, byte by byte

CONNECT_CLEAN = b"\x10\x19\x00\x04MQTT\x05\x02\x00\x0a\x03\x21\x03\xe8\x00\x09mqttree-n"
CONNECT_THERE = (
    b"\x10\x1e\x00\x04MQTT\x05\x00\x00\x0a\x08\x11\x00\x01\x51\x80\x21\x03\xe8\x00\x09mqttree-n"
)
CONNECT_HERE = b"\x10\x17\x00\x04MQTT\x05\x02\x00\x00\x05\x11\xff\xff\xff\xff\x00\x05leg:n"
SUBSCRIBE = b"\x82\x07\xff\xff\x00\x00\x01#\x2e"
"""QoS 2, No Local, Retain As Published, Retain Handling 2."""
PAIRED = b"\x00\x13$mqttree/leg/paired\x2c"
SUBSCRIBE_HERE = (
    b"\x82\x3b\xff\xff\x00\x00\x01#\x2e\x00\x1b$mqttree/leg/subscribed/2/#\x2c" + PAIRED
)
"""The same, and notes of what the foreign broker has granted, and that there is one."""
PREPARE = Prepare(
    ("#",),
    b"\x10\x1a\x00\x04MQTT\x05\x00\x00\x00\x08\x11\xff\xff\xff\xff\x21\x00\x01\x00\x05leg:n"
    + SUBSCRIBE
    + b"\xe0\x00",
)
"""At MQTT 5, whatever the leg speaks: no message is in flight behind it but one."""


def new(**more: object) -> Leg:
    """A leg that is about to dial."""
    return new_leg(settings(**more))


def answer_subscribe(leg: Leg) -> None:
    """Grant what the leg asks both brokers for."""
    leg.foreign_received(encode_packet(Suback(0xFFFF, [2]), leg.version), 0.3)
    leg.foreign_received(encode_packet(Pingresp(), leg.version), 0.3)
    leg.here_received(encode_packet(Suback(0xFFFF, [2, 0, 0]), leg.version), 0.3)


def connect(leg: Leg, now: float) -> None:
    """Dial, and end the session at the foreign broker that a new leg might have there; its next
    connection, which stays, has sent CONNECT."""
    leg.tick(now)
    leg.on_dialled(None, now)
    leg.foreign_received(encode_packet(Connack(False, 0), leg.version), now)
    leg.on_dialled(None, now)


def walk(leg: Leg) -> list[LegEffect]:
    """Bring a leg up; returns all effects but lines for the log."""
    leg.tick(0.0)
    leg.on_dialled(None, 0.1)
    leg.foreign_received(encode_packet(Connack(False, 0), leg.version), 0.2)
    # The first connection has only ended the old session.
    leg.on_dialled(None, 0.2)
    leg.foreign_received(encode_packet(Connack(False, 0), leg.version), 0.2)
    leg.here_received(encode_packet(Connack(False, 0), leg.version), 0.2)
    answer_subscribe(leg)
    return [effect for effect in leg.take_effects() if not isinstance(effect, Log)]


def test_a_leg_comes_up_in_these_packets() -> None:
    leg = new()
    assert walk(leg) == [
        PREPARE,
        DialForeign(),
        ToForeign(CONNECT_CLEAN),
        ToForeign(b"\xe0\x00"),
        Close(),
        DialForeign(),
        ToForeign(CONNECT_THERE),
        Enter(),
        ToHere(CONNECT_HERE),
        ToForeign(SUBSCRIBE),
        ToForeign(b"\xc0\x00"),
        ToHere(SUBSCRIBE_HERE),
    ]
    assert leg.state is State.UP


def test_a_leg_of_mqtt_3_1_1_says_that_it_is_a_bridge() -> None:
    leg = new(version=4, username="u")
    leg.password = b"p"
    connect = b"\x10\x1b\x00\x04MQTT\x84%c\x00\x0a\x00\x09mqttree-n\x00\x01u\x00\x01p"
    effects = walk(leg)
    assert effects == [
        PREPARE,
        DialForeign(),
        ToForeign(connect % 0xC2),
        ToForeign(b"\xe0\x00"),
        Close(),
        DialForeign(),
        ToForeign(connect % 0xC0),
        Enter(),
        ToHere(b"\x10\x11\x00\x04MQTT\x84\x00\x00\x00\x00\x05leg:n"),
        ToForeign(b"\x82\x06\xff\xff\x00\x01#\x02"),
        ToForeign(b"\xc0\x00"),
        ToHere(
            b"\x82\x3a\xff\xff\x00\x01#\x02\x00\x1b$mqttree/leg/subscribed/2/#\x00"
            + PAIRED[:-1]
            + b"\0"
        ),
    ]


def test_the_session_here_obeys_what_the_foreign_broker_says() -> None:
    leg = new()
    leg.tick(0.0)
    leg.on_dialled(LocalSession({"$mqttree/leg/paired": 0}), 0.1)
    said = {
        Property.RECEIVE_MAXIMUM: 20,
        Property.MAXIMUM_PACKET_SIZE: 2_000_000,
        Property.TOPIC_ALIAS_MAXIMUM: 10,
        Property.MAXIMUM_QOS: 1,
        Property.RETAIN_AVAILABLE: 0,
        Property.SERVER_KEEP_ALIVE: 4,
    }
    leg.foreign_received(encode_packet(Connack(True, 0, said), 5), 0.2)
    assert leg.take_effects()[-2] == ToHere(
        b"\x10\x1f\x00\x04MQTT\x05\x00\x00\x00\x0d\x11\xff\xff\xff\xff\x21\x00\x14"
        b"\x27\x00\x1e\x84\x80\x00\x05leg:n"
    )
    leg.here_received(encode_packet(Connack(True, 0), 5), 0.2)
    leg.foreign_received(encode_packet(Suback(0xFFFF, [1]), 5), 0.3)
    leg.foreign_received(encode_packet(Pingresp(), 5), 0.3)
    sent = leg.take_effects()[-1]
    assert isinstance(sent, ToHere)
    assert sent.data[4:9] == b"\x00\x00\x01#\x25"
    leg.here_received(encode_packet(Suback(0xFFFF, [1, 0]), 5), 0.3)
    leg.take_effects()
    leg.tick(2.3)
    assert leg.take_effects() == [ToForeign(encode_packet(Pingreq(), 5))]
    leg.tick(6.3)
    assert leg.state is State.WAITING


def test_packets_that_come_early_wait_for_this_broker() -> None:
    """Also if the last one of them is cut."""
    leg = new()
    connect(leg, 0.1)
    data = b"".join(
        encode_packet(packet, 5)
        for packet in (
            Connack(False, 0),
            Publish("a", b"1"),
            Publish("b", b"2", 1, packet_id=1),
            Suback(0xFFFF, [2]),
            Pingresp(),
            Publish("c", b"3"),
        )
    )
    leg.foreign_received(data[:-3], 0.2)
    assert not leg.reads
    leg.foreign_received(data[-3:], 0.2)
    leg.take_effects()
    leg.here_received(encode_packet(Connack(False, 0), 5), 0.3)
    crossed = b"".join(e.data for e in leg.take_effects() if isinstance(e, ToHere))
    assert crossed == (
        encode_packet(Publish("a", b"1"), 5)
        + encode_packet(Publish("b", b"2", 1, packet_id=1), 5)
        + SUBSCRIBE_HERE
        + encode_packet(Publish("c", b"3"), 5)
    )
    assert leg.reads


def test_acknowledgements_cross_as_they_are() -> None:
    leg = new()
    walk(leg)
    for packet in (Puback(1), Puback(2, 0x10), Pubrec(3), Pubrel(4)):
        data = encode_packet(packet, 5)
        leg.here_received(data, 1.0)
        assert leg.take_effects() == [ToForeign(data)]
        leg.foreign_received(data, 1.0)
        assert leg.take_effects() == [ToHere(data)]


def test_topics_and_response_topics_get_their_other_names() -> None:
    leg = new_leg(settings("# both 2 here/ there/"))
    walk(leg)
    properties = {Property.RESPONSE_TOPIC: "there/reply", Property.CORRELATION_DATA: b"7"}
    leg.foreign_received(
        encode_packet(Publish("there/a", b"1", 2, True, packet_id=9), 5)
        + encode_packet(Publish("there/ask", b"?", properties=properties), 5)
        + encode_packet(Publish("elsewhere", b"3", 1, True, packet_id=8), 5)
        + encode_packet(Puback(5), 5),
        1.0,
    )
    here = properties | {Property.RESPONSE_TOPIC: "here/reply"}
    assert leg.take_effects() == [
        ToHere(
            encode_packet(Publish("here/a", b"1", 2, True, packet_id=9), 5)
            + encode_packet(Publish("here/ask", b"?", properties=here), 5)
            + encode_packet(Publish("$mqttree/leg/dropped", b"3", 1, packet_id=8), 5)
            + encode_packet(Puback(5), 5)
        )
    ]
    leg.here_received(encode_packet(Publish("here/ask", b"?", properties=here), 5), 1.0)
    there = encode_packet(Publish("there/ask", b"?", properties=properties), 5)
    assert leg.take_effects() == [ToForeign(there)]


@given(st.lists(st.integers(1, 60)))
def test_packets_are_found_wherever_they_are_cut(sizes: list[int]) -> None:
    packets = [
        encode_packet(packet, 5)
        for packet in (
            Publish("a", b"1"),
            Puback(1),
            Pingresp(),
            Publish("b", b"2" * 200, 2, packet_id=7),
            Suback(3, [0]),
            Disconnect(),
            Pubrel(2),
        )
    ]
    data, cutter, got = b"".join(packets), PacketCutter(), b""
    for size in [*sizes, len(data)]:
        for found in cutter.take(data[:size]):
            assert found[0] >> 4 in range(3, 8) or found in packets
            got += found
        data = data[size:]
    assert got == b"".join(packets)


# ---------------------------------------------------------------- refusals and pauses


def test_a_refusal_of_mqtt_5_is_followed_by_3_1_1() -> None:
    for answer in (b"\x20\x02\x00\x01", b"\x20\x03\x00\x84\x00"):
        leg = new()
        leg.tick(0.0)
        leg.on_dialled(None, 0.1)
        leg.foreign_received(answer, 0.2)
        assert (leg.state, leg.version) == (State.WAITING, 4)
        assert [type(e) for e in leg.take_effects()][-2:] == [Close, Log]
    leg = new(version=5)
    leg.tick(0.0)
    leg.on_dialled(None, 0.1)
    leg.foreign_received(b"\x20\x02\x00\x01", 0.2)
    assert leg.version == 5


@pytest.mark.parametrize("answer", [b"\x20\x02\x00\x01", None])
def test_a_broker_that_understands_nothing_is_tried_in_each_way(answer: bytes | None) -> None:
    """Whether it refuses the version, or closes twice."""
    for version, ways in ((0, (5, 0x84, 4)), (5, (5,)), (4, (0x84, 4))):
        leg, tried = new(version=version), []
        for _ in range(1 if answer else 2):
            for _ in range(2 * len(ways)):
                due = leg.next_deadline() or 0.0
                leg.tick(due)
                leg.on_dialled(None, due)
                tried += [e.data[8] for e in leg.take_effects() if isinstance(e, ToForeign)]
                if answer is None:
                    leg.on_lost("it closes", due)
                else:
                    leg.foreign_received(answer, due)
        times = 1 if answer else 2
        assert tried == [way for _ in range(2) for way in ways for _ in range(times)]


def test_a_refused_filter_is_named_and_the_rest_works() -> None:
    leg = new()
    connect(leg, 0.1)
    leg.foreign_received(encode_packet(Connack(False, 0), 5), 0.2)
    leg.here_received(encode_packet(Connack(False, 0), 5), 0.2)
    leg.take_effects()
    leg.foreign_received(encode_packet(Suback(0xFFFF, [0x87]), 5), 0.3)
    (line,) = leg.take_effects()
    assert isinstance(line, Log)
    assert "refuses the filter '#'" in line.text
    leg.foreign_received(encode_packet(Pingresp(), 5), 0.3)
    assert leg.take_effects() == [ToHere(b"\x82\x1d" + SUBSCRIBE[2:] + PAIRED)]
    leg.here_received(encode_packet(Suback(0xFFFF, [2]), 5), 0.3)
    assert leg.counters.refused_filters == ["#"]
    assert leg.state is State.UP


def test_a_leg_is_up_when_both_brokers_have_answered_subscribe() -> None:
    leg = new()
    connect(leg, 0.1)
    leg.foreign_received(encode_packet(Connack(False, 0), 5), 0.2)
    leg.here_received(encode_packet(Connack(False, 0), 5), 0.2)
    assert leg.state is State.SUBSCRIBING
    assert not [effect for effect in leg.take_effects() if isinstance(effect, Log)]
    answer_subscribe(leg)
    (line,) = [effect for effect in leg.take_effects() if isinstance(effect, Log)]
    assert "is up (MQTT 5)" in line.text
    leg = new()
    connect(leg, 0.1)
    leg.foreign_received(encode_packet(Connack(False, 0), 5), 0.2)
    leg.here_received(encode_packet(Connack(False, 0), 5), 0.2)
    leg.tick(0.3 + PATIENCE)
    assert leg.state is State.WAITING


def test_pauses_grow_with_jitter_and_begin_anew_after_a_while() -> None:
    leg, now, pauses = new(), 0.0, []
    for _ in range(200):
        leg.tick(now)
        leg.on_lost("no route", now)
        due = leg.next_deadline()
        assert due is not None
        pauses.append(due - now)
        now = due
    assert min(pauses) >= SHORTEST
    assert LONGEST / 2 < max(pauses) < LONGEST + 0.001
    assert len(set(pauses)) > 100
    connect(leg, now)
    leg.foreign_received(encode_packet(Connack(False, 0), 5), now)
    leg.here_received(encode_packet(Connack(False, 0), 5), now)
    leg.foreign_received(encode_packet(Suback(0xFFFF, [2]), 5), now)
    leg.foreign_received(encode_packet(Pingresp(), 5), now)
    leg.here_received(encode_packet(Suback(0xFFFF, [2, 0]), 5), now)
    leg.on_lost("reset", now + STABLE)
    due = leg.next_deadline()
    assert due is not None
    assert due - now - STABLE <= 3 * SHORTEST


def test_a_stopped_leg_dials_no_more() -> None:
    leg = new()
    walk(leg)
    leg.stop(1.0)
    assert leg.take_effects() == [ToForeign(encode_packet(Disconnect(), 5)), Close()]
    assert leg.next_deadline() is None
    leg.on_lost("closed", 1.0)
    leg.tick(100.0)
    assert leg.take_effects() == []


# ---------------------------------------------------------------- between two nodes


def clients(joined: Joined, version: int = 5) -> tuple[FakeClient, FakeClient]:
    """One at each node, subscribed to everything."""
    pair = joined.here.connect("h", version), joined.there.connect("t", version)
    for client in pair:
        client.subscribe("#", qos=2)
    return pair


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_crosses_once_and_does_not_come_back(version: int, qos: int) -> None:
    joined = Joined(version=version)
    assert joined.up
    here, there = clients(joined)
    for sender, receiver, topic in ((here, there, "h/1"), (there, here, "t/1")):
        packet_id = 1 if qos else None
        joined.send(sender, Publish(topic, b"x", qos, retain=True, packet_id=packet_id))
        if qos == 2:
            joined.send(sender, Pubrel(1))
        got = [p for p in receiver.take() if isinstance(p, Publish)]
        assert [(p.topic, p.payload, p.qos) for p in got] == [(topic, b"x", qos)]
        assert len([p for p in sender.take() if isinstance(p, Publish)]) == 1
    for world in (joined.here, joined.there):
        late = world.connect("late").subscribed("#")
        assert {p.topic for p in late.take_publishes() if p.retain} == {"h/1", "t/1"}


def test_a_foreign_broker_that_forgot_the_session_loses_nothing_of_ours() -> None:
    """And its new messages are not taken for repetitions, whatever their identifiers are."""
    joined = Joined()
    here, there = clients(joined)
    joined.edit = lambda effect: None if isinstance(effect, ToForeign) else effect
    joined.send(there, Publish("t", b"first", 2, packet_id=1), Pubrel(1))  # PUBREC is lost
    joined.send(here, Publish("h", b"ours", 2, packet_id=1))
    joined.edit = lambda effect: effect
    joined.cut()
    joined.there.node.end_session(joined.there.session("mqttree-n"), None)
    here.take()
    there.take()
    joined.advance(2 * LONGEST)
    assert joined.up
    assert joined.leg.counters.sessions_lost == 1
    assert sum("the foreign broker has lost the session" in line for line in joined.log) == 1
    assert [p.payload for p in there.take() if isinstance(p, Publish)] == [b"ours"]
    joined.send(there, Publish("t", b"second", 2, packet_id=2), Pubrel(2))
    assert [p.payload for p in here.take() if isinstance(p, Publish)] == [b"second"]


def test_a_leg_without_its_session_here_begins_anew_on_both_sides() -> None:
    joined = Joined()
    here, there = clients(joined)
    joined.send(here, Publish("h", b"1", 2, packet_id=1), Pubrel(1))
    joined.cut()
    joined.here.node.end_session(joined.here.session("leg:n"), None)
    here.take()
    there.take()
    joined.advance(2 * LONGEST)
    assert joined.up
    joined.send(here, Publish("h", b"2", 2, packet_id=1), Pubrel(1))
    assert [p.payload for p in there.take() if isinstance(p, Publish)] == [b"2"]


@pytest.mark.parametrize("version", [4, 5])
def test_a_rule_that_is_gone_is_unsubscribed_from_on_both_sides(version: int) -> None:
    joined = Joined("a/# both 2", "b/# in 1", version=version)
    for lines, filters, here in (
        (("a/# both 1",), {"a/#": 1}, {"a/#"}),
        (("c out 0",), {}, {"c"}),
    ):
        joined.leg.stop(joined.here.now)
        joined.run()
        joined.settings = settings(*lines, version=version)
        joined.begin()
        joined.run()
        assert joined.up
        kept = joined.there.node.sessions[joined.settings.client_id].subscriptions
        assert {f: each.qos for f, each in kept.items()} == filters
        wanted = joined.here.session("leg:n").subscriptions
        assert {f for f in wanted if not f.startswith("$mqttree/leg/")} == here


# ---------------------------------------------------------------- echoes, rings, its state


def without_bit(effect: LegEffect) -> LegEffect | None:
    """Bend a CONNECT of a bridge, so that the foreign broker closes without an answer."""
    if isinstance(effect, ToForeign) and effect.data[2:].startswith(b"\x00\x04MQTT\x84"):
        return ToForeign(b"\xff\xff\xff\xff\xff")
    return effect


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_echo_is_dropped_where_there_is_no_no_local(qos: int) -> None:
    joined = Joined(version=4, edit=without_bit)
    joined.advance(4 * LONGEST)
    assert joined.up
    assert any("without the bit of a bridge is tried" in line for line in joined.log)
    here, there = clients(joined)
    for payload in (b"1", b"2", b"2"):
        joined.send(here, Publish("t", payload, qos, packet_id=7))
        if qos == 2:
            joined.send(here, Pubrel(7))
        settle(joined, there)
    settle(joined, here)
    joined.send(there, Publish("t", b"1", qos, packet_id=8))
    settle(joined, there)
    got = [p.payload for p in settle(joined, here)]
    assert joined.leg.drops()["echoes"] == 3
    assert got == [b"1"]


def test_a_session_that_another_client_takes_again_and_again_is_named() -> None:
    """Though the foreign broker closes without a reason. One that lasts is no sign of it."""
    joined = Joined()
    joined.run()
    for number in range(5):
        if number == 2:
            joined.advance(BRIEF)
        assert joined.up
        joined.leg.on_lost(CLOSED, joined.here.now)
        joined.advance(LONGEST)
    assert not any("another client" in line for line in joined.log)
    joined.leg.on_lost(CLOSED, joined.here.now)
    joined.run()
    (line,) = [line for line in joined.log if "another client" in line]
    assert "it closes again and again: another client may be 'mqttree-n'" in line


def test_a_plain_leg_connects_without_the_bit_of_a_bridge_from_the_start() -> None:
    joined = Joined(version=4, plain=True)
    joined.run()
    assert joined.up
    assert any("is up (MQTT 3.1.1 without the bit of a bridge)" in line for line in joined.log)
    assert joined.leg.counters.failures == 0


def settle(joined: Joined, client: FakeClient) -> list[Publish]:
    """Have a client acknowledge all that it gets; returns that."""
    got = []
    while packets := client.take():
        for packet in packets:
            if isinstance(packet, Publish):
                got.append(packet)
                if packet.qos == 1:
                    client.send(Puback(packet.packet_id or 0))
                elif packet.qos == 2:
                    client.send(Pubrec(packet.packet_id or 0))
            elif isinstance(packet, Pubrel):
                client.send(encode_packet(Pubrel(packet.packet_id), 5).replace(b"\x62", b"\x70"))
        joined.run()
    return got


def test_a_ring_is_found_and_what_goes_round_is_muted() -> None:
    joined = Joined(foreign=(foreign := World()), probes=True)
    here, there = clients(joined)
    joined.cut()
    joined.advance(2 * LONGEST)
    (probe,) = [p for p in there.take() if isinstance(p, Publish)]
    assert probe.topic.startswith("mqttree/probe/leg/n/")
    assert joined.leg.relay.crossing.rings == 0
    joined.send(here, Publish(probe.topic, b""))
    assert joined.leg.relay.crossing.rings == 1
    assert "comes back to this federation by another way" in joined.log[-1]
    assert not [p for p in there.take() if isinstance(p, Publish)], "the probe does not go round"
    here.take()
    for number in range(40):
        joined.send(there, Publish("t", b"round"))
        joined.send(there, Publish("other", b"%d" % number))
    assert len([p for p in here.take() if isinstance(p, Publish) and p.payload == b"round"]) == 15
    assert joined.leg.drops()["muted"] == 25
    joined.advance(31.0)
    joined.send(there, Publish("t", b"round"))
    assert [p.payload for p in here.take() if isinstance(p, Publish)] == [b"round"]
    assert foreign.node.counters.protocol_errors == 0


@pytest.mark.parametrize("version", [4, 5])
def test_the_state_is_retained_at_both_brokers(version: int) -> None:
    joined = Joined(version=version, state_topic="state")

    def states() -> list[bytes]:
        found = []
        for number, world in enumerate((joined.here, joined.there)):
            client = world.connect(f"look{number}").subscribed("state")
            found += [p.payload for p in client.take() if isinstance(p, Publish)]
            client.vanish()
        return found

    assert states() == [b"1", b"1"]
    joined.reachable = False
    joined.cut()
    assert states() == [b"0", b"0"]
    joined.reachable = True
    joined.advance(2 * LONGEST)
    assert states() == [b"1", b"1"]
    joined.leg.stop(joined.here.now)
    joined.run()
    assert states() == [b"0", b"0"]


def test_the_same_failure_again_and_again_is_one_warning() -> None:
    """Also in turn with others."""
    leg, levels = new(), []
    for why in ("refused", "refused", "no route", "no route", "refused"):
        leg.tick(leg.next_deadline() or 0.0)
        leg.on_lost(why, leg.next_deadline() or 0.0)
        levels += [effect.level for effect in leg.take_effects() if isinstance(effect, Log)]
    assert levels == ["warning", "debug", "warning", "debug", "debug"]


def test_a_second_gateway_of_the_same_name_is_said_so() -> None:
    leg = new()
    walk(leg)
    leg.foreign_received(encode_packet(Disconnect(0x8E), 5), 1.0)
    assert "session taken over" in leg.last_error
    assert "no two gateways at one broker may have one name" in leg.last_error


@given(
    st.lists(
        st.tuples(st.sampled_from(["here", "there", "cut", "wait"]), st.integers(0, 2)),
        max_size=25,
    ),
    st.sampled_from([4, 5]),
    st.sampled_from([1, 2]),
)
def test_at_qos_2_each_message_crosses_once_however_often_a_leg_is_cut(
    steps: list[tuple[str, int]], version: int, qos: int
) -> None:
    """Of what is on its way when it is cut, the part behind the given number of effects is lost. At
    QoS 1 a message may come more than once, and none is missing."""
    joined = Joined(version=version)
    here, there = clients(joined)
    sent = {"here": [], "there": []}  # type: dict[str, list[bytes]]
    got = {"here": [], "there": []}  # type: dict[str, list[bytes]]
    pair = {"here": here, "there": there}

    def look() -> None:
        for side, client in pair.items():
            for packet in client.take():
                if isinstance(packet, Publish):
                    got[side].append(packet.payload)
                    if packet.qos == 1:
                        client.send(Puback(packet.packet_id or 0))
                    elif packet.qos == 2:
                        client.send(Pubrec(packet.packet_id or 0))
                elif isinstance(packet, Pubrec):
                    client.send(Pubrel(packet.packet_id))
                elif isinstance(packet, Pubrel):
                    client.send(
                        encode_packet(Pubrel(packet.packet_id), 5).replace(b"\x62", b"\x70")
                    )
            joined.run()

    for number, (what, count) in enumerate(steps):
        if what in pair:
            payload = b"%d" % number
            sent[what].append(payload)
            joined.send(pair[what], Publish("t", payload, qos, packet_id=number + 1))
            look()
        elif what == "wait":
            joined.advance(2 * LONGEST)
        elif "there" in joined.ends:
            left = [count]

            def lose(effect: LegEffect, left: list[int] = left) -> LegEffect | None:
                if isinstance(effect, ToForeign):
                    left[0] -= 1
                    return effect if left[0] >= 0 else None
                return effect

            joined.edit = lose
            payload = b"%d" % number
            sent["here"].append(payload)
            joined.send(here, Publish("t", payload, qos, packet_id=number + 1))
            look()
            joined.edit = lambda effect: effect
            if "there" in joined.ends:
                joined.cut()
    for _ in range(4):
        joined.advance(2 * LONGEST)
        look()
    assert joined.up
    everything = Counter(sent["here"] + sent["there"])
    for side in pair:
        if qos == 2:
            assert Counter(got[side]) == everything
        else:
            assert Counter(got[side]).keys() == everything.keys()
