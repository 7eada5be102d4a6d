"""What a journal that was cut off in an unlucky moment leads to, and what waits for it (docs/decisions/0021)."""

from __future__ import annotations

import pytest

from broker import checkpoint, durability, limits
from broker.journal import decode_header
from broker.origin import Window, origin_key
from broker.wire import Connack, Disconnect, Pingreq, Pingresp, Property, Puback, Publish, Subscribe, SubscriptionRequest
from tests.unit.journal_harness import ID, Durable, Files
from tests.unit.node_harness import connect_packet
from tests.unit.test_durability import copy_of, keeper, lazy


def test_killed_in_the_middle_of_a_checkpoint_the_log_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other brokers ask for what they lack: each message once, oldest first, or the newest would not be found behind old ones."""
    monkeypatch.setattr(checkpoint, "STEP_ITEMS", 1)
    world = Durable()
    keeper(world, "l").subscribe("other", qos=1)
    world.node.federated = True
    publisher = world.connect("p")
    for number in range(1, 21):
        publisher.publish("a", b"%d" % number, 1, number)
        world.node.federated = True
        world.advance(5.0)
        world.node.federated = True
    key, own = world.node.relay.key, world.node.relay.own
    assert own.top == 20
    world.durability._begin_checkpoint()
    files: Files | None = None
    for _ in range(100):
        world.advance(durability.STEP)
        image = world.files.image()
        if len(world.files.generations) > 1 and len(image.logged) >= 26:
            files = copy_of(world.files)
            break
    assert files is not None
    again = world.again(1.0, files)
    entries = [entry for entry in again.node.relay.log._entries if entry.key == key]
    assert [entry.sequence for entry in entries] == sorted({entry.sequence for entry in entries})
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)
    again.now += 20.0
    again.node.relay.log.forget_old(again.now)
    lacks = {key: [(1, own.top)]}
    found = again.node.relay.log.those(lacks, again.now - limits.LOG_AGE)
    assert [entry.sequence for entry in found][-1] == 20


def test_a_connection_that_closes_gets_all_that_waits() -> None:
    """Of several frames, too."""
    world = lazy()
    publisher = world.connect("p")
    publisher.publish("a/1", b"x", 1, 1)
    first, world.files.untold = world.files.untold, []
    publisher.publish("a/1", b"x", 1, 2)
    publisher.owner.shut(0x8B)
    world.settle()
    second, world.files.untold = world.files.untold, first
    world.tell()
    assert not publisher.transport.closing
    world.files.untold = second
    world.tell()
    assert publisher.take() == [Puback(1), Puback(2), Disconnect(0x8B)]
    assert publisher.transport.closing


def test_so_does_one_that_reads_slowly() -> None:
    world = lazy()
    publisher = world.connect("p")
    publisher.transport.capacity = 0
    publisher.publish("b", b"x", 1, 1)  # fills the transport
    publisher.publish("a/1", b"x", 1, 2)
    first, world.files.untold = world.files.untold, []
    publisher.publish("a/1", b"x", 1, 3)
    publisher.owner.shut(0x8B)
    world.settle()
    second, world.files.untold = world.files.untold, first
    world.tell()
    publisher.transport.capacity = None
    publisher.conn.writable(world.now)
    assert not publisher.transport.closing
    world.files.untold = second
    world.tell()
    assert publisher.take() == [Puback(1), Puback(2), Puback(3), Disconnect(0x8B)]
    assert publisher.transport.closing


@pytest.mark.parametrize("size", (1, 16, 38, 4096))
def test_a_file_of_zeros_is_one_that_was_cut_off(size: int) -> None:
    """A power cut may leave the size of a new file and not what was in it."""
    assert decode_header(bytes(size), ID, 3) is False


def test_what_sessions_miss_is_owed_when_somebody_begins_to_route_by_interest() -> None:
    """After a restart as a broker that floods, with holes in what had been here."""
    world = Durable()
    node = world.node
    key = origin_key(b"x" * 8, 1)
    window = node.relay.vector[key] = Window(9, world.now, node.counters)
    window.gaps = [(3, 4), (7, 7)]
    window.owed, window.begin = list(window.gaps), window.top
    assert window.for_those_here(3)
    node.federation.streams.activate()
    assert window.stream is not None
    assert window.stream.done == 9
    assert window.stream.owed == [(3, 4), (7, 7)]


def test_a_run_is_in_the_log_once() -> None:
    world = Durable()
    keeper(world, "l").subscribe("other", qos=1)
    world.node.federated = True
    publisher = world.connect("p")
    publisher.send(*(Publish("a", b"x", 1, packet_id=n) for n in range(1, 11)))
    world.durability._begin_checkpoint()
    world.advance(1)
    files = copy_of(world.files)
    world.node.federated = True
    again = world.again(0.5, files)
    assert sum(entry.count for entry in again.node.relay.log._entries) == 10


def test_nothing_comes_before_connack() -> None:
    """Not even the answer to a PINGREQ, which overtakes what waits later on [MQTT-3.2.0-1]."""
    world = Durable()
    world.files.lazy = True
    client = world.open()
    client.send(connect_packet("k", 5, clean=False, properties={Property.SESSION_EXPIRY_INTERVAL: 100}), Pingreq())
    assert client.take() == []
    world.tell()
    assert [type(packet) for packet in client.take()] == [Connack, Pingresp]
    client.send(Subscribe(1, [SubscriptionRequest("a", 1)]), Pingreq())
    assert client.take() == [Pingresp()]
