"""The load generator's packets and histogram, brokers that misbehave, and the command line."""

from __future__ import annotations

import dataclasses
import math
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.bench import cli
from mqttree.bench.load import Histogram, LoadError, Tally, packets
from mqttree.bench.load.histogram import bucket, upper
from mqttree.bench.load.mix import run_mix
from mqttree.bench.load.mixture import MixSpec
from mqttree.bench.studies import mixed, targets
from tests.kit.effort import examples

QUICK = MixSpec(publishers=3, subscribers=3, warmup=0.02, seconds=0.1, drain=60.0)


# ---------------------------------------------------------------- encoder


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (127, "7f"),
        (128, "8001"),
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
        result = run_mix(dataclasses.replace(QUICK, port=port, drain=0.1))
    assert not result.complete
    assert result.tally == Tally(lost=result.sent)
    assert result.sent == QUICK.window * QUICK.publishers


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
        run_mix(dataclasses.replace(QUICK, port=port, processes=processes))


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
    broken = targets.target(f"broken={command}")
    with pytest.raises(LoadError, match=reason), targets.running(broken):
        pass


def test_compare_measures_in_turn() -> None:
    chosen = [
        targets.TARGETS["sketch"],
        targets.target("other={python} -m mqttree.bench.studies.sketch {port}"),
    ]
    said: list[str] = []
    table = mixed.measure([mixed.WORKS["mix0"]], chosen, 2, 0.1, say=said.append)
    turns = [line.split(":")[0] for line in said]
    assert turns == ["mix0 1/2 sketch", "mix0 1/2 other", "mix0 2/2 sketch", "mix0 2/2 other"]
    for kept in table["mix0"].values():
        assert len(kept.runs) == 2
        assert not kept.complaints


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("compare --target nonsense", 2, "unknown target 'nonsense'"),
        ("compare --target x=true", 2, "needs {port}"),
        ("compare --target x=/nonexistent{port}", 2, "not installed"),
        ("compare --rounds 0", 2, "'0' is not a whole number from 1"),
        ("compare --seconds x", 2, "'x' is not a positive number"),
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


@pytest.mark.parametrize("how", ["", "--rate 500"])
def test_the_command_line_runs_a_load(how: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"load --target sketch --seconds 0.1 --warmup 0 --publishers 2 --subscribers 2 {how}"
    assert cli.main(line.split()) == 0
    assert " lost 0 " in capsys.readouterr().out
