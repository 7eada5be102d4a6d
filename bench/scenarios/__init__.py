"""Scenario files: docs/guides/benchmarks.md says what each is."""
