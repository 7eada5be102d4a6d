"""Rows of simulations as Parquet, and their means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mqttree.bench.placement.grid import MEASURES
from mqttree.bench.tables.means import Mean, mean

Point = tuple[str, str, float]
"""A figure, a curve of it, and where on the curve."""

KEYS = ("figure", "curve", "x")


def write(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write `rows` of `grid.run` as one Parquet file at `path`."""
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


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the Parquet file at `path`, in the order of their seeds: sums of floats
    depend on their order, and the same seeds give the same page. Raises ValueError, in one line,
    where these are no rows of `grid.run`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path)
    except pa.ArrowException:
        rows = pa.table({})
    if not {*KEYS, "seed", *MEASURES} <= set(rows.column_names):
        said = "no Parquet file with rows of `mqttree bench placement figures`"
        raise ValueError(f"{path}: {said}")
    found: list[dict[str, Any]] = rows.sort_by("seed").to_pylist()
    return found


def means_of(
    rows: Iterable[Mapping[str, Any]], measures: Sequence[str] = MEASURES
) -> dict[Point, dict[str, Mean]]:
    """Return for each point the means over seeds.

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
