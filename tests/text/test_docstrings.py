"""Docstrings of public functions as a test: parameters and raised exceptions are named.

The rule: a public function or method with three or more parameters besides `self` and `cls` names
each of them in its docstring, in backquotes or as `name: ...` on a line of its own. One that raises
an exception itself names that exception. A constructor may do both in its class's docstring. A
method that a base class declares (a Protocol is one) may leave both to the base class's docstring.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.kit.source import parse

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = ("broker", "stp", "discovery", "routing", "placement", "mqttree", "bench")

FEW = 2
"""So many parameters explain themselves by name and type."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Classes = dict[str, list[ast.ClassDef]]

PARAMETERS_ALLOWED: dict[str, int] = {}
"""How many functions with an unnamed parameter a package may still have. These numbers only fall;
with code that moves to another package its share moves, too. `python -m
tests.text.test_docstrings` prints the tables as they are now."""

EXCEPTIONS_ALLOWED: dict[str, int] = {}
"""The same for functions with an unnamed exception."""


@dataclass
class Gaps:
    """What docstrings lack: where, and which names."""

    parameters: list[str] = field(default_factory=list)
    exceptions: list[str] = field(default_factory=list)


def parameters(function: Function) -> list[str]:
    """The names of the function's parameters, without `self`, `cls`, `*args` and `**kwargs`."""
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return [each.arg for each in every if each.arg not in {"self", "cls"}]


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """What the function itself does: not what functions do that are defined in it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


def raised(function: Function) -> set[str]:
    """The names of the exception classes that the function raises itself."""
    names = set()
    for node in own_nodes(function):
        if isinstance(node, ast.Raise) and node.exc is not None:
            made = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            name = made.id if isinstance(made, ast.Name) else getattr(made, "attr", "")
            # NotImplementedError: a subclass does it.
            if name[:1].isupper() and name != "NotImplementedError":
                names.add(name)
    return names


def bases(owner: ast.ClassDef, classes: Classes) -> list[ast.ClassDef]:
    """The classes that `owner` derives from, as far as `classes` has them, nearest first."""
    line = [owner]
    for each in line:
        for base in each.bases:
            named = base.value if isinstance(base, ast.Subscript) else base
            name = named.id if isinstance(named, ast.Name) else getattr(named, "attr", "")
            line += [found for found in classes.get(name, ()) if found not in line]
    return line[1:]


def documentation(function: Function, owner: ast.ClassDef | None, classes: Classes) -> str:
    """All docstrings that may explain the function: its own, a constructor's class's, and those of
    the methods that it overrides."""
    texts = [ast.get_docstring(function)]
    if owner is not None:
        if function.name == "__init__":
            texts.append(ast.get_docstring(owner))
        for base in bases(owner, classes):
            if function.name == "__init__":
                texts.append(ast.get_docstring(base))
            texts += [
                ast.get_docstring(each)
                for each in base.body
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                and each.name == function.name
            ]
    return "\n".join(text for text in texts if text)


def public_functions(
    body: list[ast.stmt], owner: ast.ClassDef | None = None
) -> Iterator[tuple[Function, ast.ClassDef | None]]:
    """(function, its class) of each public function and method in the body."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node.body, node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
            node.name == "__init__" or not node.name.startswith("_")
        ):
            yield node, owner


def add_gaps(gaps: Gaps, tree: ast.Module, place: str, classes: Classes) -> None:
    """Adds to `gaps` what docstrings of the module `tree` lack; `place` is its path, `classes` has
    the classes of all modules by their name."""
    for function, owner in public_functions(tree.body):
        text = documentation(function, owner, classes)
        where = f"{place}:{function.lineno} {function.name}"
        names = parameters(function)
        quoted = " ".join(re.findall(r"`[^`]+`|^ *\w+(?=: )", text, re.M))
        unnamed = [name for name in names if not re.search(rf"\b{name}\b", quoted)]
        if len(names) > FEW and unnamed:
            gaps.parameters.append(f"{where}: {', '.join(unnamed)}")
        silent = sorted(name for name in raised(function) if not re.search(rf"\b{name}\b", text))
        if silent:
            gaps.exceptions.append(f"{where}: {', '.join(silent)}")


def all_gaps() -> dict[str, Gaps]:
    """What docstrings lack, of each package."""
    trees = {
        path.relative_to(ROOT): parse(path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }
    classes: Classes = {}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)
    found: dict[str, Gaps] = {}
    for path, tree in trees.items():
        gaps = found.setdefault(path.parent.as_posix(), Gaps())
        add_gaps(gaps, tree, path.as_posix(), classes)
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, Gaps]:
    return all_gaps()


def too_many(lines: dict[str, list[str]], allowed: dict[str, int]) -> str:
    """The gaps of the packages that have more than they may have; empty if there is none."""
    return "\n".join(
        line
        for package, each in lines.items()
        if len(each) > allowed.get(package, 0)
        for line in (f"{package}: {len(each)}, allowed {allowed.get(package, 0)}", *each)
    )


def test_parameters_are_named(found: dict[str, Gaps]) -> None:
    lines = {package: gaps.parameters for package, gaps in found.items()}
    wrong = too_many(lines, PARAMETERS_ALLOWED)
    assert not wrong, wrong


def test_exceptions_are_named(found: dict[str, Gaps]) -> None:
    lines = {package: gaps.exceptions for package, gaps in found.items()}
    wrong = too_many(lines, EXCEPTIONS_ALLOWED)
    assert not wrong, wrong


def gaps_of(source: str) -> tuple[int, int]:
    """How many functions of the source have (an unnamed parameter, an unnamed exception)."""
    tree = parse(source)
    classes: Classes = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            classes.setdefault(node.name, []).append(node)
    gaps = Gaps()
    add_gaps(gaps, tree, "module.py", classes)
    return len(gaps.parameters), len(gaps.exceptions)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(a, b, c):\n    '''Adds.'''", (1, 0)),
        ("def f(a, b, c):\n    '''Adds `a`, `b` and `c`.'''", (0, 0)),
        ("def f(a, b, c):\n    '''Adds a, b and c.'''", (1, 0)),
        ("def f(a, b, c):\n    '''Returns `a[b:c]`.'''", (0, 0)),
        ("def f(a, b, c):\n    '''Adds.\n\n    a: one\n    b: two\n    c: three'''", (0, 0)),
        ("def f(a, b): ...", (0, 0)),
        ("def _f(a, b, c): ...", (0, 0)),
        ("class C:\n    def f(self, a, b): ...", (0, 0)),
        ("class C:\n    def f(self, a, *, b, c): ...", (1, 0)),
        ("class C:\n    '''`a` `b` `c`'''\n    def __init__(self, a, b, c): ...", (0, 0)),
        ("class C:\n    '''`a` `b` `c`'''\n    def f(self, a, b, c): ...", (1, 0)),
        ("class _C:\n    def f(self, a, b, c): ...", (0, 0)),
        ("def f():\n    raise ValueError('no')", (0, 1)),
        ("def f():\n    '''Raises ValueError.'''\n    raise ValueError", (0, 0)),
        ("def f():\n    try: g()\n    except E as e: raise e", (0, 0)),
        ("def f():\n    def g():\n        raise ValueError\n    return g", (0, 0)),
    ],
)
def test_a_missing_parameter_or_exception_is_found(source: str, expected: tuple[int, int]) -> None:
    assert gaps_of(source) == expected


def test_a_base_class_may_document_a_method() -> None:
    base = "class P(Protocol):\n    def f(self, a, b, c):\n        '''`a` `b` `c`'''\n"
    assert gaps_of(base + "class C(P):\n    def f(self, a, b, c): ...") == (0, 0)
    assert gaps_of(base + "class C(Q):\n    def f(self, a, b, c): ...") == (1, 0)


def table() -> str:
    """The tables above as they would be for the code of now."""
    current = all_gaps()
    lines = []
    for name in ("parameters", "exceptions"):
        counts = Counter({package: len(getattr(gaps, name)) for package, gaps in current.items()})
        lines += [f"{name}:"]
        lines += [f'    "{package}": {count},' for package, count in counts.items() if count]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
