"""What lies below a folder: descriptions of runs, complete trace files, and files that are not whole."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from bench.trace.schema import VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PLACE = re.compile(r"scenario=([^/]+)/run=([^/]+)/\.?([^/]+)-\d+\.parquet(\.part)?$")


class SourceError(ValueError):
    """There is nothing to read; the text is one line."""


@dataclass
class Run:
    """One run: its run.json (about), and what is there of its trace."""

    run: str
    scenario: str
    about: dict[str, Any] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    """Process -> rows in its complete files."""
    remarks: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    """Processes one of whose files is not whole."""

    @property
    def window(self) -> tuple[int, int] | None:
        """The measured time in ns of the coordinating host's monotonic clock, where it is known."""
        since, until = self.about.get("measure_from_ns"), self.about.get("measure_to_ns")
        return (since, until) if isinstance(since, int) and isinstance(until, int) and since < until else None


def read(folders: Iterable[str], spark: SparkSession | None = None) -> list[Run]:
    """Return all runs below the folders, in the order in which they began; folders may be URLs that Spark's file systems know.

    Every file's end is looked at: half-written ones are named in their run's remarks and left out. Raises SourceError.
    """
    runs: dict[str, Run] = {}
    given = list(folders)
    for folder in given:
        store: _Local | _Hadoop = _Hadoop(spark, folder) if "://" in folder and spark is not None else _Local(folder)
        found = sorted(store.walk())
        for path in found:
            if path.rsplit("/", 1)[-1] == "run.json":
                _describe(store, path, runs)
        for path in found:
            if place := _PLACE.search(path):
                _take(store, path, place, runs)
    if not runs:
        raise SourceError(f"no runs below {', '.join(given)}: neither run.json nor trace files")
    for run in runs.values():
        if not run.about:
            run.remarks.append("no run.json: parameters and measured time are not known")
        elif not run.files:
            run.remarks.append("no trace")
        for word in ("failures", "findings"):
            run.remarks += [str(text) for text in run.about.get(word) or []]
    return sorted(runs.values(), key=lambda run: (run.scenario, run.about.get("began") or 0, run.run))


def _describe(store: _Local | _Hadoop, path: str, runs: dict[str, Run]) -> None:
    try:
        about = json.loads(store.text(path))
        run, scenario = str(about["run"]), str(about["scenario"])
    except (ValueError, KeyError, TypeError) as error:
        name = "/".join(path.split("/")[-4:])
        runs[name] = Run(name, "unknown", {}, remarks=[f"run.json cannot be read: {type(error).__name__}: {error}"])
        return
    if run in runs:
        runs[run].remarks.append("its run.json is there twice")
        return
    runs[run] = Run(run, scenario, about)


def _take(store: _Local | _Hadoop, path: str, place: re.Match[str], runs: dict[str, Run]) -> None:
    scenario, name, process, part = place.groups()
    run = runs.setdefault(name, Run(name, scenario))
    if path in run.files:
        return
    if part:
        run.broken.add(process)
        run.remarks.append(f"{process}: its last file is half-written and left out; the process was ended while it wrote")
        return
    try:
        about, rows = store.footer(path)
    except ValueError as error:
        run.broken.add(process)
        run.remarks.append(f"{process}: {path.rsplit('/', 1)[-1]} is no whole Parquet file and left out ({error})")
        return
    version = about.get("mqttree.trace", "")
    if version != str(VERSION):
        run.broken.add(process)
        run.remarks.append(
            f"{process}: {path.rsplit('/', 1)[-1]} has schema {version or 'unknown'}, not {VERSION}, and is left out"
        )
        return
    run.files.append(path)
    run.rows[process] = run.rows.get(process, 0) + rows


def damaged(runs: Iterable[Run], file: str) -> bool:
    """Leave a file out that could not be read, as Spark names it; False if it is not one of these."""
    path = re.sub(r"^file:/+", "/", unquote(file))
    for run in runs:
        for each in run.files:
            if each in (path, file):
                name = each.rsplit("/", 1)[-1]
                process = re.sub(r"-\d+\.parquet$", "", name)
                run.files.remove(each)
                run.broken.add(process)
                run.remarks.append(f"{process}: {name} is damaged and left out")
                return True
    return False


class _Local:
    """Files of this machine."""

    def __init__(self, folder: str) -> None:
        self._root = Path(folder)
        if not self._root.is_dir():
            raise SourceError(f"{folder} is not a folder")

    def walk(self) -> Iterator[str]:
        for path in self._root.rglob("*"):
            if path.name == "run.json" or _PLACE.search(path.as_posix()):
                yield path.resolve().as_posix()

    def text(self, path: str) -> str:
        return Path(path).read_text(encoding="utf-8")

    def footer(self, path: str) -> tuple[dict[str, str], int]:
        """Return the metadata and the number of rows; ValueError if the file does not end as a Parquet file does."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            found = pq.read_metadata(path)
        except (OSError, pa.ArrowException) as error:
            raise ValueError(str(error).splitlines()[0].strip(" .")[:120]) from error
        return {key.decode(): value.decode("utf-8", "replace") for key, value in (found.metadata or {}).items()
                if key.startswith(b"mqttree.")}, found.num_rows  # fmt: skip


class _Hadoop:
    """Files of any file system that Spark reads; looked at by Spark's own libraries in the driver."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        context: Any = spark.sparkContext
        self._jvm, self._conf = context._jvm, context._jsc.hadoopConfiguration()
        self._root = self._jvm.org.apache.hadoop.fs.Path(folder)
        self._files = self._root.getFileSystem(self._conf)
        if not self._files.exists(self._root):
            raise SourceError(f"{folder} is not a folder")

    def walk(self) -> Iterator[str]:
        found = self._files.listFiles(self._root, True)
        while found.hasNext():
            path = found.next().getPath().toString()
            if path.endswith("/run.json") or _PLACE.search(path):
                yield path

    def text(self, path: str) -> str:
        stream = self._files.open(self._jvm.org.apache.hadoop.fs.Path(path))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def footer(self, path: str) -> tuple[dict[str, str], int]:
        from py4j.protocol import Py4JJavaError

        hadoop = self._jvm.org.apache.parquet.hadoop
        try:
            file = hadoop.util.HadoopInputFile.fromPath(self._jvm.org.apache.hadoop.fs.Path(path), self._conf)
            reader = hadoop.ParquetFileReader.open(file)
        except Py4JJavaError as error:
            raise ValueError(str(error.java_exception.getMessage()).splitlines()[0][-120:]) from error
        try:
            words = reader.getFooter().getFileMetaData().getKeyValueMetaData()
            return {"mqttree.trace": str(words.get("mqttree.trace") or "")}, int(reader.getRecordCount())
        finally:
            reader.close()
