"""Traces: what every process of a benchmark saw, as Parquet (docs/reference/traces.md)."""

from mqttree.bench.trace.schema import KINDS, SCHEMA, VERSION
from mqttree.bench.trace.writer import TraceError, Writer

__all__ = ["KINDS", "SCHEMA", "VERSION", "TraceError", "Writer"]
