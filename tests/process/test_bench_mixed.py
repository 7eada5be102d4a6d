"""`mqttree bench compare` with real brokers: every way to listen, a journal, and a hop."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE = 110.0
WORKS = ("mix1-tls", "mix1-ws", "mix1-journal", "hop-mix2", "paced0-1k")


@pytest.mark.long
def test_every_kind_of_mixed_load_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    words = ["compare", "--rounds", "1", "--seconds", "0.2", "--against", "", "--json", str(out)]
    command = [sys.executable, "-m", "mqttree.bench.cli", *words, "--work", *WORKS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| one hop, mix QoS 2, window 10 | messages/s |" in done.stdout
    said = json.loads(out.read_text())
    assert said["targets"]["mqttree"]["version"].startswith("mqttree ")
    assert tuple(said["works"]) == WORKS
    for name, work in said["works"].items():
        (run,) = work["targets"]["mqttree"]["runs"]
        assert run["received"] == run["sent"] > 0
        assert run["lost"] == run["duplicated"] == run["out_of_order"] == 0
        assert len(run["cpu_us"]) == (2 if name.startswith("hop") else 1)
        assert run["looked_at"] > 0
