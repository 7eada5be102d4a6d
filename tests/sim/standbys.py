"""Brokers with standbys under kills, stops, splits and cut links, and what has to hold of streams
and images: nothing that waits for a frame is sent before the standby has it, and an image is what
the owner's own records add up to."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

from mqttree.broker.cluster.sessions.image import Image
from mqttree.broker.cluster.sessions.recorded_session import Waiting
from mqttree.broker.core.connection import Connection
from mqttree.broker.core.message import Name
from mqttree.broker.node import Node
from mqttree.broker.persistence import images
from mqttree.broker.persistence.images import Key, StandbyImage
from mqttree.broker.persistence.journal import Journal
from mqttree.broker.persistence.stream import Stream
from mqttree.broker.persistence.stream_states import State
from tests.sim.clients import Ledger, SimClient
from tests.sim.disk import Disk, Stayer
from tests.sim.schedule import Result, quiet, result_of
from tests.sim.world import Host, World

TOPICS = ("a", "a/b", "c")
FILTERS = ("a", "a/#", "#", "c")

EVERY = 7
"""times that standbys say what they have, for one at which their image is compared."""

Sessions = dict[int, Any]


class Owner:
    """One incarnation of a broker that has a stream, and all records that it has made."""

    def __init__(self, node: Node, base: Image | None) -> None:
        """`base`: what its disk had at the start."""
        self.node = node
        self.base = base or Image()
        self.frames: dict[int, tuple[int, bytes]] = {}
        self.applied = 0

    def image(self, lsn: int) -> Image:
        """Return what its records up to `lsn` add up to; `lsn` never falls."""
        while self.applied < lsn:
            self.applied += 1
            self.base.take(*self.frames[self.applied])
        return self.base


class Standbys:
    """What all streams and images of a world have done."""

    def __init__(self, world: World, disks: dict[int, Disk]) -> None:
        self.world = world
        self.disks = disks
        self.owners: dict[tuple[bytes, int], Owner] = {}
        self.reached: dict[Key, int] = defaultdict(int)
        """The last LSN that any broker has applied of a stream."""
        self.told = 0
        self.compared = 0
        self.synced = 0
        world.on_start.append(self.started)

    def started(self, host: Host) -> None:
        """Watch a broker that has just been made."""
        node = host.running
        self._watch_images(node)
        if isinstance(node.journal, Journal):
            disk = self.disks.get(host.index)
            base = disk.files.image() if disk is not None and disk.files.segments else None
            self._watch_journal(node, node.journal, base)
            return
        attach = node.attach_journal

        def attached(journal: Journal) -> None:
            """The first neighbour is there."""
            attach(journal)
            self._watch_journal(node, journal, None)

        node.attach_journal = attached  # type: ignore[method-assign]

    def _watch_journal(self, node: Node, journal: Journal, base: Image | None) -> None:
        owner = self.owners[node.config.id, node.config.boot] = Owner(node, base)
        self._watch_frames(journal, owner)
        self._watch_gate(node, journal)

    def _watch_frames(self, journal: Journal, owner: Owner) -> None:
        frames = journal.frames
        seal = frames.seal

        def watched() -> None:
            records = frames._records
            seal()
            owner.frames[frames.lsn] = (frames.wall(), b"".join(records))

        frames.seal = watched  # type: ignore[method-assign]

    def _watch_gate(self, node: Node, journal: Journal) -> None:
        frames, stream = journal.frames, node.images.stream
        assert isinstance(stream, Stream)
        send, hold = frames.gate._send, frames.hold
        posted: list[int] = []
        take, open_ = stream._take, stream._opened

        def taken() -> None:
            take()
            self.synced += 1
            posted[:] = [standby.epoch for standby in stream.standbys]

        def sent(lsn: int, conn: Connection, *rest: object) -> None:
            self._let_out(node, stream, posted, lsn)
            send(lsn, conn, *rest)  # type: ignore[arg-type]

        def held(conn: Connection, outbox: list[bytes], source: Connection | None) -> None:
            lsn = conn.gate
            hold(conn, outbox, source)
            if not conn.gate:
                self._let_out(node, stream, posted, lsn)

        def opened(entry: bytes) -> None:
            if stream._entry is entry and stream.standbys:
                posted[:] = [standby.epoch for standby in stream.standbys]
            open_(entry)

        stream._take = taken  # type: ignore[method-assign]
        stream._opened = opened  # type: ignore[method-assign]
        frames.gate._send = sent  # type: ignore[assignment, method-assign]
        frames.hold = held  # type: ignore[method-assign]

    def _let_out(self, node: Node, stream: Stream, posted: list[int], lsn: int) -> None:
        """What waited for frame `lsn` is about to be sent."""
        if stream.state not in (State.SYNCED, State.LACKING):
            return
        for epoch in posted:
            reached = self.reached[node.config.id, node.config.boot, epoch]
            if reached < lsn:
                self.world.violation(
                    "let out", f"{node.config.name}: {lsn}, and {reached} is at the standby"
                )

    def _watch_images(self, node: Node) -> None:
        standby = node.images
        take, tell = standby._take, standby._tell
        begun: dict[StandbyImage, int] = {}

        def taken(image: StandbyImage, lsn: int, frame: bytes, *, ends: bool) -> None:
            begun.setdefault(image, image.lsn)
            before = node.counters.image_faults
            take(image, lsn, frame, ends=ends)
            if node.counters.image_faults > before:
                self.world.violation("image fault", f"{node.config.name} has one of {image.key}")
            self.reached[image.key] = max(self.reached[image.key], image.lsn)

        def told() -> None:
            for image in list(standby._untold):
                self.told += 1
                if self.told % EVERY == 0:
                    self.judge(node, image)
            tell()

        standby._take = taken  # type: ignore[method-assign]
        standby._tell = told  # type: ignore[method-assign]

    def judge(self, node: Node, image: StandbyImage) -> None:
        """Compare an image with what its owner's records add up to."""
        owner = self.owners[image.key[:2]]
        if image.state is not images.State.VALID or image.lsn < owner.applied:
            return
        self.compared += 1
        mine, theirs = sessions_of(image.contents), sessions_of(owner.image(image.lsn))
        if mine != theirs:
            which = [key for key in mine.keys() | theirs if mine.get(key) != theirs.get(key)]
            self.world.violation(
                "image",
                f"{node.config.name} has at {image.lsn} of {owner.node.config.name}: "
                + "; ".join(f"{key!r} {mine.get(key)} and not {theirs.get(key)}" for key in which),
            )


def sessions_of(image: Image) -> Sessions:
    """Return what the sessions of an image have, by their numbers; of messages the contents."""
    contents: dict[Name, tuple[bytes, bytes]] = {}
    for _, batch in image.batches():
        for number, message in batch.messages():
            contents[batch.key, number] = message.topic, message.payload

    def told(waiting: Waiting | None) -> Any:
        return None if waiting is None else (waiting, contents[waiting[0]])

    return {
        number: (
            sorted(recorded.subscriptions.items()),
            {packet_id: told(sent) for packet_id, sent in recorded.inflight.items()},
            [told(waiting) for waiting in recorded.queue],
            recorded.incoming,
        )
        for number, recorded in image.sessions.items()
    }


class StandbySchedule:
    """One seed's story."""

    replicas = 1

    def __init__(self, seed: int, verbose: int = 0) -> None:
        self.seed = seed
        self.rng = rng = random.Random(f"{seed} standbys")
        self.world = world = World(seed, verbose)
        self.ledger = Ledger()
        self.disks: dict[int, Disk] = {}
        world.on_start.append(self._started)
        self.standbys = Standbys(world, self.disks)
        self.count = rng.choice((2, 3, 3, 4))
        self.length = rng.choice((4.0, 8.0))
        self.clients: list[SimClient] = []
        self.publishers: list[SimClient] = []
        # Snapshots that take many steps, and streams that are begun anew.
        step = rng.choice((1, 3, 400))
        world.limits = world.limits.replace(
            snapshot_step_items=step, stream_smallest=rng.choice((3_000, 30_000, 8 << 20))
        )

    def _started(self, host: Host) -> None:
        if host.index in self.disks:
            self.disks[host.index].started()

    def build(self) -> None:
        """Hosts and clients."""
        rng, world = self.rng, self.world
        routing = ("flood", "interest", "topic", "topic")[self.seed % 4]
        for index in range(self.count):
            host = world.add(discovery="multicast", routing=routing, replicas=self.replicas)
            if rng.random() < 0.5:
                self.disks[index] = Disk(world, host, sync=rng.random() < 0.5)
                world.kept.add(index)
            host.start()
            for number in range(rng.choice((1, 3))):
                filters = [(rng.choice(FILTERS), rng.choice((1, 2, 2)))]
                client = self._client(f"sub{index}.{number}", host, filters)
                client.ack_delay = rng.choice((0.0, 0.0, 0.05))
                self.clients.append(client)
            self.publishers.append(self._client(f"pub{index}", host, None))

    def _client(self, name: str, host: Host, filters: list[tuple[str, int]] | None) -> SimClient:
        version, clean = self.rng.choice((4, 5)), self.rng.random() < 0.2
        client = Stayer(
            self.world, self.ledger, name, host, version=version, clean=clean, filters=filters
        )
        self.world.after(self.rng.uniform(0.0, 0.3), client.connect)
        return client

    def traffic(self) -> None:
        """Plan publications, and clients that go and come."""
        rng, world = self.rng, self.world
        at = 0.5
        while at < self.length:
            publisher, topic, qos = (
                rng.choice(self.publishers),
                rng.choice(TOPICS),
                rng.choice((1, 2)),
            )
            if rng.random() < 0.2:
                world.after(at, publisher.burst, topic, qos, rng.randrange(2, 30), 5)
            else:
                world.after(at, publisher.publish, topic, qos, rng.random() < 0.1)
            if rng.random() < 0.05:
                world.after(at, rng.choice(self.clients).cut)
            at += rng.expovariate(1 / 0.03)

    def faults(self) -> None:
        """Plan what goes wrong: most of it while a standby is being sent a snapshot."""
        rng, world = self.rng, self.world
        for _ in range(rng.choice((0, 2, 4, 8))):
            host, lasts = rng.choice(world.hosts), rng.choice((0.05, 0.4, 0.7, 3.0))
            at = rng.uniform(0.3, self.length)
            fault = rng.choice(
                (self._kill, self._pause, self._split, self._cut, self._cut, self._swallow)
            )
            if rng.random() < 0.5:
                world.after(at, self._when_syncing, fault, host, lasts, 200)
            else:
                world.after(at, fault, host, lasts)

    def _when_syncing(self, fault: object, host: Host, lasts: float, looks: int) -> None:
        stream = host.node and host.node.images.stream
        if isinstance(stream, Stream) and stream.coming is not None and self.rng.random() < 0.5:
            fault(host, lasts)  # type: ignore[operator]
        elif looks:
            self.world.after(0.003, self._when_syncing, fault, host, lasts, looks - 1)

    def _kill(self, host: Host, lasts: float) -> None:
        host.kill(reset=self.rng.random() < 0.7)
        self.world.after(lasts, host.start)

    def _pause(self, host: Host, lasts: float) -> None:
        host.pause()
        self.world.after(lasts, host.resume)

    def _split(self, host: Host, lasts: float) -> None:
        self.world.partition([[host.index]])
        self.world.after(lasts, self.world.heal)

    def _ends(self, host: Host) -> list[object]:
        return [e for e in host.ends.values() if e.state == "open" and e.peer.host is not None]

    def _cut(self, host: Host, lasts: float) -> None:
        for end in self._ends(host)[:1]:
            self.world.say(f"a link of {host.name} is reset")
            end.drop(reset=True)
            end._tell_lost("connection reset")

    def _swallow(self, host: Host, lasts: float) -> None:
        for end in self._ends(host)[:1]:
            self.world.say(f"a link of {host.name} swallows everything")
            end.black = True

    def run(self) -> Result:
        """Play it, heal everything, wait for quiet: then every broker has a standby."""
        world = self.world
        self.build()
        self.traffic()
        self.faults()
        world.run(self.length + 1.0)
        for host in world.hosts:
            host.resume()
            host.start()
        world.heal()
        world.run(4.0)
        healed = world.now
        quiet(world)
        converge = world.now - healed
        world.run(15.0, self._all_synced)
        for host in world.hosts:
            stream = host.running.images.stream
            assert isinstance(stream, Stream)
            for image in list(host.running.images.images.values()):
                self.standbys.judge(host.running, image)
            if not self._synced(host):
                world.violation("alone", f"{host.name} is {stream.state.value}")
            gate = host.running.journal.frames.gate  # type: ignore[union-attr]
            if len(gate):
                world.violation("held", f"{len(gate)} pieces of output at {host.name}")
        for client in (*self.clients, *self.publishers):
            for error in client.errors:
                world.violation("client", f"{client.name}: {error}")
        return result_of(
            self.seed,
            world,
            self.count,
            self.ledger,
            self.clients,
            converge=converge,
            routing=world.hosts[0].running.config.routing,
        )

    def _synced(self, host: Host) -> bool:
        stream = host.running.images.stream
        return isinstance(stream, Stream) and stream.state is State.SYNCED

    def _all_synced(self) -> bool:
        return all(map(self._synced, self.world.hosts)) and not any(
            host.running.images.stream.pending  # type: ignore[union-attr]
            for host in self.world.hosts
        )


def run_standbys(seed: int, verbose: int = 0) -> Result:
    """Run one schedule."""
    return StandbySchedule(seed, verbose).run()
