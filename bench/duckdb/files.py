"""Trace files as DuckDB reads them, and which of them are damaged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from mqttree.bench.duckdb.session import Database
from mqttree.bench.trace.schema import SCHEMA


class Files:
    """Some trace files, under names in which DuckDB takes no character for a pattern.

    The first one is empty and has every column, as older writers lack some.
    """

    def __init__(self, database: Database, name: str, files: Iterable[tuple[int, str]]) -> None:
        """Make a table `name` of these `files` (number of the run, path) in the `database`: its
        column `file` is each one's place among them."""
        first = database.fresh()
        pq.write_table(SCHEMA.empty_table(), first)
        links = [first]
        rows = []
        for at, (number, path) in enumerate(files, 1):
            link = database.fresh()
            link.symlink_to(Path(path).absolute())
            links.append(link)
            rows.append((at, number, path))
        database.put(name, "file long, no int, path string", rows)
        self._name, self._source = name, _parquet(links)

    def rows(self, columns: str, kinds: Sequence[str], more: str = "true") -> str:
        """Return a query for `t` and these `columns` of rows of these `kinds`, of which `more`
        holds.

        Of a row there are its columns as `r`, and as `h` its run's number (no), what is added to
        its time (moved), and the ends of its run's times, as in the table `host`.
        """
        words = ", ".join(f"'{kind}'" for kind in kinds)
        return f"""
            select r."at" + h.moved as t, {columns}
            from {self._source} r
            join {self._name} f on f.file = r.file_index
            join host h on h.no = f.no and h.host = r.host
            where r.kind in ({words}) and {more}
        """

    def plain(self, columns: str, kinds: Sequence[str]) -> str:
        """Return a query for these `columns` of rows of these `kinds`, as `r`, and of their files,
        as `f`."""
        words = ", ".join(f"'{kind}'" for kind in kinds)
        return f"""
            select {columns} from {self._source} r join {self._name} f on f.file = r.file_index
            where r.kind in ({words})
        """


def _parquet(files: Sequence[Path]) -> str:
    names = ", ".join("'" + str(file).replace("'", "''") + "'" for file in files)
    return f"read_parquet([{names}], union_by_name = true, hive_partitioning = false)"


def unreadable(database: Database, files: Sequence[str]) -> list[str]:
    """Return which of the `files` cannot be read to their end: every column of each is decoded, and
    what there is of a file is compared with what its end says."""
    return [file for file in files if not _whole(database, Path(file))]


def _whole(database: Database, file: Path) -> bool:
    link = database.fresh()
    link.symlink_to(file.absolute())
    try:
        said = pq.read_metadata(file).num_rows
        # To count a column without nulls it would not be decoded.
        (found,) = database.rows(
            f"select count(*) as rows, bit_xor(hash(columns(*))) from {_parquet([link])}"
        )
    except (OSError, pa.ArrowException, duckdb.Error):
        return False
    return bool(found["rows"] == said)
