"""Everything that measures: one command line, `mqttree bench`. docs/guides/benchmarks.md.

`cli` is the command, `checked` reads its numbers. From top to bottom: `report` makes pages of runs,
`studies` and `placement` are measurements of their own, `spark` makes tables of traces (`tables`:
what they have in common), `runner` runs `scenarios` in a `lab`, `trace` is what processes note,
`workloads` who publishes what, `model` what is placed where, `load` the generator,
`federator` the protocol of one of the papers.
"""
