"""A leg that sends only what clients of a foreign broker want: a real Mosquitto, and beside it the
HTTP interface that an EMQX has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.brokers import Cluster
from tests.kit.clients import clients
from tests.kit.foreign import MOSQUITTO, MosquittoBroker
from tests.kit.subscription_server import PASSWORD, USER, SubscriptionServer
from tests.kit.waiting import until
from tests.process.test_legs import Gateway, get, legs, url

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="Mosquitto is not installed")


def gateway(cluster: Cluster, foreign: MosquittoBroker, *flags: str) -> Gateway:
    """A gateway that is up."""
    made = Gateway(cluster.folder, "g", ["--discovery", "off", *flags], cluster=cluster.cluster)
    made.foreign = url(foreign.port)
    cluster.brokers.append(made)
    made.start().up()
    return made


def interest(broker: Gateway) -> dict[str, Any]:
    """What the leg knows of foreign clients."""
    found = legs(broker)["g"]["interest"]
    assert isinstance(found, dict)
    return found


def test_a_message_that_nobody_there_wants_is_not_sent(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD)
    secret.chmod(0o600)
    with (
        Cluster(tmp_path / "ours") as cluster,
        MosquittoBroker(tmp_path, "theirs") as foreign,
        SubscriptionServer(page=1) as emqx,
        clients() as make,
    ):
        emqx.subscriptions = [("mqttree-g", "#"), ("t", "wanted/#")]
        broker = gateway(
            cluster,
            foreign,
            *("--interest", "emqx", "--interest-url", f"http://{USER}@127.0.0.1:{emqx.port}"),
            *("--interest-password-file", str(secret)),
        )
        until(lambda: not interest(broker)["sends_all"], "an answer")
        here, there = make(broker.port), make(foreign.port)
        there.subscribe("#", 2)
        before = legs(broker)["g"]["messages_out"]
        for topic in ("unwanted", "later", "wanted/1"):
            here.done(here.publish(topic, topic.encode(), 1))
        assert there.got(1, "wanted/1") == [b"wanted/1"]
        assert there.payloads("unwanted") == []
        assert legs(broker)["g"]["messages_out"] == before + 1
        emqx.subscriptions.append(("u", "$share/g/later"))
        until(lambda: interest(broker)["filters"] == 2, "the new filter")
        here.done(here.publish("later", b"now", 1))
        assert there.got(1, "later") == [b"now"]
        emqx.status = 503
        until(lambda: interest(broker)["state"] == "failed", "a failure")
        here.done(here.publish("unwanted", b"all", 1))
        assert there.got(1, "unwanted") == [b"all"]
        assert "HTTP 503" in interest(broker)["last_error"]
        assert len(broker.lines("all is sent", "HTTP 503")) == 1
        labels = f'{{leg="g",broker="{url(foreign.port)}"}}'
        metrics = get(broker, "/metrics")
        assert f"mqttree_leg_interest_known{labels} 0" in metrics
        emqx.status = 200
        until(lambda: interest(broker)["state"] == "known", "an answer again")


def test_beacons_of_foreign_clients_say_what_they_want(tmp_path: Path) -> None:
    with (
        Cluster(tmp_path / "ours") as cluster,
        MosquittoBroker(tmp_path, "theirs") as foreign,
        clients() as make,
    ):
        broker = gateway(cluster, foreign, "--interest", "beacon")
        here, there = make(broker.port), make(foreign.port)
        here.subscribe("federator/#")
        there.subscribe("#", 2)

        def heard() -> bool:
            there.done(there.publish("federator/beacon/wanted", b"", 1))
            return not interest(broker)["sends_all"]

        until(heard, "beacons")
        for topic in ("unwanted", "wanted"):
            here.done(here.publish(topic, b"x", 1))
        assert there.got(1, "wanted") == [b"x"]
        assert there.payloads("unwanted") == []
        assert here.payloads() == []
