"""What the network's processes do with packets and bytes, on a clock that stands still; and faults
that overlap."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import Pipe
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mqttree.bench.lab import network, relays
from mqttree.bench.lab.lab import Lab, LabError
from mqttree.bench.lab.network import Network, lacking, obey
from mqttree.bench.lab.pipe import Pipe as Direction
from mqttree.bench.lab.ports import PORTS, free_ports
from mqttree.bench.lab.relays import RETRANSMISSION, SEGMENT, Caller, End, Fine, Relays
from mqttree.bench.lab.tap import Talk
from mqttree.bench.lab.topology import MAX_BROKERS, Topology, Wire
from mqttree.bench.load import packets
from mqttree.bench.runner.fault_injector import FaultInjector
from mqttree.bench.runner.observer import Observer
from mqttree.bench.scenarios.scenario import Fault
from mqttree.bench.trace import Writer

MS = 1_000_000
TWO = Topology("two", ("b0", "b1"), default=Wire(delay_ms=10))


class Time:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0

    def monotonic_ns(self) -> int:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(network, "time", clock)
    monkeypatch.setattr(relays, "time", clock)
    return clock


def tcp(sequence: int, flags: int, payload: bytes = b"") -> bytes:
    data = struct.pack("!HHIIBBHHH", 40000, 1883, sequence, 0, 0x50, flags, 1000, 0, 0) + payload
    ends = bytes([10, 77, 0, 1]), bytes([10, 77, 0, 2])
    return struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(data), 0, 0, 64, 6, 0, *ends) + data


class Devices:
    """A network between b0 and b1 whose devices are sockets."""

    def __init__(self, on: tuple[str, ...] = TWO.brokers) -> None:
        self.sockets = {
            host: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for host in TWO.brokers
        }
        tuns = {host: pair[0].fileno() for host, pair in self.sockets.items()}
        for pair in self.sockets.values():
            pair[0].setblocking(False)
        self.ends = Pipe()
        self.network = Network(
            TWO, tuns, {"b0": "10.77.0.1", "b1": "10.77.0.2"}, self.ends[0], None, 1, on
        )

    def send(self, packet: bytes, look: bool = True) -> None:
        self.sockets["b0"][1].send(packet)
        if look:
            self.look()

    def look(self) -> None:
        self.network._read(self.sockets["b0"][0].fileno(), "b0")

    def close(self) -> None:
        for pair in self.sockets.values():
            for end in pair:
                end.close()
        for order in self.ends:
            order.close()


@pytest.fixture
def devices(time: Time) -> Iterator[Devices]:
    with closing(Devices()) as made:
        yield made


def test_what_a_link_does_not_carry_is_not_read_along(devices: Devices) -> None:
    meter, link = devices.network.meter, devices.network.pipes["b0", "b1"]
    hello, message = packets.connect("x", 4), packets.publish("t", bytes(100), 0, 4)[0]
    devices.send(tcp(1, 2))
    devices.send(tcp(2, 16, hello))
    assert meter.control == {("b0", "b1"): len(hello)}
    link.shut()
    devices.send(tcp(2 + len(hello), 16, message))
    devices.send(tcp(2 + len(hello), 16, message))
    assert link.dropped_shut == 2 and not meter.data
    link.heal()
    devices.send(tcp(2 + len(hello), 16, message))
    assert meter.data == {("b0", "b1"): len(message)}


def test_only_what_brokers_say_to_each_other_is_read_along(time: Time) -> None:
    with closing(Devices(on=("b1",))) as devices:  # at b0 there are clients only
        devices.send(tcp(1, 2))
        devices.send(tcp(2, 16, packets.connect("x", 4)))
        assert devices.network.pipes["b0", "b1"].packets == 2 and not devices.network.meter.control


def test_time_that_a_packet_waited_to_be_read_counts_as_late(devices: Devices, time: Time) -> None:
    devices.network._since = 5 * MS  # when nothing was there yet
    time.now = 9 * MS
    for _ in range(network._READS + 1):
        devices.send(tcp(1, 2), look=False)
    devices.look()
    devices.network._since, time.now = 12 * MS, 13 * MS
    devices.look()
    for due in (19 * MS, 23 * MS):
        time.now = due
        devices.network._deliver()
    late = devices.network.late
    assert late.total == network._READS + 1 and late.percentile(50) == pytest.approx(4, rel=0.01)
    assert late.maximum == 8 * MS, "the last one may have been there since then, too"


def test_packets_that_did_not_get_through_are_reported() -> None:
    counts = {"tap_broken": 0, "refused": 0, "unroutable": 0}
    assert lacking(counts) == []
    assert lacking(counts | {"refused": 1200}) == [
        "1,200 packets were not taken by the host that they had come to"
    ]


class Drawn(random.Random):
    """The first number drawn loses a packet, no other does."""

    def __init__(self) -> None:
        super().__init__(1)
        self.drawn = 0

    def random(self) -> float:
        self.drawn += 1
        return 0.0 if self.drawn == 1 else 0.999


def relayed(wire: Wire) -> tuple[Relays, list[int]]:
    """Relays between b0 and b1 (to be made in a loop) that make no calls; and when they should."""
    made = Relays(Topology("two", ("b0", "b1"), default=wire), {"b0": 1, "b1": 2}, None, 1)
    due: list[int] = []
    cast(Any, made).at = lambda at, _: due.append(at)
    return made, due


def connection(made: Relays) -> End:
    end = End(made, "b0")
    end.joined(End(made, "b1"), Talk())
    return end


def test_a_lost_segment_holds_up_its_own_connection_only(time: Time) -> None:
    async def lose() -> None:
        made, due = relayed(Wire(delay_ms=10, loss=0.5, rate_mbit=8))  # 1 byte a us
        made.random = Drawn()
        hit, other = connection(made), connection(made)
        for end in (hit, other, hit, other):
            end.data_received(bytes(1000))
        late = RETRANSMISSION + 20 * MS
        assert due == [11 * MS + late, 12 * MS, 11 * MS + late, 14 * MS]
        pipe = made.pipes["b0", "b1"]
        assert (pipe.dropped_loss, pipe.dropped_queue, pipe.backlog(0)) == (1, 0, 4000)

    asyncio.run(lose())


def test_bytes_beyond_the_queue_wait(time: Time) -> None:
    async def fill() -> None:
        made, due = relayed(Wire(rate_mbit=8, queue_kb=16))
        pipe = made.pipes["b0", "b1"]
        again: list[Any] = []
        cast(Any, made).loop = SimpleNamespace(
            call_later=lambda wait, call: again.append((wait, call))
        )
        ends = [connection(made) for _ in range(3)]
        for end in ends:
            end.data_received(bytes(20 * SEGMENT))
        assert 4096 < pipe.backlog(0) <= 4096 + SEGMENT
        while again:
            wait, call = again.pop(0)
            time.now += int(wait * 1e9)
            call()
        assert len(due) == 60 and pipe.dropped_queue == 0 and pipe.bytes == 60 * SEGMENT
        made.order({"do": "set", "pairs": [["b0", "b1"]], "wire": {"queue_kb": 2}})
        ends[0].connection_lost(None)  # behind what the queue holds
        while again:
            time.now += 10 * MS
            again.pop(0)[1]()
        assert len(due) == 61

    asyncio.run(fill())


def test_bytes_of_a_connection_arrive_as_they_were_sent() -> None:
    sent = b"".join(number.to_bytes(4, "big") for number in range(30_000))

    async def pass_on() -> bytes:
        loop = asyncio.get_running_loop()
        came: asyncio.Future[bytes] = loop.create_future()

        async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came.set_result(await reader.read(-1))  # to its end, which comes last
            writer.close()

        server = await asyncio.start_server(read, "127.0.0.1", 0)
        made = Relays(TWO, {"b1": server.sockets[0].getsockname()[1]}, None, 1)
        relay = await loop.create_server(lambda: Caller(made, "b0", "b1"), "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*relay.sockets[0].getsockname())
        writer.write(sent)
        writer.close()
        async with asyncio.timeout(30):
            data = await came
        assert not made.meter.control and not made.meter.data, "b0 has no broker"
        server.close()
        relay.close()
        return data

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(Fine())) as runner:
        assert runner.run(pass_on()) == sent


class Socket:
    """What a connection writes to; `closed` says how it ended."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.closed = ""

    def write(self, data: bytes) -> None:
        self.data.append(bytes(data))

    def close(self) -> None:
        self.closed = "closed"

    def abort(self) -> None:
        self.closed = "reset"

    def is_closing(self) -> bool:
        return bool(self.closed)

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def open_connection(made: Relays) -> tuple[End, Socket, Socket]:
    """A connection from b0 to b1 as `made` knows it: b0's half, and both sockets."""
    one, other = End(made, "b0"), End(made, "b1")
    sockets = Socket(), Socket()
    for end, each in zip((one, other), sockets, strict=True):
        end.connection_made(cast(Any, each))
        made.ends.add(end)
    one.joined(other, Talk())
    other.joined(one, Talk())
    return one, *sockets


def test_a_perfect_link_passes_bytes_on_at_once() -> None:
    async def send() -> None:
        made, due = relayed(Wire())
        end, _, target = open_connection(made)
        end.data_received(b"one")
        assert target.data == [b"one"] and not due
        made.order({"do": "set", "pairs": [["b0", "b1"]], "open": False})
        end.data_received(b"two")
        assert target.data == [b"one"] and not due, "kept until it is healed"
        made.order({"do": "set", "pairs": [["b0", "b1"]], "heal": True})
        end.data_received(b"three")
        assert target.data == [b"one"] and len(due) == 2, "behind the queue"
        for _ in due:
            end._arrive()
        end.data_received(b"four")
        assert target.data == [b"one", b"two", b"three", b"four"]
        assert made.pipes["b0", "b1"].bytes == sum(map(len, target.data))

    asyncio.run(send())


def test_connections_of_a_refused_pair_are_reset() -> None:
    async def refuse() -> None:
        made, _ = relayed(Wire())
        _, *sockets = open_connection(made)
        made.order({"do": "refuse", "pairs": [["b1", "b0"]]})
        assert [each.closed for each in sockets] == ["reset", "reset"]
        late, socket = Caller(made, "b0", "b1"), Socket()
        late.connection_made(cast(Any, socket))
        assert socket.closed == "reset" and late.task is None
        made.order({"do": "accept", "pairs": [["b1", "b0"]]})
        _, *sockets = open_connection(made)
        assert [each.closed for each in sockets] == ["", ""]
        made.order({"do": "reset", "pairs": [["b0", "b1"]]})
        assert [each.closed for each in sockets] == ["reset", "reset"]

    asyncio.run(refuse())


class Faults:
    """A fault injector whose lab has links only."""

    def __init__(self, place: Topology) -> None:
        pairs = [pair for each in place.pairs() for pair in (each, each[::-1])]
        self.pipes = {pair: Direction(place.wire(*pair)) for pair in pairs}
        lab: Any = SimpleNamespace(topology=place, set_links=self.set_links, brokers={})
        self.observer: Any = SimpleNamespace(cut=set(), injected=lambda _: None)
        trace: Any = SimpleNamespace(fault=lambda *_: None)
        self.injector = FaultInjector(
            cast(Lab, lab), cast(Observer, self.observer), cast(Writer, trace), 1
        )

    def set_links(self, pairs: Any, *, both: bool = True, **what: Any) -> None:
        listed = [*pairs, *((other, one) for one, other in pairs if both)]
        obey({"pairs": listed, **what}, self.pipes)

    def open(self) -> str:
        return " ".join(
            sorted(f"{one}{other}" for (one, other), pipe in self.pipes.items() if pipe.open)
        )


ALL = (("b0", "b1"), ("b0", "b2"), ("b1", "b2"))


def test_a_fault_that_is_over_ends_no_other(time: Time) -> None:
    faults = Faults(Topology("three", ("b0", "b1", "b2"), default=Wire(delay_ms=10)))
    plan = [
        Fault(0.0, "slow", links=ALL, wire={"delay_ms": 200}, duration=10),
        Fault(0.0, "partition", groups=(("b0",), ("b1", "b2")), duration=9),
        Fault(0.0, "cut", links=ALL, duration=1),
        Fault(0.0, "half-open", links=(("b1", "b2"),), duration=2),
    ]
    inject = faults.injector.inject
    with pytest.raises(LabError, match=r"^half-open: nothing passes there already$"):
        for number, fault in enumerate(plan, 1):
            inject(fault, number)
    assert faults.open() == ""
    inject(Fault(1.0, "heal", links=ALL), 3, True)
    assert faults.open() == "b1b2 b2b1" and faults.observer.cut == {
        frozenset(("b0", "b1")),
        frozenset(("b0", "b2")),
    }
    inject(plan[3], 4)
    assert faults.open() == "b2b1" and len(faults.observer.cut) == 3
    inject(Fault(9.0, "heal", groups=plan[1].groups), 2, True)
    assert (
        faults.open() == "b0b1 b0b2 b1b0 b2b0 b2b1"
        and faults.pipes["b0", "b1"].wire.delay_ms == 200
    )
    inject(Fault(9.0, "heal", links=ALL))  # by hand: everything
    assert len(faults.open().split()) == 6 and not faults.observer.cut
    assert {pipe.wire.delay_ms for pipe in faults.pipes.values()} == {10}
    inject(plan[2])
    inject(Fault(9.0, "heal", links=(("b0", "b1"),)))
    assert faults.open() == "b0b1 b1b0"


def test_a_plan_undoes_each_of_its_faults() -> None:
    faults = Faults(Topology("two", ("b0", "b1"), default=Wire(delay_ms=10)))
    both = (("b0", "b1"),)
    said: list[tuple[str, str, float]] = []
    inject = faults.injector.inject

    def seen(fault: Fault, *how: Any) -> None:
        inject(fault, *how)
        said.append((fault.do, faults.open(), faults.pipes["b0", "b1"].wire.delay_ms))

    cast(Any, faults.injector).inject = seen
    plan = [
        Fault(0.0, "cut", links=both, duration=0.02),
        Fault(0.01, "slow", links=both, wire={"delay_ms": 90}, duration=0.02),
    ]
    asyncio.run(faults.injector.carry_out(plan, 0.0))
    both_ways = "b0b1 b1b0"
    assert said == [
        ("cut", "", 10),
        ("slow", "", 90),
        ("heal", both_ways, 90),
        ("heal", both_ways, 10),
    ]


def test_there_are_enough_ports_for_the_largest_lab() -> None:
    count = 3 * MAX_BROKERS + MAX_BROKERS * (MAX_BROKERS - 1)
    assert len(set(free_ports(count))) == count
    assert len(PORTS) < 20_000


def test_a_port_is_given_to_one_process() -> None:
    (port,) = free_ports(1)
    script = f"""
from mqttree.bench.lab import ports
ports.PORTS = range({port}, {port} + 1)
ports.free_ports(1)
"""
    other = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    assert other.stderr.endswith(b"PortsError: no 1 free ports\n")
