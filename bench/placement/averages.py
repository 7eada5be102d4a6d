"""Rows of simulations as Parquet, and their means by Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mqttree.bench.placement.grid import MEASURES
from mqttree.bench.spark.session import session
from mqttree.bench.tables.means import Mean, mean

Point = tuple[str, str, float]
"""A figure, a curve of it, and where on the curve."""

KEYS = ("figure", "curve", "x")


def write(
    rows: Sequence[Mapping[str, Any]], path: Path, measures: Sequence[str] = MEASURES
) -> None:
    """Write rows as one Parquet file.

    `rows`: of `grid.run`, or with other `measures`; `path`: of the file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    fields = [
        ("figure", pa.string()),
        ("curve", pa.string()),
        ("x", pa.float64()),
        ("seed", pa.int64()),
        *((name, pa.float64()) for name in measures),
    ]
    pq.write_table(pa.Table.from_pylist(list(rows), schema=pa.schema(fields)), path)


def has_rows(path: Path, measures: Sequence[str] = MEASURES) -> bool:
    """Return whether a file is one that `write` could have written.

    `path`: of the file; `measures`: which numbers its rows should have.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = set(pq.read_table(path).column_names)
    except pa.ArrowException:
        return False
    return names >= {*KEYS, "seed", *measures}


def means(
    path: Path, memory: str = "1g", measures: Sequence[str] = MEASURES
) -> dict[Point, dict[str, Mean]]:
    """Return for each point the means over seeds. Raises SparkMissingError.

    `path`: of the Parquet file; `memory`: Spark's; `measures`: which numbers its rows have.
    """
    spark = session("local[1]", memory, rows=1000)
    try:
        from pyspark.sql import functions as sf

        # Sorted by seed: sums of floats depend on their order, and the same seeds give the same
        # page.
        values = sf.sort_array(sf.collect_list(sf.struct("seed", *measures))).alias("values")
        found = spark.read.parquet(str(path)).groupBy(*KEYS).agg(values).collect()
    finally:
        spark.stop()
    return {
        (each["figure"], each["curve"], each["x"]): _each_mean(each["values"], measures)
        for each in found
    }


def means_of(
    rows: Iterable[Mapping[str, Any]], measures: Sequence[str] = MEASURES
) -> dict[Point, dict[str, Mean]]:
    """Return what `means` returns, without Spark.

    `rows`: in order of their seeds; `measures`: which numbers they have.
    """
    groups: dict[Point, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["figure"], row["curve"], row["x"]), []).append(row)
    return {point: _each_mean(values, measures) for point, values in groups.items()}


def _each_mean(values: Sequence[Any], measures: Sequence[str]) -> dict[str, Mean]:
    found = {}
    for name in measures:
        known = mean([value[name] for value in values if value[name] is not None])
        if known is not None:
            found[name] = known
    return found
