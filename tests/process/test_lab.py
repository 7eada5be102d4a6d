"""Test networks as real processes: delays are kept, cuts repaired, and nothing is left behind
however a lab ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from mqttree.bench.lab import cpulimit, owner
from mqttree.bench.lab import lab as labs
from mqttree.bench.lab.brokers import KINDS
from mqttree.bench.lab.lab import Lab, LabError
from mqttree.bench.lab.namespaces import unsupported
from mqttree.bench.lab.ports import free_ports
from mqttree.bench.lab.topology import Topology, Wire
from mqttree.bench.studies import capacity
from mqttree.broker.wire.packets import Pingreq, Publish
from tests.kit.raw_client import RawClient
from tests.kit.waiting import PATIENCE, until

DELAY = 0.020
TWO = Topology("two", ("b0", "b1"), default=Wire(delay_ms=DELAY * 1000, rate_mbit=100))
NO_NAMESPACES = unsupported()
WAYS = [
    pytest.param(
        "namespaces",
        marks=pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES or "they work"),
    ),
    pytest.param("relays"),
]


def view(lab: Lab, broker: str) -> dict[str, Any]:
    with lab.inside(broker), socket.socket() as sock:
        sock.settimeout(5)
        try:
            sock.connect(("127.0.0.1", lab.brokers[broker].place.admin))
            sock.sendall(b"GET /api/v1/federation HTTP/1.0\r\nHost: lab\r\n\r\n")
            answer = b"".join(iter(lambda: sock.recv(65536), b""))
            state: dict[str, Any] = json.loads(answer.split(b"\r\n\r\n", 1)[1])
            return state
        except (OSError, IndexError, ValueError):
            return {}


def live(lab: Lab) -> bool:
    """Whether both brokers let messages through on their link."""
    views = [view(lab, name) for name in lab.brokers]
    return all(
        any(link["up"] and link["forwarding"] for link in each.get("links", [])) for each in views
    )


def alone(lab: Lab) -> bool:
    """Whether each broker is its own root."""
    views = [view(lab, name) for name in lab.brokers]
    return all(each.get("root") == each.get("id") is not None for each in views)


def client(lab: Lab, host: str, broker: str, name: str) -> RawClient:
    address, port = lab.address(host, broker)
    with lab.inside(host):
        return RawClient(port, name, host=address)


def crossing(publisher: RawClient, subscriber: RawClient, number: int) -> float:
    """s from a publication to its arrival; at QoS 1, so that it does arrive, whatever a busy
    machine does to the link."""
    payload = b"%08d" % number
    began = time.monotonic()
    publisher.send(Publish("lab/t", payload, 1, packet_id=number + 1))
    while True:
        packet = subscriber.take()
        if isinstance(packet, Publish) and packet.payload == payload:
            return time.monotonic() - began


@pytest.mark.parametrize("way", WAYS)
def test_a_link_can_be_delayed_cut_and_healed(way: str) -> None:
    with Lab(TWO, KINDS["mqttree-flood"], way=way) as lab:
        lab.start()
        assert lab.way == way
        until(lambda: live(lab), "a tree")
        subscriber, publisher = client(lab, "b1", "b1", "s"), client(lab, "b0", "b0", "p")
        subscriber.subscribe("lab/t", qos=1)
        assert min(crossing(publisher, subscriber, number) for number in range(3)) >= DELAY

        far = client(lab, "b1", "b0", "far")  # a client whose way to its broker is the link
        began = time.monotonic()
        far.ask(Pingreq())
        assert time.monotonic() - began >= 2 * DELAY

        totals = lab.totals()
        assert totals is not None
        assert (
            totals["links"]["b0>b1"]["data_bytes"] >= 3 * 8
            and totals["links"]["b0>b1"]["control_bytes"] > 0
        )
        assert totals["links"]["b1>b0"]["data_bytes"] == 0

        lab.set_links([("b0", "b1")], open=False)
        until(lambda: alone(lab), "both see that the link is dead")
        lab.set_links([("b0", "b1")], heal=True)
        until(lambda: live(lab), "one tree again")
        assert crossing(publisher, subscriber, 9) >= DELAY
        with pytest.raises(ValueError, match=r"^there is no link from b0 to b0$"):
            lab.set_links([("b0", "b0")], open=False)
        assert not lab.broken, "the network is still there"
        with pytest.raises(ValueError, match="speed"):
            lab.set_links([("b0", "b1")], wire={"speed": 1})
        for sock in (subscriber, publisher, far):
            sock.close()


LAB = """
import sys, time
from mqttree.bench.lab.brokers import KINDS
from mqttree.bench.lab.lab import Lab
from mqttree.bench.lab.topology import Topology, Wire
two = Topology("two", ("b0", "b1"), default=Wire(delay_ms=5))
with Lab(two, KINDS["mqttree-flood"], way=sys.argv[1]) as lab:
    lab.start()
    lab.limit_cpu("b0", 0.5)
    print(*(broker.process.pid for broker in lab.brokers.values()), flush=True)
    time.sleep(120)
"""


@pytest.mark.parametrize("way", WAYS)
def test_a_killed_lab_leaves_nothing_behind(way: str, tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", LAB, way], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            pids = [int(word) for word in process.stdout.readline().split()]
            name = f"{owner.PREFIX}{process.pid}-{owner.started(process.pid)}-"
            assert len(pids) == 2 and all(owner.started(pid) for pid in pids)
            assert list(tmp_path.glob(f"{name}*"))
        finally:
            process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
    until(lambda: not any(owner.started(pid) for pid in pids), "the brokers end")
    until(lambda: not list(tmp_path.glob(f"{name}*")), "the folder goes")
    if way == "namespaces":
        until(lambda: not list(owner.NETNS.glob(f"{name}*")), "the namespaces go")
    for root in owner.CGROUPS:
        until(lambda root=root: not list(root.glob(f"{name}*")), "the cgroups go")


def test_a_process_is_limited_by_stopping_and_continuing_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpulimit.shutil, "which", lambda _: None)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            limit = cpulimit.CpuLimit("busy", process.pid, 0.1, cgroups=())
            assert limit.way == "SIGSTOP and SIGCONT in turn"
            until(lambda: state(process.pid) == "T", "it is stopped")
            until(lambda: state(process.pid) != "T", "it is continued")
            limit.close()
            until(lambda: state(process.pid) != "T", "nothing holds it any more")
        finally:
            process.kill()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_a_broker_that_does_not_start_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Lab(TWO, KINDS["mqttree-flood"], way="relays") as lab:
        broker = lab.brokers["b1"]
        broker.command += ["--discovery", "telepathy"]
        with pytest.raises(LabError, match=r"^b1 ended with code 2: mqttree: .*telepathy.*$"):
            lab.start()


def test_a_process_has_one_lab_at_a_time() -> None:
    place = Topology("one", ("b0",), network=False)
    for _ in range(2):
        with Lab(place, KINDS["mqttree-flood"]) as lab:
            lab.start()
            with pytest.raises(LabError, match=r"^this process has a lab already"):
                Lab(place, KINDS["mqttree-flood"]).__enter__()
            assert lab.brokers["b0"].running and lab.brokers["b0"].place.folder.exists()


def test_a_network_that_cannot_listen_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(
            labs, "free_ports", lambda count: [*free_ports(count - 1), taken.getsockname()[1]]
        )
        with pytest.raises(
            LabError, match=r"^the network process cannot listen: .*address already in use"
        ):
            Lab(TWO, KINDS["mqttree-flood"], way="relays").__enter__()
    assert not Lab._process


PLAY = [sys.executable, "-m", "mqttree.bench.cli", "lab", "--lab", "relays"]


def test_a_lab_whose_network_has_died_says_so(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("brokers: 1")
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*PLAY, str(tmp_path / "one.yaml")], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        while "quit" not in process.stdout.readline():
            pass
        own = [
            child.pid
            for child in psutil.Process(process.pid).children()
            if "mqttree.bench.cli" in child.cmdline()
        ]
        (network,) = [pid for pid in own if os.getsid(pid) != pid]  # the other one is the reaper
        os.kill(network, signal.SIGKILL)
        assert process.wait(PATIENCE) == 1
        said = process.stderr.read()
    assert (
        said
        == "mqttree bench: the network process has ended: the brokers have no network any more\n"
    )


@pytest.mark.parametrize("seconds", ["0", "nan", "inf", "-1", "x"])
def test_a_duration_that_is_not_positive_is_refused(
    seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        capacity.main(["mesh3", "--seconds", seconds])
    assert (
        left.value.code == 2 and f"'{seconds}' is not a positive number" in capsys.readouterr().err
    )
