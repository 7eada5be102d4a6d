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


def test_a_link_that_is_over_stays_in_the_sums() -> None:
    counters = Counters()
    first, second = counters.begin_link(), counters.begin_link()
    first.forwarded, first.received, first.sent = 3, 2, 100
    second.forwarded, second.received, second.sent = 1, 1, 10
    sums = (counters.forwarded, counters.received_link, counters.link_bytes_sent)
    assert sums == (4, 3, 110)
    late = counters.end_connection(first)
    assert (counters.forwarded, counters.received_link, counters.link_bytes_sent) == sums
    late.sent += 5
    assert counters.as_dict()["link_bytes_sent"] == 115
    # Of a client, or once more: nothing changes.
    assert counters.end_connection(counters.to_clients) is counters.to_clients
    assert counters.end_connection(late) is late
    assert counters.forwarded == 4
