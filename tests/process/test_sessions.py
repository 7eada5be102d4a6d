"""Clients that go from broker to broker find their session there: real processes, paho and
mosquitto_sub."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.brokers import Cluster
from tests.kit.clients import clients


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("sessions"), link_timeout=4.0) as found:
        for _ in range(3):
            found.add()
        found.agree()
        yield found
        found.show()


@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_finds_its_queue_at_each_broker_it_goes_to(
    cluster: Cluster, protocol: int, qos: int
) -> None:
    """It is away while messages are published, and at the next broker it gets them, in order, at
    QoS 2 once."""
    topic = f"round/{protocol}/{qos}"
    with clients() as make:
        publisher = make(cluster.brokers[0].port)
        roamer = make(
            cluster.brokers[0].port, client_id=topic, protocol=protocol, clean=False, expiry=600
        )
        roamer.subscribe(topic, qos)
        publisher.probe(topic, lambda: roamer.payloads(topic))
        got: list[bytes] = []
        for step in range(1, 7):
            if step % 2:
                roamer.close()
            else:
                roamer.break_off()
            got += roamer.payloads(topic)
            sent = [b"%d %d" % (step, n) for n in range(20)]
            publisher.done(*[publisher.publish(topic, payload, 2) for payload in sent])
            roamer = make(
                cluster.brokers[step % 3].port,
                client_id=topic,
                protocol=protocol,
                clean=False,
                expiry=600,
            )
            assert roamer.session_present
            roamer.got(len(sent), topic)
        got += roamer.payloads(topic)
        messages = [payload for payload in got if payload != b"probe"]
        wanted = [b"%d %d" % (step, n) for step in range(1, 7) for n in range(20)]
        if qos == 2:
            assert messages == wanted
        else:
            assert not set(wanted) - set(messages)
