"""Addresses of a foreign broker as users write them: mqtt[s]://[USER@]HOST[:PORT], and http[s] for
what it says of itself."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from mqttree.broker.base.address import Address

__all__ = ["BrokerUrl", "HttpUrl", "read_http_url", "read_url"]

PORTS = {"mqtt": 1883, "mqtts": 8883}
HTTP_PORTS = {"http": 0, "https": 0}
"""0: it has to be given."""


class BrokerUrl(NamedTuple):
    """Where a broker is, and as whom to log in there."""

    host: str
    port: int
    tls: bool
    user: str | None

    def __str__(self) -> str:
        scheme = "mqtts" if self.tls else "mqtt"
        return f"{scheme}://{Address(self.host, self.port)}"


class HttpUrl(NamedTuple):
    """Where the HTTP interface of a broker is, and as whom to log in there."""

    host: str
    port: int
    tls: bool
    user: str | None

    def __str__(self) -> str:
        return f"http{'s' if self.tls else ''}://{Address(self.host, self.port)}"


def read_url(text: str) -> BrokerUrl:
    """Return the address. Raises ValueError with one line that says what is wrong, without a
    password that may be in the text."""
    host, port, scheme, user = _read(text, PORTS, "must be mqtt[s]://[USER@]HOST[:PORT]")
    return BrokerUrl(host, port, scheme == "mqtts", user)


def read_http_url(text: str) -> HttpUrl:
    """Return the address. Raises ValueError as `read_url`."""
    host, port, scheme, user = _read(text, HTTP_PORTS, "must be http[s]://[USER@]HOST:PORT")
    return HttpUrl(host, port, scheme == "https", user)


def _read(text: str, ports: dict[str, int], wanted: str) -> tuple[str, int, str, str | None]:
    """Return host, port, scheme and user. `ports`: that of each scheme; `wanted`: for errors.
    Raises ValueError."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(wanted) from None
    if parts.scheme not in ports or not parts.hostname or parts.path not in ("", "/"):
        raise ValueError(wanted)
    if parts.query or parts.fragment:
        raise ValueError(wanted)
    if parts.password is not None:
        raise ValueError("a password is given by a file, as everybody sees command lines")
    user = unquote(parts.username) if parts.username else None
    if port == 0:
        raise ValueError("port must be 1-65535")
    if not port and not ports[parts.scheme]:
        raise ValueError(wanted)
    return parts.hostname, port or ports[parts.scheme], parts.scheme, user
