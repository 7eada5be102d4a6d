"""The live view's counts: windows of each run, whatever order streams say them in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqttree.bench.load.histogram import bucket
from mqttree.bench.spark.live_view import HEAD, MAX_WINDOWS, Count, Key, LiveView

S = 1_000_000_000


def key(window: int, what: str, run: str = "r", who: str = "", **more: int | str) -> Key:
    return Key(run, str(more.get("host", "h")), window, int(more.get("complete", 0)), what, who)


def count(n: int = 1, size: int = 0) -> Count:
    return Count(n, size, 0, 0, None, None)


def cells(view: LiveView) -> list[dict[str, str]]:
    return [dict(zip(HEAD, row, strict=True)) for _, _, row in view.rows()]


def test_a_count_that_is_said_again_replaces_the_earlier_one() -> None:
    view = LiveView(5)
    view.counted([(key(7, "published"), count(10)), (key(7, "published", complete=10), count(5))])
    view.counted([(key(7, "published"), count(20))])
    (row,) = cells(view)
    assert (row["run"], row["s"], row["published/s"], row["joined"]) == ("r", "0", "5", "-")


def test_hosts_whose_clocks_differ_count_from_their_own_first_window() -> None:
    view = LiveView(5)
    view.counted([(key(100, "published", host="a"), count(10))])
    view.counted([(key(3, "delivered", host="b"), count(20))])
    view.counted([(key(5, "delivered", host="b"), count(5))])
    assert [(row["s"], row["published/s"], row["delivered/s"]) for row in cells(view)] == [
        ("0", "2", "4"),
        ("10", "0", "1"),
    ]


def test_delays_are_of_what_was_joined() -> None:
    view = LiveView(1)
    view.counted([(key(1, "delivered"), count(4))])
    view.delayed([("r", "h", 1, bucket(10_000_000), 2)])
    view.delayed([("r", "h", 1, bucket(90_000_000), 1)])
    (row,) = cells(view)
    assert (row["delay ms"], row["p99 ms"], row["joined"]) == ("36.7", "90.2", "75%")


def test_a_broker_that_began_anew_has_no_cpu_in_that_window() -> None:
    view = LiveView(5)

    def used(window: int, who: str, first: float, last: float) -> tuple[Key, Count]:
        return key(window, "resources", who=who), Count(2, 0, 0, 4 * S, first, last)

    view.counted([used(1, "b0", 0.0, 1.0), used(1, "b1", 0.0, 3.0), used(2, "b1", 0.0, 2.0)])
    view.counted([(key(2, "restart", who="b1"), count()), (key(2, "fault", who="b2"), count())])
    view.counted([(key(1, "start", who="b9"), count())])
    assert [(row["cpu"], row["faults"]) for row in cells(view)] == [("0.5", "0"), ("-", "2")]


def test_a_window_is_settled_once_it_has_not_changed_for_a_while() -> None:
    view = LiveView(1)
    view.counted([(key(window, "note"), count()) for window in range(3)], 100)
    view.delayed([("r", "h", 1, 5, 1)], 110)
    assert view.settled(114) == []
    assert [row[1] for row in view.settled(115)] == ["0", "2"]
    assert [row[1] for row in view.settled(125)] == ["1"]
    view.counted([(key(9, "note", run="two"), count())], 126)
    assert view.settled(127) == []
    assert [row[:2] for row in view.settled(127, over=True)] == [["two", "0"]]
    assert view.settled(200, over=True) == []


def test_no_more_windows_than_that_are_remembered() -> None:
    view = LiveView(1)
    view.counted([(key(window, "note"), count()) for window in range(MAX_WINDOWS + 10)])
    assert len(view.rows()) == MAX_WINDOWS
    assert view.rows()[0][1] == 10


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.integers(0, 3),
            st.integers(0, 1),
            st.sampled_from(["published", "delivered", "control"]),
            st.integers(1, 9),
        ),
        max_size=30,
        unique_by=lambda each: each[:4],
    ),
    st.randoms(),
)
def test_the_order_in_which_counts_come_does_not_matter(
    said: list[tuple[str, int, int, str, int]], random: object
) -> None:
    counts = [
        (key(window, what, run=run, complete=complete), count(n, n))
        for run, window, complete, what, n in said
    ]
    one, other = LiveView(1), LiveView(1)
    one.counted(counts)
    random.shuffle(counts)  # type: ignore[attr-defined]
    for each in counts:
        other.counted([each])
    assert sorted(map(str, one.rows())) == sorted(map(str, other.rows()))
