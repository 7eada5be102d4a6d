"""Links slower than who publishes, between real brokers: what is acknowledged comes, in order,
once, and no link is given up."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import psutil
import pytest

from mqttree.bench.lab.brokers import KINDS
from mqttree.bench.lab.lab import Lab, running
from mqttree.bench.lab.topology import Topology, Wire
from tests.kit.waiting import until
from tests.load.large import Address, Publisher, Subscriber

MB = 1_000_000
MIB = 1 << 20
PATIENCE = 200.0
"""s; several times what the slowest link needs."""
ROUTINGS = ("flood", "interest", "topic")
LOST = ("replay_log_lost", "dropped_queue_full", "link_garbage", "links_closed")


def view(lab: Lab, name: str) -> dict[str, Any] | None:
    """What a broker says of the federation; None while it does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", lab.brokers[name].place.admin, timeout=5)
    try:
        connection.request("GET", "/api/v1/federation", headers={"Connection": "close"})
        found: dict[str, Any] = json.loads(connection.getresponse().read())
        return found
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


@contextmanager
def chain(routing: str, hops: int, rate_mbit: float | None) -> Iterator[Lab]:
    """Brokers in a row; the last link has this rate, or all are one host's (None)."""
    names = tuple(f"b{number}" for number in range(hops + 1))
    links: dict[frozenset[str], Wire | None] = {
        frozenset((one, other)): None for one in names for other in names if one != other
    }
    for one, other in pairwise(names):
        links[frozenset((one, other))] = Wire(
            delay_ms=1.0, rate_mbit=rate_mbit if other == names[-1] else None
        )
    network = rate_mbit is not None
    topology = Topology(
        "chain",
        names,
        network=network,
        default=None if network else Wire(),
        links=links if network else {},
    )  # type: ignore[arg-type]
    with running(topology, KINDS[f"mqttree-{routing}"], way="relays" if network else "auto") as lab:

        def agree() -> bool:
            views = [view(lab, name) for name in names]
            whole = all(
                v is not None and v["state"] == "runtime" and len(v["members"]) == hops
                for v in views
            )
            return whole and len({v["root"] for v in views if v is not None}) == 1

        until(agree, "brokers that agree")
        yield lab


def place(lab: Lab, name: str) -> Address:
    return lab.brokers[name].place.address, lab.brokers[name].place.port


def carry(lab: Lab, publishers: int, count: int, size: int, qos: int, window: int) -> int:
    """Publish at the first broker, and wait until all that is acknowledged is at the last one.
    Returns the most bytes of memory that a broker had."""
    names = list(lab.brokers)
    subscriber = Subscriber(place(lab, names[-1]), "large/#", qos)
    subscriber.start()
    before = {name: (view(lab, name) or {})["counters"] for name in names}
    many = [
        Publisher(place(lab, names[0]), f"large/{n}", count, size, qos, window)
        for n in range(publishers)
    ]
    for publisher in many:
        publisher.start()
    processes = [
        psutil.Process(broker.process.pid)
        for broker in lab.brokers.values()
        if broker.process is not None
    ]
    peak = 0

    def arrived() -> bool:
        nonlocal peak
        peak = max(peak, *(process.memory_info().rss for process in processes))
        return all(publisher.done and not subscriber.lacks(publisher) for publisher in many)

    try:
        until(arrived, "all of it", PATIENCE)
    finally:
        for name in names:
            after = (view(lab, name) or {}).get("counters", {})
            print(
                name,
                {
                    key: value
                    for key, value in after.items()
                    if value and value != before[name].get(key)
                },
            )
        print(
            {p.topic: (len(p.acknowledged), sorted(subscriber.lacks(p))[:9]) for p in many},
            f"{peak / MIB:.0f} MiB",
        )
        for client in (*many, subscriber):
            client.close()
    for publisher in many:
        assert subscriber.in_order(publisher)
        assert qos == 1 or not subscriber.twice(publisher)
    for name in names:
        after = (view(lab, name) or {})["counters"]
        assert {key: after[key] - before[name][key] for key in LOST} == dict.fromkeys(LOST, 0), name
    return peak


@pytest.mark.timeout(400)
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize(
    ("rate_mbit", "publishers", "count", "size"),
    [(20.0, 1, 60, MB), (40.0, 1, 30, 3 * MB), (20.0, 1, 3, 20 * MB), (200.0, 2, 4, 50 * MB)],
    ids=[
        "60 of 1 MB at 20 Mbit/s",
        "30 of 3 MB at 40 Mbit/s",
        "3 of 20 MB at 20 Mbit/s",
        "8 of 50 MB at 200 Mbit/s",
    ],
)
def test_a_burst_crosses_a_slow_link_in_order(
    routing: str, rate_mbit: float, publishers: int, count: int, size: int
) -> None:
    with chain(routing, 1, rate_mbit) as lab:
        carry(lab, publishers, count, size, 1, 60_000)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_publishers_two_brokers_from_a_slow_link_are_held(routing: str) -> None:
    with chain(routing, 2, 40.0) as lab:
        peak = carry(lab, 1, 30, 3 * MB, 2, 60_000)
    assert peak < 400 * MIB


@pytest.mark.timeout(400)
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize(
    ("publishers", "count", "size", "window"),
    [(1, 20, 20 * MB, 1), (4, 40, 4 * MB, 60_000)],
    ids=["20 of 20 MB", "4 x 40 of 4 MB"],
)
def test_large_messages_cross_a_fast_link_in_order(
    routing: str, publishers: int, count: int, size: int, window: int
) -> None:
    with chain(routing, 1, None) as lab:
        carry(lab, publishers, count, size, 1, window)
