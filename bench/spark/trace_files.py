"""Trace files as Spark reads them: their rows, how many there are, and which files are damaged."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

DDL = (
    "scenario string, run string, host string, process string, kind string, at long, "
    "publisher int, sequence long, client string, broker string, peer string, topic string, "
    "qos byte, dup boolean, flow string, size long, name string, detail string, count long, "
    "control_bytes long, data_bytes long, dropped long, cpu_s double, rss long, threads int, "
    "offset_ns long, error_ns long, late long"
)
"""mqttree.bench.trace.schema.SCHEMA in Spark's words."""
COLUMNS = tuple(word.split(" ", 1)[0] for word in DDL.split(", "))
LENIENT = "ignoreCorruptFiles"
"""The option of Spark by which a read goes on without a file that it cannot read, or the rest of
it."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def url(path: str) -> str:
    """Return a path as a URL: one without a scheme is of this machine, whatever file system a
    cluster takes it for."""
    return path if _SCHEME.match(path) else f"file://{os.path.abspath(path)}"


def literal(path: str) -> str:
    """Return a path's URL, in which Spark takes no character for a pattern: folders are named after
    factors, maybe lists."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", url(path))


def read(
    spark: SparkSession, files: Iterable[str], *, lenient: bool = False, ddl: str = DDL
) -> DataFrame:
    """Return the rows of trace `files`, which `spark` reads, with the columns of `ddl`; `lenient`:
    of those, and of those parts, that can be read."""
    reader = spark.read.schema(ddl).option(LENIENT, str(lenient).lower())
    return reader.parquet(*map(literal, files))


def rows_of(spark: SparkSession, files: Sequence[str]) -> dict[str, int]:
    """Return how many rows each of the `files` has, by path, from the files' ends alone: a job of
    the executors reads them. One whose end is not whole, or that has no rows, is not in it."""
    if not files:
        return {}
    return _by_file(files, _counts(read(spark, files, lenient=True)))


def unreadable(spark: SparkSession, files: Sequence[str]) -> list[str]:
    """Return which of the `files` cannot be read to their end: a job of the executors decodes every
    column of each, and what it has of a file is compared with what the file's end says."""
    from pyspark.sql import functions as sf

    if not files:
        return []
    every = [sf.count(name).alias(f"of_{name}") for name in COLUMNS]
    decoded = _counts(read(spark, files, lenient=True), *every)
    had, said = _by_file(files, decoded), rows_of(spark, files)
    return [file for file in files if file not in said or had.get(file) != said[file]]


def _counts(rows: DataFrame, *more: Column) -> dict[str, int]:
    """Return the rows of each file, as Spark calls it."""
    from pyspark.sql import functions as sf

    path = sf.col("_metadata.file_path").alias("path")
    found = rows.groupBy(path).agg(sf.count("*").alias("rows"), *more).collect()
    return {row["path"]: row["rows"] for row in found}


def _by_file(files: Sequence[str], counts: dict[str, int]) -> dict[str, int]:
    known = {name: rows for path, rows in counts.items() for name in names(path)}
    return {file: known[name] for file in files if (name := bare(file)) in known}


def names(path: str) -> set[str]:
    """Return how a path that Spark gives may be called elsewhere: it says file:///a%20b where
    Hadoop says file:/a b, and Python /a b."""
    return {bare(path), bare(unquote(path))}


def same(path: str, file: str) -> bool:
    """Whether `path` is the file that Spark calls `file`."""
    return bare(path) in names(file)


def bare(path: str) -> str:
    """Return a path of this machine without `file:`; any other URL as it is."""
    return re.sub(r"^file:/+", "/", path)
