"""A broker that is killed and starts again: what it has promised is there (docs/decisions/0021)."""

from __future__ import annotations

import asyncio
import copy
import random
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from mqttree.broker.auth.acl_file import parse_rules
from mqttree.broker.auth.authorization import Access
from mqttree.broker.cluster.drain import Drain, DrainOptions
from mqttree.broker.cluster.sessions.tombstones import end_quietly
from mqttree.broker.compat.api import BrokerApi
from mqttree.broker.core.session import Session
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.persistence.output_gate import OutputGate
from mqttree.broker.persistence.recovery import BEAT_INTERVAL_S
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import (
    Connack,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from mqttree.broker.wire.properties import Property
from tests.kit.journal_harness import Durable, Files, picture
from tests.kit.node_harness import FakeClient, World, connect_packet

FOREVER: dict[int, Any] = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}


def durable_client(world: Durable, name: str = "k", version: int = 5, **options: Any) -> FakeClient:
    """A client that wants its session kept, and goes on with the one that it has."""
    if version == 5:
        options["properties"] = FOREVER | options.get("properties", {})
    return world.connect(name, version, clean=False, **options)


# ---------------------------------------------------------------- what comes back


@pytest.mark.statement("MQTT-3.1.2-5", "3.1.1/MQTT-3.1.2-4")
@pytest.mark.parametrize("version", [4, 5])
def test_a_session_comes_back(version: int) -> None:
    world = Durable()
    client = durable_client(world, version=version)
    assert client.connack.session_present is False
    client.subscribe("a/+", qos=2)
    client.vanish()
    world.connect("p").publish("a/1", b"away", 1)
    again = world.again(5)
    back = durable_client(again, version=version)
    assert back.connack.session_present is True
    assert back.payloads() == [b"away"]
    back.send(Puback(1))
    again.connect("p").publish("a/2", b"live", 2)
    assert back.payloads() == [b"live"]


def gone_on_with(world: Durable, *, snapshot: bool) -> Session:
    """A session with a message in flight and two that wait has ended, and is to be continued by
    another one, which is returned: it is not durable yet. `snapshot`: one was written since."""
    client = durable_client(world).subscribed("a/+", qos=2)
    publisher = world.connect("p")
    publisher.publish("a/1", b"sent", 2, 1)
    client.vanish()
    publisher.publish("a/2", b"away", 1, 2)
    publisher.publish("a/3", b"away, too", 1, 3)
    old = world.session("k")
    world.journal.keep_until_continued(old)
    end_quietly(world.node, old, len(old.queue))
    newer = world.node.sessions["k"] = Session(world.node, "k")
    newer.expiry = old.expiry
    world.settle()
    if snapshot:
        world.begin_snapshot()
        world.settle()
        assert world.counters.journal_snapshots == 1
    return newer


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_session_that_another_one_continues_is_there_until_that_is(snapshot: bool) -> None:
    world = Durable()
    newer = gone_on_with(world, snapshot=snapshot)
    back = durable_client(world.again(5, copy_of(world.files)))
    assert back.connack.session_present is True
    assert sorted(back.payloads()) == [b"away", b"away, too", b"sent"]
    world.node.journal.make_durable(newer)
    world.settle()
    back = durable_client(world.again(5, copy_of(world.files)))
    assert back.connack.session_present is True
    assert back.payloads() == []


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_session_ends_with_the_one_that_continues_it(snapshot: bool) -> None:
    world = Durable()
    newer = gone_on_with(world, snapshot=snapshot)
    world.node.end_session(newer, None)
    world.settle()
    assert not world.again(5).node.sessions


@pytest.mark.statement("MQTT-4.4.0-1", "3.1.1/MQTT-4.4.0-1")
def test_messages_in_flight_are_repeated_with_their_identifiers() -> None:
    world = Durable()
    client = durable_client(world, "k", 4).subscribed("a", qos=2)
    publisher = world.connect("p", 4)
    for number, qos in ((1, 1), (2, 2), (3, 2)):
        publisher.publish("a", b"%d" % number, qos, number)
    client.take()
    client.send(Pubrec(3))
    again = world.again()
    back = durable_client(again, "k", 4)
    packets = back.take()
    assert packets == [
        Publish("a", b"1", 1, dup=True, packet_id=1),
        Publish("a", b"2", 2, dup=True, packet_id=2),
        Pubrel(3),
    ]
    back.send(Puback(1), Pubrec(2), Pubcomp(3))
    back.send(Pubcomp(2))
    assert durable_client(again.again(), "k", 4).take() == []


@pytest.mark.statement("MQTT-4.3.3-10")
def test_a_qos_2_message_is_taken_once() -> None:
    """The publisher repeats it because it has not heard of our PUBREC."""
    world = Durable()
    durable_client(world, "l").subscribed("a", qos=2).vanish()
    durable_client(world, "p").publish("a", b"once", 2, 9)
    again = world.again()
    publisher = durable_client(again, "p")
    publisher.publish("a", b"once", 2, 9, dup=True)
    assert publisher.take() == [Pubrec(9)]
    publisher.send(Pubrel(9))
    assert publisher.take() == [Pubcomp(9)]
    assert durable_client(again, "l").payloads() == [b"once"]
    third = again.again()
    durable_client(third, "p").publish("a", b"another", 2, 9)
    assert b"another" in durable_client(third, "l").payloads()


@pytest.mark.statement("MQTT-3.3.1-5", "3.1.1/MQTT-3.3.1-5")
def test_retained_messages_come_back_and_deleted_ones_do_not() -> None:
    world = Durable()
    client = world.connect("p")
    client.publish("r/1", b"one", 1, 1, retain=True)
    client.publish("r/2", b"two", 0, retain=True)
    client.publish("r/1", b"three", 0, retain=True)
    client.publish("r/2", b"", 0, retain=True)
    client.publish(
        "r/3", b"short", 0, retain=True, properties={Property.MESSAGE_EXPIRY_INTERVAL: 60}
    )
    before = picture(world)
    again = world.again(10)
    assert {k: v[:3] for k, v in picture(again)["retained"].items()} == {
        k: v[:3] for k, v in before["retained"].items()
    }
    listener = again.connect("l").subscribed("r/#")
    found = {p.topic: (p.payload, p.properties) for p in listener.take_publishes()}
    assert found == {
        "r/1": (b"three", None),
        "r/3": (b"short", {Property.MESSAGE_EXPIRY_INTERVAL: 50}),
    }
    late = again.again(51)
    listener = late.connect("l").subscribed("r/#")
    assert listener.payloads() == [b"three"]


@pytest.mark.statement("MQTT-3.1.2-23")
def test_time_passes_while_the_broker_is_down() -> None:
    world = Durable()
    world.connect("w").subscribe("will", qos=1)
    durable_client(world, "w2").subscribe("will", qos=1)
    will = Will("will", b"gone", 1, False, {Property.WILL_DELAY_INTERVAL: 30})
    world.connect("k", properties={Property.SESSION_EXPIRY_INTERVAL: 100}, will=will)
    once = world.again(10)
    once.advance(5)
    assert set(once.node.sessions) == {"w2", "k"}
    twice = once.again(10)
    assert durable_client(twice.again(0, twice.files), "w2").payloads() == []
    twice.advance(6)
    # It may have been killed a moment before it was back.
    assert durable_client(twice, "w2").payloads() == []
    twice.advance(10)
    assert durable_client(twice, "w2").payloads() == [b"gone"]
    late = twice.again(80)
    late.advance(1)
    assert set(late.node.sessions) == {"w2"}
    assert late.counters.sessions_expired == 1


def test_clients_of_an_idle_broker_were_connected_until_it_was_killed() -> None:
    """It records that it lives, though there is nothing else to record."""
    world = Durable()
    durable_client(world, "l").subscribe("will", qos=1)
    will = Will("will", b"gone", 1, False, {Property.WILL_DELAY_INTERVAL: 5})
    client = world.connect("k", properties={Property.SESSION_EXPIRY_INTERVAL: 60}, will=will)
    client.subscribe("a", qos=1)
    for _ in range(20):
        world.advance(30)
        client.send(Pingreq())
    frames = world.counters.journal_frames
    again = world.again(1, copy_of(world.files))
    again.advance(0.5)
    assert "k" in again.node.sessions
    assert durable_client(again, "l").payloads() == []
    again.advance(5)
    assert durable_client(again, "l").payloads() == [b"gone"]
    late = world.again(2 * BEAT_INTERVAL_S + 61, copy_of(world.files))
    late.advance(0.1)
    assert set(late.node.sessions) == {"l"}
    assert 60 <= frames < 80
    quiet = Durable()
    quiet.connect("clean")
    quiet.advance(600)
    assert quiet.counters.journal_frames == 0  # no durable session needs it


@pytest.mark.parametrize("properties", [FOREVER, None], ids=["kept", "clean"])
def test_a_will_of_a_connection_that_died_with_the_broker_is_sent_once(
    properties: dict[int, Any] | None,
) -> None:
    world = Durable()
    durable_client(world, "l").subscribe("will", qos=1)
    world.connect("k", properties=properties, will=Will("will", b"gone", 1, False, None))
    world.connect("left", will=Will("will", b"left", 1, False, None)).disconnect()
    again = world.again(1)
    again.advance(0.1)
    third = again.again(1)
    third.advance(0.1)
    assert durable_client(third, "l").payloads() == [b"gone"]


@pytest.mark.parametrize("properties", [FOREVER, None], ids=["kept", "clean"])
def test_the_will_of_a_client_that_is_back_first_is_not_sent(
    properties: dict[int, Any] | None,
) -> None:
    """Before its broker, which has just started, has looked what is due: neither
    its last will nor its present one is sent."""
    world = Durable(discovery="multicast")
    world.connect("k", properties=properties, will=Will("will", b"gone", 1, False, None))
    again = world.again(1)
    barrier = again.node.cluster.barrier
    barrier._begins_until = barrier._admits_until = again.now + 1.0
    back = again.open()
    will = Will("will", b"gone again", 1, False, None)
    back.send(connect_packet("k", clean=False, properties=FOREVER, will=will))
    again.advance(0.1)
    assert not back.take()
    again.advance(2.0)
    assert isinstance(back.take()[0], Connack)
    assert again.counters.wills == 0


@pytest.mark.parametrize("days", [1, -1, 18_000])
def test_setting_the_clock_expires_no_session(days: int) -> None:
    """As on a machine without a clock of its own, when it has heard what the time is."""
    world = Durable()
    options = {Property.SESSION_EXPIRY_INTERVAL: 3600}
    world.node.set_wall(1.7e9 - days * 86_400, world.now)
    durable_client(world, properties=options).subscribed("a", qos=1).vanish()
    publisher = world.connect("p")
    publisher.publish("a", b"waits", 1, 1, properties={Property.MESSAGE_EXPIRY_INTERVAL: 3600})
    publisher.publish(
        "r", b"kept", 0, retain=True, properties={Property.MESSAGE_EXPIRY_INTERVAL: 3600}
    )
    world.advance(5)
    world.node.set_wall(1.7e9 + world.now - 1000, world.now)
    world.advance(60)
    again = world.again(1, copy_of(world.files))
    again.advance(1)
    assert durable_client(again, properties=options).payloads() == [b"waits"]
    assert len(again.node.retained) == 1
    late = world.again(3600, copy_of(world.files))
    late.advance(1)
    assert not late.node.sessions
    assert len(late.node.retained) == 0


def test_setting_the_clock_during_a_checkpoint_expires_no_session() -> None:
    """What it has said already is said again."""
    world = Durable(limits=Limits(snapshot_step_items=1))
    for number in range(9):
        client = durable_client(
            world, f"k{number}", properties={Property.SESSION_EXPIRY_INTERVAL: 3600}
        )
        client.vanish()
    for ahead in (86_400, 2 * 86_400):
        world.node.set_wall(1.7e9 + ahead + world.now - 1000, world.now)
        world.advance(0.03)
        assert world.journal.frames.busy
    world.advance(60)
    assert not world.journal.frames.busy
    again = Durable(files=copy_of(world.files), at=world.now + 2 * 86_400, limits=world.limits)
    assert len(again.node.sessions) == 9
    assert world.counters.journal_snapshots == 2
    # The clock is set, as any clock is now and then.
    world.node.set_wall(1.7e9 + ahead + world.now - 1000 + 0.1, world.now)
    world.advance(60)
    assert world.counters.journal_snapshots == 2


# ----------------------------------------------------- whatever happens, restored is what was there

WORDS = ["a", "b", "a/b", "c/d/e"]
FILTERS = ["a", "b", "a/+", "#", "c/#", "$share/g/a", "$share/h/#"]


class Chaos:
    """Clients that do anything."""

    def __init__(self, world: Durable, rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self.clients: dict[str, FakeClient] = {}
        self.packet_id = 0

    def step(self) -> None:
        rng = self.rng
        name = rng.choice("uvwxyz")
        client = self.clients.get(name)
        if client is None or client.closed:
            self.connect(name)
            return
        what = rng.randrange(14)
        if what == 0:
            client.vanish()
        elif what == 1:
            client.disconnect()
        elif what == 2:
            self.connect(name)
        elif what == 3:
            options = (
                {"no_local": rng.random() < 0.3, "retain_as_published": rng.random() < 0.3}
                if client.version == 5
                else {}
            )
            topic_filter = rng.choice(FILTERS)
            if topic_filter.startswith("$share"):
                options = {}
            properties = None
            if client.version == 5 and rng.random() < 0.3:
                properties = {Property.SUBSCRIPTION_IDENTIFIER: [rng.randrange(1, 300)]}
            client.subscribe(topic_filter, qos=rng.randrange(3), properties=properties, **options)
        elif what == 4:
            client.unsubscribe(rng.choice(FILTERS))
        elif what < 8:
            self.publish(client)
        else:
            self.acknowledge(client)

    def connect(self, name: str) -> None:
        rng = self.rng
        version = rng.choice([4, 5, 5])
        properties = None
        if version == 5:
            properties = {
                Property.SESSION_EXPIRY_INTERVAL: rng.choice([0, 500, 0xFFFFFFFF]),
                Property.RECEIVE_MAXIMUM: rng.choice([1, 3, 100]),
            }
            if rng.random() < 0.1:
                properties[Property.MAXIMUM_PACKET_SIZE] = 30
        will = Will("a", b"will", 1, False, None) if rng.random() < 0.2 else None
        old = self.clients.get(name)
        if old is not None and not old.closed and rng.random() < 0.5:
            old.vanish()
        self.clients[name] = self.world.connect(
            name, version, clean=rng.random() < 0.15, properties=properties, will=will
        )

    def publish(self, client: FakeClient) -> None:
        rng = self.rng
        qos, count = rng.randrange(3), rng.choice([1, 1, 2, 9])
        topic = rng.choice(WORDS)
        several = count > 1 and rng.random() < 0.5
        retain = count == 1 and rng.random() < 0.3
        payload = b"%05d" % rng.randrange(99999) if not retain or rng.random() < 0.7 else b""
        if rng.random() < 0.1:
            payload *= 10
        properties: dict[int, Any] | None = None
        if client.version == 5 and rng.random() < 0.2:
            properties = rng.choice(
                [{Property.USER_PROPERTY: [("k", "v")]}, {Property.MESSAGE_EXPIRY_INTERVAL: 100}]
            )
        packets = []
        for _ in range(count):
            self.packet_id = self.packet_id % 65535 + 1
            packets.append(
                Publish(
                    rng.choice(WORDS) if several else topic,
                    payload,
                    qos,
                    retain,
                    packet_id=self.packet_id if qos else None,
                    properties=properties,
                )
            )
        client.send(*packets)

    def acknowledge(self, client: FakeClient) -> None:
        answers: list[Any] = []
        left = self.rng.choice([0, 1, 5, 50])
        for packet in client.take():
            if not left:
                break
            left -= 1
            if isinstance(packet, Publish) and packet.qos == 1:
                answers.append(Puback(packet.packet_id or 0))
            elif isinstance(packet, Publish) and packet.qos == 2:
                answers.append(Pubrec(packet.packet_id or 0))
            elif isinstance(packet, Pubrec):
                answers.append(Pubrel(packet.packet_id))
            elif isinstance(packet, Pubrel):
                answers.append(Pubcomp(packet.packet_id))
        if answers and not client.closed:
            client.send(*answers)


@pytest.mark.parametrize("seed", range(12))
def test_a_restart_restores_what_was_there(seed: int) -> None:
    """Often with a checkpoint under way, which must change nothing."""
    rng = random.Random(seed)
    often = Limits(journal_smallest=2000, snapshot_step_items=3)
    limits = often if seed % 2 else DEFAULTS
    world = Durable(sync=seed % 4 == 0, limits=limits)
    chaos = Chaos(world, rng)
    for number in range(120):
        chaos.step()
        if rng.random() < 0.1:
            world.advance(rng.choice([0.005, 0.02, 0.5]))
        if number % 15 == 14:
            before = picture(world)
            again = Durable(
                sync=world.sync, files=copy_of(world.files), at=world.now, limits=limits
            )
            assert picture(again) == before
            if rng.random() < 0.3:  # go on with the new one
                world = again
                chaos = Chaos(world, rng)
    assert not seed % 2 or world.counters.journal_snapshots or world.counters.journal_bytes < 2000


@pytest.mark.parametrize("seed", range(6))
def test_a_restart_after_a_failed_disk_restores_what_was_there(seed: int) -> None:
    """And recovered, again and again, also while it recovers."""
    rng = random.Random(1000 + seed)
    world = Durable(limits=Limits(journal_smallest=2000, snapshot_step_items=3))
    chaos = Chaos(world, rng)
    for number in range(150):
        chaos.step()
        what = rng.random()
        if what < 0.1:
            world.advance(rng.choice([0.005, 0.02, 0.5]))
        elif what < 0.2:
            world.files.broken = rng.choice(["No space left on device", "", ""])
        if number % 15 == 14:
            world.files.broken = ""
            for _ in range(40):
                world.advance(0.5)
                if world.journal.healthy and not world.journal.frames.busy:
                    break
            assert world.journal.healthy
            assert picture(world.again(0, copy_of(world.files))) == picture(world)


def copy_of(files: Files) -> Files:
    found = Files()
    found.segments = {segment: bytearray(data) for segment, data in files.segments.items()}
    found.boot = files.boot
    return found


# ---------------------------------------------------------------- output waits for the disk


def mixed_traffic(version: int, *, fast: bool, most: int = 1) -> Durable:
    """A broker with messages of several topics in flight to sessions that are kept, that are full,
    and that are not kept, at QoS `most` or less. At QoS 2 the publisher's session is kept, too."""
    world = Durable()
    world.node.fast = fast
    small = {Property.RECEIVE_MAXIMUM: 2} if version == 5 else {}
    kept = durable_client(world, "kept", version).subscribed("a/+", qos=most)
    kept.subscribe("c", qos=2)
    durable_client(world, "full", version, properties=small).subscribe("a/1", qos=most)
    world.connect("clean", version).subscribe("#", qos=most)
    durable_client(world, "away", version).subscribe("a/2", qos=most)
    connection = world.session("away").conn
    assert connection is not None
    world.node.connection_lost(connection, "gone", world.now)
    publisher = durable_client(world, "p", version) if most > 1 else world.connect("p", version)
    named = {Property.USER_PROPERTY: [("k", "v")]} if version == 5 else None
    topics = ("a/1", "a/2", "c", "a/1", "b", "a/2", "a/1", "a/1", "c", "a/2")
    for qos in (0, 1, 1, 2):
        packets = [
            Publish(topic, b"%d-%d" % (qos, number), qos, False, False, number if qos else None)
            for number, topic in enumerate(topics, 1)
        ]
        for packet in packets[::2]:
            packet.properties = named
        publisher.chunks([b"".join(encode_packet(packet, version) for packet in packets)])
    kept.send(Puback(1), Puback(3))
    return world


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_mixed_traffic_is_recorded_as_packets_one_by_one_are(version: int, most: int) -> None:
    fast, slow = (mixed_traffic(version, fast=fast, most=most) for fast in (True, False))
    assert picture(fast) == picture(slow)
    sent = fast.session("kept").inflight.values()
    first = 0x30 | most << 1
    assert any(isinstance(flight, tuple) and flight[0][0] == first for flight in sent)
    restarted = [picture(world.again(files=copy.deepcopy(world.files))) for world in (fast, slow)]
    assert restarted[0] == restarted[1]
    publishers = {"p"} if most > 1 else set()
    assert restarted[0]["sessions"].keys() == {"kept", "full", "away"} | publishers
    fast.begin_snapshot()
    fast.advance(60)
    slow.advance(60)
    assert picture(fast.again()) == picture(slow.again())


def test_a_mixed_chunk_is_acknowledged_when_its_records_are_durable() -> None:
    world = Durable()
    durable_client(world, version=4).subscribe("#", qos=1)
    publisher, other = world.connect("p", 4), world.connect("o", 4)
    packets = [Publish(f"t/{n}", b"x", 1, False, False, n) for n in (1, 2, 3)]
    for packet in packets:
        publisher.send(packet)
    publisher.take()
    world.files.lazy = True
    publisher.chunks([b"".join(encode_packet(packet, 4) for packet in packets)])
    assert publisher.take() == []
    other.send(Pingreq())
    assert other.take() == [Pingresp()]
    world.tell()
    assert publisher.take() == [Puback(n) for n in (1, 2, 3)]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_a_mixed_chunk_cut_at_any_byte_counts_whole_or_not_at_all(version: int, qos: int) -> None:
    world = Durable()
    for name, topic in (("k", "a/+"), ("l", "b"), ("m", "#")):
        durable_client(world, name, version).subscribe(topic, qos=qos)
    publisher = durable_client(world, "p", version)
    named = {Property.USER_PROPERTY: [("k", "v")]} if version == 5 else None
    topics = ("a/1", "b", "a/2", "c", "b")
    packets = [
        encode_packet(Publish(topic, b"x" * n, qos, False, False, 9 + n, named), version)
        for n, topic in enumerate(topics)
    ]
    before, start = picture(world)["sessions"], len(world.files.segments[1])
    publisher.chunks([b"".join(packets)])
    after, end = picture(world)["sessions"], len(world.files.segments[1])
    assert [len(after[name]["inflight"]) for name in ("k", "l", "m")] == [2, 2, 5]
    data = bytes(world.files.segments[1])
    for cut in range(start, end + 1):
        files = Files()
        files.segments[1] = bytearray(data[:cut])
        again = picture(Durable(files=files, at=world.now))["sessions"]
        assert again == (after if cut == end else before)


def test_a_long_run_is_several_entries() -> None:
    """As large as batches on links at most: nobody who reads one has to do more in one turn."""
    world = Durable()
    durable_client(world).subscribe("t", qos=1, properties={Property.SUBSCRIPTION_IDENTIFIER: [7]})
    packets = [Publish("t", b"%04d" % n, 1, False, False, n) for n in range(1, 2501)]
    world.connect("p").chunks([b"".join(encode_packet(packet, 5) for packet in packets)])
    counts = [record.batch().count for record in world.files.image().entries]
    assert counts == [1024, 1024, 452]
    assert picture(world.again()) == picture(world)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("snapshot", [False, True])
def test_a_subscriber_at_a_lower_qos_keeps_it(waits: bool, snapshot: bool) -> None:
    world = Durable()
    world.node.federated = True
    client = durable_client(world).subscribed("t", qos=1)
    if waits:
        client.vanish()
    packets = [Publish("t", b"%d" % n, 2, False, False, n) for n in range(1, 21)]
    world.connect("p").chunks([b"".join(encode_packet(packet, 5) for packet in packets)])
    if waits:
        client = durable_client(world)
    got = client.take_publishes()
    if snapshot:
        world.begin_snapshot()
        world.advance(1)
    again = durable_client(world.again()).take_publishes()
    assert [(one.qos, one.packet_id) for one in again] == [(1, one.packet_id) for one in got]
    assert len(again) == 20


def test_the_second_half_of_a_chunk_is_for_a_session_that_has_no_room() -> None:
    """What it has in flight and what waits come back, in their order and with the next identifier
    free."""
    world = Durable()
    small = {Property.RECEIVE_MAXIMUM: 3}
    for name in ("k", "l"):
        durable_client(world, name, properties=small).subscribe("#", qos=1)
    publisher = world.connect("p")
    packets = [Publish(f"t/{n}", b"%d" % n, 1, False, False, n) for n in range(1, 7)]
    publisher.chunks([b"".join(encode_packet(packet, 5) for packet in packets)])
    again = world.again()
    assert picture(again) == picture(world)
    for name in ("k", "l"):
        back = durable_client(again, name, properties=small)
        assert back.payloads() == [b"1", b"2", b"3"]
        back.send(*(Puback(n) for n in (1, 2, 3)))
        assert [
            (got.payload, got.packet_id) for got in back.take() if isinstance(got, Publish)
        ] == [
            (b"4", 4),
            (b"5", 5),
            (b"6", 6),
        ]


@pytest.mark.parametrize("qos", [1, 2])
def test_last_acknowledgements_wait_for_a_frame_that_is_needed(qos: int) -> None:
    world = Durable(linger=True)
    client = durable_client(world, "k", 4).subscribed("#", qos=qos)
    publisher = world.connect("p", 4)

    def handled(number: int) -> None:
        publisher.publish("a", b"x", qos, number)
        client.take()
        if qos == 2:
            client.send(Pubrec(number))
            assert client.take() == [Pubrel(number)]
            publisher.send(Pubrel(number))
        client.send(Puback(number) if qos == 1 else Pubcomp(number))

    handled(1)
    frames = world.counters.journal_frames
    world.advance(0.005)
    assert world.counters.journal_frames == frames
    assert world.again(files=copy_of(world.files)).session("k").inflight.keys() == {1}
    # With the next one: the frames of a second message are as many as those of the first.
    handled(2)
    assert world.again(files=copy_of(world.files)).session("k").inflight.keys() == {2}
    # Without one, a moment later.
    world.advance(0.02)
    assert not world.again().session("k").inflight
    assert not world.session("k").inflight


def test_records_that_wait_are_written_when_the_broker_stops() -> None:
    world = Durable(linger=True)
    client = durable_client(world, "k", 4).subscribed("#", qos=1)
    world.connect("p", 4).publish("a", b"x", 1, 1)
    client.send(Puback(1))
    assert world.again(files=copy_of(world.files)).session("k").inflight.keys() == {1}
    world.journal.frames.force()
    world.settle()
    assert not world.again().session("k").inflight


def test_output_does_not_wait_for_acknowledgements_that_wait() -> None:
    """A publisher whose frame is on its way hears as soon as that is durable."""
    world = Durable(linger=True)
    client = durable_client(world, "k", 4).subscribed("#", qos=1)
    publisher = world.connect("p", 4)
    publisher.publish("a", b"x", 1, 1)
    world.files.lazy = True
    publisher.take()
    publisher.publish("a", b"x", 1, 2)
    client.send(Puback(1))
    publisher.send(Pingreq())
    publisher.publish("nobody", b"x", 0)
    assert Puback(2) not in publisher.take()
    world.tell()
    assert Puback(2) in publisher.take()


def lazy(**options: Any) -> Durable:
    world = Durable(**options)
    durable_client(world, "l").subscribed("a/#", qos=2).vanish()
    world.files.lazy = True
    return world


@pytest.mark.parametrize("version", [4, 5])
def test_acknowledgements_wait_in_their_order(version: int) -> None:
    world = lazy()
    publisher = world.connect("p", version)
    for number in range(1, 4):
        publisher.publish("a/1", b"x", 1, number)
    publisher.publish("nobody", b"x", 1, 4)
    publisher.publish("a/2", b"x", 2, 5)
    assert publisher.take() == []
    world.tell()
    assert publisher.take() == [Puback(1), Puback(2), Puback(3), Puback(4), Pubrec(5)]
    publisher.publish("nobody", b"x", 1, 6)
    assert publisher.take() == [Puback(6)]  # nothing of it is kept


def test_acknowledgements_of_a_run_wait_for_the_disk() -> None:
    world = lazy()
    publisher = world.connect("p")
    publisher.send(*(Publish("a/1", b"x", 2, packet_id=number) for number in range(1, 21)))
    publisher.send(*(Publish("a/1", b"x", 1, packet_id=number) for number in range(21, 41)))
    assert publisher.take() == []
    world.tell()
    assert publisher.take() == [
        *(Pubrec(n) for n in range(1, 21)),
        *(Puback(n) for n in range(21, 41)),
    ]
    assert len(world.again(0).session("l").queue) == 40


def test_a_durable_session_is_acknowledged_when_it_is_on_the_disk() -> None:
    world = Durable()
    world.files.lazy = True
    client = world.open()
    client.send(b"\x10\x13\x00\x04MQTT\x05\x00\x00\x00\x05\x11\xff\xff\xff\xff\x00\x01k")
    assert client.take() == []
    world.tell()
    assert isinstance(client.take()[0], Connack)
    client.send(b"\x82\x07\x00\x01\x00\x00\x01a\x01")
    assert client.take() == []
    world.tell()
    assert client.take() == [Suback(1, [1])]
    other = world.connect("clean")
    assert other.subscribe("a", qos=1) == [1]


@pytest.mark.parametrize("reason", [0x10, 0x97])
def test_the_end_of_a_delivery_is_recorded_whatever_its_reasons(reason: int) -> None:
    """Of MQTT 5: they are longer than those of the fast path."""
    world = Durable()
    client = durable_client(world).subscribed("a", qos=2)
    world.connect("p").publish("a", b"1", 2, 1)
    (message,) = (packet for packet in client.take() if isinstance(packet, Publish))
    client.send(Pubrec(message.packet_id or 0, reason))
    if reason < 0x80:
        assert client.take() == [Pubrel(message.packet_id or 0)]
        client.send(Pubcomp(message.packet_id or 0, 0x92))
    again = world.again()
    assert durable_client(again).take() == []
    assert not again.session("k").inflight


def test_only_qos_2_deliveries_wait_for_the_disk() -> None:
    """The identifier of a message must not be another one after a restart."""
    world = Durable()
    kept, clean = durable_client(world).subscribed("a", qos=2), world.connect("clean")
    clean.subscribe("a", qos=2)
    publisher = world.connect("p")
    world.files.lazy = True
    publisher.publish("a", b"1", 1, 1)
    assert kept.payloads() == clean.payloads() == [b"1"]
    publisher.publish("a", b"2", 2, 2)
    assert clean.payloads() == [b"2"]
    assert kept.take() == []
    world.tell()
    assert kept.payloads() == [b"2"]
    kept.send(Pubrec(2))
    assert kept.take() == []
    world.tell()
    assert kept.take() == [Pubrel(2)]
    kept.send(Pubcomp(2))
    assert kept.conn.gate == 0


def test_the_last_words_of_a_connection_go_out_behind_what_waits() -> None:
    """Also when the disk answers in the turn in which they were said."""
    world = lazy()
    publisher = world.connect("p")
    publisher.publish("a/1", b"x", 1, 1)
    publisher.conn.receive(encode_packet(Publish("a/1", b"x", 1, packet_id=2), 5), world.now)
    publisher.owner.shut(0x8B)
    untold, world.files.untold = world.files.untold, []
    for effect, error in untold:
        world.node.answer(effect, error, world.now)
    assert not publisher.transport.closing
    Durable.settle(world)
    world.tell()
    assert publisher.take() == [Puback(1), Puback(2), Disconnect(0x8B)]
    assert publisher.transport.closing


def test_a_transport_that_has_room_again_is_not_closed_on_the_last_words() -> None:
    world = World()
    client = world.connect("c").subscribed("a")
    client.transport.capacity = 100
    for _ in range(2):
        world.connect("p").publish("a", bytes(200))
    client.take()
    client.owner.shut(0x8B)
    client.conn.writable(world.now)
    assert not client.transport.closing
    assert len(client.take_publishes()) == 1
    client.conn.writable(world.now)
    world.settle()
    assert client.take() == [Disconnect(0x8B)]
    assert client.transport.closing


@pytest.mark.parametrize("reads", [1, 2])
def test_no_packet_overtakes_connack(reads: int) -> None:
    """MQTT-3.2.0-1: CONNACK waits, though the session is not kept, for what came with CONNECT."""
    world = lazy()
    client = world.open(4)
    first = encode_packet(connect_packet("c", 4), 4) + encode_packet(
        Publish("a/1", b"x", 1, packet_id=1), 4
    )
    ping = encode_packet(Pingreq(), 4)
    client.chunks([first + ping] if reads == 1 else [first, ping])
    assert client.take() == []
    world.tell()
    assert client.take() == [Connack(False, 0), Puback(1), Pingresp()]
    client.publish("a/1", b"x", 1, 2)
    client.send(Pingreq())
    assert client.take() == [Pingresp()]
    world.tell()
    assert client.take() == [Puback(2)]


def test_a_client_whose_output_waits_beyond_its_limit_is_closed() -> None:
    world = lazy(limits=Limits(client_backlog_bytes=1000))
    client = world.connect("c").subscribed("q0")
    client.publish("a/1", b"x", 1, 1)
    publisher = world.connect("p")
    publisher.publish("q0", b"x" * 2000)
    assert not client.closed
    publisher.publish("q0", b"x" * 2000)
    assert client.closed
    assert world.counters.slow_consumer_closed == 1
    assert "too many bytes wait until the journal is durable" in world.logged[-1]
    world.tell()


@pytest.mark.parametrize("sync", [False, True])
def test_messages_of_a_session_may_exceed_the_output_limit(sync: bool) -> None:
    """A session's messages, retained ones: else they could never come, however fast the disk is."""
    world = Durable(sync=sync, limits=Limits(client_backlog_bytes=1000))
    durable_client(world).subscribed("a/#", qos=1).vanish()
    publisher = world.connect("p")
    for number in range(1, 21):
        publisher.publish("a/1", b"x" * 200, 1, number)
        publisher.publish(f"r/{number}", b"x" * 200, 1, number, retain=True)
    world.files.lazy = True
    back = world.open().sent(connect_packet("k", clean=False, properties=FOREVER))
    publisher.publish("a/1", b"x", 1, 21)  # it comes behind that
    assert back.take() == []
    world.tell()
    back.send(Subscribe(7, [SubscriptionRequest("r/#", 1)]))
    publisher.publish("a/1", b"x", 1, 22)
    world.tell()
    assert sum(isinstance(packet, Publish) for packet in back.take()) == 20 + 1 + 20 + 1
    assert not back.closed


@pytest.mark.parametrize("sizes", [(10, 5000), (5000, 10)])
def test_the_largest_waiting_piece_does_not_count(sizes: tuple[int, int]) -> None:
    conn = World().open().conn
    gate = OutputGate(Limits(client_backlog_bytes=1000))
    for lsn, size in enumerate([*sizes, 990], 1):
        assert gate.put(lsn, conn, [bytes(size)], None)
    assert not gate.put(4, conn, [b"x"], None)
    gate.release(3)
    assert conn not in gate
    for lsn in (4, 5):  # none is free for ever
        assert gate.put(lsn, conn, [bytes(700)], None)
    assert not gate.put(6, conn, [bytes(700)], None)
    gate.on_closed(conn)
    assert len(gate) == 0


def bystander(world: Durable) -> FakeClient:
    """A client that is read before something happens with which it has nothing to do."""
    client = world.connect("bystander").subscribed("q0")
    world.files.lazy = True
    client.send(Pingreq())
    client.take()
    return client


def test_the_end_of_a_connection_delays_no_other() -> None:
    world = Durable()
    durable_client(world, "l").subscribe("will", qos=1)
    dying = world.connect("dying", will=Will("will", b"gone", 1, False, None))
    client = bystander(world)
    dying.vanish()
    assert len(world.session("l").inflight) == 1
    assert client.conn.gate == 0


def test_new_rules_delay_no_connection() -> None:
    world = Durable()
    for name in ("one", "two"):
        durable_client(world, name).subscribe("$share/g/a", qos=1)
    for peer in world.peers:
        peer.vanish()
    world.connect("p").publish("a", b"x", 1, 1)
    client = bystander(world)
    waits = next(name for name in ("one", "two") if world.session(name).queue)
    world.node.set_access(
        Access(
            None,
            parse_rules(
                "rules", f"client {waits}\ndeny all #\neveryone\nallow all #\n", limits=Limits()
            ),
        ),
        world.now,
    )
    world.settle()
    assert not world.session(waits).queue
    assert sum(len(world.session(name).queue) for name in ("one", "two")) == 1
    assert client.conn.gate == 0


def test_messages_of_a_plugin_delay_no_connection() -> None:
    world = Durable()
    durable_client(world, "l").subscribe("a", qos=1)
    client = bystander(world)
    driver = SimpleNamespace(time=lambda: world.now, wake=world.settle)
    broker: Any = SimpleNamespace(node=world.node, driver=driver)
    asyncio.run(BrokerApi.internal_message_broadcast(broker, "a", b"x", 1))
    assert len(world.session("l").inflight) == 1
    assert client.conn.gate == 0


def test_publishers_are_not_read_while_the_disk_is_behind() -> None:
    world = lazy(limits=Limits(journal_backlog_bytes=1000))
    publisher = world.connect("p")
    publisher.publish("a/1", b"x" * 1500, 1, 1)
    assert publisher.transport.reading
    publisher.publish("a/1", b"x" * 1500, 1, 2)
    assert not publisher.transport.reading
    world.tell()
    assert publisher.transport.reading
    assert publisher.take() == [Puback(1), Puback(2)]


# ---------------------------------------------------------------- a disk that fails


def test_async_durability_goes_on_without_a_disk_and_logs_it_once() -> None:
    world = Durable()
    durable_client(world, "l").subscribed("a", qos=1).vanish()
    world.files.broken = "No space left on device"
    publisher = world.connect("p")
    for number in range(1, 6):
        publisher.publish("a", b"%d" % number, 1, number)
    assert publisher.take() == [Puback(number) for number in range(1, 6)]
    world.advance(10)
    told = [line for line in world.logged if "journal" in line]
    assert told == [
        (
            "the journal cannot be written (No space left on device): until it can, "
            "changes from now on do not survive the end of this broker"
        )
    ]
    assert world.counters.journal_errors > 5
    assert not world.again(0, copy_of(world.files)).session("l").queue
    world.files.broken = ""
    world.advance(3)
    assert world.logged[-2:] == [
        "the journal can be written again, in segment 12",
        "the journal contains everything again",
    ]
    assert len(world.files.segments) == 1
    before = picture(world)
    again = world.again(0, copy_of(world.files))
    assert picture(again) == before
    assert durable_client(again, "l").payloads() == [b"1", b"2", b"3", b"4", b"5"]


def test_sync_durability_acknowledges_nothing_that_is_not_written() -> None:
    world = Durable(sync=True)
    durable_client(world, "l").subscribed("a", qos=1).vanish()
    world.files.broken = "No space left on device"
    publisher = world.connect("p")
    for number in range(1, 6):
        publisher.publish("a", b"%d" % number, 1, number)
    publisher.publish("nobody", b"x", 1, 9)
    world.advance(5)
    assert publisher.take() == []
    assert "QoS 1 and 2 messages are not acknowledged" in "".join(world.logged)
    publisher.send(Pingreq())
    assert publisher.take() == [Pingresp()]
    other = world.connect("other")  # who needs no disk notices nothing
    other.subscribe("b")
    other.publish("b", b"x")
    assert other.payloads() == [b"x"]
    world.files.broken = ""
    world.advance(3)
    assert publisher.take() == [*(Puback(number) for number in range(1, 6)), Puback(9)]
    again = world.again()
    assert durable_client(again, "l").payloads() == [b"1", b"2", b"3", b"4", b"5"]


def test_the_journal_fails_again_while_it_recovers() -> None:
    world = Durable(sync=True, limits=Limits(snapshot_step_items=1))
    for number in range(20):
        durable_client(world, f"l{number}").subscribe("a", qos=1)
    world.files.broken = "Input/output error"
    publisher = world.connect("p")
    publisher.publish("a", b"x", 1, 1)
    world.advance(1.5)
    world.files.broken = ""
    while not world.rebuilding:
        world.advance(0.01)
    world.advance(0.03)
    world.files.broken = "Input/output error"
    publisher.publish("a", b"y", 1, 2)
    world.advance(5)
    assert publisher.take() == []
    world.files.broken = ""
    world.advance(5)
    assert publisher.take() == [Puback(1), Puback(2)]
    assert (
        picture(world.again(0, copy_of(world.files)))["sessions"].keys()
        == picture(world)["sessions"].keys()
    )


def test_a_disk_that_does_not_keep_up_is_one_that_fails() -> None:
    world = lazy(limits=Limits(journal_backlog_bytes=1000))
    for number in range(10):  # each publishes once and is held then
        world.connect(f"p{number}").publish("a/1", b"x" * 900, 1, 1)
    assert any("does not keep up" in line for line in world.logged)
    world.files.lazy = False
    world.tell()
    world.advance(5)
    assert len(world.again().session("l").queue) == 10


# ---------------------------------------------------------------- cut off anywhere


def test_a_journal_cut_at_any_byte_is_some_moment_that_was(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Durable()
    client = durable_client(world, "l").subscribed("a/#", qos=2)
    publisher = durable_client(world, "p")
    moments = []

    def moment() -> None:
        moments.append((len(world.files.segments[1]), picture(world)["sessions"]))

    for number in range(1, 5):
        publisher.publish("a/1", b"%d" % number, 2, number)
        moment()
        publisher.send(Pubrel(number))
        moment()
        client.send(Pubrec(number))
        moment()
    client.vanish()
    moment()
    data = bytes(world.files.segments[1])
    for (start, before), (end, after) in pairwise(moments):
        for cut in {start, start + 1, (start + end) // 2, end - 1}:
            files = Files()
            files.segments[1] = bytearray(data[:cut])
            assert picture(Durable(files=files, at=world.now))["sessions"] == before
        files = Files()
        files.segments[1] = bytearray(data[:end])
        assert picture(Durable(files=files, at=world.now))["sessions"] == after


def test_checkpoints_keep_the_journal_small() -> None:
    world = Durable(limits=Limits(journal_smallest=20_000))
    client = durable_client(world, "l").subscribed("a", qos=1)
    world.connect("r").publish("r", b"kept", 0, retain=True)
    publisher = world.connect("p")
    for _ in range(40):
        publisher.send(*(Publish("a", b"x" * 100, 1, packet_id=n) for n in range(1, 21)))
        client.send(*(Puback(p.packet_id or 0) for p in client.take_publishes()))
        publisher.take()
        world.advance(0.1)
    assert world.counters.journal_snapshots > 2
    assert sum(map(len, world.files.segments.values())) < 50_000
    assert world.counters.journal_bytes > 90_000
    assert picture(world.again(0, copy_of(world.files))) == picture(world)


def test_a_drained_broker_keeps_what_its_journal_has() -> None:
    world = Durable()
    durable_client(world, "l").subscribe("a", qos=1)
    durable_client(world, "gone", 4).vanish()
    world.connect("clean")
    done: list[bool] = []
    Drain(
        world.node,
        DrainOptions(rate=1000.0, to="", within=30.0),
        world.now,
        lambda: done.append(True),
    )
    world.advance(31)
    assert done
    assert set(world.node.sessions) == {"l", "gone"}
    assert "2 sessions in the journal" in world.logged[-1]
    assert set(world.again().node.sessions) == {"l", "gone"}
