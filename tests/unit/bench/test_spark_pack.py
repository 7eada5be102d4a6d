"""Traces of many small files as few large ones: nothing that becomes a table gets lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from mqttree.bench.spark import pack, source
from mqttree.bench.trace import Writer
from mqttree.bench.trace.schema import KINDS

pytestmark = pytest.mark.interop

USED = ("process", "kind", "at", "client", "topic", "size", "cpu_s")


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
            out.control(5, "b0", "b1", "pingreq", 68)
            out.counted(6, "b0", "link_bytes_data", 9)
            out.counted(6, "b0", "retained", 9)
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


def needed(found: Iterable[Sequence[Any]], columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Return rows without what packing leaves out: what of no row becomes a table."""
    kinds = {kind: names for sort in pack.SORTS.values() for kind, names in sort.kinds.items()}
    at = columns.index("kind")
    return sorted(
        (
            tuple(
                value if name in ("kind", "at", *kinds[row[at]]) else None
                for name, value in zip(columns, row, strict=True)
            )
            for row in found
        ),
        key=repr,
    )


def test_packed_rows_are_those_of_all_files(tmp_path: Path) -> None:
    for run in ("r0", "r1", "r2"):
        write(tmp_path / "runs", run)
    runs = source.read([str(tmp_path / "runs")])
    found = pack.pack(runs, tmp_path, group=50)
    assert found is not None
    files = [file for run in runs for file in run.files]
    every = [path for paths in found.files.values() for path in paths]
    # A counter that becomes no table is left out.
    wanted = [row for *row, name in rows(files, *USED, "name") if name != "retained"]
    assert rows(every, *USED) == needed(wanted, USED)
    for name, paths in found.files.items():
        assert {kind for (kind,) in rows(paths, "kind")} <= set(pack.SORTS[name].kinds)
        assert len(paths) <= 3
    mine = found.files["others"]
    assert {path for (path,) in rows(mine, "path")} == set(files)
    assert {run for (run,) in rows(mine, "run")} == {"r0", "r1", "r2"}
    assert found.others == len(rows(mine, "kind"))


def test_places_are_the_runs_and_hosts_of_rows(tmp_path: Path) -> None:
    for run, hosts in (("r0", ("h0", "h1")), ("r1", ("h1",))):
        for host in hosts:
            where = tmp_path / "runs" / run / "trace"
            with Writer(where, run=run, scenario="s", process=f"p-{host}", host=host) as out:
                out.delivered(int(f"1{run[1]}{host[1]}"), 0, 0, "c0", "b1", "t", 1, 64)
    found = pack.pack(source.read([str(tmp_path / "runs")]), tmp_path)
    assert found is not None
    assert {
        at: found.places[place] for at, place in rows(found.files["delivered"], "at", "place")
    } == {100: (0, "h0"), 101: (0, "h1"), 111: (1, "h1")}


def test_every_kind_of_row_is_packed() -> None:
    assert sorted(kind for sort in pack.SORTS.values() for kind in sort.kinds) == sorted(KINDS)


def test_rows_of_another_writer_are_packed_too(tmp_path: Path) -> None:
    # Row groups with several kinds, words without a dictionary, columns that are not there.
    folder = tmp_path / "runs" / "trace" / "scenario=s" / "run=r"
    folder.mkdir(parents=True)
    table = pa.table(
        {
            "scenario": ["s"] * 3,
            "run": ["r"] * 3,
            "host": ["h", "h", "g"],
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
    names = ("at", "publisher", "sequence", "topic")
    assert rows(found.files["published"], *names) == [(2, 0, 7, "t")]
    assert rows(found.files["delivered"], *names) == [(3, 0, 7, "t")]
    assert rows(found.files["others"], "kind", "process", "offset_ns") == [("began", "p", 9)]
    hosts = [
        found.places[place][1]
        for name in ("published", "delivered")
        for (place,) in rows(found.files[name], "place")
    ]
    assert hosts == ["h", "g"]


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
    assert not pack.worthwhile([run(8, 8 * pack.MAX_ROWS)])
    assert not pack.worthwhile([run(0, 0)])
