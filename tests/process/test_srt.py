"""`--routing srt` with real brokers: messages take the way of the subscription once it is open, and
brokers of other modes are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.brokers import Broker, Cluster, star_of
from tests.kit.clients import Client, Make
from tests.kit.waiting import until

MESSAGES = 200
EXPECTED = [f"{number}".encode() for number in range(MESSAGES)]


@pytest.fixture(scope="module")
def star(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    """The root of a tree of three brokers, and its two leaves."""
    with star_of(tmp_path_factory.mktemp("star"), "srt") as brokers:
        yield brokers


def tables(broker: Broker) -> dict[str, Any]:
    found = broker.view()["srt_prt"]
    assert isinstance(found, dict)
    return found


def epochs(star: list[Broker]) -> list[int]:
    """How often the tree has changed; while it does, messages may be lost at any QoS."""
    return [broker.view()["epoch"] for broker in star]


@pytest.mark.parametrize("qos", (0, 1, 2))
def test_once_the_way_is_open_every_message_arrives_in_order(
    star: list[Broker], make: Make, qos: int
) -> None:
    root, wanting, other = star
    tree = epochs(star)
    subscriber, publisher = make(wanting.port), make(other.port)
    before = [tables(broker) for broker in star]
    subscriber.subscribe(f"way/{qos}/#", qos)
    publisher.done(publisher.publish(f"way/{qos}/x", "too early", qos))
    # The subscription has come to the publisher's broker, which is two hops away.
    until(
        lambda: tables(other)["filters"] > before[2]["filters"] or epochs(star) != tree,
        "the way is open",
    )
    publisher.done(
        *[publisher.publish(f"way/{qos}/x", f"{number}", qos) for number in range(MESSAGES)]
    )
    until(
        lambda: len(numbers(subscriber)) >= MESSAGES or epochs(star) != tree,
        "all messages",
    )
    if epochs(star) == tree:
        assert numbers(subscriber) == EXPECTED
        assert tables(other)["advertised"] == before[2]["advertised"] + 1
        assert tables(wanting)["filters"] == before[1]["filters"]
        assert tables(root)["advertised"] == before[0]["advertised"]


def numbers(client: Client) -> list[bytes]:
    return [payload for payload in client.payloads() if payload != b"too early"]


def test_a_broker_of_another_mode_is_refused_with_one_line_at_each_end(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        one = cluster.add("--routing", "srt").up()
        other = cluster.add("--routing", "topic").up()
        until(lambda: one.lines("does not mix") and other.lines("does not mix"), "both refuse")
        assert not [link for broker in (one, other) for link in broker.view()["links"]]
