"""The grid of Spohn's paper as a scenario, with real Mosquittos and federators or gateways:
messages are counted on the wire, and faults hit one process of a host."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="traces need pyarrow (the extra bench)")

from mqttree.bench import cli
from mqttree.bench.lab.launcher import search_path
from mqttree.bench.lab.namespaces import unsupported

pytestmark = pytest.mark.skipif(
    shutil.which("mosquitto", path=search_path()) is None, reason="mosquitto is not installed"
)


NO_NAMESPACES = unsupported()


def run(out: Path, scenario: str, *only: str) -> dict[str, Any]:
    """Run one cell of the shortened form; return its run.json."""
    words = [word for each in only for word in ("--only", each)]
    assert cli.main(["run", scenario, "--short", "--out", str(out), *words]) == 0
    (path,) = out.rglob("run.json")
    found: dict[str, Any] = json.loads(path.read_text())
    assert found["status"] == "complete" and found["failures"] == [], found["failures"]
    return found


@pytest.mark.long
def test_the_grid_has_the_papers_mesh_and_as_many_messages_as_it_takes(tmp_path: Path) -> None:
    found = run(tmp_path, "federator-grid", "setup=federators", "qos=2")
    federators = found["summary"]["federators"]
    # Where a process waits long for a core, a copy that is late takes another way, and what is not
    # announced in time is no member any more. Exact counts of all rounds are in the unit tests, on
    # a clock of their own; here some of them have to be as the paper says.
    assert "16" in federators["rounds"]["core_ann"]
    assert "7" in federators["rounds"]["memb_ann"]
    assert "10" in federators["publications"], found["findings"]
    flow = found["summary"]["flows"][""]
    assert flow["duplicates"] == 0 and flow["delivered"] > 0
    assert flow["delivered"] + flow["lost"] == 80
    near, far = (found["summary"]["subscribers"][f"s-sub-{n}"] for n in (1, 0))
    assert far["delay_mean_ms"] > near["delay_mean_ms"] > 5
    assert found["summary"]["convergence_s"] >= 0


@pytest.mark.long
def test_a_federator_that_restarts_loses_though_its_broker_stays(tmp_path: Path) -> None:
    found = run(tmp_path, "federator-faults", "fault=publisher-federator", "redundancy=2")
    flow = found["summary"]["flows"][""]
    assert flow["published"] == flow["accepted"] == 100, "the publisher's broker was always there"
    assert found["summary"]["interruptions"] == 0
    # 20 were published before, whose numbers the second life uses again, for three subscribers.
    assert flow["lost"] >= 3 * 20 and flow["delivered"] > 0
    assert max(each["outage_s"] for each in found["summary"]["subscribers"].values()) > 1


@pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES or "they work")
def test_gateways_take_the_place_of_federators(tmp_path: Path) -> None:
    found = run(tmp_path, "federator-grid", "setup=gateways", "qos=2")
    flow = found["summary"]["flows"][""]
    assert flow["lost"] == flow["duplicates"] == 0 and flow["delivered"] == 80
    # Which subscriber is farther depends on the tree: a grid has many of one cost.
    assert all(each["delay_mean_ms"] > 5 for each in found["summary"]["subscribers"].values())
