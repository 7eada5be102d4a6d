"""What maintainers' pages name in backquotes is in the code: members of classes, words with an
underscore, commands of `mqttree bench`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from mqttree.bench.cli import TOOLS, _parser
from mqttree.bench.scenarios.scenario import DEEDS, FOLDER
from tests.kit.source import parse
from tests.text.test_architecture import files, read

PAGES = [
    name
    for name in files()
    if re.fullmatch(
        r"ARCHITECTURE\.md|CONTRIBUTING\.md|docs/[\w-]+\.md|docs/(decisions|guides|reference)/.*\.md",
        name,
    )
    and not re.search(r"licences|conformance", name)
]
MAINTAINERS = [
    name
    for name in PAGES
    if re.search(r"decisions/|driver-contract|link-protocol|glossary|ARCHITECTURE|CONTRIB", name)
]

NOT_OURS = {"prometheus_client", "generate_latest", "bytes.startswith", "sys.settrace", "py.typed"}
"""Names of libraries, and of a file, that the pages speak of."""

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def sources() -> Iterator[str]:
    """The text of everything that names may come from."""
    for name in files():
        if name.endswith((".py", ".toml", ".yaml")) or name.startswith(("Makefile", "scripts/")):
            yield read(name)


@pytest.fixture(scope="module")
def words() -> set[str]:
    return {word for text in sources() for word in re.findall(r"\w+", text)}


def members(owner: ast.ClassDef) -> Iterator[str]:
    """The names that a class defines, or sets on itself."""
    for node in owner.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))
    for inner in ast.walk(owner):
        if (
            isinstance(inner, ast.Attribute)
            and isinstance(inner.value, ast.Name)
            and inner.value.id == "self"
        ):
            yield inner.attr


@pytest.fixture(scope="module")
def known_members() -> set[str]:
    return {
        f"{node.name}.{member}"
        for name in files()
        if name.endswith(".py")
        for node in ast.walk(parse(read(name)))
        if isinstance(node, ast.ClassDef)
        for member in members(node)
    }


@pytest.mark.parametrize("page", MAINTAINERS)
def test_members_that_pages_name_exist(page: str, known_members: set[str]) -> None:
    named = set(re.findall(r"`([A-Z]\w*[a-z]\w*\.[a-z_]\w*)`", read(page)))
    assert named - known_members == set()


@pytest.fixture(scope="module")
def dotted(known_members: set[str]) -> set[str]:
    """`package.module`, `module.name`, and members of what drivers call node and link."""
    found = {
        f"{owner.lower()}.{member}"
        for owner, member in (name.split(".") for name in known_members)
        if owner in {"Node", "Link"}
    }
    for name in (name for name in files() if name.endswith(".py")):
        path = name.removesuffix(".py").removesuffix("/__init__").split("/")
        found |= {".".join(path[start:]) for start in range(len(path))}
        top = parse(read(name)).body
        found |= {f"{path[-1]}.{node.name}" for node in top if isinstance(node, DEFINITIONS)}
    return found


@pytest.mark.parametrize("page", MAINTAINERS)
def test_dotted_names_on_pages_exist(page: str, dotted: set[str]) -> None:
    named = set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", read(page)))
    # Of `node.turns.took` the member of the node.
    short = {re.sub(r"^(node\.\w+)\..*", r"\1", name) for name in named}
    assert {
        name for name in short - dotted - NOT_OURS if not name.endswith((".py", ".toml"))
    } == set()


@pytest.mark.parametrize("page", MAINTAINERS)
def test_words_with_an_underscore_on_pages_exist(page: str, words: set[str]) -> None:
    named = set(re.findall(r"`([A-Za-z]+_\w+)`|\[([a-z]+_\w+)\](?!\()", read(page)))
    found = {one or other for one, other in named}
    assert {word for word in found - words - NOT_OURS if not word.startswith("mqttree_")} == set()


@pytest.mark.parametrize("page", [*PAGES, "README.md"])
def test_bench_commands_on_pages_exist(page: str) -> None:
    (commands,) = (action for action in _parser(True)._actions if action.choices)
    known = {*TOOLS, *(commands.choices or ())}
    assert set(re.findall(r"mqttree bench ([a-z][a-z-]*)", read(page))) - known == set()


def test_a_missing_name_is_found(
    words: set[str], known_members: set[str], dotted: set[str]
) -> None:
    assert "Output.flush" in known_members and "Node.no_such_thing" not in known_members
    assert "node.cluster" in dotted and "federation.entropy" not in dotted
    assert "MAX_RETAINED" in words and "NO_SUCH" + "_LIMIT" not in words


def test_the_page_of_benchmarks_has_every_scenario_and_fault() -> None:
    page = read("docs/guides/benchmarks.md")
    shipped = {path.stem for path in FOLDER.glob("*.yaml")}
    assert len(shipped) > 10
    assert {name for name in shipped if name not in page and f"-{name[4:]}" not in page} == set()
    assert {deed for deed in DEEDS if not re.search(rf"\b{deed}\b", page)} == set()


@pytest.mark.parametrize("page", [*PAGES, "README.md"])
def test_keys_of_the_section_federation_are_options(page: str) -> None:
    options = set(re.findall(r"^\| `([a-z-]+)` \|", read("docs/reference/options.md"), re.M))
    assert len(options) > 30
    named = re.findall(r"`federation: (\{.*?\}|[a-z-]+)`", read(page), re.S)
    keys = {key for each in named for key in re.findall(r"(?:^|[{,]\s*)([a-z-]+)", each)}
    assert keys - options == set()
