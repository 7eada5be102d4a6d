"""`mqttree bench list` and `run` as a user calls them: a run's folder, resuming, and failures that
are shown as what they are."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="traces need pyarrow (the extra bench)")

import pyarrow.parquet as pq

from mqttree.bench import cli
from mqttree.bench.lab import owner
from mqttree.bench.runner import one_run, run_folder
from mqttree.bench.scenarios import scenario
from mqttree.broker.config.yaml_file import ConfigFile
from tests.kit.waiting import until

PATIENCE = 90.0
SCENARIO = """
title: one broker on the loopback
topology: {brokers: 1, network: false}
parameters: {publishers: 2, subscribers: 2, qos: 1, rate: 20, seconds: SECONDS, settle: 0.1}
factors: {broker: [mqttree-flood]}
"""


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mqttree.bench.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def run_file(file: Path, out: Path) -> str:
    """Run a file of scenarios; returns what that says."""
    done = bench("run", str(file), "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def only_run(out: Path) -> dict[str, Any]:
    (path,) = out.rglob("run.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_run_is_complete_and_resuming_does_not_repeat_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "tiny.yaml", tmp_path / "out"
    file.write_text(SCENARIO.replace("SECONDS", "0.5"))
    said = run_file(file, out)
    assert "| mqttree-flood |" in said and " ok" in said
    run = only_run(out)
    assert (
        run["status"] == run_folder.COMPLETE and run["failures"] == [] and run["lab"] == "loopback"
    )
    flow = run["summary"]["flows"][""]
    assert flow["lost"] == flow["duplicates"] == flow["unaccepted"] == 0
    assert flow["delivered"] == flow["expected"] == 2 * flow["published"] == 2 * 20
    assert 0 < flow["delay_mean_ms"] < PATIENCE * 1000
    assert {path.name.split("-")[0] for path in out.rglob("*.parquet")} == {"generator", "observer"}

    assert cli.main(["run", str(file), "--out", str(out)]) == 2
    assert "has runs already" in capsys.readouterr().err
    assert cli.main(["run", str(file), "--out", str(out), "--resume"]) == 0
    said = capsys.readouterr()
    assert "1 of 1 runs are finished already" in said.err and " ok" in said.out
    assert only_run(out)["run"] == run["run"]


def test_two_processes_make_one_load_and_their_figures_are_one(tmp_path: Path) -> None:
    file, out = tmp_path / "tiny.yaml", tmp_path / "out"
    load = "topics: 2, generators: 2, ramp: 0.1, seconds: SECONDS"
    file.write_text(SCENARIO.replace("seconds: SECONDS", load).replace("SECONDS", "0.5"))
    run_file(file, out)
    run = only_run(out)
    flow = run["summary"]["flows"][""]
    assert flow["lost"] == flow["duplicates"] == 0
    assert flow["delivered"] == flow["expected"] == flow["published"] == 20
    assert len(run["summary"]["generators"]) == 2 and len(run["summary"]["subscribers"]) == 2
    assert run["measure_from_ns"] - run["load_from_ns"] == pytest.approx(1e8, abs=1e3)
    names = {path.name.rsplit("-", 1)[0] for path in out.rglob("*.parquet")}
    assert names == {"generator-0", "generator-1", "observer"}
    roles = [each["name"] for each in run["processes"]]
    assert roles == ["generator-0", "generator-1", "observer"]


def test_a_sample_of_a_run_stands_for_it_where_each_publisher_sends_little(tmp_path: Path) -> None:
    file, out = tmp_path / "few.yaml", tmp_path / "out"
    load = "publishers: 400, topics: 40, choice: random, every: 100"
    file.write_text(SCENARIO.replace("publishers: 2", load).replace("20, seconds: SECONDS", "1"))
    run_file(file, out)
    flow = only_run(out)["summary"]["flows"][""]
    kinds = [
        kind
        for path in out.rglob("generator*.parquet")
        for kind in pq.ParquetFile(path).read(["kind"])["kind"].to_pylist()
    ]
    for kind in ("published", "accepted", "delivered"):
        counted = flow[kind]
        # Three standard errors of a sample of one in a hundred.
        assert abs(kinds.count(kind) * 100 - counted) <= 3 * (100 * counted) ** 0.5, kind


@pytest.fixture
def heard() -> Iterator[None]:
    """Processes that are started here end when their terminal goes, also if who runs the tests has
    it ignored (nohup)."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize(
    "what",
    [
        "the generator is killed",
        "it is asked to end",
        "the run is killed",
        "the command is killed",
        "its terminal is gone",
    ],
)
def test_a_run_that_fails_is_reported_and_leaves_no_process(tmp_path: Path, what: str) -> None:
    file, out = tmp_path / "tiny.yaml", tmp_path / "out"
    file.write_text(SCENARIO.replace("SECONDS", "60"))
    with subprocess.Popen(
        [sys.executable, "-m", "mqttree.bench.cli", "run", str(file), "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        end = time.monotonic() + PATIENCE
        pids: dict[str, int] = {}
        while not pids and process.poll() is None and time.monotonic() < end:
            for path in out.rglob("run.json"):
                run = run_folder.read(path.parent) or {}
                pids = {each["role"]: each["pid"] for each in run.get("processes", [])}
            time.sleep(0.02)
        assert pids, "no processes"
        mark = f"{owner.MARK}={pids['observer']}-{owner.started(pids['observer'])}"
        assert marked(mark), "the broker runs"
        second = bench("run", str(file), "--out", str(out), "--resume")
        assert second.returncode == 2 and second.stdout == ""
        assert (
            second.stderr == f"mqttree bench: --out {out}: another `bench run` is at work there\n"
        )
        if what == "it is asked to end":
            process.terminate()  # unwinds like Ctrl-C, which a test runner may have switched off
        elif what in ("the command is killed", "its terminal is gone"):
            process.send_signal(
                signal.SIGKILL if what == "the command is killed" else signal.SIGHUP
            )
        else:
            os.kill(
                pids["generator" if what == "the generator is killed" else "observer"],
                signal.SIGKILL,
            )
        said = process.communicate(timeout=PATIENCE)[0]  # until the run has ended, too
    failed, killed = run_folder.FAILED, "was killed by SIGKILL"
    expected = {
        "the generator is killed": (1, f"failed: the generator {killed}", failed),
        "the run is killed": (1, f"failed: the run's process {killed}", failed),
        "it is asked to end": (130, "interrupted", run_folder.INTERRUPTED),
        "the command is killed": (-signal.SIGKILL, "", run_folder.INTERRUPTED),
        "its terminal is gone": (-signal.SIGHUP, "", run_folder.INTERRUPTED),
    }
    code, line, status = expected[what]
    assert process.returncode == code, said
    assert line in said and only_run(out)["status"] == status
    until(lambda: not marked(mark), "brokers end", PATIENCE)


def test_a_generator_that_cannot_write_its_trace_says_so(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("")
    cell = scenario.parse(ConfigFile.parse("s.yaml", "topology: local"), "s").cells[0]
    lab: Any = SimpleNamespace(let_go=lambda: None)
    for meanwhile in (True, False):
        generator = one_run.Generator(
            lab, cell, [], tmp_path / "trace", {"run": "r", "scenario": "s"}, []
        )
        asyncio.run(generator.hear("ready", PATIENCE))
        if meanwhile:
            generator.say(None)
            with pytest.raises(
                one_run.RunError, match=r"^generator-0: the trace cannot be written: "
            ):
                asyncio.run(generator.hear("done", PATIENCE))
            assert generator.end() == "", "it was said"
        else:
            assert generator.end().startswith("generator-0: the trace cannot be written: ")


def marked(mark: str) -> list[str]:
    """Processes of a lab that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark.encode() in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
    return found


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["run", "moon"], "mqttree bench: unknown scenario 'moon': one of "),
        (["run", "hetero", "--only", "cpu"], "mqttree bench: --only cpu: expected FACTOR=VALUE"),
        (
            ["run", "./nothing.yaml"],
            "mqttree bench: cannot read nothing.yaml: No such file or directory",
        ),
        (
            ["run", "hetero", "--add", "mine=broker"],
            "mqttree bench: --add mine: the command or its template needs {port}",
        ),
        (["lab", "--add", "mine=broker"], "mqttree bench: --add mine: the command or "),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith(line) and said.count("\n") == 1


def test_namespaces_without_root_are_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert cli.main(["run", "overlays-text", "--short", "--lab", "namespaces"]) == 2
    assert capsys.readouterr().err == "mqttree bench: --lab namespaces: needs root\n"


def test_list_names_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    said = capsys.readouterr()
    assert "overlays-convergence" in said.out and said.err == ""
