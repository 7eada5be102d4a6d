"""A broker that is not ours beside others in a scenario: started by a command and a template, and
left out where there is none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="traces need pyarrow (the extra bench)")

from mqttree.bench import cli
from mqttree.bench.lab.launcher import search_path

MOSQUITTO = shutil.which("mosquitto", path=search_path())
SCENARIO = """
title: brokers on the loopback
topology: {brokers: 1, network: false}
parameters: {publishers: 2, subscribers: 2, qos: 1, rate: 20, seconds: 0.5, settle: 0.1}
factors: {rate: [20, 40], broker: [mosquitto]}
"""
TEMPLATE = """
listener {port} {address}
allow_anonymous true
persistence true
persistence_location {dir}/
log_dest stderr
log_type error
"""


def runs(out: Path) -> dict[tuple[str, float], dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in out.rglob("run.json")]
    return {(each["broker"], each["cell"]["rate"]): each for each in found}


@pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")
def test_a_mosquitto_of_another_name_runs_and_a_missing_one_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, template, out = tmp_path / "few.yaml", tmp_path / "template", tmp_path / "out"
    file.write_text(SCENARIO)
    template.write_text(TEMPLATE)
    words = ["--add", f"mine={MOSQUITTO} -c {{config}}", "--config", f"mine={template}"]
    words += ["--add", f"gone={tmp_path}/nobroker {{port}}", "--out", str(out)]
    assert cli.main(["run", str(file), *words]) == 0
    said = capsys.readouterr().out.splitlines()
    (line,) = [line for line in said if "is not available (" in line]
    assert line == (f"few: gone is not available (2 runs): {tmp_path}/nobroker is not installed")
    found = runs(out)
    assert len(found) == 6
    for (broker, rate), run in found.items():
        assert run["status"] == ("not available" if broker == "gone" else "complete")
        if broker != "gone":
            flow = run["summary"]["flows"][""]
            assert flow["delivered"] == flow["expected"] == 2 * rate, "of two publishers each"
            assert flow["lost"] == 0
    mine = found["mine", 20]
    assert mine["broker_command"] == f"{MOSQUITTO} -c {{config}}"
    assert mine["broker_config"] == TEMPLATE

    # Only what is not there is tried again, and a broker with another file is another one.
    assert cli.main(["run", str(file), *words, "--resume"]) == 0
    assert "4 of 6 runs are finished already" in capsys.readouterr().err
    template.write_text(TEMPLATE + "max_queued_messages 0\n")
    assert cli.main(["run", str(file), *words, "--resume", "--only", "broker=mine"]) == 0
    assert "finished already" not in capsys.readouterr().err
