"""Legs when something is wrong: a foreign broker that is away, or none. Two gateways of one name:
tests/unit/leg/test_leg_turns.py, tests/sim/test_legs.py."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.kit.api import ask, check, get
from tests.kit.brokers import Cluster
from tests.kit.clients import clients
from tests.kit.foreign import MOSQUITTO, MosquittoBroker
from tests.kit.waiting import until
from tests.process.test_legs import Gateway, legs, text_of, up, url

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="Mosquitto is not installed")


def gateway(cluster: Cluster, name: str, foreign: str, *flags: str, data: bool = True) -> Gateway:
    """A gateway that was started; `foreign`: "" for one that leads to itself."""
    found = Gateway(cluster.folder, name, list(flags), cluster=cluster.cluster, data=data)
    found.foreign = foreign or url(found.port)
    cluster.brokers.append(found)
    found.start().up()
    return found


def test_the_queue_of_a_leg_has_its_own_bound(tmp_path: Path) -> None:
    with (
        Cluster(tmp_path / "ours") as cluster,
        MosquittoBroker(tmp_path, "theirs") as foreign,
        clients() as make,
    ):
        broker = gateway(cluster, "g", url(foreign.port), "--discovery", "off", "--max-queued", "5")
        up(broker, "g")
        foreign.end(signal.SIGKILL)
        until(lambda: legs(broker)["g"]["last_error"], "a leg that is lost")
        here = make(broker.port)
        here.done(*[here.publish("t", b"%d" % number, 1) for number in range(20)])
        leg = legs(broker)["g"]
        assert (leg["queued"], leg["dropped"]["queue_full"]) == (5, 15)
        until(lambda: broker.lines("leg g: its queue is full"), "a line")
        metrics = text_of(broker, "/metrics").splitlines()
        assert [m for m in metrics if m.startswith("mqttree_leg_dropped_total") and m[-3:] == " 15"]
        foreign.start()
        there = make(foreign.port).subscribed("t", 1)
        assert there.got(5) == [b"0", b"1", b"2", b"3", b"4"]
        assert len(broker.lines("leg g: its queue is full")) == 1


def test_a_leg_to_its_own_federation_is_closed(tmp_path: Path) -> None:
    """Whether that leads to its own broker, or to another one."""
    with Cluster(tmp_path / "ours") as cluster:
        first = gateway(cluster, "g", "", "--discovery", "static")
        until(lambda: first.lines("is this broker itself, and no foreign one"), "a line")
        other = gateway(
            cluster, "h", url(first.port), "--discovery", "static", "--seed", first.address
        )
        until(lambda: other.lines("of this federation, and no foreign one"), "a line")
        for broker, name in ((first, "g"), (other, "h")):
            assert legs(broker)[name]["state"] == "waiting"


def test_the_sessions_of_a_leg_are_ended_on_demand(tmp_path: Path) -> None:
    with Cluster(tmp_path / "ours") as cluster, MosquittoBroker(tmp_path, "theirs") as foreign:
        broker = gateway(cluster, "g", url(foreign.port), "--discovery", "off")
        up(broker, "g")
        leg = {"$ref": "#/components/schemas/Leg"}
        check(get(broker.admin, "/openapi.json"), leg, get(broker.admin, "/legs/g"), "Leg")
        assert ask(broker.admin, "GET", "/legs/none") == (404, {"error": "no such leg"})
        broker.kill()

        def forget(to: str) -> subprocess.CompletedProcess[str]:
            command = [word if word != broker.foreign else to for word in broker.command]
            return subprocess.run(
                [*command, "--forget"], capture_output=True, text=True, timeout=60, check=False
            )

        failed = forget("mqtt://127.0.0.1:1")
        assert failed.returncode == 1
        assert "leg g: cannot end the session there: 127.0.0.1:1: Connection refused" in (
            failed.stdout + failed.stderr
        )
        ended = forget(broker.foreign)
        assert ended.returncode == 0
        broker.start().up()
        up(broker, "g")
        assert legs(broker)["g"]["sessions_lost"] == 0
