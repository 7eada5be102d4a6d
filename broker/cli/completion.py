"""`mqttree completion bash | zsh | fish`: what shtab is to know of the parsers beyond what argparse
does: which values are files, folders, or some of a few words."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from typing import Any, Final

import shtab

PLACES: Final = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY}

CHOICES = re.compile(r"[a-z0-9.-]+(\|[a-z0-9.-]+)+")
"""A metavar that names all values, `none|async|sync`."""


def script(
    shell: str, parser: argparse.ArgumentParser, others: Mapping[str, argparse.ArgumentParser]
) -> str:
    """Return the script for a shell.

    `shell`: bash, zsh or fish; `parser`: of the program, of no use for anything else afterwards;
    `others`: parsers of commands that have one of their own, by name.
    """
    _prepare(parser, others)
    return shtab.complete(parser, shell) + "\n"


def _prepare(
    parser: argparse.ArgumentParser, others: Mapping[str, argparse.ArgumentParser]
) -> None:
    action: Any
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            action.choices.update(others)
            for each in action.choices.values():
                _prepare(each, {})
                # Lists of commands have the shorter text.
                each.description = None
        elif isinstance(action.metavar, str):
            if CHOICES.fullmatch(action.metavar):
                action.choices = action.metavar.split("|")
            elif action.metavar in PLACES:
                action.complete = PLACES[action.metavar]
            # zsh would take what is behind a colon in it for a function that completes.
            action.metavar = None
