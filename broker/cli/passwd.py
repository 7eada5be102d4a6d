"""`mqttree passwd FILE USER`: set or delete a password in the users file
(docs/guides/security.md)."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import sys
import tempfile
from pathlib import Path

from mqttree.broker.auth.scram import ITERATIONS, MAX_ITERATIONS, MIN_ITERATIONS
from mqttree.broker.auth.users_file import Users, check_name, entries, replace_user
from mqttree.broker.config.yaml_file import ConfigError, read_text


def run(arguments: argparse.Namespace) -> int:
    """Set or delete the password. It is asked for twice, or is a line of the standard input. Raises
    ConfigError with one line."""
    path: str = arguments.file
    name: str = arguments.user
    try:
        check_name(name)
    except ValueError as error:
        raise ConfigError(f"passwd: {error}") from None
    if arguments.iterations is not None and (arguments.delete or arguments.no_scram):
        raise ConfigError("--iterations: no SCRAM-SHA-256 verifier is made")
    iterations = ITERATIONS
    if arguments.iterations is not None:
        if (
            not arguments.iterations.isascii()
            or not arguments.iterations.isdecimal()
            or len(arguments.iterations) > 9
        ):
            raise ConfigError(f"--iterations: {arguments.iterations!r} is not a number")
        iterations = int(arguments.iterations)
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise ConfigError(
                f"--iterations: {iterations} is not between {MIN_ITERATIONS} and {MAX_ITERATIONS}"
            )
    there = os.path.lexists(path)
    text = read_text(path) if there else ""
    # A file with an error is not written, because the broker would not accept it afterwards.
    users = Users.parse(path, text)
    if arguments.delete:
        if name not in users:
            raise ConfigError(f"{path}: there is no user {name!r}")
        lines: list[str] = []
    else:
        try:
            lines = entries(
                name,
                _password(name),
                os.urandom,
                scram=not arguments.no_scram,
                iterations=iterations,
            )
        except ValueError as error:
            raise ConfigError(f"passwd: {error}") from None
    _write(Path(path), replace_user(text, name, lines))
    return 0


def _password(name: str) -> str:
    if sys.stdin is None or not sys.stdin.isatty():
        line = sys.stdin.readline() if sys.stdin is not None else ""
        return line.removesuffix("\n").removesuffix("\r")
    try:
        password = getpass.getpass(f"Password of {name}: ")
        again = getpass.getpass("Again: ")
    except EOFError:
        raise ValueError("no password was given") from None
    if again != password:
        raise ValueError("the passwords differ")
    return password


def _write(path: Path, text: str) -> None:
    """Replace the file in one step; a new one is readable by its owner only. A broker that reads it
    meanwhile sees the old or the new content."""
    path = path.resolve()
    temporary = ""
    try:
        mode = path.stat().st_mode & 0o7777 if path.exists() else 0o600
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
            if path.exists():
                with contextlib.suppress(OSError):
                    os.fchown(stream.fileno(), path.stat().st_uid, path.stat().st_gid)
            os.fchmod(stream.fileno(), mode)
        Path(temporary).replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            Path(temporary).unlink(missing_ok=True)
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None
