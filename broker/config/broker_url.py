"""Addresses of a foreign broker as users write them: mqtt[s]://[USER@]HOST[:PORT]."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from mqttree.broker.base.address import Address

PORTS = {"mqtt": 1883, "mqtts": 8883}
WANTED = "must be mqtt[s]://[USER@]HOST[:PORT]"


class BrokerUrl(NamedTuple):
    """Where a broker is, and as whom to log in there."""

    host: str
    port: int
    tls: bool
    user: str | None

    def __str__(self) -> str:
        scheme = "mqtts" if self.tls else "mqtt"
        return f"{scheme}://{Address(self.host, self.port)}"


def read_url(text: str) -> BrokerUrl:
    """Return the address. Raises ValueError with one line that says what is wrong, without a
    password that may be in the text."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(WANTED) from None
    if parts.scheme not in PORTS or not parts.hostname or parts.path not in ("", "/"):
        raise ValueError(WANTED)
    if parts.query or parts.fragment:
        raise ValueError(WANTED)
    if parts.password is not None:
        raise ValueError("a password is given by a file, as everybody sees command lines")
    user = unquote(parts.username) if parts.username else None
    if port == 0:
        raise ValueError("port must be 1-65535")
    return BrokerUrl(parts.hostname, port or PORTS[parts.scheme], parts.scheme == "mqtts", user)
