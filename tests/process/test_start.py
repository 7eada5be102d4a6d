"""What the start of a broker loads: libraries that it does not need cost each start time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.kit.waiting import PATIENCE

NOT_NEEDED = {
    # The older broker, and what its plugins need.
    "amqtt",
    "dacite",
    "passlib",
    "pwdlib",
    "transitions",
    # A WebSocket listener.
    "websockets",
    # A configuration file.
    "yaml",
    # A users file.
    "argon2",
    "stringprep",
    # Multicast, and systems other than Linux.
    "psutil",
    # A request at the admin port.
    "h11",
    # Scripts for shells.
    "shtab",
    # The papers' routing modes.
    "mqttree.broker.cluster.strategy.ort",
    "mqttree.broker.cluster.strategy.srt_prt",
    # A question where a client should connect, which nobody has asked.
    "placement",
    "mqttree.broker.cluster.placement.client_question",
    "mqttree.broker.cluster.placement.decider",
    "mqttree.broker.cluster.placement.rebalancer",
    "mqttree.broker.cluster.placement.topic_knowledge",
    "mqttree.routing.filter_units",
    # A request at `/api/v1`, or some seconds without one.
    "mqttree.broker.io.api",
    # The version of the installed package, help on the command line.
    "importlib.metadata",
    "email",
    "shutil",
    "difflib",
}

PROGRAM = """
import os, signal, sys
from mqttree.broker.io.broker_service import BrokerService

serve = BrokerService._serve

def served(self):
    serve(self)
    print(type(self).__name__, *sorted(sys.modules), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

BrokerService._serve = served
from mqttree.broker.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def loaded(*options: str) -> list[str]:
    """The class of a broker that has just started, and the modules that are loaded then."""
    arguments = ["--listen", "127.0.0.1:0", "--discovery", "static", "--admin", "127.0.0.1:0"]
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, "run", *arguments, *options],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return found.stdout.split()


def test_a_plain_start_loads_no_more_than_it_needs() -> None:
    kind, *modules = loaded()
    assert kind == "BrokerService"
    assert not NOT_NEEDED & set(modules)


def test_amqtt_is_loaded_for_its_own_keys_of_a_file_only(tmp_path: Path) -> None:
    file = tmp_path / "broker.yaml"
    file.write_text("listeners:\n  default:\n    type: tcp\nmqtt:\n  max_packet_size: 1000\n")
    kind, *modules = loaded("-c", str(file))
    assert kind == "BrokerService"
    assert NOT_NEEDED & set(modules) == {"yaml"}
    file.write_text(file.read_text() + "timeout_disconnect_delay: 1\n")
    kind, *modules = loaded("-c", str(file))
    assert kind == "Broker"
    assert "amqtt" in modules
