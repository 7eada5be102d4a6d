"""`mqttree bench placement place`: known results printed exactly, published files read, bad files
named in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.cli import main
from bench.placement import workload, workload_file
from tests.kit.placement import DATA, KEYS, load

CASES = [
    (name, brokers) for name in ("social-100", "iot-300") for brokers in load(name)["by_brokers"]
]

NAMES = {
    "random": "random",
    "best": "best_matching",
    "paper": "greedy",
    "load": "greedy_ties_by_load",
}


def place(capsys: pytest.CaptureFixture[str], file: Path, *words: str) -> Any:
    """What the command prints as JSON."""
    assert main(["placement", "place", str(file), "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that the command has to say."""
    assert main(["placement", "place", *words]) == 2
    said = capsys.readouterr()
    assert not said.out
    (line,) = said.err.splitlines()
    return line


@pytest.mark.parametrize("strategy", NAMES)
@pytest.mark.parametrize(("name", "brokers"), CASES)
def test_known_results_are_printed_in_their_form(
    name: str, brokers: str, strategy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    known = load(name)["by_brokers"][brokers][NAMES[strategy]]
    found = place(capsys, DATA / f"{name}.json", "--brokers", brokers, "--strategy", strategy)
    assert list(found) == [*KEYS, "placement"]
    assert json.dumps({key: found[key] for key in known}) == json.dumps(known)


def test_unequal_rates_change_the_placement_and_the_traffic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {
        "rates": [0.5, 10, 2],
        "clients": [[0, 1], [1, 2]],
        "by_brokers": {"2": {"publishers": [0, 1, 0]}},
    }
    file = tmp_path / "rates.json"
    file.write_text(json.dumps(said))
    found = place(capsys, file, "--brokers", "2", "--strategy", "paper", "--sessions", "1")
    assert found["placement"] == [{"1": [0, 1]}, {"0": [1, 2]}]
    assert found["Ai"] == 10.5
    assert found["aei"] == [2.5, 10]


def test_the_same_seed_places_the_same_and_another_one_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = DATA / "social-100.json"
    words = ("--brokers", "20", "--strategy", "random")
    first = place(capsys, file, *words, "--seed", "3")
    assert first == place(capsys, file, *words, "--seed", "3")
    assert first != place(capsys, file, *words, "--seed", "4")


PUBLISHED = """{ "publisher": [
 {"pub_id" : 1.1 , "node_id" : 1 , "topic_list" : [1]},
 {"pub_id" : 10.1 , "node_id" : 2 , "topic_list" : [2,3]},
], "subscriber": [
 {"sub_id" : 1.1 , "node_id" : 1 , "topic_list" : [1]},
 {"sub_id" : 1.10 , "node_id" : 2 , "topic_list" : [2]},
 {"sub_id" : 2.1 , "node_id" : 1 , "topic_list" : [2, 3,]},
] }"""


def test_the_form_that_the_papers_authors_published_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "published.json"
    file.write_text(PUBLISHED)
    found = place(capsys, file, "--brokers", "2", "--strategy", "given")
    assert found["placement"] == [{"0": [1], "1": [2]}, {"0": [2, 3]}]
    assert found["Ai"] == 2
    assert found["sessions"] == 3
    again = place(capsys, file, "--brokers", "2", "--strategy", "paper")
    assert again["Ai"] == 0
    assert "has no placement on 3 brokers" in complaint(
        capsys, str(file), "--brokers", "3", "--strategy", "given"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "expected an object"),
        ("{}", "neither clients nor subscriber"),
        ('{"clients": 1}', "clients is no list"),
        ('{"clients": [[-1]]}', "clients[0]: -1 is not a whole number"),
        ('{"clients": [["a"]]}', "clients[0]: 'a' is not a whole number"),
        ('{"clients": [[0]], "rates": []}', "rates has nothing for topic 0"),
        ('{"clients": [[0]], "rates": [-1]}', "rates[0]: -1 is no number"),
        ('{"clients": [[0]], "rates": [NaN]}', "rates[0]: nan is no number"),
        ('{"clients": [[0]], "rates": {"x": 1}}', "rates: invalid literal"),
        ('{"clients": [[0]], "gamma": 0.5}', "gamma: 0.5 is no number from 1 on"),
        ('{"clients": [[0]], "by_brokers": {"0": {}}}', "'0' is no number of brokers"),
        (
            '{"clients": [[0]], "by_brokers": {"2": {"publishers": [2]}}}',
            "publishers of 2: 2 is not a whole number from 0 to 1",
        ),
        (
            '{"clients": [[0]], "by_brokers": {"2": {"random_attach": []}}}',
            "random_attach of 2 has not one broker for each client",
        ),
        ('{"subscriber": [{"node_id": 1}]}', "subscriber[0] has no sub_id"),
        ('{"subscriber": [{"sub_id": 1.1, "node_id": 0}]}', "node_id of subscriber[0]: 0"),
        ('{"subscriber": [{"sub_id": 1.1, "node_id": 1}]}', "topic_list of subscriber[0]"),
    ],
)
def test_a_bad_file_is_named_in_one_line(
    text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text)
    line = complaint(capsys, str(file), "--brokers", "2")
    assert str(file) in line
    assert why in line


def test_files_that_cannot_be_read_are_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "no text in UTF-8" in complaint(capsys, str(binary), "--brokers", "2")
    assert "No such file" in complaint(capsys, str(tmp_path / "none"), "--brokers", "2")
    assert "directory" in complaint(capsys, str(tmp_path), "--brokers", "2")


def test_drawn_workloads_have_what_is_asked_for() -> None:
    work = workload.social(100, 50, 7, 1.13, seed=3)
    assert work == workload.social(100, 50, 7, 1.13, seed=3)
    assert work.clients != workload.social(100, 50, 7, 1.13, seed=4).clients
    assert all(len(set(topics)) == 7 for topics in work.clients)
    assert all(0 <= topic < 100 for topics in work.clients for topic in topics)
    tree = workload.topic_tree([0, 0.3, 0.3, 0.4], [1, 3, 7, 20], 500, seed=1)
    assert {topic for topics in tree.clients for topic in topics} == set(range(20))
    halves = workload.topic_tree([0, 1], [1, 20], 10, seed=1)
    assert all(len(topics) == 1 for topics in halves.clients)
    with pytest.raises(ValueError, match="10 of 10"):
        workload.social(10, 1, 10, 1.0, seed=1)


def test_leaves_of_a_level_belong_to_one_node_each() -> None:
    work = workload.topic_tree([0, 1, 0], [1, 3, 10], 200, seed=1)
    parts = {tuple(topics) for topics in work.clients}
    assert len(parts) == 3
    assert sorted(topic for part in parts for topic in part) == list(range(10))


def test_published_ids_are_text() -> None:
    work = workload_file.read('{"subscriber": [{"sub_id": 1.10, "node_id": 1, "topic_list": []}]}')
    assert work.clients == [[]]
