"""Waiting for what has to come true. Nothing sleeps for luck."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 60.0
"""s; until a condition that has not come true fails the test. Far more than ever needed, as the
machine may be busy."""


def until(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Poll until `condition` gives something true, and return that."""
    end = time.monotonic() + patience
    while True:
        if result := condition():
            return result
        assert time.monotonic() < end, f"in vain: {what}"
        time.sleep(0.01)


async def eventually(condition: Callable[[], Any], what: str | Callable[[], Any]) -> None:
    """Poll until `condition` gives something true, in a loop that goes on; `what`: what was waited
    for, or a function that says so."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what if isinstance(what, str) else what()
        await asyncio.sleep(0.005)
