"""What every test may use: free ports, and one profile of Hypothesis."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# A shared machine stalls at times, so an example has no deadline; the limit of a test is pytest's.
settings.register_profile("mqttree", deadline=None, max_examples=100, print_blob=True)
settings.load_profile("mqttree")

# MQTT.js is there when node and npm were (scripts/setup mqttjs).
collect_ignore = [] if any((Path(__file__).parents[1] / ".venv").glob("mqttjs-*[0-9]")) else ["process/test_mqttjs.py"]


def pick_ports(count: int) -> list[int]:
    """count different TCP ports that are free on the loopback address at this moment."""
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in taken]


@pytest.fixture
def free_port() -> int:
    """A TCP port that is free on the loopback address at this moment."""
    return pick_ports(1)[0]


@pytest.fixture
def free_ports() -> Callable[[int], list[int]]:
    """A function that gives so many different free TCP ports."""
    return pick_ports
