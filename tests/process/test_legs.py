"""`mqttree federate` beside a real Mosquitto."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kit.brokers import Broker, Cluster
from tests.kit.clients import clients
from tests.kit.foreign import MOSQUITTO, MosquittoBroker
from tests.kit.waiting import until

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="Mosquitto is not installed")

KILLS = 3


class Gateway(Broker):
    """A broker with a leg to a foreign one."""

    foreign = 0

    def start(self) -> Broker:
        """Start it; `up` waits until it answers."""
        where = f"mqtt://127.0.0.1:{self.foreign}"
        self.command = [
            sys.executable,
            "-m",
            "broker.cli",
            "federate",
            "--broker",
            where,
            *self.flags,
        ]
        self.launch()
        return self


def test_at_qos_2_each_message_crosses_once_over_kills_of_the_gateway(tmp_path: Path) -> None:
    bounds = ("max_inflight_messages 0", "max_queued_messages 0")
    with (
        Cluster(tmp_path / "ours") as cluster,
        MosquittoBroker(tmp_path, "theirs", *bounds) as foreign,
        clients() as make,
    ):
        gateway = Gateway(cluster.folder, "g", ["--discovery", "off"], cluster=cluster.cluster)
        gateway.foreign = foreign.port
        cluster.brokers.append(gateway)
        gateway.start().up()
        until(lambda: gateway.view()["subscriptions"], "a leg that is up")
        away = make(gateway.port, client_id="away", clean=False, expiry=900)
        away.subscribe("there", 2)
        away.close()
        there = make(foreign.port)
        there.subscribe("here", 2)
        sent_here: list[bytes] = []
        sent_there: list[bytes] = []
        for round_ in range(KILLS + 1):
            here = make(gateway.port)
            new = [b"%d-%d" % (round_, number) for number in range(50)]
            mids = [here.publish("here", payload, 2) for payload in new]
            for payload in new:
                there.publish("there", payload, 2)
            here.done(*mids)
            sent_here += new
            sent_there += new
            if round_ < KILLS:
                gateway.kill()
                here.close()
                gateway.start().up()
        assert there.got(len(sent_here)) == sent_here
        back = make(gateway.port, client_id="away", clean=False, expiry=900)
        assert back.got(len(sent_there)) == sent_there
