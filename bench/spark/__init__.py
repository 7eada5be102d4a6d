"""Traces into tables with Spark: the same code on one machine, a standalone cluster or by
spark-submit (docs/reference/traces.md)."""
