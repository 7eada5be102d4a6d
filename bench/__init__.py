"""Load generator, comparisons and micro-benchmarks."""
