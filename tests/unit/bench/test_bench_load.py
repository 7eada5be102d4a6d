"""The load generator proves what arrived: against the reference forwarder, Mosquitto, and peers
that misbehave."""

from __future__ import annotations

import dataclasses
import io
import math
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.bench import cli
from mqttree.bench.lab.ports import free_ports
from mqttree.bench.load import (
    Histogram,
    LoadError,
    LoadSpec,
    Tally,
    packets,
    run_connections,
    run_latency,
    run_throughput,
)
from mqttree.bench.load.histogram import bucket, upper
from mqttree.bench.load.peers import Publisher, Subscriber, topics
from mqttree.bench.studies import compare, targets
from tests.kit.effort import examples

QUICK = LoadSpec(publishers=3, subscribers=3, warmup=0.02, seconds=0.1, drain=60.0)


# ---------------------------------------------------------------- encoder


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (16_383, "ff7f"),
        (16_384, "808001"),
        (268_435_455, "ffffff7f"),
    ],
)
def test_varints_are_encoded(value: int, encoded: str) -> None:
    assert packets.varint(value).hex() == encoded


@pytest.mark.parametrize("value", [-1, 268_435_456])
def test_a_varint_out_of_range_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        packets.varint(value)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (packets.connect("ab", 4), "100e 0004 4d515454 04 02 0000 0002 6162"),
        (packets.connect("ab", 5, 60), "100f 0004 4d515454 05 02 003c 00 0002 6162"),
        (packets.subscribe("a/b", 1, 4), "8208 0001 0003 612f62 01"),
        (packets.subscribe("a/b", 2, 5, 7), "8209 0007 00 0003 612f62 02"),
        (packets.publish("a/b", b"hi", 0, 4)[0], "3007 0003 612f62 6869"),
        (packets.publish("a/b", b"hi", 1, 4)[0], "3209 0003 612f62 0000 6869"),
        (packets.publish("a/b", b"hi", 2, 5)[0], "340a 0003 612f62 0000 00 6869"),
        (
            packets.publish("a", b"hi", 0, 5, 1)[0],
            "301d 0001 61 17 26 0008 6b65792d30303030 000a 76616c75652d30303030 6869",
        ),
    ],
)
def test_packets_have_the_golden_bytes(made: bytes, expected: str) -> None:
    assert made.hex() == expected.replace(" ", "")


@given(
    st.integers(0, 2),
    st.sampled_from([4, 5]),
    st.integers(0, 40),
    st.binary(min_size=8, max_size=300),
)
@settings(max_examples=examples(100), deadline=None)
def test_publish_offsets_point_at_identifier_and_payload(
    qos: int, version: int, user_properties: int, payload: bytes
) -> None:
    packet, id_offset, payload_offset = packets.publish(
        "load/00001", payload, qos, version, user_properties
    )
    head = packets.header(packet, 0, len(packet))
    assert head is not None
    assert head[1] == len(packet)
    assert packet[payload_offset:] == payload
    assert (id_offset == 0) == (qos == 0)
    if qos:
        assert packet[id_offset : id_offset + 2] == b"\0\0"
        assert packet[id_offset - 10 : id_offset] == b"load/00001"


def test_header_is_incremental_and_bounded() -> None:
    packet = packets.packet(0x30, bytes(20_000))
    for end in range(1, 4):
        assert packets.header(packet, 0, end) is None
    assert packets.header(packet, 0, 4) == (4, len(packet))
    with pytest.raises(ValueError, match="four bytes"):
        packets.header(b"\x30\xff\xff\xff\xff\x01", 0, 6)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ("", 65_535),
        ("22000a", 65_535),
        ("210014", 20),
        ("22000a 210014", 20),
        ("12 0003 616263 26 0001 61 0002 6262 2401 11 00000001 21 0007", 7),
    ],
)
def test_the_receive_maximum_of_a_connack_is_read(properties: str, expected: int) -> None:
    raw = bytes.fromhex(properties)
    assert packets.receive_maximum(b"\0\0" + packets.varint(len(raw)) + raw) == expected


# ---------------------------------------------------------------- histogram


@given(st.integers(0, 10**13))
@settings(max_examples=examples(200), deadline=None)
def test_each_value_lies_in_its_bucket(value: int) -> None:
    top = upper(bucket(value))
    assert value <= top <= value + value / 128 + 1
    assert bucket(top) == bucket(value)
    assert bucket(top + 1) == bucket(value) + 1


@given(
    st.lists(st.integers(0, 10**10), min_size=1, max_size=200),
    st.sampled_from([50.0, 90.0, 99.0, 99.9, 100.0]),
)
@settings(max_examples=examples(100), deadline=None)
def test_percentiles_are_those_of_the_sorted_values(values: list[int], percent: float) -> None:
    parts = [Histogram(), Histogram()]
    for number, value in enumerate(values):
        parts[number % 2].add(value)
    total = Histogram()
    total.merge(parts)
    exact = sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]
    assert total.total == len(values)
    assert total.maximum == max(values)
    assert exact <= total.percentile(percent) * 1e6 * (1 + 1e-9) + 1e-3
    assert total.percentile(percent) * 1e6 <= exact * (1 + 1 / 128) + 1


def test_an_empty_histogram_has_percentile_0() -> None:
    assert Histogram().percentile(99) == 0.0


# ---------------------------------------------------------------- the checker


class Wire:
    """A publisher whose packets a test can rearrange before a subscriber gets them."""

    def __init__(self, spec: LoadSpec) -> None:
        self.spec = spec
        self.epoll = select.epoll()
        ours, theirs = socket.socketpair()
        self.progress = [0] * spec.publishers * (spec.subscribers if spec.pattern == "mesh" else 1)
        self.subscriber = Subscriber(ours, self.epoll, spec, 0, progress=self.progress)
        self.broker = theirs
        self.publishers: list[tuple[Publisher, socket.socket]] = []
        for index in range(spec.publishers):
            mine, end = socket.socketpair()
            self.publishers.append(
                (Publisher(mine, self.epoll, spec, index, receive_maximum=65_535), end)
            )

    def packets(self, index: int = 0) -> list[bytes]:
        """The next windowful of packets of a publisher, which regards all before as received."""
        publisher, end = self.publishers[index]
        publisher.acked = publisher.sent
        publisher.pump(publisher.sent)
        data = end.recv(1 << 22)
        size = len(
            packets.publish(
                topics(self.spec, 0)[0], bytes(self.spec.payload), self.spec.qos, self.spec.version
            )[0]
        )
        assert not len(data) % size
        return [data[at : at + size] for at in range(0, len(data), size)]

    def deliver(self, data: bytes) -> None:
        self.broker.sendall(data)
        self.subscriber.receive()

    def close(self) -> None:
        for peer, end in self.publishers:
            peer.sock.close()
            end.close()
        self.subscriber.sock.close()
        self.broker.close()
        self.epoll.close()


@contextmanager
def wire(**changes: Any) -> Iterator[Wire]:
    made = Wire(dataclasses.replace(LoadSpec(publishers=1, subscribers=1, window=100), **changes))
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_sequence_numbers_are_consecutive(qos: int, version: int) -> None:
    """Also where sequence numbers pass 65,536 and packet identifiers start again."""
    with wire(qos=qos, version=version) as line:
        identifiers: list[int] = []
        at = packets.publish("load/00000", bytes(64), qos, version)[1]
        for number in range(700):
            window = line.packets()
            assert len({packet[:at] + packet[at + 2 : -64] for packet in window}) == 1
            identifiers += (
                [int.from_bytes(packet[at : at + 2], "big") for packet in window] if qos else []
            )
            line.deliver(b"".join(window))
            line.broker.recv(1 << 20) if qos else None
            assert line.subscriber.tally.received == line.publishers[0][0].sent, number
        sent = line.publishers[0][0].sent
        assert sent > 66_000
        assert line.subscriber.tally == Tally(sent)
        assert line.progress == [sent]
        if qos:
            assert identifiers == [n % 65_535 + 1 for n in range(sent)]


@pytest.mark.parametrize(
    ("rearrange", "tally"),
    [
        (lambda p: p, Tally(100)),
        (lambda p: p[1:], Tally(99, lost=1)),
        (lambda p: p[:50] + p[60:], Tally(90, lost=10)),
        (lambda p: [p[0], *p], Tally(101, duplicated=1)),
        (lambda p: p + p[40:50], Tally(110, duplicated=10)),
        (lambda p: [p[1], p[0], *p[2:]], Tally(100, out_of_order=1)),
        (lambda p: p[50:] + p[:50], Tally(100, out_of_order=50)),
        (lambda p: [*p[:10], *p[11:], p[10], p[10]], Tally(101, out_of_order=1, duplicated=1)),
    ],
)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_fault_of_the_forwarder_is_counted(
    rearrange: Callable[[list[bytes]], list[bytes]], tally: Tally, qos: int
) -> None:
    with wire(qos=qos) as line:
        line.deliver(b"".join(rearrange(line.packets())))
        assert line.subscriber.tally == tally


@given(st.lists(st.integers(1, 8000), max_size=20), st.integers(0, 2), st.sampled_from([1, 7]))
@settings(max_examples=examples(60), deadline=None)
def test_packets_cut_anywhere_give_the_same_tally(cuts: list[int], qos: int, count: int) -> None:
    with wire(qos=qos, topics=count) as line:
        publish, id_offset, _ = packets.publish(topics(line.spec, 0)[0], bytes(64), qos, 4)
        publisher, end = line.publishers[0]
        publisher.pump(0)
        data = end.recv(1 << 20) + packets.packet(0xD0, b"")
        previous = 0
        for cut in [*sorted({cut for cut in cuts if cut < len(data)}), len(data)]:
            line.deliver(data[previous:cut])
            previous = cut
        assert line.subscriber.tally == Tally(100)
        if qos:
            answers = line.broker.recv(1 << 16)
            first = 0x40 if qos == 1 else 0x50
            assert answers == b"".join(bytes((first, 2, 0, n + 1)) for n in range(100))
            assert id_offset and len(data) == 100 * len(publish) + 2


def test_mesh_distinguishes_publishers() -> None:
    with wire(pattern="mesh", publishers=3) as line:
        first, second, third = (line.packets(index) for index in range(3))
        mixed = [packet for trio in zip(first, second, third, strict=True) for packet in trio]
        line.deliver(b"".join(mixed[:150] + mixed[153:]))
        assert line.subscriber.tally == Tally(297, lost=3)
        assert line.progress == [100, 100, 100]


def test_publisher_completes_qos_2() -> None:
    with wire(qos=2, window=4) as line:
        publisher, end = line.publishers[0]
        publisher.pump(0)
        end.recv(1 << 16)
        end.sendall(b"\x50\x02\0\1" + b"\x50\x03\0\2\x10" + b"\x50\x02\0\3\x50")
        publisher.receive()
        assert end.recv(1 << 16) == b"\x62\x02\0\1\x62\x02\0\2\x62\x02\0\3"
        assert publisher.acked == 0
        end.sendall(b"\x02\0\4" + b"\x70\x02\0\1" + b"\x70\x03\0\2\0" + b"\x70\x02\0\3")
        publisher.receive()
        assert end.recv(1 << 16) == b"\x62\x02\0\4"
        assert publisher.acked == 3


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"\x40\x03\0\1\x97", "refused with reason 0x97"),
        (b"\xe0\x01\x8e", "disconnected"),
        (b"\x20\x02\0\0", "type 2"),
    ],
)
def test_publisher_reports_refusals(answer: bytes, reason: str) -> None:
    with wire(qos=1, version=5) as line:
        publisher, end = line.publishers[0]
        publisher.pump(0)
        end.sendall(answer)
        with pytest.raises(LoadError, match=reason):
            publisher.receive()


def test_a_publisher_keeps_to_the_receive_maximum() -> None:
    with wire(qos=1) as line:
        mine, end = socket.socketpair()
        publisher = Publisher(mine, line.epoll, line.spec, 0, receive_maximum=20)
        assert publisher.pump(0) == 20
        end.sendall(b"\x40\x02\0\1\x40\x02\0\2")
        publisher.receive()
        assert publisher.pump(0) == 0  # not worth a write yet
        assert publisher.pump(0, eager=True) == 2
        mine.close()
        end.close()


# ---------------------------------------------------------------- whole runs


@pytest.fixture(scope="module")
def forwarder() -> Iterator[targets.Running]:
    with targets.running(targets.TARGETS["sketch"]) as broker:
        yield broker


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"qos": 1},
        {"qos": 2},
        {"version": 5},
        {"version": 5, "qos": 1},
        {"version": 5, "qos": 2, "user_properties": 3},
        {"pattern": "mesh", "publishers": 1, "subscribers": 5},
        {"pattern": "mesh", "publishers": 20, "subscribers": 1, "window": 50},
        {"pattern": "mesh", "qos": 1},
        {"topics": 7},
        {"window": 1},
        {"payload": 8},
        {"payload": 300_000, "window": 10},
        {"payload": 3_000_000, "window": 2, "qos": 1},
        {"processes": 2},
        {"processes": 2, "pattern": "mesh", "qos": 1},
    ],
    ids=str,
)
def test_every_message_arrives_at_the_reference_forwarder(
    forwarder: targets.Running, changes: dict[str, Any]
) -> None:
    spec = dataclasses.replace(QUICK, port=forwarder.port, pid=forwarder.pid, **changes)
    result = run_throughput(spec)
    assert result.complete, result.proof()
    assert result.sent > 0
    assert result.expected == result.sent * (spec.subscribers if spec.pattern == "mesh" else 1)
    assert result.rate >= 0  # of a tenth of a second, in which a busy machine may do something else
    assert result.broker_cpu is not None


@pytest.mark.parametrize(
    "changes", [{}, {"qos": 1}, {"qos": 2, "version": 5}, {"pattern": "mesh"}], ids=str
)
def test_mosquitto_delivers_every_message(changes: dict[str, Any]) -> None:
    with targets.running(targets.TARGETS["mosquitto"]) as broker:
        result = run_throughput(dataclasses.replace(QUICK, port=broker.port, **changes))
    assert result.complete, result.proof()
    assert result.broker_cpu is None


@pytest.mark.parametrize(
    "changes", [{}, {"qos": 1, "version": 5}, {"processes": 2}, {"warmup": 0.0}], ids=str
)
def test_latencies_are_measured_for_every_message(
    forwarder: targets.Running, changes: dict[str, Any]
) -> None:
    result = run_latency(dataclasses.replace(QUICK, port=forwarder.port, rate=500.0, **changes))
    assert result.complete, result.proof()
    assert result.latency.total == result.tally.received == result.lag.total
    points = result.percentiles()
    assert list(points) == ["p50", "p90", "p99", "p99.9", "max"]
    assert sorted(points.values()) == list(points.values())


def test_latency_needs_room_for_its_stamp(forwarder: targets.Running) -> None:
    with pytest.raises(ValueError, match="payload"):
        run_latency(dataclasses.replace(QUICK, port=forwarder.port, payload=15))


def test_connections_are_opened_and_their_memory_measured(forwarder: targets.Running) -> None:
    result = run_connections(LoadSpec(port=forwarder.port, pid=forwarder.pid), 130, batch=50)
    assert result.connections == 130
    assert result.bytes_each is not None
    assert run_connections(LoadSpec(port=forwarder.port), 3).bytes_each is None
    with pytest.raises(ValueError, match="at least one"):
        run_connections(LoadSpec(port=forwarder.port), 0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"publishers": 0}, "at least one"),
        ({"subscribers": 4}, "as many subscribers"),
        ({"pattern": "ring"}, "pattern"),
        ({"pattern": "mesh", "publishers": 257}, "256"),
        ({"payload": 7}, "payload"),
        ({"qos": 3}, "qos"),
        ({"version": 3}, "version"),
        ({"user_properties": 1}, "version 5"),
        ({"window": 0}, "window"),
        ({"seconds": 0.0}, "positive"),
        ({"processes": 0}, "processes"),
        ({"topics": 0}, "topics"),
        ({"topic": "a/#"}, "wildcards"),
    ],
)
def test_impossible_load_options_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        run_throughput(dataclasses.replace(QUICK, **changes))


# ---------------------------------------------------------------- brokers that misbehave


@contextmanager
def broker_that(
    connack: bytes = b"\x20\x02\0\0", suback: bytes = b"\x90\x03\0\1\0", hang_up: bool = False
) -> Iterator[int]:
    """Serve clients that are never sent a message; hang_up: the first PUBLISH ends its
    connection."""
    server = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def serve(conn: socket.socket) -> None:
        with conn:
            while data := conn.recv(1 << 16):
                if data[0] == 0x10:
                    conn.sendall(connack)
                elif data[0] == 0x82:
                    conn.sendall(suback)
                elif hang_up:
                    return

    def accept() -> None:
        while True:
            try:
                conn, _ = server.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=serve, args=(conn,), daemon=True))
            threads[-1].start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield int(server.getsockname()[1])
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        acceptor.join(5)
        for thread in threads:
            thread.join(5)


def test_a_silent_broker_is_found_out() -> None:
    with broker_that() as port:
        result = run_throughput(dataclasses.replace(QUICK, port=port, drain=0.1))
    assert not result.complete
    assert result.tally == Tally(lost=result.sent)
    assert result.sent >= 3000  # the windows, and another each second


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        ({"connack": b"\x20\x02\0\5"}, "refused the connection with 0005"),
        ({"connack": b"\xd0\0"}, "packet type 13"),
        ({"suback": b"\x90\x03\0\1\x80"}, "granted 0x80"),
        ({"hang_up": True}, "closed a connection|connection lost"),
    ],
)
@pytest.mark.parametrize("processes", [1, 2])
def test_faults_are_reported(faults: dict[str, Any], reason: str, processes: int) -> None:
    with broker_that(**faults) as port, pytest.raises(LoadError, match=reason):
        run_throughput(dataclasses.replace(QUICK, port=port, processes=processes))


def test_a_load_without_a_broker_cannot_connect() -> None:
    spec = dataclasses.replace(QUICK, port=free_ports(1)[0])
    with pytest.raises(LoadError, match="cannot connect"):
        run_throughput(spec)
    with pytest.raises(LoadError, match="failed"):
        run_connections(spec, 1)


# ---------------------------------------------------------------- targets, comparison, command line


def test_a_target_is_ended_whatever_happens() -> None:
    with pytest.raises(KeyboardInterrupt), targets.running(targets.TARGETS["sketch"]) as broker:
        assert psutil.pid_exists(broker.pid)
        raise KeyboardInterrupt
    assert not psutil.pid_exists(broker.pid)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("{python} -c 'raise SystemExit(\"no luck on {port}\")'", "ended with code 1: no luck on"),
        ("/nonexistent {port}", "cannot be started"),
    ],
)
def test_a_target_that_does_not_start_is_reported(command: str, reason: str) -> None:
    with pytest.raises(LoadError, match=reason), targets.running(targets.Target("broken", command)):
        pass


def test_compare_measures_in_turn() -> None:
    chosen = [
        targets.TARGETS["sketch"],
        targets.target("other={python} -m mqttree.bench.studies.sketch {port}"),
    ]
    works = [compare.WORKS[name] for name in ("qos0", "latency", "connections")]
    works = [
        dataclasses.replace(work, spec=dataclasses.replace(work.spec, drain=60.0)) for work in works
    ]
    works[2] = dataclasses.replace(works[2], title="conn")
    said: list[str] = []
    table = compare.compare(works, chosen, 2, 0.1, said.append)
    turns = [line.split(":")[0] for line in said]
    assert turns[:4] == ["qos0 1/2 sketch", "qos0 1/2 other", "qos0 2/2 sketch", "qos0 2/2 other"]
    assert len(turns) == 12
    for row in table.values():
        for cell in row.values():
            assert len(cell.primary) == 2
            assert not cell.complaints
    out = io.StringIO()
    compare.render(works, chosen, table, out)
    lines = out.getvalue().splitlines()
    assert len(lines) == 5
    assert "sketch/other" in lines[0]
    # A line ends with "-" if a busy machine had no time for it.
    assert all(line.endswith(("x", "-")) for line in lines[2:])


def test_ratios_are_those_of_medians() -> None:
    ours, theirs = compare.Cell(primary=[1.0, 8.0, 9.0]), compare.Cell(primary=[2.0, 2.0, 50.0])
    assert compare.ratio(compare.WORKS["qos0"], ours, theirs) == 4.0
    assert compare.ratio(compare.WORKS["latency"], ours, theirs) == 0.25
    assert compare.ratio(compare.WORKS["qos0"], ours, compare.Cell()) is None


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("compare --work nonsense", 2, "unknown work 'nonsense'"),
        ("compare --target nonsense", 2, "unknown target 'nonsense'"),
        ("compare --against mosquitto,mosquitto", 2, "named twice"),
        ("compare --target x=true", 2, "needs {port}"),
        ("compare --target x=/nonexistent{port}", 2, "not installed"),
        ("compare --rounds 0", 2, "'0' is not a whole number from 1"),
        ("compare --rounds x", 2, "'x' is not a whole number from 1"),
        ("compare --seconds x", 2, "'x' is not a positive number"),
        ("compare --seconds nan", 2, "not a positive number"),
        ("load --qos 3", 2, "qos must be"),
        ("load --port 1 --seconds 0.1", 1, "cannot connect"),
        ("nonsense", 2, "invalid choice"),
        ("", 2, "required"),
        ("run anything", 2, "unknown scenario"),
        ("run hetero --at all", 2, "unrecognized arguments"),
        ("lab mesh5 --broker abacus", 2, "unknown broker"),
    ],
)
def test_command_line_errors_are_reported_without_a_traceback(
    line: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(line.split()) == code
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


@pytest.mark.parametrize("mode", ["throughput", "latency", "connections"])
def test_the_command_line_runs_a_load(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = (
        f"load --target sketch --mode {mode} --seconds 0.1 --warmup 0 --connections 20 "
        "--publishers 2 --subscribers 2"
    )
    assert cli.main(line.split()) == 0
    out = capsys.readouterr().out
    assert ("bytes each" if mode == "connections" else " lost 0 ") in out
