"""Devices with a retained will whose broker is killed, and started again with its journal: its will
does not win over what came after the connection that it was for."""

from __future__ import annotations

import pytest

from mqttree.broker.wire.packets import Disconnect, Publish, Will
from mqttree.broker.wire.properties import Property
from tests.sim.disk import Disk
from tests.sim.test_takeover import Client, Row

TOPIC = "x/LWT"
WILL = Will(TOPIC, b"Offline", 1, True)


class Journals(Row):
    """Brokers with journals. `first`: a device at broker 1, which says that it is Online0.
    `watcher`: sees at broker 0 what is published live."""

    def __init__(self, will: Will = WILL, *, version: int = 5) -> None:
        super().__init__(meshed=True, routing="topic")
        self.disks = disks = [Disk(self.world, host, sync=False) for host in self.world.hosts]
        self.world.on_start.append(lambda host: disks[host.index].started())
        for host in self.world.hosts:
            host.kill()
            host.start()
        self.run(2.0)
        self.join()
        self.version = version
        self.watcher = self.connect(0, "w")
        self.watcher.subscribe(TOPIC)
        self.first = self.connect(1, version=version, will=will)
        self.write(self.first, b"Online0")
        self.run(1.0)

    def write(self, client: Client, value: bytes) -> None:
        client.send(Publish(TOPIC, value, 1, retain=True, packet_id=1))
        self.run(0.2)

    def move(self, *, clean: bool = False) -> Client:
        """The device connects to broker 2, and says that it is Online1."""
        second = self.connect(2, version=self.version, clean=clean, will=WILL)
        self.write(second, b"Online1")
        return second

    def again(self, *indices: int) -> None:
        """Start brokers, and wait until they are one with the others."""
        for index in indices:
            self.host(index).start()
        self.run(5.0)
        self.join()
        self.run(3.0)

    def retained(self) -> list[bytes]:
        """What is retained at each broker."""
        found = [host.running.retained.get(TOPIC) for host in self.world.hosts]
        return [b"" if message is None else message.payload for message in found]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("then", ["stays", "leaves", "writes again", "deletes"])
@pytest.mark.parametrize("clean", [False, True], ids=["goes on", "clean start"])
def test_a_device_that_moved_while_its_broker_was_dead_is_online(
    version: int, then: str, clean: bool
) -> None:
    """Retained at all brokers, and as long as it is connected, live."""
    row = Journals(version=version)
    row.host(1).kill()
    row.run(0.5)
    second = row.move(clean=clean)
    value = b"Online1"
    if then == "leaves":
        second.send(Disconnect(0, None))
    elif then != "stays":
        value = b"Online2" if then == "writes again" else b""
        row.write(second, value)
    row.again(1)
    assert row.retained() == [value] * 3
    assert then == "leaves" or b"Offline" not in row.watcher.payloads


@pytest.mark.parametrize("moves", [False, True])
def test_a_device_that_comes_as_its_broker_starts_is_online(moves: bool) -> None:
    """To that one, or to another (`moves`)."""
    row = Journals()
    row.host(1).kill()
    row.run(1.0)
    row.host(1).start()
    if moves:
        row.move()
    else:
        back = row.client(1, will=WILL)
        back.send(Publish(TOPIC, b"Online1", 1, retain=True, packet_id=1))
    row.again()
    assert moves or back.present
    assert row.retained() == [b"Online1"] * 3
    assert row.watcher.payloads[-1] == b"Online1"


def test_the_broker_of_the_older_connection_starts_first_after_all_were_dead() -> None:
    """It publishes the will, as it cannot know better; that loses when the others are back."""
    row = Journals()
    row.host(1).kill()
    row.run(0.5)
    row.move().send(Disconnect(0, None))
    row.run(0.5)
    row.host(0).kill()
    row.host(2).kill()
    row.run(0.5)
    row.host(1).start()
    row.run(4.0)
    message = row.node(1).retained.get(TOPIC)
    assert message is not None
    assert message.payload == b"Offline"
    row.again(0, 2)
    assert row.retained() == [b"Online1"] * 3


@pytest.mark.parametrize("delay", [0, 20])
def test_what_others_write_while_a_broker_is_dead_is_not_overwritten_by_a_will(delay: int) -> None:
    properties = {Property.WILL_DELAY_INTERVAL: delay} if delay else None
    row = Journals(Will(TOPIC, b"Offline", 1, True, properties))
    row.host(1).kill()
    row.run(0.5)
    row.write(row.connect(2, "operator"), b"in repair")
    row.again(1)
    row.run(float(2 * delay))
    assert row.retained() == [b"in repair"] * 3


@pytest.mark.parametrize("delay", [0, 5])
def test_a_device_that_went_away_with_its_broker_is_offline(delay: int) -> None:
    """Once, when that is back, and after a second kill, too."""
    properties = {Property.WILL_DELAY_INTERVAL: delay} if delay else None
    row = Journals(Will(TOPIC, b"Offline", 1, True, properties))
    row.host(1).kill()
    row.run(0.5)
    row.again(1)
    row.run(40.0)
    row.host(1).kill()
    row.again(1)
    row.run(40.0)
    assert row.retained() == [b"Offline"] * 3
    assert row.watcher.payloads == [b"Online0", b"Offline"]


def test_a_broker_that_is_killed_twice_still_knows_when_its_clients_were_there() -> None:
    row = Journals()
    row.host(1).kill()
    row.run(0.5)
    row.world.partition([[1], [0, 2]])
    row.move()
    row.run(1.0)
    row.host(1).start()
    row.run(0.5)
    row.host(1).kill()
    row.run(5.0)
    row.host(1).start()
    row.run(3.0)
    row.world.heal()
    row.again()
    assert row.retained() == [b"Online1"] * 3


def test_a_device_is_offline_although_the_journal_lacks_what_it_wrote_last() -> None:
    """Its broker was killed before that was written; others have it."""
    row = Journals()
    row.disks[1].files.broken = "No space left on device"
    row.first.send(Publish(TOPIC, b"at work", 0, retain=True))
    row.until(lambda: b"at work" in row.watcher.payloads, 0.1)
    row.host(1).kill()
    row.disks[1].files.broken = row.disks[1].files.failed = ""
    row.again(1)
    assert row.retained() == [b"Offline"] * 3
