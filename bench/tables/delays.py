"""The histogram of delays of each run and flow, and percentiles from it. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from mqttree.bench.load.histogram import upper

PERCENTILES = {
    "delay_p50_ms": 0.5,
    "delay_p90_ms": 0.9,
    "delay_p99_ms": 0.99,
    "delay_p999_ms": 0.999,
}
Histograms = dict[tuple[int, str], dict[int, int]]
"""(number of the run, flow) -> bucket (mqttree.bench.load.histogram) -> deliveries, buckets in
order; flow "" is the whole run."""


def histograms(counts: Iterable[tuple[int, str, int, int]]) -> Histograms:
    """Return the histograms of `counts`: (number of the run, flow, bucket, deliveries)."""
    found: dict[tuple[int, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for number, flow, bucket, count in counts:
        found[number, ""][bucket] += count
        if flow:
            found[number, flow][bucket] += count
    return {key: dict(sorted(found[key].items())) for key in sorted(found)}


def percentiles(buckets: Mapping[int, int]) -> dict[str, int]:
    """Return the bucket of each of PERCENTILES."""
    whole = sum(buckets.values())
    found: dict[str, int] = {}
    below = 0
    for bucket, count in buckets.items():
        below += count
        for name, share in PERCENTILES.items():
            if name not in found and below >= max(math.ceil(whole * share), 1):
                found[name] = bucket
    return found


def rows(found: Histograms) -> Iterable[tuple[Any, ...]]:
    """Yield the rows of the table: number of the run, flow, bucket, n, below (how many are in this
    bucket or a lower one), all, ms (upper edge)."""
    for (number, flow), buckets in found.items():
        whole, below = sum(buckets.values()), 0
        for bucket, count in buckets.items():
            below += count
            yield number, flow, bucket, count, below, whole, upper(bucket) / 1e6
