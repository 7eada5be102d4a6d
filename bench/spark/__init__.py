"""Traces into tables with Spark: the same code on one machine, a standalone cluster or by
spark-submit (docs/reference/traces.md).

What it may know: `trace`, and what a scenario and a run's folder say. `source` finds the runs below
a folder, `described` reads what they say of themselves, `trace_files` reads rows and finds damaged
files, `pack` makes few large files of many small ones, `events` gives all rows one common time.
From these come `messages`, `subscriptions`, `network` and `repairs`; `lines` puts together what
they counted, `delays` has the histograms;
`summary` makes one line of each run and case, `tables` makes all tables and `store` writes them.
`session` starts Spark, and `class_archive` lets its Java start faster.
`live` reads traces while a run lasts, `live_view` knows what they said, `live_screen` shows it.
"""
