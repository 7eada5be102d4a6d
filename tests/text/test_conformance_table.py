"""docs/conformance.md joins tests/data/statements.yaml with the marks `statement` of tests.

`python -m tests.text.test_conformance_table` writes the page again."""

from __future__ import annotations

import ast
from pathlib import Path

import yaml

from tests.kit.source import parse

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "conformance.md"
# Chapter -> section -> number -> cells, and a note where there is one.
CHAPTERS: dict[str, dict[str, dict[str, list[str]]]] = yaml.safe_load(
    (TESTS / "data" / "statements.yaml").read_text()
)
STATEMENT = "statement | what it says, in short | who"
HEADS = {
    "MQTT 5": STATEMENT,
    "MQTT 3.1.1": STATEMENT,
    "MQTT 3.1": "about | what is different",
    "Where the standards leave a choice": "choice | what this broker does",
}
INTRODUCTION = """\
# Conformance: every statement of the standards and the test that shows it

This page is generated: `python -m tests.text.test_conformance_table` writes it. The texts are in
`tests/data/statements.yaml`; a test is named where its mark `@pytest.mark.statement` has the
number.

Numbers are those of the normative statements of [MQTT
5.0](https://docs.oasis-open.org/mqtt/mqtt/v5.0/os/mqtt-v5.0-os.html) and [MQTT
3.1.1](https://docs.oasis-open.org/mqtt/mqtt/v3.1.1/os/mqtt-v3.1.1-os.html) (appendix B of each);
the words are ours and short: the standard's own count. "who" is bound by the statement: server,
client or both. A client's duty cannot be shown of a broker; there the test shows what becomes of a
client that does otherwise. MQTT 3.1 has no numbered statements; it is served as 3.1.1 is, with the
differences that its table lists. Tests stand below `tests/`.

Sessions and retained messages are kept across starts of the broker if it has a data directory
([what survives what](guides/operations.md#what-survives-what)); the standards leave that open.

Most of these tests speak to the broker as one pure object, in packets and on a virtual clock, also
in packets that are cut anywhere. The tests below `process/` use real sockets and other people's
clients. All clients of the tests read what the broker sends by the strict decoder, so a packet that
breaks a rule of the standard's formats fails any of them."""


def marks() -> dict[str, list[str]]:
    """Number -> the tests that are marked with it, as the page names them."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        source = path.read_text()
        if "@pytest.mark.statement(" not in source:
            continue
        for node in ast.walk(parse(source)):
            for mark in getattr(node, "decorator_list", []):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.statement":
                    test = f"`{path.relative_to(TESTS).as_posix()}::{node.name}`"
                    for number in mark.args:
                        found.setdefault(ast.literal_eval(number), []).append(test)
    return found


def page() -> str:
    shown_by = marks()
    lines = [INTRODUCTION]
    for chapter, sections in CHAPTERS.items():
        head = HEADS[chapter]
        columns = head.count("|")
        lines += ["", f"## {chapter}"]
        for section, rows in sections.items():
            lines += ["", f"### {section}"] if section else []
            lines += ["", f"| {head} | shown by |", "|---" * (columns + 2) + "|"]
            for number, cells in rows.items():
                tests = ", ".join(shown_by.get(number, []))
                shown = ": ".join(filter(None, [*cells[columns:], tests]))
                name = number.partition("/")[2] or number
                lines.append(f"| {' | '.join([name, *cells[:columns], shown])} |")
    return "\n".join(lines) + "\n"


def statements(*chapters: str) -> dict[str, list[str]]:
    return {
        number: cells
        for chapter in chapters
        for rows in CHAPTERS[chapter].values()
        for number, cells in rows.items()
    }


def test_the_page_is_that_of_the_marks() -> None:
    assert PAGE.read_text() == page(), "python -m tests.text.test_conformance_table"


def test_both_standards_have_their_number_of_statements() -> None:
    assert len(statements("MQTT 5")) == 251
    assert len(statements("MQTT 3.1.1")) == 141


def test_every_mark_names_a_statement() -> None:
    assert marks().keys() - statements(*CHAPTERS).keys() == set()


def test_every_statement_has_a_mark_or_is_a_clients_alone() -> None:
    rows = statements(*CHAPTERS)
    unshown = rows.keys() - marks().keys()
    reason = ["client", "not the broker's duty"]
    assert {number for number in unshown if rows[number][1:] != reason} == set()
    assert len(unshown) <= 6, unshown


def test_statements_are_short_and_say_whom_they_bind() -> None:
    for number, (gist, who, *_) in statements("MQTT 5", "MQTT 3.1.1").items():
        assert 1 <= len(gist.split()) <= 16, number
        assert who in ("server", "client", "both"), number


if __name__ == "__main__":
    PAGE.write_text(page())
