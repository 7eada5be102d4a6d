"""Devices that say in a retained message whether they are there: Online when they connect, and a
retained will, Offline. They move between brokers without closing their connections, most with clean
sessions, while brokers hang, leave, are cut off, and are killed and come back with their journals:
`python -m tests.sim --kind devices`.

What is checked: the value that the newest connection of a device wrote last is the one that is
retained, everywhere; and where no broker fails, it is also the last one that is seen live at the
device's broker.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import (
    Connack,
    Connect,
    Publish,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from mqttree.broker.wire.properties import Properties, Property
from tests.kit.decoder import Decoder
from tests.sim.disk import Disk
from tests.sim.schedule import Result, quiet
from tests.sim.world import End, Host, World

BEGIN = 6.0
"""virtual s until the brokers are one."""


@dataclass
class Visit:
    """One connection of a device."""

    device: Device
    number: int
    host: Host
    at: float
    wrote: dict[str, str] = field(default_factory=dict)
    packets: int = 0
    up: bool = False
    end: End | None = None
    reader: Decoder = field(init=False)

    def __post_init__(self) -> None:
        self.reader = Decoder(self.device.version)

    def data(self, data: bytes) -> None:
        for packet in self.reader.receive(data):
            if isinstance(packet, Connack) and not packet.code:
                self.up = True
                self.device.let_in(self)

    def lost(self, reason: str) -> None:
        self.end = None
        self.device.closed(self)

    def write(self, topic: str, value: str) -> bytes:
        """Publish a retained value; returns the packet, which is sent if there is a connection."""
        self.packets += 1
        self.wrote[topic] = text = f"{value} {self.number} {self.packets}"
        packet = Publish(topic, text.encode(), 1, retain=True, packet_id=self.packets)
        data = encode_packet(packet, self.device.version)
        if self.up and self.end is not None:
            self.end.write(data)
        return data


class Device:
    """A device: Online or Offline, and a value."""

    def __init__(self, world: World, rng: random.Random, name: str, host: Host) -> None:
        self.world, self.rng, self.name, self.host = world, rng, name, host
        self.version = rng.choice((4, 4, 5))
        self.kept = rng.random() < 0.25
        self.delay = rng.choice((0, 0, 1)) if self.version == 5 else 0
        self.hasty = rng.random() < 0.5  # writes behind CONNECT at once
        self.visits: list[Visit] = []

    @property
    def calm(self) -> bool:
        """Whether all brokers had heard of its last connection but one when the last one began."""
        return len(self.visits) < 2 or self.visits[-1].at - self.visits[-2].at > 0.2

    @property
    def newest(self) -> Visit:
        return self.visits[-1]

    def connect(self) -> None:
        number = len(self.visits) + 1
        visit = Visit(self, number, self.host, self.world.now)
        visit.end = self.world.connect(self.host, visit)
        if visit.end is None:
            self.world.after(0.2, self.connect)
            return
        self.visits.append(visit)
        properties: Properties | None = None
        of_will: Properties | None = None
        if self.version == 5:
            properties = {Property.SESSION_EXPIRY_INTERVAL: 60} if self.kept or self.delay else {}
            of_will = {Property.WILL_DELAY_INTERVAL: self.delay} if self.delay else {}
        will = Will(f"{self.name}/LWT", b"Offline %d" % number, 1, True, of_will)
        name = "MQTT"
        clean = not self.kept
        data = encode_packet(
            Connect(name, self.version, clean, 0, self.name, None, None, will, properties),
            self.version,
        )
        if self.hasty:
            data += visit.write(f"{self.name}/LWT", "Online")
        self.world.say(f"{self.name} connects to {self.host.name} ({number})")
        visit.end.write(data)

    def let_in(self, visit: Visit) -> None:
        if visit is self.newest and not self.hasty:
            visit.write(f"{self.name}/LWT", "Online")

    def closed(self, visit: Visit) -> None:
        if visit is self.newest:
            self.world.after(0.1, self._again, visit)

    def _again(self, visit: Visit) -> None:
        if visit is self.newest:
            self.host = self.rng.choice(self.world.alive())
            self.connect()

    def move(self, host: Host) -> None:
        """Go to another broker; the connection to the last one stays open."""
        self.host = host
        self.connect()

    def measure(self) -> None:
        if self.visits and self.newest.up:
            self.newest.write(f"{self.name}/value", "at")


class Watcher:
    """Sees all messages live, at one broker."""

    def __init__(self, world: World, host: Host) -> None:
        self.seen: dict[str, str] = {}
        self._reader = Decoder(4)
        end = world.connect(host, self)
        assert end is not None
        end.write(
            encode_packet(Connect("MQTT", 4, True, 0, f"w{host.index}", None, None, None, None), 4)
            + encode_packet(Subscribe(1, [SubscriptionRequest("#", 0)]), 4)
        )

    def data(self, data: bytes) -> None:
        for packet in self._reader.receive(data):
            if isinstance(packet, Publish):
                self.seen[packet.topic] = packet.payload.decode()

    def lost(self, reason: str) -> None:
        self.seen.clear()


class Devices:
    """One seed."""

    def __init__(self, seed: int, verbose: int = 0) -> None:
        self.draw = draw = random.Random(f"{seed} devices")
        self.world = world = World(seed, verbose)
        world.skew, world.cutting, world.loss = 0.0, 0.0, 0.0
        world.rate, world.window, world.high_water = 1.25e8, 1 << 20, 1 << 18
        world.slowest = draw.choice((0.0005, 0.003))
        self.faults = draw.choice((0, 1, 2, 3))
        self.disks: dict[int, Disk] = {}
        routing = draw.choice(("flood", "interest", "topic"))
        for index in range(draw.choice((2, 3, 4))):
            host = world.add(discovery="multicast", routing=routing, capability=float(9 - index))
            self.disks[index] = Disk(world, host, sync=False)
        world.on_start.append(lambda host: self.disks[host.index].started())
        self.devices = [
            Device(world, draw, f"d{number}", draw.choice(world.hosts)) for number in range(6)
        ]
        self.watchers: list[Watcher] = []

    def run(self) -> Result:
        world, draw = self.world, self.draw
        for host in world.hosts:
            world.after(draw.uniform(0, 0.2), host.start)
        world.run(BEGIN)
        self.watchers = [Watcher(world, host) for host in world.hosts]
        begin = world.now - world.started
        length = 8.0
        for device in self.devices:
            world.after(draw.uniform(0.1, 1.0), device.connect)
            for _ in range(draw.choice((1, 2, 3, 6))):
                world.after(draw.uniform(1.0, length), self._move, device)
            for _ in range(draw.randrange(8)):
                world.after(draw.uniform(1.0, length), device.measure)
        for _ in range(self.faults):
            world.after(draw.uniform(1.0, length), self._fault)
        world.run(length + 6.0)
        world.heal()
        for host in world.hosts:
            host.resume()
            host.start()
        quiet(world)
        world.run(8.0)
        self._judge()
        return Result(
            world.seed,
            world.violations,
            world.digest,
            world.transcript,
            world.events,
            len(world.hosts),
            sum(len(visit.wrote) for device in self.devices for visit in device.visits),
            0,
            world.now - begin,
        )

    def _move(self, device: Device) -> None:
        reachable = [host for host in self.world.alive() if not host.paused]
        if device.visits and len(reachable) > 1:
            device.move(self.draw.choice(reachable))

    def _fault(self) -> None:
        world, draw = self.world, self.draw
        host = draw.choice(world.hosts)
        kind = draw.choice(("hang", "hang", "split", "leave", "kill", "kill"))
        seconds = draw.choice((1.0, 4.0))
        if kind == "hang":
            for device in self.devices:  # what it writes meanwhile waits in the socket
                if device.visits and device.newest.host is host:
                    world.after(seconds * draw.random() / 2, device.measure)
                    world.after(seconds * draw.uniform(0.5, 0.9), self._flee, device, host)
            host.pause()
            world.after(seconds, host.resume)
        elif kind == "split":
            world.partition([[host.index], [h.index for h in world.hosts if h is not host]])
            world.after(seconds, world.heal)
        elif len(world.alive()) > 1:
            if kind == "kill":
                host.kill()
            else:
                host.leave()
            world.after(seconds, host.start)

    def _flee(self, device: Device, host: Host) -> None:
        others = [other for other in self.world.alive() if other is not host and not other.paused]
        if device.newest.host is host and others:
            device.move(self.draw.choice(others))

    def _judge(self) -> None:
        world = self.world
        for device in self.devices:
            visit = device.newest
            if not visit.up or visit.end is None:
                world.violation("device", f"{device.name} is not connected")
                continue
            for topic, value in visit.wrote.items():
                for host in world.alive():
                    found = retained_at(host, topic)
                    if found != value:
                        world.violation(
                            "retained", f"{topic} at {host.name} is {found!r}, not {value!r}"
                        )
                seen = self.watchers[device.host.index].seen.get(topic)
                if not self.faults and seen != value and device.calm:
                    world.violation("live", f"{topic}: {seen!r} was seen last, not {value!r}")


def retained_at(host: Host, topic: str) -> str | None:
    """What is retained for a topic at a broker."""
    message = host.running.retained.get(topic)
    return None if message is None else message.payload.decode()


def run_devices(seed: int, verbose: int = 0) -> Result:
    """Run one schedule."""
    return Devices(seed, verbose).run()
