"""A placed workload on real brokers: what they count is what the model says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="traces need pyarrow (the extra bench)")

from mqttree.bench import cli
from mqttree.bench.load.cpu import cores
from mqttree.bench.placement import scaling
from mqttree.bench.workloads import simulator
from mqttree.bench.workloads.named import named

SCENARIO = """
topology: local
parameters:
  {workload: social-100, brokers: 2, rate: 0.5, seconds: 2, settle: 0.5, apart: true, every: 100}
factors:
  broker: [mqttree-topic, mqttree-interest]
  strategy: [random, load]
"""


@pytest.mark.long
@pytest.mark.timeout(180)
def test_two_brokers_carry_between_them_what_the_model_says(tmp_path: Path) -> None:
    file, out = tmp_path / "two.yaml", tmp_path / "out"
    file.write_text(SCENARIO)
    assert cli.main(["run", str(file), "--out", str(out), "--in-turn"]) == 0
    records: list[Any] = [json.loads(path.read_text()) for path in out.rglob("run.json")]
    runs = scaling.runs(records)
    assert len(runs) == 4
    for run in runs:
        row = simulator.place(named("social-100", 1), 2, run.strategy).row()
        assert run.figures["lost"] == 0 and run.figures["sessions"] == row["sessions"]
        assert run.internal_error == 0, "with two brokers no message passes through a third one"
        assert all(0 < load < 2 for load in run.loads)
    for record in records:
        of = record["cores"]
        assert not set(of["brokers"]) & set(of["generator"]) or len(cores()) == 1
        traffic = record["summary"]["traffic"]
        assert traffic["rounds"] == 1
        for name, each in traffic["model"].items():
            assert {kind: traffic["brokers"][name][kind] for kind in each} == each
