"""Tests that only the Python of the core can pass."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

import pytest

from mqttree.broker import CORE

REASON = "needs the core's Python: "


def needs_python(why: str) -> None:
    """Leave the test out if the core is compiled. `why`: what it does to the core's Python that
    compiled code does not let it do."""
    if CORE.running != "python":
        pytest.skip(f"{REASON}{why}")


def steps(call: Callable[[], Any]) -> int:
    """Return the lines of Python that a call runs: a cost that no busy machine changes."""
    needs_python("counts the lines that run")
    count = 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def left_out(skipped: Iterable[pytest.TestReport]) -> list[str]:
    """Return a line for each test function of `skipped` that `needs_python` left out, with how many
    of its cases that were and why."""
    found = Counter(
        (report.nodeid.partition("[")[0], report.longrepr[2].partition(REASON)[2])
        for report in skipped
        if isinstance(report.longrepr, tuple) and REASON in report.longrepr[2]
    )
    return [f"{name} ({count}): {why}" for (name, why), count in found.items()]


def _compiled(module: str | None) -> bool:
    found = sys.modules.get(module or "")
    return found is not None and str(getattr(found, "__file__", "")).endswith(".so")


def _ineffective(target: Any, name: str) -> bool:
    """Whether compiled code would go on calling what was there before."""
    if isinstance(target, str):
        module, _, name = target.rpartition(".")
        target = import_module(module)
    if isinstance(target, ModuleType):
        code = isinstance(getattr(target, name, None), type | FunctionType) or (
            type(getattr(target, name, None)).__name__ == "builtin_function_or_method"
        )
        return code and _compiled(target.__name__)
    kind = target if isinstance(target, type) else type(target)
    return any(_compiled(each.__module__) for each in kind.__mro__)


def leave_out_tests_that_replace_code() -> None:
    """Leave tests out, from now on, where they replace what compiled code calls: it would go on
    calling what was there before."""
    put = pytest.MonkeyPatch.setattr

    def checked(self: pytest.MonkeyPatch, target: Any, name: Any, *rest: Any, **named: Any) -> None:
        if _ineffective(target, name if isinstance(name, str) else ""):
            needs_python("replaces compiled code")
        put(self, target, name, *rest, **named)

    pytest.MonkeyPatch.setattr = checked  # type: ignore[method-assign]
