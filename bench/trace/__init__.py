"""Traces: what every process of a benchmark saw, as Parquet (docs/reference/traces.md).

`schema` has the columns, `batches` collects rows, `writer` writes them; `clock` finds how far
another machine's clock is off, `repair` when a fault counts as repaired. `generate` makes large
runs, `overhead` measures what tracing costs.
"""

from mqttree.bench.trace.schema import KINDS, SCHEMA, VERSION, sample_offset
from mqttree.bench.trace.writer import TraceError, Writer

__all__ = ["KINDS", "SCHEMA", "VERSION", "TraceError", "Writer", "sample_offset"]
