"""Measurements beside the scenarios: comparisons with other brokers, micro-benchmarks, and how fast
federations form and repair."""
