"""Traces of many small files as few large ones, for the time of a report: Spark opens each file in
each query, which costs it some milliseconds a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mqttree.bench.tables.run import Run
from mqttree.bench.tables.traffic import COUNTED
from mqttree.bench.trace.schema import KINDS, SCHEMA

MIN_FILES = 8
"""Files below which to open them costs nothing that matters."""
MAX_ROWS = 100_000
"""Rows of a file, on average, from which on its rows cost more than its opening."""
GROUP = 1 << 18
"""Rows that are written, and read by a task, at a time."""
MESSAGES = {
    "published": ("publisher", "sequence", "broker", "topic", "flow", "size", "late"),
    "accepted": ("publisher", "sequence"),
    "delivered": ("publisher", "sequence", "client", "broker", "topic"),
}
"""What of the rows about messages becomes tables."""
TAPPED = {
    "forwarded": ("broker", "peer", "size"),
    "control": ("broker", "peer", "name", "size"),
}
"""What of the rows about single packets between brokers becomes tables."""
_UNUSED = {"qos", "dup", "detail", "dropped", "threads"}
"""What of no row becomes a table."""
OTHERS = {
    kind: ("process", *(name for name in columns if name not in _UNUSED))
    for kind, columns in KINDS.items()
    if kind not in MESSAGES and kind not in TAPPED
}
_WORD = SCHEMA.field("kind").type


class _Sort(NamedTuple):
    """Rows that come into files of their own: which columns these have of each kind, and in all."""

    kinds: dict[str, tuple[str, ...]]
    where: tuple[str, ...]
    more: tuple[pa.Field, ...]

    def schema(self) -> pa.Schema:
        """Return what such a file has."""
        used = {*self.where, "kind", *(name for names in self.kinds.values() for name in names)}
        return pa.schema([*(field for field in SCHEMA if field.name in used), *self.more])


_PLACE = (pa.field("place", pa.int32()),)
SORTS = {
    **{kind: _Sort({kind: names}, ("at",), _PLACE) for kind, names in MESSAGES.items()},
    "tapped": _Sort(TAPPED, ("at",), _PLACE),
    "others": _Sort(OTHERS, ("scenario", "run", "host", "at"), (pa.field("path", _WORD),)),
}
"""Rows are spread by what is asked for together, so that no query reads what it has no use for."""
_SORT = {kind: name for name, sort in SORTS.items() for kind in sort.kinds}


class Packed(NamedTuple):
    """Files with all rows of some runs that become tables, by their sort (SORTS).

    Rows that are neither about messages nor about single packets have one more column, `path`: the
    file that a row was in. All others have `place` instead of scenario, run and host: a number for
    which `places` has the run's number and the host.
    """

    files: dict[str, list[str]]
    places: dict[int, tuple[int, str]]
    others: int
    """Rows in the files of the sort others."""


def worthwhile(runs: Sequence[Run]) -> bool:
    """Whether the files of `runs` are so many and so small that it is faster to pack them first."""
    files = sum(len(run.files) for run in runs)
    rows = sum(sum(run.rows.values()) for run in runs)
    return files >= MIN_FILES and rows < files * MAX_ROWS


@contextmanager
def packing(runs: Sequence[Run]) -> Iterator[Callable[[], Packed | None]]:
    """Begin to pack `runs`, where that is worthwhile, while the caller goes on: what is yielded
    waits for it, and returns what `pack` does. The files last as long as the context."""
    if not worthwhile(runs):
        yield lambda: None
        return
    stop = Event()
    with (
        TemporaryDirectory(prefix="mqttree-traces-") as folder,
        ThreadPoolExecutor(1) as pool,
    ):
        try:
            yield pool.submit(pack, runs, Path(folder), stop=stop).result
        finally:
            stop.set()


def pack(
    runs: Sequence[Run], folder: Path, group: int = GROUP, stop: Event | None = None
) -> Packed | None:
    """Write the rows of `runs`, whose files are of this machine, to few files in a `folder`, as
    many as a `group` has at a time.

    None where one cannot be read or written: Spark then reads the files themselves, and names those
    that are damaged. None also when `stop` is set.
    """
    stop = stop or Event()
    shares = _shares(runs, min(os.cpu_count() or 1, len(runs)))
    try:
        with ThreadPoolExecutor(len(shares)) as pool:
            parts = [_Part(folder, number, len(shares), group) for number, _ in enumerate(shares)]
            done = list(pool.map(partial(_Part.take, stop=stop), parts, shares))
    except (OSError, pa.ArrowException):
        return None
    if stop.is_set():
        return None
    return Packed(
        {name: [part.targets[name].path for part in done] for name in SORTS},
        {place: found for part in done for place, found in part.places.items()},
        sum(part.targets["others"].rows for part in done),
    )


def _shares(runs: Sequence[Run], count: int) -> list[list[tuple[int, Run]]]:
    """Return the runs with their numbers as `count` shares of about as many files and rows."""
    loads = [0] * count
    shares: list[list[tuple[int, Run]]] = [[] for _ in range(count)]
    for number, run in sorted(enumerate(runs), key=lambda each: -sum(each[1].rows.values())):
        least = loads.index(min(loads))
        loads[least] += sum(run.rows.values()) + 10_000 * len(run.files)
        shares[least].append((number, run))
    return shares


class _Target:
    """A file that rows are written to, a group at a time."""

    def __init__(self, path: Path, schema: pa.Schema, group: int) -> None:
        self.path, self._schema, self._group = str(path), schema, group
        self.columns = frozenset(schema.names)
        self.rows = 0
        self._writer = pq.ParquetWriter(
            path, schema, compression="snappy", write_statistics=["kind"]
        )
        self._waiting: list[pa.Table] = []
        self._ready = 0

    def add(self, rows: pa.Table) -> None:
        """Take rows."""
        for at, name in enumerate(rows.column_names):
            wanted = self._schema.field(name).type
            if rows.schema.field(at).type != wanted:
                rows = rows.set_column(at, name, rows.column(at).cast(wanted))
        self._waiting.append(rows.replace_schema_metadata(None))
        self.rows += len(rows)
        self._ready += len(rows)
        if self._ready >= self._group:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            # What a kind does not fill is null. A column has one dictionary in a row group, else
            # its words are written out.
            empty = self._schema.empty_table()
            found = pa.concat_tables([empty, *self._waiting], promote_options="default")
            self._writer.write_table(found.unify_dictionaries(), row_group_size=self._group)
        self._waiting, self._ready = [], 0

    def close(self) -> None:
        """Write what is left."""
        self._flush()
        self._writer.close()


class _Part:
    """What one thread packs."""

    def __init__(self, folder: Path, number: int, parts: int, group: int) -> None:
        """The part with this `number` of so many `parts`."""
        self._number, self._parts = number, parts
        self.targets = {
            name: _Target(folder / f"{name}-{number}.parquet", sort.schema(), group)
            for name, sort in SORTS.items()
        }
        self.places: dict[int, tuple[int, str]] = {}
        self._known: dict[tuple[int, str], int] = {}

    def take(self, runs: Sequence[tuple[int, Run]], stop: Event) -> _Part:
        """Take all rows of these `runs`, and complete all targets; no more after `stop`."""
        for number, run in runs:
            for path in [] if stop.is_set() else run.files:
                with pq.ParquetFile(path) as file:
                    for kind, rows in _groups(file):
                        self._add(kind, rows, number, path)
        for target in self.targets.values():
            target.close()
        return self

    def _add(self, kind: str, rows: pa.Table, number: int, path: str) -> None:
        """Take rows of a `kind` ("": of several) that were in the file `path` of a run."""
        for each in [kind] if kind else rows["kind"].unique().to_pylist():
            name = _SORT.get(each)
            if name is None:
                continue
            mine = rows if kind else _of(rows, each)
            if each == "counted":
                words = mine["name"].cast(pa.string())
                mine = mine.filter(pc.is_in(words, pa.array(list(COUNTED))))
            if name == "others":
                mine = mine.append_column("path", _repeated(path, len(mine)))
            else:
                places = self._places(number, mine["host"])
                used = [word for word in mine.column_names if word in self.targets[name].columns]
                mine = mine.select(used).append_column("place", places)
            self.targets[name].add(mine)

    def _places(self, number: int, hosts: pa.ChunkedArray) -> pa.Array:
        """Return the numbers of a run's `hosts`, one for each row."""
        found = hosts.cast(pa.string()) if len(words := hosts.unique()) > 1 else None
        numbers = [self._place(number, str(word)) for word in words.to_pylist()]
        if found is None:
            return pa.repeat(pa.scalar(numbers[0] if numbers else 0, pa.int32()), len(hosts))
        which = pc.index_in(found, words.cast(pa.string()))
        return pa.array(numbers, pa.int32()).take(which.combine_chunks())

    def _place(self, number: int, host: str) -> int:
        place = self._known.get((number, host))
        if place is None:
            place = self._known[number, host] = len(self._known) * self._parts + self._number
            self.places[place] = number, host
        return place


def _groups(file: pq.ParquetFile) -> Iterator[tuple[str, pa.Table]]:
    """Yield the row groups of a file: which kind its rows are of, and the columns that this kind
    fills; "" and all columns where they are of several."""
    there = set(file.schema_arrow.names)
    at = file.schema_arrow.get_field_index("kind")
    for number in range(file.num_row_groups):
        said = file.metadata.row_group(number).column(at).statistics
        known = said is not None and said.has_min_max and said.min == said.max
        kind = str(said.min) if known else ""
        wanted = _columns(kind) if kind else {each for name in _SORT for each in _columns(name)}
        names = [name for name in SCHEMA.names if name in wanted and name in there]
        if kind and not names:
            continue
        yield kind, file.read_row_group(number, columns=names, use_threads=False)


def _columns(kind: str) -> set[str]:
    """Return the columns of rows of a `kind` that are needed."""
    name = _SORT.get(kind)
    if name is None:
        return set()
    return {"host", "kind", *SORTS[name].where, *SORTS[name].kinds[kind]}


def _of(rows: pa.Table, kind: str) -> pa.Table:
    """Return the rows of a `kind`, with the columns that it fills."""
    wanted = _columns(kind)
    names = [name for name in rows.column_names if name in wanted]
    return rows.filter(pc.equal(rows["kind"].cast(pa.string()), kind)).select(names)


def _repeated(word: str, count: int) -> pa.Array:
    """Return a column that has the same word `count` times."""
    return pa.DictionaryArray.from_arrays(
        pa.repeat(pa.scalar(0, pa.int32()), count), pa.array([word], pa.string())
    )
