"""Traces into tables with Spark: the same code on one machine, a standalone cluster or by
spark-submit (docs/reference/traces.md).

What it may know: `trace`, and what a scenario and a run's folder say. `source` finds the runs below
a folder, `described` reads what they say of themselves, `trace_files` reads rows and finds damaged
files, `pack` makes few large files of many small ones, `events` gives all rows one common time.
From these come `messages`, `subscriptions`, `network` and `repairs`, whose counts `collected` gets;
`tables` does all of that in turn.
`mqttree.bench.duckdb` asks the same by DuckDB. Both share what asks nothing of Spark: `source` and
`described`; `clocks` compares the times of several hosts, `counted` says what is counted, `traffic`
and `faults` make of sums what they say of links and repairs, `delays` has the histograms; `lines`
puts together what was counted, `summary` makes one line of each run and case, `table_set` all
tables, and `store` writes them.
`session` starts Spark, and `class_archive` lets its Java start faster.
`live` reads traces while a run lasts, `live_view` knows what they said, `live_screen` shows it.
"""
