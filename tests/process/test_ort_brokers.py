"""`--routing ort` with real brokers: messages of a topic go to brokers with a client of it."""

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
    with star_of(tmp_path, "ort") as brokers:
        yield brokers


def test_only_brokers_with_a_client_of_the_topic_get_its_messages(
    star: list[Broker], make: Make
) -> None:
    """The first ones are lost until the overlay has formed; then all come, in order."""
    publishing, wanting, other = star
    subscriber, publisher = make(wanting.port), make(publishing.port)
    subscriber.subscribe("wanted/x", 2)
    make(other.port).subscribe("other/#", 2)

    def formed() -> bool:
        publisher.publish("wanted/x", "probe", 1)
        return bool(subscriber.payloads("wanted/x"))

    until(formed, "the overlay has formed")
    mids = [publisher.publish("wanted/x", f"{number}", 1) for number in range(MESSAGES)]
    publisher.done(*mids)
    expected = [f"{number}".encode() for number in range(MESSAGES)]
    until(lambda: sum(p != b"probe" for p in subscriber.payloads()) >= MESSAGES, "all messages")
    assert [p for p in subscriber.payloads() if p != b"probe"] == expected
    assert wanting.counter("received_link") >= MESSAGES
    assert other.counter("received_link") == 0
    state = publishing.state()
    assert state["routing"] == "ort"
    assert state["topic_overlays"]["topics"] == 1
    assert publishing.counter("lost_before_path") + wanting.counter("lost_before_path") > 0
    # Its broker leaves the overlay with its last subscription.
    subscriber.unsubscribe("wanted/x")

    def left() -> bool:
        before = publishing.counter("forwarded")
        publisher.done(publisher.publish("wanted/x", "probe", 1))
        return publishing.counter("forwarded") == before

    until(left, "the broker has left")
    assert other.counter("received_link") == 0
