"""Traces into tables with Spark: the same code on one machine, a standalone cluster or by
spark-submit (docs/reference/traces.md).

What it may know: `trace` and `tables`. `source` finds the runs below a folder, `trace_files` reads
rows and finds damaged files, `pack` makes few large files of many small ones, `events` gives all
rows one common time. From these come `messages`, `subscriptions`, `network` and `repairs`, whose
counts `collected` gets; `tables` does all of that in turn, and `store` writes what comes of it.
`session` starts Spark. `live` reads traces while a run lasts, `live_view` knows what they said,
`live_screen` shows it.

`stages` says what a command is doing.
"""
