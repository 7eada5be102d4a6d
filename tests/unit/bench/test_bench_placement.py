"""`mqttree bench placement place`: known results printed exactly, published files read, bad files
named in one line."""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from mqttree.bench.cli import main
from mqttree.bench.placement import averages, changes, grid, page
from mqttree.bench.workloads import named, workload, workload_file
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
        ("[" * 100_000, "no JSON"),
        ("[]", "expected an object"),
        ("{}", "neither clients nor subscriber"),
        ('{"clients": [[-1]]}', "clients[0]: -1 is not a whole number"),
        ('{"clients": [[0]], "rates": []}', "rates has nothing for topic 0"),
        ('{"clients": [[0]], "rates": [-1]}', "rates[0]: -1 is no number"),
        ('{"clients": [[0, 1]], "rates": 1e308}', "rates: 1e+308 is no number from 0 to 1e+15"),
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


def test_a_file_without_an_end_is_refused_by_what_was_read_of_it() -> None:
    with pytest.raises(workload_file.WorkloadError, match="/dev/zero: larger than 1,000 bytes"):
        named.text_of(Path("/dev/zero"), 1000)


def test_rows_that_are_none_are_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = tmp_path / "rows.parquet"
    words = ["placement", "figures", "--read", str(file), "--out", str(tmp_path / "page.md")]
    file.write_text("no Parquet")
    assert main(words) == 2
    assert capsys.readouterr().err == (
        f"mqttree bench: {file}: no Parquet file with rows of `mqttree bench placement figures`\n"
    )
    pq.write_table(pa.table({"figure": ["7"]}), file)
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no Parquet file with rows" in line


def test_a_takeover_without_the_clients_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "paho", None)
    assert main(["placement", "takeover"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "mqttree bench: paho is not installed: pip install 'mqttree[client]'\n"


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


def test_figures_come_from_rows_that_a_seed_determines() -> None:
    quick = {case.figure: case for case in grid.cases(quick=True)}
    assert set(quick) == {figure.key for figure in page.FIGURES} - set(page.SAME)
    for case in quick.values():
        row = grid.run(case, 1)
        assert row == grid.run(case, 1)
        assert set(row) == {"figure", "curve", "x", "seed", *grid.MEASURES}
        assert row["internal"] >= 0
        assert 1 / case.brokers <= row["jain"] <= 1 + 1e-9
        assert (row["space"] is not None) == (case.figure == "11")


SIMULATED = load("simulated")["mean_and_deviation"]
CURVES = {"random": "random", "greedy": "paper", "greedy_load": "load"}
X = {"M": "brokers", "Nses": "sessions", "Nsub": "subscribers", "Nsxs": "each", "alpha": "alpha"}


def simulated_case(key: str, curve: str) -> grid.Case:
    """The case of which a file has means and deviations."""
    figure, *words = key.split()
    options: dict[str, Any] = {"strategy": CURVES[curve]}
    for word in words:
        name, _, value = word.partition("=")
        options[X[name]] = float(value) if name == "alpha" else int(value)
    if figure in ("fig7", "fig10", "fig12"):
        options |= grid.SOCIAL_1000
    if figure == "fig10":
        options["sessions"] = 1
    if figure == "fig12":
        options["each"] = 5
    if figure.endswith("A"):
        options = {"alpha": 1.5, "nodes": grid.VARIANT_A} | options
    return grid.Case(figure, curve, 0, **options)


@pytest.mark.parametrize(
    "key",
    [
        *(f"fig7 M={brokers}" for brokers in (2, 4, 8, 16)),
        *(f"fig10 Nsxs=1 M={brokers}" for brokers in (2, 4, 8, 16)),
        *(f"fig12 M=8 Nses={sessions}" for sessions in range(1, 9)),
        "fig10 Nsxs=40 M=8",
        "fig13+18 M=8",
        "fig19A M=8",
    ],
)
def test_draws_are_within_three_deviations_of_those_that_are_known(key: str) -> None:
    seeds = 3
    for curve, known in SIMULATED[key].items():
        rows = [grid.run(simulated_case(key, curve), seed) for seed in range(1, seeds + 1)]
        for measure, name in (("internal", "Ai"), ("h_rt", "h_rt"), ("h_fw", "h_fw")):
            mean, deviation = known[name]
            # Known values have four places.
            near = 3 * deviation * math.sqrt(1 / seeds + 1 / 10) + 1e-4
            found = sum(row[measure] for row in rows) / seeds
            assert abs(found - mean) <= near, (key, curve, measure)


def test_the_page_has_each_figure_and_judges_each_statement() -> None:
    cases = [case for case in grid.cases(quick=True) if case.brokers <= 4 or case.figure == "12"]
    rows = [grid.run(case, seed) for case in cases for seed in (1, 2)]
    lines = list(page.page(cases, averages.means_of(rows), 2, quick=True))
    for figure in page.FIGURES:
        assert f"## {figure.title}" in lines
    text = "\n".join(lines)
    assert text.count("\n| 12 | ") == 2
    assert " ± " in text
    assert all(len(line) <= 100 for line in lines if not line.startswith("|"))
    assert lines == list(page.page(cases, averages.means_of(rows), 2, quick=True))


def test_rows_that_were_kept_have_the_same_means(tmp_path: Path) -> None:
    cases = [case for case in grid.cases(quick=True) if case.figure in ("7", "11")]
    rows = [grid.run(case, seed) for case in cases for seed in (1, 2, 3)]
    file = tmp_path / "rows.parquet"
    averages.write(rows[::-1], file)
    assert averages.means_of(averages.read(file)) == averages.means_of(rows)


def test_a_page_that_cannot_be_written_is_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "none" / "page.md"
    assert main(["placement", "figures", "--quick", "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(out) in line


def test_speed_is_told_in_three_lines(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--clients", "2000", "--topics", "500", "--brokers", "4")
    assert main(["placement", "speed", *words]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("2,000 clients in ")
    assert "join p99" in second
    assert "connections a client" in third
    assert main(["placement", "speed", "--topics", "10"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot have 10 of 10 topics" in line


@pytest.mark.parametrize(
    "words",
    [
        ("social", "--topics", "50", "--each", "3", "--rates", "lognormal", "--shape", "4"),
        ("uniform", "--topics", "50", "--each", "3", "--rates", "zipf"),
        ("tree", "--depth", "3", "--fan", "5"),
    ],
)
def test_a_workload_that_is_drawn_can_be_placed(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["placement", "draw", *words, "--subscribers", "40"]) == 0
    text = capsys.readouterr().out
    assert main(["placement", "draw", *words, "--subscribers", "40"]) == 0
    assert capsys.readouterr().out == text
    file = tmp_path / "drawn.json"
    file.write_text(text)
    found = place(capsys, file, "--brokers", "3")
    assert len(found["placement"]) == 40
    assert sum(found["aei"]) == pytest.approx(sum(workload_file.read(text).rates.values()))


def test_a_workload_that_cannot_be_drawn_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["placement", "draw", "social", "--topics", "3"]) == 2
    assert "cannot have 10 of 3 topics" in capsys.readouterr().err
    assert main(["placement", "draw", "tree", "--depth", "20"]) == 2
    assert "a tree of 20 levels" in capsys.readouterr().err


def test_a_hundred_moves_after_a_failure_bring_it_near_a_placement_anew() -> None:
    """One subscription in a hundred; the others stay where they are."""
    work = workload.social(1000, 1000, 10, 1.13, 1)
    clients = changes.joined(work, 8, "load", 4, 1)
    changes.fail(clients, work, 4, everybody=False)
    left = clients.placement.internal
    assert changes.move(clients, 100, 4) <= 100
    anew = changes.joined(work, 8, "load", 4, 1)
    changes.fail(anew, work, 4, everybody=True)
    assert clients.placement.internal < 1.2 * anew.placement.internal < left
    assert clients.placement.figures().peak < 1.15


def test_moves_of_one_session_in_a_hundred_make_up_for_clients_that_change() -> None:
    """Each client is replaced three times, with 34 moves after each turn of 3,400 sessions."""
    changed, anew = 0.0, 0.0
    for seed in (1, 2, 3):
        work = workload.social(1000, 1000, 10, 1.13, seed)
        draw = workload.popular_topics(1000, 1.13, random.Random(f"others {seed}"))
        clients = changes.joined(work, 8, "load", 4, seed)
        for turn in range(3):
            changes.replace(clients, lambda draw=draw: draw(10), 1, 4, turn)
            changes.move(clients, 34, 4)
        wanted = {
            name: sorted((t for _, topics in clients.sessions_of(name) for t in topics), key=int)
            for name in (f"c{number}" for number in range(1000))
        }
        changed += clients.placement.internal
        for name in wanted:
            clients.leave(name)
        for name, topics in wanted.items():
            clients.join(name, topics, 4)
        anew += clients.placement.internal
    assert changed <= 1.08 * anew


def test_a_graph_of_followers_is_a_workload(tmp_path: Path) -> None:
    text = "# who follows whom\n3 1\n3,2\n\n1\t2  # once more\n3 1\n"
    work = workload_file.read(text)
    assert work.clients == [[2], [1, 2]]
    assert work.rates == {1: 1, 2: 1}
    for bad in ("1 2\n3", "1 2\nx 3", "1 2\n-1 3", "1 2\n1 2 3", f"1 2\n1 {10**9}"):
        with pytest.raises(workload_file.WorkloadError, match="line 2"):
            workload_file.read(bad)


def test_a_drawn_graph_has_few_users_with_many_followers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["placement", "draw", "graph", "--subscribers", "2000", "--each", "5"]) == 0
    text = capsys.readouterr().out
    work = workload_file.read(text)
    assert work.clients == workload.follower_graph(2000, 5, 1).clients
    assert all(len(set(topics)) == 5 for topics in work.clients)
    assert not any(user in topics for user, topics in enumerate(work.clients))
    followers = sorted((sum(u in t for t in work.clients) for u in range(2000)), reverse=True)
    # By the model's power law some have ten times the mean; most have fewer than it.
    assert followers[0] > 50
    assert followers[1000] < 5
    file = tmp_path / "graph"
    file.write_text("\n".join(f"{u} {t}" for u, ts in enumerate(work.clients) for t in ts))
    assert workload_file.read(file.read_text()).clients == work.clients
    with pytest.raises(ValueError, match="cannot follow"):
        workload.follower_graph(5, 5, 1)
