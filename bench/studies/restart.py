"""How long a broker takes to be back, and how much memory:
`mqttree bench restart [--retained N] [--sessions N]`.

One process writes a journal as a broker does, with snapshots, and ends; another one reads it.
"""

from __future__ import annotations

import gc
import multiprocessing
import random
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from mqttree.broker.cli.command_line import Parser
from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.core.connection import Nowhere
from mqttree.broker.core.effects import AppendFrame, BeginSegment, DiscardSegments
from mqttree.broker.core.message import Message
from mqttree.broker.io.journal_writer import JournalWriter
from mqttree.broker.limits import DEFAULTS
from mqttree.broker.node import Node
from mqttree.broker.persistence.journal import Journal
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Connect, Subscribe, SubscriptionRequest

ID = b"restart!"
MIB = 1024 * 1024
QUEUED = 2
"""Messages of 64 bytes for each session."""


class Running:
    """A node with a journal on a disk, without a network."""

    def __init__(self, folder: Path) -> None:
        self.node = Node(NodeConfig(id=ID, discovery="off"), 0.0, time.time(), random.Random(1))
        self.disk = JournalWriter(folder, ID, sync=False, limits=DEFAULTS)
        self.told: list[tuple[AppendFrame | BeginSegment, str | None]] = []
        began = time.perf_counter()
        loaded = self.disk.load()
        self.read = time.perf_counter() - began
        self.size = loaded.size
        self.journal = Journal(self.node, self.node.cluster, self.node.absent_members, sync=False)
        self.node.attach_journal(self.journal)
        self.journal.begin(loaded.image, loaded.segment, loaded.files, loaded.size, 0.0)
        self.made = time.perf_counter() - began - self.read
        self.disk.start(lambda effect, error: self.told.append((effect, error)))

    def turn(self) -> None:
        """What a driver does in a turn of the loop."""
        self.node.output.flush()
        for effect in self.node.take_effects():
            if isinstance(effect, AppendFrame | BeginSegment | DiscardSegments):
                self.disk.put(effect)
        while self.told:
            self.node.answer(*self.told.pop(0), self.node.now)

    def settle(self) -> None:
        """Let a checkpoint end, and the disk."""
        while self.journal.frames.busy:
            self.node.tick(self.node.now + 0.01)
            self.turn()
            time.sleep(0.0002)


def write(folder: Path, retained: int, sessions: int) -> None:
    """Fill a broker whose data are in `folder` with so many `retained` messages and `sessions`,
    each with QUEUED messages, and end it."""
    running = Running(folder)
    node = running.node
    for number in range(retained):
        topic = f"site/{number % 1000}/device/{number}/state".encode()
        node.publisher.publish(Message(topic, b"x" * 64, 1, True, b"", None, None), None)
        if number % 100 == 99:
            running.turn()
    for number in range(sessions):
        conn = node.connection_registry.made("peer", "tcp", Away(), 0.0)
        conn.receive(encode_packet(Connect("MQTT", 4, False, 0, f"client-{number}"), 4), 0.0)
        conn.receive(
            encode_packet(Subscribe(1, [SubscriptionRequest(f"command/{number}", 1)]), 4), 0.0
        )
        node.connection_lost(conn, "gone", 0.0)
        for _ in range(QUEUED):
            topic = f"command/{number}".encode()
            node.publisher.publish(Message(topic, b"x" * 64, 1, False, b"", None, None), None)
        if number % 100 == 99:
            running.turn()
    running.settle()
    running.disk.close()


class Away(Nowhere):
    """A connection that is not read."""

    def __init__(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def read(folder: Path) -> None:
    """Read it back and print what that took."""
    gc.disable()  # as the broker does
    before = resource.getrusage(resource.RUSAGE_SELF)
    running = Running(folder)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    counters = running.node.counters
    what = f"{counters.retained_loaded:,} retained messages, {counters.sessions_loaded:,} sessions"
    print(f"{what}, {running.size / MIB:,.0f} MiB of journal")
    print(f"read in {running.read:.1f} s, made in {running.made:.1f} s, {cpu:.1f} s of CPU")
    print(f"memory {resident() / MIB:,.0f} MiB, at most {after.ru_maxrss / 1024:,.0f} MiB")
    running.disk.close()


def resident() -> int:
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main(argv: Sequence[str]) -> int:
    """Carry out the command line."""
    parser = Parser(prog="mqttree bench restart", description=__doc__)
    parser.add_argument(
        "--retained", type=int, default=1_000_000, help="retained messages of 64 bytes (1000000)"
    )
    parser.add_argument(
        "--sessions", type=int, default=100_000, help="sessions with a subscription each (100000)"
    )
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        spawn = multiprocessing.get_context("spawn")
        for target, words in (
            (write, (Path(folder), arguments.retained, arguments.sessions)),
            (read, (Path(folder),)),
        ):
            process = spawn.Process(target=target, args=words)
            process.start()
            process.join()
            if process.exitcode:
                return 1
    return 0
