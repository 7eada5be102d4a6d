"""Bridges in a configuration file of Mosquitto, read as legs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mqttree.broker.config.broker_url import BrokerUrl
from mqttree.broker.config.leg_options import LegModel, knows_psk
from mqttree.broker.config.yaml_file import ConfigError, read_text
from mqttree.broker.leg.leg_settings import Start
from mqttree.broker.leg.retained_rules import Retain
from mqttree.broker.leg.rules import RuleError, parse_rule
from mqttree.broker.wire.strings import shorten

VERSIONS = {"mqttv31": 4, "mqttv311": 4, "mqttv50": 5}
SYNONYMS = {
    "addresses": "address",
    "username": "remote_username",
    "password": "remote_password",
    "clientid": "remote_clientid",
}
TAKEN = {
    "address",
    "bridge_alpn",
    "bridge_cafile",
    "bridge_certfile",
    "bridge_identity",
    "bridge_keyfile",
    "bridge_outgoing_retain",
    "bridge_protocol_version",
    "bridge_psk",
    "bridge_receive_maximum",
    "bridge_tls_use_os_certs",
    "idle_timeout",
    "keepalive_interval",
    "notification_topic",
    "notifications",
    "remote_clientid",
    "remote_password",
    "remote_username",
    "round_robin",
    "start_type",
    "threshold",
    "try_private",
}
"""Options of a bridge that have a counterpart; the last one of each counts."""
NEEDLESS = {
    "bridge_attempt_unsubscribe",
    "bridge_max_packet_size",
    "bridge_max_topic_alias",
    "bridge_reload_type",
    "bridge_session_expiry_interval",
    "bridge_tcp_keepalive",
    "bridge_tcp_user_timeout",
    "bridge_tls_version",
    "cleansession",
    "local_cleansession",
    "local_clientid",
    "restart_timeout",
}
"""Options of a bridge of which a leg has its own way. All others are named in a line: they need
something done by hand (a folder of authorities, a local user), or have no counterpart."""
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
    cafile = options.get("bridge_cafile")
    identity = options.get("bridge_identity")
    tls = bool(cafile or identity) or options.get("bridge_tls_use_os_certs") == "true"
    if identity is not None and not knows_psk():
        raise ConfigError(f"{where}: bridge_psk needs Python 3.13 or newer")
    plain = options.get("try_private") == "false"
    version = options.get("bridge_protocol_version", "mqttv311" if plain else "")
    if version and version not in VERSIONS:
        raise ConfigError(f"{where}: {shorten(version)} is no bridge_protocol_version")
    password = options.get("remote_password")
    state = options.get("notification_topic")
    if options.get("notifications") == "false":
        state = ""
    user = options.get("remote_username")
    url, *others = (_url(address, tls, user, where) for address in addresses)
    return LegModel(
        url,
        tuple(bridge.topics),
        VERSIONS.get(version, 0),
        plain,
        cafile=_path(cafile),
        cert=_path(options.get("bridge_certfile")),
        key=_path(options.get("bridge_keyfile")),
        state_topic=state,
        retain=Retain.IN if options.get("bridge_outgoing_retain") == "false" else Retain.BOTH,
        secret=None if password is None else password.encode(),
        others=tuple(others),
        round_robin=options.get("round_robin") == "true",
        start=_start(options, where, notes),
        idle_timeout=_number(options, "idle_timeout", 60, where),
        threshold=_number(options, "threshold", 1, where),
        client_id=options.get("remote_clientid", ""),
        keep_alive=_number(options, "keepalive_interval", 10, where, 65_535),
        receive_maximum=_number(options, "bridge_receive_maximum", 1000, where, 65_535),
        alpn=options.get("bridge_alpn") if tls else None,
        psk_identity=identity,
        psk=_key(options.get("bridge_psk"), where),
    )


def _start(options: Mapping[str, str], where: str, notes: list[str]) -> Start:
    """Return when the leg is connected. `options`: of the bridge; `where`: for errors; `notes`:
    gets a line for `manual`, which Mosquitto itself has not."""
    wanted = options.get("start_type", "automatic")
    if wanted == "manual":
        notes.append(f"{where}: start_type manual is not taken over: it starts by itself")
        return Start.AUTOMATIC
    try:
        return Start(wanted)
    except ValueError:
        raise ConfigError(f"{where}: {shorten(wanted)} is no start_type") from None


def _number(
    options: Mapping[str, str], name: str, default: int, where: str, most: int = 1_000_000
) -> int:
    text = options.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 8 and 0 <= int(text) <= most):
        raise ConfigError(f"{where}: {shorten(text)} is no {name}")
    return int(text) or default


def _key(text: str | None, where: str) -> bytes | None:
    try:
        return None if text is None else bytes.fromhex(text)
    except ValueError:
        raise ConfigError(f"{where}: bridge_psk has hexadecimal digits alone") from None


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
