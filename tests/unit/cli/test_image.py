"""The container image is built of what its context has."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_all_that_the_image_copies_is_in_its_context() -> None:
    lines = re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text())
    copied = {name for line in lines for name in line.split()}
    allowed = re.findall(r"(?m)^!(\S+)$", (ROOT / ".dockerignore").read_text())
    assert copied == set(allowed)
    assert all((ROOT / name).exists() for name in copied)
