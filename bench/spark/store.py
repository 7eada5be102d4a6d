"""Where tables are put: files of this machine, or of any file system that Spark writes."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from mqttree.bench.spark.session import cause
from mqttree.bench.spark.trace_files import url
from mqttree.bench.tables.table_set import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIECE = 1 << 20
"""Bytes that are handed to Java at a time."""


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


class Store:
    """A folder, of any file system that Spark writes, for files that are written whole: each
    appears, by renaming, when it is complete, in place of what had its name."""

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
        if not self._near:
            self._put_by_spark(name, data)
            return
        file, part = self._folder / name, self._folder / f".{name}.part"
        try:
            part.write_bytes(data)
            if file.is_dir():
                shutil.rmtree(file)
            os.replace(part, file)
        except OSError as error:
            raise ValueError(f"{file} cannot be written: {error.strerror or error}") from error

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


def write(place: Store, tables: Tables, folder: str) -> list[str]:
    """Write every one of the `tables` as NAME.parquet and NAME.csv to a `place`, which is `folder`;
    return their names. Raises ValueError in one line where that cannot be.

    about.json has what is known of each run, sources.json where each is, beside or below the
    folder.
    """
    for name, found in tables.tables.items():
        place.put(f"{name}.parquet", as_parquet(found))
        place.put(f"{name}.csv", as_csv(found))
    whole = [line.run for line in tables.lines if not line.flow]
    place.put("sources.json", json.dumps([_beside(run.place, folder) for run in whole]).encode())
    # The last one: it is what says how old all are.
    place.put("about.json", json.dumps([run.about for run in whole]).encode())
    return sorted(tables.tables)


def _beside(place: str, folder: str) -> str:
    """Return a path as seen from a folder, so that both may be moved; a URL as it is."""
    if "://" in folder or not place.startswith("/"):
        return place
    return os.path.relpath(place, Path(folder).resolve())
