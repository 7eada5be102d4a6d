"""Brokers of other products as processes, for tests."""

from __future__ import annotations

import shutil
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from mqttree.bench.lab.launcher import Program, search_path
from mqttree.bench.lab.ports import free_ports
from tests.kit.waiting import until

MOSQUITTO = shutil.which("mosquitto", path=search_path())
"""The program, None if it is not installed."""
# The command of that name on the path is a script that becomes another user.
RABBITMQ = shutil.which("rabbitmq-server", path="/usr/lib/rabbitmq/bin")
"""RabbitMQ, None if it is not installed."""
EPMD = "epmd"
AMQTT = shutil.which("amqtt", path=search_path())
"""amqtt, None if it is not installed."""
ROOT = Path(__file__).parents[2]
AEDES = next(iter(ROOT.glob(".venv/aedes-*[0-9]")), None)
"""The folder of aedes, None if it is not installed."""


class ForeignBroker(Program):
    """A broker of another product that lets every client in. It can be ended and started again at
    its port."""

    patience = 60.0
    """s until it listens."""

    def __init__(self, folder: Path, name: str, command: Sequence[str], port: int) -> None:
        """`folder`: for its log; `name`: for people; `command`: that starts it; `port`: where it
        listens."""
        super().__init__(name, command, folder / f"{name}.log")
        self.port = port
        self.environment: dict[str, str] = {}

    def start(self) -> Self:
        """Start it, and wait until it listens."""
        self.launch(self.environment)
        until(self._listens, f"{self.name} listens", self.patience)
        return self

    def _listens(self) -> bool:
        assert self.running, f"{self.name} ended: {self.said()}"
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5):
            return True
        return False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.running:
            self.end(signal.SIGKILL)
        if self.log_path is not None and self.log_path.exists():
            print(f"---- {self.name}")
            print("\n".join(self.log_path.read_text(errors="replace").splitlines()[-40:]))


class MosquittoBroker(ForeignBroker):
    """A Mosquitto."""

    def __init__(self, folder: Path, name: str, *lines: str) -> None:
        """`folder`: for its files; `name`: for people; `lines`: more of its configuration, such as
        a bridge."""
        assert MOSQUITTO is not None
        (port,) = free_ports(1)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.config = folder / f"{name}.conf"
        super().__init__(folder, name, [MOSQUITTO, "-c", str(self.config)], port)
        self.configure(*lines)

    def configure(self, *lines: str) -> None:
        """Write its file, which counts from its next start on. `lines`: behind its listener."""
        # As root it would become a user that may not write here.
        first = (f"listener {self.port} 127.0.0.1", "allow_anonymous true", "user root")
        self.config.write_text("\n".join((*first, *lines)) + "\n")


def bridge(name: str, port: int, *more: str) -> tuple[str, ...]:
    """Return what a Mosquitto's file says to be bridged with the broker at a `port` of this
    machine. `name`: of the connection; `more`: further lines of it."""
    return (f"connection {name}", f"address 127.0.0.1:{port}", "topic # both 2", *more)


class AmqttBroker(ForeignBroker):
    """An amqtt, without what this project adds to it."""

    def __init__(self, folder: Path, name: str) -> None:
        """`folder`: for its files; `name`: for people."""
        assert AMQTT is not None
        (port,) = free_ports(1)
        config = folder / f"{name}.yaml"
        config.write_text(
            f"listeners: {{default: {{type: tcp, bind: '127.0.0.1:{port}'}}}}\n"
            "plugins:\n"
            "  amqtt.plugins.authentication.AnonymousAuthPlugin: {allow_anonymous: true}\n"
        )
        super().__init__(folder, name, [AMQTT, "-c", str(config)], port)


class AedesBroker(ForeignBroker):
    """An aedes, which keeps everything in memory."""

    def __init__(self, folder: Path, name: str) -> None:
        """`folder`: for its files; `name`: for people."""
        assert AEDES is not None
        (port,) = free_ports(1)
        script = Path(__file__).with_name("aedes.js")
        super().__init__(folder, name, ["node", str(script), str(AEDES), str(port)], port)


class RabbitBroker(ForeignBroker):
    """A RabbitMQ with its plugin for MQTT, whose guests may do everything. Its name server (epmd)
    is a process of its own, as a RabbitMQ would leave the one behind that it starts."""

    patience = 120.0

    def __init__(self, folder: Path, name: str) -> None:
        """`folder`: for its files; `name`: for people."""
        assert RABBITMQ is not None
        port, names, between = free_ports(3)
        home = folder / name
        home.mkdir(parents=True)
        (home / "plugins").write_text("[rabbitmq_mqtt].\n")
        (home / "rabbitmq.conf").write_text(
            "listeners.tcp = none\n"
            f"mqtt.listeners.tcp.1 = 127.0.0.1:{port}\n"
            "mqtt.allow_anonymous = true\n"
            "mqtt.retained_message_store = rabbit_mqtt_retained_msg_store_dets\n"
            "log.console = true\n"
            "log.console.level = warning\n"
            "log.file = false\n"
        )
        super().__init__(folder, name, [RABBITMQ], port)
        self.environment = {
            "HOME": str(home),
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"mqttree-{port}@localhost",
            "RABBITMQ_DIST_PORT": str(between),
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
            # One process, which is the program itself, without a shell around it.
            "RABBITMQ_ALLOW_INPUT": "yes",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput +S 1 +sbwt none",
        }
        self._names = Program("epmd", ["epmd", "-port", str(names)], None)

    def start(self) -> Self:
        """Start it, and wait until it listens."""
        if not self._names.running:
            self._names.launch(self.environment)
        return super().start()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._names.running:
            self._names.end(signal.SIGKILL)
