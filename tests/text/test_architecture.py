"""The architecture as a test: what pure code must not touch, and that the house is tidy. Who may
import whom: import-linter."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.source import parse

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = ("mqttree", "bench", "broker", "routing", "stp", "discovery", "placement")

# Only these wait, open sockets, read clocks or make up randomness; everything else is handed what
# it needs. The measuring tools are drivers altogether.
DRIVERS = (
    "broker/io/",
    "broker/compat/",
    "broker/service/",
    "broker/cli/",
    "discovery/drivers/",
    "bench/",
    "mqttree/",
)
IMPURE_MODULES = {
    "asyncio",
    "concurrent",
    "multiprocessing",
    "secrets",
    "select",
    "selectors",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "threading",
    "time",
    "urllib.request",
    "uuid",
    "uvloop",
    "websockets",
}
IMPURE_CALLS = re.compile(
    r"^(datetime\.)*(datetime\.(now|utcnow|today)|date\.today)$|^os\.urandom$|^random\.[a-z]\w*$"
)

# All that knows amqtt.
AMQTT = "broker/compat/"

SKIPPED_FOLDERS = {".git", ".venv", "__pycache__", "node_modules", "build", "dist", ".hypothesis"}
TEXT_SUFFIXES = {"", ".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".cfg", ".json", ".js", ".ini"}


def modules() -> list[str]:
    """All modules of the packages, as paths from the root."""
    return sorted(
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    )


def files() -> list[str]:
    """All files of the project: what git knows or would take; without git, what is not obviously
    made."""
    try:
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        listing = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
        ).stdout
        found = listing.splitlines()
    except (OSError, subprocess.SubprocessError):
        found = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*")]
    return sorted(
        name
        for name in found
        if (ROOT / name).is_file()
        and Path(name).suffix in TEXT_SUFFIXES
        and not any(part in SKIPPED_FOLDERS or part.endswith("_cache") for part in Path(name).parts)
    )


def read(name: str) -> str:
    """The text of a file of the project."""
    return (ROOT / name).read_text(encoding="utf-8", errors="replace")


def imports(source: str, module: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything that the source of this module imports, wherever it
    stands."""
    package = module.removesuffix("/__init__.py").removesuffix(".py").split("/")
    if not module.endswith("__init__.py"):
        package.pop()
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            yield node.lineno, ".".join([*above, *([node.module] if node.module else [])])


def dotted(node: ast.expr) -> str:
    """The name that is called, as written: "datetime.datetime.now"; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (start := dotted(node.value)):
        return f"{start}.{node.attr}"
    return ""


def strangers(source: str, module: str) -> list[str]:
    """Tests, and amqtt outside of what is there for it."""
    return [
        f"{module}:{line} imports {name}"
        for line, name in imports(source, module)
        if (top := name.split(".", 1)[0]) == "tests"
        or (top == "amqtt" and not module.startswith(AMQTT))
    ]


def impurities(source: str, module: str) -> list[str]:
    """Clocks, sockets, waiting and unseeded randomness in a module that has to be pure."""
    if module.startswith(DRIVERS):
        return []
    found = [
        f"{module}:{line} imports {name}"
        for line, name in imports(source, module)
        if any(f"{name}.".startswith(f"{impure}.") for impure in IMPURE_MODULES)
    ]
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Call) and IMPURE_CALLS.match(name := dotted(node.func)):
            found.append(f"{module}:{node.lineno} calls {name}")
        elif isinstance(node, ast.AsyncFunctionDef | ast.Await):
            found.append(f"{module}:{node.lineno} waits")
    return found


@pytest.mark.parametrize(
    ("module", "source", "caught"),
    [
        ("broker/node.py", "import tests.conftest", True),
        ("broker/node.py", "from . import session", False),
        ("broker/node.py", "import amqtt.broker", True),
        ("broker/core/client.py", "def f():\n    from amqtt import broker", True),
        ("broker/compat/broker.py", "import amqtt.broker", False),
        ("broker/wire/decode.py", "from ...tests import kit", True),
        ("stp/tree.py", "import testsuite, amqtt_like", False),
    ],
)
def test_a_stranger_is_caught(module: str, source: str, caught: bool) -> None:
    assert bool(strangers(source, module)) is caught


@pytest.mark.parametrize(
    ("module", "source", "caught"),
    [
        ("broker/node.py", "import asyncio", True),
        ("broker/node.py", "from time import monotonic", True),
        ("broker/node.py", "import urllib.request", True),
        ("broker/node.py", "async def f() -> None: ...", True),
        ("broker/node.py", "import random\nrandom.random()", True),
        ("broker/node.py", "import random\nrandom.Random(1).random()", False),
        ("broker/node.py", "import datetime\ndatetime.datetime.now()", True),
        ("broker/node.py", "import os\nos.urandom(8)", True),
        ("broker/node.py", "self.random.choice([1])", False),
        ("broker/io/driver.py", "import asyncio, time", False),
        ("discovery/announcement.py", "import socket", True),
        ("discovery/drivers/multicast.py", "import socket", False),
        ("stp/tree.py", "import timeit_like", False),
        ("bench/load.py", "import time", False),
    ],
)
def test_an_impurity_is_caught(module: str, source: str, caught: bool) -> None:
    assert bool(impurities(source, module)) is caught


def test_no_module_imports_tests_or_amqtt() -> None:
    found = [line for module in modules() for line in strangers(read(module), module)]
    assert not found, "\n".join(found)


def test_pure_modules_are_pure() -> None:
    found = [line for module in modules() for line in impurities(read(module), module)]
    assert not found, "\n".join(found)


def test_nothing_is_left_for_later() -> None:
    marker = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    found = [
        f"{name}:{number} {line.strip()}"
        for name in files()
        for number, line in enumerate(read(name).splitlines(), 1)
        if marker.search(line)
    ]
    assert not found, "\n".join(found)


def test_a_limit_has_one_value() -> None:
    """A name that is set twice has the later value for those who mean the earlier one, too."""
    trees = [parse(read(module)) for module in modules() if module.endswith("/limits.py")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)]
    names = [node.target.id for node in nodes if isinstance(node.target, ast.Name)]
    assert len(names) > 100
    assert len(names) == len(set(names)), {name for name in names if names.count(name) > 1}


def test_no_path_of_a_machine() -> None:
    """A path that exists on one machine only: a home folder, a scratch folder."""
    path = re.compile(r"(?<![\w.+#*/$}-])/(?:work|root|Users|home/\w+|(?:var/)?tmp)/\w")
    found = [
        f"{name}:{number} {line.strip()}"
        for name in files()
        for number, line in enumerate(read(name).splitlines(), 1)
        if path.search(line)
    ]
    assert not found, "\n".join(found)


def test_no_data_directory_is_part_of_the_sources() -> None:
    """`mqttree federate` makes one where it runs, with the broker's private key."""
    assert [name for name in files() if Path(name).name in ("broker-key", "broker-id")] == []


def test_the_architecture_names_every_package() -> None:
    """ARCHITECTURE.md has each package's folder, as it is called below `broker/` or `bench/`."""
    page = read("ARCHITECTURE.md").partition("## Packages")[2].partition("\n## ")[0]
    folders = {Path(module).parent for module in modules() if module.endswith("__init__.py")}
    names = {re.sub(r"^(broker|bench)/(?=.)", "", folder.as_posix()) for folder in folders}
    assert len(names) > 30
    assert {name for name in names if f"`{name}/`" not in page} == set()


def test_a_package_says_what_its_modules_are_for() -> None:
    """Its docstring names each of them, but `limits`, which many have; that of `tests` those of
    `tests/kit`."""
    unnamed = []
    for module in [*modules(), *(name for name in files() if name.startswith("tests/kit/"))]:
        path = Path(module)
        folder, name = path.parent, path.stem
        if name == "__init__":
            folder, name = folder.parent, folder.name
        page = folder / "__init__.py" if folder.name != "kit" else Path("tests/__init__.py")
        if name in ("__main__", "limits", "kit") or path.suffix != ".py" or folder == Path():
            continue
        if not re.search(rf"\b{name}\b", ast.get_docstring(parse(read(page.as_posix()))) or ""):
            unnamed.append(module)
    assert unnamed == []


def test_decisions_are_numbered_from_one_without_gaps() -> None:
    names = sorted(
        path.name for path in (ROOT / "docs" / "decisions").glob("*.md") if path.name != "README.md"
    )
    assert all(re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", name) for name in names), names
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))


def test_test_modules_of_folders_that_are_no_packages_have_different_names() -> None:
    """pytest imports them by their name alone, and refuses to collect a second one."""
    folders = [each for each in (ROOT / "tests").iterdir() if not (each / "__init__.py").exists()]
    names = [path.name for folder in folders for path in folder.glob("*.py")]
    assert {name for name in names if names.count(name) > 1} == set()


def test_constraints_are_exact_and_of_no_machine() -> None:
    lines = read("constraints.txt").splitlines()
    wrong = [
        line
        for line in lines
        if not line.startswith("#") and not re.fullmatch(r"[\w.-]+==[\w.!+]+", line)
    ]
    assert not wrong


FIRST = re.compile(r"next\(iter\(([\w.]+?)(?:\.items\(\)|\.values\(\)|\.keys\(\))?\)\)")
SHORT_QUEUES = {
    # Questions of one feed, brokers, dials: some tens at most.
    "discovery/dialler.py:_under_way",
    "broker/cluster/delivery/origin_questions.py:questions",
    "broker/cluster/sharing/custody.py:_returned",
    "broker/leg/crossing.py:_loops",
    "routing/link_state.py:asked",
    # Bounded by 4,096, and one goes only when another comes.
    "broker/cluster/delivery/subscription_start.py:_asked",
    "broker/cluster/delivery/subscription_start.py:_passed",
    # Emptied in pieces.
    "broker/cluster/strategy/interest_table.py:_closing",
}
"""Dictionaries from which the first entry may be taken by itself."""


def searched_queues(source: str) -> set[str]:
    """Names of dictionaries whose first entry is looked for and deleted. Python looks for it behind
    all that were deleted: to empty 100,000 entries so takes 10 s. OrderedDict knows its first."""
    found = set()
    for name in FIRST.findall(source):
        last = name.rpartition(".")[2]
        # A local name for an attribute.
        if again := re.search(rf"\b{last}(?:, \w+)* = self\.(\w+)", source):
            last = again[1]
        deleted = rf"\bdel (\w+\.)*_?{last}\[|\b_?{last}\.pop(item)?\("
        if re.search(deleted, source) and not re.search(rf"\b{last}\b.*OrderedDict", source):
            found.add(last)
    return found


def test_queues_are_emptied_without_a_search() -> None:
    found = {
        f"{name}:{queue}"
        for name in modules()
        if not name.startswith("bench/")
        for queue in searched_queues(read(name))
    }
    assert not found - SHORT_QUEUES
    assert not SHORT_QUEUES - found, "not there any more: take it off the list"


def test_a_queue_that_is_searched_is_found() -> None:
    bad = "due: dict[str, int] = {}\nwhile due:\n    del due[next(iter(due))]\n"
    assert searched_queues(bad) == {"due"}
    assert searched_queues(bad.replace("dict[str, int] = {}", "OrderedDict[str, int]")) == set()
    assert searched_queues("only = next(iter(parents))\n") == set()


LONGEST = 70
"""lines of a function: what fits a screen."""

LONG = {
    # The loop that takes every message: a call there costs, as measured.
    "broker/core/client_packets.py:packets",
}
"""Functions that are longer."""


def long_functions(source: str) -> list[str]:
    """Names of functions with more than LONGEST lines."""
    return [
        node.name
        for node in ast.walk(parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > LONGEST
    ]


def test_functions_fit_a_screen() -> None:
    """The list of those that do not can only shrink: one that has become short leaves it."""
    found = {
        f"{name}:{function}"
        for name in files()
        if name.endswith(".py")
        for function in long_functions(read(name))
    }
    assert not found - LONG, f"longer than {LONGEST} lines"
    assert not LONG - found, "short by now: take it off the list"


def test_a_long_function_is_found() -> None:
    assert long_functions("def f():\n" + "    pass\n" * LONGEST) == ["f"]
    assert long_functions("def f():\n" + "    pass\n" * (LONGEST - 1)) == []


COMPOSITION_ROOTS = {
    # A broker in a program, one that extends amqtt's, and one node.
    "mqttree/embedded_broker.py:__init__",
    "broker/compat/broker.py:__init__",
    "broker/node.py:__init__",
}
"""Functions that may be called without limits: what they put together is handed theirs."""


def default_limits(source: str) -> list[str]:
    """Names of functions and classes that have `limits`, or a parameter or field with the
    type of a limits record, with a default."""
    found = []
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            by_position = [*node.args.posonlyargs, *node.args.args]
            given = by_position[len(by_position) - len(node.args.defaults) :]
            by_name = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            given += [arg for arg, default in by_name if default is not None]
            has = any(is_limits(arg.arg, arg.annotation) for arg in given)
        elif isinstance(node, ast.ClassDef):
            fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and one.value]
            has = any(is_limits(dotted(one.target), one.annotation) for one in fields)
        else:
            continue
        if has:
            found.append(node.name)
    return found


def is_limits(name: str, annotation: ast.expr | None) -> bool:
    """Whether a parameter or field holds the limits of a broker."""
    parts = () if annotation is None else ast.walk(annotation)
    return name == "limits" or any(
        isinstance(part, ast.Name) and part.id.endswith("Limits") for part in parts
    )


def test_only_what_puts_a_broker_together_has_limits_by_default() -> None:
    """Else a caller that forgets to hand them on has those of another broker."""
    found = {f"{module}:{name}" for module in modules() for name in default_limits(read(module))}
    assert found == COMPOSITION_ROOTS


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("def f(limits: Limits = DEFAULTS): ...", ["f"]),
        ("def f(*, limits: Limits | None = None): ...", ["f"]),
        ("async def f(a, b: Limits = Limits(), /): ...", ["f"]),
        ("class C:\n    kept: Limits = DEFAULTS", ["C"]),
        ("class C:\n    limits: Limits\n    def f(self, limits, a=1, *, b=2): ...", []),
        ("def f(limits: Limits, *, limit: int = 0): ...", []),
    ],
)
def test_limits_by_default_are_found(source: str, caught: list[str]) -> None:
    assert default_limits(source) == caught


def assigned_constants(source: str) -> Iterator[str]:
    """Names of upper-case constants that a test assigns to on something that it imported: by
    `setattr`, or outright. Where `setattr` is given a name that is no literal, these are all such
    names in the function, or among the values of the module that functions use."""
    tree = parse(source)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    functions = [one for one in tree.body if isinstance(one, kinds)]
    rest = [one for one in tree.body if one not in functions]
    for scope in (*functions, *rest):
        for node in ast.walk(scope):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                if name == "setattr":
                    yield from set_names(node, [scope, *(one for one in rest if one is not scope)])
            elif isinstance(node, ast.Assign | ast.AugAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    owner, _, constant = dotted(target).rpartition(".")
                    if constant.isupper() and owner not in ("", "self", "cls"):
                        yield constant


def set_names(call: ast.Call, scopes: list[ast.stmt]) -> Iterator[str]:
    """Names of constants that a call of `setattr` may be about; `scopes`: where a name may come
    from that is no literal."""
    texts = [text for arg in call.args[:2] if (text := literal(arg)) is not None]
    if not texts:
        texts = [
            text
            for scope in scopes
            for node in ast.walk(scope)
            if isinstance(node, ast.Tuple | ast.List)
            for item in node.elts
            if (text := literal(item)) is not None
        ]
    for text in texts:
        name = text.rpartition(".")[2]
        if name.isupper() and name.isidentifier():
            yield name


def literal(node: ast.expr) -> str | None:
    """Return a text that stands in the source; None: it is something else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def test_no_test_assigns_to_a_constant_of_a_module() -> None:
    """What a test varies is handed to the node or the object that it is about (`Limits`): a
    constant is the same for all of them."""
    assert not [
        f"{name}:{constant}"
        for name in files()
        if name.startswith("tests/") and name.endswith(".py")
        for constant in assigned_constants(read(name))
    ]


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ('monkeypatch.setattr(limits, "MAX_QUEUED", 1)', ["MAX_QUEUED"]),
        ('monkeypatch.setattr("mqttree.broker.core.bridge.LINGER", 1)', ["LINGER"]),
        ("limits.MAX_QUEUED = 1", ["MAX_QUEUED"]),
        ("setattr(limits, name, 1)", []),
        (
            'for name, value in (("PIECE", 1), ("PACE", 2)):\n'
            "    patch.setattr(table, name, value)",
            ["PIECE", "PACE"],
        ),
        (
            '@pytest.mark.parametrize("name", ["PIECE"])\ndef test(name):\n'
            "    patch.setattr(table, name, 1)",
            ["PIECE"],
        ),
        (
            'FAULTS = {"a": (table, "PIECE", 1)}\ndef test():\n    patch.setattr(*FAULTS["a"])',
            ["PIECE"],
        ),
        ('def one():\n    patch.setattr(table, name, 1)\ndef two():\n    return ("PIECE", 1)', []),
        ('monkeypatch.setattr(Session, "append", wrong)', []),
        ("world.node.limits = Limits(max_queued=1)", []),
    ],
)
def test_an_assigned_constant_is_found(source: str, caught: list[str]) -> None:
    assert list(assigned_constants(source)) == caught
