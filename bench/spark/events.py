"""The rows of all runs as Spark data frames with one common time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from pyspark.sql import functions as sf

from bench.spark.pack import Packed
from bench.spark.session import kept, partitions
from bench.spark.source import PLACE, Run
from bench.spark.trace_files import DDL, read
from bench.trace.repair import FOREVER
from bench.trace.schema import VERSION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHUNK = 1 << 18
"""Neighbouring messages of a publisher that one task looks at: a run of one publisher is spread,
too."""
MESSAGES = ("published", "accepted", "delivered")
TAPPED = ("forwarded", "control")
"""Single packets between brokers: of some runs there are more of them than messages."""
SECOND = 1_000_000_000
FEW = 12_000_000
"""Rows of a set up to which what several queries need is kept between them, on disk where there is
no room: they would open every file again, and most files are small. Of more rows to keep them costs
as much as to read them again."""
ONE_TASK = 500_000
"""Rows up to which all of them are one part, which no query has to spread by what it groups and
sorts by."""


@dataclass
class Events:
    """The rows of all runs, with `no` (the run's index), `t` (ns; of one host its own clock, of
    several ns since the epoch) and `zero` (t of the run's first event, null where it is not known).

    messages, tapped: the rows of MESSAGES and of TAPPED. others: all other rows. sorts: rows of a
    single kind of MESSAGES, where these are by themselves.

    few: whether there are so few rows that what several queries need should be kept. zeros: of each
    run. spread: how many parts messages are put into. windows, loads: the measured time of each
    run, and that of its whole load, on the scale of t, where known. subscribed: runs that note any
    subscription.
    """

    spark: SparkSession
    runs: list[Run]
    messages: DataFrame
    tapped: DataFrame
    others: DataFrame
    sorts: dict[str, DataFrame]
    few: bool
    spread: int
    windows: list[tuple[int, int]]
    loads: list[tuple[int, int]]
    zeros: list[int | None]
    subscribed: set[int]
    placed: Callable[[DataFrame], DataFrame]
    """Adds `no`, `t` and the like to rows of traces."""

    def only(self, numbers: Iterable[int]) -> Events:
        """Return the same with the messages of these runs alone; no other run's files are read,
        unless they are packed."""
        mine = sorted(set(numbers))
        if self.sorts:
            own = sf.col("no").isin(mine)
            sorts = {kind: rows.where(own) for kind, rows in self.sorts.items()}
            return replace(self, messages=self.messages.where(own), sorts=sorts)
        files = [file for number in mine for file in self.runs[number].files]
        about = sf.col("kind").isin(*MESSAGES)
        return replace(self, messages=self.placed(read(self.spark, files).where(about)))

    def of(self, *kinds: str) -> DataFrame:
        """Return the rows of these kinds, all of MESSAGES, all of TAPPED, or none of both."""
        if len(kinds) == 1 and kinds[0] in self.sorts:
            return self.sorts[kinds[0]]
        rows = self.others
        if kinds[0] in MESSAGES:
            rows = self.messages
        elif kinds[0] in TAPPED:
            rows = self.tapped
        return rows.where(sf.col("kind").isin(*kinds))


def small(spark: SparkSession, ddl: str, rows: Iterable[Sequence[Any]]) -> DataFrame:
    """Return a small table of `rows` with the columns that `ddl` declares. `spark` makes it in the
    JVM, so that no executor needs Python."""
    schema = f"array<struct<{', '.join(word.replace(' ', ':', 1) for word in ddl.split(', '))}>>"
    names = [word.split(" ", 1)[0] for word in ddl.split(", ")]
    text = json.dumps([dict(zip(names, row, strict=True)) for row in rows])
    return spark.range(1).select(sf.inline(sf.from_json(sf.lit(text), schema)))


class _Raw(NamedTuple):
    """Rows as files have them: of MESSAGES, of TAPPED, and all others with the `path` of their
    file; sorts: as in Events."""

    messages: DataFrame
    tapped: DataFrame
    others: DataFrame
    sorts: dict[str, DataFrame]


def _rows(spark: SparkSession, runs: Sequence[Run], packed: Packed | None) -> _Raw:
    """Return the rows of all runs."""
    if packed is not None:
        placed = f"{DDL}, place int"
        sorts = {kind: read(spark, packed.files[kind], ddl=placed) for kind in MESSAGES}
        every = [file for kind in MESSAGES for file in packed.files[kind]]
        return _Raw(
            read(spark, every, ddl=placed),
            read(spark, packed.files["tapped"], ddl=placed),
            read(spark, packed.files["others"], ddl=f"{DDL}, path string"),
            sorts,
        )
    files = [file for run in runs for file in run.files]
    raw = read(spark, files) if files else spark.createDataFrame(spark.sparkContext.emptyRDD(), DDL)
    path = sf.col("_metadata.file_path") if files else sf.lit("")
    kind = sf.col("kind")
    others = raw.where(~kind.isin(*MESSAGES, *TAPPED)).withColumn("path", path)
    return _Raw(raw.where(kind.isin(*MESSAGES)), raw.where(kind.isin(*TAPPED)), others, {})


def load(spark: SparkSession, runs: list[Run], packed: Packed | None = None) -> Events:
    """Return the events of these runs, and look at their processes: those that did not end are
    named in the runs' remarks. `spark` reads the files of `runs`, or what is `packed` of them."""
    count = sum(sum(run.rows.values()) for run in runs)
    spread, few = partitions(spark, count), count <= FEW
    spark.conf.set("spark.sql.shuffle.partitions", str(spread))
    raw = _rows(spark, runs, packed)
    others = raw.others
    if few:
        if packed is not None and packed.others <= ONE_TASK:
            others = others.coalesce(1)
        others = kept(others)
    marks = _marks(others)
    if _strangers(marks, runs) or _foreign(marks, runs):
        return load(spark, runs)
    numbers = {(run.scenario, run.run): number for number, run in enumerate(runs)}
    clocks = _clocks(marks, numbers, runs)
    offsets: list[dict[str, int]] = [{} for _ in runs]
    for (number, host), offset in clocks.items():
        offsets[number][host] = offset
    windows = [_window(run, mine, run.window) for run, mine in zip(runs, offsets, strict=True)]
    loads = [_window(run, mine, run.load) for run, mine in zip(runs, offsets, strict=True)]
    zeros = _zeros(marks, runs, offsets)
    hosts = {
        (number, host): (number, offset, *windows[number], *loads[number], zeros[number])
        for number, mine in enumerate(offsets)
        for host, offset in sorted(mine.items())
    }
    placed = _by_name(spark, runs, hosts)
    of_messages = placed if packed is None else _by_place(spark, packed, hosts)
    return Events(
        spark,
        runs,
        of_messages(raw.messages),
        of_messages(raw.tapped),
        placed(others.drop("path")),
        {kind: of_messages(rows) for kind, rows in raw.sorts.items()},
        few,
        spread,
        windows,
        loads,
        zeros,
        {numbers[row["scenario"], row["run"]] for row in marks if row["kind"] == "subscribed"},
        placed,
    )


_Hosts = Mapping[tuple[int, str], tuple[int | None, ...]]
"""(number of the run, host) -> what its rows get: _PLACED."""
_PLACED = "no int, offset long, since long, until long, load_since long, load_until long, zero long"


def _joined(rows: DataFrame, where: DataFrame, key: list[str]) -> DataFrame:
    """Return `rows` with what `where` has for their `key`, and their `t`."""
    found = rows.join(sf.broadcast(where), key)
    return found.withColumn("t", sf.col("at") + sf.col("offset")).drop("offset")


def _by_name(
    spark: SparkSession, runs: Sequence[Run], hosts: _Hosts
) -> Callable[[DataFrame], DataFrame]:
    """Return what places rows that say of which run and host they are."""
    places = [
        (runs[number].scenario, runs[number].run, host, *each)
        for (number, host), each in hosts.items()
    ]
    where = small(spark, f"scenario string, run string, host string, {_PLACED}", places)
    key = ["run", "host"]
    if len({run.run for run in runs}) < len(runs):
        key.append("scenario")
    else:  # a comparison less for each row
        where = where.drop("scenario")
    return partial(_joined, where=where, key=key)


def _by_place(
    spark: SparkSession, packed: Packed, hosts: _Hosts
) -> Callable[[DataFrame], DataFrame]:
    """Return what places rows that say it by the number of a place."""
    places = [(place, *hosts[of]) for place, of in packed.places.items() if of in hosts]
    where = small(spark, f"place int, {_PLACED}", places)
    return partial(_joined, where=where, key=["place"])


def _zeros(
    marks: Sequence[Any], runs: Sequence[Run], offsets: Sequence[dict[str, int]]
) -> list[int | None]:
    """Return the time of each run's first event on the scale of t: when the first of its processes
    began; None where none says when."""
    numbers = {(run.scenario, run.run): number for number, run in enumerate(runs)}
    found: dict[int, int] = {}
    for row in marks:
        if row["kind"] == "began":
            number = numbers[row["scenario"], row["run"]]
            at = row["first"] + offsets[number][row["host"]]
            found[number] = min(found.get(number, at), at)
    return [found.get(number) for number in range(len(runs))]


def _window(run: Run, offsets: dict[str, int], window: tuple[int, int] | None) -> tuple[int, int]:
    """Return a run's `window` (None: always) on the scale of t; offsets: what is added to the times
    of each of its hosts.

    The coordinator's clock was read; where run.json does not say which host's that is, its wall
    time is all there is.
    """
    if window is None:
        return -FOREVER, FOREVER
    shift = 0
    if len(offsets) > 1:
        shift = offsets.get(
            str(run.about.get("host")), int(run.about.get("wall_minus_monotonic_ns") or 0)
        )
    return window[0] + shift, window[1] + shift


_ORDER = ("scenario", "run", "host", "process", "kind", "path")


def _marks(others: DataFrame) -> list[Any]:
    """Return when each process of each run began and ended, what clocks it measured and when it
    noted subscriptions, with the file (`path`) that says so."""
    marks = others.where(sf.col("kind").isin("began", "ended", "clock", "subscribed"))
    found = marks.groupBy("path", "scenario", "run", "host", "process", "kind").agg(
        sf.count("*").alias("marks"),
        sf.min("at").alias("first"),
        sf.min_by("offset_ns", "at").alias("offset"),
        sf.sum("count").alias("rows"),
        sf.max("count").alias("version"),
        sf.min_by("offset_ns", sf.coalesce("error_ns", sf.lit(0))).alias("best"),
        sf.min("error_ns").alias("error"),
    )
    return sorted(found.collect(), key=lambda row: tuple(row[name] or "" for name in _ORDER))


def _strangers(marks: Sequence[Any], runs: Sequence[Run]) -> bool:
    """Leave the processes out whose rows are of another run than their folder says, with a remark;
    whether there were any."""
    some = False
    places = {(PLACE.search(unquote(row["path"])), row["scenario"], row["run"]) for row in marks}
    found = {
        (
            (place[1], place[2]),
            place[3],
            f"run {run}" if run != place[2] else f"scenario {scenario}",
        )
        for place, scenario, run in places
        if place and (place[1], place[2]) != (scenario, run)
    }
    for run in runs:
        for home, process, other in sorted(found, key=str):
            mine = [
                file
                for file in run.files
                if (place := PLACE.search(file))
                and place[3] == process
                and home == (run.scenario, run.run)
            ]
            if mine:
                some = True
                _leave_out(
                    run, process, f"its rows are of {other}, not of its folder's, and are left out"
                )
    return some


def _foreign(marks: Sequence[Any], runs: Sequence[Run]) -> bool:
    """Leave the processes out that say themselves that they wrote another version, with a remark;
    whether there were any. (What is not known to have a version is of the first one.)"""
    versions = {
        (row["scenario"], row["run"], row["process"]): row["version"]
        for row in marks
        if row["kind"] == "began" and row["version"] not in (None, VERSION)
    }
    some = False
    for run in runs:
        for process in sorted(run.rows):
            if version := versions.get((run.scenario, run.run, process)):
                some = True
                _leave_out(run, process, f"has schema {version}, not {VERSION}, and is left out")
    return some


def _leave_out(run: Run, process: str, why: str) -> None:
    """Take the files of a process out of a run."""
    run.files = [
        file for file in run.files if not (place := PLACE.search(file)) or place[3] != process
    ]
    run.rows.pop(process, None)
    run.broken.add(process)
    run.remarks.append(f"{process}: {why}")


def _clocks(
    marks: Sequence[Any], numbers: dict[tuple[str, str], int], runs: list[Run]
) -> dict[tuple[int, str], int]:
    """Return what is to be added to each run's and host's times; note processes that did not end or
    rows that are gone."""
    walls: dict[tuple[int, str], tuple[int, int]] = {}
    measured: dict[tuple[int, str], tuple[int, int]] = {}
    began: dict[tuple[int, str], int] = {}
    ended: dict[tuple[int, str], tuple[int, int]] = {}
    for row in marks:
        number = numbers[row["scenario"], row["run"]]
        key = (number, row["host"])
        if row["kind"] == "began":
            walls[key] = min(walls.get(key, (FOREVER, 0)), (row["first"], row["offset"]))
            began[number, row["process"]] = began.get((number, row["process"]), 0) + row["marks"]
        elif row["kind"] == "clock":
            measured[key] = min(measured.get(key, (FOREVER, 0)), (row["error"], row["best"]))
        elif row["kind"] == "ended":
            ends, written = ended.get((number, row["process"]), (0, 0))
            ended[number, row["process"]] = (ends + row["marks"], written + row["rows"])
    _processes(runs, began, ended)
    result = {}
    for number, run in enumerate(runs):
        hosts = sorted({key[1] for key in (*walls, *measured) if key[0] == number})
        if len(hosts) == 1:
            result[number, hosts[0]] = 0
            continue
        for host in hosts:
            key = (number, host)
            result[key] = measured[key][1] if key in measured else walls[key][1]
        unknown = [host for host in hosts if (number, host) not in measured]
        if unknown:
            run.remarks.append(
                f"{len(hosts)} clocks, compared by wall time where not measured: "
                f"{', '.join(unknown)}"
            )
        elif hosts:
            run.remarks.append(
                f"{len(hosts)} clocks, known to "
                f"{max(measured[number, host][0] for host in hosts) / 1000:.0f} us"
            )
    return result


def _processes(
    runs: list[Run],
    began: dict[tuple[int, str], int],
    ended: dict[tuple[int, str], tuple[int, int]],
) -> None:
    """Find the processes whose traces are not whole."""
    for number, run in enumerate(runs):
        for process, rows in sorted(run.rows.items()):
            ends, written = ended.get((number, process), (0, 0))
            if ends < began.get((number, process), 1):
                if process not in run.broken:
                    run.remarks.append(
                        f"{process}: its trace does not end; the process was ended while it ran"
                    )
                run.broken.add(process)
            elif rows != written and process not in run.broken:
                run.broken.add(process)
                run.remarks.append(
                    f"{process}: {rows:,} of its {written:,} rows are there; a file is missing"
                )
