"""`--routing interest` with real brokers: messages cross the links that lead to subscribers, and no
others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.brokers import Broker, star_of
from tests.kit.clients import Make
from tests.kit.waiting import until

MESSAGES = 200


@pytest.fixture
def star(tmp_path: Path) -> Iterator[list[Broker]]:
    """The root of a tree of three brokers, and its two leaves or a leaf and the one between."""
    with star_of(tmp_path, "interest") as brokers:
        yield brokers


def apart(one: Broker, two: Broker) -> bool:
    """Whether the third broker is on the path between these two."""
    views = [one.view(), two.view()]
    return all(view["parent"] not in (views[0]["id"], views[1]["id"]) for view in views)


def test_a_branch_without_subscribers_gets_no_messages(star: list[Broker], make: Make) -> None:
    """The branch of the subscriber gets everything in order, the other one not a message; after
    unsubscribing neither does. (If links cost something else than when they were new, the tree
    moves, and the other one may be on the path.)"""
    middle, wanting, other = star
    subscriber, publisher = make(wanting.port), make(middle.port)
    subscriber.subscribe("wanted/#", 2)

    def open_way() -> bool:
        publisher.publish("wanted/probe", "probe", 1)
        return bool(subscriber.payloads("wanted/probe"))

    until(open_way, "the way is open")
    mids = [publisher.publish("wanted/x", f"{number}", 1) for number in range(MESSAGES)]
    publisher.done(*mids)
    expected = [f"{number}".encode() for number in range(MESSAGES)]
    until(lambda: sum(p != b"probe" for p in subscriber.payloads()) >= MESSAGES, "all messages")
    assert [p for p in subscriber.payloads() if p != b"probe"] == expected
    assert wanting.counter("received_link") >= MESSAGES
    assert other.counter("received_link") == 0 or apart(middle, wanting)
    subscriber.unsubscribe("wanted/#")

    def closed() -> bool:
        before = middle.counter("forwarded")
        publisher.done(publisher.publish("wanted/probe", "probe", 1))
        return middle.counter("forwarded") == before

    until(closed, "the way is closed")
    assert other.counter("received_link") == 0 or apart(middle, wanting)
