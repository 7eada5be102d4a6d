"""Brokers that are not ours, as the command line describes them: a command, and a template of the
file that configures them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from mqttree.bench import checked
from mqttree.bench.lab.brokers import KINDS, Kind


def kinds(added: Sequence[str], configs: Sequence[str] = ()) -> list[Kind]:
    """Return the kinds of brokers that `--add` (NAME=COMMAND) and `--config` (NAME=FILE) describe.
    Raises ValueError, in one line."""
    commands, files = _pairs("--add", added, "COMMAND"), _pairs("--config", configs, "FILE")
    for name in files:
        if name not in commands:
            raise ValueError(f"--config {name}: no broker {name!r} is added (--add {name}=COMMAND)")
    return [_kind(name, command, files.get(name)) for name, command in commands.items()]


def _pairs(option: str, given: Sequence[str], what: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not value.strip():
            raise ValueError(f"{option} {text}: expected NAME={what}")
        if name in found:
            raise ValueError(f"{option} {name}: is there twice")
        found[name] = value
    return found


def _kind(name: str, command: str, file: str | None) -> Kind:
    if not checked.NAME.fullmatch(name):
        raise ValueError(
            f"--add {name}: no broker can be called so: letters, digits and . , + - _ only"
        )
    if name in KINDS:
        raise ValueError(f"--add {name}: there is a broker of this name already")
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"--add {name}: {error}") from error
    if not words:
        raise ValueError(f"--add {name}: no program")
    template = _template(name, file)
    if file is not None and "{config}" not in command:
        raise ValueError(f"--add {name}: the command needs {{config}} to use {file}")
    if file is None and "{config}" in command:
        raise ValueError(f"--add {name}: {{config}} needs a template (--config {name}=FILE)")
    if "{port}" not in command + template:
        raise ValueError(f"--add {name}: the command or its template needs {{port}}")
    return Kind(name, words[0], many=False, command=command, config=template)


def _template(name: str, file: str | None) -> str:
    if file is None:
        return ""
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise ValueError(f"--config {name}: cannot read {file}: {why}") from error


@contextmanager
def known(added: Sequence[Kind]) -> Iterator[Mapping[str, Kind]]:
    """Have brokers among those that scenarios can name, meanwhile."""
    for kind in added:
        KINDS[kind.name] = kind
    try:
        yield KINDS
    finally:
        for kind in added:
            del KINDS[kind.name]
