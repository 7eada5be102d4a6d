"""Rows of simulations as Parquet, and their means by Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.placement.grid import MEASURES
from bench.spark.means import Mean, mean
from bench.spark.session import session

Point = tuple[str, str, float]
"""A figure, a curve of it, and where on the curve."""

KEYS = ("figure", "curve", "x")


def write(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows as one Parquet file.

    `rows`: of `grid.run`; `path`: of the file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    fields = [
        ("figure", pa.string()),
        ("curve", pa.string()),
        ("x", pa.float64()),
        ("seed", pa.int64()),
        *((name, pa.float64()) for name in MEASURES),
    ]
    pq.write_table(pa.Table.from_pylist(list(rows), schema=pa.schema(fields)), path)


def means(path: Path, memory: str = "1g") -> dict[Point, dict[str, Mean]]:
    """Return for each point the means over seeds. Raises SparkMissingError.

    `path`: of the Parquet file; `memory`: Spark's.
    """
    spark = session("local[1]", memory, rows=1000)
    try:
        from pyspark.sql import functions as sf

        # Sorted by seed: sums of floats depend on their order, and the same seeds give the same
        # page.
        values = sf.sort_array(sf.collect_list(sf.struct("seed", *MEASURES))).alias("values")
        found = spark.read.parquet(str(path)).groupBy(*KEYS).agg(values).collect()
    finally:
        spark.stop()
    return {
        (each["figure"], each["curve"], each["x"]): _each_mean(each["values"]) for each in found
    }


def means_of(rows: Iterable[Mapping[str, Any]]) -> dict[Point, dict[str, Mean]]:
    """Return what `means` returns, of rows in order of their seeds, without Spark: for tests."""
    groups: dict[Point, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["figure"], row["curve"], row["x"]), []).append(row)
    return {point: _each_mean(values) for point, values in groups.items()}


def _each_mean(values: Sequence[Any]) -> dict[str, Mean]:
    found = {}
    for name in MEASURES:
        known = mean([value[name] for value in values if value[name] is not None])
        if known is not None:
            found[name] = known
    return found
