"""`mqttree clients | topics | links | top` against real brokers with real clients."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqttree.bench.lab.ports import free_ports
from tests.kit.brokers import Broker, Cluster
from tests.kit.clients import Client
from tests.kit.command import CLI, mqttree, surroundings
from tests.kit.waiting import PATIENCE, until


def at(broker: Broker) -> list[str]:
    return ["--admin", f"127.0.0.1:{broker.admin}"]


def shown(broker: Broker, *words: str) -> list[str]:
    found = mqttree(*words, *at(broker))
    assert (found.returncode, found.stderr) == (0, ""), found
    return found.stdout.splitlines()


def as_json(broker: Broker, *words: str) -> Any:
    return json.loads("\n".join(shown(broker, *words, "--json")))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    """Three brokers; the first has two clients and retained messages, the second has a client."""
    with Cluster(tmp_path_factory.mktemp("operators"), "--routing", "topic") as cluster:
        for _ in range(3):
            cluster.add()
        cluster.settle()
        one, two = cluster.brokers[:2]
        clients = [
            Client(one.port, client_id="c1", expiry=100),
            Client(one.port, client_id="é", expiry=100),
            Client(two.port, client_id="c2", expiry=100),
        ]
        clients[0].subscribe("a/+/#", 1)
        for number in range(5):
            clients[0].publish(f"r/{number}", b"kept", 1, retain=True)
        until(lambda: as_json(one, "clients")["total"] == 3, "all clients")
        yield cluster.brokers
        for client in clients:
            client.close()


def test_clients_of_all_brokers_are_shown_and_found(three: list[Broker]) -> None:
    lines = shown(three[0], "clients")
    assert lines[0].split()[:3] == ["CLIENT", "BROKER", "STATE"]
    for client, broker in (("c1", "b0"), ("c2", "b1")):
        assert [line.split()[:3] for line in lines if line.startswith(client)] == [
            [client, broker, "connected"]
        ]
    assert [row["id"] for row in as_json(three[0], "clients", "c1")["clients"]] == ["c1"]
    # A broker that starved on a busy machine loses its path to the other one for a while.
    until(
        lambda: (
            [row["id"] for row in as_json(three[0], "clients", "--broker", "b1")["clients"]]
            == ["c2"]
        ),
        "the client of another broker",
    )
    assert shown(three[0], "clients", "--limit", "1")[-1] == "and 2 more (--limit)"
    # Where the terminal does not have all letters.
    assert mqttree("clients", *at(three[0]), PYTHONIOENCODING="ascii").returncode == 0


def test_topics_are_shown_with_their_rates_or_retained(three: list[Broker]) -> None:
    found = until(
        lambda: [
            row for row in as_json(three[0], "topics")["topics"] if row["topic"].startswith("r/")
        ],
        "topics that are published to",
    )
    assert found[0]["per_s"] > 0
    assert shown(three[0], "topics")[0].split() == ["TOPIC", "MESSAGES/S", "RECEIVERS"]
    assert as_json(three[0], "topics", "--filter", "r/1/#")["total"] == 1
    assert as_json(three[0], "topics", "--filter", "other/#")["topics"] == []
    lines = shown(three[2], "topics", "--retained", "--filter", "r/+", "--limit", "2")
    assert [line.split()[0] for line in lines[1:3]] == ["r/0", "r/1"]
    assert lines[-1] == "and 3 more (--limit)"
    assert as_json(three[2], "topics", "--retained", "r/4")["retained"][0]["bytes"] == 4


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "--filter", "a#"),
        ("topics", "--retained", "--filter", "a#"),
        ("links", "--topic", "a/#"),
        ("links", "--origin", "nowhere"),
    ],
)
def test_what_the_broker_cannot_use_is_bad_input(three: list[Broker], words: list[str]) -> None:
    found = mqttree(*words, *at(three[0]))
    assert (found.returncode, found.stdout, found.stderr.count("\n")) == (2, "", 1), found


def test_links_are_shown_with_the_names_of_their_ends(three: list[Broker]) -> None:
    lines = shown(three[0], "links")
    assert len(lines) == 4
    assert {tuple(sorted(line.split()[:2])) for line in lines[1:]} == {
        ("b0", "b1"),
        ("b0", "b2"),
        ("b1", "b2"),
    }
    assert len(as_json(three[0], "links")["links"]) == 3


def test_links_are_shown_with_what_crosses_them(three: list[Broker]) -> None:
    publisher = Client(three[1].port, client_id="rates")

    def crossing() -> dict[str, Any] | None:
        for _ in range(20):
            publisher.publish("a/x/y", bytes(1000), 1)
        rows = as_json(three[0], "links")["links"]
        return next((row for row in rows if row["in_per_s"]), None)

    row = until(crossing, "messages over a link")
    assert row["in_bytes_per_s"] > 1000 * row["in_per_s"]
    # Acknowledgements, at least.
    assert row["out_bytes_per_s"] > 0
    head = shown(three[0], "links")[0]
    assert head.endswith("CARRIES  OUT/S  IN/S  BYTES OUT/S  BYTES IN/S")
    # Of the link between the two others, this broker knows only that it is there.
    other = next(row for row in as_json(three[0], "links")["links"] if not row["here"])
    assert (other["in_per_s"], other["out_bytes_per_s"]) == (None, None)
    publisher.close()


def test_links_of_one_origin_and_topic_are_shown(three: list[Broker]) -> None:
    lines = shown(three[2], "links", "--origin", "b0")
    assert lines[0].split() == ["FROM", "TO", "WANTS", "THEM"]
    assert sorted(line.split()[1] for line in lines[1:]) == ["b1", "b2"]
    until(
        lambda: as_json(three[2], "links", "--topic", "a/b/c")["receivers"],
        "the filter of the first broker",
    )
    last = shown(three[2], "links", "--topic", "a/b/c")[-1]
    assert last.split()[1:] == ["b0", "yes"]


def test_top_prints_pictures_or_json_without_a_terminal(three: list[Broker]) -> None:
    found = mqttree("top", "--count", "2", "--interval", "0.1", *at(three[0]))
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.count("BROKER") == 2
    assert "\x1b" not in found.stdout
    lines = shown(three[0], "top", "--json", "--count", "2", "--interval", "0.1")
    looks = [json.loads(line) for line in lines]
    assert [len(each["topology"]["brokers"]) for each in looks] == [3, 3]


@contextlib.contextmanager
def on_terminal(*words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command on a terminal, and the other end of that."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*CLI, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=surroundings(TERM="xterm", COLUMNS="100", LINES="30"),
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE)
        os.close(ours)


def read_until(ours: int, wanted: bytes, seen: bytes = b"") -> bytes:
    """What a terminal got, up to some bytes that it has to get."""

    def came() -> bool:
        nonlocal seen
        if select.select([ours], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):
                seen += os.read(ours, 65536)
        return wanted in seen

    until(came, f"{wanted!r} on the terminal")
    return seen


def test_top_is_live_and_gives_the_terminal_back(three: list[Broker]) -> None:
    with on_terminal("top", "--interval", "0.2", *at(three[0])) as (process, ours):
        assert b"\x1b[?1049h" in read_until(ours, b"sorted by name")
        os.write(ours, b"s")
        read_until(ours, b"sorted by clients")
        os.write(ours, b"q")
        read_until(ours, b"\x1b[?25h\x1b[?1049l")
        assert process.wait(PATIENCE) == 0


def test_top_gives_the_terminal_back_when_it_is_terminated(three: list[Broker]) -> None:
    with on_terminal("top", *at(three[0])) as (process, ours):
        read_until(ours, b"sorted by name")
        process.send_signal(signal.SIGTERM)
        read_until(ours, b"\x1b[?25h\x1b[?1049l")
        assert process.wait(PATIENCE) == 130


def test_top_shows_what_is_old_while_its_broker_hangs(three: list[Broker]) -> None:
    with on_terminal("top", "--interval", "0.2", *at(three[2])) as (process, ours):
        read_until(ours, b"sorted by name")
        three[2].pause()
        try:
            read_until(ours, b"old: no broker answers")
        finally:
            three[2].resume()
        assert process.poll() is None


@pytest.mark.parametrize("command", ["status", "clients", "topics", "links", "top"])
def test_without_an_answer_one_line_says_so(command: str) -> None:
    (port,) = free_ports(1)
    found = mqttree(command, "--admin", f"127.0.0.1:{port}")
    assert found.returncode == 1
    assert found.stdout == ""
    assert found.stderr.startswith(f"mqttree: no broker answers at 127.0.0.1:{port}: ")
    assert found.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["clients", "--limit", "0"], "argument --limit: '0' is not a number from 1"),
        (["clients", "--state", "off"], "argument --state: invalid choice: 'off'"),
        (["top", "--interval", "0"], "argument --interval: '0' is not a number of seconds"),
        (["links", "more"], "unrecognized arguments: more"),
        (["clients", "--admin", "x y"], "--admin: "),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words: list[str], line: str) -> None:
    found = mqttree(*words)
    assert found.returncode == 2
    assert found.stderr.startswith(f"mqttree: {line}"), found.stderr
    assert found.stderr.count("\n") == 1


def test_a_broker_that_does_not_exist_is_one_line(three: list[Broker]) -> None:
    found = mqttree("clients", "--broker", "nowhere", *at(three[0]))
    assert (found.returncode, found.stderr) == (
        2,
        "mqttree: no broker has the name or id 'nowhere'\n",
    )


def test_a_broker_that_is_killed_is_an_alarm_until_it_is_dismissed(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        one, two, dead = (cluster.add() for _ in range(3))
        cluster.settle()
        assert shown(one, "alarms") == ["no alarms"]
        dead.kill()
        [line] = until(lambda: [x for x in shown(one, "alarms") if "is gone" in x], "an alarm")
        assert re.fullmatch(r"error: b2 is gone since \d\d:\d\d \(crash seen by b0, b1\)", line), (
            line
        )
        assert line.removeprefix("error: ") in one.log()
        [alarm] = as_json(one, "alarms")["alarms"]
        assert (alarm["name"], alarm["ended"], alarm["seen_by"]) == ("b2", "crash", ["b0", "b1"])
        # It is there again after a restart, at once.
        one.kill()
        one.start().up()
        assert line in shown(one, "alarms")
        for name, said in (("b7", "no broker has the name or id 'b7'"), ("b0", "b0 is not gone")):
            refused = mqttree("alarms", "--dismiss", name, *at(one))
            assert (refused.returncode, refused.stderr) == (2, f"mqttree: {said}\n")
        until(lambda: not [x for x in shown(two, "alarms") if "b0 is gone" in x], "b0 is back")
        assert mqttree("alarms", "--dismiss", "b2", *at(one)).returncode == 0
        for broker in (one, two):
            until(lambda broker=broker: shown(broker, "alarms") == ["no alarms"], "no alarms")
        refused = mqttree("alarms", "--dismiss", "b2", *at(two))
        assert (refused.returncode, refused.stderr) == (2, "mqttree: b2 has no alarm\n")
