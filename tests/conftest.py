"""What every test may use: free ports, and Hypothesis's profiles."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from mqttree.bench.lab.ports import free_ports as pick_ports
from mqttree.broker import CORE
from tests.kit.core import leave_out_tests_that_replace_code, left_out
from tests.kit.effort import LONG, examples

# A shared machine stalls at times, so neither an example nor its making has a deadline; the limit
# of a test is pytest's.
# What fails in `make test` fails every time; `make test-long` looks for new examples.
settings.register_profile(
    "random",
    deadline=None,
    max_examples=examples(200),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("fixed", settings.get_profile("random"), derandomize=True)
# This one is for a run between two edits.
settings.register_profile("quick", settings.get_profile("fixed"), max_examples=10)
settings.load_profile("random" if LONG else "fixed")

# MQTT.js is there when node and npm were (scripts/setup mqttjs).
_MQTTJS = shutil.which("node") and [
    path.name for path in (Path(__file__).parents[1] / ".venv").glob("mqttjs-*[0-9]")
]
# scripts/setup chromium
_CHROMIUM = shutil.which("chromium")

collect_ignore = [] if _MQTTJS else ["process/test_mqttjs.py"]
if not _CHROMIUM:
    collect_ignore.append("process/test_dashboard.py")


if CORE.running != "python":
    leave_out_tests_that_replace_code()


def pytest_configure() -> None:
    """Refuse to test another core than the one that is asked for."""
    wanted = os.environ.get("MQTTREE_CORE", CORE.running)
    if wanted != CORE.running:
        pytest.exit(f"MQTTREE_CORE={wanted}, but the core is {CORE.value}: make compiled", 3)


def pytest_report_header() -> list[str]:
    """Say which core runs, and whether MQTT.js and the dashboard are tried: what is not collected
    would not be missed."""
    return [
        f"core: {CORE.running}",
        "MQTT.js: "
        f"{', '.join(_MQTTJS) if _MQTTJS else 'not there, process/test_mqttjs.py is left out'}",
        f"chromium: {_CHROMIUM or 'not there, process/test_dashboard.py is left out'}",
    ]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which tests a compiled core was not given."""
    lines = left_out(terminalreporter.getreports("skipped"))
    if lines:
        terminalreporter.section("need the core's Python, left out")
        terminalreporter.write_line("\n".join(lines))


LIMIT = 600
"""s for a test that hangs: ten times as long as the longest takes on a machine that is four times
too busy."""


BUDGET = 20_000
"""examples of all tests together that `make test` may try: a limit of seconds would depend on the
machine."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--drawn`: only tests whose examples Hypothesis draws; with `--hypothesis-profile=random`
    these are new ones each time."""
    parser.addoption(
        "--drawn", action="store_true", help="only tests with examples that Hypothesis draws"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give every test this limit; several waits, each with a limit of its own, have room in it."""
    if config.getoption("--drawn"):
        items[:] = [
            item
            for item in items
            if getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        ]
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT))
    tried = sum(examples_of(item) for item in items)
    if tried > BUDGET and not LONG:
        raise pytest.UsageError(
            f"{tried:,} examples in `make test`, more than {BUDGET:,}: mark what takes long"
        )


def examples_of(item: pytest.Item) -> int:
    """Return how many examples `make test` tries of a test: 1 if Hypothesis draws none."""
    if item.get_closest_marker("long") or item.get_closest_marker("interop"):
        return 0
    drawn = getattr(getattr(item, "obj", None), "_hypothesis_internal_use_settings", None)
    return 1 if drawn is None else int(drawn.max_examples)


@pytest.fixture
def free_port() -> int:
    """A TCP port that is free on the loopback address at this moment."""
    return pick_ports(1)[0]


@pytest.fixture
def free_ports() -> Callable[[int], list[int]]:
    """A function that gives so many different free TCP ports."""
    return pick_ports
