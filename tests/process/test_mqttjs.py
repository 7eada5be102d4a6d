"""MQTT.js, the client of browsers and Node.js, over every kind of connection. Collected where `make test` found node and npm
and installed it (`scripts/setup mqttjs`); `make interop` installs those, too."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.brokers import Cluster, free_ports
from tests.process.certificates import Authority

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
    """The newest MQTT.js that was installed."""
    return sorted((ROOT / ".venv").glob("mqttjs-*[0-9]"))[-1]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, int], Path]]:
    folder = tmp_path_factory.mktemp("mqttjs")
    authority = Authority(folder)
    certificate, key = authority.issue("localhost")
    with Cluster(folder) as cluster:
        broker = cluster.add("--discovery", "off", "--config", str(folder / "config.yaml"), listen=False, start=False)
        ports = dict(zip(("mqtt", "mqtts", "ws", "wss"), [broker.port, *free_ports(3)], strict=True))
        text = CONFIG.format(
            tcp=ports["mqtt"], tls=ports["mqtts"], ws=ports["ws"], wss=ports["wss"], certificate=certificate, key=key
        )
        (folder / "config.yaml").write_text(text)
        broker.start().up()
        yield ports, authority.ca


@pytest.mark.parametrize("version", ["4", "5"])
@pytest.mark.parametrize("scheme", ["ws", "wss", "mqtt", "mqtts"])
def test_mqttjs(scheme: str, version: str, served: tuple[dict[str, int], Path]) -> None:
    ports, ca = served
    command = ["node", str(SCRIPT), str(installed()), f"{scheme}://127.0.0.1:{ports[scheme]}", version, str(ca)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    colour = "blue" if version == "5" else None
    assert found["granted"] == [2]
    assert found["seen"] == [
        ["/q0", 10, 0, False, colour],
        ["/q1", 20, 1, False, colour],
        ["/q2", 30, 2, False, colour],
        ["/big", 300000, 1, False, None],
        ["/empty", 0, 0, False, None],
    ]
    assert found["retained"] == [300000, True]
