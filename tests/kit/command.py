"""The command `mqttree` as users run it."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.kit.waiting import PATIENCE

CLI = [sys.executable, "-m", "mqttree.broker.cli"]


def surroundings(**extra: str) -> dict[str, str]:
    """Return the environment without variables of mqttree, and with `extra`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MQTTREE_")}
    return kept | {"PYTHONIOENCODING": "utf-8"} | extra


def mqttree(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        [*CLI, *words],
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
        env=surroundings(**environment),
        check=False,
    )
