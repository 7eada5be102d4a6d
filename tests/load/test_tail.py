"""A broker that stands still while far more is published than the replay log holds: real brokers
with data directories."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.kit.brokers import Broker, Cluster
from tests.kit.waiting import until
from tests.load.large import Address, Publisher, Subscriber

PATIENCE = 200.0
"""s; several times what the machine needs."""
COUNT, SIZE = 50_000, 1_000
"""messages of each of two publishers, and bytes of each: 100 MB, three times what the log holds."""


def place(broker: Broker) -> Address:
    return "127.0.0.1", broker.port


@pytest.mark.timeout(400)
@pytest.mark.parametrize("killed", [False, True], ids=["", "and the origin is killed"])
@pytest.mark.parametrize("routing", ["flood", "interest", "topic"])
def test_a_broker_that_stood_still_gets_all_from_the_tail(
    routing: str, killed: bool, tmp_path: Path
) -> None:
    """Nothing acknowledged is lost, and QoS 2 comes once; in order but with flooding."""
    with Cluster(tmp_path, "--routing", routing) as cluster:
        origin, away, _ = (cluster.add().up() for _ in range(3))
        cluster.settle()
        subscriber = Subscriber(place(away), "large/#", 2)
        subscriber.start()
        many = [Publisher(place(origin), f"large/{qos}", COUNT, SIZE, qos) for qos in (1, 2)]
        away.pause()
        began = time.monotonic()
        for publisher in many:
            publisher.start()
        until(
            lambda: all(publisher.done for publisher in many),
            "acknowledgements of all of it",
            PATIENCE,
        )
        published = time.monotonic()
        written = origin.counter("log_tail_bytes")
        if killed:
            origin.kill()
            origin.start().up()
        resumed = time.monotonic()
        away.resume()
        until(
            lambda: not any(subscriber.lacks(publisher) for publisher in many),
            "all of it",
            PATIENCE,
        )
        arrived = time.monotonic()
        replayed = origin.counter("log_tail_replayed")
        print(
            f"{routing}: {2 * COUNT} messages, {2 * COUNT * SIZE / 1e6:.0f} MB, "
            f"published in {published - began:.1f} s,"
        )
        print(f"  {written / 1e6:.0f} MB written to the tail, {replayed} messages read from it,")
        print(f"  all of it there {arrived - resumed:.1f} s after the broker went on")
        for publisher in many:
            assert not subscriber.twice(publisher)
            assert subscriber.in_order(publisher) or routing == "flood"
            publisher.close()
        subscriber.close()
        assert written > 60e6
        assert sum(broker.counter("replay_log_lost") for broker in cluster.brokers) == 0
