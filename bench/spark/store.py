"""Where tables are put: files of this machine, or of any file system that Spark writes."""

from __future__ import annotations

import csv
import io
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from mqttree.bench.spark.session import cause
from mqttree.bench.spark.trace_files import url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
}
"""Types of columns, in Spark's words."""
PIECE = 1 << 20
"""Bytes that are handed to Java at a time."""


def table(ddl: str, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Return a table of `rows` with the columns that `ddl` declares ("name type, ...")."""
    words = [word.split(" ", 1) for word in ddl.split(", ")]
    columns = list(zip(*rows, strict=True)) or [()] * len(words)
    arrays = [
        pa.array([_typed(value, kind) for value in column], TYPES[kind])
        for column, (_, kind) in zip(columns, words, strict=True)
    ]
    return pa.table(arrays, names=[name for name, _ in words])


def _typed(value: Any, kind: str) -> Any:
    return float(value) if kind == "double" and value is not None else value


def as_parquet(found: pa.Table) -> bytes:
    """Return a table as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(found, sink)
    return sink.getvalue()


def as_csv(found: pa.Table) -> bytes:
    """Return a table as CSV with its columns' names in the first line; null is empty."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(found.column_names)
    for batch in found.to_batches():
        writer.writerows(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return text.getvalue().encode()


class Folder:
    """A folder for files that are written whole: each appears, by renaming, when it is complete, in
    place of what had its name."""

    def __init__(self, folder: str) -> None:
        """Make the `folder`. Raises ValueError, in one line, if that cannot be."""
        self._folder = Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"no tables can be written to {folder}: {error.strerror or error}"
            ) from error

    def put(self, name: str, data: bytes) -> None:
        """Write the file `name`. Raises ValueError in one line for a disk that does not take it."""
        file, part = self._folder / name, self._folder / f".{name}.part"
        try:
            part.write_bytes(data)
            if file.is_dir():
                shutil.rmtree(file)
            os.replace(part, file)
        except OSError as error:
            raise ValueError(f"{file} cannot be written: {error.strerror or error}") from error


class Store(Folder):
    """A folder that may be of any file system that Spark writes."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        """Make the `folder`, which may be a URL that `spark` knows. Raises ValueError, in one line,
        if that cannot be."""
        from py4j.protocol import Py4JJavaError

        self._url = url(folder)
        self._near = "://" not in folder
        self._folder = Path(folder)
        context: Any = spark.sparkContext
        self._path = context._jvm.org.apache.hadoop.fs.Path
        place = self._path(self._url)
        try:
            self._files = place.getFileSystem(context._jsc.hadoopConfiguration())
            made = self._files.mkdirs(place)
        except Py4JJavaError as error:
            raise ValueError(f"no tables can be written to {folder}: {cause(error)}") from error
        if not made:
            raise ValueError(f"no tables can be written to {folder}: it cannot be made")

    def put(self, name: str, data: bytes) -> None:
        """Write the file `name`. Raises ValueError in one line for a disk that does not take it,
        Py4JError for another file system that does not."""
        if self._near:
            super().put(name, data)
        else:
            self._put_by_spark(name, data)

    def _put_by_spark(self, name: str, data: bytes) -> None:
        file, part = (self._path(f"{self._url}/{each}") for each in (name, f".{name}.part"))
        stream = self._files.create(part, True)
        try:
            for start in range(0, len(data), PIECE):
                stream.write(data[start : start + PIECE])
        finally:
            stream.close()
        self._files.delete(file, True)
        self._files.rename(part, file)
