"""amqtt's part of a configuration: its classes, its checks, and its errors as one line with file,
line and key."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from amqtt.contexts import BrokerConfig, ListenerConfig, ListenerType
from amqtt.errors import BrokerError, PluginError, PluginLoadError
from dacite import DaciteError, WrongTypeError
from dacite import from_dict as dataclass_from

from mqttree.broker.config.listener_model import (
    EXTERNAL,
    PORTS,
    describe_listeners,
    exposed,
    link_bind,
    link_listener,
)
from mqttree.broker.config.listener_options import (
    OPTIONS,
    OptionError,
    check_options,
    split_options,
    unix_path,
)
from mqttree.broker.config.mqtt_options import read_section
from mqttree.broker.config.options import split_bind
from mqttree.broker.config.yaml_file import ConfigError, ConfigFile, KeyPath, kind_of
from mqttree.broker.io.broker_service import start_error

__all__ = [
    "BrokerConfig",
    "describe_listeners",
    "explain",
    "exposed",
    "link_bind",
    "link_listener",
    "read_config",
]

SECONDS = ("session_expiry_interval", "sys_interval", "timeout_disconnect_delay")
"""Keys of the file that are times in s."""


def read_config(
    file: ConfigFile | None, listen: str | None = None
) -> tuple[dict[str, Any], BrokerConfig]:
    """Return amqtt's part of a file, as `broker.Broker` takes it and as amqtt has read it; `listen`
    replaces where the default listener binds.

    Raises ConfigError for an unknown key, a wrong type, or a file that a listener names and that
    does not exist.
    """
    file = file or ConfigFile("", {}, {})
    names = [field.name for field in fields(BrokerConfig)]
    data: dict[str, Any] = copy.deepcopy(
        file.section((), [*names, "max_qos", "federation", "access", "durability", "mqtt", "legs"])
    )
    for ours in ("federation", "access", "durability", "legs"):
        data.pop(ours, None)
    if data.pop("mqtt", None) is not None:
        data["mqtt"] = read_section(file)
    listeners = _listeners(file, listen)
    if listeners is not None:
        data["listeners"] = listeners
    if "max_qos" in data and (
        isinstance(data["max_qos"], bool) or data["max_qos"] not in (0, 1, 2)
    ):
        file.fail((_spelt(file, (), "max_qos"),), f"{data['max_qos']!r} is not 0, 1 or 2")
    for key in SECONDS:
        _check_whole(file, (), key, data, "is not a whole number of seconds from 0", 0)
    return data, _checked(file, data)


def _check_whole(
    file: ConfigFile, path: KeyPath, key: str, data: Mapping[str, Any], wrong: str, least: int
) -> None:
    value = data.get(key)
    if isinstance(value, bool) or (isinstance(value, int) and not least <= value < 2**32):
        file.fail((*path, _spelt(file, path, key)), f"{value!r} {wrong}")


def _checked(file: ConfigFile, data: dict[str, Any]) -> BrokerConfig:
    theirs = {key: value for key, value in data.items() if key not in ("max_qos", "mqtt")}
    # amqtt changes the configuration that it is given.
    known = copy.deepcopy(theirs)
    if "listeners" in known:
        known["listeners"], options = split_options(known["listeners"])
    else:
        options = {}
    config = _amqtt_checked(file, known)
    for name, found in options.items():
        try:
            check_options(found, config.listeners[name])
        except OptionError as error:
            file.fail(("listeners", name, _spelt(file, ("listeners", name), error.key)), str(error))
    return config


def _amqtt_checked(file: ConfigFile, known: dict[str, Any]) -> BrokerConfig:
    try:
        return BrokerConfig.from_dict(known)
    except WrongTypeError as error:
        file.fail(
            _key_path(file, error.field_path),
            f"expected {_type(error.field_type)}, not {kind_of(error.value)}",
        )
    except (DaciteError, ValueError, TypeError, AttributeError) as error:
        file.fail((), str(error) or type(error).__name__)


def _listeners(file: ConfigFile, listen: str | None) -> dict[str, Any] | None:
    """Check each listener of the file by itself: amqtt's messages do not name the listener."""
    raw = file.data.get("listeners")
    if raw is None:
        return None if listen is None else {"default": {"bind": listen}}
    if not isinstance(raw, dict):
        file.fail(("listeners",), f"expected keys and values, not {kind_of(raw)}")
    if "default" not in raw:
        file.fail(("listeners",), "there has to be a listener 'default'")
    names = [*(field.name for field in fields(ListenerConfig)), *OPTIONS]
    listeners: dict[str, Any] = {}
    for name in raw:
        path = ("listeners", str(name))
        entry = file.section(("listeners", name), names)
        if type(entry.get("bind")) is int:
            entry["bind"] = str(entry["bind"])
        if listen is not None and name == "default":
            entry["bind"] = listen
        _check_listener(file, path, entry)
        listeners[str(name)] = entry
    return listeners


def _check_listener(file: ConfigFile, path: KeyPath, entry: dict[str, Any]) -> None:
    kind = entry.get("type", "tcp")
    kinds = [str(each.value) for each in ListenerType]
    if kind not in kinds:
        file.fail((*path, "type"), f"{kind!r} is not one of {', '.join(kinds)}")
    entry["type"] = ListenerType(kind)
    _check_whole(
        file,
        path,
        "max_connections",
        entry,
        "is not a number of connections, or -1 for as many as come",
        -1,
    )
    try:
        ours = split_options({"default": copy.deepcopy(entry)})[0]["default"]
        listener = dataclass_from(ListenerConfig, ours)
    except OptionError as error:
        file.fail((*path, _spelt(file, path, error.key)), str(error))
    except WrongTypeError as error:
        key = str(error.field_path)
        file.fail(
            (*path, _spelt(file, path, key)),
            f"expected {_type(error.field_type)}, not {kind_of(error.value)}",
        )
    except FileNotFoundError as error:  # "'cafile' does not exist : PATH"
        key, _, missing = str(error).partition(" does not exist : ")
        file.fail(
            (*path, _spelt(file, path, key.strip("'"))),
            f"cannot read {missing}: No such file or directory",
        )
    except (DaciteError, ValueError, OSError) as error:
        file.fail(path, str(error) or type(error).__name__)
    if listener.bind is not None and listener.type != EXTERNAL:
        try:
            if unix_path(listener.bind) is None:
                split_bind(listener.bind, PORTS[listener.type])
        except ValueError as error:
            file.fail((*path, "bind"), str(error))
    if listener.ssl and listener.certfile is None and path[1] == "default":
        file.fail((*path, "ssl"), "a listener with ssl needs certfile and keyfile")


def explain(error: Exception, file: ConfigFile | None) -> ConfigError:
    """Return one line for an exception of amqtt or a plugin at the start, with the plugin's line in
    the file if one is to blame."""
    if isinstance(error, ConfigError):
        return error
    reason = str(error).strip()
    cause = error.__cause__ or error.__context__
    if isinstance(error, PluginError | PluginLoadError):
        if cause is not None and str(cause) not in reason:
            reason = f"{reason}: {cause}" if reason else str(cause)
        plugins = file.data.get("plugins") if file is not None else None
        for plugin in _names(plugins):
            if file is not None and (
                plugin in reason or plugin.rpartition(".")[2] in reason or len(_names(plugins)) == 1
            ):
                return ConfigError(f"{file.where(('plugins', plugin))}: {_one_line(reason)}")
        return ConfigError(f"plugins: {_one_line(reason)}")
    if isinstance(error, BrokerError):
        return ConfigError(_one_line(reason.removeprefix("Broker instance can't be started: ")))
    return start_error(error)


def _names(plugins: object) -> list[str]:
    """Return the class paths of a `plugins:` section, which is a mapping or a list of texts and
    mappings."""
    if isinstance(plugins, Mapping):
        return [str(name) for name in plugins]
    if isinstance(plugins, list):
        return [
            name
            for entry in plugins
            for name in (_names(entry) if isinstance(entry, Mapping) else [str(entry)])
        ]
    return []


def _key_path(file: ConfigFile, field_path: str | None) -> KeyPath:
    path: KeyPath = ()
    for key in (field_path or "").split("."):
        path = (*path, _spelt(file, path, key))
    return path


def _spelt(file: ConfigFile, path: KeyPath, key: str) -> str:
    """Return a key as the file spells it: amqtt's fields have underscores, files may have
    hyphens."""
    hyphens = key.replace("_", "-")
    value: Any = file.data
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return hyphens if isinstance(value, dict) and hyphens in value else key


def _type(wanted: object) -> str:
    """Return the name of a type for people."""
    words = {
        "int": "a number",
        "bool": "true or false",
        "str": "a text",
        "Path": "a file name",
        "None": "nothing",
        "NoneType": "nothing",
        "dict": "keys and values",
        "list": "a list",
        "ListenerConfig": "keys and values",
    }
    parts = str(getattr(wanted, "__name__", wanted) if isinstance(wanted, type) else wanted).split(
        " | "
    )
    named = [words.get(part.partition("[")[0].rpartition(".")[2], part) for part in parts]
    return " or ".join(dict.fromkeys(named))


def _one_line(text: str) -> str:
    return " ".join(text.split())
