"""Traces into tables with Spark: the same code on one machine, a standalone cluster or by
spark-submit (docs/reference/traces.md).

What it may know: `trace`, and what a scenario and a run's folder say. `source` finds the runs below
a folder, `described` reads what they say of themselves, `events` gives all rows one common time.
From these come `messages`, `lines`, `subscriptions`, `network` and `repairs`; `summary` makes one
line of each run and case, `tables` writes all as Parquet and CSV. `live` shows figures while a run
lasts.
"""
