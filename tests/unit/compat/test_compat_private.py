"""Which private members of amqtt are used: those that the package's page gives a reason for."""

from __future__ import annotations

import ast
from importlib.metadata import version
from pathlib import Path

import amqtt

import mqttree.broker.compat

OURS = Path(next(iter(mqttree.broker.compat.__path__)))
THEIRS = Path(next(iter(amqtt.__path__)))
SAME_NAME = {"_plugins"}
"""Private members of ours that amqtt has, too, in other classes."""


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def used(source: str) -> set[str]:
    """Private names that are read, set or defined as methods."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and private(node.attr):
            found.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and private(node.name):
            found.add(node.name)
    return found


def had(source: str) -> set[str]:
    """Private names of attributes that are set, and of functions."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if private(node.attr) else set()
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and private(node.name):
            found.add(node.name)
    return found


def test_each_private_member_has_its_reason() -> None:
    theirs = set().union(*(had(path.read_text()) for path in THEIRS.rglob("*.py")))
    ours = set().union(*(used(path.read_text()) for path in OURS.glob("*.py")))
    page = (OURS / "__init__.py").read_text()
    named = {name for name in theirs if f"`{name}`" in page or f".{name}`" in page}
    assert named == (ours & theirs) - SAME_NAME


def test_amqtt_has_the_minor_version_that_was_checked() -> None:
    """Another one may have changed what is relied on; `tests/process/test_server_amqtt.py` shows
    what."""
    assert version("amqtt").split(".")[:2] == ["0", "12"]
