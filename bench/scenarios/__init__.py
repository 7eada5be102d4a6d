"""What is measured: scenario files, and what they mean (docs/guides/benchmarks.md).

What it may know: `lab` (topologies); it starts nothing. `scenario` reads and checks a file: a
topology, a load, faults, and factors whose every combination is a cell. `workload` draws from a
seed who publishes and subscribes to what; `measures` are the columns that a scenario may ask for;
`run_table` is what `mqttree bench run` prints at its end. Most files here repeat what papers
measured.

`federator_tables` shows a paper's tables beside ours.
"""
