"""Bridges of a Mosquitto's file, read as legs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mqttree.broker.config.mosquitto_bridges import NEEDLESS, SYNONYMS, TAKEN, read_bridges
from mqttree.broker.config.yaml_file import ConfigError
from mqttree.broker.leg.leg_settings import Start
from mqttree.broker.leg.retained_rules import Retain

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
idle_timeout 30
threshold 5
keepalive_interval 20
remote_clientid old-bridge
bridge_capath /etc/certs
bridge_outgoing_retain false
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
    assert (plant.retain, second.retain) == (Retain.IN, Retain.BOTH)
    assert plant.cafile == Path("/etc/ca.pem")
    assert plant.rules.incoming == [("a/#", 1), ("site/#", 2)]
    assert plant.rules.to_remote("x") == "site/x"
    assert "cret" not in repr(plant)
    assert str(second.url) == "mqtt://[::1]:1883"
    assert (second.state_topic, second.rules.outgoing) == ("", [("b", 0)])
    assert [str(url) for url in plant.others] == ["mqtts://other.example:8883"]
    assert (plant.start, plant.idle_timeout, plant.threshold) == (Start.LAZY, 30, 5)
    assert (plant.keep_alive, plant.client_id, plant.round_robin) == (20, "old-bridge", False)
    assert notes == [f"{path}:18: bridge_capath is not taken over"]


PAGE = Path(__file__).parents[3] / "docs" / "bridging.md"
NOTED = {
    "bridge_bind_address",
    "bridge_capath",
    "bridge_ciphers",
    "bridge_ciphers_tls1.3",
    "bridge_insecure",
    "bridge_require_ocsp",
    "local_password",
    "local_username",
    "notifications_local_only",
}


def test_each_option_on_the_page_is_taken_needless_or_noted() -> None:
    table = PAGE.read_text().partition("| of Mosquitto |")[2].partition("\n\n")[0]
    rows = [row.split("|")[1] for row in table.splitlines()[2:]]
    options = {option for row in rows for option in re.findall(r"`([a-z_0-9.]+)", row)}
    known = {SYNONYMS.get(option, option) for option in options} - {"connection", "topic"}
    assert known == TAKEN | NEEDLESS | NOTED
    assert not TAKEN & NEEDLESS


@pytest.mark.parametrize(
    ("lines", "version", "plain"),
    [
        ("", 0, False),
        ("try_private true", 0, False),
        ("try_private false", 4, True),
        ("try_private false\nbridge_protocol_version mqttv50", 5, True),
    ],
)
def test_a_bridge_that_does_not_say_what_it_is_becomes_a_plain_leg(
    tmp_path: Path, lines: str, version: int, plain: bool
) -> None:
    (tmp_path / "m.conf").write_text(f"connection a\naddress h\ntopic # both\n{lines}\n")
    leg = read_bridges(str(tmp_path / "m.conf"))[0]["a"]
    assert (leg.version, leg.plain) == (version, plain)


def test_a_bridge_by_a_key_that_both_know_needs_a_newer_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "m.conf"
    file.write_text("connection a\naddress h\nbridge_identity me\nbridge_psk 0aff\ntopic # both\n")
    monkeypatch.setattr("mqttree.broker.config.mosquitto_bridges.knows_psk", lambda: False)
    with pytest.raises(ConfigError, match=r"bridge_psk needs Python 3\.13 or newer"):
        read_bridges(str(file))
    monkeypatch.setattr("mqttree.broker.config.mosquitto_bridges.knows_psk", lambda: True)
    leg = read_bridges(str(file))[0]["a"]
    assert (leg.url.tls, leg.psk_identity, leg.pre_shared_key()) == (True, "me", b"\x0a\xff")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("listener 1883", "has no bridge"),
        ("connection", ":1: connection has no name"),
        ("connection a\ntopic #", ":1: connection a: has no address"),
        ("connection a\naddress h", ":1: connection a: has no topic"),
        ("connection a\naddress h\nstart_type never\ntopic #", "'never' is no start_type"),
        ("connection a\naddress h\nthreshold -1\ntopic #", "'-1' is no threshold"),
        ("connection a\naddress h\nbridge_psk xy\ntopic #", "bridge_psk has hexadecimal"),
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
