"""What may be typed into `mqttree bench lab`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqttree.bench.lab import topology
from mqttree.bench.runner.shell import link_lines, parse, pause, read_lines, tree_lines
from mqttree.bench.scenarios.scenario import Fault

MESH = topology.load("mesh3")


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("kill root", Fault(0.0, "kill", broker="root")),
        ("cut b0 b1", Fault(0.0, "cut", links=(("b0", "b1"),))),
        ("heal", Fault(0.0, "heal", links=(("b0", "b1"), ("b0", "b2"), ("b1", "b2")))),
        (
            "slow b0 all delay_ms=30 loss=0.1",
            Fault(0.0, "slow", links=(("b0", "all"),), wire={"delay_ms": 30.0, "loss": 0.1}),
        ),
        ("partition b0 b1,b2", Fault(0.0, "partition", groups=(("b0",), ("b1", "b2")))),
        ("tree", "tree"),
    ],
)
def test_lab_commands_are_parsed(line: str, fault: Fault | str) -> None:
    assert parse(line, MESH) == fault


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("explode b0", "unknown word 'explode': one of kill, "),
        ("kill", "kill takes one of b0, "),
        ("cut b0 b9", "cut takes all, or two of b0, b1, b2"),
        ("cut b0 b1 loss=0.5", "cut takes no loss"),
        ("slow b0 b1", "slow needs any of delay_ms, "),
        ("slow b0 b1 delay_ms=x", "delay_ms must be a number, not 'x'"),
        ("partition b0", "partition takes two groups or more"),
        ("kill 'b0", "No closing quotation"),
        ("cut b0 b0", "there is no link from b0 to itself"),
        ("partition b0 b0", "b0 is in two groups, or twice in one"),
        ("partition b0 b1,", "unknown host ''"),
    ],
)
def test_a_bad_command_is_refused_with_its_reason(line: str, reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(line, MESH)
    assert str(caught.value).startswith(reason)


def test_a_pause_takes_a_number_of_seconds() -> None:
    assert pause("sleep 0.5") == 0.5 and pause("kill b0") is None
    for line in ("sleep x", "sleep", "sleep -1", "sleep nan", "sleep inf", "sleep 1 2"):
        with pytest.raises(ValueError, match=r"^sleep takes 0 to 86,400 seconds, not "):
            pause(line)


def test_input_of_any_kind_is_read_to_its_last_line(tmp_path: Path) -> None:
    lines: list[str] = []
    (tmp_path / "script").write_text("tree\nkill b0")
    for name in (str(tmp_path / "script"), os.devnull):
        descriptor = os.open(name, os.O_RDONLY)
        read_lines(lines.append, descriptor)
        os.close(descriptor)
        read_lines(lines.append, descriptor)  # closed by now
    assert lines == ["tree", "kill b0", "quit", "quit", "quit", "quit"]


def test_the_lab_shows_the_tree_of_its_brokers() -> None:
    views = {
        "b0": {
            "id": "1",
            "root": "1",
            "state": "runtime",
            "links": [{"name": "b1", "role": "designated", "up": True}],
        },
        "b1": {"id": "2", "root": "1", "state": "runtime", "links": []},
    }
    assert tree_lines(views, ["b1"]) == [
        "b0: runtime, root b0, b1:designated",
        "b1: dead or stopped",
    ]
    counts = {
        "packets": 3,
        "control_bytes": 1200,
        "data_bytes": 0,
        "loss": 1,
        "queue": 0,
        "shut": 2,
    }
    lines = link_lines({"links": {"b0>b1": counts}, "late_ms": {"p99": 0.1}})
    assert lines[0] == (
        "b0 -> b1: 3 packets, 1,200 B signalling, 0 B data; "
        "dropped 1 lost, 0 by the queue, 2 cut off"
    )
