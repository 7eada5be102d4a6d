"""`mqttree bench paths`: its arithmetic, and a way between two real brokers that opens and
closes."""

from __future__ import annotations

from typing import Any

import pytest
import uvloop

from mqttree.bench.lab.brokers import KINDS
from mqttree.bench.lab.lab import Lab
from mqttree.bench.studies import paths
from mqttree.bench.studies.paths import Network, PathsError, Samples, Way


def state(
    name: str, parent: str | None, rtt: float | None = 1.0, root: str = "a"
) -> dict[str, Any]:
    links = [{"peer": parent, "rtt_ms": rtt}] if parent is not None else []
    return {"id": name, "name": name, "parent": parent, "root": root, "links": links}


def test_the_tree_is_what_the_children_say() -> None:
    assert paths.edges([state("a", None), state("b", "a", 0.5), state("c", "b", 2.0)]) == {
        ("b", "a"): 0.5,
        ("c", "b"): 2.0,
    }


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        ([state("a", None), state("b", None)], "not in one tree"),
        ([state("a", None), state("b", "a", root="b")], "not in one tree"),
        ([state("a", None), state("b", "a", None)], "b does not know how far"),
    ],
)
def test_states_that_make_no_tree_are_refused(states: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(PathsError, match=reason):
        paths.edges(states)


def test_the_longest_path_counts_links_before_delays() -> None:
    tree = {("b", "a"): 1.0, ("c", "b"): 1.0, ("d", "a"): 9.0, ("e", "a"): 1.5}
    assert paths.ways(tree, "d") == [
        Way("d", "a", 1, 9.0),
        Way("d", "b", 2, 10.0),
        Way("d", "e", 2, 10.5),
        Way("d", "c", 3, 11.0),
    ]
    assert paths.diameter(tree) == Way("c", "d", 3, 11.0)


@pytest.mark.parametrize(
    ("samples", "since", "closed"),
    [
        ([(1.0, 5), (1.1, 7), (1.2, 9), (1.3, 9), (2.3, 9)], 1.05, 0.15),
        ([(1.0, 5), (1.1, 5)], 0.9, 0.0),
        ([(1.0, 5), (1.1, 6), (1.2, 6)], 1.15, 0.0),
        ([], 1.0, 0.0),
    ],
)
def test_a_link_counts_as_closed_when_its_counter_no_longer_rises(
    samples: list[tuple[float, int]], since: float, closed: float
) -> None:
    assert paths.last_change(samples, since) == pytest.approx(closed)


def test_the_table_has_median_minimum_maximum_and_count() -> None:
    samples: Samples = {
        "rtt": [2.0, 4.0, 6.0],
        "asked": [60.0, 1.0, 55.0],
        "suback": [2.0],
        "open": [60.0, 1.0, 53.0],
        "first": [70.0],
        "first link": [500.0],
    }
    lines = paths.table(paths.rows(samples, hop=False, hops=2, opens=True))
    assert lines[2:] == [
        "| round trip between the ends of the tree, 2 links |  | 4.000 ms | 2.000 | 6.000 | 3 |",
        (
            "| SUBSCRIBE to the first message published 2 links away that arrives | < 54 ms "
            "| 55.000 ms (missed) | 1.000 | 60.000 | 3 |"
        ),
        (
            "| SUBACK to the first message published 2 links away that arrives | < 54 ms "
            "| 53.000 ms | 1.000 | 60.000 | 3 |"
        ),
        "| SUBSCRIBE to its arrival |  | 70.000 ms | 70.000 | 70.000 | 1 |",
        "| SUBSCRIBE to SUBACK |  | 2.000 ms | 2.000 | 2.000 | 1 |",
        (
            "| UNSUBACK to the last message that the publisher's broker sends on | < 1000 ms "
            "| 500.000 ms | 500.000 | 500.000 | 1 |"
        ),
        "| UNSUBACK to the last message that comes over the last link | < 1000 ms | none | | | 0 |",
    ]
    hop = paths.table(
        paths.rows(
            {"here 0": [0.1], "there 0": [0.6], "hop 0": [0.5]}, hop=True, hops=1, opens=False
        )
    )
    assert (
        hop[4] == "| QoS 0, what the hop adds | < 0.3 ms | 0.500 ms (missed) | 0.500 | 0.500 | 1 |"
    )


def test_brokers_in_a_line_reach_only_the_next_ones() -> None:
    line = paths.line_of(3, 5.0)
    assert [line.wire("b0", other) is not None for other in ("b1", "b2")] == [True, False]
    assert line.wire("b2", "b1") == line.wire("b1", "b2")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rounds", "0"],
        ["--brokers", "1"],
        ["--routing", "fast"],
        ["--delay", "-1"],
        ["--seconds", "nan"],
    ],
)
def test_bad_arguments_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        paths.main(arguments)
    assert left.value.code == 2
    assert "mqttree: " in capsys.readouterr().err.splitlines()[-1]


def test_a_path_opens_with_a_subscription_and_closes_without() -> None:
    """Two brokers: what is published before UNSUBACK crosses the link, and some time after it
    nothing does."""
    samples: Samples = {}
    with Lab(paths.loopback_of(2), KINDS["mqttree-interest"], way="relays") as lab:
        lab.start()
        # `still`: more than a filter is posted when no subscriber wants it any more.
        network = Network(lab, settled=0.1, still=0.7)
        uvloop.run(network.settle())
        assert paths.diameter(network.tree).hops == 1
        uvloop.run(network.open_and_close(1, samples))
    assert set(samples) == {"suback", "asked", "open", "first", "first link", "last link"}
    assert all(len(values) == 1 for values in samples.values())
    assert samples["first"][0] >= samples["asked"][0] >= samples["open"][0] >= 0
    assert samples["first link"][0] > 0
