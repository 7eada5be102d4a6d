"""What is measured in a run: the columns of its tables, and what a scenario may ask for."""

from __future__ import annotations

MEASURES = (
    "published_per_s",
    "accepted_per_s",
    "delivered_per_s",
    "delivered_bytes_per_s",
    "delay_mean_ms",
    "delay_p50_ms",
    "delay_p90_ms",
    "delay_p99_ms",
    "delay_p999_ms",
    "delay_max_ms",
    "delay_sent_mean_ms",
    "delay_sent_p99_ms",
    "accept_mean_ms",
    "lost",
    "lost_accepted",
    "unknown",
    "duplicates",
    "reordered",
    "control_bytes",
    "data_bytes",
    "control_bytes_per_s",
    "data_bytes_per_s",
    "control_bytes_run",
    "broker_cpu",
    "broker_rss",
    "generator_cpu",
    "convergence_s",
    "repair_s",
    "repair_service_s",
    "stretch",
    "jain",
)
"""What the tables of traces have (docs/reference/traces.md), in the order of their columns; a
scenario's `asked` names some, or how they begin."""
