"""The version of mqttree: the one place, from which `pyproject.toml` takes it."""

from __future__ import annotations

VERSION = "0.1.0"
