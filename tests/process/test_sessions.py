"""Clients that go from broker to broker find their session there: real processes, paho and
mosquitto_sub."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.kit.brokers import Cluster
from tests.kit.clients import Client, Mosquitto, clients, repeated
from tests.kit.waiting import PATIENCE, until


@pytest.fixture(scope="module", params=["flood", "interest", "topic"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with Cluster(
        tmp_path_factory.mktemp("sessions"), "--routing", request.param, link_timeout=4.0
    ) as found:
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


def test_the_newer_connection_takes_the_session_over(cluster: Cluster) -> None:
    with clients() as make:
        first = make(cluster.brokers[1].port, client_id="twice", clean=False, expiry=600)
        first.subscribe("twice/#", 2)
        publisher = make(cluster.brokers[0].port)
        known(cluster, publisher, first, "twice/x")
        second = make(cluster.brokers[2].port, client_id="twice", clean=False, expiry=600)
        assert second.session_present
        assert first.lost.wait(PATIENCE)
        third = make(cluster.brokers[1].port, client_id="twice", clean=True)
        assert not third.session_present
        assert second.lost.wait(PATIENCE)


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


def test_a_delayed_will_is_cancelled_where_the_client_comes_back(cluster: Cluster) -> None:
    late = Properties(PacketTypes.WILLMESSAGE)
    late.WillDelayInterval = 600
    with clients() as make:
        listener = make(cluster.brokers[0].port)
        listener.subscribe("wills/#", 1)
        publisher = make(cluster.brokers[1].port)
        known(cluster, publisher, listener, "wills/x")
        for name, clean in (("kept", False), ("ended", True)):
            will = (f"wills/{name}", b"will", 1, False)
            gone = make(
                cluster.brokers[1].port,
                client_id=name,
                clean=False,
                expiry=600,
                will=will,
                will_properties=late,
            )
            gone.subscribe(f"probes/{name}", 1)
            known(cluster, publisher, gone, f"probes/{name}")
            gone.break_off()
            make(cluster.brokers[2].port, client_id=name, clean=clean, expiry=600)
        listener.got(1, "wills/ended")
        assert not listener.payloads("wills/kept")


def test_mosquitto_sub_resumes_its_session_at_another_broker(
    cluster: Cluster, tmp_path: Path
) -> None:
    """`-c`: its subscription and its queue come along."""
    flags = ("-i", "mosquitto", "-c", "-q", "2", "-t", "m/#")
    with clients() as make:
        publisher = make(cluster.brokers[0].port)
        with Mosquitto(tmp_path, cluster.brokers[1].port, *flags) as before:

            def reached() -> bool:
                publisher.publish("m/probe", b"probe", 1)
                return "probe" in before.lines()

            until(reached, "a probe comes")
        sent = [b"%d" % n for n in range(50)]
        publisher.done(*[publisher.publish("m/x", payload, 2) for payload in sent])
        command = ["mosquitto_sub", "-p", str(cluster.brokers[2].port), *flags, "-F", "%t %p"]
        command += ["-W", "30", "-C", "50", "-T", "m/probe"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("m/x")]
        assert lines == [f"m/x {n}" for n in range(50)], done.stderr
        assert not repeated([line.encode() for line in lines])
