"""Sessions over several connections: what is kept, what is repeated, in which order, how much (MQTT
3.1.2.4, 4.1, 4.4, 4.6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.core.flow_control import HOLD_RECHECK_S, HOLD_TIMEOUT_S, LOOKS
from mqttree.broker.limits import Limits
from mqttree.broker.wire.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from mqttree.broker.wire.properties import Property
from tests.kit.node_harness import FakeClient, World, connect_packet

ALL = pytest.mark.parametrize("version", [3, 4, 5])
P = Property


def come(world: World, version: int = 5, **properties: int) -> FakeClient:
    """The client "a" of a session that stays for long."""
    options = None
    if version == 5:
        options = {P.SESSION_EXPIRY_INTERVAL: 1000} | {
            P[name.upper()]: value for name, value in properties.items()
        }
    return world.connect("a", version, clean=False, properties=options)


def told(packets: list) -> list:
    """(payload, packet identifier, DUP) of a PUBLISH, other packets as they are."""
    return [(p.payload, p.packet_id, p.dup) if isinstance(p, Publish) else p for p in packets]


@pytest.mark.statement("MQTT-3.1.2-5", "MQTT-4.5.0-1", "3.1.1/MQTT-3.1.2-5", "3.1.1/MQTT-4.5.0-1")
@ALL
def test_messages_wait_for_a_client_that_is_away(version: int) -> None:
    """MQTT-4.1.0-1, MQTT-3.1.2-5 of 3.1.1: QoS 1 and 2, in order; QoS 0 is not kept."""
    world = World()
    come(world, version).subscribed("t", qos=2).vanish()
    publisher = world.connect("p")
    for number, qos in enumerate([1, 0, 2, 1], 1):
        publisher.publish("t", b"%d" % number, qos, packet_id=number)
    client = come(world, version)
    assert told(client.inbox) == [(b"1", 1, False), (b"3", 2, False), (b"4", 3, False)]
    assert client.connack.session_present is (version > 3)


@pytest.mark.statement("MQTT-3.3.1-1", "MQTT-4.3.3-6", "MQTT-4.4.0-1", "MQTT-4.6.0-1")
@pytest.mark.statement("3.1.1/MQTT-2.3.1-4", "3.1.1/MQTT-3.3.1-1", "3.1.1/MQTT-4.1.0-1")
@pytest.mark.statement("3.1.1/MQTT-4.3.3-1", "3.1.1/MQTT-4.4.0-1", "3.1.1/MQTT-4.6.0-1")
@ALL
def test_unacknowledged_messages_are_repeated(version: int) -> None:
    """MQTT-4.4.0-1, -2, MQTT-3.3.1-1, MQTT-4.6.0-1: same identifiers and order, DUP, before what
    waited.

    PUBREL once PUBREC came.
    """
    world = World()
    client = come(world, version).subscribed("t", qos=2)
    publisher = world.connect("p")
    for number, qos in enumerate([1, 2, 1, 2, 2], 1):
        publisher.publish("t", b"%d" % number, qos, packet_id=number)
    client.take()
    client.send(Puback(1), Pubrec(4))
    assert client.take() == [Pubrel(4)]
    client.vanish()
    publisher.publish("t", b"6", 1, packet_id=6)
    for again in (False, True):
        client = come(world, version)
        assert told(client.inbox) == [
            (b"2", 2, True),
            (b"3", 3, True),
            Pubrel(4),
            (b"5", 5, True),
            (b"6", 6, again),
        ]
        client.vanish()
    client = come(world, version)
    client.take()
    client.send(Pubrec(2), Puback(3), Pubcomp(4), Pubrec(5), Puback(6))
    assert client.take() == [Pubrel(2), Pubrel(5)]
    client.send(Pubcomp(2), Pubcomp(5))
    assert not world.session("a").inflight


@pytest.mark.statement("MQTT-4.3.3-10", "3.1.1/MQTT-2.3.1-3")
@ALL
@pytest.mark.parametrize("state", range(4))
def test_a_publishers_qos_2_exchange_goes_on_after_reconnection(version: int, state: int) -> None:
    """MQTT-4.3.3: whatever of the exchange was lost, the message is delivered once."""
    world = World()
    subscriber = world.connect("s").subscribed("t", qos=2)
    client = come(world, version)
    if state > 0:
        client.publish("t", b"x", 2, packet_id=5)
    if state > 1:
        client.send(Pubrel(5))
    client.vanish()
    client = come(world, version)
    if state < 3:
        if state < 2:
            client.publish("t", b"x", 2, packet_id=5, dup=state == 1)
            assert client.take() == [Pubrec(5)]
        client.send(Pubrel(5))
        unknown = 0x92 if version == 5 and state == 2 else 0
        assert client.take() == [Pubcomp(5, unknown)]
    assert subscriber.payloads() == [b"x"]
    assert not world.session("a").incoming


def test_a_session_of_another_version_goes_on() -> None:
    world = World()
    client = come(world, 5).subscribed("t", qos=1, properties={P.SUBSCRIPTION_IDENTIFIER: [7]})
    world.connect("p").publish("t", b"x", 1, properties={P.CONTENT_TYPE: "c"})
    client.vanish()
    client = come(world, 4)
    assert client.inbox == [Publish("t", b"x", 1, dup=True, packet_id=1)]
    client = come(world, 5)
    assert client.inbox == [
        Publish("t", b"x", 1, False, True, 1, {P.SUBSCRIPTION_IDENTIFIER: [7], P.CONTENT_TYPE: "c"})
    ]
    client.inbox = []
    world.connect("p").publish("t", b"y")
    assert client.take() == [Publish("t", b"y", properties={P.SUBSCRIPTION_IDENTIFIER: [7]})]


@pytest.mark.statement("MQTT-3.3.4-9")
def test_a_smaller_receive_maximum_on_reconnection_is_kept_to() -> None:
    """What was in flight waits with its identifier; PUBRELs are not counted as messages but as
    places."""
    world = World()
    client = come(world).subscribed("t", qos=2)
    publisher = world.connect("p")
    for number, qos in enumerate([1, 2, 2, 1], 1):
        publisher.publish("t", b"%d" % number, qos, packet_id=number)
    client.send(Pubrec(2))
    client.vanish()
    publisher.publish("t", b"5", 1, packet_id=5)
    client = come(world, receive_maximum=2)
    assert told(client.inbox) == [(b"1", 1, True), Pubrel(2)]
    client.vanish()
    client = come(world, receive_maximum=2)
    assert told(client.inbox) == [(b"1", 1, True), Pubrel(2)]
    client.inbox = []
    publisher.publish("t", b"6", 1, packet_id=6)
    client.send(Puback(1))
    assert told(client.take()) == [(b"3", 3, True)]
    client.send(Pubcomp(2))
    assert told(client.take()) == [(b"4", 4, True)]
    client.send(Puback(4), Pubrec(3))
    assert told(client.take()) == [(b"5", 5, False), Pubrel(3)]
    client.send(Pubcomp(3), Puback(5))
    assert told(client.take()) == [(b"6", 6, False)]
    assert world.session("a").queued_bytes == 0


@pytest.mark.statement("MQTT-3.1.2-25")
def test_repeated_messages_do_not_exceed_the_maximum_packet_size() -> None:
    world = World()
    client = come(world).subscribed("t", qos=1)
    publisher = world.connect("p")
    publisher.publish("t", b"x" * 100, 1)
    publisher.publish("t", b"y", 1, packet_id=2)
    client.vanish()
    client = come(world, maximum_packet_size=50)
    assert told(client.inbox) == [(b"y", 2, True)]
    assert list(world.session("a").inflight) == [2]
    assert world.counters.dropped_too_large == 1


@pytest.mark.statement("MQTT-3.1.2-23", "MQTT-4.1.0-2")
def test_a_session_expires_after_its_interval() -> None:
    """A reconnection stops the clock."""
    world = World()
    world.connect("a", properties={P.SESSION_EXPIRY_INTERVAL: 10}).vanish()
    world.advance(9)
    client = world.connect("a", clean=False, properties={P.SESSION_EXPIRY_INTERVAL: 10})
    assert client.connack.session_present
    world.advance(50)
    client.vanish()
    world.advance(9.9)
    assert "a" in world.node.sessions
    world.advance(0.2)
    assert "a" not in world.node.sessions


@pytest.mark.statement("MQTT-3.1.2-23", "3.1.1/MQTT-3.1.2-4", "3.1.1/MQTT-4.1.0-1")
@pytest.mark.parametrize(("version", "interval"), [(4, None), (5, 0xFFFFFFFF)])
def test_a_session_may_never_expire(version: int, interval: int | None) -> None:
    world = World()
    properties = None if interval is None else {P.SESSION_EXPIRY_INTERVAL: interval}
    world.connect("a", version, clean=False, properties=properties).vanish()
    world.advance(1e9)
    assert "a" in world.node.sessions


def test_longest_expiry_for_old_clients() -> None:
    world = World(session_expiry_max=60)
    world.connect("a", 4, clean=False).vanish()
    world.advance(61)
    assert "a" not in world.node.sessions


@pytest.mark.statement("MQTT-4.1.0-2")
def test_a_session_that_ends_leaves_nothing() -> None:
    world = World()
    client = come(world).subscribed("t", "$share/g/t", "a/+", qos=1)
    client.publish("t", b"x", 1)
    client.vanish()
    world.advance(1001)
    assert not world.node.sessions
    assert not world.node.dispatcher.trie


def test_queue_of_a_client_that_is_away_is_bounded() -> None:
    world = World(limits=Limits(max_queued=10))
    come(world).subscribe("t", qos=1)
    world.peers[-1].vanish()
    publisher = world.connect("p")
    for number in range(1, 16):
        publisher.publish("t", b"%d" % number, 1, packet_id=number)
    assert len(publisher.take()) == 15
    assert world.counters.dropped_queue_full == 5
    assert [p.payload for p in come(world).inbox] == [b"%d" % n for n in range(1, 11)]


@pytest.mark.parametrize("where", ["payload", "topic", "properties"])
def test_bytes_of_the_queue_are_bounded(where: str) -> None:
    world = World(limits=Limits(max_queued_bytes=10_000))
    come(world).subscribe("#", qos=1)
    world.peers[-1].vanish()
    publisher = world.connect("p")
    big = "x" * 3000
    for number in range(1, 6):
        publisher.publish(
            big if where == "topic" else "t",
            big.encode() if where == "payload" else b"",
            1,
            packet_id=number,
            properties={P.CONTENT_TYPE: big} if where == "properties" else None,
        )
    assert world.counters.dropped_queue_full == 2
    assert len(come(world).inbox) == 3
    assert world.session("a").queued_bytes == 0


def overrun(world: World) -> tuple[FakeClient, FakeClient]:
    """A client whose window is full, and a publisher that is held for it."""
    client = come(world, receive_maximum=1).subscribed("t", qos=1)
    publisher = world.connect("p")
    for number in range(1, 12):
        publisher.publish("t", b"x", 1, packet_id=number)
    assert not publisher.transport.reading
    return client, publisher


def test_a_window_that_is_full_queues() -> None:
    """A connected client that does not acknowledge: bounded, and its publisher is held back for
    `HOLD_TIMEOUT_S` at most."""
    world = World(limits=Limits(hold_queued=10, max_queued=20))
    client, publisher = overrun(world)
    world.advance(HOLD_TIMEOUT_S + HOLD_RECHECK_S + 0.01)
    assert publisher.transport.reading
    for number in range(20, 40):
        publisher.publish("t", b"x", 1, packet_id=number)
    assert publisher.transport.reading
    assert world.counters.dropped_queue_full == 10
    acknowledged = 0
    while messages := [p for p in client.take() if isinstance(p, Publish)]:
        client.send(*(Puback(p.packet_id) for p in messages))
        acknowledged += len(messages)
    assert acknowledged == 21
    assert not client.conn.stalled


@pytest.mark.parametrize("stopped", [0.6, 0.9, 3.0])
def test_a_broker_that_was_stopped_reads_before_it_judges(stopped: float) -> None:
    world = World(limits=Limits(hold_queued=10))
    client, _ = overrun(world)
    world.now += stopped
    world.node.tick(world.now)
    for packet in client.take():  # which waited in the kernel
        if isinstance(packet, Publish):
            client.send(Puback(packet.packet_id))
    world.advance(HOLD_RECHECK_S + 0.01)
    assert not client.conn.stalled
    world.advance(HOLD_TIMEOUT_S + HOLD_RECHECK_S)
    assert client.conn.stalled


def test_a_broker_that_is_late_each_time_judges_at_last() -> None:
    world = World(limits=Limits(hold_queued=10))
    client, publisher = overrun(world)
    for _ in range(1 + LOOKS):
        assert not client.conn.stalled
        world.now += 0.6
        world.node.tick(world.now)
    assert client.conn.stalled
    assert publisher.transport.reading


@pytest.mark.statement("3.1.1/MQTT-4.8.0-2")
def test_the_number_of_sessions_is_bounded() -> None:
    world = World(limits=Limits(max_sessions=2))
    for name in "ab":
        world.connect(name, 4, clean=False).vanish()
    for version, code in ((4, 3), (5, 0x97)):
        client = world.open(version).sent(connect_packet("c", version))
        assert client.last_reason() == code
        assert client.closed
    assert world.counters.sessions_refused == 2
    assert world.connect("a", 4, clean=False).connack.session_present


# ---------------------------------------------------------------- any order of events


@pytest.mark.statement("MQTT-4.6.0-5", "3.1.1/MQTT-4.6.0-6")
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("publish"), st.integers(0, 2)),
            st.tuples(st.just("answer"), st.integers(0, 5)),
            st.tuples(st.just("vanish"), st.sampled_from([1, 2, 5, 65535])),
            st.tuples(st.just("take over"), st.sampled_from([1, 3, 65535])),
        ),
        max_size=60,
    ),
    st.sampled_from([4, 5]),
)
def test_messages_come_exactly_once_and_in_order_whatever_breaks(
    events: list[tuple[str, int]], version: int
) -> None:
    """A correct client gets each QoS 2 message once and each QoS 1 message at least once, in order,
    over any reconnections."""
    world = World()
    publisher = world.connect("p")
    client = Receiver(world, version, 65535)
    client.peer.subscribe("t", qos=2)
    sent: dict[int, list[bytes]] = {1: [], 2: []}
    for number, (event, value) in enumerate(events, 1):
        if event == "publish":
            publisher.publish("t", b"%d" % number, value, packet_id=number)
            if value == 2:
                publisher.send(Pubrel(number))
            if value:
                sent[value].append(b"%d" % number)
        elif event == "answer":
            client.answer(value)
        else:
            if event == "vanish":
                client.peer.vanish()
            client = client.again(value)
    for _ in range(400):
        if not client.answer(10):
            break
    assert client.got[2] == sent[2]
    assert list(dict.fromkeys(client.got[1])) == sent[1]
    session = world.session("a")
    assert not session.inflight
    assert not session.queue
    assert session.queued_bytes == 0


class Receiver:
    """A client that keeps its session state as it should, and answers only when a test says."""

    def __init__(self, world: World, version: int, receive_maximum: int) -> None:
        self.world = world
        self.version = version
        self.maximum = receive_maximum
        self.got: dict[int, list[bytes]] = {1: [], 2: []}
        self.known: set[int] = set()
        self.waiting: list = []
        self._come()

    def _come(self) -> None:
        self.peer = come(self.world, self.version, receive_maximum=self.maximum)
        self.waiting = []
        self.open = 0

    def again(self, receive_maximum: int) -> Receiver:
        self.maximum = receive_maximum
        self._come()
        return self

    def answer(self, count: int) -> int:
        for packet in self.peer.take():
            if isinstance(packet, Publish | Pubrel):
                self.waiting.append(packet)
                if isinstance(packet, Publish) and packet.qos:
                    self.open += 1
                    assert self.version != 5 or self.open <= self.maximum
        now, self.waiting = self.waiting[:count], self.waiting[count:]
        for packet in now:
            if isinstance(packet, Pubrel):
                self.known.discard(packet.packet_id)
                self.open = max(0, self.open - 1)
                self.peer.send(Pubcomp(packet.packet_id))
            elif packet.qos == 1:
                self.got[1].append(packet.payload)
                self.open -= 1
                self.peer.send(Puback(packet.packet_id))
            elif packet.qos == 2:
                if packet.packet_id not in self.known:
                    self.known.add(packet.packet_id)
                    self.got[2].append(packet.payload)
                self.peer.send(Pubrec(packet.packet_id))
        return len(now)
