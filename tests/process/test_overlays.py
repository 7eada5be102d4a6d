"""`--routing topic` with real brokers: messages go straight to those that want them, over links that the spanning tree blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.status import render
from tests.process.brokers import Broker, Client, Cluster, clients, star_of, until

MESSAGES = 200


@pytest.fixture
def star(tmp_path: Path) -> Iterator[list[Broker]]:
    """The root of a tree of three brokers, and its two leaves; all have links to each other."""
    with star_of(tmp_path, "topic") as brokers:
        until(lambda: all(broker.view()["overlays"]["active"] for broker in brokers), "overlays are active")
        yield brokers


@pytest.fixture
def make() -> Iterator[Callable[..., Client]]:
    with clients() as maker:
        yield maker


def open_way(publisher: Client, subscriber: Client, topic: str) -> None:
    def probe() -> bool:
        publisher.done(publisher.publish(topic, "probe", 1))
        return bool(subscriber.payloads(topic))

    until(probe, "the way is open")


def numbers(client: Client) -> list[bytes]:
    return [payload for payload in client.payloads() if payload != b"probe"]


EXPECTED = [f"{number}".encode() for number in range(MESSAGES)]


@pytest.mark.parametrize("qos", (0, 1, 2))
def test_from_leaf_to_leaf_past_the_root(star: list[Broker], make: Callable[..., Client], qos: int) -> None:
    """Overlays, figure 5 (d): a broker that is not interested in the topic gets none of it."""
    middle, wanting, other = star
    subscriber, publisher = make(wanting.port), make(other.port)
    subscriber.subscribe("wanted/#", qos)
    open_way(publisher, subscriber, "wanted/x")
    publisher.done(*[publisher.publish("wanted/x", f"{number}", qos) for number in range(MESSAGES)])
    until(lambda: len(numbers(subscriber)) >= MESSAGES, "all messages")
    assert numbers(subscriber) == EXPECTED
    assert middle.counter("received_link") == 0
    sets = other.view()["overlays"]["sets"]
    assert [found["brokers"] for found in sets] == [[wanting.view()["id"]]]


def test_topics_of_the_same_brokers_share_an_overlay(star: list[Broker], make: Callable[..., Client]) -> None:
    """Sixty topics, wanted by two brokers: one overlay, and no word on links for any of them but the filters."""
    middle, one, two = star
    first, second, publisher = make(one.port), make(two.port), make(middle.port)
    for subscriber in (first, second):
        subscriber.subscribe("t/+", 1)
    open_way(publisher, first, "t/0")
    open_way(publisher, second, "t/0")
    publisher.done(*[publisher.publish(f"t/{number}", "x", 1) for number in range(60)])
    until(lambda: min(first.payloads().count(b"x"), second.payloads().count(b"x")) == 60, "all messages")
    sets = middle.view()["overlays"]["sets"]
    assert [(sorted(found["brokers"]), found["topics"]) for found in sets] == [
        (sorted((one.view()["id"], two.view()["id"])), 60)
    ]


def test_leaves_go_on_when_the_root_dies(star: list[Broker], make: Callable[..., Client]) -> None:
    """The tree has to be grown anew; what is acknowledged meanwhile arrives once and in order."""
    middle, wanting, other = star
    subscriber, publisher = make(wanting.port), make(other.port)
    subscriber.subscribe("wanted", 2)
    open_way(publisher, subscriber, "wanted")
    half = MESSAGES // 2
    sent = [publisher.publish("wanted", f"{number}", 2) for number in range(half)]
    middle.kill()
    sent += [publisher.publish("wanted", f"{number}", 2) for number in range(half, MESSAGES)]
    publisher.done(*sent)
    until(lambda: len(numbers(subscriber)) >= MESSAGES, "all messages")
    assert numbers(subscriber) == EXPECTED


def test_a_broker_that_floods_joins_and_leaves(tmp_path: Path, make: Callable[..., Client]) -> None:
    """With one that routes otherwise, messages keep to the tree; without it they go straight again."""
    with Cluster(tmp_path) as cluster:
        brokers = [cluster.add("--routing", "topic") for _ in range(2)]
        cluster.settle()
        until(lambda: all(broker.view()["overlays"]["active"] for broker in brokers), "overlays are active")
        flooding = cluster.add("--routing", "flood")
        cluster.settle()
        until(lambda: not any(broker.view()["overlays"]["active"] for broker in brokers), "overlays are given up")
        subscriber, publisher = make(brokers[0].port), make(flooding.port)
        subscriber.subscribe("wanted", 1)
        publisher.done(*[publisher.publish("wanted", f"{number}", 1) for number in range(MESSAGES)])
        until(lambda: len(subscriber.payloads()) >= MESSAGES, "all messages")
        flooding.terminate()
        until(lambda: all(broker.view()["overlays"]["active"] for broker in brokers), "overlays are active again")
        cluster.show()


def test_status_tells_of_overlays(star: list[Broker]) -> None:
    """`mqttree status` says whether messages take overlays."""
    text = render(star[0].view())
    assert "overlays 0 for 0 topics" in text
    assert "overlays none" in render(star[0].view() | {"overlays": {"active": False}})


@pytest.mark.parametrize("routing", ("flood", "interest", "topic"))
def test_a_subscription_holds_when_it_is_acknowledged(tmp_path: Path, make: Callable[..., Client], routing: str) -> None:
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
