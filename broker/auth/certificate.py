"""The name in the certificate that a peer showed."""

from __future__ import annotations

from typing import Any


def common_name(secure: Any) -> str | None:
    """Return the common name of the peer's certificate (RFC 5280 4.1.2.6); None without one."""
    certificate = secure.getpeercert() if secure is not None else None
    for relative in (certificate or {}).get("subject", ()):
        for name, value in relative:
            if name == "commonName" and value:
                return str(value)
    return None
