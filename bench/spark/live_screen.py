"""The live view on a terminal, as a table that refreshes, or as lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TextIO

from mqttree.bench.spark.live import Watch
from mqttree.bench.spark.live_view import HEAD

SHOWN = 20
"""Windows in the view of a terminal, the latest ones."""


def lines(out: TextIO) -> Callable[[Watch, bool], None]:
    """Return what prints to `out` each window once, when it changes no more, and each damaged file
    once."""
    said = 0
    print("  ".join(HEAD), file=out, flush=True)

    def refresh(watch: Watch, over: bool) -> None:
        nonlocal said
        for path in watch.damaged[said:]:
            print(f"{path} is damaged and left out", file=out, flush=True)
        said = len(watch.damaged)
        for cells in watch.view.settled(time.monotonic(), over):
            print("  ".join(cells), file=out, flush=True)

    return refresh


def table(watch: Watch) -> Any:
    """Return the view of a terminal: the latest windows, and how many files are damaged."""
    from rich.table import Table

    caption = f"{len(watch.damaged)} damaged files are left out" if watch.damaged else None
    found = Table(*HEAD, caption=caption, box=None)
    for _, _, cells in watch.view.rows()[-SHOWN:]:
        found.add_row(*cells)
    return found


def view(out: TextIO, stack: ExitStack) -> Callable[[Watch, bool], None]:
    """Return what shows `out` what is known: a table that refreshes where it is a terminal (until
    `stack` is closed), else lines."""
    if not out.isatty():
        return lines(out)
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        return lines(out)
    shown = stack.enter_context(Live(console=Console(file=out), auto_refresh=False))

    def refresh(watch: Watch, _over: bool) -> None:
        shown.update(table(watch), refresh=True)

    return refresh
