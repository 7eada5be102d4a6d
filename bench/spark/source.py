"""What lies below a folder: descriptions of runs, complete trace files, and files that are not
whole."""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mqttree.bench.spark import trace_files
from mqttree.bench.spark.session import cause
from mqttree.bench.tables.described import checked
from mqttree.bench.tables.run import PLACE, Run
from mqttree.bench.trace.schema import VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = "*-*[0-9][0-9][0-9][0-9][0-9].parquet"
"""The names of complete trace files, which no file of a table has, as a pattern of file systems."""
_UNREAD = "run.json cannot be read"
READERS = 8
"""Threads that read the ends of this machine's files: they wait for the disk."""


class SourceError(ValueError):
    """There is nothing to read; the text is one line."""


_Runs = dict[tuple[str, str], Run]
"""(scenario, run) -> run."""


class _Taken(NamedTuple):
    """A complete file of a run, whose end is not read yet."""

    run: Run
    process: str
    path: str


class _End(NamedTuple):
    """What the end of a file says: its metadata (empty where that is not read) and rows; or why it
    says nothing."""

    said: dict[str, str]
    rows: int
    wrong: str = ""


def read(folders: Iterable[str], spark: SparkSession | None = None) -> list[Run]:
    """Return all runs below the folders, in the order in which they began; folders may be URLs that
    Spark's file systems know.

    Every file's end is looked at, on a cluster by a job of it: half-written ones are named in their
    run's remarks and left out. `spark` reads what is given as a URL. Raises SourceError.
    """
    runs: _Runs = {}
    unread: dict[str, str] = {}
    given = list(folders)
    for folder in given:
        place = store(folder, spark)
        found = sorted(place.walk())
        for path in found:
            if path.rsplit("/", 1)[-1] == "run.json":
                _describe(place, path, runs, unread)
        taken = [
            each
            for path in found
            if (names := PLACE.search(path)) and (each := _take(path, names, runs)) is not None
        ]
        for each, end in zip(taken, place.ends([each.path for each in taken]), strict=True):
            _keep(each, end)
    _join(unread, runs)
    if not runs:
        raise SourceError(f"no runs below {', '.join(given)}: neither run.json nor trace files")
    for run in runs.values():
        if not run.about:
            if not any(remark.startswith(_UNREAD) for remark in run.remarks):
                run.remarks.append("no run.json: parameters and measured time are not known")
        elif not run.files:
            run.remarks.append("no trace")
        for process in (
            [each["name"] for each in run.about.get("processes") or []] if run.files else []
        ):
            # The network writes only where there is one that sees packets.
            if (
                not process.startswith("network")
                and process not in run.rows
                and process not in run.broken
            ):
                run.broken.add(process)
                run.remarks.append(f"{process}: no trace")
        for word in ("failures", "findings"):
            run.remarks += [str(text) for text in run.about.get(word) or []]
    return sorted(
        runs.values(), key=lambda run: (run.scenario, run.about.get("began") or 0, run.run)
    )


def store(folder: str, spark: SparkSession | None = None) -> _Local | _Hadoop:
    """Return what reads below a folder; raises SourceError, in one line, where there is none."""
    return _Hadoop(spark, folder) if "://" in folder and spark is not None else _Local(folder)


def _describe(store: _Local | _Hadoop, path: str, runs: _Runs, unread: dict[str, str]) -> None:
    """Take a run.json; one that cannot be read goes into unread (folder -> why)."""
    try:
        about = json.loads(store.text(path))
        run, scenario = str(about["run"]), str(about["scenario"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        text = str(error).splitlines()[0] if str(error) else ""
        unread[path.rsplit("/", 1)[0]] = f"{_UNREAD}: {type(error).__name__}: {text}"
        return
    if other := runs.get((scenario, run)):
        if other.place != path:
            other.remarks.append("its run.json is there twice")
        return
    found, remarks = checked(about)
    runs[scenario, run] = Run(run, scenario, found, path, remarks=remarks)


def _join(unread: dict[str, str], runs: _Runs) -> None:
    """Put each run.json that cannot be read to the trace beside it, or make a run of it that has
    nothing else."""
    for folder, why in unread.items():
        places = (f"{folder}/scenario=", f"{folder}/trace/scenario=")
        beside = [run for run in runs.values() if not run.about and run.place.startswith(places)]
        name = "/".join([*folder.split("/")[-3:], "run.json"])
        for run in beside or [
            runs.setdefault(("unknown", name), Run(name, "unknown", place=f"{folder}/run.json"))
        ]:
            run.remarks.append(why)


def _take(path: str, place: re.Match[str], runs: _Runs) -> _Taken | None:
    """Return a complete file as one of its run; None for one that is left out, with a remark."""
    scenario, name, process, part = place.groups()
    run = runs.setdefault((scenario, name), Run(name, scenario, place=path.rsplit("/", 1)[0]))
    file = path.rsplit("/", 1)[-1]
    if file in run.seen:
        if run.seen[file] != path:  # a copy of the folder
            run.remarks.append(f"{process}: {file} is there twice, the second one is left out")
        return None
    run.seen[file] = path
    if part:
        run.broken.add(process)
        run.remarks.append(
            f"{process}: its last file is half-written and left out; "
            "the process was ended while it wrote"
        )
        return None
    return _Taken(run, process, path)


def _keep(taken: _Taken, end: _End) -> None:
    """Make a file one of its run's, or leave it out with a remark, by what its end says."""
    run, process, path = taken
    file, wrong = path.rsplit("/", 1)[-1], ""
    version = end.said.get("mqttree.trace", "")
    owners = ((word, end.said.get(f"mqttree.{word}")) for word in ("run", "scenario"))
    mine = {"run": run.run, "scenario": run.scenario}
    if end.wrong:
        wrong = f"is no whole Parquet file and left out ({end.wrong})"
    elif end.said and version != str(VERSION):
        wrong = f"has schema {version or 'unknown'}, not {VERSION}, and is left out"
    elif others := [f"{word} {owner}" for word, owner in owners if owner not in (None, mine[word])]:
        wrong = f"is of {others[0]}, not of its folder's, and is left out"
    if wrong:
        run.broken.add(process)
        run.remarks.append(f"{process}: {file} {wrong}")
        return
    run.files.append(path)
    run.rows[process] = run.rows.get(process, 0) + end.rows


def there(path: str, spark: SparkSession) -> bool:
    """Whether a file that was there still is."""
    if "://" not in path and not path.startswith("file:"):
        return Path(path).exists()
    context: Any = spark.sparkContext
    file = context._jvm.org.apache.hadoop.fs.Path(path)
    return bool(file.getFileSystem(context._jsc.hadoopConfiguration()).exists(file))


def damaged(runs: Iterable[Run], file: str) -> bool:
    """Leave a file out that could not be read, as Spark names it; False if it is not one of
    these."""
    for run in runs:
        for each in run.files:
            if trace_files.same(each, file):
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
            if path.name == "run.json" or PLACE.search(path.as_posix()):
                yield path.resolve().as_posix()

    def text(self, path: str) -> str:
        return Path(path).read_text(encoding="utf-8")

    def ends(self, paths: Sequence[str]) -> Iterable[_End]:
        """Return what the end of each file says."""
        with ThreadPoolExecutor(READERS) as pool:
            return list(pool.map(_local_end, paths))


def _local_end(path: str) -> _End:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        found = pq.read_metadata(path)
    except (OSError, pa.ArrowException) as error:
        return _End({}, 0, str(error).splitlines()[0].strip(" .")[:120])
    said = {
        key.decode(): value.decode("utf-8", "replace")
        for key, value in (found.metadata or {}).items()
        if key.startswith(b"mqttree.")
    }
    # A file of something else has none of these words, and is of no version.
    return _End(said or {"mqttree.trace": ""}, found.num_rows)


class _Hadoop:
    """Files of any file system that Spark reads; listed by Spark's own libraries in the driver, and
    looked at by its executors."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        from py4j.protocol import Py4JJavaError

        context: Any = spark.sparkContext
        self._spark, self._jvm = spark, context._jvm
        conf = context._jsc.hadoopConfiguration()
        try:
            self._root = self._jvm.org.apache.hadoop.fs.Path(folder)
            self._files = self._root.getFileSystem(conf)
            there = self._files.exists(self._root)
        except Py4JJavaError as error:
            raise SourceError(f"{folder} cannot be read: {cause(error)}") from error
        if not there:
            raise SourceError(f"{folder} is not a folder")

    def walk(self) -> Iterator[str]:
        found = self._files.listFiles(self._root, True)
        while found.hasNext():
            path = found.next().getPath().toString()
            if path.endswith("/run.json") or PLACE.search(path):
                yield path

    def text(self, path: str) -> str:
        stream = self._files.open(self._jvm.org.apache.hadoop.fs.Path(path))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def ends(self, paths: Sequence[str]) -> Iterable[_End]:
        """Return how many rows each file has; what its metadata would say, the rows say, too."""
        found = trace_files.rows_of(self._spark, paths)
        return [
            _End({}, found[path]) if path in found else _End({}, 0, "nothing can be read of it")
            for path in paths
        ]


class Set(NamedTuple):
    """Folders whose runs come into the same tables, where these go, and the runs where they can be
    seen without Spark."""

    folders: list[str]
    out: str
    runs: list[Run] | None


def add_folders(parser: argparse.ArgumentParser) -> None:
    """Add what `sets` takes to what a `parser` takes."""
    parser.add_argument(
        "folders",
        nargs="+",
        metavar="DIR",
        help="folders, or URLs that Spark's file systems know, above run.json files",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="where the tables go (DIR/tables of the first folder)"
    )
    parser.add_argument(
        "--each",
        action="store_true",
        help="tables of each folder by itself, in its own DIR/tables",
    )


def sets(given: list[str], out: str | None, *, each: bool) -> list[Set]:
    """Return what tables are to be made of. Raises ValueError, in one line, for a folder without
    runs and one that takes no files, where that shows without Spark.

    `given`: folders or URLs; `out`: where the tables go (None: into the first folder); `each`:
    whether each folder has tables by itself, in it.
    """
    if each and out:
        raise ValueError("--each writes into each folder; it takes no --out")
    found = []
    for folders in [[folder] for folder in given] if each else [given]:
        place = out or f"{folders[0].rstrip('/')}/tables"
        near = all("://" not in folder for folder in folders)
        runs = read(folders) if near else None
        if "://" not in place:
            _check_writable(place)
        found.append(Set(folders, place, runs))
    return found


def _check_writable(folder: str) -> None:
    """Raise ValueError if no files can be put into a folder of this machine: before the work, not
    after it."""
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise ValueError(
            f"no tables can be written to {folder}: {error.strerror or error}"
        ) from error
