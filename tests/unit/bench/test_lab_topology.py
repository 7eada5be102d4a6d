"""Topologies: what files may say, one clear line for what they may not, and how delays are
drawn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.bench.lab import topology
from mqttree.bench.lab.topology import Topology, Wire, is_tree, parse
from mqttree.broker.config.yaml_file import ConfigError, ConfigFile


def read(text: str) -> Topology:
    return parse(ConfigFile.parse("t.yaml", text), (), "t")


def test_every_shipped_topology_can_be_read() -> None:
    for name in topology.shipped():
        drawn = topology.load(name).drawn(1)
        assert drawn.brokers and len(drawn.as_dict()["brokers"]) == len(drawn.brokers)


def test_the_network_of_the_papers_is_drawn_by_seed() -> None:
    mesh = topology.load("mesh5")
    assert mesh.brokers == ("b0", "b1", "b2", "b3", "b4")
    drawn = mesh.drawn(7)
    wires = [drawn.wire(one, other) for one, other in drawn.pairs()]
    assert len(wires) == 10 and all(wire is not None and wire.rate_mbit == 10 for wire in wires)
    assert len({wire.delay_ms for wire in wires if wire is not None}) > 5
    assert mesh.drawn(7) == drawn != mesh.drawn(8)


def test_a_topology_has_links_a_tree_and_sites() -> None:
    links = "[{between: [x, y], delay_ms: 3, loss: 0.5}]"
    place = read(
        f"brokers: [x, y, z]\nsites: [w]\ndefault: off\nlinks: {links}\ntree: [[x, y], [z, y]]"
    )
    assert place.wire("y", "x") == Wire(delay_ms=3, loss=0.5)
    assert place.wire("x", "z") is None and place.hosts == ("x", "y", "z", "w")
    assert place.bridges() == (("x", "y"), ("z", "y"))
    assert read("brokers: 3").bridges() == (("b1", "b0"), ("b2", "b0"))


def test_hosts_of_a_routed_network_reach_each_other_by_the_shortest_path() -> None:
    grid = topology.load("grid9").drawn(1)
    assert len(grid.as_dict()["links"]) == 12 and grid.as_dict()["routed"] is True
    assert grid.neighbours("b4") == ("b1", "b3", "b5", "b7")
    assert grid.link("b6", "b2") is None and grid.wire("b6", "b2") == Wire(delay_ms=20)
    assert grid.wire("b6", "b7") == grid.link("b6", "b7") == Wire(delay_ms=5)
    with_client = grid.with_sites({"at-b6": "b6"}, Wire(delay_ms=2))
    assert with_client.hosts[-1] == "at-b6" and with_client.neighbours("at-b6") == ("b6",)
    assert with_client.wire("at-b6", "b2") == Wire(delay_ms=22)
    assert topology.load("regions").wire("california", "germany") is None, "not routed"


def test_a_topology_can_be_given_another_size() -> None:
    assert read("brokers: 5\nlinks: [{between: [b0, b4], loss: 0.1}]").sized(2).brokers == (
        "b0",
        "b1",
    )
    assert read("brokers: [b1]").sized(3).brokers == ("b1", "b0", "b2")


ANY = "delay_ms, delay_sd_ms, jitter_ms, rate_mbit, loss, queue_kb"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "t.yaml: brokers: must be a whole number or a list of 1 to 50 names"),
        ("brokers: three", "t.yaml:1: brokers: must be a whole number or a list of 1 to 50 names"),
        ("brokers: [a, a]", "t.yaml:1: brokers: 'a' is there twice"),
        ("brokers: 0", "t.yaml:1: brokers: must be 1 to 50"),
        (
            "brokers: [A]",
            (
                "t.yaml:1: brokers: 'A' is no name: a small letter, "
                "then at most 14 small letters, digits and hyphens"
            ),
        ),
        (
            "brokers: 2\ndefault: {delay: 1}",
            f"t.yaml:2: default: unknown key 'delay': one of {ANY}",
        ),
        ("brokers: 3\ntree: [[b1, b0]]", "t.yaml:2: tree: is no tree over all brokers"),
    ],
)
def test_a_bad_topology_is_refused_in_one_line(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert str(caught.value) == line or (line.endswith(" ") and str(caught.value).startswith(line))


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("links: [{between: [[b0], b1]}]", "links.0: unknown host ['b0']: one of b0, b1"),
        (
            "links: [{between: [b0, b1]}, {between: [b1, b0], loss: 0.1}]",
            "links.1: the link between b1 and b0 is there twice",
        ),
        ("sites: [b0]", "sites: 'b0' is a broker's name"),
        ("network: 1", "network: must be true or false"),
        ("default: {delay_ms: fast}", "default: delay_ms must be a number, not 'fast'"),
        ("default: {loss: 1}", "default: loss must be 0 to less than 1"),
        ("default: {rate_mbit: 0}", "default: rate_mbit must be 0.001 to 100,000"),
        ("links: [3]", "links.0: expected {between: [HOST, HOST], ...}"),
        ("links: [{between: [b0, b0]}]", "links.0: expected two hosts, [ONE, OTHER]"),
        ("links: [{between: [b0, c]}]", "links.0: unknown host 'c': one of b0, b1"),
        ("broker: 1", "broker: unknown key; known are brokers, sites, "),
    ],
)
def test_a_bad_entry_is_refused_in_one_line(entry: str, reason: str) -> None:
    test_a_bad_topology_is_refused_in_one_line(f"brokers: 2\n{entry}", f"t.yaml:2: {reason}")


@given(st.integers(1, 8), st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=10))
def test_is_tree_as_by_definition(count: int, pairs: list[tuple[int, int]]) -> None:
    pairs = [(a % count, b % count) for a, b in pairs]
    reached, grown = {0}, True
    while grown:
        more = {b for a, b in pairs if a in reached} | {a for a, b in pairs if b in reached}
        grown = not more <= reached
        reached |= more
    expected = len(reached) == count and len(pairs) == count - 1
    assert is_tree([str(n) for n in range(count)], [(str(a), str(b)) for a, b in pairs]) is expected
