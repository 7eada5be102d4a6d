"""Traces of many small files as few large ones: nothing that becomes a table gets lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from bench.spark import pack, source
from bench.trace import Writer
from bench.trace.schema import KINDS

USED = ("scenario", "run", "host", "process", "kind", "at", "client", "topic", "size", "cpu_s")


def write(folder: Path, run: str, *, messages: int = 20) -> None:
    """Write a run with rows of several kinds by two processes."""
    for process in ("generator-0", "observer"):
        with Writer(folder / run / "trace", run=run, scenario="s", process=process) as out:
            out.subscribed(1, "c0", "b0", "a/#", 1)
            for number in range(messages):
                out.published(number, 0, number, "p0", "b0", "a/b", 1, 64, "small", 3)
                out.accepted(number + 1, 0, number, "p0", "b0")
                out.delivered(number + 2, 0, number, "c0", "b1", "a/b", 1, 64)
            out.link(5, "b0", "b1", 1, 2, 3, 4, 5)
            out.resources(6, "b0", "broker", 0.5, 1000, 3)
            out.note(7, "some words")


def rows(files: list[str], *names: str) -> list[tuple[Any, ...]]:
    """Return these columns of all files' rows, sorted."""
    found = []
    for file in files:
        with pq.ParquetFile(file) as opened:
            table = opened.read()
        every = [
            table[name].to_pylist() if name in table.column_names else [None] * len(table)
            for name in names
        ]
        found += list(zip(*every, strict=True))
    return sorted(found, key=repr)


def without(found: list[tuple[Any, ...]], columns: dict[str, int]) -> list[tuple[Any, ...]]:
    """Return rows without what packing leaves out: who wrote a message's row, and some columns."""
    result = []
    for row in found:
        kind = row[columns["kind"]]
        kept = {*pack.WHERE, "kind", *(pack.MESSAGES.get(kind) or pack.OTHERS[kind])}
        result.append(tuple(row[at] if name in kept else None for name, at in columns.items()))
    return sorted(result, key=repr)


def test_packed_rows_are_those_of_all_files(tmp_path: Path) -> None:
    for run in ("r0", "r1", "r2"):
        write(tmp_path / "runs", run)
    runs = source.read([str(tmp_path / "runs")])
    found = pack.pack(runs, tmp_path, group=50)
    assert found is not None
    files = [file for run in runs for file in run.files]
    wanted = without(rows(files, *USED), {name: at for at, name in enumerate(USED)})
    assert rows([*found.messages, *found.others], *USED) == wanted
    assert {kind for (kind,) in rows(found.messages, "kind")} == set(pack.MESSAGES)
    assert {path for (path,) in rows(found.others, "path")} == set(files)
    assert len(found.messages) <= 3


def test_every_kind_of_row_is_packed() -> None:
    assert {*pack.MESSAGES, *pack.OTHERS} == set(KINDS)


def test_rows_of_another_writer_are_packed_too(tmp_path: Path) -> None:
    # Row groups with several kinds, words without a dictionary, columns that are not there.
    folder = tmp_path / "runs" / "trace" / "scenario=s" / "run=r"
    folder.mkdir(parents=True)
    table = pa.table(
        {
            "scenario": ["s"] * 3,
            "run": ["r"] * 3,
            "host": ["h"] * 3,
            "process": ["p"] * 3,
            "kind": ["began", "published", "delivered"],
            "at": [1, 2, 3],
            "publisher": pa.array([None, 0, 0], pa.int32()),
            "sequence": [None, 7, 7],
            "topic": [None, "t", "t"],
            "offset_ns": [9, None, None],
        }
    )
    pq.write_table(
        table.replace_schema_metadata({"mqttree.trace": "1"}), folder / "p-00000.parquet"
    )
    found = pack.pack(source.read([str(tmp_path / "runs")]), tmp_path)
    assert found is not None
    wanted = [("delivered", 3, 0, 7, "t"), ("published", 2, 0, 7, "t")]
    assert rows(found.messages, "kind", "at", "publisher", "sequence", "topic") == wanted
    assert rows(found.others, "kind", "process", "offset_ns") == [("began", "p", 9)]


def test_nothing_is_packed_where_a_file_is_damaged(tmp_path: Path) -> None:
    write(tmp_path / "runs", "r", messages=2000)
    runs = source.read([str(tmp_path / "runs")])
    file = Path(runs[0].files[0])
    data = bytearray(file.read_bytes())
    data[4 : len(data) // 2] = bytes(len(data) // 2 - 4)
    file.write_bytes(data)
    assert pack.pack(runs, tmp_path) is None


def test_only_many_small_files_are_packed() -> None:
    def run(files: int, rows: int) -> source.Run:
        return source.Run("r", "s", files=["x"] * files, rows={"p": rows})

    assert pack.worthwhile([run(4, 1000), run(4, 1000)])
    assert not pack.worthwhile([run(7, 1000)])
    assert not pack.worthwhile([run(8, 8 * pack.MOST_ROWS)])
    assert not pack.worthwhile([run(0, 0)])
