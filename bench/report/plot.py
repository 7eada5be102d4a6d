"""Plots as SVG text: lines and bars over categories, with intervals and reference lines. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

COLOURS = (
    "#1f6fb4",
    "#d1495b",
    "#2a9d4e",
    "#8e5bb5",
    "#e08a1e",
    "#4a4a4a",
    "#17a2a2",
    "#b5651d",
    "#c44fa0",
    "#7a8f00",
)
WIDTH, HEIGHT = 420, 280
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 30, 56
CHARACTER = 6.3
"""px that a character takes at most, of the font that labels have."""


@dataclass(frozen=True)
class Point:
    """A value at a category; half: half of its interval; text: more for who points at it; base:
    what it stands on; hollow: what it says of brokers is not sure."""

    x: float
    y: float
    half: float | None = None
    text: str = ""
    base: float = 0.0
    hollow: bool = False

    @property
    def top(self) -> float:
        """Where it ends."""
        return self.base + self.y


@dataclass
class Series:
    """A line, or bars of one colour. colour: index. slot: bars of one slot stand on each other (-1:
    a slot of its own). light: paler."""

    name: str
    colour: int
    points: list[Point] = field(default_factory=list)
    slot: int = -1
    light: bool = False


@dataclass(frozen=True)
class Reference:
    """A figure to compare with: a dashed line across the plot."""

    y: float
    name: str


@dataclass(frozen=True)
class Mark:
    """Something that happened at a place of the x axis: a line from top to bottom."""

    x: float
    name: str


@dataclass
class Plot:
    """One diagram. categories: what stands below the x axis; joined: lines between the points, else
    bars. marks: what happened meanwhile. dots: whether each point is shown beside the line through
    it, and told to who points at it; a curve without them has no log axis, and is dashed where its
    points are hollow."""

    title: str
    x_name: str
    y_name: str
    categories: Sequence[str]
    series: Sequence[Series]
    references: Sequence[Reference] = ()
    joined: bool = True
    marks: Sequence[Mark] = ()
    dots: bool = True

    def svg(self) -> str:
        """Return the diagram; a note in place of it when there is nothing to show."""
        values = [point.top for each in self.series for point in each.points] + [
            each.y for each in self.references
        ]
        if not values:
            return f'<p class="none">{escape(self.title)}: no figures</p>'
        tops = [point.top + (point.half or 0) for each in self.series for point in each.points] + [
            each.y for each in self.references
        ]
        if self.marks:
            # Room for their names, above all lines.
            tops.append(max(tops) * 1.25)
        log = self.dots and all(not each.light for each in self.series)
        scale = Scale.fitting(values, max(tops), log)
        parts = [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" xmlns="http://www.w3.org/2000/svg">',
            f'<text class="t" x="{LEFT}" y="16">{escape(self.title)}</text>',
            *self._axes(scale),
        ]
        for each in self.references:
            y = scale.place(each.y)
            parts.append(
                f'<line class="ref" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            )
            parts.append(
                f'<text class="refname" x="{WIDTH - RIGHT - 2}" y="{y - 3:.1f}">'
                f"{escape(each.name)}</text>"
            )
        parts += self._marked()
        # The length of a bar means nothing on a log axis: there are points instead.
        parts += self._lines(scale) if self.joined or scale.log else self._bars(scale)
        return "".join([*parts, "</svg>"])

    def _x(self, index: float) -> float:
        return LEFT + (index + 0.5) * (WIDTH - LEFT - RIGHT) / max(len(self.categories), 1)

    def _marked(self) -> list[str]:
        parts = []
        for number, each in enumerate(self.marks):
            x = self._x(each.x)
            parts.append(
                f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
            )
            # In turn at two heights, so that names beside each other can be read.
            y = TOP + 10 + 13 * (number % 2)
            kind, beside = ("markend", -3) if x > (LEFT + WIDTH - RIGHT) / 2 else ("markname", 3)
            parts.append(
                f'<text class="{kind}" x="{x + beside:.1f}" y="{y}">{escape(each.name)}</text>'
            )
        return parts

    def _category(self, index: int, name: str) -> str:
        """Return the text below one place of the x axis: slanted where names would overlap."""
        x, y = self._x(index), HEIGHT - BOTTOM + 15
        longest = max(map(len, self.categories))
        if longest * CHARACTER <= (WIDTH - LEFT - RIGHT) / max(len(self.categories), 1):
            return f'<text class="x" x="{x:.1f}" y="{y}">{escape(name)}</text>'
        room = (WIDTH - LEFT - RIGHT) / max(len(self.categories), 1) / CHARACTER
        words, lines = name.replace("-", "- ").split(), [""]
        for word in words:
            if lines[-1] and len(lines[-1]) + len(word) > room:
                lines.append("")
            lines[-1] += word
        spans = "".join(
            f'<tspan x="{x:.1f}" dy="{0 if not number else 11}">{escape(line)}</tspan>'
            for number, line in enumerate(lines)
        )
        return f'<text class="x small" x="{x:.1f}" y="{y - 3}">{spans}</text>'

    def _axes(self, scale: Scale) -> list[str]:
        parts = []
        for value, name in scale.ticks():
            y = scale.place(value)
            parts.append(
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            )
            parts.append(f'<text class="y" x="{LEFT - 5}" y="{y + 3.5:.1f}">{name}</text>')
        parts += [self._category(index, name) for index, name in enumerate(self.categories) if name]
        parts.append(
            f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" '
            f'y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}"/>'
        )
        parts.append(
            f'<text class="x" x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" y="{HEIGHT - 6}">'
            f"{escape(self.x_name)}</text>"
        )
        middle = (TOP + HEIGHT - BOTTOM) / 2
        name = self.y_name + (", log" if scale.log else "")
        parts.append(
            f'<text class="x" transform="rotate(-90 13 {middle})" x="13" y="{middle}">'
            f"{escape(name)}</text>"
        )
        return parts

    def _lines(self, scale: Scale) -> list[str]:
        parts = []
        for number, each in enumerate(self.series):
            colour = COLOURS[each.colour % len(COLOURS)]
            # So that intervals at one place can be distinguished.
            shift = (number - (len(self.series) - 1) / 2) * (2.5 if self.joined else 7)
            shift = shift if self.dots else 0.0
            places = [
                (self._x(p.x) + shift, scale.place(p.top), p)
                for p in sorted(each.points, key=lambda point: point.x)
            ]
            if len(places) > 1 and self.joined:
                path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
                dash = ' stroke-dasharray="4 3"' if not self.dots and each.points[0].hollow else ""
                tip = "" if self.dots else f"<title>{escape(each.name)}</title>"
                parts.append(
                    f'<polyline fill="none" stroke="{colour}" stroke-width="1.6"{dash} '
                    f'points="{path}">{tip}</polyline>'
                )
            for x, y, point in places if self.dots else ():
                parts.append(_interval(scale, point, x, colour))
                fill = "#fff" if point.hollow else colour
                parts.append(
                    f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{fill}" stroke="{colour}">'
                    f"{_tip(each.name, point)}</circle>"
                )
        return parts

    def _bars(self, scale: Scale) -> list[str]:
        parts = []
        room = (WIDTH - LEFT - RIGHT) / max(len(self.categories), 1) * 0.8
        slots = [
            each.slot if each.slot >= 0 else f"own {number}"
            for number, each in enumerate(self.series)
        ]
        order = list(dict.fromkeys(slots))
        wide = min(room / max(len(order), 1), 40)
        for slot, each in zip(slots, self.series, strict=True):
            colour = COLOURS[each.colour % len(COLOURS)]
            for point in each.points:
                x = self._x(point.x) + (order.index(slot) - len(order) / 2) * wide
                y, ground = scale.place(point.top), scale.place(point.base)
                style = f'fill="{"#fff" if point.hollow else colour}"'
                style += f' stroke="{colour}"' if point.hollow else ""
                style += ' fill-opacity="0.4"' if each.light else ""
                parts.append(
                    f'<rect x="{x + 1:.1f}" y="{y:.1f}" '
                    f'width="{max(wide - 2, 1):.1f}" height="{max(ground - y, 0.5):.1f}" '
                    f"{style}>{_tip(each.name, point)}</rect>"
                )
                parts.append(_interval(scale, point, x + wide / 2, "#333"))
        return parts


def _tip(name: str, point: Point) -> str:
    half = "" if point.half is None else f" ± {short(point.half)}"
    return f"<title>{escape(name)}: {short(point.y)}{half}{escape(point.text)}</title>"


def _interval(scale: Scale, point: Point, x: float, colour: str) -> str:
    if point.half is None:
        return ""
    least = point.top - point.half
    low, high = scale.place(max(least, scale.low)), scale.place(point.top + point.half)
    ends = f"M{x - 3:.1f} {high:.1f}h6"
    # An arrow where the interval goes on below the axis.
    ends += (
        f"M{x - 3:.1f} {low - 4:.1f}l3 4l3 -4" if least < scale.low else f"M{x - 3:.1f} {low:.1f}h6"
    )
    return f'<path d="M{x:.1f} {low:.1f}V{high:.1f}{ends}" stroke="{colour}" fill="none"/>'


@dataclass(frozen=True)
class Scale:
    """The y axis. low, high: the values at its ends."""

    low: float
    high: float
    log: bool

    @classmethod
    def fitting(cls, values: Sequence[float], top: float, log: bool = True) -> Scale:
        """Return an axis for these `values`, up to `top`: from zero, or where `log` allows it of
        powers of ten when the largest is more than 50 times the smallest."""
        least = min(values)
        if log and least > 1e-9 and max(values) / least > 50:
            return cls(
                10.0 ** math.floor(math.log10(least)), 10.0 ** math.ceil(math.log10(top)), True
            )
        step = _step(max(top, 1e-12))
        return cls(0.0, step * max(math.ceil(top / step), 1), False)

    def place(self, value: float) -> float:
        """Return the y coordinate of a value."""
        share = value / self.high
        if self.log:
            share = math.log10(max(value, self.low) / self.low) / math.log10(self.high / self.low)
        return HEIGHT - BOTTOM - max(share, 0.0) * (HEIGHT - BOTTOM - TOP)

    def ticks(self) -> list[tuple[float, str]]:
        """Return the values that have a line, and their names."""
        if self.log:
            first, last = round(math.log10(self.low)), round(math.log10(self.high))
            found = [10.0**power for power in range(first, last + 1)]
        else:
            step = _step(self.high)
            found = [step * number for number in range(round(self.high / step) + 1)]
        return [(value, short(value)) for value in found]


def _step(top: float) -> float:
    """Return 1, 2 or 5 times a power of ten, so that about five of them reach the top."""
    raw = top / 5
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)


def short(value: float | None) -> str:
    """Return a number with three significant digits and k, M, G or T."""
    if value is None:
        return "-"
    rounded = float(f"{value:.3g}")  # 999,999 is 1M
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value if unit == "k" else rounded) >= limit:
            return f"{_three(rounded / (1e3 if unit == 'k' else limit))}{unit}"
    return f"{value:.0f}" if value == int(value) else _three(value)


def _three(value: float) -> str:
    """Return a number with three significant digits, or all before the point; no power of ten of
    large ones."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def bounded(value: float | None, half: float | None) -> str:
    """Return a mean with half of its interval: that with two digits, and the mean to the same
    place; as `short` does where there is no interval."""
    if value is None or half is None or not math.isfinite(half):
        return short(value)
    if not half or abs(value) >= 1e4:
        return f"{short(value)} ± {short(half)}"
    places = max(0, 1 - math.floor(math.log10(half)))
    return f"{value:,.{places}f} ± {half:,.{places}f}"


def legend(names: Sequence[tuple[str, int]]) -> str:
    """Return what colour each series has, for several plots together; nothing where there is only
    one without a name."""
    if [name for name, _ in names] == ["all"]:
        return ""
    items = [
        f'<span><i style="background:{COLOURS[colour % len(COLOURS)]}"></i>{escape(name)}</span>'
        for name, colour in names
    ]
    return f'<p class="legend">{"".join(items)}</p>'
