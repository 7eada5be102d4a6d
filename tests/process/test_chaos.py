"""tests.chaos in short: the script itself must not rot, and a little chaos breaks no promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FLAGS = {"--minutes": "0.15", "--brokers": "3", "--clients": "10", "--faults": "3", "--seed": "1"}


def test_three_faults_break_no_promise() -> None:
    flags = [word for flag in FLAGS.items() for word in flag]
    command = [sys.executable, "-m", "tests.chaos", *flags, "--kinds", "kill", "cut", "stop"]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all promises kept" in done.stdout
    assert "Traceback" not in done.stderr
