"""What run.json may say: fields of a wrong type are left out, with a remark, so that they harm no
other run. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

_LONG, _INT, _SECONDS = 1 << 62, 1 << 31, 1e11  # what the tables' columns and a calendar take


def _whole(limit: int) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, int) and not isinstance(value, bool) and abs(value) < limit
    )


def _time(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and 0 <= value < _SECONDS


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _named(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, Mapping) and isinstance(each.get("name"), str) for each in value
    )


def _figure(value: Any) -> bool:
    if not isinstance(value, Mapping) or not _texts(value.get("y") or []):
        return False
    return all(
        isinstance(value.get(key) or "", str) for key in ("id", "x", "panel", "average", "ratio")
    )


def _topology(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    brokers, links = value.get("brokers") or [], value.get("links") or []
    return isinstance(brokers, list | Mapping) and isinstance(links, list)


_Kind = tuple[str, Callable[[Any], bool], tuple[str, ...]]
_KINDS: tuple[_Kind, ...] = (
    (
        "text",
        lambda value: isinstance(value, str),
        (
            "status",
            "broker",
            "routing",
            "fingerprint",
            "title",
            "paper",
            "commit",
            "lab",
            "host",
            "form",
        ),
    ),
    ("a time in seconds", _time, ("began", "ended")),
    ("a whole number", _whole(_INT), ("repetition",)),
    (
        "a whole number",
        _whole(_LONG),
        (
            "seed",
            "measure_from_ns",
            "measure_to_ns",
            "load_from_ns",
            "load_to_ns",
            "wall_minus_monotonic_ns",
        ),
    ),
    ("true or false", lambda value: isinstance(value, bool), ("dirty",)),
    (
        "a mapping",
        lambda value: isinstance(value, Mapping),
        ("cell", "parameters", "machine", "versions", "summary"),
    ),
    ("a list", lambda value: isinstance(value, list), ("failures", "findings", "command")),
    ("a list of names", _texts, ("asked", "on")),
    ("a list of processes", _named, ("processes",)),
    ("a figure", _figure, ("figure",)),
    ("a topology", _topology, ("topology",)),
)
_FLAT = ("cell", "machine", "versions")
"""Mappings whose values are compared with each other, so that lists and mappings in them become
text."""


def checked(about: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return what of a run.json can be used, and a remark for each field that is left out; null
    says nothing."""
    found, remarks = {key: value for key, value in about.items() if value is not None}, []
    for wanted, fits, names in _KINDS:
        for name in names:
            if name in found and not fits(found[name]):
                text = json.dumps(found.pop(name))
                remarks.append(
                    f"run.json: {name} is {text if len(text) < 60 else text[:57] + '...'}, "
                    f"not {wanted}; left out"
                )
    for name in _FLAT:
        if name in found:
            found[name] = {key: _scalar(value) for key, value in found[name].items()}
    return found, remarks


def _scalar(value: Any) -> Any:
    return (
        value if isinstance(value, str | int | float | None) else json.dumps(value, sort_keys=True)
    )
