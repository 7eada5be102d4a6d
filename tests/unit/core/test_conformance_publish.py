"""PUBLISH, its acknowledgements, delivery and flow control (MQTT-3.3 to MQTT-3.7, MQTT-4.3 to
MQTT-4.6, MQTT-4.9): see docs/conformance.md."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.wire import (
    Packet,
    Pingreq,
    Pingresp,
    Property,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from tests.kit.node_harness import FakeClient, World

ALL = pytest.mark.parametrize("version", [3, 4, 5])
P = Property


def stay(world: World, version: int = 5, **properties: int) -> FakeClient:
    """The client "s" with a session that stays."""
    options = {P.SESSION_EXPIRY_INTERVAL: 1000} | {
        P[name.upper()]: value for name, value in properties.items()
    }
    return world.connect("s", version, clean=False, properties=options if version == 5 else None)


# ---------------------------------------------------------------- delivery


@pytest.mark.statement("MQTT-4.3.2-3", "MQTT-4.3.3-3", "MQTT-4.3.3-5", "MQTT-4.4.0-1")
@pytest.mark.statement("MQTT-4.5.0-2", "3.1.1/MQTT-4.3.2-1", "3.1.1/MQTT-4.5.0-2", "3.1/repetition")
@ALL
def test_nothing_is_sent_again_on_one_connection(version: int) -> None:
    """MQTT-4.4.0-1: only a reconnection repeats, however long an acknowledgement takes;
    MQTT-4.3.2-3, MQTT-4.3.3-3, -5."""
    world = World()
    publisher, subscriber = world.connect("p", version), stay(world, version)
    subscriber.subscribe("t", qos=2)
    for number, qos in ((1, 1), (2, 2), (3, 2)):
        publisher.publish("t", b"%d" % number, qos, packet_id=number)
    assert [p.packet_id for p in subscriber.take_publishes()] == [1, 2, 3]
    subscriber.send(Pubrec(3))
    assert subscriber.take() == [Pubrel(3)]
    world.advance(100_000)
    assert subscriber.take() == []
    assert list(world.session("s").inflight) == [1, 2, 3]
    subscriber.vanish()
    again = stay(world, version).inbox
    assert [(p.packet_id, p.dup) if isinstance(p, Publish) else p for p in again] == [
        (1, True),
        (2, True),
        Pubrel(3),
    ]


@pytest.mark.statement("MQTT-4.3.2-5", "MQTT-4.3.3-12", "3.1.1/MQTT-4.3.2-2", "3.1.1/MQTT-4.3.3-2")
@ALL
@pytest.mark.parametrize("dup", [False, True])
def test_an_acknowledged_identifier_is_a_new_message(version: int, dup: bool) -> None:
    """MQTT-4.3.2-5, MQTT-4.3.3-12: after PUBACK or PUBCOMP, whatever DUP says (MQTT-4.3.2-2,
    4.3.3-2 of 3.1.1)."""
    world = World()
    publisher, subscriber = world.connect("p", version), world.connect("s", version)
    subscriber.subscribe("t")
    for number in (1, 2):
        publisher.publish("t", b"one %d" % number, 1, packet_id=7, dup=dup)
        assert publisher.take() == [Puback(7)]
        publisher.publish("t", b"two %d" % number, 2, packet_id=7, dup=dup)
        publisher.send(Pubrel(7))
        assert publisher.take() == [Pubrec(7), Pubcomp(7)]
    assert subscriber.payloads() == [b"one 1", b"two 1", b"one 2", b"two 2"]


@pytest.mark.statement("MQTT-3.3.1-2", "MQTT-3.3.1-3", "MQTT-4.3.1-1", "3.1.1/MQTT-3.3.1-2")
@pytest.mark.statement("3.1.1/MQTT-3.3.1-3", "3.1.1/MQTT-4.3.1-1")
@ALL
@pytest.mark.parametrize("dup", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_dup_and_qos_are_right_on_the_wire(version: int, qos: int, dup: bool) -> None:
    """DUP at QoS 0 is malformed; otherwise it says nothing of what subscribers get."""
    world = World()
    publisher, subscriber = world.connect("p", version), world.connect("s", version)
    subscriber.subscribe("t", qos=2)
    publisher.publish("t", b"x", qos, dup=dup)
    assert publisher.closed is (dup and qos == 0)
    expected = [] if publisher.closed else [Publish("t", b"x", qos, packet_id=1 if qos else None)]
    assert subscriber.take() == expected


@pytest.mark.statement("MQTT-4.3.3-7")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_was_sent_does_not_expire(qos: int) -> None:
    """It is repeated, with the least Message Expiry Interval that there is, and its exchange goes
    on."""
    world = World()
    publisher, subscriber = world.connect("p"), stay(world)
    subscriber.subscribe("t", qos=2)
    publisher.publish("t", b"x", qos, properties={P.MESSAGE_EXPIRY_INTERVAL: 5})
    subscriber.take()
    subscriber.vanish()
    world.advance(60)
    subscriber = stay(world)
    assert subscriber.inbox == [
        Publish("t", b"x", qos, dup=True, packet_id=1, properties={P.MESSAGE_EXPIRY_INTERVAL: 1})
    ]
    subscriber.inbox = []
    subscriber.send(Puback(1) if qos == 1 else Pubrec(1))
    assert subscriber.take() == ([] if qos == 1 else [Pubrel(1)])


@pytest.mark.statement("MQTT-4.3.3-13")
def test_the_exchange_with_the_publisher_does_not_expire() -> None:
    world = World()
    publisher = world.connect("p")
    publisher.publish("t", b"x", 2, properties={P.MESSAGE_EXPIRY_INTERVAL: 1})
    assert publisher.take() == [Pubrec(1)]
    world.advance(60)
    publisher.publish("t", b"x", 2, dup=True, properties={P.MESSAGE_EXPIRY_INTERVAL: 1})
    publisher.send(Pubrel(1))
    assert publisher.take() == [Pubrec(1), Pubcomp(1)]


@pytest.mark.statement("MQTT-3.3.2-5")
def test_expired_messages_are_not_sent() -> None:
    """Neither from the queue of a client that is away, nor behind a full window, nor retained."""
    world = World()
    publisher, busy = world.connect("p"), world.connect("b", properties={P.RECEIVE_MAXIMUM: 1})
    away = stay(world)
    for client in (away, busy):
        client.subscribe("t", qos=1)
    away.vanish()
    busy.subscribe("first", qos=1)
    publisher.publish("first", b"first", 1)
    publisher.publish(
        "t", b"short", 1, packet_id=2, properties={P.MESSAGE_EXPIRY_INTERVAL: 5}, retain=True
    )
    publisher.publish(
        "t/long", b"long", 1, packet_id=3, properties={P.MESSAGE_EXPIRY_INTERVAL: 50}, retain=True
    )
    publisher.publish("t", b"without", 1, packet_id=4)
    world.advance(10)
    assert busy.payloads() == [b"first"]
    busy.send(Puback(1))
    assert busy.payloads() == [b"without"]
    assert [p.payload for p in stay(world).inbox if isinstance(p, Publish)] == [b"without"]
    late = world.connect("l")
    late.subscribe("t/#", qos=1)
    (packet,) = late.take_publishes()
    assert (packet.payload, packet.properties) == (b"long", {P.MESSAGE_EXPIRY_INTERVAL: 40})


@pytest.mark.statement("MQTT-4.6.0-2", "MQTT-4.6.0-3", "MQTT-4.6.0-4", "3.1.1/MQTT-4.6.0-2")
@pytest.mark.statement("3.1.1/MQTT-4.6.0-3", "3.1.1/MQTT-4.6.0-4")
@ALL
def test_acknowledgements_come_in_the_order_of_messages(version: int) -> None:
    """MQTT-4.6.0-2 to -4 bind clients; the broker answers in the order of what it answers, too."""
    world = World()
    publisher, subscriber = world.connect("p", version), world.connect("s", version)
    subscriber.subscribe("t", qos=2)
    order = [9, 3, 7, 1]
    publisher.send(*(Publish("t", b"%d" % n, 1 + n % 2, packet_id=n) for n in [*order, 2, 4]))
    assert [p.packet_id for p in publisher.take()] == [*order, 2, 4]
    publisher.send(*(Pubrel(n) for n in reversed(order)))
    assert [p.packet_id for p in publisher.take()] == [1, 7, 3, 9]
    got = subscriber.take_publishes()
    assert [p.payload for p in got] == [b"%d" % n for n in [*order, 2, 4]]
    twos = [p.packet_id for p in got if p.qos == 2]
    subscriber.send(*(Pubrec(n) for n in reversed(twos)))
    assert subscriber.take() == [Pubrel(n) for n in reversed(twos)]


# ---------------------------------------------------------------- topic aliases


@pytest.mark.statement("MQTT-3.3.2-12")
def test_every_topic_alias_that_was_granted_is_taken() -> None:
    """MQTT-3.3.2-12, MQTT-3.2.2-17: 1 to the Topic Alias Maximum of CONNACK, each its own, at each
    QoS."""
    world = World()
    publisher, subscriber = world.connect("p"), world.connect("s")
    subscriber.subscribe("#", qos=2)
    maximum = publisher.connack.properties[P.TOPIC_ALIAS_MAXIMUM]
    assert maximum == NodeConfig().topic_alias_maximum
    for number in range(1, maximum + 1):
        publisher.publish(f"t/{number}", b"named", 0, properties={P.TOPIC_ALIAS: number})
    for number in range(1, maximum + 1):
        publisher.publish(
            "", b"short", number % 3, packet_id=number, properties={P.TOPIC_ALIAS: number}
        )
    got = subscriber.take_publishes()
    assert [p.topic for p in got] == [f"t/{n}" for n in range(1, maximum + 1)] * 2
    # None was granted to us [MQTT-3.1.2-27].
    assert not any(P.TOPIC_ALIAS in (p.properties or {}) for p in got)


def test_no_topic_alias_before_mqtt_5() -> None:
    """An empty Topic Name has no meaning there (MQTT-4.7.3-1)."""
    publisher = World().connect("p", 4)
    publisher.publish("", b"x")
    assert publisher.closed


# ---------------------------------------------------------------- flow control


def acknowledge(packet: Publish) -> Packet:
    assert packet.packet_id is not None
    return Puback(packet.packet_id) if packet.qos == 1 else Pubrec(packet.packet_id, 0x80)


@pytest.mark.statement("MQTT-3.3.4-9", "MQTT-4.9.0-1", "MQTT-4.9.0-2")
@pytest.mark.parametrize("maximum", [1, 2, 10, 65535])
@pytest.mark.parametrize("qos", [1, 2])
def test_the_send_window_is_the_clients_receive_maximum(maximum: int, qos: int) -> None:
    """All of it and not one more; the first waits for nothing."""
    world = World()
    publisher = world.connect("p")
    subscriber = world.connect("s", properties={P.RECEIVE_MAXIMUM: maximum})
    subscriber.subscribe("t", qos=2)
    count = 40
    for number in range(1, count + 1):
        publisher.publish("t", b"%d" % number, qos, packet_id=number)
    seen: list[bytes] = []
    while packets := subscriber.take_publishes():
        assert len(packets) == min(maximum, count - len(seen))
        seen += [p.payload for p in packets]
        subscriber.send(*map(acknowledge, packets))
    assert seen == [b"%d" % n for n in range(1, count + 1)]


# what the client sends while nothing more may be sent to it at QoS 1 and 2 -> what it gets
UNHELD: dict[str, tuple[Packet, Callable[[], list[Packet]]]] = {
    "PINGREQ": (Pingreq(), lambda: [Pingresp()]),
    "SUBSCRIBE": (Subscribe(5, [SubscriptionRequest("u", 1)]), lambda: [Suback(5, [1])]),
    "UNSUBSCRIBE": (Unsubscribe(6, ["nothing"]), lambda: [Unsuback(6, [0x11])]),
    "PUBLISH at QoS 0": (Publish("t", b"0"), lambda: [Publish("t", b"0")]),
    "PUBLISH at QoS 1": (Publish("v", b"1", 1, packet_id=1), lambda: [Puback(1)]),
    "PUBLISH at QoS 2": (Publish("v", b"2", 2, packet_id=2), lambda: [Pubrec(2)]),
    "PUBREL": (Pubrel(9), lambda: [Pubcomp(9)]),
    "PUBREC": (Pubrec(1), lambda: [Pubrel(1)]),
}


@pytest.mark.statement("MQTT-3.3.4-10", "MQTT-4.9.0-3")
@pytest.mark.parametrize("name", UNHELD)
def test_a_full_window_holds_only_publish(name: str) -> None:
    packet, answer = UNHELD[name]
    world = World()
    client = world.connect("c", properties={P.RECEIVE_MAXIMUM: 1})
    client.subscribe("t", qos=2)
    client.publish("w", b"open", 2, packet_id=9)
    publisher = world.connect("p")
    publisher.publish("t", b"in flight", 2, packet_id=1)
    publisher.publish("t", b"waits", 2, packet_id=2)
    assert [p.payload for p in client.take() if isinstance(p, Publish)] == [b"in flight"]
    client.send(packet)
    assert client.take() == answer()


# ---------------------------------------------------------------- retained messages


@pytest.mark.statement("MQTT-3.3.1-5", "MQTT-3.3.1-6", "MQTT-3.3.1-7", "MQTT-3.3.1-8")
@pytest.mark.statement("3.1.1/MQTT-3.3.1-5", "3.1.1/MQTT-3.3.1-7", "3.1.1/MQTT-3.3.1-10")
@pytest.mark.statement("3.1.1/MQTT-3.3.1-9", "3.1.1/MQTT-3.3.1-11", "3.1.1/MQTT-3.3.1-12")
@ALL
def test_retain_stores_replaces_and_deletes_messages(version: int) -> None:
    """Set, replaced, kept, removed, nothing stored."""
    steps = [
        ("kept without RETAIN", b"no", False, []),
        ("stored", b"1", True, [b"1"]),
        ("not replaced", b"2", False, [b"1"]),
        ("replaced", b"3", True, [b"3"]),
        ("an empty one without RETAIN", b"", False, [b"3"]),
        ("removed", b"", True, []),
        ("removed again", b"", True, []),
    ]
    for qos in (0, 1, 2):
        world = World()
        publisher, watcher = world.connect("p", version), world.connect("w", version)
        watcher.subscribe("t")
        for number, (name, payload, retain, stored) in enumerate(steps, 1):
            publisher.publish("t", payload, qos, packet_id=number, retain=retain)
            got = [(p.payload, p.retain) for p in watcher.take_publishes()]
            assert got == [(payload, False)], name
            late = world.connect("late", version)
            late.subscribe("t", qos=qos)
            assert [(p.payload, p.retain, p.qos) for p in late.take_publishes()] == [
                (body, True, qos) for body in stored
            ], name
