"""Tables and numbers for a terminal. Texts of clients and other brokers are made printable first: a
client identifier may have escape sequences, which a terminal would obey."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from mqttree.broker.base.log_format import printable

TWO_CELLS = frozenset("WF")
"""East Asian widths of characters that take two cells of a terminal (UAX 11)."""

NO_CELL = frozenset(("Mn", "Me"))
"""Categories of letters that stand above, below or around the one before them."""


def width(text: str) -> int:
    """Return how many cells of a terminal a printable text takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(letter: str) -> int:
    if unicodedata.category(letter) in NO_CELL:
        return 0
    return 2 if unicodedata.east_asian_width(letter) in TWO_CELLS else 1


def cut(text: str, cells: int) -> str:
    """Return a printable text that takes `cells` of a terminal at most, of three or more; where it
    was longer, it ends with three dots. It has at most eight letters for each cell: some letters
    take none."""
    if len(text) <= 8 * cells and width(text) <= cells:
        return text
    found, left = [], cells - 3
    for letter in text[: 8 * left]:
        left -= _cells(letter)
        if left < 0:
            break
        found.append(letter)
    return "".join(found) + "..."


def table(head: Sequence[str], rows: Sequence[Sequence[object]], most: int = 60) -> list[str]:
    """Return lines of text, one for each of `rows`, with a column below each word of `head`.
    Numbers stand at the right of theirs; None is empty; a text takes `most` cells at most."""
    texts = [[_text(value, most) for value in row] for row in rows]
    right = [
        any(isinstance(row[at], int | float) for row in rows)
        and not any(isinstance(row[at], str | bool) for row in rows)
        for at in range(len(head))
    ]
    sizes = [max([width(word), *[width(row[at]) for row in texts]]) for at, word in enumerate(head)]
    found = []
    for row in ([*head], *texts):
        cells = [
            " " * (size - width(text)) + text if at_right else text + " " * (size - width(text))
            for text, size, at_right in zip(row, sizes, right, strict=True)
        ]
        found.append("  ".join(cells).rstrip())
    return found


def _text(value: object, most: int) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return rate(value)
    return cut(printable(str(value)), most)


def rate(value: float) -> str:
    """Return a number with as many digits as matter."""
    if value and abs(value) < 0.1:
        return f"{value:.3f}"
    return f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"


def size(number: float) -> str:
    """Return a number of bytes with its unit."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"


def duration(seconds: float) -> str:
    """Return a time in its two largest units."""
    whole = int(seconds)
    days, hours, minutes = whole // 86_400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
