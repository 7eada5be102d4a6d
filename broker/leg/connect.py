"""CONNECT of a leg to both brokers, and what the codes of their answers mean. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqttree.broker.leg.leg_settings import LegSettings
from mqttree.broker.leg.protocol_level import ProtocolLevel
from mqttree.broker.wire.constants import MAX_PACKET_SIZE, ReasonCode
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Connect, Will
from mqttree.broker.wire.properties import Properties, Property

UNSUPPORTED = (0x01, ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)
"""Codes of a CONNACK by which a broker refuses the version of MQTT."""
OTHER_REASONS = (
    ReasonCode.SERVER_BUSY,
    ReasonCode.SERVER_SHUTTING_DOWN,
    ReasonCode.KEEP_ALIVE_TIMEOUT,
    ReasonCode.ADMINISTRATIVE_ACTION,
    ReasonCode.USE_ANOTHER_SERVER,
    ReasonCode.SERVER_MOVED,
    ReasonCode.CONNECTION_RATE_EXCEEDED,
    ReasonCode.MAXIMUM_CONNECT_TIME,
)
"""Reasons of a DISCONNECT that is for nothing that the client has sent."""
OLD_CODES = (
    "accepted",
    "unacceptable protocol version",
    "identifier rejected",
    "server unavailable",
    "bad user name or password",
    "not authorized",
)
"""Codes of CONNACK in MQTT 3.1.1."""


def describe(code: int) -> str:
    """Return the name of a code of CONNACK or DISCONNECT."""
    if code < len(OLD_CODES):
        return OLD_CODES[code]
    try:
        return ReasonCode(code).name.lower().replace("_", " ")
    except ValueError:
        return "unknown reason"


def foreign_connect(
    settings: LegSettings,
    level: ProtocolLevel,
    password: bytes | None,
    *,
    clean: bool,
    will: bool,
) -> bytes:
    """Return the CONNECT to the foreign broker.

    `settings`: of the leg; `level`: in which version; `password`: of the user there; `clean`:
    whether it ends an old session (Clean Start); `will`: whether it has a will.
    """
    properties: Properties = {}
    five = level.version == 5
    if five:
        if not clean:
            properties[Property.SESSION_EXPIRY_INTERVAL] = settings.expiry
        properties[Property.RECEIVE_MAXIMUM] = settings.receive_maximum
        if settings.topic_alias_maximum:
            properties[Property.TOPIC_ALIAS_MAXIMUM] = settings.topic_alias_maximum
        if settings.maximum_packet_size < MAX_PACKET_SIZE:
            properties[Property.MAXIMUM_PACKET_SIZE] = settings.maximum_packet_size
    packet = Connect(
        "MQTT",
        level.version,
        clean,
        settings.keep_alive,
        settings.client_id,
        settings.username,
        password,
        _will(settings) if will else None,
        properties or None,
        bridge=not five and not level.plain,
    )
    return encode_packet(packet, level.version)


def local_connect(
    settings: LegSettings,
    version: int,
    capabilities: Mapping[int, Any],
    *,
    clean: bool,
    will: bool,
) -> bytes:
    """Return the CONNECT to this broker.

    `settings`: of the leg; `version`: of MQTT (4 or 5); `capabilities`: properties of the foreign
    broker's CONNACK, which count here; `clean`: whether it ends an old session (Clean Start);
    `will`: whether it has a will.
    """
    properties: Properties = {}
    if version == 5:
        properties[Property.SESSION_EXPIRY_INTERVAL] = 0xFFFFFFFF
        # No topic aliases: the topic of a retained message has to be seen.
        for name in (Property.RECEIVE_MAXIMUM, Property.MAXIMUM_PACKET_SIZE):
            if name in capabilities:
                properties[name] = capabilities[name]
        if settings.max_rate:
            window = properties.get(Property.RECEIVE_MAXIMUM, 65_535)
            properties[Property.RECEIVE_MAXIMUM] = min(window, settings.max_rate)
    packet = Connect(
        "MQTT",
        version,
        clean,
        0,
        settings.session,
        settings.as_user,
        None,
        # Rules of a user might refuse it, and the leg with it.
        _will(settings) if will and settings.as_user is None else None,
        properties or None,
        bridge=version != 5,
    )
    return encode_packet(packet, version)


def _will(settings: LegSettings) -> Will:
    """Return what a broker is to publish when the leg is lost."""
    return Will(settings.state_topic, b"0", retain=True)
