"""docs/conformance.md: each statement of both standards has its row, and each test that a row names
is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "conformance.md"

# Section -> how many statements it has, as appendix B of each standard lists them (4.2.0-1 is 4.2-1
# in the text of MQTT 5).
MQTT_5 = {
    **{"1.5.4": 3, "1.5.5": 1, "1.5.7": 1, "2.1.3": 1, "2.2.1": 6, "2.2.2": 1},
    **{"3.1.0": 2, "3.1.2": 30, "3.1.3": 12, "3.1.4": 6, "3.2.0": 2, "3.2.2": 22},
    **{
        "3.3.1": 13,
        "3.3.2": 20,
        "3.3.4": 10,
        "3.4.2": 3,
        "3.5.2": 3,
        "3.6.1": 1,
        "3.6.2": 3,
        "3.7.2": 3,
    },
    **{
        "3.8.1": 1,
        "3.8.3": 5,
        "3.8.4": 8,
        "3.9.2": 2,
        "3.9.3": 2,
        "3.10.1": 1,
        "3.10.3": 2,
        "3.10.4": 6,
        "3.11.2": 2,
        "3.11.3": 2,
    },
    **{"3.12.4": 1, "3.14.0": 1, "3.14.1": 1, "3.14.2": 4, "3.14.4": 3, "3.15.1": 1, "3.15.2": 3},
    **{
        "4.1.0": 2,
        "4.2.0": 1,
        "4.3.1": 1,
        "4.3.2": 5,
        "4.3.3": 13,
        "4.4.0": 2,
        "4.5.0": 2,
        "4.6.0": 6,
    },
    **{
        "4.7.0": 1,
        "4.7.1": 2,
        "4.7.2": 1,
        "4.7.3": 4,
        "4.8.2": 6,
        "4.9.0": 3,
        "4.12.0": 7,
        "4.12.1": 2,
        "4.13.1": 1,
        "4.13.2": 1,
    },
    **{"6.0.0": 4},
}
NOT_IN_MQTT_5 = {"MQTT-2.2.1-1"}
MQTT_3_1_1 = {
    **{
        "1.5.3": 3,
        "2.2.2": 2,
        "2.3.1": 7,
        "3.1.0": 2,
        "3.1.2": 24,
        "3.1.3": 11,
        "3.1.4": 5,
        "3.2.0": 1,
        "3.2.2": 6,
    },
    **{
        "3.3.1": 12,
        "3.3.2": 3,
        "3.3.4": 1,
        "3.3.5": 2,
        "3.6.1": 1,
        "3.8.1": 1,
        "3.8.3": 4,
        "3.8.4": 6,
        "3.9.3": 2,
    },
    **{"3.10.1": 1, "3.10.3": 2, "3.10.4": 6, "3.12.4": 1, "3.14.1": 1, "3.14.4": 3},
    **{"4.1.0": 2, "4.3.1": 1, "4.3.2": 2, "4.3.3": 2, "4.4.0": 1, "4.5.0": 2, "4.6.0": 6},
    **{
        "4.7.1": 3,
        "4.7.2": 1,
        "4.7.3": 4,
        "4.8.0": 2,
        "6.0.0": 4,
        "7.0.0": 2,
        "7.1.1": 1,
        "7.1.2": 1,
    },
}


def numbers(sections: dict[str, int]) -> list[str]:
    return [
        f"MQTT-{section}-{n}" for section, count in sections.items() for n in range(1, count + 1)
    ]


STATEMENTS = {
    "MQTT 5": [n for n in numbers(MQTT_5) if n not in NOT_IN_MQTT_5],
    "MQTT 3.1.1": numbers(MQTT_3_1_1),
}
TEST = re.compile(r"`((?:unit/\w+|process|sim)/test_\w+\.py)::(test_\w+)`")


def rows(title: str) -> list[list[str]]:
    """The cells of the rows of a chapter, without the heads of its tables."""
    chapter = PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in chapter.splitlines()
        if line.startswith("|")
    ]
    return [
        row
        for row in cells
        if row[0] not in ("statement", "about") and not row[0].startswith("---")
    ]


def test_both_standards_have_their_number_of_statements() -> None:
    assert {name: len(found) for name, found in STATEMENTS.items()} == {
        "MQTT 5": 251,
        "MQTT 3.1.1": 141,
    }


@pytest.mark.parametrize("standard", STATEMENTS)
def test_every_statement_has_one_row_in_order(standard: str) -> None:
    assert [row[0] for row in rows(standard)] == STATEMENTS[standard]


@pytest.mark.parametrize("standard", STATEMENTS)
def test_every_row_says_who_and_is_shown_by_something(standard: str) -> None:
    for number, gist, who, shown in rows(standard):
        assert 1 <= len(gist.split()) <= 16, number
        assert who in ("server", "client", "both"), number
        if shown.startswith("client's duty"):
            assert who == "client", number
        if not TEST.search(shown):
            assert shown == "client's duty: not the broker's", number
        rest = TEST.sub("", shown)
        assert "::" not in rest, number
        assert "`" not in rest, number


def test_few_statements_have_no_test() -> None:
    unshown = [
        row[0] for standard in STATEMENTS for row in rows(standard) if not TEST.search(row[3])
    ]
    assert len(unshown) <= 6, unshown


def test_every_test_named_is_collected() -> None:
    """By pytest itself, so that a misspelt parametrisation or a file that does not import shows up
    here, too."""
    named = set(TEST.findall(PAGE.read_text()))
    files = sorted({file for file, _ in named})
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "-q",
            "-p",
            "no:cacheprovider",
            *(f"tests/{file}" for file in files),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    collected = set(re.findall(r"^tests/(\S+?\.py)::(\w+)", run.stdout, re.MULTILINE))
    assert sorted(named - collected) == []
