"""Scenario files: docs/benchmarks.md says what each is."""
