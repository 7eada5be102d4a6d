"""Clients that go from broker to broker find their session there: real processes, paho and
mosquitto_sub."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.brokers import Cluster
from tests.kit.clients import Client, clients, repeated
from tests.kit.waiting import until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("sessions"), link_timeout=4.0) as found:
        for _ in range(3):
            found.add()
        found.agree()
        yield found
        found.show()


def known(cluster: Cluster, publisher: Client, subscriber: Client, topic: str) -> None:
    """Return when what is published there reaches this subscriber."""

    def reached() -> bool:
        publisher.publish(topic, b"probe", 1)
        return b"probe" in subscriber.payloads(topic)

    until(reached, f"{topic} reaches {subscriber.port}")


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
        known(cluster, publisher, roamer, topic)
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


def test_a_session_left_at_a_hanging_broker_is_merged_later(cluster: Cluster) -> None:
    """Its broker hangs as the client comes elsewhere; what waited there comes when it goes on, and
    nothing comes twice."""
    with clients() as make:
        publisher = make(cluster.brokers[0].port)
        first = make(cluster.brokers[1].port, client_id="left", clean=False, expiry=600)
        first.subscribe("left/x", 2)
        known(cluster, publisher, first, "left/x")
        first.close()
        until(
            lambda: not cluster.brokers[1].view()["connections"],
            "its broker knows that it has gone",
        )
        before = [b"before %d" % n for n in range(50)]
        publisher.done(*[publisher.publish("left/x", payload, 2) for payload in before])
        cluster.brokers[1].pause()
        second = make(cluster.brokers[2].port, client_id="left", clean=False, expiry=600)
        assert not second.session_present
        cluster.brokers[1].resume()
        second.subscribe("left/x", 2)
        after = [b"after %d" % n for n in range(50)]
        publisher.done(*[publisher.publish("left/x", payload, 2) for payload in after])
        got = [payload for payload in second.got(100, "left/x") if payload != b"probe"]
        assert [payload for payload in got if payload in before] == before
        assert [payload for payload in got if payload in after] == after
        assert not repeated(got)
