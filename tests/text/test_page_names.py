"""What the pages name exists: flags, variables, metrics, counters, options, JSON fields, paths."""

from __future__ import annotations

import re
from argparse import ArgumentParser, _SubParsersAction
from dataclasses import fields
from itertools import chain

import pytest
from amqtt.contexts import BrokerConfig, ListenerConfig

from mqttree.bench.placement.command import _parser as placement_parser
from mqttree.bench.trace import schema
from mqttree.broker.cli.main import make_parser
from mqttree.broker.cluster.state_view import federation_state
from mqttree.broker.config import listener_options, mqtt_options
from mqttree.broker.config.options import ACCESS, OPTIONS, TlsSettings
from mqttree.broker.config.routing_modes import ROUTINGS
from mqttree.broker.io.api.routes import PREFIX, ROUTES
from mqttree.broker.io.metric_help import COUNTER_HELP, GAUGE_HELP, LEG_HELP, REASON_HELP
from tests.kit.link_harness import lone
from tests.text.test_architecture import ROOT, files, read

GUIDES = [
    name
    for name in files()
    if re.fullmatch(r"README\.md|docs/promises\.md|docs/(guides|reference)/[\w-]+\.md", name)
]
USERS = [name for name in GUIDES if not re.search(r"benchmarks|traces|link-protocol|driver", name)]

LIVE = {"--brokers", "--port", "--cluster"}
"""Flags of `mqttree live`, which has a parser of its own."""
NO_OPTIONS = {"MQTTREE_CONFIG", "MQTTREE_COMPILE", "MQTTREE_OPTIMISE", "MQTTREE_CORE"}
"""Variables that are read without the command line: by the build, or before anything else."""
NOT_OURS = {"--build", "--build-arg", "--force-reinstall", "--no-deps"}
NOT_OURS |= {"--rm", "--user", "--entrypoint", "--hostname", "--signal", "--health-cmd"}
NOT_OURS |= {"--detach", "--volumes", "--from-file", "--now", "--full", "--force"}
"""Flags of other programs that the pages call."""


def flags(parser: ArgumentParser) -> set[str]:
    found = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            found |= set(chain.from_iterable(flags(each) for each in action.choices.values()))
    return found


@pytest.mark.parametrize("page", USERS)
def test_flags_on_pages_exist(page: str) -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", read(page)))
    known = flags(make_parser()) | flags(placement_parser())
    assert named - known - LIVE - NOT_OURS == set()


@pytest.mark.parametrize("page", GUIDES)
def test_environment_variables_on_pages_exist(page: str) -> None:
    known = {f"MQTTREE_{name.upper()}" for name, option in OPTIONS.items() if option.flag}
    named = set(re.findall(r"MQTTREE_[A-Z_]+", read(page)))
    assert named - known - NO_OPTIONS == set()


@pytest.mark.parametrize("page", GUIDES)
def test_metrics_on_pages_exist(page: str) -> None:
    known = {f"mqttree_{name}" for name in GAUGE_HELP}
    known |= {f"mqttree_{name}_total" for name in (*COUNTER_HELP, *REASON_HELP)}
    known |= {f"mqttree_leg_{name}_total" for name in LEG_HELP}
    named = set(re.findall(r"(?<![\w.])mqttree_[a-z_]+", read(page)))
    assert named - known - {"mqttree_"} == set()


@pytest.mark.parametrize("page", GUIDES)
def test_paths_of_the_admin_port_on_pages_exist(page: str) -> None:
    known = {"/healthz", "/readyz", "/metrics", "/api/v1"}
    known |= {PREFIX + re.sub("{.*}", "NAME", route.path) for route in ROUTES}
    named = re.findall(r"`(?:GET |POST |DELETE )?(/[a-zA-Z0-9/]+)`", read(page))
    named = [re.sub("/[A-Z]+", "/NAME", path) for path in named]
    assert {path for path in named if path.startswith(("/api", "/health", "/ready"))} <= known


def known_words() -> set[str]:
    """Words with an underscore that mean something: options, counters, fields of JSON."""
    state = {
        key: value
        for mode in ROUTINGS
        for key, value in federation_state(lone(routing=mode).node.cluster).items()
    }
    words = set(OPTIONS) | set(mqtt_options.OPTIONS) | set(listener_options.OPTIONS) | set(ACCESS)
    words |= {field.name for kind in (BrokerConfig, ListenerConfig) for field in fields(kind)}
    words |= set(TlsSettings.FIELDS) | set(COUNTER_HELP) | set(GAUGE_HELP)
    parts = [part for part in state.values() if isinstance(part, dict)]
    words |= set(state) | {key for part in parts for key in part} | {"max_qos"}
    legs = (
        "broker/io/leg_report.py",
        "broker/leg/relay.py",
        "broker/leg/crossing.py",
        "broker/leg/retained_exchange.py",
    )
    placed = (
        "broker/io/api/topics.py",
        "broker/cluster/gone_brokers.py",
        "placement/question.py",
        "placement/controller.py",
        "broker/cluster/placement/decider.py",
    )
    told = (
        "broker/io/admin_http.py",
        "broker/cluster/state_view.py",
        "broker/persistence/stream.py",
    )
    for name in (*told, *legs, *placed):
        words |= set(re.findall(r'"([a-z]+_[a-z_]+)":', read(name)))
    for name in ("bench/workloads/workload_file.py", "bench/workloads/simulator.py"):
        words |= set(re.findall(r'"([a-z]+_[a-z_]+)"', read(name)))
    return words | {column.name for column in schema.SCHEMA}


@pytest.mark.parametrize("page", USERS)
def test_words_with_an_underscore_on_pages_exist(page: str) -> None:
    """Of the page for Mosquitto's users the first column of tables is Mosquitto's."""
    text = re.sub(r"(?m)^\| .*? \|(?= .*mqtt| `| none| always)", "|", read(page))
    named = set(re.findall(r"`(?!mqttree_)([a-z]+(?:_[a-z0-9]+)+)(?::[^`]*)?`", text))
    python = {"remote_address", "enhanced_auth", "restart_timeout", "mosquitto_passwd"}
    assert named - known_words() - python == set()


def test_every_key_of_the_state_is_on_its_page() -> None:
    code = read("broker/cluster/state_view.py") + read("broker/io/admin_http.py")
    keys = set(re.findall(r'^\s+"([a-z_]+)": ', code, re.M))
    assert len(keys) > 30
    assert keys - set(re.findall(r"`([a-z_]+)`", read("docs/reference/http.md"))) == set()


def test_there_are_pages() -> None:
    assert len(USERS) > 10
    assert (ROOT / "docs" / "README.md").exists()
