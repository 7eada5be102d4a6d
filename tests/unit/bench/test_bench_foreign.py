"""Brokers that are not ours, as the command line describes them, and what scenarios make of
them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from mqttree.bench.lab import foreign
from mqttree.bench.lab.brokers import KINDS, Place, command
from mqttree.bench.runner import run
from mqttree.bench.scenarios import scenario
from mqttree.bench.scenarios.scenario import Scenario
from mqttree.broker.config.yaml_file import ConfigError, ConfigFile

TEMPLATE = 'listen {address}:{port}\nnode = "{name}"\nstore { path = "{dir}" }\n'


@pytest.fixture
def added(tmp_path: Path) -> Iterator[list[str]]:
    """The names of two brokers that were added, one with a template."""
    file = tmp_path / "template"
    file.write_text(TEMPLATE)
    kinds = foreign.kinds(["one=one -p {port}", "two=two -c {config}"], [f"two={file}"])
    with foreign.known(kinds):
        yield [kind.name for kind in kinds]
    assert "one" not in KINDS


def read(text: str, added: list[str], form: str = "full") -> Scenario:
    return scenario.parse(ConfigFile.parse("s.yaml", text), "s", form, added)


def test_a_command_and_its_template_are_filled_in(added: list[str], tmp_path: Path) -> None:
    place = Place("b3", "10.77.0.4", 1883, 8080, tmp_path, nullcontext)
    assert command(KINDS["two"], place, "c") == ["two", "-c", str(tmp_path / "config")]
    assert (tmp_path / "config").read_text() == (
        f'listen 10.77.0.4:1883\nnode = "b3"\nstore {{ path = "{tmp_path}/data" }}\n'
    )
    assert command(KINDS["one"], place, "c") == ["one", "-p", "1883"]
    assert KINDS["one"].missing() == "one is not installed"


@pytest.mark.parametrize(
    ("add", "config", "line"),
    [
        (["x"], [], "--add x: expected NAME=COMMAND"),
        (["a/b=x {port}"], [], "--add a/b: no broker can be called so: "),
        (["mosquitto=x {port}"], [], "--add mosquitto: there is a broker of this name already"),
        (["x=a {port}", "x=b {port}"], [], "--add x: is there twice"),
        (["x='a {port}"], [], "--add x: No closing quotation"),
        (["x=a"], [], "--add x: the command or its template needs {port}"),
        (["x=a -c {config}"], [], "--add x: {config} needs a template (--config x=FILE)"),
        (["x=a {port}"], ["y=f"], "--config y: no broker 'y' is added (--add y=COMMAND)"),
        (["x=a {config}"], ["x=/nowhere/f"], "--config x: cannot read /nowhere/f: No such file"),
        (["x=a {config}"], ["x=/usr/bin/env"], "--config x: cannot read /usr/bin/env: it is no "),
        (["x=a {port}"], ["x=/dev/null"], "--add x: the command needs {config} to use /dev/null"),
    ],
)
def test_a_bad_description_is_one_line(add: list[str], config: list[str], line: str) -> None:
    with pytest.raises(ValueError) as caught:
        foreign.kinds(add, config)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_a_broker_that_is_added_takes_part_where_mosquitto_does(added: list[str]) -> None:
    text = """
        topology: mesh5
        factors: {brokers: [1, 3], broker: [mqttree-flood, mosquitto]}
        skip: [{brokers: 3, broker: mosquitto}]
        short: {factors: {broker: [mqttree-flood]}}
    """
    assert [cell.name for cell in read(text, added).cells] == [
        "broker=mqttree-flood,brokers=1",
        "broker=mosquitto,brokers=1",
        "broker=one,brokers=1",
        "broker=two,brokers=1",
        "broker=mqttree-flood,brokers=3",
    ]
    assert len(read(text, added, "short").cells) == 4
    assert len(read(text, []).cells) == 3
    lone = read("topology: mesh5\nparameters: {broker: mosquitto}", added)
    assert [cell.main.broker for cell in lone.cells] == ["mosquitto", "one", "two"]


def test_another_command_makes_another_run(added: list[str]) -> None:
    text = "topology: mesh5\nparameters: {broker: one}"
    before = read(text, []).cells[0].fingerprint()
    kind = KINDS["one"]
    with foreign.known([]):
        KINDS["one"] = foreign.kinds(["other=one -p {port} -v"])[0]
        assert read(text, []).cells[0].fingerprint() != before
        KINDS["one"] = kind
    assert read(text, []).cells[0].fingerprint() == before


def test_setups_that_name_brokers_take_no_more(
    added: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = "topology: mesh5\nsetups: {a: {broker: mosquitto}}\nfactors: {setup: [a]}"
    with pytest.raises(ConfigError) as caught:
        read(text, added)
    assert str(caught.value).startswith("s.yaml:2: setups: the setups name the brokers: ")
    # Of many scenarios, those that take it do.
    scenarios = {each.name: each for each in run.chosen(["federator", "emq"], "short", added)}
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all(line.endswith("none can be added; it runs without them") for line in said)
    brokers = {cell.main.broker for cell in scenarios["emq-p2p"].cells}
    assert {"one", "two", "mosquitto"} <= brokers
    assert "one" not in {cell.main.broker for cell in scenarios["federator-grid"].cells}
