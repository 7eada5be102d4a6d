"""amqtt's part of a configuration: its classes, its checks, and its errors as one line with file,
line and key."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from amqtt.contexts import BrokerConfig
from amqtt.errors import BrokerError, PluginError, PluginLoadError
from dacite import DaciteError, WrongTypeError

from mqttree.broker.config.listener_section import listener_entries
from mqttree.broker.config.mqtt_options import read_section
from mqttree.broker.config.options import AMQTT_KEYS
from mqttree.broker.config.yaml_file import ConfigError, ConfigFile, KeyPath, kind_of
from mqttree.broker.io.broker_service import start_error

SECONDS = ("session_expiry_interval", "sys_interval", "timeout_disconnect_delay")
"""Keys of the file that are times in s."""


def read_config(file: ConfigFile, listen: str | None = None) -> dict[str, Any]:
    """Return what `broker.Broker` takes: amqtt's part of a file, its listeners and the features
    that are offered to clients. `listen`: replaces where the default listener binds.

    Raises ConfigError for a wrong value.
    """
    data: dict[str, Any] = {
        name: copy.deepcopy(value)
        for key, value in file.data.items()
        if (name := key.replace("-", "_")) in AMQTT_KEYS
    }
    for key in SECONDS:
        value = data.get(key)
        if isinstance(value, bool) or (isinstance(value, int) and not 0 <= value < 2**32):
            file.fail((file.spelt((), key),), f"{value!r} is not a whole number of seconds from 0")
    _check_with_amqtt(file, data)
    if mqtt := read_section(file):
        data["mqtt"] = mqtt
    if (key := file.spelt((), "max_qos")) in file.data:
        data["max_qos"] = file.data[key]
    if (listeners := listener_entries(file, listen)) is not None:
        data["listeners"] = listeners
    return data


def _check_with_amqtt(file: ConfigFile, data: dict[str, Any]) -> None:
    try:
        # amqtt changes the configuration that it is given.
        BrokerConfig.from_dict(copy.deepcopy(data))
    except WrongTypeError as error:
        file.fail(
            _key_path(file, error.field_path),
            f"expected {_type(error.field_type)}, not {kind_of(error.value)}",
        )
    except (DaciteError, ValueError, TypeError, AttributeError) as error:
        file.fail((), str(error) or type(error).__name__)


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
        path = (*path, file.spelt(path, key))
    return path


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
