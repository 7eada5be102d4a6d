"""MQTT.js, the client of browsers and Node.js, over every kind of connection. Collected where it is
installed: `make interop` installs it, and node and npm."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqttree.bench.lab.ports import free_ports
from tests.kit.brokers import Cluster
from tests.process.certificates import Authority

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("mqttjs.js")

CONFIG = """\
listeners:
  default: {{bind: "127.0.0.1:{tcp}"}}
  tls: {{bind: "127.0.0.1:{tls}", ssl: true, certfile: {certificate}, keyfile: {key}}}
  web: {{bind: "127.0.0.1:{ws}", type: ws}}
  secure: {{bind: "127.0.0.1:{wss}", type: ws, ssl: true, certfile: {certificate}, keyfile: {key}}}
"""


def installed() -> Path:
    """The MQTT.js that scripts/setup installed."""
    found = list((ROOT / ".venv").glob("mqttjs-*[0-9]"))
    assert len(found) == 1, "MQTT.js is not installed; scripts/setup mqttjs"
    return found[0]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, int], Path]]:
    folder = tmp_path_factory.mktemp("mqttjs")
    authority = Authority(folder)
    certificate, key = authority.issue("localhost")
    with Cluster(folder) as cluster:
        broker = cluster.add(
            "--discovery", "off", "--config", str(folder / "config.yaml"), listen=False, start=False
        )
        ports = dict(
            zip(("mqtt", "mqtts", "ws", "wss"), [broker.port, *free_ports(3)], strict=True)
        )
        text = CONFIG.format(
            tcp=ports["mqtt"],
            tls=ports["mqtts"],
            ws=ports["ws"],
            wss=ports["wss"],
            certificate=certificate,
            key=key,
        )
        (folder / "config.yaml").write_text(text)
        broker.start().up()
        yield ports, authority.ca


@pytest.mark.parametrize("version", ["4", "5"])
@pytest.mark.parametrize("scheme", ["ws", "wss", "mqtt", "mqtts"])
def test_mqttjs_gets_every_message_over_every_transport(
    scheme: str, version: str, served: tuple[dict[str, int], Path]
) -> None:
    assert run(scheme, version, served)["ends"] == []


@pytest.mark.parametrize("version", ["4", "5"])
@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_mqttjs_in_a_page_closes_its_sockets_cleanly(
    scheme: str, version: str, served: tuple[dict[str, int], Path]
) -> None:
    """The bundle for browsers; every socket was closed by both sides, none was cut off."""
    ends = run(scheme, version, served, "page")["ends"]
    assert len(ends) == 3
    assert all(end[:2] == ["mqtt", ""] and end[3] is True for end in ends), ends


def run(
    scheme: str, version: str, served: tuple[dict[str, int], Path], *more: str
) -> dict[str, Any]:
    """Have MQTT.js publish and subscribe; everything that it saw is right when this returns what
    else it said."""
    ports, ca = served
    command = [
        "node",
        str(SCRIPT),
        str(installed()),
        f"{scheme}://127.0.0.1:{ports[scheme]}",
        version,
        str(ca),
        *more,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    colour = "blue" if version == "5" else None
    assert found["granted"] == [2]
    # A QoS 2 message is shown at PUBREL, others overtake it.
    assert sorted(found["seen"], key=lambda each: str(each[0])) == [
        ["/big", 300000, 1, False, None],
        ["/empty", 0, 0, False, None],
        ["/q0", 10, 0, False, colour],
        ["/q1", 20, 1, False, colour],
        ["/q2", 30, 2, False, colour],
    ]
    assert found["retained"] == [300000, True]
    return found
