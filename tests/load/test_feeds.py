"""Ordered feeds under load: brokers that hang or join while thousands of messages a second pass
lose nothing acknowledged."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.brokers import Broker, Cluster
from tests.load.generator import Load, whole

MODES = ("flood", "interest", "topic")


@contextmanager
def brokers(folder: Path, routing: str, count: int) -> Iterator[Cluster]:
    """Give brokers that agree on a tree; their counters of what went wrong are shown at the end."""
    with Cluster(folder, "--routing", routing) as cluster:
        for _ in range(count):
            cluster.add()
        cluster.settle()
        try:
            yield cluster
        finally:
            for broker in cluster.brokers:
                if broker.running and not broker.paused:
                    found = broker.view()["counters"]
                    print(broker.name, {name: found[name] for name in SHOWN if found[name]})


SHOWN = (
    "published",
    "delivered",
    "received_link",
    "replayed",
    "duplicates",
    "dropped_queue_full",
    "queued_over_limit",
    "pause_requests_sent",
    "pause_requests_received",
    "publishers_paused",
    "replay_log_trimmed",
    "gaps_forgotten",
    "links_closed",
    "link_garbage",
    "dropped_link",
    "routed_dropped",
    "ordered_feed_full",
    "link_timeouts",
)


def hang(broker: Broker, seconds: float) -> None:
    """Stop a broker, and let it go on."""
    broker.pause()
    time.sleep(seconds)
    broker.resume()


@pytest.mark.parametrize("qos", (1, 2))
@pytest.mark.parametrize("seconds", (1.0, 2.6, 4.0))
@pytest.mark.parametrize("routing", MODES)
def test_a_broker_that_hung_gets_all_messages_in_order(
    tmp_path: Path, routing: str, seconds: float, qos: int
) -> None:
    """What its subscribers were to get waits for it, in order, however much it is."""
    with brokers(tmp_path, routing, 2) as cluster:
        near, far = cluster.brokers
        load = Load(near, far, 20_000, qos, 8)
        hang(far, seconds)
        line = load.result()
        assert whole(line), line


@pytest.mark.parametrize("rate", (20_000, 40_000))
@pytest.mark.parametrize("routing", MODES)
def test_a_root_that_hangs_loses_no_message_of_others(
    tmp_path: Path, routing: str, rate: int
) -> None:
    """Ways lead around it, and feeds find them again."""
    with brokers(tmp_path, routing, 3) as cluster:
        root = cluster.root()
        near, far = (broker for broker in cluster.brokers if broker is not root)
        load = Load(near, far, rate, 1, 9)
        hang(root, 5.0)
        line = load.result()
        assert whole(line), line


@pytest.mark.parametrize("routing", MODES)
def test_a_broker_that_joins_loses_no_message_of_others(tmp_path: Path, routing: str) -> None:
    """At 60,000 messages a second, or what the machine can do."""
    with brokers(tmp_path, routing, 3) as cluster:
        near, far = cluster.two_hops()
        load = Load(near, far, 60_000, 1, 8)
        cluster.add().up()
        line = load.result()
        assert whole(line), line


def test_a_hang_under_overload_slows_publishers_and_loses_nothing(tmp_path: Path) -> None:
    """Publishers are slowed down, and nothing is lost."""
    with brokers(tmp_path, "topic", 2) as cluster:
        near, far = cluster.brokers
        load = Load(near, far, 200_000, 1, 8, "--version", "5")
        hang(far, 4.0)
        line = load.result()
        assert whole(line), line
