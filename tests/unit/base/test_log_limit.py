"""Lines that peers cause: one a minute for each cause and host."""

from __future__ import annotations

import pytest

from mqttree.broker.base.log_limit import MAX_SOURCES, REPEAT_INTERVAL_S, host_of
from tests.kit.node_harness import World


@pytest.fixture
def world() -> World:
    return World()


def told(world: World, level: str = "warning") -> list[str]:
    return [text for found, text in world.lines if found == level]


def test_the_first_line_is_logged_and_the_others_are_counted(world: World) -> None:
    limit = world.node.log_limit
    for number in range(1000):
        limit.line("warning", "bad CONNECT", f"192.0.2.1:{number + 1}", f"line {number}")
    limit.line("warning", "bad CONNECT", "192.0.2.2:1", "of another host")
    limit.line("warning", "no TLS", "192.0.2.1:1", "of another cause")
    assert told(world) == ["line 0", "of another host", "of another cause"]
    assert len(told(world, "debug")) == world.node.counters.log_lines_suppressed == 999
    world.advance(REPEAT_INTERVAL_S + 0.1)
    assert told(world)[3:] == ["bad CONNECT: 999 more lines from 192.0.2.1 within 60 s"]
    limit.line("warning", "bad CONNECT", "192.0.2.1:1", "a minute later")
    assert told(world)[-1] == "a minute later"


def test_hosts_that_are_too_many_count_as_one(world: World) -> None:
    for number in range(3 * MAX_SOURCES):
        world.node.log_limit.line(
            "warning", "bad CONNECT", f"[2001:db8::{number:x}]:1", f"line {number}"
        )
    assert len(told(world)) == MAX_SOURCES + 1
    world.advance(REPEAT_INTERVAL_S + 0.1)
    assert (
        told(world)[-1] == f"bad CONNECT: {2 * MAX_SOURCES - 1:,} more lines from several hosts"
        " within 60 s"
    )


def test_garbage_from_one_host_is_one_line(world: World) -> None:
    for _ in range(100):
        world.open().send(b"\x00\x01garbage")
    assert len(told(world)) == 1
    assert world.node.counters.malformed == 100


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("192.0.2.1:80", "192.0.2.1"),
        ("[::1]:80", "[::1]"),
        ("/run/mqtt.sock", "/run/mqtt.sock"),
        ("", ""),
        ("a:b", "a:b"),
    ],
)
def test_the_host_is_taken_from_a_peers_address(peer: str, host: str) -> None:
    assert host_of(peer) == host
