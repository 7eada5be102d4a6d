"""Tables of what was counted in traces. Nothing here asks Spark.

What it may know: `trace`, and what a scenario and a run's folder say. `run` is one run, `described`
checks what it says of itself, `clocks` compares the times of several hosts. `counted` says what is
counted, `traffic` and `faults` make of sums what they say of links and repairs, `delays` has the
histograms, `means` the averages. `lines` puts together what was counted, `summary` makes one line
of each run and case, `table_set` all tables, and `render` shows some of them as text.
"""
