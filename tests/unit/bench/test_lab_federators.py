"""What a lab reads in the logs of its federators: who is connected, and what was lost."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from mqttree.bench.lab.brokers import HostProcess, Place
from mqttree.bench.lab.federators import connections_lost, wait_connected

LINES = (
    "12:00:00 INFO    connected to broker 2 at mqtt://10.77.0.3:1883",
    "12:00:01 WARNING no connection to broker 2 at mqtt://10.77.0.3:1883: it closes the "
    "connection; next attempt in 1.5 s",
    "12:00:02 INFO    connected to broker 2 at mqtt://10.77.0.3:1883",
)


@pytest.fixture
def federator(tmp_path: Path) -> Iterator[HostProcess]:
    """A process in the place of a federator with one neighbour, whose log is written by tests."""
    place = Place("b2", "127.0.0.1", 1883, 8080, tmp_path, nullcontext)
    code = "import time; time.sleep(60)"
    words = [sys.executable, "-c", code, "--neighbour", "5=mqtt://10.77.0.6"]
    process = HostProcess("federator of b2", place, words, "federator.log")
    process.start()
    yield process
    process.kill()


def _say(federator: HostProcess, *lines: str) -> None:
    assert federator.log_path is not None
    federator.log_path.write_text("\n".join(lines))


def test_two_connections_to_one_broker_are_not_connections_to_two(federator: HostProcess) -> None:
    _say(federator, *LINES)
    began = time.monotonic()
    assert "was not connected to all brokers" in wait_connected([federator], 0.1)
    assert time.monotonic() - began >= 0.1
    _say(federator, *LINES, "12:00:03 INFO    connected to broker 5 at mqtt://10.77.0.6:1883")
    assert wait_connected([federator], 10) == ""


def test_lost_connections_are_told_with_their_reason(federator: HostProcess) -> None:
    _say(federator, *LINES)
    assert connections_lost([federator]) == [
        "federator of b2: no connection to broker 2 at mqtt://10.77.0.3:1883: it closes the "
        "connection; next attempt in 1.5 s"
    ]
