"""A shared subscription under load: brokers with journals that are killed and drained in turn,
thousands of messages a second.

Publishers and members keep their sessions and stay with their brokers; most messages are for
members at other brokers. Every message that was acknowledged has a receiver in the group: at QoS 2
one alone. RATE=n messages a second, SECONDS=n, FAULT=kill|drain|mixed and ROUTING=word for a run by
hand.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.chaos.crowds import Crowds, Found
from tests.chaos.plan import Listener, Plan, Speaker
from tests.kit.api import ask
from tests.kit.brokers import Broker, Cluster

RATE = int(os.environ.get("RATE", "20000"))
SECONDS = float(os.environ.get("SECONDS", "20"))
BROKERS = 3
DOWN = 1.5
"""s that a broker that was killed or drained stays away."""


def people(ports: list[int], qos: int) -> Plan:
    """Publishers at all brokers, two at the first one; two members at each other one."""
    where = (*range(BROKERS), 0)
    speakers = tuple(
        Speaker(n, broker, qos, b"load/shared/%d" % n, RATE / len(where))
        for n, broker in enumerate(where)
    )
    hears = tuple(speaker.number for speaker in speakers)
    members = tuple(
        Listener(n, "member", 1 + n // 2, "$share/g/load/#", hears)
        for n in range(2 * (BROKERS - 1))
    )
    everywhere = tuple(range(BROKERS))
    return Plan(tuple(ports), speakers, members, everywhere, everywhere)


def strike(cluster: Cluster, crowds: Crowds, fault: str) -> None:
    """Kill or drain one broker after the other, and start it again: its clients are back as soon as
    it lets them."""
    end = time.monotonic() + SECONDS - 4.0
    at = 0
    while time.monotonic() < end:
        time.sleep(1.5)
        index = at % BROKERS
        broker = cluster.brokers[index]
        crowds("down", index)
        if fault == "kill" or (fault == "mixed" and at % 2):
            broker.kill()
        else:
            drain(broker)
        time.sleep(DOWN)
        broker.start()
        crowds("up", index)
        at += 1


def drain(broker: Broker) -> None:
    """`mqttree drain`, until the process has ended."""
    ask(broker.admin, "POST", "/drain?within=4")
    assert broker.process is not None
    broker.process.wait(30)


def play(cluster: Cluster, qos: int, fault: str) -> Found:
    """Let it run, and compare."""
    crowds = Crowds(people([broker.port for broker in cluster.brokers], qos))
    try:
        crowds("listen")
        crowds("speak")
        strike(cluster, crowds, fault)
        time.sleep(1.0)
        crowds("quiet")
        return crowds.check()
    finally:
        crowds.end()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "fault", [os.environ["FAULT"]] if "FAULT" in os.environ else ["kill", "drain"]
)
@pytest.mark.parametrize("qos", [1, 2])
def test_each_message_has_one_receiver_in_the_group(tmp_path: Path, qos: int, fault: str) -> None:
    with Cluster(
        tmp_path, *(["--routing", os.environ["ROUTING"]] if "ROUTING" in os.environ else [])
    ) as cluster:
        for _ in range(BROKERS):
            cluster.add()
        cluster.settle()
        found = play(cluster, qos, fault)
        for broker in cluster.brokers:
            counters = (broker.state() or {}).get("counters", {})
            print(
                broker.name,
                {
                    k: v
                    for k, v in counters.items()
                    if v and k.startswith(("shared_", "dropped", "log_", "turns"))
                },
            )
        print(
            f"QoS {qos}, {fault}, {RATE} a second: {dict(found.counts)}, "
            f"{found.broken}, {found.missing}"
        )
        assert found.counts["compared"]
        assert not found.broken
        assert not found.missing
        assert not found.counts["sessions lost"]
