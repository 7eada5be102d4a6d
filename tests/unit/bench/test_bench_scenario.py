"""Scenario files: what they may say, one clear line for what they may not, and who publishes what
where."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.bench.lab.brokers import KINDS
from mqttree.bench.runner import run
from mqttree.bench.scenarios import scenario
from mqttree.bench.scenarios.scenario import Cell, Scenario, parse
from mqttree.bench.scenarios.workload import ClientSpec, clients, matches
from mqttree.broker.config.yaml_file import ConfigError, ConfigFile


def read(text: str, form: str = "full") -> Scenario:
    return parse(ConfigFile.parse("s.yaml", text), "s", form)


@pytest.mark.parametrize("form", scenario.FORMS)
@pytest.mark.parametrize("name", scenario.shipped())
def test_shipped_scenarios_are_valid(name: str, form: str) -> None:
    loaded = scenario.load(name, form)
    assert loaded.cells and len({cell.name for cell in loaded.cells}) == len(loaded.cells)
    for cell in loaded.cells:
        many = KINDS[cell.main.broker].many and not cell.main.at
        on = cell.topology.brokers if many else [cell.main.at or cell.topology.brokers[0]]
        specs = clients(cell, on, (), 1)
        assert len({spec.name for spec in specs}) == len(specs)
        assert {spec.broker for spec in specs} <= set(on)
        # The timers of the paper need a minute, whatever the form.
        assert form != "short" or cell.duration() <= 20 or name == "overlays-timers"


def test_all_papers_in_the_middle_form_take_two_hours_at_most() -> None:
    loaded = [scenario.load(name, "medium") for name in scenario.shipped()]
    assert sum(run.duration(each) for each in loaded if each.paper) <= 2 * 3600
    least = {
        name: min(cell.duration() for cell in scenario.load(name, "medium").cells)
        for name in scenario.shipped()
        if name.startswith(("overlays-text", "overlays-res", "mqttst-t", "mqttst-n", "hetero"))
    }
    assert all(seconds >= 20 for seconds in least.values()), least


def test_cells_may_be_repeated_more_often_than_others() -> None:
    text = """
        topology: mesh5
        factors: {locality: [0, 50], qos: [0, 1]}
        repetitions: 2
        repeat: [{locality: 50, qos: 1, times: 10}, {locality: 50, times: 3}]
        medium: {repeat: []}
        short: {repetitions: 1}
    """
    found = read(text)
    assert [found.times(cell) for cell in found.cells] == [2, 2, 3, 10] and found.runs == 17
    assert read(text, "medium").runs == 8 and read(text, "short").runs == 15


def test_a_scenario_has_factors_flows_and_a_short_form() -> None:
    text = """
        topology: mesh5
        parameters: {rate: 2, publishers: 3, seconds: 60}
        flows: {small: {payload: 10}, large: {payload: 1000, publishers: 1}}
        factors: {mix: [small, small+large], qos: [0, 1], delay_ms: [3]}
        skip: [{mix: small, qos: 1}]
        short: {parameters: {seconds: 1}, factors: {qos: [0]}, flows: {large: {payload: 100}}}
    """
    full, short = read(text), read(text, "short")
    assert [cell.name for cell in full.cells] == [
        "delay_ms=3,mix=small,qos=0",
        "delay_ms=3,mix=small+large,qos=0",
        "delay_ms=3,mix=small+large,qos=1",
    ]
    assert list(full.cells[0].flows) == ["small"] and full.cells[0].topology.default is not None
    assert full.cells[0].topology.default.delay_ms == 3
    assert [cell.flows["large"].payload for cell in full.cells[1:]] == [1000, 1000]
    assert len(short.cells) == 2 and short.cells[1].flows["large"].payload == 100
    assert short.cells[0].duration() == 1 and full.cells[0].duration() == 60
    assert len({cell.fingerprint() for cell in (*full.cells, *short.cells)}) == 5
    assert full.cells[0].fingerprint() == read(text).cells[0].fingerprint()


def test_faults_are_planned_for_each_cell() -> None:
    loaded = read("""
        topology: mesh5
        factors: {fault: [none, crash]}
        faults:
          none: []
          crash:
          - {at: 1, do: kill, broker: root, for: 9}
          - {at: 2, do: slow, link: [b0, all], delay_ms: 9}
    """)
    none, crash = loaded.cells
    assert not none.faults and none.duration() == 5
    kill, slow = crash.faults
    assert (kill.do, kill.broker, kill.links, slow.do, slow.links) == (
        "kill",
        "root",
        (),
        "slow",
        (("b0", "all"),),
    )
    assert crash.duration() == 12


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("title: x", "s.yaml: topology: is missing: one of "),
        (
            f"topology: mesh5\nfactors: {{fault: [{'x' * 300}]}}\nfaults: {{{'x' * 300}: []}}",
            "s.yaml:2: factors: a run's ",
        ),
        (
            "topology: {brokers: 1}\nfaults: [{at: 1, do: cut}]",
            "s.yaml:2: faults: there is only one host, and no link",
        ),
        ("topology: moon", "s.yaml:1: topology: unknown topology 'moon': one of "),
        ("topology: {brokers: 0}", "s.yaml:1: topology.brokers: must be 1 to 50"),
        (
            "topology: local\nfaults: [{at: 1, do: cut}]",
            "s.yaml:2: faults: without a network (topology) no link can be cut",
        ),
        (
            "topology: local\nfaults: [{at: 1, do: kill, broker: b0}]\nfactors: {fault: [crash]}",
            "s.yaml:3: factors.fault: unknown plan 'crash': one of none, as there are no named",
        ),
        (
            "topology: local\nparameters: {workload: /dev/null}",
            "s.yaml:2: parameters.workload: /dev/null: no JSON",
        ),
        (
            "topology: mesh5\nflows: {a: {}}\nshort: {flows: {b: {}}}",
            "s.yaml:3: short.flows.b: unknown flow 'b': one of a",
        ),
        (
            "topology: mesh5\nparameters: {rate: 1}\nshort: {parameters: {rat: 1}}",
            "s.yaml:3: short.parameters.rat: unknown ",
        ),
    ],
)
@pytest.mark.parametrize("form", scenario.FORMS)
def test_a_bad_scenario_is_refused_in_one_line(text: str, line: str, form: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text, form)
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("factors: {rate: [10, 10.0]}", "factors.rate: 10 and 10.0 would have the same "),
        (
            "factors: {setup: [one]}",
            "factors.setup: unknown setup 'one': one of none, as there are no setups",
        ),
        (
            "faults: [{at: 1, do: kill, broker: b0, process: federator}]",
            "faults: mqttree-flood has no process 'federator'",
        ),
        (
            "parameters: {broker: mosquitto-federators, choice: all}",
            "parameters: federators know neither wildcards nor shared subscriptions",
        ),
        ("factors: {fault: [{a: 1}]}\nfaults: {a: []}", "factors.fault: must be names of plans"),
        ("faults: [{at: 1, do: partition, groups: [[b0, b1], [b1]]}]", "faults: b1 is in two "),
        ("faults: [{at: 1, do: partition, groups: [[b0], []]}]", "faults: a group is empty"),
        (
            "faults: [{at: 1, do: cut, link: [b0, b0]}]",
            "faults: there is no link from b0 to itself",
        ),
        ("show: [lost, luck]", "show: unknown figure 'luck': one of delay_mean_ms, "),
        ("faktors: {}", "faktors: unknown key; known are title, "),
        ("paper: Times", "paper: must be one of MQTT-ST, Overlays, Hetero, EMQ"),
        ("parameters: {rat: 1}", "parameters.rat: unknown parameter; known are broker, "),
        ("parameters: {qos: 3}", "parameters: qos must be 0 to 2, not 3"),
        ("parameters: {share: true}", "parameters: share needs version 5"),
        ("parameters: {broker: hive}", "parameters: broker must be one of mqttree-flood, "),
        ("factors: {qos: 1}", "factors.qos: must be a list"),
        ("factors: {qos: []}", "factors.qos: is empty"),
        (
            "factors: {locality: [30]}",
            "factors: locality must be one of even, 0, 50, 100, not '30'",
        ),
        ("parameters: {at: b9}", "parameters.at: unknown host 'b9': one of b0, "),
        ("repeat: [{qos: 1}]", "repeat: expected {FACTOR: VALUE, times"),
        ("faults: [{do: kill}]", "faults: at must be 0 to 86,400 seconds, not None"),
        ("faults: [{at: 1, do: bomb}]", "faults: do must be one of kill, "),
        ("faults: [{at: 1, do: slow}]", "faults: slow needs any of delay_ms, "),
        ("faults: [{at: 1, do: cut, link: b1}]", "faults: link must be all or two of b0, "),
        ("faults: {a: []}", "faults: named plans of faults need the factor fault"),
        ("phases: [{until: 1, name: y}, {until: 2, name: y}]", "phases: 'y' is there twice"),
        ("phases: [{until: 1, name: boot}]", "phases: boot is what comes before all of them"),
        ("phases: [{until: .inf, name: y}]", "phases: until must be 0 to 86,400 seconds, not inf"),
        ("short: {title: x}", "short.title: cannot be shortened; "),
        ("short: {flows: {a: 1}}", "short.flows.a: unknown flow 'a': one of none, "),
        ("factors: {qos: [0]}\nskip: [{qos: 0}]", "factors: no combination is left"),
    ],
)
@pytest.mark.parametrize("form", scenario.FORMS)
def test_a_bad_entry_is_refused_in_one_line(entry: str, reason: str, form: str) -> None:
    text, line = f"topology: mesh5\n{entry}", f"s.yaml:2: {reason}"
    test_a_bad_scenario_is_refused_in_one_line(text, line, form)


WHOLE: dict[str, Any] = {
    "title": "t",
    "paper": "EMQ",
    "parameters": {"rate": 1, "locality": 50},
    "flows": {"a": {"qos": 1}, "b": {}},
    "repetitions": 2,
    "repeat": [{"mix": "a", "times": 3}],
    "medium": {"parameters": {"rate": 3}, "repeat": []},
    "topology": {
        "brokers": ["x", "y"],
        "sites": ["w"],
        "network": True,
        "default": {"delay_ms": 3},
        "tree": [["y", "x"]],
        "links": [{"between": ["x", "y"], "loss": 0.1}],
    },
    "factors": {"mix": ["a", "a+b"], "fault": ["f", "g"], "delay_ms": [1, 2.5]},
    "skip": [{"mix": "a", "fault": "g"}],
    "faults": {
        "f": [
            {"at": 1, "do": "cut", "link": ["x", "y"], "for": 1},
            {"at": 2, "do": "kill", "broker": "root"},
        ],
        "g": [
            {"at": 1, "do": "partition", "groups": [["x"], ["y"]]},
            {"at": 3, "do": "slow", "link": "all", "delay_ms": 3},
        ],
    },
    "phases": [{"name": "p", "until": 3}],
    "figure": {"id": "i"},
    "asked": ["lost"],
    "show": ["lost"],
    "short": {
        "parameters": {"rate": 2},
        "flows": {"a": {"qos": 0}},
        "factors": {"delay_ms": [1]},
        "repetitions": 1,
        "phases": [],
    },
}
NUMBERS = st.sampled_from([-1, 0, 1, 2.5, 10**15, 10**400, math.inf, math.nan, -math.inf, True])
JUNK = st.recursive(
    st.none() | NUMBERS | st.sampled_from(["", "x", "all", "root", "fault", "f"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["a", "x", "do", "at", 3]), inner, max_size=2)
    ),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of nested mappings and lists."""
    for key, inner in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield (*path, key)
        yield from places(inner, (*path, key))


@given(st.sampled_from(list(places(WHOLE))), JUNK, st.sampled_from(scenario.FORMS))
def test_junk_anywhere_is_one_line(path: tuple[Any, ...], junk: Any, form: str) -> None:
    data = copy.deepcopy(WHOLE)
    inner: Any = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = junk
    try:
        found = parse(ConfigFile("s.yaml", data, {}), "s", form)
    except ConfigError as error:
        assert str(error).startswith("s.yaml: ") and "\n" not in str(error)
        return
    for cell in found.cells:
        assert math.isfinite(cell.duration()) and cell.fingerprint() and cell.name


def cell(text: str) -> Cell:
    return read(text).cells[0]


def hosts(specs: list[ClientSpec], publishing: bool) -> Counter[str]:
    return Counter(spec.host for spec in specs if (spec.number >= 0) is publishing)


def test_clients_sit_where_they_are_told_to() -> None:
    text = (
        "topology: grid9\n"
        "parameters: {broker: mosquitto, at: b2, publishers: 1, subscribers: 3, publish_at: b6, "
        "subscribe_at: b2+b7}"
    )
    specs = clients(cell(text), ("b2",), (), 1)
    assert [(spec.host, spec.broker) for spec in specs] == [
        ("b2", "b2"),
        ("b7", "b2"),
        ("b2", "b2"),
        ("b6", "b2"),
    ]
    apart = cell(f"{text[:-1]}, client_delay: 5}}")
    specs = clients(apart, ("b2", "b6", "b7"), (), 1)
    assert [(spec.host, spec.broker) for spec in specs[1:]] == [
        ("at-b7", "b7"),
        ("at-b2", "b2"),
        ("at-b6", "b6"),
    ]
    wire = apart.topology.wire("at-b6", "b2")
    assert wire is not None and wire.delay_ms == 25 and len(apart.topology.sites) == 3


def test_clients_of_federators_speak_as_these_want() -> None:
    text = (
        "topology: grid9\nparameters: {broker: mosquitto-federators, publishers: 1, subscribers: 1}"
    )
    subscriber, publisher = clients(cell(text), ("b0",), (), 1)
    (topic,) = publisher.topics
    assert topic.startswith("federated/topic-tree/") and subscriber.topics == (topic,)
    assert subscriber.beacon == f"federator/beacon/{topic.removeprefix('federated/')}"
    plain = clients(cell(text.replace("-federators", "-bridges")), ("b0",), (), 1)
    assert plain[1].topics[0].startswith("topic-tree/") and not plain[0].beacon


def test_a_setup_stands_for_several_parameters() -> None:
    loaded = read("""
        topology: mesh5
        parameters: {rate: 2}
        setups: {one: {broker: mosquitto, at: b1}, all: {broker: mosquitto-bridges}}
        factors: {setup: [one, all], qos: [1]}
    """)
    assert [
        (each.name, each.main.broker, each.main.at, each.main.rate) for each in loaded.cells
    ] == [
        ("qos=1,setup=one", "mosquitto", "b1", 2),
        ("qos=1,setup=all", "mosquitto-bridges", "", 2),
    ]


def test_faults_may_hit_one_process_of_a_host() -> None:
    text = """
        topology: grid9
        parameters: {broker: mosquitto-federators}
        faults:
        - {at: 1, do: kill, broker: b4, process: federator, for: 2}
        - {at: 2, do: kill, broker: b6, process: both}
        - {at: 2, do: kill, broker: b5, process: companion}
        - {at: 3, do: leave, client: s-sub-0}
    """
    one, both, companion, leaving = cell(text).faults
    assert (one.broker, one.process, one.duration) == ("b4", "federator", 2)
    assert (both.process, companion.process, leaving.client) == ("both", "companion", "s-sub-0")


@pytest.mark.parametrize("seed", range(5))
def test_locality_decides_how_near_subscribers_are(seed: int) -> None:
    text = (
        "topology: mesh5\n"
        "parameters: {{publishers: 20, subscribers: 5, topics: 60, choice: random, locality: '{}'}}"
    )
    brokers = ("b0", "b1", "b2", "b3", "b4")
    together = clients(cell(text.format(100)), brokers, (), seed)
    assert len({spec.broker for spec in together}) == 1
    apart = clients(cell(text.format(0)), brokers, (), seed)
    assert len(hosts(apart, True)) == len(hosts(apart, False)) == 1 and hosts(apart, True) != hosts(
        apart, False
    )
    anywhere = clients(cell(text.format(50)), brokers, ("b4",), seed)
    assert len(hosts(anywhere, True)) >= 3 and "b4" not in hosts(anywhere, True) | hosts(
        anywhere, False
    )
    used = {spec.topics[0] for spec in anywhere if spec.number >= 0}
    assert all(spec.topics[0] in used for spec in anywhere if spec.number < 0), (
        "one of the publishing topics"
    )
    assert clients(cell(text.format(50)), brokers, ("b4",), seed) == anywhere


def test_sites_connect_to_the_nearest_broker() -> None:
    text = "topology: regions\nparameters: {{publishers: 4, subscribers: 4, locality: '{}'}}"
    crossing = clients(cell(text.format(50)), ("oregon", "virginia", "ireland"), (), 1)
    assert (
        sum(one.host != other.host for one, other in zip(crossing[:4], crossing[4:], strict=True))
        == 2
    )
    for locality, west, east in ((0, (4, 0), (0, 4)), (50, (2, 2), (2, 2)), (100, (4, 4), (0, 0))):
        specs = clients(cell(text.format(locality)), ("oregon", "virginia", "ireland"), (), 1)
        for host, numbers in (("california", west), ("germany", east)):
            assert (hosts(specs, True)[host], hosts(specs, False)[host]) == numbers
        assert {(spec.host, spec.broker) for spec in specs} <= {
            ("california", "oregon"),
            ("germany", "ireland"),
        }
    alone = clients(cell(text.format(50)), ("virginia",), (), 1)
    assert {spec.broker for spec in alone} == {"virginia"}


def test_the_choice_all_subscribes_to_every_topic_in_one_group() -> None:
    text = (
        "topology: local\nparameters: {publishers: 3, subscribers: 2, topics: 3, choice: all, "
        "share: true, version: 5}"
    )
    specs = clients(cell(text), ("b0",), (), 1)
    subscribers = [spec for spec in specs if spec.number < 0]
    assert {spec.topics[0] for spec in subscribers} == {"$share/group/topic-tree/#"}
    assert all(
        matches(subscribers[0].topics[0], spec.topics[0]) for spec in specs if spec.number >= 0
    )
    assert not matches(subscribers[0].topics[0], "topic-trees/1")
    assert [spec.number for spec in specs] == [-1, -1, 0, 1, 2]
