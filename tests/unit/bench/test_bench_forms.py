"""Kinds of brokers with options of their own, the forms of scenarios, and CPU clocks."""

from __future__ import annotations

import argparse
import os
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from mqttree.bench.lab.brokers import KINDS, Place, command
from mqttree.bench.load.cpu import process_time
from mqttree.bench.runner import run
from mqttree.broker.config.options import read_settings
from mqttree.broker.config.yaml_file import ConfigFile


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("mqttree-ort-balance", {"overlay_policy": "balance"}),
        ("mqttree-ort-paper", {"timers": "paper", "hello": 10.0, "link_timeout": 39.6}),
        ("mqttree-flood-paper", {"timers": "paper", "discovery_time": 9.5}),
        ("mqttree-ort", {"overlay_policy": "capability", "timers": "default"}),
    ],
)
def test_a_kind_of_broker_is_started_with_its_options(
    kind: str, settings: dict[str, object], tmp_path: Path
) -> None:
    place = Place("b0", "127.0.0.1", 1, 2, tmp_path, nullcontext)
    words = command(KINDS[kind], place, "c")
    assert words[words.index("--routing") + 1] == KINDS[kind].routing
    flags: dict[str, object] = {}
    if "--config" in words:
        flags["config"] = ConfigFile.read(words[words.index("--config") + 1])
    found = read_settings(flags, {}, str)
    assert {name: getattr(found, name) for name in settings} == settings


def test_one_form_of_scenarios_is_asked_for_at_a_time() -> None:
    forms = [
        run.form_of(argparse.Namespace(short=short, medium=medium))
        for short, medium in ((False, False), (True, False), (False, True))
    ]
    assert forms == ["full", "short", "medium"]
    assert run.form_of(argparse.Namespace(short=True, medium=False)) == "short"
    with pytest.raises(ValueError, match="one of them"):
        run.form_of(argparse.Namespace(short=True, medium=True))


def test_durations_are_hours_and_minutes_rounded_up() -> None:
    assert [run.clock(seconds) for seconds in (0, 1, 60, 61, 7200)] == [
        "0:00",
        "0:01",
        "0:01",
        "0:02",
        "2:00",
    ]


def test_a_process_is_measured_finer_than_by_ticks() -> None:
    before, own = process_time(os.getpid()), time.process_time()
    spent = 0
    while time.process_time() - own < 0.002:
        spent += 1
    assert 0.002 <= process_time(os.getpid()) - before < 10 and spent
    with pytest.raises(OSError, match=r"."):
        process_time(2**22 + 5)
