"""The rows of all runs as Spark data frames with one common time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as sf

from mqttree.bench.spark.pack import Packed
from mqttree.bench.spark.session import kept, partitions
from mqttree.bench.spark.trace_files import DDL, read
from mqttree.bench.tables.clocks import MARKS, Placed, placed
from mqttree.bench.tables.counted import MESSAGES
from mqttree.bench.tables.run import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHUNK = 1 << 18
"""Neighbouring messages of a publisher that one task looks at: a run of one publisher is spread,
too."""
TAPPED = ("forwarded", "control")
"""Single packets between brokers: of some runs there are more of them than messages."""
MAX_KEPT_ROWS = 12_000_000
"""Rows of a set up to which what several queries need is kept between them, on disk where there is
no room: they would open every file again, and most files are small. Of more rows to keep them costs
as much as to read them again."""
ONE_TASK = 500_000
"""Rows up to which all of them are one part, which no query has to spread by what it groups and
sorts by."""


@dataclass
class Events(Placed):
    """The rows of all runs, with `no` (the run's index), `t` (ns; of one host its own clock, of
    several ns since the epoch) and `zero` (t of the run's first event, null where it is not known).

    messages, tapped: the rows of MESSAGES and of TAPPED. others: all other rows. sorts: rows of a
    single kind of MESSAGES, where these are by themselves.

    few: whether there are so few rows that what several queries need should be kept. spread: how
    many parts messages are put into.
    """

    spark: SparkSession
    messages: DataFrame
    tapped: DataFrame
    others: DataFrame
    sorts: dict[str, DataFrame]
    few: bool
    spread: int
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
    spread, few = partitions(spark, count), count <= MAX_KEPT_ROWS
    spark.conf.set("spark.sql.shuffle.partitions", str(spread))
    raw = _rows(spark, runs, packed)
    others = raw.others
    if few:
        if packed is not None and packed.others <= ONE_TASK:
            others = others.coalesce(1)
        others = kept(others)
    times = placed(_marks(others), runs)
    if times is None:
        return load(spark, runs)
    hosts = times.hosts()
    by_name = _by_name(spark, runs, hosts)
    of_messages = by_name if packed is None else _by_place(spark, packed, hosts)
    return Events(
        **vars(times),
        spark=spark,
        messages=of_messages(raw.messages),
        tapped=of_messages(raw.tapped),
        others=by_name(others.drop("path")),
        sorts={kind: of_messages(rows) for kind, rows in raw.sorts.items()},
        few=few,
        spread=spread,
        placed=by_name,
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


def _marks(others: DataFrame) -> list[Any]:
    """Return when each process of each run began and ended, what clocks it measured and when it
    noted subscriptions, with the file (`path`) that says so."""
    marks = others.where(sf.col("kind").isin(*MARKS))
    found = marks.groupBy("path", "scenario", "run", "host", "process", "kind").agg(
        sf.count("*").alias("marks"),
        sf.min("at").alias("first"),
        sf.min_by("offset_ns", "at").alias("offset"),
        sf.sum("count").alias("rows"),
        sf.max("count").alias("version"),
        sf.min_by("offset_ns", sf.coalesce("error_ns", sf.lit(0))).alias("best"),
        sf.min("error_ns").alias("error"),
    )
    return found.collect()
