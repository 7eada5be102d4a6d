"""Options of legs: what a file and flags say, and one line for what cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqttree.broker.config.leg_options import LegModel, flag_error, read_leg, read_legs
from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.config.options import read_settings
from mqttree.broker.config.yaml_file import ConfigError, ConfigFile
from mqttree.broker.io.legs import leg_settings
from mqttree.broker.leg.leg_settings import Start
from mqttree.broker.leg.retained_rules import Retain


def legs(text: str) -> dict[str, LegModel]:
    return read_legs(ConfigFile.parse("f.yaml", text))


def test_a_section_has_all_options() -> None:
    found = legs(
        """
legs:
  plant:
    broker: mqtts://anna@plant.example
    topic:
      - a/# in 1
      - b both 2 x/ y/
    mqtt: 3.1.1
    cafile: ca.pem
    cert: c.pem
    key: k.pem
    as-user: plant
    retain: in
  other:
    broker: 192.0.2.1:1884
    mqtt: 5
    retain: off
"""
    )
    plant, other = found["plant"], found["other"]
    assert (plant.url.host, plant.url.port, plant.url.tls) == ("plant.example", 8883, True)
    assert (plant.url.user, plant.as_user, plant.version) == ("anna", "plant", 4)
    assert (plant.cafile, plant.cert, plant.key) == (Path("ca.pem"), Path("c.pem"), Path("k.pem"))
    assert plant.rules.incoming == [("a/#", 1), ("y/b", 2)]
    assert (plant.retain, other.retain) == (Retain.IN, Retain.OFF)
    assert (other.url.port, other.version, other.topics) == (1884, 5, ("# both 2",))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("legs: [a]", "f.yaml:1: legs: expected names of legs, not a list"),
        ("legs: {x: 1}", "f.yaml:1: legs.x: expected keys and values, not the number 1"),
        ("legs: {x: {}}", "f.yaml:1: legs.x.broker: is missing"),
        ("legs: {1: {broker: h}}", "a leg's name is a text of 1-64 characters"),
        ("legs: {x: {brocker: h}}", "unknown key"),
        ("legs: {x: {broker: 'http://h'}}", "legs.x.broker: must be mqtt[s]://[USER@]HOST[:PORT]"),
        ("legs: {x: {broker: 'mqtt://u:p@h'}}", "everybody sees command lines"),
        ("legs: {x: {broker: h, topic: 'a sideways'}}", "legs.x.topic: 'sideways' is none of in"),
        ("legs: {x: {broker: h, topic: [1]}}", "expected lines of text, not the number 1"),
        ("legs: {x: {broker: h, topic: []}}", "has no rule: nothing would cross"),
        (
            "legs: {x: {broker: h, topic: '$SYS/# out'}}",
            "is the broker's own: no client may",
        ),
        ("legs: {x: {broker: h, topic: '$share/g/a in'}}", "cannot come in: a shared"),
        (
            "legs: {x: {broker: h, mqtt: 4}}",
            "legs.x.mqtt: must be one of auto, 5, 3.1.1, 3.1.1-plain, not '4'",
        ),
        ("legs: {x: {broker: h, key: k}}", "legs.x.key: is of no use without cert"),
        ("legs: {x: {broker: h, password-file: p}}", "is of no use without a user"),
        ("legs: {x: {broker: 'mqtt://u@h', password-file: /nix}}", "password-file: cannot read"),
        ("legs: {x: {broker: h, max-qos: 3}}", "max-qos: must be a whole number from 0 to 2"),
        ("legs: {x: {broker: h, max-qos: yes}}", "must be a whole number from 0 to 2, not 'True'"),
        (
            "legs: {x: {broker: h, start: lzy}}",
            "start: must be one of automatic, lazy, once, not 'lzy'; did you mean 'lazy'?",
        ),
        ("legs: {x: {broker: h, start: never}}", "start: must be one of automatic, lazy, once"),
        ("legs: {x: {broker: h, threshold: 2}}", "threshold: is of no use without start lazy"),
        ("legs: {x: {broker: []}}", "legs.x.broker: is missing"),
        ("legs: {x: {broker: [h, h]}}", "broker: an address is there twice"),
        ("legs: {x: {broker: [h, 'mqtts://g']}}", "either all addresses are mqtts://"),
        ("legs: {x: {broker: ['mqtt://u@h', 'mqtt://v@g']}}", "all addresses have one user"),
        ("legs: {x: {broker: h, round-robin: 1}}", "must be yes or no, not the number 1"),
        ("legs: {x: {broker: h, alpn: mqtt}}", "of use with mqtts:// alone"),
        ("legs: {x: {broker: h, psk-file: f}}", "psk-identity: is missing: both go together"),
        ("legs: {x: {broker: h, retain: up}}", "legs.x.retain: must be one of both, in, out, off"),
        ("legs: {x: {broker: h, retain: [in]}}", "legs.x.retain: must be one of both, in, out"),
        ("legs: {x: {broker: h, as-user: 1}}", "expected a text, not the number 1"),
        ("legs: {x: {broker: h, marks: 3}}", "legs.x.marks: must be on or off, not '3'"),
    ],
)
def test_what_cannot_be_used_is_one_line(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        legs(text)
    assert why in str(caught.value)
    assert str(caught.value).startswith("f.yaml:1: legs")
    assert "\n" not in str(caught.value)


def test_a_flag_is_named_as_it_is_written() -> None:
    with pytest.raises(ConfigError, match="--password-file: is of no use"):
        read_leg({"broker": "h", "password_file": "p"}, flag_error)


def test_a_password_is_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("one\n")
    file.chmod(0o600)
    leg = read_leg({"broker": "mqtt://u@h", "password_file": str(file)}, flag_error)
    assert leg.password() == b"one"
    file.write_text("two\n")
    assert leg.password() == b"two"
    file.chmod(0o644)
    with pytest.raises(ValueError, match="that others may read"):
        leg.password()


@pytest.mark.parametrize(("text", "on"), [("", True), (", {}: on", True), (", {}: off", False)])
@pytest.mark.parametrize("option", ["marks", "probes"])
def test_marks_and_probes_can_be_switched_off(option: str, text: str, on: bool) -> None:
    found = legs(f"legs: {{x: {{broker: h{text.format(option)}}}}}")["x"]
    assert getattr(found, option) is on
    given = {"broker": "h", option: "on" if on else "off"}
    assert getattr(read_leg(given, flag_error), option) is on


def test_a_leg_offers_no_more_than_this_broker_does() -> None:
    """Else this broker would refuse what the foreign one sends."""
    model = legs("legs: {x: {broker: h}}")["x"]
    config = NodeConfig(max_qos=1, retain_available=False)
    found = leg_settings("x", model, config)
    assert (found.max_qos, found.retain, found.state_topic) == (1, Retain.OFF, "")


def test_the_settings_of_a_broker_have_its_legs() -> None:
    file = ConfigFile.parse("f.yaml", "legs: {x: {broker: h}}")
    settings = read_settings({"config": file}, {})
    assert settings.legs == {"x": read_leg({"broker": "h"}, flag_error)}
    assert not read_settings({}, {}).legs


def test_addresses_have_the_user_of_the_first_one() -> None:
    leg = read_leg({"broker": ["mqtt://u@h", "g:1884"], "round_robin": True}, flag_error)
    assert [(url.host, url.port, url.user) for url in leg.urls] == [
        ("h", 1883, "u"),
        ("g", 1884, "u"),
    ]
    assert leg.round_robin


def test_numbers_of_flags_are_texts() -> None:
    leg = read_leg({"broker": "h", "max_qos": "1", "start": "lazy", "threshold": "3"}, flag_error)
    assert (leg.max_qos, leg.start, leg.threshold, leg.idle_timeout) == (1, Start.LAZY, 3, 60)


def test_a_key_that_both_sides_know_needs_a_newer_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_text("0a ff\n")
    file.chmod(0o600)
    given = {"broker": "mqtts://h", "psk_identity": "me", "psk_file": str(file)}
    monkeypatch.setattr("mqttree.broker.config.leg_options.knows_psk", lambda: False)
    with pytest.raises(ConfigError, match=r"--psk-file: needs Python 3\.13 or newer"):
        read_leg(given, flag_error)
    monkeypatch.setattr("mqttree.broker.config.leg_options.knows_psk", lambda: True)
    assert read_leg(given, flag_error).pre_shared_key() == b"\x0a\xff"
    file.write_text("xy\n")
    with pytest.raises(ConfigError, match="something else than hexadecimal digits"):
        read_leg(given, flag_error)
