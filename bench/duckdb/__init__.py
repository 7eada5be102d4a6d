"""The tables of `mqttree.bench.spark` by DuckDB, in this process and without Java: for sets that
one machine holds, whose tables Spark takes longer to plan than to compute (decision 61).

What it may know: what the modules of `spark` know that ask nothing of Spark: what lies below a
folder, how times of several clocks are compared, and what tables are made of counts. Only the
queries are written twice. `session` has the database, `files` reads rows and finds damaged files,
`events` gives all rows one common time; `messages` and `subscriptions`, `network` and `repairs`
have the queries, `tables` puts all together.
"""
