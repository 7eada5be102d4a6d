"""Names and texts of strangers, with HTML, escape sequences, ends of lines and marks that turn the
direction of writing: in each view of the command line, and in the log."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from mqttree.broker.cli.table import width
from tests.kit.brokers import Broker, Cluster
from tests.kit.clients import Client
from tests.kit.waiting import PATIENCE, until

HOSTILE = (
    "<img src=x onerror=alert(1)>\x1b[2J\x1b]0;title\x07\u009b31m\r\n"
    "2026-01-01 00:00:00.000 ERROR forged\u2028\u202ered\u2066\x7f\b\t\u0e34\u0301"
)
LONG = "\x1b" * 65_000
MAX_CELLS = 1000
"""cells of the longest line that a command shows."""

COMMANDS = (
    ("status",),
    ("clients",),
    ("clients", "--limit", "1"),
    ("topics",),
    ("topics", "--retained"),
    ("links",),
    ("links", "--topic", f"r/{HOSTILE}"),
    ("top", "--count", "1"),
)
"""Those that show what an admin port says."""


def mqttree(*words: str) -> subprocess.CompletedProcess[str]:
    # Without translation of ends of lines: a carriage return alone has to be seen.
    found = subprocess.run(
        [sys.executable, "-m", "mqttree.broker.cli", *words],
        capture_output=True,
        timeout=PATIENCE,
        env={"PATH": "/usr/bin:/bin", "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    out, err = found.stdout.decode(), found.stderr.decode()
    return subprocess.CompletedProcess(found.args, found.returncode, out, err)


def harmless(text: str) -> list[str]:
    """Return the lines of a text that a terminal shows as they are."""
    lines = text.split("\n")
    bad = [line for line in lines if not line.isprintable()]
    assert not bad, f"{bad[0][:300]!r}"
    return lines


def shown(admin: str, *words: str, codes: tuple[int, ...] = (0,)) -> list[str]:
    """Return what a command prints, as lines, all of them harmless."""
    found = mqttree(*words, "--admin", admin)
    assert "Traceback" not in found.stderr, found.stderr[-2000:]
    assert found.returncode in codes, (words, found.returncode, found.stderr[:500])
    lines = harmless(found.stdout)
    errors = harmless(found.stderr)
    assert len(errors) <= 2, errors
    assert all(width(line) <= MAX_CELLS for line in lines)
    assert not any(line.startswith("2026-01-01") for line in (*lines, *errors))
    return lines


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    """Two brokers at debug, with hostile clients, topics and users."""
    with Cluster(tmp_path_factory.mktemp("hostile"), "--log-level", "debug") as cluster:
        for _ in range(2):
            cluster.add()
        cluster.settle()
        one, other = cluster.brokers
        clients = [
            Client(one.port, client_id=HOSTILE, expiry=100, user=(HOSTILE, HOSTILE)),
            Client(other.port, client_id=f"2{HOSTILE}", expiry=100),
            Client(one.port, client_id=LONG, protocol=4, user=(LONG, "")),
        ]
        clients[0].subscribe(f"r/{HOSTILE}", 1)
        for client in clients:
            client.publish(f"r/{HOSTILE}", HOSTILE.encode(), 1, retain=True)
            client.publish(f"{LONG}", b"kept", 1, retain=True)
        until(
            lambda: len([x for x in shown(at(one), "clients") if "img src" in x]) == 2,
            "both clients with hostile names",
        )
        yield cluster.brokers
        for client in clients:
            client.close()


def at(broker: Broker) -> str:
    return f"127.0.0.1:{broker.admin}"


@pytest.mark.parametrize("words", [*COMMANDS, ("doctor", "--seconds", "1")], ids=" ".join)
def test_json_for_terminals_has_no_control_characters(
    two: list[Broker], words: tuple[str, ...]
) -> None:
    codes = (0, 1) if words[0] == "doctor" else (0,)
    found = mqttree(*words, "--json", "--admin", at(two[0]))
    assert found.returncode in codes, found.stderr
    harmless(found.stdout)
    assert json.loads(found.stdout)


class Liar(BaseHTTPRequestHandler):
    """Answers what a broker answers, with something hostile behind each text, and refuses each
    POST with a hostile reason."""

    broker: Broker

    def do_GET(self) -> None:
        """Answer as the broker does, but for the texts."""
        # What is asked for was named by the earlier, hostile answers.
        path = re.sub(r"%3Cimg[^&]*", "", self.path)
        connection = http.client.HTTPConnection("127.0.0.1", self.broker.admin, timeout=10)
        connection.request("GET", path)
        answer = connection.getresponse()
        body = json.loads(answer.read())
        connection.close()
        self._answer(answer.status, json.dumps(worse(body)).encode())

    def do_POST(self) -> None:
        """Refuse."""
        self._answer(400, HOSTILE.encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def worse(value: Any) -> Any:
    """Return a copy of an answer with something hostile behind each text."""
    if isinstance(value, dict):
        return {key: worse(each) for key, each in value.items()}
    if isinstance(value, list):
        return [worse(each) for each in value]
    return value + HOSTILE if isinstance(value, str) else value


@pytest.fixture
def liar(two: list[Broker]) -> Iterator[str]:
    """Address of an admin port that lies."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OfOne", (Liar,), {"broker": two[0]}))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    "words",
    [
        *COMMANDS,
        ("links", "--origin", f"b1{HOSTILE}"),
        ("links", "--origin", HOSTILE),
        ("drain", "--no-wait"),
        ("doctor", "--seconds", "1"),
    ],
    ids=" ".join,
)
def test_what_an_admin_port_answers_does_not_command_a_terminal(
    liar: str, words: tuple[str, ...]
) -> None:
    shown(liar, *words, codes=(0, 1, 2))


def test_the_doctor_shows_what_another_broker_says_of_itself_as_text(
    two: list[Broker], liar: str
) -> None:
    lines = shown(at(two[0]), "doctor", "--seconds", "1", "--other", liar, codes=(1,))
    assert any("img src" in line for line in lines)
