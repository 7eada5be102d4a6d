"""The `mqtt:` section and SCRAM-SHA-256 of a running broker: users as `mqttree passwd` writes them,
options from a file."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttree.broker.wire import Auth, Connack, Connect, Packet, Properties, Property
from tests.kit.brokers import Broker
from tests.kit.command import CLI
from tests.kit.raw_client import RawClient
from tests.kit.scram_client import ScramClient
from tests.kit.waiting import PATIENCE

METHOD = "SCRAM-SHA-256"
CONFIG = """
listeners:
  default: {{bind: "127.0.0.1:{port}"}}
access:
  users: {folder}/users
mqtt:
  max-keep-alive: 30
  receive_maximum: 20
  max_packet_size: 4096
  wildcard_subscriptions: no
  response_information: answers/%c
"""


def passwd(folder: Path, user: str, password: str, *flags: str) -> None:
    command = [*CLI, "passwd", str(folder / "users"), user, *flags]
    subprocess.run(command, input=f"{password}\n".encode(), check=True, timeout=PATIENCE)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("mqtt5")
    passwd(folder, "anna", "pässword")
    found = Broker(
        folder,
        "one",
        ["--discovery", "off", "-c", str(folder / "config.yaml")],
        cluster="mqtt5",
        listen=False,
    )
    (folder / "config.yaml").write_text(CONFIG.format(port=found.port, folder=folder))
    found.start().up()
    try:
        yield found
    finally:
        found.kill()


def scram(wire: RawClient, user: str, password: str) -> tuple[Packet, bytes]:
    """Log in; returns the last answer, and the data that it must have."""
    client = ScramClient(user, password)
    named: Properties = {Property.AUTHENTICATION_METHOD: METHOD}
    wanted: Properties = {Property.REQUEST_RESPONSE_INFORMATION: 1}
    first = named | wanted | {Property.AUTHENTICATION_DATA: client.first()}
    challenge = wire.ask(Connect("MQTT", 5, True, 60, "c", properties=first))
    assert isinstance(challenge, Auth)
    assert challenge.properties is not None
    final = client.final(challenge.properties[Property.AUTHENTICATION_DATA])
    answer = wire.ask(Auth(0x18, named | {Property.AUTHENTICATION_DATA: final}))
    return answer, b"v=" + base64.b64encode(client.signature)


def test_scram_lets_a_user_in_and_connack_has_the_files_options(broker: Broker) -> None:
    connack, proof = scram(RawClient(broker.port), "anna", "pässword")
    assert isinstance(connack, Connack)
    assert connack.code == 0
    properties = connack.properties or {}
    assert properties.pop(Property.TOPIC_ALIAS_MAXIMUM)
    assert properties == {
        Property.AUTHENTICATION_METHOD: METHOD,
        Property.AUTHENTICATION_DATA: proof,
        Property.SERVER_KEEP_ALIVE: 30,
        Property.RECEIVE_MAXIMUM: 20,
        Property.MAXIMUM_PACKET_SIZE: 4096,
        Property.WILDCARD_SUBSCRIPTION_AVAILABLE: 0,
        Property.RESPONSE_INFORMATION: "answers/c",
    }


@pytest.mark.parametrize(("password", "code"), [("pässword", 0), ("wrong", 0x86)])
def test_a_scram_user_may_use_a_plain_password(broker: Broker, password: str, code: int) -> None:
    connack = RawClient(broker.port).ask(
        Connect("MQTT", 5, True, 60, "p", "anna", password.encode())
    )
    assert isinstance(connack, Connack)
    assert connack.code == code
