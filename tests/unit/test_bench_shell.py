"""What may be typed into `mqttree bench lab`."""

from __future__ import annotations

import pytest

from bench.netlab import topology
from bench.scenario import Fault
from bench.shell import link_lines, parse, tree_lines

MESH = topology.load("mesh3")


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("kill root", Fault(0.0, "kill", broker="root")),
        ("resume b1", Fault(0.0, "resume", broker="b1")),
        ("cut b0 b1", Fault(0.0, "cut", links=(("b0", "b1"),))),
        ("heal", Fault(0.0, "heal", links=(("b0", "b1"), ("b0", "b2"), ("b1", "b2")))),
        ("slow b0 all delay_ms=30 loss=0.1", Fault(0.0, "slow", links=(("b0", "all"),), wire={"delay_ms": 30.0, "loss": 0.1})),
        ("partition b0 b1,b2", Fault(0.0, "partition", groups=(("b0",), ("b1", "b2")))),
        ("tree", "tree"),
        ("quit", "quit"),
    ],
)
def test_words(line: str, fault: Fault | str) -> None:
    assert parse(line, MESH) == fault


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("explode b0", "unknown word 'explode': one of kill, "),
        ("kill", "kill takes one of b0, "),
        ("kill b9", "kill takes one of b0, "),
        ("cut b0 b9", "cut takes all, or two of b0, b1, b2"),
        ("cut b0 b1 loss=0.5", "cut takes no loss"),
        ("slow b0 b1", "slow needs any of delay_ms, "),
        ("slow b0 b1 delay_ms=x", "delay_ms must be a number, not 'x'"),
        ("slow b0 b1 loss=2", "loss must be 0 to less than 1"),
        ("partition b0", "partition takes two groups or more"),
        ("partition b0 b8", "unknown host 'b8': one of b0, b1, b2"),
        ("kill 'b0", "No closing quotation"),
    ],
)
def test_one_clear_line(line: str, reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(line, MESH)
    assert str(caught.value).startswith(reason)


def test_what_is_shown() -> None:
    views = {
        "b0": {"id": "1", "root": "1", "state": "runtime", "links": [{"name": "b1", "role": "designated", "up": True}]},
        "b1": {"id": "2", "root": "1", "state": "runtime", "links": []},
    }
    assert tree_lines(views, ["b1"]) == ["b0: runtime, root b0, b1:designated", "b1: dead or stopped"]
    counts = {"packets": 3, "control_bytes": 1200, "data_bytes": 0, "loss": 1, "queue": 0, "shut": 2}
    lines = link_lines({"links": {"b0>b1": counts}, "late_ms": {"p99": 0.1}})
    assert lines[0] == "b0 -> b1: 3 packets, 1,200 B signalling, 0 B data; dropped 1 lost, 0 by the queue, 2 cut off"
