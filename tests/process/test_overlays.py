"""`--routing topic` with real brokers: messages go straight to those that want them, over links
that the spanning tree blocks."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest

from mqttree.broker.cluster.strategy.path_costs import THROUGH
from tests.kit.brokers import Broker, Cluster, star_of
from tests.kit.clients import Client, Make
from tests.kit.waiting import until

MESSAGES = 200


@pytest.fixture(scope="module")
def star(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    """The root of a tree of three brokers, and its two leaves; all have links to each other."""
    with star_of(tmp_path_factory.mktemp("star"), "topic") as brokers:
        until(
            lambda: all(broker.view()["source_trees"]["active"] for broker in brokers),
            "source trees are active",
        )
        yield brokers


def numbers(client: Client) -> list[bytes]:
    return [payload for payload in client.payloads() if payload != b"probe"]


EXPECTED = [f"{number}".encode() for number in range(MESSAGES)]


def costs(brokers: list[Broker]) -> dict[tuple[str, str], float]:
    """The cost that each end of each link has posted (ms)."""
    views = [broker.view() for broker in brokers]
    return {
        (view["id"], peer): cost
        for view in views
        for peer, cost in view["source_trees"]["link_costs_ms"].items()
    }


def past(star: list[Broker], told: dict[tuple[str, str], float]) -> bool:
    """Whether the link of the two leaves is the shortest way between them. Links cost what their
    round trips were measured to take: on a busy machine that may be anything, and what differs by
    less than 1 ms is not posted again."""
    root, *leaves = (broker.view()["id"] for broker in star)

    def cost(one: str, other: str) -> float:
        return max(told.get((one, other), inf), told.get((other, one), inf))

    return cost(*leaves) < sum(cost(root, leaf) for leaf in leaves) + THROUGH / 1000


@pytest.mark.parametrize("qos", (0, 1, 2))
def test_messages_go_from_leaf_to_leaf_past_the_root(
    star: list[Broker], make: Make, qos: int
) -> None:
    """Overlays, figure 5 (d): a broker that is not interested in the topic gets none of it."""
    middle, wanting, other = star
    subscriber, publisher = make(wanting.port), make(other.port)
    subscriber.subscribe("wanted/#", qos)
    told = until(
        lambda: past(star, found := costs(star)) and found,
        "the link of the leaves is the shortest way",
    )
    publisher.probe("wanted/x", lambda: subscriber.payloads("wanted/x"))
    before = middle.counter("received_link")
    publisher.done(*[publisher.publish("wanted/x", f"{number}", qos) for number in range(MESSAGES)])
    # What is under way at QoS 0 while links are found to cost something else may be lost.
    until(
        lambda: len(numbers(subscriber)) >= MESSAGES or (not qos and costs(star) != told),
        "all messages",
    )
    received = middle.counter("received_link")
    if costs(star) == told:
        assert received == before
    if qos or costs(star) == told:
        assert numbers(subscriber) == EXPECTED
    until(
        lambda: (
            [found["brokers"] for found in other.view()["source_trees"]["receiver_sets"]]
            == [[wanting.view()["id"]]]
        ),
        "one set",
    )


@pytest.mark.parametrize("routing", ["interest", "topic"])
def test_a_subscription_holds_everywhere_from_suback_on(
    tmp_path: Path, make: Make, routing: str
) -> None:
    """As with one broker: what is published after SUBACK arrives, wherever it is published."""
    with Cluster(tmp_path, "--routing", routing) as cluster:
        for _ in range(4):
            cluster.add()
        cluster.settle()
        publishers = [make(broker.port) for broker in cluster.brokers]
        for number in range(20):
            subscriber = make(cluster.brokers[number % 4].port)
            subscriber.subscribe(f"once/{number}", 1)
            publishers[(number + 1 + number // 4) % 4].publish(f"once/{number}", "x", 1)
            until(lambda at=subscriber: at.payloads() == [b"x"], f"message {number}")  # type: ignore[misc]
            subscriber.close()
        assert sum(broker.counter("subscriptions_unconfirmed") for broker in cluster.brokers) == 0
        cluster.show()
