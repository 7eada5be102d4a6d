"""What whoever runs a broker sees of it: $SYS, metrics, log lines, how it stops, and that idle
connections are cheap."""

from __future__ import annotations

import http.client
import json
import logging
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mqttree.broker.base.log_format import JsonLines, OneLine
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Disconnect, Publish
from tests.kit.brokers import Broker, Cluster
from tests.kit.clients import clients
from tests.kit.raw_client import RawClient
from tests.kit.waiting import PATIENCE, until


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as found:
        yield found


def alone(cluster: Cluster, *flags: str) -> Broker:
    return cluster.add("--discovery", "off", *flags).up()


# -------------------------------------------------------------------- $SYS


def test_the_interval_of_sys_topics_follows_the_file_or_amqtts_plugin(
    cluster: Cluster, tmp_path: Path
) -> None:
    often, never, plugin = (tmp_path / f"{name}.yaml" for name in ("often", "never", "plugin"))
    often.write_text("sys_interval: 1\n")
    never.write_text("sys_interval: 0\n")
    anonymous = "  amqtt.plugins.authentication.AnonymousAuthPlugin: {allow_anonymous: true}\n"
    plugin.write_text(
        f"plugins:\n{anonymous}  amqtt.plugins.sys.broker.BrokerSysPlugin: {{sys_interval: 1}}\n"
    )
    brokers = [
        cluster.add("--discovery", "off", "-c", str(path)) for path in (often, never, plugin)
    ]
    with clients() as make:
        watchers = [make(broker.up().port) for broker in brokers]
        for watcher in watchers:
            watcher.subscribe("$SYS/#")
        first = watchers[0]
        until(
            lambda: len([m for m in list(first.messages) if m.topic.endswith("/uptime")]) >= 3,
            "three uptimes",
        )
        until(
            lambda: (
                "$SYS/broker/clients/connected" in {m.topic for m in list(watchers[2].messages)}
            ),
            "amqtt's topics",
        )
        assert not watchers[1].messages
        assert "$SYS/broker/load/sockets/1min" not in {m.topic for m in list(watchers[2].messages)}


# -------------------------------------------------------------------- metrics


def scrape(broker: Broker) -> dict[str, float]:
    """The samples, each by its name with labels; their form is checked by test_admin."""
    connection = http.client.HTTPConnection("127.0.0.1", broker.admin, timeout=PATIENCE)
    with closing(connection):
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        lines = response.read().decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def test_metrics_have_few_labels(cluster: Cluster) -> None:
    broker = alone(cluster)
    before = scrape(broker)
    known = {"listener", "reason", "peer", "address", "id", "name", "cluster", "version", "core"}
    assert set(re.findall(r'(\w+)="', "".join(before))) <= known
    held = [
        RawClient(broker.port, f"client-{number}", keep_alive=60, username=f"user-{number}")
        for number in range(30)
    ]
    for number, client in enumerate(held):
        client.sock.sendall(encode_packet(Publish(f"topic/{number}", b"x"), 5))
    with socket.create_connection(("127.0.0.1", broker.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger.settimeout(PATIENCE)
        with pytest.raises(OSError):
            while stranger.recv(1000):
                pass
            raise ConnectionError
    connected = 'mqttree_listener_connections{listener="default"}'
    until(lambda: scrape(broker)["mqttree_published_total"] == 30, "thirty messages")
    until(lambda: scrape(broker)[connected] == 30, "the stranger is gone")
    after = scrape(broker)
    assert after.keys() == before.keys()  # not a series more
    assert after["mqttree_clients_connected"] == 30
    assert (
        after['mqttree_closed_total{reason="malformed"}']
        + after['mqttree_closed_total{reason="protocol_error"}']
        == 1
    )
    assert after["mqttree_packets_received_total"] == 60
    assert after["mqttree_packets_sent_total"] == 30


# -------------------------------------------------------------------- logs


def test_every_log_line_is_json_from_start_to_end(cluster: Cluster) -> None:
    broker = alone(cluster, "--log-format", "json", "--log-level", "debug")
    with socket.create_connection(("127.0.0.1", broker.port), PATIENCE) as stranger:
        stranger.sendall(b"\x30\x05\n{}\r\n")
        until(
            lambda: broker.counter("malformed") + broker.counter("protocol_errors"), "the refusal"
        )
    assert broker.terminate() == 0
    entries = [json.loads(line) for line in broker.log().splitlines()]
    assert len(entries) > 3
    for entry in entries:
        assert list(entry)[:4] == ["ts", "level", "logger", "event"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry["ts"])
        assert entry["level"] in ("debug", "info", "warning", "error")
    assert any("listens on" in entry["event"] for entry in entries)
    assert any(
        entry["level"] == "warning" and "first packet is not CONNECT" in entry["event"]
        for entry in entries
    )


def record(text: str, *arguments: object, **more: Any) -> logging.LogRecord:
    made = logging.LogRecord("mqttree", logging.INFO, "x.py", 1, text, arguments, None)
    made.__dict__.update(more)
    return made


def test_text_of_peers_cannot_forge_log_lines() -> None:
    evil = record("client %s left", "a\n2026-01-01 ERROR \x1b[2Jall is lost\u2028x")
    line = OneLine().format(evil)
    assert "\n" not in line and line.isprintable() and "\\n2026" in line
    entry = json.loads(JsonLines().format(evil))
    assert entry["event"].startswith("client a\n2026") and "\n" not in JsonLines().format(evil)


@pytest.mark.parametrize(
    "text", ["x" * 70_000, "\x1b" * 65_535, "\U0001f600" * 20_000, "\x7f" * 9000]
)
def test_a_line_of_the_log_is_never_broken_in_pieces(text: str) -> None:
    for form in (OneLine(), JsonLines()):
        line = form.format(record("client %s left", text))
        assert "client" in line and line.isprintable()
        # What container engines take as one line.
        assert len(line.encode()) < 16_384
    assert json.loads(JsonLines().format(record("%s", "short")))["event"] == "short"


def test_a_traceback_forges_no_lines_either() -> None:
    try:
        raise ValueError("why\n2026-01-01 ERROR \x1b[2Jall is lost")
    except ValueError as error:
        failed = record("failed", exc_info=(type(error), error, error.__traceback__))
    lines = OneLine().format(failed).split("\n")
    assert all(line.startswith("  ") and line.isprintable() for line in lines[1:])
    assert lines[-1] == "  2026-01-01 ERROR \\x1b[2Jall is lost"


def test_json_lines_have_their_fields_and_tracebacks() -> None:
    entry = json.loads(
        JsonLines().format(
            record("came", fields={"client": "c1", "level": "evil", "bytes": b"\xff"})
        )
    )
    assert entry["client"] == "c1" and entry["level"] == "info" and entry["bytes"] == "b'\\xff'"
    try:
        raise ValueError("why")
    except ValueError as error:
        failed = record("failed", exc_info=(type(error), error, error.__traceback__))
    assert "ValueError: why" in json.loads(JsonLines().format(failed))["traceback"]


# -------------------------------------------------------------------- stopping


def test_a_stop_sends_what_was_queued_first(cluster: Cluster) -> None:
    broker = alone(cluster)
    with clients() as make:
        slow = RawClient(broker.port, "slow", keep_alive=60)
        slow.sock.sendall(b"\x82\x09\x00\x01\x00\x00\x03s/t\x00")
        slow.take()
        publisher = make(broker.port)
        payload = bytes(100_000)
        # These are 4 MB that no subscriber reads yet.
        publisher.done(*[publisher.publish("s/t", payload, 1) for _ in range(40)])
        broker_end: list[int] = []
        thread = threading.Thread(target=lambda: broker_end.append(broker.terminate()))
        thread.start()
        got = 0
        while not isinstance(packet := slow.take(), Disconnect):
            assert isinstance(packet, Publish)
            got += 1
        thread.join(PATIENCE)
    assert got == 40 and packet.reason == 0x8B
    assert broker_end == [0]


def test_a_stop_does_not_wait_for_clients_that_do_not_read(cluster: Cluster) -> None:
    broker = alone(cluster)
    with clients() as make:
        deaf = RawClient(broker.port, "deaf", keep_alive=60)
        deaf.sock.sendall(b"\x82\x09\x00\x01\x00\x00\x03s/t\x00")
        deaf.take()
        publisher = make(broker.port)
        publisher.done(*[publisher.publish("s/t", bytes(100_000), 1) for _ in range(100)])
        assert broker.terminate() == 0
