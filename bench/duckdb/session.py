"""A database for the time of a report: in memory, and in a temporary folder what has no room."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb

from mqttree.bench.runner.book import UNSURE_NS
from mqttree.bench.spark import store

MOST_THREADS = 4
"""A set of some million rows gives no more of them work."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Bounds:
    """What a report keeps to.

    memory: what DuckDB may use at most, as a size that Spark's session takes, too. batch: rows of
    runs whose messages are looked at together: some hundred MB, with what is made of them; a run
    with more is one batch. unsure: ns around an interruption of a subscription in which messages
    need not have come.
    """

    memory: str = "2g"
    batch: int = 2_000_000
    unsure: int = UNSURE_NS


class Database:
    """Tables, and what is asked of them."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
        """`folder` takes files that last as long as the database."""
        self._connection, self._folder = connection, folder
        self._names = itertools.count()

    def fresh(self) -> Path:
        """Return the name of a file that has not been there. DuckDB keeps parts of files by their
        names."""
        return self._folder / f"{next(self._names)}.parquet"

    def run(self, query: str) -> None:
        """Carry out a `query` that has no answer."""
        self._ask(query)

    def rows(self, query: str) -> list[Row]:
        """Return the answer to a `query`, each row by the names of its columns."""
        names, found = self._ask(query)
        return [dict(zip(names, row, strict=True)) for row in found]

    def tuples(self, query: str) -> list[tuple[Any, ...]]:
        """Return the answer to a `query`."""
        return self._ask(query)[1]

    def some(self, query: str) -> bool:
        """Return whether the answer to a `query` has a row."""
        return bool(self.tuples(f"select 1 from ({query}) limit 1"))

    def make(self, name: str, query: str) -> None:
        """Make a table `name`, in place of one that had its name, of the answer to a `query`."""
        self.run(f"create or replace temp table {name} as {query}")

    def put(self, name: str, ddl: str, rows: Iterable[Sequence[Any]]) -> None:
        """Make a table `name` of `rows` with the columns that `ddl` declares ("name type, ...")."""
        self._connection.register("given", store.table(ddl, list(rows)))
        try:
            self.make(name, "select * from given")
        finally:
            self._connection.unregister("given")

    def _ask(self, query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return the names of an answer's columns, and its rows."""
        try:
            found = self._connection.execute(query)
            return [column[0] for column in found.description or ()], found.fetchall()
        except RuntimeError as error:
            # DuckDB has this in place of what the handler of a signal raised: Ctrl-C.
            if "interrupted" in str(error):
                raise KeyboardInterrupt from error
            raise


def threads() -> int:
    """Return how many threads a report gets."""
    return min(len(os.sched_getaffinity(0)), MOST_THREADS)


@contextmanager
def database(memory: str = "2g") -> Iterator[Database]:
    """Open a database that uses so much `memory` ("2g") at most, and a temporary folder."""
    with TemporaryDirectory(prefix="mqttree-duckdb-") as folder:
        spill = Path(folder) / "spill"
        connection = duckdb.connect(
            config={
                "memory_limit": f"{memory.rstrip('bB')}ib",
                "threads": threads(),
                "temp_directory": str(spill),
                # Nothing depends on the order of files, and to keep it costs memory.
                "preserve_insertion_order": False,
                # Nothing is fetched from a network.
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            }
        )
        try:
            yield Database(connection, Path(folder))
        finally:
            connection.close()
