"""Everything that measures: one command line, `mqttree bench`. docs/guides/benchmarks.md."""
