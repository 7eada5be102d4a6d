"""The pages lead somewhere: what they name is there."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from mqttree.broker.core import effects
from tests.kit.source import parse
from tests.text.test_architecture import ROOT, files

ALL_PAGES = sorted(name for name in files() if name.endswith(".md"))
PAGES = (
    "CONTRIBUTING.md",
    "docs/glossary.md",
    "docs/reference/driver-contract.md",
    "docs/reference/link-protocol.md",
)


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def defined(path: Path) -> set[str]:
    """Names that a module defines at its top, and `Class.member`."""
    found: set[str] = set()
    for node in parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{m.name}" for m in node.body if hasattr(m, "name")}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
        found |= {getattr(node, "name", "")}
    return found - {""}


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "ARCHITECTURE.md"])
def test_answers_and_walks_name_what_is_there(page: str) -> None:
    answers = re.findall(r"`([\w/]+\.py)`:\s+`([\w.]+)`", text_of(page))
    assert len(answers) > 30
    assert [f"{path}: {name}" for path, name in answers if name not in defined(ROOT / path)] == []


WITH_PATHS = [*PAGES, *(page for page in ALL_PAGES if re.match(r"docs/(decisions|guides)/", page))]


@pytest.mark.parametrize("page", WITH_PATHS)
def test_paths_on_pages_exist(page: str) -> None:
    known = files()
    named = re.findall(r"`([\w/.-]+(?:/|\.py))`", text_of(page))
    missing = [
        name
        for name in named
        if not any(
            found.endswith("/" + name) or ("/" + name in "/" + found and name.endswith("/"))
            for found in (f"/{found}" for found in known)
        )
    ]
    assert missing == []


def test_every_page_is_in_an_index() -> None:
    indexed: set[Path] = set()
    for index in ("README.md", "docs/README.md", "docs/decisions/README.md"):
        targets = re.findall(r"\]\(([^)#:]+)", text_of(index))
        indexed |= {((ROOT / index).parent / target).resolve() for target in targets}
    pages = [page for page in ALL_PAGES if re.fullmatch(r"docs/(\w+/)?(?!README)[^/]+", page)]
    assert [page for page in pages if (ROOT / page).resolve() not in indexed] == []


DEFINITION = re.compile(r"^\[([^]]+)\]: (\S+)$", re.M)
"""Of a link, alone on its line: `[routing]: ../guides/routing.md`."""


@pytest.mark.parametrize("page", ALL_PAGES)
def test_links_by_a_name_are_defined(page: str) -> None:
    prose = re.sub(r"`[^`]*`", "", "\n".join(prose_of(text_of(page), tables=True)))
    named = re.findall(r"\[([^][]+)\]\[\]|\][ \n]?\[([^][]+)\]", prose)
    wanted = {" ".join((short or long).split()) for short, long in named}
    assert wanted == {name for name, _ in DEFINITION.findall(text_of(page))}


@pytest.mark.parametrize("page", ALL_PAGES)
def test_links_lead_to_a_heading(page: str) -> None:
    inline = re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", text_of(page))
    defined = [target.partition("#") for _, target in DEFINITION.findall(text_of(page))]
    for target, anchor in [*inline, *((path, rest) for path, _, rest in defined)]:
        if ":" in target:
            continue
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"


@pytest.mark.parametrize("page", [page for page in PAGES if "glossary" not in page])
def test_lines_fit_a_screen(page: str) -> None:
    assert [line for line in text_of(page).splitlines() if len(line) > 120] == []


def prose_of(text: str, *, tables: bool = False) -> list[str]:
    """The lines of a page that are no table (unless with `tables`), no code and no link that cannot
    be broken."""
    without_code = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)
    return [
        line
        for line in without_code.splitlines()
        if not line.startswith("    " if tables else ("|", "    "))
        and not re.fullmatch(r"\s*(\S*\]\(\S+|\[[^]]+\]: \S+)", line)
    ]


@pytest.mark.parametrize("page", [page for page in ALL_PAGES if "licences" not in page])
def test_prose_fits_100_columns(page: str) -> None:
    assert [line for line in prose_of(text_of(page)) if len(line) > 100] == []


def test_a_wide_line_is_found() -> None:
    wide = "word " * 30
    page = f"| {wide}|\n    {wide}\n```\n{wide}\n```\n* {wide}\n"
    assert [line for line in prose_of(page) if line] == [f"* {wide}"]


def test_each_state_machine_is_on_the_page() -> None:
    tables = {
        name
        for name in files()
        if name.endswith(".py") and re.search(r"^TRANSITIONS\b", text_of(name), re.M)
    }
    page = text_of("ARCHITECTURE.md").partition("## State machines")[2].partition("\n## ")[0]
    assert len(tables) > 6
    assert {name for name in tables if f"`{name}`" not in page} == set()


def test_the_readme_is_short() -> None:
    assert len(text_of("README.md").splitlines()) <= 110


def test_each_cell_about_another_broker_has_a_source() -> None:
    table = re.findall(r"^\| (.+?) \|((?: \w+ \|){5})$", text_of("README.md"), re.M)
    said = {what: cells.replace("|", "").split() for what, cells in table if what.strip("-")}
    brokers = ("mqttree", "Mosquitto", "EMQX", "VerneMQ", "NATS")
    assert len(said) > 8
    page = text_of("docs/comparison.md")
    shared = re.findall(r"^\* \*([^*]+)\*:", page, re.M)
    for what, cells in said.items():
        section = page.partition(f"\n## {what}\n")[2].partition("\n## ")[0]
        reasons = dict(re.findall(r"^\* (\w+): (.*(?:\n  .*)*)", section, re.M))
        assert tuple(reasons) == brokers, what
        for broker, cell in zip(brokers, cells, strict=True):
            assert reasons[broker].startswith(cell), f"{what}: {broker}"
            sources = ("](", "as above", "As above", *shared)
            assert broker == "mqttree" or any(word in reasons[broker] for word in sources)


def test_the_drawn_floors_are_those_that_are_checked() -> None:
    contracts = tomllib.loads(text_of("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    checked = {
        contract["name"]: [
            [name.removeprefix("mqttree.") for name in re.findall(r"[\w.]+", layer)]
            for layer in contract["layers"]
        ]
        for contract in contracts
        if contract["type"] == "layers"
    }
    drawn = text_of("ARCHITECTURE.md").partition("## Floors")[2].partition("\n\nAll but")[0]
    floors = [line[4:36].split() for line in drawn.splitlines() if re.match(r" {4}\S", line)]
    assert floors == checked["floors"]
    inner = [line[8:36].split() for line in drawn.splitlines() if re.match(r" {8}\S", line)]
    assert inner == checked["floors of the cluster"]


def test_the_driver_contract_has_every_effect() -> None:
    table = text_of("docs/reference/driver-contract.md").partition(
        "| effect | what to do | answer |"
    )[2]
    named = re.findall(r"^\| `(\w+)` \|", table.partition("\n\n")[0], re.M)
    assert named == [kind.__name__ for kind in effects.Effect.__args__]
