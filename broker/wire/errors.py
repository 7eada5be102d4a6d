"""Errors in bytes that claim to be MQTT."""

from __future__ import annotations

from typing import Any

from mqttree.broker.wire.constants import ReasonCode


class WireError(Exception):
    """Bytes that are not acceptable MQTT; the connection they came on has to be closed.

    ``reason`` is the Reason Code to answer with (in MQTT 5; older versions just close), ``message``
    one clear line. ``packets`` holds what had been read completely from the same chunk before the
    fault (filled in by ``PacketReader.feed``), so that good packets are never lost with a bad
    one behind them.
    """

    def __init__(self, message: str, reason: ReasonCode = ReasonCode.UNSPECIFIED_ERROR) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.packets: list[Any] = []


class MalformedPacket(WireError):  # noqa: N818 - the specification's word
    """A packet that cannot be parsed according to the specification (MQTT 5, 1.2 and 4.13.1);
    reason 0x81."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ReasonCode.MALFORMED_PACKET)


class ProtocolViolation(WireError):  # noqa: N818 - the specification's word
    """A packet that can be parsed but must not be sent (MQTT 5, 4.13.1); reason 0x82 unless a finer
    one is given."""

    def __init__(self, message: str, reason: ReasonCode = ReasonCode.PROTOCOL_ERROR) -> None:
        super().__init__(message, reason)


class UnsupportedVersion(WireError):  # noqa: N818 - the specification's word
    """A CONNECT whose protocol name and version are not spoken here (MQTT-3.1.2-2); reason 0x84."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)
