"""A compiled core runs only if it was built from the sources that are there."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES, SourceFileLoader
from pathlib import Path

import pytest

from mqttree.broker.base.core_build import (
    INTERPRETED,
    ROOT,
    Core,
    Sources,
    choose,
    library,
    sources,
)
from mqttree.broker.wire import varint

SUFFIX = EXTENSION_SUFFIXES[0]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A tree of packages with a module or two; what `choose` does to imports is undone."""
    top = tmp_path / "mqttree"
    for folder in ("broker/wire", "broker/base", "broker/core", "broker/cluster/link", "stp"):
        (top / folder).mkdir(parents=True)
    (top / "broker/wire/__init__.py").touch()
    (top / "broker/wire/varint.py").write_text("MOST = 4\n")
    (top / "broker/cluster/link/link.py").write_text("UP = True\n")
    (top / "broker/base/version.py").touch()
    found = list(sys.meta_path)
    yield tmp_path
    sys.meta_path[:] = found


def build(root: Path) -> None:
    """What a build leaves: the library, and each module's own file."""
    (root / "mqttree/broker" / (library(root) + SUFFIX)).touch()
    (root / "mqttree/broker" / "wire" / f"varint{SUFFIX}").touch()


def test_without_a_compiled_core_python_runs(root: Path) -> None:
    before = list(sys.meta_path)
    assert choose(None, root) is Core.PYTHON
    assert sys.meta_path == before


def test_a_compiled_core_of_these_sources_runs(root: Path) -> None:
    before = list(sys.meta_path)
    build(root)
    assert choose(None, root) is Core.COMPILED
    assert sys.meta_path == before


def test_python_runs_when_it_is_wanted(root: Path) -> None:
    build(root)
    assert choose("python", root) is Core.PYTHON
    assert isinstance(sys.meta_path[0], Sources)


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "mqttree/broker/wire/varint.py").write_text("MOST = 5\n"),
        lambda root: (root / "mqttree/broker/wire/varint.py").rename(
            root / "mqttree/broker/wire/number.py"
        ),
        lambda root: (root / "mqttree/stp/tree.py").touch(),
        lambda root: (root / "mqttree/broker/cluster/link/link.py").unlink(),
    ],
)
def test_a_core_of_other_sources_is_not_used(root: Path, change: object) -> None:
    build(root)
    assert callable(change)
    change(root)
    assert choose(None, root) is Core.STALE
    finder = sys.meta_path[0]
    assert isinstance(finder, Sources)
    for name, path in sources(root):
        spec = finder.find_spec(name)
        assert spec is not None
        assert isinstance(spec.loader, SourceFileLoader)
        assert spec.origin == str(path)
    assert finder.find_spec("mqttree.broker.base.version") is None


def test_a_core_of_another_python_is_none(root: Path) -> None:
    (root / "mqttree/broker" / f"{library(root)}.cpython-399-riscv64-linux-gnu.so").touch()
    assert choose(None, root) is Core.PYTHON


def test_modules_that_are_not_compiled_may_change(root: Path) -> None:
    build(root)
    (root / "mqttree/broker/base/version.py").write_text("NUMBER = 2\n")
    (root / "mqttree/broker/wire/__init__.py").write_text("MORE = 1\n")
    assert choose(None, root) is Core.COMPILED


def test_the_modules_that_stay_python_are_there() -> None:
    names = {
        ".".join(("mqttree", *path.relative_to(ROOT).with_suffix("").parts))
        for path in ROOT.rglob("*.py")
    }
    assert names.issuperset(INTERPRETED)
    assert not set(INTERPRETED) & {name for name, _ in sources()}


def test_the_core_that_runs_is_the_one_that_is_reported() -> None:
    from mqttree.broker import CORE

    compiled = not re.search(r"\.pyc?$", str(varint.__file__))
    assert CORE.running == ("compiled" if compiled else "python")


def test_no_field_of_a_named_tuple_has_a_type_that_comes_after_it() -> None:
    """The compiled core looks such a type up as it is imported, and crashes."""
    found = []
    for module, path in sources(ROOT):
        tree = ast.parse(path.read_text())
        classes = [each for each in tree.body if isinstance(each, ast.ClassDef)]
        lines = {each.name: each.lineno for each in classes}
        for each in classes:
            if not any(
                isinstance(base, ast.Name) and base.id == "NamedTuple" for base in each.bases
            ):
                continue
            found += [
                f"{module}: {each.name} has a field of type {name.id}"
                for field in each.body
                if isinstance(field, ast.AnnAssign)
                for name in ast.walk(field.annotation)
                if isinstance(name, ast.Name) and lines.get(name.id, 0) > each.lineno
            ]
    assert not found, "\n".join(found)


def test_named_tuples_have_fields_whose_classes_are_imported() -> None:
    """Compiled, a NamedTuple looks at them as its module is imported, also if that is the first one
    of all."""
    wrong = []
    for name, path in sources():
        tree = ast.parse(path.read_text())
        imports = [each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
        there = {each.module for each in imports if each in tree.body}
        later = {
            alias.name: each.module
            for each in imports
            for alias in each.names
            if each.module not in there
        }
        for made in ast.walk(tree):
            if isinstance(made, ast.ClassDef) and "NamedTuple" in map(ast.unparse, made.bases):
                fields = [each for each in made.body if isinstance(each, ast.AnnAssign)]
                wrong += [
                    f"{name}: {made.name}: {used.id}"
                    for field in fields
                    for used in ast.walk(field.annotation)
                    if isinstance(used, ast.Name) and (later.get(used.id) or "").count("mqttree")
                ]
    assert wrong == []
