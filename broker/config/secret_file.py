"""Files that hold one secret: who may read them, and how long it is."""

from __future__ import annotations

import os
from pathlib import Path

MAX_SECRET = 4096
"""bytes; a longer one is some other file."""


def read_secret(path: Path, least: int, what: str) -> bytes:
    """Return the secret in the file at `path`, without the end of its line. `least`: bytes that it
    needs; `what`: what it is, for the message.

    Raises ValueError with one line for a file that cannot be read, that others than its user may
    read or change, or whose secret is too short or too long.
    """
    try:
        with path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            raw = stream.read(MAX_SECRET + 1)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from None
    if too_open(status.st_mode, status.st_uid, os.geteuid()):
        mode = f"{status.st_mode & 0o777:04o}"
        raise ValueError(
            f"{path} holds a secret that others may read or change (mode {mode}): chmod 600 {path}"
        )
    if status.st_uid not in (os.geteuid(), 0):
        raise ValueError(
            f"{path} holds a secret and belongs to another user (uid {status.st_uid}): chown it"
        )
    secret = raw.rstrip(b"\r\n")
    if not secret:
        raise ValueError(f"{path} is empty")
    if len(secret) < least:
        raise ValueError(f"{path} has {len(secret)} bytes, {what} needs {least} at least")
    if len(raw) > MAX_SECRET:
        raise ValueError(f"{path} is longer than {MAX_SECRET} bytes")
    return secret


def too_open(mode: int, owner: int, user: int) -> bool:
    """Return whether a file's `mode` lets others than its reader see or change a secret. `owner`,
    `user`: numbers of the file's owner and of who reads it.

    A file of root may be readable by its group, as in PostgreSQL: whoever is not root could not
    read it otherwise. So container platforms mount secrets (Kubernetes with fsGroup: 0440).
    """
    return bool(mode & (0o037 if owner == 0 and user != 0 else 0o077))
