"""A broker and its standby: what it is sent, what waits for it, and when another one is it."""

from __future__ import annotations

from typing import Any

import pytest

from mqttree.broker.cluster.directory.link_state_directory import STANDBY, decode_posted
from mqttree.broker.cluster.link.control_records import PING
from mqttree.broker.cluster.link.stream_packets import (
    BEGIN,
    DROP,
    END,
    FRAME,
    HAVE,
    decode_stream,
    encode_stream,
)
from mqttree.broker.cluster.sessions.image import Image
from mqttree.broker.limits import DEFAULTS
from mqttree.broker.persistence.images import StandbyImage
from mqttree.broker.persistence.stream import BETTER_S, LACK_S, SILENCE_S, SLOW_S, Stream
from mqttree.broker.persistence.stream_states import State
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Connack, Puback, Suback, Subscribe, SubscriptionRequest
from mqttree.broker.wire.varint import encode_varint
from tests.kit.link_harness import OWN, Neighbour, bid, ping
from tests.kit.node_harness import FakeClient, World, connect_packet

SHORT = 0.01


class Standby(Neighbour):
    """A neighbour that takes images, and is alive."""

    def __init__(self, world: World, number: int, **values: Any) -> None:
        super().__init__(world, number, **({"standby": "1"} | values))
        self.image: StandbyImage | None = None
        self.acknowledges = True
        self.kinds: list[int] = []
        self.epoch = 0
        self.lsn = 0

    def live(self) -> None:
        """Answer what has come, and take frames."""
        for first, body in self.packets():
            if first == 0xC0:
                self.send(b"\xd0\x04" + body[4:8])
            elif first == 0x32 and body[2:9] == b"$stream":
                data = bytes((first,)) + encode_varint(len(body)) + body
                self.stream(*decode_stream(data, len(data) - len(body)))
        self.send(ping((PING, b"\0\0\0\1")))

    def stream(self, kind: int, epoch: int, lsn: int, frame: bytes) -> None:
        """Take a packet of the stream."""
        self.kinds.append(kind)
        if kind == BEGIN:
            self.epoch = epoch
            self.image = StandbyImage((OWN, 1000, epoch), self.link(), lsn)
        elif kind in (FRAME, END):
            if self.image is not None and epoch == self.epoch:
                self.image.apply(lsn, frame)
            if self.acknowledges:
                self.send(encode_stream(HAVE, epoch, lsn))
        elif kind == DROP and epoch == self.epoch:
            self.image = None

    @property
    def contents(self) -> Image:
        assert self.image is not None
        return self.image.contents


class Owned(World):
    """A broker that wants a standby, without a disk."""

    def __init__(self, **config: Any) -> None:
        lone = {"id": OWN, "boot": 1000, "host": "10.0.0.200", "capability": 9.0, "replicas": 1}
        super().__init__(**({"discovery": "static"} | lone | config))
        self.standbys: list[Standby] = []

    def standby(self, number: int = 1, **values: Any) -> Standby:
        found = Standby(self, number, **values)
        self.standbys.append(found)
        return found

    def pass_time(self, seconds: float, step: float = 0.05) -> None:
        """Let the time pass while the neighbours live."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.advance(min(step, end - self.now))
            for standby in self.standbys:
                standby.live()

    @property
    def stream(self) -> Stream:
        stream = self.node.images.stream
        assert isinstance(stream, Stream)
        return stream

    @property
    def posted(self) -> list[bytes] | None:
        entry = self.node.cluster.database.own_entry(STANDBY)
        return None if entry is None else [each.id for each in decode_posted(entry)[1]]


def synced(**config: Any) -> tuple[Owned, Standby]:
    world = Owned(**config)
    standby = world.standby()
    world.pass_time(1.0)
    assert world.stream.state is State.SYNCED
    return world, standby


def kept(world: Owned, name: str = "k") -> FakeClient:
    """A subscriber whose session is kept."""
    client = world.open(version=4).sent(connect_packet(name, 4, clean=False))
    world.pass_time(1.0)
    client.send(encode_packet(Subscribe(1, [SubscriptionRequest("a", 1)]), 4))
    world.pass_time(0.2)
    assert [type(packet) for packet in client.take()] == [Connack, Suback]
    return client


def published(client: FakeClient, number: int) -> bool:
    """Publish a message; returns whether it is acknowledged at once."""
    client.publish("a", b"%d" % number, 1, number)
    return acknowledged(client)


def acknowledged(client: FakeClient) -> bool:
    return any(isinstance(packet, Puback) for packet in client.take())


def test_a_neighbour_gets_everything_and_is_posted_as_the_standby() -> None:
    world = Owned()
    client = kept(world)
    assert published(world.connect("p"), 1)
    standby = world.standby()
    world.pass_time(1.0)
    assert (standby.kinds[0], standby.kinds.count(END)) == (BEGIN, 1)
    assert world.posted == [bid(1)]
    (session,) = standby.contents.sessions.values()
    assert session.head.client_id == b"k"
    assert list(session.subscriptions) == [b"a"]
    assert list(session.inflight) == [1]
    client.take()


def test_an_acknowledgement_waits_for_the_standby() -> None:
    world, standby = synced()
    kept(world)
    publisher = world.connect("p")
    assert not published(publisher, 1)
    world.advance(SHORT)
    assert not acknowledged(publisher)
    standby.live()
    assert acknowledged(publisher)
    assert world.node.journal.durable_lsn == world.node.journal.lsn


def test_with_acknowledge_local_it_does_not() -> None:
    world, standby = synced(acknowledge="local")
    kept(world)
    assert published(world.connect("p"), 1)
    world.pass_time(0.2)
    (session,) = standby.contents.sessions.values()
    assert session.inflight


def test_without_replicas_nothing_is_recorded_or_sent() -> None:
    world = Owned(replicas=0)
    standby = world.standby()
    kept(world)
    assert published(world.connect("p"), 1)
    world.pass_time(1.0)
    assert not standby.kinds
    assert not world.node.journal.recording
    assert world.posted is None


def test_a_silent_standby_is_given_up_and_output_goes_on() -> None:
    world, standby = synced()
    kept(world)
    world.pass_time(0.1)
    publisher = world.connect("p")
    standby.acknowledges = False
    assert not published(publisher, 1)
    world.pass_time(SILENCE_S + 0.05)
    assert world.stream.state is State.LACKING
    assert not acknowledged(publisher)
    assert standby.kinds[-1] != DROP or standby.image is None
    world.standbys.clear()
    world.advance(LACK_S)
    assert acknowledged(publisher)
    assert world.posted == []
    assert published(publisher, 2)


def test_another_standby_is_begun_at_once_and_output_waits_for_it() -> None:
    world, standby = synced()
    other = world.standby(2)
    kept(world)
    world.pass_time(0.2)
    publisher = world.connect("p")
    standby.acknowledges = False
    assert not published(publisher, 1)
    world.pass_time(SILENCE_S + 0.15)
    assert world.stream.state is State.SYNCED
    assert acknowledged(publisher)
    assert world.posted == [bid(2)]
    assert other.contents.sessions
    assert world.counters.standby_changes == 2


def test_a_standby_whose_link_breaks_is_given_up_at_once() -> None:
    world, standby = synced()
    world.node.connection_lost(standby.conn, "closed by peer", world.now)
    assert world.stream.state is State.LACKING
    world.standbys.clear()
    world.advance(LACK_S + SHORT)
    assert world.stream.state is State.ALONE


def test_frames_go_to_the_old_standby_until_the_new_one_has_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, standby = synced()
    other = world.standby(2)
    kept(world)
    other.acknowledges = False
    monkeypatch.setattr(world.stream, "_drains", lambda broker_id: broker_id == bid(1))
    for _ in range(30):
        if world.stream.coming is None:
            world.pass_time(0.05)
    world.pass_time(0.2)
    assert world.stream.coming is not None
    assert world.posted == [bid(1)]
    assert standby.contents.sessions
    other.acknowledges = True
    world.pass_time(2.0)
    assert world.posted == [bid(2)]
    assert (standby.image, standby.kinds[-1]) == (None, DROP)
    assert other.contents.sessions


def test_a_neighbour_on_another_host_takes_over_after_a_minute() -> None:
    world = Owned(host="10.0.0.1")
    world.standby(1)
    world.pass_time(1.0)
    assert world.posted == [bid(1)]
    world.standby(2)
    world.pass_time(BETTER_S - 2.0, step=0.25)
    assert world.posted == [bid(1)]
    world.pass_time(5.0, step=0.25)
    assert world.posted == [bid(2)]


def test_the_next_standby_that_is_silent_within_a_minute_is_waited_for_twice_as_long() -> None:
    """Where processors are not enough, snapshots for one after the other make all slower."""
    world, _ = synced()
    world.standby(2)
    kept(world)
    waited = []
    for turn in range(5):
        if turn == 4:
            world.pass_time(60.0, step=0.25)
        for standby in world.standbys:
            standby.acknowledges = False
        world.node.journal.frames.expect()  # type: ignore[union-attr]
        begun = world.now
        while world.stream.state is State.SYNCED:
            world.pass_time(0.1)
        waited.append(round(world.now - begun, 1))
        for standby in world.standbys:
            standby.acknowledges = True
        world.pass_time(15.0, step=0.25)
        assert world.stream.state is State.SYNCED
    assert waited[0] < waited[1] < waited[2] <= waited[3] <= 2.5
    assert waited[4] == waited[0], "a minute without one"


def test_one_that_is_given_up_twice_in_a_minute_is_only_chosen_if_there_is_no_other() -> None:
    world, standby = synced()
    kept(world)
    for _ in range(2):
        standby.acknowledges = False
        world.node.journal.frames.expect()  # type: ignore[union-attr]
        world.settle()
        world.pass_time(SILENCE_S + LACK_S + 0.1)
        standby.acknowledges = True
        world.pass_time(0.5)
    assert world.stream.state is State.ALONE
    world.pass_time(10.0, step=0.25)
    assert world.stream.state is State.SYNCED
    world.standby(2)
    world.pass_time(3.0)
    assert world.posted == [bid(2)]
    world.pass_time(SLOW_S / 10, step=0.25)
    assert world.posted == [bid(2)]


def test_a_stream_far_behind_holds_publishers_and_further_behind_drops_the_standby() -> None:
    limits = DEFAULTS.replace(stream_hold_bytes=20_000, stream_drop_bytes=100_000)
    world, standby = synced(limits=limits)
    kept(world)
    world.pass_time(0.1)
    standby.acknowledges = False
    publisher = world.connect("p")
    for number in range(1, 5):
        publisher.publish("a", bytes(8_000), 1, number)
    assert publisher.conn.held
    standby.acknowledges = True
    standby.live()
    assert not publisher.conn.held
    standby.acknowledges = False
    publishers = [world.connect(f"p{number}") for number in range(16)]
    for each in publishers:
        each.publish("a", bytes(8_000), 1, 1)
    assert world.stream.state is State.LACKING
    assert any("too far behind" in line for line in world.logged)


@pytest.mark.parametrize("lsn", [0, 10_000])
def test_a_standby_that_has_dropped_the_image_or_lies_is_given_up(lsn: int) -> None:
    world, standby = synced()
    standby.send(encode_stream(HAVE, world.stream.standbys[0].epoch, lsn))
    assert world.stream.state is State.LACKING


def test_a_stream_that_has_grown_is_begun_anew_at_the_same_standby() -> None:
    world, standby = synced(limits=DEFAULTS.replace(stream_smallest=10_000))
    subscriber = kept(world)
    publisher = world.connect("p")
    for number in range(1, 60):
        publisher.publish("a", bytes(500), 1, number)
        for packet in subscriber.take():
            subscriber.send(Puback(packet.packet_id))  # type: ignore[attr-defined]
        world.pass_time(0.05)
    assert standby.kinds.count(BEGIN) > 1
    assert world.stream.state is State.SYNCED
    assert len(standby.contents.entries) < 60
    assert world.counters.standby_changes == 1


def test_a_stream_begins_in_a_turn_that_has_recorded_a_session() -> None:
    """Its first frame has what was recorded before, with indexes of origins of the last stream."""
    world, standby = synced()
    kept(world).publish("a", b"1", 1, 1)
    world.pass_time(0.2)
    [recorded] = standby.contents.sessions.values()
    recorder = world.node.sessions["k"].recorder
    assert recorded.inflight and recorder is not None

    def at_once(now: float) -> None:
        recorder.record_all()
        world.stream.begin_anew()
        world.stream._choose()

    world.node.timers.schedule(world.now, at_once)
    world.pass_time(1.0)
    assert standby.kinds.count(BEGIN) == standby.kinds.count(END) == 2
    [again] = standby.contents.sessions.values()
    assert again.inflight == recorded.inflight


def test_without_a_neighbour_that_may_be_the_standby_nothing_is_recorded() -> None:
    world = Owned()
    world.standby(1, standby="")
    world.pass_time(1.0)
    assert not world.node.journal.recording
    world.standby(2)
    world.pass_time(1.0)
    assert world.stream.state is State.SYNCED
    assert world.node.journal.recording
    assert not world.node.journal.durable


def test_a_neighbour_is_not_begun_behind_a_full_link() -> None:
    world, standby = synced()
    standby.acknowledges = False
    kept(world)
    standby.link().conn.backlog_bytes = world.node.limits.stream_hold_bytes + 1
    world.pass_time(2.0)
    assert world.stream.state is State.ALONE
    begun = standby.kinds.count(BEGIN)
    world.pass_time(30.0)
    assert standby.kinds.count(BEGIN) == begun
    standby.link().conn.backlog_bytes = 0
    standby.acknowledges = True
    world.pass_time(15.0)
    assert world.stream.state is State.SYNCED


def test_one_that_has_lost_its_standby_says_for_how_long() -> None:
    world, standby = synced()
    world.standbys.clear()
    world.node.connection_lost(standby.conn, "closed by peer", world.now)
    world.pass_time(1.0)
    assert world.stream.state is State.ALONE
    assert 0.9 < world.stream.alone < 1.1


def two(**config: Any) -> tuple[Owned, Standby, Standby]:
    """A broker with two standbys, which are posted in this order."""
    world = Owned(replicas=2, **config)
    standbys = {bid(number): world.standby(number) for number in (1, 2)}
    world.pass_time(1.0)
    assert world.stream.state is State.SYNCED
    assert world.posted is not None
    first, second = (standbys[each] for each in world.posted)
    return world, first, second


def test_with_two_standbys_output_waits_for_both() -> None:
    world, first, second = two()
    kept(world)
    world.pass_time(0.2)
    publisher = world.connect("p")
    assert not published(publisher, 1)
    world.advance(SHORT)
    first.live()
    assert not acknowledged(publisher)
    second.live()
    assert acknowledged(publisher)
    for standby in (first, second):
        (session,) = standby.contents.sessions.values()
        assert session.inflight


def test_with_one_fit_neighbour_it_is_the_only_standby() -> None:
    world, _ = synced(replicas=2)
    assert world.posted == [bid(1)]
    world.standby(2)
    world.pass_time(1.5)
    assert world.posted == [bid(1), bid(2)]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("how", ["silent", "gone", "drops"])
def test_output_goes_on_with_the_standby_that_is_left_once_it_is_posted(
    which: int, how: str
) -> None:
    world, *standbys = two()
    lost, left = standbys[which], standbys[1 - which]
    kept(world)
    world.pass_time(0.2)
    publisher = world.connect("p")
    lost.acknowledges = False
    assert not published(publisher, 1)
    world.pass_time(0.1)
    assert not acknowledged(publisher)
    world.standbys.remove(lost)
    gone = lost.link().peer
    assert gone is not None
    if how == "silent":
        world.pass_time(SILENCE_S + 0.05)
    elif how == "gone":
        world.node.connection_lost(lost.conn, "closed by peer", world.now)
    else:
        lost.send(encode_stream(HAVE, lost.epoch, 0))
    assert world.posted is not None
    assert gone.id not in world.posted
    world.pass_time(0.1)
    assert (world.stream.state, world.stream.alone) == (State.SYNCED, 0.0)
    assert acknowledged(publisher)
    assert left.contents.sessions


def test_another_one_is_synced_in_the_place_of_one_of_two_that_drains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, first, _ = two()
    drained = first.link().peer
    assert drained is not None
    monkeypatch.setattr(world.stream, "_drains", lambda broker_id: broker_id == drained.id)
    world.standby(3)
    world.pass_time(2.0)
    assert world.posted is not None
    assert set(world.posted) == {bid(1), bid(2), bid(3)} - {drained.id}


def test_one_of_two_that_drains_is_left_if_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, first, second = two()
    drained, left = first.link().peer, second.link().peer
    assert drained is not None
    assert left is not None
    monkeypatch.setattr(world.stream, "_drains", lambda broker_id: broker_id == drained.id)
    world.pass_time(1.5)
    assert world.posted == [left.id]
    assert first.kinds[-1] == DROP


def test_the_image_of_a_coming_standby_stays_as_it_is_posted_that_there_is_none() -> None:
    """It is needed as soon as it is complete."""
    world, standby = synced()
    kept(world)
    other = world.standby(2)
    world.pass_time(0.2)
    other.acknowledges = False
    world.standbys.remove(standby)
    world.node.connection_lost(standby.conn, "closed by peer", world.now)
    world.pass_time(LACK_S + 0.05)
    assert world.stream.state is State.SYNCING
    entry = world.node.cluster.database.own_entry(STANDBY)
    assert decode_posted(entry) == (other.epoch - 1, [])


def test_a_doubt_ends_when_each_standby_has_acknowledged() -> None:
    world, first, second = two()
    kept(world)
    world.pass_time(0.2)
    publisher = world.connect("p")
    world.stream.on_suspended(world.node.config.link_timeout, world.now)
    assert world.stream.state is State.DOUBT
    assert not published(publisher, 1)
    world.advance(SHORT)
    first.live()
    world.advance(SHORT)
    assert world.stream.state is State.DOUBT
    second.live()
    assert world.stream.state is State.SYNCED


def test_a_doubt_ends_when_one_standby_has_acknowledged_and_the_other_is_gone() -> None:
    world, first, second = two()
    kept(world)
    world.pass_time(0.2)
    world.stream.on_suspended(world.node.config.link_timeout, world.now)
    world.standbys.remove(first)
    world.node.connection_lost(first.conn, "closed by peer", world.now)
    assert world.stream.state is State.DOUBT
    assert world.posted is not None
    assert len(world.posted) == 2  # what it has given away has to be heard first
    world.pass_time(0.3)
    left = second.link().peer
    assert left is not None
    assert (world.stream.state, world.posted) == (State.SYNCED, [left.id])
