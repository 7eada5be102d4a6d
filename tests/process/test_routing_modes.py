"""`--routing interest`, `ort` and `srt` with real brokers: messages cross the links that lead to
subscribers, and no others. `topic` is in test_overlays; what each mode promises beside faults is in
tests/sim."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.brokers import Broker, star_of
from tests.kit.clients import Make
from tests.kit.waiting import until

MESSAGES = 200


def apart(one: Broker, two: Broker) -> bool:
    """Whether the third broker is on the path between these two."""
    views = [one.view(), two.view()]
    return all(view["parent"] not in (views[0]["id"], views[1]["id"]) for view in views)


def epochs(star: list[Broker]) -> list[int]:
    """How often the tree has changed."""
    return [broker.view()["epoch"] for broker in star]


@pytest.mark.parametrize("routing", ["interest", "ort", "srt"])
def test_a_branch_without_subscribers_gets_no_messages(
    tmp_path: Path, make: Make, routing: str
) -> None:
    """The branch of the subscriber gets everything in order once the way is open, the other one not
    a message; after unsubscribing neither does. (If links cost something else than when they were
    new, the tree moves, and the other one may be on the path.)"""
    with star_of(tmp_path, routing) as star:
        middle, wanting, other = star
        subscriber, publisher = make(wanting.port), make(middle.port)
        subscriber.subscribe("wanted/x", 2)
        make(other.port).subscribe("other/#", 2)

        publisher.probe("wanted/x", lambda: subscriber.payloads("wanted/x"))
        tree = epochs(star)
        publisher.done(*[publisher.publish("wanted/x", f"{n}", 1) for n in range(MESSAGES)])

        def numbers() -> list[bytes]:
            return [payload for payload in subscriber.payloads() if payload != b"probe"]

        def moved() -> bool:
            """With srt messages may be lost at any QoS while the tree changes."""
            return routing == "srt" and epochs(star) != tree

        until(lambda: len(numbers()) >= MESSAGES or moved(), "all messages")
        if not moved():
            assert numbers() == [b"%d" % number for number in range(MESSAGES)]
            assert wanting.counter("received_link") >= MESSAGES
        assert other.counter("received_link") == 0 or apart(middle, wanting)
        assert middle.view()["routing"] == routing
        subscriber.unsubscribe("wanted/x")

        def closed() -> bool:
            before = middle.counter("forwarded")
            publisher.done(publisher.publish("wanted/x", "probe", 1))
            return middle.counter("forwarded") == before

        until(closed, "the way is closed")
        assert other.counter("received_link") == 0 or apart(middle, wanting)
