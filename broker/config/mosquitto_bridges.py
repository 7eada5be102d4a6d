"""Bridges in a configuration file of Mosquitto, read as legs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from broker.config.broker_url import BrokerUrl
from broker.config.leg_options import LegModel
from broker.config.yaml_file import ConfigError, read_text
from broker.leg.rules import RuleError, parse_rule
from broker.wire.strings import shorten

__all__ = ["read_bridges"]

VERSIONS = {"mqttv31": 4, "mqttv311": 4, "mqttv50": 5}
SYNONYMS = {
    "addresses": "address",
    "username": "remote_username",
    "password": "remote_password",
}
TAKEN = {
    "address",
    "remote_username",
    "remote_password",
    "bridge_cafile",
    "bridge_certfile",
    "bridge_keyfile",
    "bridge_protocol_version",
    "notifications",
    "notification_topic",
}
"""Options of a bridge that have a counterpart; the last one of each counts."""
NEEDLESS = {
    "bridge_attempt_unsubscribe",
    "bridge_outgoing_retain",
    "clientid",
    "cleansession",
    "keepalive_interval",
    "local_clientid",
    "local_cleansession",
    "remote_clientid",
    "restart_timeout",
    "round_robin",
    "start_type",
    "try_private",
}
"""Options of a bridge of which a leg has its own way."""
FIRST_PORT, TLS_PORT = 1883, 8883


@dataclass(slots=True)
class Bridge:
    """A section that begins with `connection`."""

    line: int
    topics: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)


def read_bridges(path: str) -> tuple[dict[str, LegModel], list[str]]:
    """Return the legs that the file at `path` has as bridges, by their names, and a line for each
    option that is not taken over. Raises ConfigError for a file that cannot be read, or that has a
    bridge that cannot be used."""
    bridges: dict[str, Bridge] = {}
    notes: list[str] = []
    bridge: Bridge | None = None
    for number, option, value in _options(read_text(path)):
        if option == "connection":
            if not value:
                raise ConfigError(f"{path}:{number}: connection has no name")
            bridge = bridges[value] = Bridge(number)
        elif option == "listener":
            bridge = None
        elif bridge is not None:
            _take(bridge, option, value, f"{path}:{number}", notes)
    if not bridges:
        raise ConfigError(f"{path}: has no bridge (no line with connection)")
    legs = {}
    for name, found in bridges.items():
        legs[name] = _leg(name, found, path, notes)
    return legs, notes


def _options(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield number, option and value of each line."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip().split(None, 1)
        if words and not words[0].startswith("#"):
            yield number, words[0], words[1].strip() if len(words) > 1 else ""


def _take(bridge: Bridge, option: str, value: str, where: str, notes: list[str]) -> None:
    """Add a line to a bridge. `option`, `value`: of the line; `where`: FILE:LINE; `notes`: gets a
    line if it is not taken over. Raises ConfigError."""
    option = SYNONYMS.get(option, option)
    if option == "topic":
        try:
            parse_rule(value)
        except RuleError as error:
            raise ConfigError(f"{where}: topic: {error}") from None
        bridge.topics.append(value)
    elif option in TAKEN:
        bridge.options[option] = value
    elif option not in NEEDLESS:
        notes.append(f"{where}: {option} is not taken over")


def _leg(name: str, bridge: Bridge, path: str, notes: list[str]) -> LegModel:
    """Return the leg that a bridge becomes. `name`: of the bridge; `path`: of the file; `notes`:
    gets a line for what is not taken over. Raises ConfigError."""
    where, options = f"{path}:{bridge.line}: connection {name}", bridge.options
    addresses = options.get("address", "").split()
    if not addresses:
        raise ConfigError(f"{where}: has no address")
    if not bridge.topics:
        raise ConfigError(f"{where}: has no topic, so that nothing would cross")
    if addresses[1:]:
        notes.append(f"{where}: a leg has one address: {addresses[0]}")
    cafile = options.get("bridge_cafile")
    version = options.get("bridge_protocol_version", "")
    if version and version not in VERSIONS:
        raise ConfigError(f"{where}: {shorten(version)} is no bridge_protocol_version")
    password = options.get("remote_password")
    state = options.get("notification_topic")
    if options.get("notifications") == "false":
        state = ""
    return LegModel(
        _url(addresses[0], cafile is not None, options.get("remote_username"), where),
        tuple(bridge.topics),
        VERSIONS.get(version, 0),
        cafile=_path(cafile),
        cert=_path(options.get("bridge_certfile")),
        key=_path(options.get("bridge_keyfile")),
        state_topic=state,
        secret=None if password is None else password.encode(),
    )


def _url(address: str, tls: bool, user: str | None, where: str) -> BrokerUrl:
    """Return an `address` as a URL. `tls`: whether it is one of TLS; `user`: to log in as; `where`:
    for errors. Raises ConfigError."""
    host, colon, port = address.rpartition(":")
    if not colon or host.endswith(":") or address.endswith("]"):
        host, port = address, ""
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigError(f"{where}: {shorten(address)} is no address")
    known = int(port) if port else TLS_PORT if tls else FIRST_PORT
    return BrokerUrl(host.strip("[]"), known, tls, user)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
