"""Retained messages and brokers that come later or were away, as real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit.brokers import Cluster
from tests.kit.clients import Client, clients

Make = Callable[..., Client]


@pytest.fixture
def make() -> Iterator[Make]:
    with clients() as maker:
        yield maker


def test_a_broker_that_starts_again_gets_its_retained_messages_back(
    tmp_path: Path, make: Make
) -> None:
    with Cluster(tmp_path) as cluster:
        one, other = cluster.add(), cluster.add()
        cluster.agree()
        witness = make(other.port)
        witness.subscribe("back/#", 1)
        publisher = make(one.port)
        publisher.done(
            *(publisher.publish(f"back/{n}", b"%d" % n, 1, retain=True) for n in range(50))
        )
        witness.got(50)
        one.kill()
        witness.publish("back/0", b"", 1, retain=True)
        witness.publish("back/1", b"newer", 1, retain=True)
        witness.got(52)
        one.start()
        cluster.agree()
        late = make(one.port)
        late.subscribe("back/#", 1)
        late.got(49)
        assert {m.payload for m in late.messages} == {b"newer", *(b"%d" % n for n in range(2, 50))}
