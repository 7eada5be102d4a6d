"""Shared subscriptions over three real brokers, with Mosquitto's clients: each message comes to one
member of the whole group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.brokers import Broker, Cluster
from tests.kit.clients import Make, Mosquitto, mosquitto_pub
from tests.kit.waiting import until

MESSAGES = 60


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    with Cluster(tmp_path_factory.mktemp("three")) as cluster:
        brokers = [cluster.add() for _ in range(3)]
        cluster.agree()
        yield brokers
        cluster.show()


def told(members: list[Mosquitto]) -> list[str]:
    """All that came and is no probe."""
    return [line for member in members for line in member.lines() if line != "probe"]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_comes_to_one_member(
    three: list[Broker], make: Make, tmp_path: Path, qos: int
) -> None:
    """Members on two brokers, the publisher on the third: everything comes once, and both take
    part."""
    topic = f"shared/once/{qos}"
    flags = ("-t", f"$share/g/{topic}", "-q", str(qos))
    with (
        Mosquitto(tmp_path, three[0].port, *flags) as one,
        Mosquitto(tmp_path, three[1].port, *flags) as two,
    ):
        make(three[2].port).probe(
            topic, lambda: all("probe" in member.lines() for member in (one, two))
        )
        lines = [f"message {number}" for number in range(MESSAGES)]
        mosquitto_pub(three[2].port, "-t", topic, "-q", str(qos), "-l", lines=lines)
        until(lambda: len(told([one, two])) >= MESSAGES, "all messages")
        assert sorted(told([one, two])) == sorted(lines)
        assert told([one])
        assert told([two])
