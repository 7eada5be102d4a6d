"""The `listeners:` section of the configuration file: where clients and brokers connect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mqttree.broker.config.listener_model import (
    EXTERNAL,
    KINDS,
    PORTS,
    Listeners,
    ListenerSettings,
)
from mqttree.broker.config.listener_options import (
    OPTIONS,
    OptionError,
    check_options,
    split_options,
    unix_path,
)
from mqttree.broker.config.options import split_bind
from mqttree.broker.config.yaml_file import ConfigFile, KeyPath, kind_of, not_one_of

FILES = ("cafile", "capath", "certfile", "keyfile")

TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "bind": ((str, type(None)), "a text or nothing"),
    "max_connections": (int, "a number"),
    "ssl": (bool, "true or false"),
    **dict.fromkeys((*FILES, "cadata"), ((str, Path, type(None)), "a file name or nothing")),
    # Of amqtt's external listeners.
    **dict.fromkeys(("reader", "writer"), ((str, type(None)), "a text or nothing")),
}
"""Key -> the types of its value, and what they are called."""


def read_listeners(file: ConfigFile | None, listen: str | None = None) -> Listeners:
    """Return the listeners of a file; without any, one of plain TCP. `listen` replaces where the
    default listener binds.

    Raises ConfigError for an unknown key, a wrong value, or a file that a listener names and that
    does not exist.
    """
    entries = None if file is None else listener_entries(file, listen)
    if file is None or entries is None:
        found = ListenerSettings() if listen is None else ListenerSettings(bind=listen)
        return Listeners({"default": found})
    values, options = split_options(entries)
    # What a listener does not say itself is as at the default one, as with amqtt.
    by_name = {name: _settings(values["default"] | entry) for name, entry in values.items()}
    for name, listener in by_name.items():
        try:
            check_options(options[name], listener)
        except OptionError as error:
            path = ("listeners", name)
            file.fail((*path, file.spelt(path, error.key)), str(error))
    return Listeners(by_name, options)


def listener_entries(file: ConfigFile, listen: str | None = None) -> dict[str, Any] | None:
    """Return the keys and values of each listener of a file, checked, with underscores for hyphens;
    None: it has none. `listen`: as of `read_listeners`. Raises ConfigError."""
    raw = file.data.get("listeners")
    if raw is None:
        return None if listen is None else {"default": {"bind": listen}}
    if not isinstance(raw, dict):
        file.fail(("listeners",), f"expected keys and values, not {kind_of(raw)}")
    if "default" not in raw:
        file.fail(("listeners",), "there has to be a listener 'default'")
    entries: dict[str, Any] = {}
    for name in raw:
        entry = file.section(("listeners", name), ["type", *TYPES, *OPTIONS])
        if type(entry.get("bind")) is int:
            entry["bind"] = str(entry["bind"])
        if listen is not None and name == "default":
            entry["bind"] = listen
        base = raw["default"]
        kind = entry.get("type", base.get("type", KINDS[0]) if isinstance(base, dict) else KINDS[0])
        _check_entry(file, ("listeners", str(name)), entry, kind)
        entries[str(name)] = entry
    return entries


def _check_entry(file: ConfigFile, path: KeyPath, entry: dict[str, Any], kind: object) -> None:
    """Check the `entry` of one listener of this `kind`, which is at `path`. Raises ConfigError."""
    if kind not in KINDS:
        file.fail((*path, "type"), not_one_of(kind, KINDS))
    for key, (types, words) in TYPES.items():
        value = entry.get(key)
        if key in entry and (
            not isinstance(value, types) or (isinstance(value, bool) and types is not bool)
        ):
            file.fail((*path, file.spelt(path, key)), f"expected {words}, not {kind_of(value)}")
    _check_values(file, path, entry, str(kind))
    try:
        split_options({"default": entry})
    except OptionError as error:
        file.fail((*path, file.spelt(path, error.key)), str(error))


def _check_values(file: ConfigFile, path: KeyPath, entry: dict[str, Any], kind: str) -> None:
    if not -1 <= (most := entry.get("max_connections", 0)) < 2**32:
        file.fail(
            (*path, file.spelt(path, "max_connections")),
            f"{most} is not a number of connections, or -1 for as many as come",
        )
    if (entry.get("certfile") is None) != (entry.get("keyfile") is None):
        file.fail(path, "If specifying the 'certfile' or 'keyfile', both are required.")
    for key in FILES:
        if (name := entry.get(key)) and not Path(name).exists():
            file.fail((*path, key), f"cannot read {name}: No such file or directory")
    bind = entry.get("bind")
    if bind is not None and kind != EXTERNAL:
        try:
            if unix_path(bind) is None:
                split_bind(bind, PORTS[kind])
        except ValueError as error:
            file.fail((*path, "bind"), str(error))
    if entry.get("ssl") and entry.get("certfile") is None and path[1] == "default":
        file.fail((*path, "ssl"), "a listener with ssl needs certfile and keyfile")


def _settings(entry: dict[str, Any]) -> ListenerSettings:
    return ListenerSettings(
        **{key: value for key, value in entry.items() if key not in ("reader", "writer")}
    )
