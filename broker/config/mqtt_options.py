"""The `mqtt:` section of the configuration file: the features and limits that this broker offers to
clients (docs/reference/mqtt5.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mqttree.broker.config.node_config import MAX_INFLIGHT
from mqttree.broker.config.options import number, switch
from mqttree.broker.config.yaml_file import ConfigFile, kind_of, not_one_of
from mqttree.broker.wire.constants import MAX_PACKET_SIZE

Reader = Callable[[object], Any]

MAX_TEXT = 1000
"""bytes of a text in CONNACK; more would exceed what small clients accept."""


class MqttOptionError(ValueError):
    """An option with an invalid value. `key`: its name."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"mqtt.{key}: {reason}")
        self.key = key
        self.reason = reason


def read_options(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of `node_config.NodeConfig` from the keys and values of the section. Raises
    MqttOptionError."""
    found: dict[str, Any] = {}
    for key, value in section.items():
        known = OPTIONS.get(str(key).replace("-", "_"))
        if known is None:
            raise MqttOptionError(str(key), "unknown key")
        field, read = known
        try:
            found[field] = read(value)
        except ValueError as error:
            raise MqttOptionError(str(key), str(error)) from None
    if "redirect_permanent" in found and "server_reference" not in found:
        raise MqttOptionError("redirect", "there is no server_reference to redirect to")
    return found


def read_section(file: ConfigFile) -> dict[str, Any]:
    """Return the section of a file, {} if there is none. Raises ConfigError with one line that
    names the line and key."""
    section = file.section(("mqtt",), OPTIONS)
    try:
        read_options(section)
    except MqttOptionError as error:
        spelt = error.key if error.key in file.data["mqtt"] else error.key.replace("_", "-")
        file.fail(("mqtt", spelt), error.reason)
    return section


def node_options(file: ConfigFile | None) -> dict[str, Any]:
    """Return fields of `node_config.NodeConfig` from the keys `max-qos` and `mqtt` of a file.
    Raises ConfigError with one line that names the line and key."""
    if file is None:
        return {}
    found = read_options(read_section(file))
    key = file.spelt((), "max_qos")
    qos = file.data.get(key, 2)
    if isinstance(qos, bool) or qos not in (0, 1, 2):
        file.fail((key,), f"{qos!r} is not 0, 1 or 2")
    return found | {"max_qos": qos}


def _whole(low: int, high: int, unit: str = "") -> Reader:
    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"expected a whole number, not {kind_of(value)}")
        if not low <= value <= high:
            raise ValueError(f"{value} is not between {low} and {high}{unit}")
        return value

    return read


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a text, not {kind_of(value)}")
    if not value or not value.isprintable():
        raise ValueError("the text is empty" if not value else "the text has control characters")
    if len(value.encode()) > MAX_TEXT:
        raise ValueError(f"the text is longer than {MAX_TEXT} bytes")
    return value


def _permanent(value: object) -> bool:
    if value not in ("permanent", "temporary"):
        raise ValueError(not_one_of(value, ("permanent", "temporary")))
    return value == "permanent"


OPTIONS: dict[str, tuple[str, Reader]] = {
    "max_keep_alive": ("max_keep_alive", _whole(0, 65_535, " s")),
    "max_packet_size": ("max_packet_size", _whole(64, MAX_PACKET_SIZE, " bytes")),
    "max_inflight": ("max_inflight_messages", _whole(1, MAX_INFLIGHT)),
    "receive_maximum": ("receive_maximum", _whole(1, 65_535)),
    "topic_alias_maximum": ("topic_alias_maximum", _whole(0, 65_535)),
    "topic_aliases_out": ("topic_aliases_out", _whole(0, 65_535)),
    "retain_available": ("retain_available", switch),
    "wildcard_subscriptions": ("wildcard_subscriptions", switch),
    "shared_subscriptions": ("shared_subscriptions", switch),
    "subscription_identifiers": ("subscription_identifiers", switch),
    "check_payload_format": ("check_payload_format", switch),
    "response_information": ("response_information", _text),
    "server_reference": ("server_reference", _text),
    "redirect": ("redirect_permanent", _permanent),
    "max_connections": ("max_connections", _whole(0, 10_000_000)),
    "connection_rate": ("connection_rate", number(0, 1e6, " a second")),
    "memory_limit": ("memory_limit", _whole(0, 1 << 50, " bytes")),
    "max_queued_bytes": ("max_queued_bytes", _whole(0, 1 << 50, " bytes")),
    "max_retained_bytes": ("max_retained_bytes", _whole(0, 1 << 50, " bytes")),
}
"""Key -> (field of the node's configuration, reader)."""
