"""What crosses each link: counters that are summed, and rates between two looks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mqttree.broker.base.counters import Counters
from mqttree.broker.io.api.link_rates import LinkRates


def link(traffic: Any) -> Any:
    return SimpleNamespace(conn=SimpleNamespace(traffic=traffic, transport=None))


def test_rates_are_those_between_two_looks_and_begin_with_a_link() -> None:
    counters, rates = Counters(), LinkRates(100.0)
    one = link(counters.begin_link())
    one.conn.traffic.forwarded = 50
    rates.look({b"1": one}, 101.0)
    assert rates.of(b"1") == {}
    one.conn.traffic.forwarded += 30
    one.conn.traffic.received += 5
    rates.look({b"1": one}, 103.0)
    assert rates.of(b"1") == {
        "out_per_s": 15.0,
        "in_per_s": 2.5,
        "out_bytes_per_s": None,
        "in_bytes_per_s": None,
    }
    # The next link to the same broker has counted from 0.
    rates.look({b"1": link(counters.begin_link())}, 104.0)
    assert rates.of(b"1") == {}
    rates.look({}, 105.0)
    assert rates.of(b"1") == {}
