"""What is measured: scenario files, and what they mean (docs/guides/benchmarks.md)."""
