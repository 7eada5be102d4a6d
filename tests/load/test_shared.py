"""A shared subscription under load: brokers with journals that are killed and drained in turn, thousands of messages a second.

Publishers and members keep their sessions and stay with their brokers; most messages are for members at other brokers. Every
message that was acknowledged has a receiver in the group: at QoS 2 one alone. RATE=n messages a second, SECONDS=n,
FAULT=kill|drain|mixed and ROUTING=word for a run by hand.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from broker.wire import Connack, Connect, Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback, Subscribe, SubscriptionRequest
from broker.wire.decode import decode_packet
from broker.wire.encode import encode_packet
from tests.process.brokers import Broker, Cluster
from tests.sim.clients import PacketReader

RATE = int(os.environ.get("RATE", "3000"))
SECONDS = float(os.environ.get("SECONDS", "20"))
BROKERS = 3
PACE = 0.01
"""s between two bursts of a publisher."""
DOWN = 1.5
"""s that a broker that was killed or drained stays away."""
PATIENCE = 90.0


class Person:
    """A client that stays with its broker and goes on with its session when that is back."""

    def __init__(self, name: str, broker: Broker) -> None:
        self.name = name
        self.broker = broker
        self.writer: asyncio.StreamWriter | None = None
        self.closed = False
        self.ready = asyncio.Event()
        self.renewed = 0  # sessions that were not there any more

    async def live(self) -> None:
        """Connect, again and again."""
        began = 0
        while not self.closed:
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.broker.port)
                self.writer = writer
                self.send(Connect("MQTT", 4, False, 0, self.name, None, None, None, None))
                packets = PacketReader()
                while data := await reader.read(65536):
                    for first, body in packets.feed(data):
                        packet = decode_packet(first, body, 4)
                        if isinstance(packet, Connack):
                            if packet.code:
                                break
                            self.renewed += began > 0 and not packet.session_present
                            began += 1
                            self.connected(bool(packet.session_present))
                        else:
                            self.took(packet)
            self.gone()
            await asyncio.sleep(0.05)

    def send(self, packet: Packet) -> None:
        if self.writer is not None and not self.writer.is_closing():
            self.writer.write(encode_packet(packet, 4))

    def gone(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.writer = None

    def connected(self, present: bool) -> None:
        """The session goes on, or begins."""

    def took(self, packet: Packet) -> None:
        """A packet came."""


class Member(Person):
    """Takes its part of what the group gets."""

    def __init__(self, name: str, broker: Broker, topic_filter: str, qos: int) -> None:
        super().__init__(name, broker)
        self.filter, self.qos = topic_filter, qos
        self.got: list[int] = []
        self._in: set[int] = set()

    def connected(self, present: bool) -> None:
        if not present:
            self._in.clear()
            self.send(Subscribe(1, [SubscriptionRequest(self.filter, self.qos)]))

    def took(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            number = packet.packet_id or 0
            if packet.qos != 2 or number not in self._in:
                self.got.append(int(packet.payload))
            if packet.qos == 2:
                self._in.add(number)
                self.send(Pubrec(number))
            elif packet.qos == 1:
                self.send(Puback(number))
        elif isinstance(packet, Pubrel):
            self._in.discard(packet.packet_id)
            self.send(Pubcomp(packet.packet_id))
        elif isinstance(packet, Suback):
            self.ready.set()


class Publisher(Person):
    """Publishes numbers."""

    def __init__(self, name: str, broker: Broker, qos: int, numbers: list[int]) -> None:
        super().__init__(name, broker)
        self.qos, self.numbers = qos, numbers
        self.acked: set[int] = set()
        self._out: dict[int, int] = {}  # packet id -> number
        self._released: dict[int, int] = {}
        self._id = 0
        self.up = False

    def gone(self) -> None:
        super().gone()
        self.up = False

    def connected(self, present: bool) -> None:
        if not present:
            self._out.clear()
            self._released.clear()
        for packet_id, number in self._out.items():
            self.send(Publish("load/shared", b"%08d" % number, self.qos, False, True, packet_id, None))
        for packet_id in self._released:
            self.send(Pubrel(packet_id))
        self.up = True
        self.ready.set()

    def publish(self, count: int) -> None:
        """Publish so many, unless too many are on their way."""
        for _ in range(count):
            if not self.up or len(self._out) + len(self._released) > 2000:
                return
            self._id = self._id % 65535 + 1
            while self._id in self._out or self._id in self._released:
                self._id = self._id % 65535 + 1
            number = len(self.numbers)
            self.numbers.append(number)
            self._out[self._id] = number
            self.send(Publish("load/shared", b"%08d" % number, self.qos, False, False, self._id, None))

    def took(self, packet: Packet) -> None:
        if isinstance(packet, Puback | Pubrec):
            number = self._out.pop(packet.packet_id, None)
            if number is not None:
                self.acked.add(number)
            if isinstance(packet, Pubrec):
                if number is not None:
                    self._released[packet.packet_id] = number
                self.send(Pubrel(packet.packet_id))
        elif isinstance(packet, Pubcomp):
            self._released.pop(packet.packet_id, None)


async def play(cluster: Cluster, qos: int, fault: str) -> tuple[Counter[int], set[int], int]:
    """Let it run; returns how often each number came, which were acknowledged, and how many sessions were lost."""
    numbers: list[int] = []
    members = [Member(f"work{b.name}.{n}", b, "$share/g/load/#", qos) for b in cluster.brokers[1:] for n in range(2)]
    publishers = [Publisher(f"pub{n}", b, qos, numbers) for n, b in enumerate((*cluster.brokers, cluster.brokers[0]))]
    people: list[Person] = [*members, *publishers]
    tasks = [asyncio.create_task(person.live()) for person in people]
    for person in people:
        await asyncio.wait_for(person.ready.wait(), PATIENCE)
    loop = asyncio.get_running_loop()
    faults = loop.create_task(strike(cluster, fault))
    began, end = time.monotonic(), time.monotonic() + SECONDS
    published = 0.0
    while (now := time.monotonic()) < end:
        due = (now - began) * RATE - published
        published += due
        for publisher in publishers:
            publisher.publish(round(due / len(publishers)))
        await asyncio.sleep(PACE)
    await faults

    def acked() -> set[int]:
        return set().union(*(publisher.acked for publisher in publishers))

    def got() -> Counter[int]:
        return Counter(number for member in members for number in member.got)

    last, since = -1, time.monotonic()
    while time.monotonic() < since + 15.0:  # without anything new: longer than any broker waits before it asks another one
        await asyncio.sleep(0.5)
        if (found := sum(len(member.got) for member in members)) != last:
            last, since = found, time.monotonic()
        if all(publisher.up and not publisher._out for publisher in publishers) and got().keys() >= acked():
            break
    await asyncio.sleep(3.0)
    for person in people:
        person.closed = True
        person.gone()
    for task in tasks:
        task.cancel()
    return got(), acked(), sum(person.renewed for person in people)


async def strike(cluster: Cluster, fault: str) -> None:
    """Kill or drain one broker after the other, and start it again."""
    end = time.monotonic() + SECONDS - 4.0
    at = 0
    while time.monotonic() < end:
        await asyncio.sleep(1.5)
        broker = cluster.brokers[at % len(cluster.brokers)]
        if fault == "kill" or (fault == "mixed" and at % 2):
            await asyncio.to_thread(broker.kill)
        else:
            await asyncio.to_thread(drain, broker)
        await asyncio.sleep(DOWN)
        broker.start()
        await asyncio.to_thread(broker.up)
        at += 1


def drain(broker: Broker) -> None:
    """`mqttree drain`, until the process has ended."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", broker.admin, timeout=5)
    connection.request("POST", "/api/drain?within=4", headers={"Connection": "close"})
    connection.getresponse().read()
    connection.close()
    assert broker.process is not None
    broker.process.wait(30)


@pytest.mark.parametrize("fault", [os.environ["FAULT"]] if "FAULT" in os.environ else ["kill", "drain"])
@pytest.mark.parametrize("qos", [1, 2])
def test_each_message_has_one_receiver(tmp_path: Path, qos: int, fault: str) -> None:
    with Cluster(tmp_path, *(["--routing", os.environ["ROUTING"]] if "ROUTING" in os.environ else [])) as cluster:
        for _ in range(BROKERS):
            cluster.add()
        cluster.settle()
        got, acked, renewed = asyncio.run(play(cluster, qos, fault))
        lost = sorted(acked - got.keys())
        twice = sorted(number for number, copies in got.items() if copies > 1)
        for broker in cluster.brokers:
            counters = (broker.state() or {}).get("counters", {})
            print(broker.name, {k: v for k, v in counters.items() if k.startswith("shared_") or k.startswith("dropped")})
        print(f"QoS {qos}, {fault}: {len(acked)} acknowledged, {len(lost)} lost, {len(twice)} twice, {renewed} sessions lost")
        assert acked
        assert not renewed
        assert not lost, lost[:20]
        if qos == 2:
            assert not twice, twice[:20]
