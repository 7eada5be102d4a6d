"""Who may use the admin port: with a token (RFC 6750), with a certificate of an authority (mutual
TLS), and from which web pages (RFC 6454).

A port that other machines reach has one of the first two. Whoever has the token may do everything,
from anywhere.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import ssl
from pathlib import Path
from typing import Final

from mqttree.broker.base.address import is_loopback
from mqttree.broker.config.options import AdminTlsSettings
from mqttree.broker.config.secret_file import read_secret

MIN_TOKEN: Final = 16
"""bytes of a token; whoever may ask a thousand times a second finds a short one."""

_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~+/"
"""What a token is made of, with = behind it (RFC 6750 2.1)."""

_PORT: Final = {"http": ":80", "https": ":443"}
"""What an Origin leaves out (RFC 6454 4)."""


class AdminAccess:
    """Decides whether a request may be answered."""

    def __init__(self, token_file: Path | None = None, tls: AdminTlsSettings | None = None) -> None:
        """`token_file`: has the token, and is made if it does not exist; None: no token is needed.
        `tls`: of the port, None without. Raises ValueError with one line for files that cannot be
        used."""
        self._token_file = token_file
        self._tls = tls
        self.made = False
        """The token file was not there, and was made."""
        self._digest: bytes | None = None
        self._context: ssl.SSLContext | None = None
        if token_file is not None:
            if not os.path.lexists(token_file):
                _make_token(token_file)
                self.made = True
            self._digest = _read_digest(token_file)
        if tls is not None:
            self._context = _context(tls)

    @property
    def context(self) -> ssl.SSLContext | None:
        """TLS of the port, None without."""
        return self._context

    @property
    def secured(self) -> bool:
        """Whether a request proves who sends it: by a token or a certificate."""
        return self._digest is not None or (self._tls is not None and self._tls.cafile is not None)

    def check_address(self, host: str) -> None:
        """Raise ValueError, with one line, if the port at the address `host` would let in anybody
        on the network."""
        if not is_loopback(host) and not self.secured:
            raise ValueError(
                f"{host} can be reached from other machines: it needs admin-token-file, or "
                "admin-tls with a cafile"
            )

    def admits(self, authorization: str) -> bool:
        """Return whether a request with this Authorization field ("": none) may be answered."""
        if self._digest is None:
            return True
        scheme, _, token = authorization.partition(" ")
        found = _digest(token.strip().encode("latin-1"))
        # As long for a wrong token as for the right one.
        return hmac.compare_digest(found, self._digest) and scheme.lower() == "bearer"

    def same_origin(self, origin: str, authority: str) -> bool:
        """Return whether a request comes from a page of this port, or from no page at all.

        `origin`: its Origin field, "": none; `authority`: its Host field.
        """
        if not origin or not authority:
            return not origin
        scheme = "http" if self._context is None else "https"
        name = authority.lower().removesuffix(_PORT[scheme])
        return origin.lower().removesuffix(_PORT[scheme]) == f"{scheme}://{name}"

    def read(self) -> bytes | None:
        """Read the token and the certificates again, to be put in force with `renew`. Raises
        ValueError, with one line, for files that cannot be used."""
        if self._tls is not None:
            _context(self._tls)
        return None if self._token_file is None else _read_digest(self._token_file)

    def renew(self, digest: bytes | None) -> None:
        """Put in force what `read` has returned, and the certificates that it has tried."""
        self._digest = digest
        if self._tls is not None and self._context is not None:
            _load(self._context, self._tls)


def read_token(path: Path) -> bytes:
    """Return the token in a file that only its user can read. Raises ValueError with one line."""
    token = read_secret(path, MIN_TOKEN, "a token")
    if token.rstrip(b"=").translate(None, _LETTERS):
        raise ValueError(f"{path}: a token has letters, digits and -._~+/ only")
    return token


def _read_digest(path: Path) -> bytes:
    return _digest(read_token(path))


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _make_token(path: Path) -> None:
    """Write a new token to a file that is not there. Raises ValueError with one line."""
    import secrets

    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(number, "w") as stream:
            stream.write(secrets.token_urlsafe(32) + "\n")
        # Whole, or not there.
        new.rename(path)
    except OSError as error:
        raise ValueError(f"cannot make {path}: {error.strerror or error}") from None


def _context(tls: AdminTlsSettings) -> ssl.SSLContext:
    """Return a context of TLS. Raises ValueError with one line."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        _load(context, tls)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise ValueError(f"admin-tls: {reason}") from None
    return context


def _load(context: ssl.SSLContext, tls: AdminTlsSettings) -> None:
    context.load_cert_chain(tls.certfile, tls.keyfile)
    if tls.cafile is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(tls.cafile)
