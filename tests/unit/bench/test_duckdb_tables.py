"""Tables by DuckDB, without Java: against a reference in plain Python, of files that are damaged,
and what commands say. That they equal those by Spark is in test_spark_tables."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.bench.load.histogram import bucket
from mqttree.bench.report import tables_command
from mqttree.bench.spark import source
from mqttree.bench.trace import Writer
from tests.unit.bench.trace_reference import UNSURE, Script, expected
from tests.unit.bench.trace_scripts import spoil, told, write_all

pytest.importorskip("duckdb")

from mqttree.bench.duckdb import messages, tables
from mqttree.bench.duckdb.session import Bounds, Database, database


@pytest.fixture(scope="module")
def opened() -> Iterator[Database]:
    with database() as found:
        yield found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Script], Any]:
    """All runs in one folder, and their tables, in several batches."""
    folder = tmp_path_factory.mktemp("runs")
    found = write_all(folder)
    bounds = Bounds(batch=500, unsure=UNSURE)
    return folder, found, tables.compute(source.read([str(folder)]), bounds=bounds)


def of(made: Any, run: str) -> dict[str, Any]:
    (row,) = [row for row in made[2].runs if row["run"] == run and row["flow"] == ""]
    return dict(row)


def test_random_traces_give_what_a_reference_gives_by_duckdb(made: Any) -> None:
    wrong = []
    for each in made[1]:
        wanted, row = expected(each), of(made, each.run)
        off = {
            name: (row[name], value)
            for name, value in wanted.items()
            if (row[name] or 0) != pytest.approx(value, abs=1e-9)
        }
        if off:
            wrong.append(f"{off} (the tables', the reference's) of {each}; {row['remarks']}")
    assert not wrong, f"{len(wrong)} of {len(made[1])}: " + min(wrong, key=len)


def test_faults_clocks_and_shared_subscriptions_have_their_figures(made: Any) -> None:
    wanted = {
        "repaired": {"lost": 1, "repair_s": 0.2, "repair_service_s": 1.011, "stretch": 2},
        "ramps": {"published": 12, "published_per_s": 1, "delay_max_ms": 10},
        "late": {"delay_mean_ms": 13, "delay_sent_mean_ms": 10},
        "old": {"delay_mean_ms": 10, "delay_sent_mean_ms": 10},
        "measured": {"delivered": 11, "delay_mean_ms": 10},
        "sampled": {"published": 120, "expected": 120, "lost": 10},
        "beside": {"expected": 36, "lost": 1, "duplicates": 0},
        "groups": {"expected": 36, "lost": 1, "duplicates": 0},
        "away": {"expected": 10, "lost": 0, "unexpected": 1},
        "pair": {"published": 24, "expected": 48, "delivered": 47, "generator_cpu": 0.75},
        "half": {"lost": 0, "unknown": 1},
        "restarted": {"broker_cpu": 0.125},
    }
    found = {run: {name: of(made, run)[name] for name in names} for run, names in wanted.items()}
    assert found == {run: pytest.approx(names) for run, names in wanted.items()}


@given(st.lists(st.one_of(st.integers(0, 2**16), st.integers(0, 2**62)), min_size=1, max_size=50))
def test_buckets_are_those_of_the_generators_histogram(opened: Database, ns: list[int]) -> None:
    powers = [1 << bit for bit in range(62)]
    edges = [value + off for value in powers for off in (-1, 0, 1)]
    opened.put("value", "ns long", [(value,) for value in [*ns, *edges]])
    found = opened.tuples(f"select ns, {messages.bucket('ns')} from value")
    assert found == [(value, bucket(value)) for value, _ in found]


def test_damage_in_the_middle_of_a_file_is_named_by_duckdb_too(tmp_path: Path) -> None:
    for number in range(3):
        told(f"d{number}", 5 + number).write(tmp_path / "a %20[b]")
    file, other, _ = sorted(tmp_path.rglob("subscribers-*.parquet"))
    spoil(file)
    spoil(other)
    said: list[str] = []
    found = tables.compute(source.read([str(tmp_path)]), said.append)
    assert [text for text in said if "trying" in text] == [
        "a file cannot be read: trying each of 6"
    ]
    remark = "subscribers: subscribers-00000.parquet is damaged and left out"
    assert [row["remarks"].split("; ")[0] for row in found.runs] == [remark, remark, ""]
    assert [row["status"] for row in found.runs] == ["trace incomplete"] * 2 + ["complete"]


@pytest.mark.parametrize("column", ["at", "sequence", "topic"])
def test_damage_in_a_column_without_nulls_is_found(tmp_path: Path, column: str) -> None:
    told("one", 1).write(tmp_path)
    (file,) = tmp_path.rglob("publishers-*.parquet")
    about, data = pq.read_metadata(file), bytearray(file.read_bytes())
    for group in range(about.num_row_groups):
        chunks = [about.row_group(group).column(at) for at in range(about.num_columns)]
        (chunk,) = [each for each in chunks if each.path_in_schema == column]
        begins = chunk.dictionary_page_offset or chunk.data_page_offset
        data[begins : begins + 4] = b"\xff" * 4
    file.write_bytes(data)
    (row,) = tables.compute(source.read([str(tmp_path)])).runs
    assert row["remarks"].startswith("publishers: publishers-00000.parquet is damaged and left out")


def test_ctrl_c_ends_a_query(opened: Database) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    other = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            other.start()
            opened.run("select count(*) from range(10000000) a, range(10000000) b where a <> b")
    finally:
        other.join()
        signal.signal(signal.SIGINT, before)
    assert opened.tuples("select 1") == [(1,)]


def test_a_file_that_is_gone_meanwhile_is_left_out(tmp_path: Path) -> None:
    told("gone", 1).write(tmp_path)
    runs = source.read([str(tmp_path)])
    (file,) = tmp_path.rglob("publishers-*.parquet")
    file.unlink()
    (row,) = tables.compute(runs).runs
    assert row["remarks"].startswith("publishers: publishers-00000.parquet is damaged and left out")
    assert row["published"] == 0


def test_rows_of_another_run_are_left_out_by_duckdb_too(tmp_path: Path) -> None:
    told("mine", 1).write(tmp_path / "link=[b0, b1]{x}*?")  # which is no pattern
    (file,) = tmp_path.rglob("subscribers-*.parquet")
    table = pq.ParquetFile(file).read()
    other = pa.array(["other"] * table.num_rows).dictionary_encode()
    pq.write_table(table.set_column(table.schema.get_field_index("run"), "run", other), file)
    (row,) = tables.compute(source.read([str(tmp_path)])).runs
    remark = "subscribers: its rows are of run other, not of its folder's, and are left out"
    assert row["remarks"].startswith(remark)
    assert (row["published"], row["delivered"]) == (12, 0)


def test_filters_match_as_brokers_match_them(tmp_path: Path) -> None:
    from mqttree.routing.topic_filter import matches

    topics = ["a", "a/b", "a/b/c", "a//b", "/a", "/", "$x", "$x/y", "a.b", "a+b/c", "a(b", "é/b"]
    filters = ["#", "+", "+/+", "a/#", "a/+/c", "/+", "/#", "$x/#", "$x/+", "+/y", "a.b", "a(b"]
    filters += ["é/+", "a/b/c/#", "+/b/#", "a//+", "a//#", "a/b"]
    found = Script("wild")
    found.publishers = [
        ("published", (number, 0, number, "p", "b0", topic, 0, 1))
        for number, topic in enumerate(topics)
    ]
    found.subscribers = [
        ("subscribed", (-5, f"c{number}", "b0", filter, 0)) for number, filter in enumerate(filters)
    ]
    found.write(tmp_path)
    (row,) = tables.compute(source.read([str(tmp_path)])).runs
    assert row["expected"] == sum(matches(each, topic) for each in filters for topic in topics)


def test_files_of_another_writer_lack_columns_and_kinds_share_row_groups(tmp_path: Path) -> None:
    folder = tmp_path / "trace" / "scenario=s" / "run=r"
    folder.mkdir(parents=True)
    table = pa.table(
        {
            "scenario": ["s"] * 3,
            "run": ["r"] * 3,
            "host": ["h"] * 3,
            "process": ["p"] * 3,
            "kind": ["began", "published", "delivered"],
            "at": [1, 2, 3],
            "publisher": pa.array([None, 0, 0], pa.int64()),
            "sequence": [None, 7, 7],
            "client": [None, None, "c"],
            "topic": [None, "t", "t"],
            "offset_ns": [9, None, None],
        }
    )
    pq.write_table(
        table.replace_schema_metadata({"mqttree.trace": "1"}), folder / "p-00000.parquet"
    )
    (row,) = tables.compute(source.read([str(tmp_path)])).runs
    assert (row["published"], row["delivered"]) == (1, 1)


def test_a_run_without_a_row_about_messages_has_tables(tmp_path: Path) -> None:
    with Writer(tmp_path / "trace", run="r", scenario="s", process="p") as out:
        out.resources(5, "b0", "broker", 0.5, 1000, 3)
    found = tables.compute(source.read([str(tmp_path)]))
    assert [row["published"] for row in found.runs] == [0]
    assert found.tables["resources"].num_rows == 1


def test_without_java_duckdb_makes_the_tables_and_a_line_says_so(tmp_path: Path) -> None:
    told("one", 1).write(tmp_path)
    environment = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {
        "PATH": str(tmp_path)
    }
    command = [sys.executable, "-m", "mqttree.bench.cli", "report", str(tmp_path)]
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr
    assert "mqttree bench tables: by DuckDB: Spark needs Java 17 or newer" in done.stderr
    assert {path.stem for path in (tmp_path / "tables").glob("*.parquet")} == {
        "cases",
        "delays",
        "faults",
        "links",
        "packets",
        "resources",
        "runs",
        "timeline",
    }
    assert (tmp_path / "report.html").is_file()
    code = subprocess.run(
        [*command[:3], "tables", "--engine", "spark", str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert (code.returncode, code.stderr.count("\n")) == (2, 1)
    assert "openjdk-17-jre-headless" in code.stderr


def test_duckdb_needs_no_pyspark(tmp_path: Path) -> None:
    told("one", 1).write(tmp_path)
    program = (
        "import sys; sys.modules['pyspark'] = sys.modules['py4j'] = None\n"
        "from mqttree.bench.report.tables_command import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--engine", "duckdb", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--master", "local[2]", "DIR"], "--master local[2]: DuckDB has no cluster"),
        (["s3://x/y"], "s3://x/y: DuckDB reads folders of this machine"),
        (["--memory", "zzz", "DIR"], "--memory zzz: expected a size"),
        (["--each", "--out", "x", "DIR"], "--each writes into each folder"),
        (["DIR", "--out", "DIR/run.json"], "no tables can be written to"),
        (["DIR/missing"], "DIR/missing is not a folder"),
    ],
)
def test_what_duckdb_cannot_do_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    (tmp_path / "run.json").write_text('{"run": "r", "scenario": "s"}')
    words = [each.replace("DIR", str(tmp_path)) for each in options]
    assert tables_command.main(["--engine", "duckdb", *words]) == 2
    out, errors = capsys.readouterr()
    assert (out, errors.count("\n")) == ("", 1)
    assert errors.startswith(f"mqttree bench tables: {said}".replace("DIR", str(tmp_path)))
