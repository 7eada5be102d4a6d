"""Sessions that move between brokers, one case at a time: three brokers in a row, b1 - b0 - b2, so
that b0 is on every way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import pytest

from mqttree.broker.cluster.sessions.handover import TAKEOVER_MAX_S, TAKEOVER_SILENCE_S
from mqttree.broker.cluster.sessions.posted_sessions import SLICE
from mqttree.broker.cluster.sessions.takeover import REPAIR_S
from mqttree.broker.cluster.strategy.subscription_barrier import LOST
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.node import Node
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
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
from tests.kit.decoder import Decoder
from tests.sim.checkers import session_faults
from tests.sim.schedule import faults_of
from tests.sim.world import End, Host, World


class Row:
    """The brokers, and time."""

    def __init__(
        self,
        count: int = 3,
        seed: int = 5,
        *,
        meshed: bool = False,
        limits: Limits = DEFAULTS,
        **config: Any,
    ) -> None:
        self.world = world = World(seed)
        world.limits = limits
        world.skew = 0.0
        world.rate, world.loss = 1.25e7, 0.0
        for index in range(count):
            world.add(discovery="multicast", capability=float(9 - index), **config).start()
        if count == 3 and not meshed:
            world.block(1, 2)
        self.join()

    def join(self) -> None:
        """Run until all agree."""
        self.until(lambda: not faults_of(self.world), 30.0)

    def run(self, seconds: float = 0.3) -> None:
        self.world.run(seconds)
        assert not self.world.violations

    def until(self, done: Callable[[], object], seconds: float = 5.0) -> None:
        assert self.world.run(seconds, lambda: bool(done()), 0.001), "it does not come to that"
        assert not self.world.violations

    def host(self, index: int) -> Host:
        return self.world.hosts[index]

    def node(self, index: int) -> Node:
        return self.world.hosts[index].running

    def client(self, index: int, client_id: str = "c", **options: Any) -> Client:
        """A client whose CONNECT is sent."""
        return Client(self, index, client_id, **options)

    def connect(self, index: int, client_id: str = "c", **options: Any) -> Client:
        """A client that is connected."""
        client = self.client(index, client_id, **options)
        self.until(lambda: client.connacks or client.gone)
        assert client.connacks, client.packets
        return client

    def one_session(self) -> None:
        """Every client has one session, and every broker says so."""
        self.run(0.5)
        assert not session_faults(self.world, self.world.alive())
        self.until(lambda: not faults_of(self.world), 20.0)


class Client:
    """A connection as its client sees it; it answers nothing by itself but what `answers` says."""

    def __init__(
        self,
        row: Row,
        index: int,
        client_id: str,
        *,
        version: int = 5,
        clean: bool = False,
        expiry: int = 3600,
        will: Will | None = None,
        answers: bool = True,
        username: str | None = None,
        receive: int = 0,
        said: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.row = row
        self.version = version
        self.answers = answers
        self.decoder = Decoder(version)
        self.packets: list[Packet] = []
        self.gone = False
        self.packet_id = 100
        end = row.world.connect(row.host(index), self)
        assert end is not None
        self.end: End = end
        properties: Any = (
            {Property.SESSION_EXPIRY_INTERVAL: expiry} if version == 5 and expiry else {}
        )
        if receive:
            properties[Property.RECEIVE_MAXIMUM] = receive
        if said:
            properties[Property.USER_PROPERTY] = list(said)
        self.send(
            Connect("MQTT", version, clean, 0, client_id, username, None, will, properties or None)
        )

    def send(self, packet: Packet) -> None:
        self.end.write(encode_packet(packet, self.version))

    def data(self, data: bytes) -> None:
        for packet in self.decoder.receive(data):
            self.packets.append(packet)
            if not self.answers:
                continue
            if isinstance(packet, Publish) and packet.qos:
                self.send((Puback if packet.qos == 1 else Pubrec)(packet.packet_id or 0))
            elif isinstance(packet, Pubrel):
                self.send(Pubcomp(packet.packet_id))
            elif isinstance(packet, Pubrec):
                self.send(Pubrel(packet.packet_id))

    def lost(self, reason: str) -> None:
        self.gone = True

    def cut(self) -> None:
        """Break the connection."""
        self.end.abort()
        self.row.run(0.01)

    def leave(self) -> None:
        self.send(Disconnect())
        self.row.run(0.01)

    @property
    def connacks(self) -> list[Connack]:
        return [p for p in self.packets if isinstance(p, Connack)]

    @property
    def present(self) -> bool:
        assert self.connacks[0].code == 0
        return self.connacks[0].session_present

    @property
    def payloads(self) -> list[bytes]:
        return [p.payload for p in self.packets if isinstance(p, Publish)]

    def fresh(self, got: list[bytes]) -> list[bytes]:
        """What came, without what a client that has `got` this knows to be a repetition."""
        return [
            p.payload
            for p in self.packets
            if isinstance(p, Publish) and not (p.dup and p.payload in got)
        ]

    def subscribe(self, *filters: str, qos: int = 2, **options: Any) -> None:
        """Subscribe, and let everybody know."""
        self.send(Subscribe(1, [SubscriptionRequest(f, qos, **options) for f in filters]))
        self.row.until(lambda: any(isinstance(p, Suback) for p in self.packets))
        self.row.run(0.3)

    def subscribed(self, *filters: str, **options: Any) -> Self:
        """Subscribe as `subscribe` does; returns the client."""
        self.subscribe(*filters, **options)
        return self

    def publish(self, topic: str, *payloads: bytes, qos: int = 2) -> None:
        for payload in payloads:
            self.packet_id += 1
            self.send(Publish(topic, payload, qos, packet_id=self.packet_id if qos else None))

    def reason(self) -> int | None:
        found = [p.reason for p in self.packets if isinstance(p, Disconnect)]
        return found[-1] if found else None


@pytest.mark.parametrize("routing", ["interest", "topic"])
@pytest.mark.parametrize("version", [4, 5])
def test_a_session_moves_with_its_queued_messages(version: int, routing: str) -> None:
    row = Row(routing=routing)
    row.connect(1, version=version).subscribed("a/#").cut()
    publisher = row.connect(0, "p")
    publisher.publish("a/b", *[b"%d" % n for n in range(5)])
    row.run()
    back = row.connect(2, version=version)
    assert back.present
    publisher.publish("a/b", b"more")
    row.until(lambda: b"more" in back.payloads)
    assert back.payloads == [b"0", b"1", b"2", b"3", b"4", b"more"]
    assert row.node(2).counters.session_takeovers == 1
    row.one_session()
    assert "c" in row.node(2).sessions


@pytest.mark.parametrize("routing", ["interest", "topic"])
def test_a_session_that_moves_before_suback_keeps_the_subscription(routing: str) -> None:
    """A broker hangs, so that SUBACK waits, as the client was elsewhere; it goes on, and finds its
    session with the subscription."""
    row = Row(4, routing=routing)
    row.connect(1, "other").subscribe("b")
    row.connect(2, expiry=0).leave()
    row.run(0.05)  # the others hear of it
    client = row.connect(1)
    row.host(3).pause()
    client.send(Subscribe(2, [SubscriptionRequest("b", 1)]))
    row.run(0.05)
    assert "b" not in row.node(1).sessions["c"].subscriptions
    client.cut()
    back = row.client(2)
    row.until(
        lambda: "c" in row.node(2).sessions and "b" in row.node(2).sessions["c"].subscriptions, 1.8
    )
    row.host(3).resume()
    row.until(lambda: back.connacks, 10.0)
    assert back.present
    row.join()


def test_the_newer_connection_ends_the_older_one() -> None:
    row = Row()
    first = row.connect(1).subscribed("a")
    second = row.connect(2)
    assert second.present
    row.until(lambda: first.gone)
    assert first.reason() == 0x8E
    row.one_session()


def test_of_two_sessions_with_expiry_0_only_the_newer_one_stays() -> None:
    """There is nothing to move, no client waits, and still only the newer session stays."""
    row = Row()
    first = row.connect(1, clean=True, expiry=0)
    row.run()
    second = row.connect(2, clean=False, expiry=0)
    assert not second.present
    row.until(lambda: first.gone)
    assert first.reason() == 0x8E
    row.one_session()


def test_a_clean_start_ends_the_session_elsewhere() -> None:
    row = Row()
    first = row.connect(1).subscribed("a")
    second = row.connect(2, clean=True)
    assert not second.present
    row.one_session()
    assert first.reason() == 0x8E
    row.connect(0, "p").publish("a", b"1")
    row.run()
    assert not second.payloads


def test_qos_2_exchanges_go_on_after_a_takeover() -> None:
    row = Row()
    client = row.connect(1, answers=False).subscribed("a")
    row.connect(1, "p").publish("a", b"1", b"2")
    row.until(lambda: len(client.payloads) == 2)
    client.send(Pubrec(1))
    client.send(Publish("x", b"mine", 2, packet_id=9))
    row.run()
    client.cut()
    listener = row.connect(2, "listener").subscribed("x")
    back = row.connect(2, answers=False)
    row.run()
    assert [(p.packet_id, p.payload, p.dup) for p in back.packets if isinstance(p, Publish)] == [
        (2, b"2", True)
    ]
    assert [p.packet_id for p in back.packets if isinstance(p, Pubrel)] == [1]
    back.send(Publish("x", b"mine", 2, dup=True, packet_id=9))
    back.send(Pubrel(9))
    row.run()
    assert [type(p) for p in back.packets if isinstance(p, Pubrec | Pubcomp)] == [Pubrec, Pubcomp]
    assert not listener.payloads


def test_messages_published_during_a_takeover_come_once() -> None:
    """A publisher at each broker all the time, the client between two of them."""
    row = Row()
    client = row.connect(1).subscribed("a")
    publishers = [row.connect(index, f"p{index}") for index in range(3)]
    got: list[bytes] = []
    for step in range(12):
        for publisher in publishers:
            publisher.publish(
                "a", *[b"%s %d %d" % (str(id(publisher)).encode(), step, n) for n in range(5)]
            )
        row.run(0.001 * (step % 4))
        client.cut() if step % 2 else client.leave()
        got += client.fresh(got)
        client = row.connect(1 + step % 2)
        assert client.present
    row.run()
    got += client.fresh(got)
    assert len(got) == len(set(got)) == 12 * 15
    for publisher in publishers:
        mine = [g for g in got if g.startswith(str(id(publisher)).encode())]
        assert mine == sorted(mine, key=lambda g: [int(n) for n in g.split()[1:]])
    row.one_session()


@pytest.mark.parametrize("waits", [0.1, 10.0])
def test_a_large_session_comes_in_parts(waits: float) -> None:
    """Also while the links are busy with the very messages for seconds."""
    row = Row()
    row.world.window = 16_384
    row.connect(1).subscribed("a").cut()
    publisher = row.connect(1, "p")
    sent = [b"%05d" % n + bytes(20_000) for n in range(120)]
    publisher.publish("a", *sent)
    row.run(waits)
    back = row.client(2)
    row.until(lambda: back.connacks, TAKEOVER_MAX_S)
    assert back.present
    row.until(lambda: len(back.payloads) == len(sent), 10.0)
    assert back.payloads == sent


@pytest.mark.parametrize("routing", ["interest", "topic"])
def test_a_client_that_is_faster_than_the_news_of_a_death_waits_shortly(routing: str) -> None:
    """Its new broker asks the dead one for the session, until it knows that no path leads there."""
    row = Row(3, meshed=True, routing=routing)
    row.connect(1).subscribe("a")
    began = row.world.now
    row.host(1).kill()
    back = row.connect(2)
    assert not back.present
    assert row.world.now - began < 2 * REPAIR_S
    assert row.node(2).counters.session_takeovers_timed_out == 1


@pytest.mark.parametrize("routing", ["interest", "topic"])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_client_whose_broker_died_is_granted_its_filters_at_once(
    routing: str, victim: int
) -> None:
    """Each SUBSCRIBE waits until the other broker has said what it has published, one that names a
    filter within an earlier one, too: none waits for a wave that has not been sent."""
    row = Row(3, meshed=True, routing=routing)
    row.connect(victim).subscribe("a/#")
    publishers = [row.connect(index, f"p{index}") for index in range(3) if index != victim]
    row.host(victim).kill()
    row.run(0.02)
    back = row.connect((victim + 1) % 3)
    for number, topic_filter in enumerate(("a/#", "a/b", "$mqttree/answers/c/+", "a/+")):
        began = row.world.now
        back.send(Subscribe(1 + number, [SubscriptionRequest(topic_filter, 1)]))
        for publisher in publishers:
            publisher.publish("a/b", b"%d" % number)
        row.until(lambda n=number: sum(isinstance(p, Suback) for p in back.packets) > n)
        assert row.world.now - began < LOST / 4


def test_a_takeover_from_a_silent_broker_times_out() -> None:
    row = Row(2)
    row.connect(1).subscribed("a").cut()
    row.host(1).pause()
    began = row.world.now
    back = row.connect(0)
    assert not back.present
    assert TAKEOVER_SILENCE_S <= row.world.now - began < TAKEOVER_SILENCE_S + 0.5
    assert row.node(0).counters.session_takeovers_timed_out == 1
    row.host(1).resume()
    row.join()
    row.run(3.0)  # the client subscribes to nothing, which is waited for
    row.one_session()
    assert not back.gone


def test_a_takeover_from_a_broker_that_dies_begins_a_new_session() -> None:
    row = Row(2)
    row.connect(1).subscribe("a")
    back = row.client(0)
    row.host(1).kill()
    row.until(lambda: back.connacks)
    assert not back.present


def test_a_takeover_waits_until_the_tree_is_repaired() -> None:
    """The root dies; until there is another, no broker is in the tree, but one that has a link to
    the holder waits for it."""
    row = Row(3, meshed=True)
    row.connect(1).subscribed("a").cut()
    row.host(0).kill()
    node = row.node(2)
    row.until(lambda: row.host(0).id not in node.cluster.links)
    back = row.client(2)
    row.until(lambda: back.connacks)
    assert back.present
    row.join()
    row.one_session()


def test_two_sessions_of_a_client_become_one_after_a_split() -> None:
    row = Row(2)
    first = row.connect(1).subscribed("a")
    row.world.partition([[1]])
    row.run(4.0)
    second = row.connect(0)
    assert not second.present
    row.world.heal()
    row.until(lambda: first.gone, 20.0)
    row.join()
    row.run(3.0)
    assert first.reason() == 0x8E
    assert not second.gone
    row.one_session()


def test_a_client_that_leaves_during_a_takeover_loses_nothing() -> None:
    """It is gone before its session has come: the session stays where it was, and nothing is
    lost."""
    row = Row()
    row.connect(1).subscribed("a").cut()
    row.connect(0, "p").publish("a", b"1")
    hasty = row.client(2)
    row.run(0.0005)
    hasty.end.abort()
    row.run(1.0)
    back = row.connect(1)
    assert back.present
    row.until(lambda: back.payloads == [b"1"])
    row.one_session()


@pytest.mark.parametrize("leaves", [Client.cut, Client.leave])
def test_an_empty_session_moves_as_often_as_its_client_does(
    leaves: Callable[[Client], None],
) -> None:
    """One without subscriptions, as publishers have, is no session that was begun by mistake."""
    row = Row(2)
    client = row.connect(0)
    for index in (1, 0, 1, 0, 1):
        row.run()
        leaves(client)
        row.run()
        client = row.client(index)
        row.until(lambda client=client: client.connacks)  # type: ignore[misc]
        assert client.present


def test_a_will_is_published_once_when_its_session_moves() -> None:
    row = Row()
    listener = row.connect(0, "listener").subscribed("will/#")
    late: Any = {Property.WILL_DELAY_INTERVAL: 30}
    row.connect(1, "at-once", will=Will("will/at-once", b"", 1, False))
    row.connect(1, "delayed", will=Will("will/delayed", b"", 1, False, late))
    row.connect(1, "clean", will=Will("will/clean", b"", 1, False, late))
    row.run()
    row.connect(2, "at-once")
    row.connect(2, "delayed")
    row.connect(2, "clean", clean=True)
    row.run(40.0)
    assert sorted(p.topic for p in listener.packets if isinstance(p, Publish)) == [
        "will/at-once",
        "will/clean",
    ]


def test_a_takeover_loses_no_messages_of_a_shared_subscription() -> None:
    row = Row(2)
    row.connect(1, answers=False).subscribed("$share/g/a").cut()
    row.connect(1, "p").publish("a", b"1", b"2", qos=1)
    row.run()
    back = row.connect(0)
    assert back.present
    row.until(lambda: sorted(back.payloads) == [b"1", b"2"])


def test_an_expired_session_is_not_taken_over() -> None:
    row = Row()
    row.connect(1, expiry=2).cut()
    row.run(3.0)
    assert not row.connect(2).present
    assert row.node(1).counters.sessions_expired == 1


def test_a_session_that_moved_expires_when_its_client_leaves() -> None:
    row = Row()
    row.connect(1, expiry=2).cut()
    row.connect(2, expiry=2).cut()
    row.run(3.0)
    assert not any(host.running.sessions for host in row.world.hosts)
    row.one_session()


def test_a_lone_broker_posts_its_sessions_when_another_one_joins() -> None:
    """Alone, a broker posts nothing; who comes later learns of all sessions that are there by
    then."""
    world = World(1)
    world.add(discovery="multicast").start()
    row = Row.__new__(Row)
    row.world = world
    clients = [row.connect(0, f"c{n}") for n in range(SLICE + 5)]
    clients[3].send(Disconnect(0, {Property.SESSION_EXPIRY_INTERVAL: 0}))
    row.run()
    listing = row.node(0).cluster.directory.database.own
    assert not [key for key in listing.entries if key[:1] == b"c"]
    world.add(discovery="multicast").start()
    row.join()
    row.until(lambda: len([key for key in listing.entries if key[:1] == b"c"]) == SLICE + 4)
    assert row.connect(1, "c2").present
    assert not row.connect(1, "c3").present


def crowded(routing: str, taker: int, limits: Limits = DEFAULTS) -> tuple[Row, Client, Client]:
    """Two brokers whose clients are fast, one that is on its way to its session, and a
    publisher."""
    row = Row(2, routing=routing, limits=limits)
    row.world.rate, row.world.window, row.world.high_water = 1.25e9, 1 << 24, 1 << 22
    row.connect(1 - taker).subscribed("a").cut()
    publisher = row.connect(0, "p")
    return row, row.client(taker), publisher


def judge_crowded(row: Row, waiting: Client, publisher: Client) -> None:
    row.until(lambda: waiting.connacks)
    row.until(lambda: row.node(0).counters.replay_log_trimmed)
    publisher.publish("a", b"4")
    row.until(lambda: b"4" in waiting.payloads)
    assert waiting.payloads == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("routing", ["interest", "topic"])
def test_messages_trimmed_from_the_holders_log_reach_the_taker(routing: str) -> None:
    """The log has 32 MiB: large messages push out within milliseconds what the holder says next of
    what came meanwhile."""
    row, waiting, publisher = crowded(routing, 1)
    row.until(lambda: row.node(0).cluster.handover.size)
    publisher.publish("a", b"1", b"2", b"3")
    publisher.publish("b", *[bytes(1_000_000)] * 40)
    judge_crowded(row, waiting, publisher)


@pytest.mark.parametrize("routing", ["interest", "topic"])
def test_messages_trimmed_from_the_takers_log_reach_its_client(routing: str) -> None:
    """The same, while the holder's word of what came meanwhile is on a link that stands still."""
    row, waiting, publisher = crowded(routing, 0, Limits(away_logs=1))
    row.until(lambda: row.node(1).cluster.handover.size)
    exported = row.node(1).cluster.handover.size
    publisher.publish("a", b"1")
    row.until(lambda: row.node(1).cluster.handover.size > exported)
    row.world.partition([[1]])
    publisher.publish("a", b"2", b"3")
    publisher.publish("b", *[bytes(4_000_000)] * 12)
    row.until(lambda: row.node(0).counters.replay_log_trimmed)
    row.world.heal()
    judge_crowded(row, waiting, publisher)


def test_a_client_whose_broker_lives_is_let_in_when_its_queue_is_there() -> None:
    """One that moved on faster than its queue follows would never get it."""
    row = Row(routing="topic")
    row.connect(1).subscribed("a").leave()
    publisher = row.connect(0, "p")
    for number in range(1, 6):
        publisher.send(Publish("a", b"%d" % number, 1, packet_id=number))
    row.run(1.0)
    back = row.client(2)
    row.until(lambda: back.connacks, 10.0)
    assert back.present and not row.node(2).sessions["c"].held


def test_the_will_of_an_older_connection_comes_before_what_the_newer_one_writes() -> None:
    """A device moves with a clean session and does not close its connection: its Online stands."""
    row = Row(routing="topic")
    watcher = row.connect(2, "w").subscribed("x/LWT")
    row.connect(1, version=4, clean=True, will=Will("x/LWT", b"Offline", 1, True))
    row.run(0.5)
    second = row.client(2, version=4, clean=True, will=Will("x/LWT", b"Offline", 1, True))
    second.send(Publish("x/LWT", b"Online", 1, retain=True, packet_id=1))
    row.run(1.0)
    assert watcher.payloads == [b"Offline", b"Online"]
    for index in range(3):
        message = row.node(index).retained.get("x/LWT")
        assert message is not None
        assert message.payload == b"Online"


def test_a_broker_that_hung_publishes_nothing_over_what_a_newer_connection_wrote() -> None:
    """Neither what waited in its socket, nor the will."""
    row = Row(meshed=True)
    first = row.connect(1, version=4, clean=True, will=Will("x", b"Offline", 1, True))
    first.send(Publish("x", b"1", 1, retain=True, packet_id=1))
    row.run(1.0)
    row.host(1).pause()
    first.send(Publish("x", b"2", 1, retain=True, packet_id=2))
    row.run(4.0)
    second = row.connect(2, version=4, clean=True, will=Will("x", b"Offline", 1, True))
    second.send(Publish("x", b"3", 1, retain=True, packet_id=1))
    row.run(1.0)
    first.cut()
    row.host(1).resume()
    row.run(5.0)
    assert [row.node(index).retained.get("x").payload for index in range(3)] == [b"3"] * 3


def test_a_will_after_a_split_does_not_win_over_a_newer_connection() -> None:
    """The broker that it comes from did not hear of that one."""
    row = Row()
    first = row.connect(1, version=4, clean=True, will=Will("x", b"Offline", 1, True))
    first.send(Publish("x", b"1", 1, retain=True, packet_id=1))
    row.run(1.0)
    row.world.partition([[1], [0, 2]])
    row.run(4.0)
    row.connect(2, version=4, clean=True).send(Publish("x", b"2", 1, retain=True, packet_id=1))
    row.run(3.0)
    first.cut()
    row.run(1.0)
    row.world.heal()
    row.join()
    row.run(5.0)
    assert [row.node(index).retained.get("x").payload for index in range(3)] == [b"2"] * 3


def test_a_device_that_moves_on_before_it_is_known_elsewhere_is_online() -> None:
    """What its first broker reads a moment later, and the will, lose."""
    row = Row(meshed=True)
    first = row.connect(1, version=4, clean=True, will=Will("x", b"Offline", 1, True))
    row.world.partition([[1], [0, 2]])
    second = row.connect(2, version=4, clean=True)
    second.send(Publish("x", b"Online1", 1, retain=True, packet_id=1))
    row.run(0.02)
    first.send(Publish("x", b"Online0", 1, retain=True, packet_id=1))
    first.cut()
    row.run(0.02)
    row.world.heal()
    row.join()
    row.run(5.0)
    assert [row.node(index).retained.get("x").payload for index in range(3)] == [b"Online1"] * 3


def test_a_delayed_will_is_not_sent_once_its_client_is_connected_elsewhere() -> None:
    row = Row(meshed=True)
    watcher = row.connect(0, "w").subscribed("x")
    delayed = Will("x", b"Offline", 1, False, {Property.WILL_DELAY_INTERVAL: 3})
    first = row.connect(1, will=delayed)
    row.run(0.5)
    row.host(1).pause()
    first.cut()
    row.run(1.5)
    assert not row.connect(2).present
    row.host(1).resume()
    row.run(10.0)
    assert not watcher.payloads
