"""Addresses of brokers: host and port, parsed, written and ordered as numbers."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import NamedTuple

DEFAULT_PORT = 1883
"""TCP port of MQTT without TLS (IANA)."""

MAX_HOST = 253
"""Longest host name in bytes (RFC 1035 2.3.4, written without the final dot)."""

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NUMERIC = re.compile(r"[0-9.]+")
_WILDCARDS = frozenset(("", "0.0.0.0", "::", "*"))


class Address(NamedTuple):
    """Host (IPv4, IPv6 without brackets, or a name) and TCP port. Plain tuples would be ordered as
    text: sort by `sort_key`."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


SortKey = tuple[int, int, str, int]


# The addresses of one federation: at most 1024 members with 4 addresses each.
@lru_cache(maxsize=4096)
def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address written in `host`, an IPv4-mapped one as IPv4, or None for a name."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found


@lru_cache(maxsize=4096)
def sort_key(address: tuple[str, int]) -> SortKey:
    """Order IPv4 before IPv6 before names, as numbers and not as text, then by port: "the lowest IP
    address" of MQTT-ST, by which 10.0.0.9 is lower than 10.0.0.10. An IPv6 address counts without
    its zone ("%eth0"), which means something on one machine only (RFC 4007)."""
    host, port = address
    found = _literal(host)
    if found is None:
        return (2, 0, host.lower(), port)
    return (0 if isinstance(found, ipaddress.IPv4Address) else 1, int(found), "", port)


def is_literal(host: str) -> bool:
    """Return whether `host` is an IP address, so that no name server is needed."""
    return _literal(host) is not None


def is_wildcard(host: str) -> bool:
    """Return whether `host` stands for every interface ("", "0.0.0.0", "::")."""
    return host in _WILDCARDS


def packed(host: str) -> bytes:
    """Return an IP address as 16 bytes, IPv4 as IPv6 writes it; zeros for a host that is not an
    IP address."""
    found = _literal(host)
    if isinstance(found, ipaddress.IPv4Address):
        return bytes(10) + b"\xff\xff" + found.packed
    return found.packed if found is not None else bytes(16)


def is_loopback(host: str) -> bool:
    """Return whether `host` can be reached from its own machine only."""
    found = _literal(host)
    return found.is_loopback if found is not None else host.lower() == "localhost"


def normal_host(host: str) -> str:
    """Return the canonical spelling of a host: IPv6 compressed, IPv4-mapped IPv6 as IPv4, names in
    lower case. Raises ValueError with one line for a text that is neither an IP address nor a host
    name."""
    found = _literal(host)
    if found is not None:
        return str(found)
    if not host:
        raise ValueError("host is empty")
    if len(host) > MAX_HOST:
        raise ValueError(f"host name of {len(host)} characters is longer than {MAX_HOST}")
    if _NUMERIC.fullmatch(host):
        raise ValueError(f"{host!r} is not an IPv4 address")
    bare = host[:-1] if host.endswith(".") else host
    if not all(_LABEL.fullmatch(label) for label in bare.split(".")):
        raise ValueError(f"{host!r} is not a host name or IP address")
    return host.lower()


def parse_address(text: str, default_port: int = DEFAULT_PORT, least_port: int = 1) -> Address:
    """Return the address in `text`: "HOST:PORT", "HOST", "[v6]:port", "[v6]" or a bare IPv6
    address.

    `default_port`: used where `text` has none. `least_port`: 0 where a listener may choose a free
    port, else 1.

    Raises ValueError with one line that quotes `text`.
    """
    trimmed = text.strip()
    scheme, url, _ = trimmed.partition("://")
    if url:
        raise ValueError(f"address {text!r}: expected HOST:PORT, without {scheme}://")
    if trimmed.startswith("["):
        host, closed, rest = trimmed[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ValueError(f"address {text!r}: expected [IPv6]:PORT")
        if ":" not in host:
            raise ValueError(f"address {text!r}: only an IPv6 address stands in brackets")
        port_text = rest[1:] if rest else None
    elif trimmed.count(":") > 1:
        host, port_text = trimmed, None
        if not is_literal(host):
            raise ValueError(f"address {text!r}: expected HOST:PORT, with IPv6 [IPv6]:PORT")
    else:
        host, colon, after = trimmed.partition(":")
        port_text = after if colon else None
    try:
        port = default_port if port_text is None else _port(port_text, least_port)
        return Address(normal_host(host), port)
    except ValueError as error:
        raise ValueError(f"address {text!r}: {error}") from None


def _port(text: str, least: int) -> int:
    # isdecimal alone accepts digits of other scripts, and int() accepts underscores and signs.
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and least <= int(text) < 65536):
        raise ValueError(f"port {text!r} is not a number from {least} to 65535")
    return int(text)
