"""What one side of a leg does not take is dropped, counted and answered, and the leg stays up:
whatever a foreign broker sends, no message is repeated for ever, and what follows it crosses."""

from __future__ import annotations

import pytest

from mqttree.broker.io.leg_report import drops_of
from mqttree.broker.leg.effects import LegEffect, ToForeign
from mqttree.broker.leg.packets import PacketCutter, under
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.broker.wire.packets import Publish, Pubrel
from tests.kit.leg_harness import Joined
from tests.kit.node_harness import World


def publish(qos: int, topic: bytes, properties: bytes) -> bytes:
    """A PUBLISH that no encoder may make, with the packet identifier 9. `properties`: with their
    length."""
    packet_id = b"\0\x09" if qos else b""
    return under(0x30 | qos << 1, topic, packet_id + properties)


def refused(joined: Joined) -> int:
    return drops_of(joined.leg, joined.here.session("leg:n"))["refused_here"]


# ---------------------------------------------------------------- answers of the foreign broker


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("kind", [0x40, 0x50])
@pytest.mark.parametrize("code", [0x80, 0x87, 0x8B, 0x93, 0x95, 0x97, 0xC0, 0xFF])
def test_any_refusal_drops_that_one_message(version: int, kind: int, code: int) -> None:
    """0x95 is Mosquitto's for a message beyond its `message_size_limit`, 0x93 its answer to too
    many at QoS 2. Neither is in the table of PUBACK and PUBREC."""
    joined = Joined(version=version)
    there, here = joined.there.connect("t").subscribed("#", qos=2), joined.here.connect("h")
    session = joined.here.session("leg:n")
    qos = 1 if kind == 0x40 else 2
    joined.edit = lambda effect: None if b"bad" in getattr(effect, "data", b"") else effect
    joined.send(here, Publish("bad", b"1", qos, packet_id=1))
    (number,) = session.inflight
    joined.leg.foreign_received(b"%c\3%b%c" % (kind, number.to_bytes(2), code), joined.here.now)
    joined.run()
    joined.send(here, Publish("good", b"2", 1, packet_id=2))
    assert joined.up
    assert [p.topic for p in there.take() if isinstance(p, Publish)] == ["good"]
    assert not session.inflight
    assert joined.leg.drops()["refused_there"] == 1
    joined.cut()
    joined.advance(60.0)
    assert not [p for p in there.take() if isinstance(p, Publish)]


@pytest.mark.parametrize(
    "answer",
    [
        b"\x40\x04\0\1\x95\x05",  # properties that end too early
        b"\x40\x05\0\1\0\1\xff",  # a property that there is not
        b"\x40\x03\0\1\x05",  # a code that says neither yes nor no
        b"\x50\x02\0\1",  # PUBREC at QoS 1
        b"\x70\x02\0\1",
        b"\x70\x03\0\1\x87",
    ],
)
def test_a_strange_answer_ends_its_message(answer: bytes) -> None:
    joined = Joined()
    here = joined.here.connect("h")
    session = joined.here.session("leg:n")
    here.send(Publish("a", b"1", 1, packet_id=1))
    assert list(session.inflight) == [1]
    joined.leg.foreign_received(answer, joined.here.now)
    joined.run()
    assert joined.up and not session.inflight


@pytest.mark.parametrize("code", [0x05, 0x80, 0x97])
def test_a_strange_pubrel_or_pubcomp_ends_its_message(code: int) -> None:
    joined = Joined()
    here, there = joined.here.connect("h").subscribed("#", qos=2), joined.there.connect("t")
    session = joined.here.session("leg:n")
    joined.leg.foreign_received(
        encode_packet(Publish("a", b"1", 2, packet_id=7), 5) + b"\x62\x03\0\x07%c" % code,
        joined.here.now,
    )
    here.send(Publish("b", b"1", 2, packet_id=1))
    (number,) = session.inflight
    joined.ends["here"].transport.written.clear()
    packet_id = number.to_bytes(2)
    joined.leg.foreign_received(
        b"\x50\2%b\x70\3%b%c" % (packet_id, packet_id, code), joined.here.now
    )
    joined.run()
    assert joined.up
    assert not session.incoming and not session.inflight
    assert not there.conn.closed


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("code", [0x87, 0x92, 0x97, 0x7F, 0xFF])
def test_any_failure_in_suback_refuses_the_filter(version: int, code: int) -> None:
    granted = b"\x90\x04\xff\xff\0%c" if version == 5 else b"\x90\x03\xff\xff%c"
    joined = Joined(version=version, hears=lambda data: data.replace(granted % 2, granted % code))
    assert joined.up
    assert joined.leg.counters.refused_filters == ["#"]
    assert sum("refuses the filter" in line for line in joined.log) == 1


def test_unsuback_may_say_what_it_likes() -> None:
    joined = Joined()
    joined.leg.foreign_received(b"\xb0\x05\xff\xfe\0\x99\x55", joined.here.now)
    joined.run()
    assert joined.up


# ---------------------------------------------------------------- messages of the foreign broker

BAD = {
    "too many levels": (b"/".join([b"a"] * 202), b"\0"),
    "a NUL": (b"a\0b", b"\0"),
    "no UTF-8": (b"a\xff", b"\0"),
    "a wildcard": (b"a/#", b"\0"),
    "no topic": (b"", b"\0"),
    "an unknown alias": (b"", b"\3\x23\0\5"),
    "alias 0": (b"a", b"\3\x23\0\0"),
    "a Subscription Identifier": (b"a", b"\2\x0b\7"),
    "an unknown property": (b"a", b"\2\x7f\7"),
    "properties that are cut": (b"a", b"\x7f"),
}
"""Topic and properties of messages of MQTT 5."""


@pytest.mark.parametrize("rule", ["# both 2", '# both 2 x/ ""'])
@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_that_is_not_taken_here_is_acknowledged_and_dropped(
    name: str, qos: int, rule: str
) -> None:
    sent: list[LegEffect] = []
    joined = Joined(rule, edit=lambda effect: (sent.append(effect), effect)[1])
    here = joined.here.connect("h").subscribed("#", qos=2)
    topic, properties = BAD[name]
    joined.leg.foreign_received(
        publish(qos, topic, properties) + publish(1, b"good", b"\0"), joined.here.now
    )
    joined.run()
    assert joined.up
    assert [p.topic[-4:] for p in here.take() if isinstance(p, Publish)] == ["good"]
    assert refused(joined) == 1
    assert not joined.here.session("leg:n").incoming
    answers = b"".join(e.data for e in sent if isinstance(e, ToForeign))
    assert (b"\0\x09\x80" in answers) == (qos > 0)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("piece", [7, 100, 10_000])
def test_a_message_that_is_too_large_is_acknowledged_and_dropped(
    version: int, qos: int, piece: int
) -> None:
    """MQTT 3.1.1 has no way to say how large a message may be. Nothing of it is kept."""
    joined = Joined(version=version, maximum_packet_size=1000)
    joined.deaf = True
    here = joined.here.connect("h").subscribed("#", qos=2)
    data = encode_packet(Publish("large", bytes(5000), qos, packet_id=9 if qos else None), version)
    data += encode_packet(Publish("good", b"2", 1, packet_id=3), version)
    for begin in range(0, len(data), piece):
        joined.leg.foreign_received(data[begin : begin + piece], joined.here.now)
        joined.run()
    if qos == 2:
        joined.leg.foreign_received(encode_packet(Pubrel(9), version), joined.here.now)
        joined.run()
    assert joined.up
    assert [p.topic for p in here.take() if isinstance(p, Publish)] == ["good"]
    assert refused(joined) == 1
    assert not joined.here.session("leg:n").incoming


def test_a_message_that_its_name_here_makes_too_large_is_taken() -> None:
    joined = Joined('# both 2 "a long prefix/" ""', here=World(max_packet_size=100), version=4)
    here = joined.here.connect("h").subscribed("#")
    there = joined.there.connect("t")
    joined.send(there, Publish("a", bytes(90), 1, packet_id=1))
    assert joined.up
    assert [p.topic for p in here.take() if isinstance(p, Publish)] == ["a long prefix/a"]


def test_a_broker_that_ignores_the_receive_maximum_is_not_closed() -> None:
    joined = Joined(here=World(receive_maximum=2))
    joined.deaf = True
    joined.here.connect("h").subscribe("#", qos=2)
    for number in range(1, 10):
        packet = encode_packet(Publish("a", b"%d" % number, 2, packet_id=number), 5)
        joined.leg.foreign_received(packet, joined.here.now)
    joined.run()
    assert joined.up
    assert joined.here.session("leg:n").incoming == set(range(1, 10))


@pytest.mark.parametrize("packet", [b"\x30\0", b"\x32\1a", b"\x40\0", b"\x50\1a"])
def test_a_packet_without_room_for_anything_is_malformed(packet: bytes) -> None:
    with pytest.raises(MalformedPacket):
        list(PacketCutter().take(packet))


def test_what_the_leg_drops_is_not_counted_as_refused() -> None:
    """Its name here would be one of the broker's own, where no client may publish."""
    joined = Joined('# in 2 "" out/')
    here, there = joined.here.connect("h").subscribed("#", qos=1), joined.there.connect("t")
    joined.send(there, Publish("out/$SYS", b"1", 1, packet_id=1), Publish("out/b", b""))
    joined.send(there, Publish("out/$SYS", b"1", 2, packet_id=2), Pubrel(2))
    assert joined.leg.drops()["unnamed"] == 2
    assert refused(joined) == 0
    assert [p.topic for p in here.take() if isinstance(p, Publish)] == ["b"]
    assert not joined.there.session("mqttree-n").inflight
