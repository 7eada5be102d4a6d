"""Traces of many small files as few large ones, for the time of a report: Spark opens each file in
each query, which costs it some milliseconds a file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.spark.source import Run
from bench.trace.schema import KINDS, SCHEMA

LEAST_FILES = 8
"""Files below which to open them costs nothing that matters."""
MOST_ROWS = 100_000
"""Rows of a file, on average, from which on its rows cost more than its opening."""
GROUP = 1 << 18
"""Rows that are written, and read by a task, at a time."""
WHERE = ("scenario", "run", "host", "at")
MESSAGES = {
    "published": ("publisher", "sequence", "broker", "topic", "flow", "size", "late"),
    "accepted": ("publisher", "sequence"),
    "delivered": ("publisher", "sequence", "client", "broker", "topic"),
}
"""What of the rows about messages becomes tables."""
_UNUSED = {"qos", "dup", "detail", "dropped", "threads"}
"""What of no row becomes a table."""
OTHERS = {
    kind: ("process", *(name for name in columns if name not in _UNUSED))
    for kind, columns in KINDS.items()
    if kind not in MESSAGES
}


def _schema(kinds: dict[str, tuple[str, ...]], *more: pa.Field) -> pa.Schema:
    used = {name for columns in kinds.values() for name in columns} | {*WHERE, "kind"}
    return pa.schema([*(field for field in SCHEMA if field.name in used), *more])


_WORD = SCHEMA.field("kind").type
_MESSAGES_SCHEMA = _schema(MESSAGES)
_OTHERS_SCHEMA = _schema(OTHERS, pa.field("path", _WORD))


class Packed(NamedTuple):
    """Files with all rows of some runs: those about messages, and the others, which have one more
    column, `path`: the file that a row was in."""

    messages: list[str]
    others: list[str]


def worthwhile(runs: Sequence[Run]) -> bool:
    """Whether the files of `runs` are so many and so small that it is faster to pack them first."""
    files = sum(len(run.files) for run in runs)
    rows = sum(sum(run.rows.values()) for run in runs)
    return files >= LEAST_FILES and rows < files * MOST_ROWS


def pack(runs: Sequence[Run], folder: Path, group: int = GROUP) -> Packed | None:
    """Write the rows of `runs`, whose files are of this machine, to few files in a `folder`, as
    many as a `group` has at a time.

    None where one cannot be read or written: Spark then reads the files themselves, and names those
    that are damaged.
    """
    parts = _shares(runs, min(os.cpu_count() or 1, len(runs)))
    try:
        with ThreadPoolExecutor(len(parts)) as pool:
            done = list(pool.map(lambda each: _Part(folder, each[0], group).take(each[1]), parts))
    except (OSError, pa.ArrowException):
        return None
    return Packed([part.messages.path for part in done], [part.others.path for part in done])


def _shares(runs: Sequence[Run], count: int) -> list[tuple[int, list[str]]]:
    """Return the files of all runs as `count` numbered shares of about as many files and rows."""
    loads = [0] * count
    shares: list[list[str]] = [[] for _ in range(count)]
    for run in sorted(runs, key=lambda run: -sum(run.rows.values())):
        least = loads.index(min(loads))
        loads[least] += sum(run.rows.values()) + 10_000 * len(run.files)
        shares[least] += run.files
    return list(enumerate(shares))


class _Target:
    """A file that rows are written to, a group at a time."""

    def __init__(self, path: Path, schema: pa.Schema, group: int) -> None:
        self.path, self._schema, self._group = str(path), schema, group
        self._writer = pq.ParquetWriter(
            path, schema, compression="snappy", write_statistics=["kind", "run"]
        )
        self._waiting: list[pa.Table] = []
        self._rows = 0

    def add(self, rows: pa.Table, path: str) -> None:
        """Take rows that were in the file `path`."""
        for place, name in enumerate(rows.column_names):
            wanted = self._schema.field(name).type
            if rows.schema.field(place).type != wanted:
                rows = rows.set_column(place, name, rows.column(place).cast(wanted))
        if "path" in self._schema.names:
            rows = rows.append_column("path", _repeated(path, len(rows)))
        self._waiting.append(rows.replace_schema_metadata(None))
        self._rows += len(rows)
        if self._rows >= self._group:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            # What a kind does not fill is null. A column has one dictionary in a row group, else
            # its words are written out.
            empty = self._schema.empty_table()
            found = pa.concat_tables([empty, *self._waiting], promote_options="default")
            self._writer.write_table(found.unify_dictionaries(), row_group_size=self._group)
        self._waiting, self._rows = [], 0

    def close(self) -> None:
        """Write what is left."""
        self._flush()
        self._writer.close()


class _Part:
    """What one thread packs."""

    def __init__(self, folder: Path, number: int, group: int) -> None:
        self.messages = _Target(folder / f"messages-{number}.parquet", _MESSAGES_SCHEMA, group)
        self.others = _Target(folder / f"others-{number}.parquet", _OTHERS_SCHEMA, group)

    def take(self, files: Sequence[str]) -> _Part:
        """Take all rows of these `files`, and complete both targets."""
        for path in files:
            with pq.ParquetFile(path) as file:
                for kind, rows in _groups(file):
                    if kind in MESSAGES:
                        self.messages.add(rows, path)
                    elif kind:
                        self.others.add(rows, path)
                    else:
                        about, others = _split(rows)
                        self.messages.add(about, path)
                        self.others.add(others, path)
        self.messages.close()
        self.others.close()
        return self


def _groups(file: pq.ParquetFile) -> Iterator[tuple[str, pa.Table]]:
    """Yield the row groups of a file: which kind its rows are of, and the columns that this kind
    fills; "" and all columns where they are of several."""
    there = set(file.schema_arrow.names)
    place = file.schema_arrow.get_field_index("kind")
    every = {name for columns in (*MESSAGES.values(), *OTHERS.values()) for name in columns}
    for number in range(file.num_row_groups):
        said = file.metadata.row_group(number).column(place).statistics
        known = said is not None and said.has_min_max and said.min == said.max
        kind = str(said.min) if known else ""
        wanted = MESSAGES.get(kind) or OTHERS.get(kind) or (() if kind else every)
        names = [name for name in (*WHERE, "kind", *wanted) if name in there]
        yield kind, file.read_row_group(number, columns=names, use_threads=False)


def _split(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows about messages, with their columns, and the others, with theirs."""
    about = pc.is_in(rows["kind"].cast(pa.string()), pa.array(list(MESSAGES)))
    found = []
    for part, schema in ((about, _MESSAGES_SCHEMA), (pc.invert(about), _OTHERS_SCHEMA)):
        names = [name for name in rows.column_names if name in schema.names]
        found.append(rows.filter(part).select(names))
    return found[0], found[1]


def _repeated(word: str, count: int) -> pa.Array:
    """Return a column that has the same word `count` times."""
    return pa.DictionaryArray.from_arrays(
        pa.repeat(pa.scalar(0, pa.int32()), count), pa.array([word], pa.string())
    )
