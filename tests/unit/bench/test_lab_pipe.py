"""One direction of a link on a virtual clock: delay, jitter, rate, queue, loss, and a tap that can
be shut."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.bench.lab.pipe import Pipe
from mqttree.bench.lab.topology import Wire

MS = 1_000_000


def offer(pipe: Pipe, now: int, size: int = 1000) -> int | None:
    return pipe.offer(now, size, random.Random(1))


def test_packets_arrive_after_the_delay() -> None:
    pipe = Pipe(Wire(delay_ms=20))
    assert [offer(pipe, now) for now in (0, 5 * MS)] == [20 * MS, 25 * MS]


def test_a_rate_sends_packets_one_after_the_other() -> None:
    pipe = Pipe(Wire(delay_ms=10, rate_mbit=8))  # 1 byte a us
    assert [offer(pipe, 0) for _ in range(3)] == [11 * MS, 12 * MS, 13 * MS]
    assert pipe.backlog(0) == 3000
    assert offer(pipe, 50 * MS) == 61 * MS, "an idle link saves nothing up"


def test_a_full_queue_drops_the_last() -> None:
    pipe = Pipe(Wire(rate_mbit=8, queue_kb=2))
    assert [offer(pipe, 0) is not None for _ in range(4)] == [True, True, False, False]
    assert pipe.dropped_queue == 2
    assert offer(pipe, 1 * MS) is not None, "one has left"


def test_a_packet_larger_than_the_queue_passes_an_empty_one() -> None:
    assert offer(Pipe(Wire(rate_mbit=8, queue_kb=2)), 0, 10_000) == 10 * MS


def test_the_given_share_of_packets_is_lost() -> None:
    pipe, source = Pipe(Wire(loss=0.25)), random.Random(4)
    came = sum(pipe.offer(now, 100, source) is not None for now in range(10_000))
    assert 7_300 < came < 7_700
    assert pipe.dropped_loss == 10_000 - came


def test_a_change_of_delay_does_not_reorder_packets() -> None:
    pipe = Pipe(Wire(delay_ms=50))
    assert offer(pipe, 0) == 50 * MS
    pipe.change({"delay_ms": 1})
    assert offer(pipe, 1 * MS) == 50 * MS, "never before the one ahead"
    with pytest.raises(ValueError, match="unknown key"):
        pipe.change({"speed": 1})


def test_without_a_link_no_packet_passes() -> None:
    pipe = Pipe(None)
    assert offer(pipe, 0) is None
    pipe.shut()
    pipe.undo(0)
    assert offer(pipe, 0) is None, "there is still no link"
    pipe.heal()
    assert offer(pipe, 0) is None, "nor is there now"


def test_undoing_a_fault_leaves_the_others() -> None:
    pipe = Pipe(Wire(delay_ms=5, loss=0.1))
    pipe.change({"delay_ms": 100}, 1)
    pipe.shut(2)
    pipe.shut(3)
    pipe.change({"delay_ms": 50, "rate_mbit": 8}, 4)
    pipe.undo(3)
    assert not pipe.open and (pipe.wire.delay_ms, pipe.wire.rate_mbit) == (50, 8)
    pipe.undo(2)
    pipe.undo(4)
    assert pipe.open and pipe.wire == Wire(delay_ms=100, loss=0.1)
    pipe.undo(1)
    assert pipe.wire == Wire(delay_ms=5, loss=0.1)
    with pytest.raises(ValueError, match="loss must be"):
        pipe.change({"loss": 2}, 5)
    pipe.shut(6)
    pipe.heal()
    assert pipe.open and pipe.wire == Wire(delay_ms=5, loss=0.1)


@given(
    st.lists(st.tuples(st.integers(0, 10 * MS), st.integers(20, 1500)), max_size=60),
    st.floats(0, 50),
    st.floats(0, 20),
    st.none() | st.floats(0.1, 100),
    st.integers(0, 2**32),
)
def test_packets_come_neither_early_nor_out_of_order(
    packets: list[tuple[int, int]], delay: float, jitter: float, rate: float | None, seed: int
) -> None:
    pipe, source = (
        Pipe(Wire(delay_ms=delay, jitter_ms=jitter, rate_mbit=rate, queue_kb=10_000)),
        random.Random(seed),
    )
    now, last, sent = 0, 0, 0.0
    for wait, size in packets:
        now += wait
        due = pipe.offer(now, size, source)
        assert due is not None and due >= max(now, last)
        if rate is not None:
            sent = max(sent, now) + size * 8e3 / rate
            if not jitter:
                assert due >= sent + int(delay * 1e6) - len(packets) - 1, "no faster than the rate"
        last = due
    assert pipe.packets == len(packets)
