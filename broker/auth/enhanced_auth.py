"""Enhanced authentication (MQTT 5, 4.12): the exchange of AUTH packets at CONNECT, and again later,
for any method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.errors import ProtocolViolation
from mqttree.broker.wire.packets import Auth
from mqttree.broker.wire.properties import Properties, Property


class AuthenticationFailed(Exception):  # noqa: N818 - what happened, not a fault
    """The client did not prove its identity. The text is for the log: it may say more than the
    client should know."""


class Exchange(Protocol):
    """One run of an authentication method."""

    username: str
    """The authenticated user name; valid once `done`."""
    done: bool
    """The client is authenticated; the last answer of `step` tells it so."""

    def step(self, data: bytes | None) -> bytes | None:
        """Return the answer to Authentication Data (None: there was none). Raises
        AuthenticationFailed."""


Method = Callable[[], Exchange]
"""Begins an exchange."""


class Authentication:
    """The AUTH packets of a connection whose CONNECT named a method."""

    __slots__ = ("_begin", "_exchange", "method", "run", "username")

    def __init__(self, method: str, begin: Method) -> None:
        """`method`: the CONNECT's Authentication Method, which all its AUTH packets repeat
        (MQTT-4.12.0-5)."""
        self.method = method
        # The authenticated name, "" before.
        self.username = ""
        # The number of the exchange.
        self.run = 0
        self._begin = begin
        self._exchange: Exchange | None = None

    @property
    def running(self) -> bool:
        """Whether the client's next packet of this kind must continue an exchange."""
        return self._exchange is not None

    def start(self, data: bytes | None) -> Auth:
        """Begin; returns the AUTH to answer with, whose reason is SUCCESS or
        CONTINUE_AUTHENTICATION.

        The properties of a SUCCESS at CONNECT belong into the CONNACK. Raises AuthenticationFailed.
        """
        self.run += 1
        self._exchange = self._begin()
        return self._step(self._exchange, data)

    def take(self, packet: Auth, *, connected: bool) -> Auth:
        """Take an AUTH packet and return the answer; `connected`: the client may begin again (MQTT
        5, 4.12.1).

        Raises AuthenticationFailed, and ProtocolViolation for a wrong order or another method.
        """
        properties = packet.properties or {}
        if properties.get(Property.AUTHENTICATION_METHOD) != self.method:
            raise ProtocolViolation(
                "AUTH with another Authentication Method than CONNECT [MQTT-4.12.0-5]"
            )
        data = properties.get(Property.AUTHENTICATION_DATA)
        exchange = self._exchange
        if packet.reason == ReasonCode.RE_AUTHENTICATE and connected and exchange is None:
            return self.start(data)
        if packet.reason != ReasonCode.CONTINUE_AUTHENTICATION or exchange is None:
            raise ProtocolViolation(
                f"AUTH with reason {packet.reason:#04x} out of order [MQTT-4.12.0-3]"
            )
        return self._step(exchange, data)

    def _step(self, exchange: Exchange, data: bytes | None) -> Auth:
        answer = exchange.step(data)
        properties: Properties = {Property.AUTHENTICATION_METHOD: self.method}
        if answer is not None:
            properties[Property.AUTHENTICATION_DATA] = answer
        if not exchange.done:
            return Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties)
        # The session, and its permissions, are the first user's.
        if self.username not in ("", exchange.username):
            raise AuthenticationFailed(
                f"authenticates again, as another user than {self.username!r}"
            )
        self.username = exchange.username
        self._exchange = None
        return Auth(ReasonCode.SUCCESS, properties)
