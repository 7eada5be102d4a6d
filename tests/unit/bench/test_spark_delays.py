"""Histograms of delays as the pipeline makes tables of them, against the generator's own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqttree.bench.load.histogram import Histogram, bucket, upper
from mqttree.bench.tables import delays

COUNTS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["", "small", "large"]),
        st.integers(0, 2**40).map(bucket),
        st.integers(1, 1000),
    ),
    max_size=20,
)


@given(COUNTS)
def test_flows_add_up_to_their_run(counts: list[tuple[int, str, int, int]]) -> None:
    found = delays.histograms(counts)
    for number in {each[0] for each in counts}:
        assert sum(found[number, ""].values()) == sum(n for no, _, _, n in counts if no == number)
    assert all(list(buckets) == sorted(buckets) for buckets in found.values())


@given(COUNTS)
def test_percentiles_are_those_of_the_generator(counts: list[tuple[int, str, int, int]]) -> None:
    for buckets in delays.histograms(counts).values():
        same = Histogram(dict(buckets), 2**50, sum(buckets.values()))
        points = delays.percentiles(buckets)
        for name, share in (("delay_p50_ms", 50), ("delay_p90_ms", 90), ("delay_p99_ms", 99)):
            assert upper(points[name]) / 1e6 == same.percentile(share)


@given(COUNTS)
def test_rows_say_how_many_are_below(counts: list[tuple[int, str, int, int]]) -> None:
    last: dict[tuple[int, str], tuple[int, int]] = {}
    for number, flow, place, n, below, whole, ms in delays.rows(delays.histograms(counts)):
        before = last.get((number, flow), (0, 0))[0]
        assert (below, ms) == (before + n, upper(place) / 1e6)
        last[number, flow] = (below, whole)
    assert all(below == whole for below, whole in last.values())
