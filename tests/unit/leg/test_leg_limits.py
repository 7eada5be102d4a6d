"""Legs at foreign brokers that take little, or refuse, and at brokers that are slow."""

from __future__ import annotations

import pytest

from mqttree.broker.io.leg_watch import DROPPED, LegWatch
from mqttree.broker.limits import Limits
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Puback, Publish, Pubrel
from mqttree.broker.wire.properties import Property
from mqttree.broker.wire.publish_header import PACKET_IDS, PUBACK_HEAD
from tests.kit.leg_harness import Joined, settings
from tests.kit.node_harness import World


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("heir", [False, True])
def test_messages_wait_for_a_foreign_broker_that_was_never_there(version: int, heir: bool) -> None:
    """The foreign session is begun anew then, as a bridge of Mosquitto does."""
    joined = Joined(version=version, standby=True)
    joined.reachable = False
    here, there = joined.here.connect("h"), joined.there.connect("t").subscribed("#", qos=2)
    old = joined.there.connect("mqttree-n", properties={Property.SESSION_EXPIRY_INTERVAL: 3600})
    old.subscribe("old", qos=1)
    old.vanish()
    joined.leg.take_turn(joined.here.now, heir=heir)
    joined.run()
    for number in range(6):
        joined.send(here, Publish("t", b"%d" % number, 1 + number % 2, packet_id=1 + number))
        joined.send(here, Pubrel(1 + number))
    joined.advance(40.0)
    joined.reachable = True
    joined.advance(40.0)
    assert joined.up
    assert [p.payload for p in there.take() if isinstance(p, Publish)] == [
        b"%d" % number for number in range(6)
    ]
    assert joined.leg.counters.sessions_lost == 0
    assert ("old" in joined.there.session("mqttree-n").subscriptions) == heir


def test_a_filter_that_is_new_has_messages_wait_while_the_foreign_broker_is_away() -> None:
    joined = Joined("a out 1")
    here, there = joined.here.connect("h"), joined.there.connect("t").subscribed("#", qos=2)
    joined.reachable = False
    joined.cut()
    joined.send(here, *[Publish("a", b"%d" % n, 1, packet_id=n) for n in (1, 2, 3)])
    joined.settings = settings("a out 1", "b out 1")
    joined.begin()
    joined.run()
    joined.send(here, *[Publish("b", b"%d" % n, 1, packet_id=n) for n in (4, 5)])
    joined.reachable = True
    joined.advance(40.0)
    assert [p.payload for p in there.take() if isinstance(p, Publish)] == [
        b"%d" % number for number in range(1, 6)
    ]


def test_no_more_is_in_flight_than_the_foreign_broker_takes() -> None:
    joined = Joined(foreign=World(receive_maximum=20))
    here, there = joined.here.connect("h"), joined.there.connect("t").subscribed("#", qos=1)
    session = joined.here.session("leg:n")
    most = 0
    for number in range(1, 101):
        here.send(Publish("a", b"%d" % number, 1, packet_id=number))
        most = max(most, len(session.inflight))
    joined.run()
    assert most == 20
    got = []
    while packets := [p for p in there.take() if isinstance(p, Publish)]:
        got += [p.payload for p in packets]
        there.send(*[Puback(p.packet_id or 0) for p in packets])
        joined.run()
    assert got == [b"%d" % number for number in range(1, 101)]
    assert joined.there.node.counters.protocol_errors == 0


@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_too_large_for_the_foreign_broker_is_dropped_once(qos: int) -> None:
    joined = Joined(foreign=World(max_packet_size=1000))
    here, there = joined.here.connect("h"), joined.there.connect("t").subscribed("#", qos=1)
    joined.send(here, Publish("large", bytes(2000), qos, packet_id=1))
    joined.send(here, Publish("small", b"x", qos, packet_id=2))
    assert [p.topic for p in there.take() if isinstance(p, Publish)] == ["small"]
    assert joined.here.session("leg:n").dropped_large == 1
    joined.cut()
    joined.advance(60.0)
    assert joined.up
    assert joined.here.session("leg:n").dropped_large == 1


def test_a_message_that_the_foreign_broker_refuses_is_counted_and_not_repeated() -> None:
    joined = Joined()
    here = joined.here.connect("h")
    refused = PUBACK_HEAD[:1] + b"\x03" + PACKET_IDS[1] + b"\x87"
    assert len(encode_packet(Puback(1, 0x87), 5)) == len(refused)
    session = joined.here.session("leg:n")
    here.send(Publish("a", b"1", 1, packet_id=1))
    assert len(session.inflight) == 1
    joined.leg.foreign_received(refused, joined.here.now)
    joined.run()
    assert not session.inflight
    assert joined.leg.drops()["refused_there"] == 1
    assert joined.up


def test_publishers_wait_for_a_slow_foreign_broker() -> None:
    joined = Joined(limits=Limits(hold_queued=50), foreign=World(receive_maximum=20))
    here = joined.here.connect("h")
    end = joined.ends["here"]
    end.conn.pause()  # as the driver does while the foreign broker takes no more
    for number in range(1, 2000):
        here.send(Publish("a", b"x", 1, packet_id=number))
        if here.conn.held:
            break
    assert here.conn.held
    session = joined.here.session("leg:n")
    assert session.dropped_full == 0
    end.conn.writable(joined.here.now)
    joined.run()
    joined.advance(1.0)
    assert not here.conn.held


def test_the_foreign_broker_is_not_read_while_a_subscriber_here_is_slow() -> None:
    joined = Joined(limits=Limits(hold_queued=50))
    slow, there = (
        joined.here.connect("slow", properties={Property.RECEIVE_MAXIMUM: 20}),
        joined.there.connect("t"),
    )
    slow.subscribe("#", qos=1)
    end = joined.ends["here"]
    for number in range(1, 2000):
        joined.send(there, Publish("a", b"x", 1, packet_id=number))
        if not end.transport.reading:
            break
    assert not end.transport.reading
    assert joined.here.session("slow").dropped_full == 0


def test_drops_are_a_line_for_each_reason_and_connection(caplog: pytest.LogCaptureFixture) -> None:
    watch = LegWatch("n")
    for drops, connects in ((0, 1), (1, 1), (2, 1), (2, 2), (3, 2)):
        watch.look_at_drops(dict.fromkeys(DROPPED, drops), connects)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == 2 * [f"leg n: {text}, see {reason}" for reason, text in DROPPED.items()]
