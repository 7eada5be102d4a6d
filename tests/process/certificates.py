"""Certificates for tests: an authority, and what it vouches for. Made by the openssl command."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

_KEY = "ec -pkeyopt ec_paramgen_curve:prime256v1"


class Authority:
    """A certificate authority with its folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.ca = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        _openssl(
            f"req -x509 -newkey {_KEY} -nodes -days 2 -addext basicConstraints=critical,CA:TRUE "
            f"-subj /CN={name} -out {self.ca} -keyout {self._key}"
        )

    def issue(self, name: str) -> tuple[Path, Path]:
        """Make a certificate for `name`, which is also good for 127.0.0.1, and its key."""
        certificate, key, request, extras = (
            self.folder / f"{name}.{each}" for each in ("pem", "key", "csr", "ext")
        )
        extras.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1\n")
        _openssl(
            f"req -newkey {_KEY} -nodes -subj /O=mqttree/CN={name} -out {request} -keyout {key}"
        )
        _openssl(
            f"x509 -req -in {request} -days 2 -CA {self.ca} -CAkey {self._key} -CAcreateserial "
            f"-extfile {extras} -out {certificate}"
        )
        return certificate, key

    def client(self, files: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """A client's context that trusts this authority, and shows a certificate if it has one."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if files is not None:
            context.load_cert_chain(*files)
        return context


def self_signed(folder: Path, name: str = "localhost") -> Path:
    """Make a key (key.pem) and a certificate (cert.pem) for `name`, localhost and 127.0.0.1 in this
    folder; returns the certificate."""
    certificate = folder / "cert.pem"
    _openssl(
        f"req -x509 -newkey {_KEY} -nodes -days 2 -subj /CN={name} "
        "-addext subjectAltName=DNS:localhost,IP:127.0.0.1 "
        f"-keyout {folder / 'key.pem'} -out {certificate}"
    )
    return certificate


def _openssl(command: str) -> None:
    words = ["openssl", *command.split()]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
