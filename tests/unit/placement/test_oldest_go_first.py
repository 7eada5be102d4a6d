"""What is kept of those who ask where to connect: the oldest go first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.rate_limit import RateLimits
from mqttree.placement.pending_load import Pending, PendingLoad


@given(st.integers(1, 40), st.integers(1, 120))
def test_of_too_many_clients_the_oldest_limits_are_forgotten(most: int, count: int) -> None:
    limits = RateLimits(1.0, most)
    for number in range(count):
        assert limits.take(f"c{number}", 0.0)
        assert not limits.take(f"c{number}", 0.0), "the newest one is always remembered"
    for number in range(max(0, count - most), count):
        assert not limits.take(f"c{number}", 0.0), "forgotten too early"


def test_of_too_many_pending_answers_the_oldest_go() -> None:
    pending = PendingLoad(3, 100)
    for number in range(6):
        pending.add(f"c{number}", Pending(10.0 + number, ("t",), ("b",), (1.0,), ()))
    assert len(pending) == 3 and pending.aeo == {"b": 3.0}
    assert pending.pop("c2") is None and pending.pop("c4") is not None
    pending.expire(13.0)
    assert len(pending) == 1 and list(pending.brokers("t")) == ["b"]
    pending.expire(15.0)
    assert len(pending) == 0 and not pending.aeo
