"""Traces as files: what is written is what can be read, in whatever state a process leaves them;
and clocks."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.bench.spark import events
from mqttree.bench.spark.source import SourceError, read
from mqttree.bench.trace import KINDS, SCHEMA, TraceError, Writer, clock, sample_offset
from tests.kit.effort import examples

NAMES = {"run": "r", "scenario": "s", "process": "p"}
INTS, WORDS = st.integers(0, 2**40), st.text(max_size=5)
EVENTS = st.one_of(
    st.tuples(
        st.just("published"),
        INTS,
        st.integers(0, 9),
        INTS,
        WORDS,
        WORDS,
        WORDS,
        st.integers(0, 2),
        INTS,
        WORDS,
        INTS,
    ),
    st.tuples(st.just("accepted"), INTS, st.integers(0, 9), INTS, WORDS, WORDS),
    st.tuples(st.just("forwarded"), INTS, st.integers(-1, 9), INTS, WORDS, WORDS, INTS),
    st.tuples(st.just("control"), INTS, WORDS, WORDS, WORDS, INTS),
    st.tuples(st.just("subscribed"), INTS, WORDS, WORDS, WORDS, st.integers(0, 2)),
    st.tuples(st.just("link"), INTS, WORDS, WORDS, INTS, INTS, INTS, INTS, INTS),
    st.tuples(st.just("role"), INTS, WORDS, WORDS, WORDS, WORDS),
    st.tuples(
        st.just("resources"), INTS, WORDS, WORDS, st.floats(0, 1e6), INTS, st.integers(0, 99)
    ),
    st.tuples(st.just("note"), INTS, WORDS),
)


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))


def rows(folder: Path) -> list[dict[str, Any]]:
    return [row for path in files(folder) for row in pq.ParquetFile(path).read().to_pylist()]


@settings(max_examples=examples(25))
@given(noted=st.lists(EVENTS, max_size=40), batch=st.integers(1, 7))
def test_all_rows_that_were_noted_are_in_the_files(
    tmp_path_factory: pytest.TempPathFactory, noted: list[Any], batch: int
) -> None:
    folder = tmp_path_factory.mktemp("trace")
    with Writer(folder, **NAMES, batch=batch) as writer:
        for number, (name, *arguments) in enumerate(noted):
            getattr(writer, name)(*arguments)
            if number % 11 == 10:
                writer.rotate()
    found = rows(folder)
    assert {(row["run"], row["scenario"], row["process"], row["host"]) for row in found} == {
        ("r", "s", "p", "local")
    }
    for name in {name for name, *_ in noted}:
        wanted = [tuple(arguments) for each, *arguments in noted if each == name]
        got = [
            tuple(row[column] for column in ("at", *KINDS[name]))
            for row in found
            if row["kind"] == name
        ]
        assert sorted(got) == sorted(wanted)
    (end,) = [row for row in found if row["kind"] == "ended"]
    assert end["count"] == len(found) == writer.rows


@pytest.mark.parametrize("every", [2, 10, 100, 1000])
@pytest.mark.parametrize("least", [0, 2])
def test_a_sample_is_of_the_run_however_little_each_publisher_sends(every: int, least: int) -> None:
    sent = [least + publisher * 7 % (11 - least) for publisher in range(3000)]  # to 10 each
    traced = sum(
        (sequence + sample_offset(publisher, every)) % every == 0
        for publisher, count in enumerate(sent)
        for sequence in range(count)
    )
    error = (every * sum(sent)) ** 0.5
    assert abs(traced * every - sum(sent)) <= 2 * error
    # One publisher alone has exactly its share.
    alone = [(sequence + sample_offset(7, every)) % every for sequence in range(5 * every)]
    assert alone.count(0) == 5


def test_arrivals_of_one_time_keep_their_order(tmp_path: Path) -> None:
    with Writer(tmp_path, **NAMES, batch=3) as writer:
        writer.delivered(301, 1, 9, "c", "b", "t", 1, 64)  # read later, although the clock was not
        writer.delivered(301, 1, 8, "c", "b", "t", 1, 64, True)
    came = [
        (row["at"], row["sequence"], row["dup"])
        for row in rows(tmp_path)
        if row["kind"] == "delivered"
    ]
    assert came == [(301, 9, False), (302, 8, True)]


def test_every_file_says_whose_it_is_and_has_one_kind_in_a_row_group(tmp_path: Path) -> None:
    with Writer(tmp_path, **NAMES, host="h1") as writer:
        writer.published(1, 0, 0, "p0", "b", "t", 0, 1)
        writer.rotate()
        writer.accepted(2, 0, 0, "p0", "b")
    first, second = files(tmp_path)
    assert first == tmp_path / "scenario=s" / "run=r" / "p-00000.parquet"
    for path in (first, second):
        file = pq.ParquetFile(path)
        about = file.schema_arrow.metadata
        assert (about[b"mqttree.trace"], about[b"mqttree.host"], about[b"mqttree.process"]) == (
            b"1",
            b"h1",
            b"p",
        )
        assert file.schema_arrow.names == SCHEMA.names
        for group in range(file.num_row_groups):
            assert len(set(file.read_row_group(group, ["kind"])["kind"].to_pylist())) == 1


def test_a_second_writer_of_the_same_name_takes_the_next_number(tmp_path: Path) -> None:
    for _ in range(2):
        with Writer(tmp_path, **NAMES) as writer:
            writer.note(1, "here")
    assert [path.name for path in files(tmp_path)] == ["p-00000.parquet", "p-00001.parquet"]


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b", "-x", "a=b"])
def test_names_that_cannot_be_in_a_path_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be named"):
        Writer(tmp_path, **NAMES | {"run": name})


def test_a_disk_that_takes_nothing_is_reported_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "scenario=s").write_text("a file where a folder should be")
    writer = Writer(tmp_path, **NAMES, batch=1)
    with pytest.raises(TraceError, match="cannot be written"):
        for number in range(100_000):
            writer.published(number, 0, number, "p", "b", "t", 0, 1)
    with pytest.raises(TraceError):
        writer.close()


KILLED = """
import os, sys, time
from pathlib import Path
from mqttree.bench.trace import Writer
writer = Writer(Path(sys.argv[1]), run="r", scenario="s", process="p", batch=10)
for number in range(100):
    writer.published(number, 0, number, "p", "b", "t", 0, 1)
writer.rotate()
folder = Path(sys.argv[1])
for number in range(100, 70_000):
    writer.published(number, 0, number, "p", "b", "t", 0, 1)
    if number % 1000 == 0 and list(folder.rglob("*.part")) and list(folder.rglob("*.parquet")):
        break
print("ready", flush=True)
time.sleep(600)
"""


def test_a_killed_process_leaves_complete_files_and_one_that_readers_name(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert len(list(tmp_path.rglob(".*.part"))) == 1
    assert {row["sequence"] for row in rows(tmp_path) if row["kind"] == "published"} >= set(
        range(100)
    )
    (run,) = read([str(tmp_path)])
    assert run.broken == {"p"}
    assert any("half-written" in remark for remark in run.remarks)


def test_files_that_are_no_traces_are_named_and_left_out(tmp_path: Path) -> None:
    with Writer(tmp_path, **NAMES) as writer:
        writer.note(1, "whole")
    whole = files(tmp_path)[0]
    whole.with_name("q-00000.parquet").write_bytes(whole.read_bytes()[:-20])
    whole.with_name("o-00000.parquet").write_bytes(b"")
    table = pq.ParquetFile(whole).read()
    pq.write_table(
        table.replace_schema_metadata({b"mqttree.trace": b"99"}), whole.with_name("v-00000.parquet")
    )
    (run,) = read([str(tmp_path)])
    assert (run.run, run.scenario, len(run.files), run.broken) == ("r", "s", 1, {"o", "q", "v"})
    said = "; ".join(run.remarks)
    assert "q-00000.parquet is no whole Parquet file" in said
    assert "has schema 99, not 1" in said
    assert "no run.json" in said


@pytest.mark.parametrize("text", ["{", "[]", '{"scenario": "s"}', "3"])
def test_a_run_json_that_cannot_be_read_has_a_line_of_its_own(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    (run,) = read([str(tmp_path)])
    assert "run.json cannot be read" in run.remarks[0]


def test_fields_of_a_wrong_type_are_named_and_left_out(tmp_path: Path) -> None:
    about = {
        "run": "r",
        "scenario": "s",
        "began": "yes",
        "repetition": 1e9,
        "measure_from_ns": True,
        "failures": "none",
        "cell": [1],
        "machine": {"cpu": ["a", "b"]},
        "topology": {"brokers": 3},
        "figure": {"y": "lost"},
        "dirty": 1,
        "seed": 2**70,
        "lab": None,
    }
    (tmp_path / "run.json").write_text(json.dumps(about))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.json").write_text(
        json.dumps({"run": "r2", "scenario": "s", "began": float("inf"), "ended": 5})
    )
    first, second = read([str(tmp_path)])
    assert first.about == {"run": "r", "scenario": "s", "machine": {"cpu": '["a", "b"]'}}
    assert second.about == {"run": "r2", "scenario": "s", "ended": 5}
    said = sorted(remark.split(" is ")[0] for remark in first.remarks if remark != "no trace")
    names = (
        "began",
        "cell",
        "dirty",
        "failures",
        "figure",
        "measure_from_ns",
        "repetition",
        "seed",
        "topology",
    )
    assert said == [f"run.json: {name}" for name in names]
    assert 'run.json: began is "yes", not a time in seconds; left out' in first.remarks


def test_a_run_json_that_cannot_be_read_belongs_to_the_trace_beside_it(tmp_path: Path) -> None:
    for number in (1, 2):
        with Writer(tmp_path / f"r{number}" / "trace", **NAMES | {"run": f"r{number}"}) as writer:
            writer.note(1, "here")
    (tmp_path / "r1" / "run.json").write_text("{")
    first, second = read([str(tmp_path)])
    assert [len(run.remarks) for run in (first, second)] == [1, 1]
    assert first.remarks[0].startswith("run.json cannot be read: JSONDecodeError")
    assert second.remarks[0].startswith("no run.json")


def test_a_copy_of_a_run_is_not_counted_twice(tmp_path: Path) -> None:
    with Writer(tmp_path / "one" / "trace", **NAMES) as writer:
        writer.note(1, "here")
    (tmp_path / "one" / "run.json").write_text('{"run": "r", "scenario": "s"}')
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    (run,) = read([str(tmp_path)])
    assert (len(run.files), run.rows, run.broken) == (1, {"p": writer.rows}, set())
    assert run.remarks == [
        "its run.json is there twice",
        "p: p-00000.parquet is there twice, the second one is left out",
    ]


def test_a_file_of_another_run_and_a_process_that_wrote_nothing_are_named(tmp_path: Path) -> None:
    with Writer(tmp_path / "trace", **NAMES) as writer:
        writer.note(1, "here")
    (file,) = files(tmp_path)
    file.with_name("q-00000.parquet").write_bytes(file.read_bytes())
    moved = file.parent.with_name("run=other")
    file.parent.rename(moved)
    processes = [{"name": name} for name in ("p", "network", "observer")]
    (tmp_path / "run.json").write_text(
        json.dumps({"run": "other", "scenario": "s", "processes": processes})
    )
    with Writer(tmp_path / "trace", **NAMES | {"run": "other", "process": "z"}) as writer:
        writer.note(1, "here")
    (run,) = read([str(tmp_path)])
    assert (len(run.files), run.broken) == (1, {"p", "q", "observer"})
    assert "p: p-00000.parquet is of run r, not of its folder's, and is left out" in run.remarks
    assert "observer: no trace" in run.remarks


def test_nothing_to_read_is_one_line(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(SourceError) as error:
            read([str(folder)])
        assert "\n" not in str(error.value)


def test_spark_reads_the_columns_that_are_written() -> None:
    names = {
        "dictionary<values=string, indices=int32, ordered=0>": "string",
        "int64": "long",
        "int32": "int",
        "int8": "byte",
    }
    names |= {"bool": "boolean", "double": "double"}
    assert ", ".join(f"{field.name} {names[str(field.type)]}" for field in SCHEMA) == events.DDL
    assert all(column in SCHEMA.names for columns in KINDS.values() for column in columns)
    assert isinstance(SCHEMA, pa.Schema)


def test_the_documentation_has_the_columns_types_and_units_of_the_schema() -> None:
    text = (
        (Path(__file__).parents[3] / "docs" / "reference" / "traces.md")
        .read_text()
        .split("## The tables")[0]
    )
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (\w+) \| (.+) \|$", text, re.MULTILINE)
    told = [(name, kind, what) for names, kind, what in rows for name in re.findall(r"\w+", names)]
    words = {"double": "float64"}
    have = [
        (
            field.name,
            "text"
            if pa.types.is_dictionary(field.type)
            else words.get(str(field.type), str(field.type)),
        )
        for field in SCHEMA
    ]
    assert [(name, kind) for name, kind, _ in told] == have
    units = {"at": "ns", "offset_ns": "ns", "error_ns": "ns", "cpu_s": "s", "dropped": "packets"}
    units |= dict.fromkeys(("size", "control_bytes", "data_bytes", "rss"), "bytes")
    assert {name: re.split(r"\W", what)[0] for name, _, what in told if name in units} == units
    kinds = dict(re.findall(r"^\| ([a-z, ]+) \| [^|`]+ \| (.+) \|$", text, re.MULTILINE))
    for kind, columns in KINDS.items():
        (cell,) = [cell for names, cell in kinds.items() if kind in names.split(", ")]
        assert not {column for column in columns if f"`{column}`" not in cell}, kind


def test_the_quickest_answer_gives_the_clocks_offset() -> None:
    offset, error = clock.best(
        [(1000, 5_000_600, 2000), (3000, 5_002_510, 3020), (4000, 5_009_000, 9000)]
    )
    assert (offset, error) == (5_002_510 - 3010, 10)
    with pytest.raises(clock.ClockError):
        clock.best([])


def test_two_machines_compare_their_clocks() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=clock.serve, args=(listener, 2), daemon=True)
        serving.start()
        port = listener.getsockname()[1]
        # What does not speak it is let go.
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with suppress(ConnectionError):
                assert stranger.recv(1) == b""
        offset, error = clock.measure("127.0.0.1", port, rounds=5)
        serving.join()
    assert abs(offset - (time.time_ns() - time.monotonic_ns())) < error + 50_000_000
    with pytest.raises(clock.ClockError, match="does not answer"):
        clock.measure("127.0.0.1", port, rounds=1)
