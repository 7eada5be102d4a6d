"""Bridges of a Mosquitto's file, read as legs."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config.mosquitto_bridges import read_bridges
from broker.config.yaml_file import ConfigError

FILE = """
# a comment
listener 1883
max_inflight_messages 20

connection plant
address plant.example:8883 other.example
bridge_cafile /etc/ca.pem
bridge_protocol_version mqttv50
remote_username anna
remote_password se cret
try_private true
start_type lazy
bridge_psk 00
topic a/# in 1
topic # both 2 "" site/

connection second
address [::1]
notifications false
topic b
listener 1884
max_connections 5
"""


def test_bridges_become_legs(tmp_path: Path) -> None:
    (tmp_path / "m.conf").write_text(FILE)
    path = str(tmp_path / "m.conf")
    legs, notes = read_bridges(path)
    plant, second = legs["plant"], legs["second"]
    assert list(legs) == ["plant", "second"]
    assert str(plant.url) == "mqtts://plant.example:8883"
    assert (plant.url.user, plant.password(), plant.version) == ("anna", b"se cret", 5)
    assert plant.cafile == Path("/etc/ca.pem")
    assert plant.rules.incoming == [("a/#", 1), ("site/#", 2)]
    assert plant.rules.to_remote("x") == "site/x"
    assert "cret" not in repr(plant)
    assert str(second.url) == "mqtt://[::1]:1883"
    assert (second.state_topic, second.rules.outgoing) == ("", [("b", 0)])
    assert notes == [
        f"{path}:14: bridge_psk is not taken over",
        f"{path}:6: connection plant: a leg has one address: plant.example:8883",
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("listener 1883", "has no bridge"),
        ("connection", ":1: connection has no name"),
        ("connection a\ntopic #", ":1: connection a: has no address"),
        ("connection a\naddress h", ":1: connection a: has no topic"),
        ("connection a\naddress h:x\ntopic #", "'h:x' is no address"),
        ("connection a\naddress h\ntopic # up", ":3: topic: 'up' is none of in, out and both"),
        (
            "connection a\naddress h\nbridge_protocol_version 9\ntopic #",
            "'9' is no bridge_protocol",
        ),
    ],
)
def test_what_cannot_be_used_is_one_line(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "m.conf").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_bridges(str(tmp_path / "m.conf"))
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="/nowhere"):
        read_bridges("/nowhere")
