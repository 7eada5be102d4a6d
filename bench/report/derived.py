"""Measures of a run that are made of others, or that only its run.json has. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Row = Mapping[str, Any]


def _links(row: Row, about: Row) -> float | None:
    """Bytes on links, signalling and messages."""
    control, data = row.get("control_bytes"), row.get("data_bytes")
    return None if control is None or data is None else float(control + data)


def _share(row: Row, about: Row) -> float | None:
    """Signalling in relation to messages on links."""
    control, data = row.get("control_bytes"), row.get("data_bytes")
    return control / data if control is not None and data else None


def _phase(about: Row, name: str) -> float | None:
    """Bytes of signalling a second in a phase."""
    for phase in (about.get("summary") or {}).get("phases") or ():
        if phase.get("name") == name and phase.get("seconds"):
            return float(phase["control_bytes"]) / float(phase["seconds"])
    return None


def _rise(name: str) -> Callable[[Row, Row], float | None]:
    def rise(row: Row, about: Row) -> float | None:
        idle, there = _phase(about, "idle"), _phase(about, name)
        return there / idle if idle and there is not None else None

    return rise


def _late(row: Row, about: Row) -> float | None:
    """How late the network was (p99, ms)."""
    late = ((about.get("summary") or {}).get("network") or {}).get("late_ms") or {}
    return float(late["p99"]) if "p99" in late else None


def _said(name: str) -> Callable[[Row, Row], float | None]:
    def said(row: Row, about: Row) -> float | None:
        value = (about.get("summary") or {}).get(name)
        return float(value) if isinstance(value, int | float) else None

    return said


DERIVED: Mapping[str, tuple[str, Callable[[Row, Row], float | None]]] = {
    "link_bytes": ("all traffic on links, bytes", _links),
    "signalling_share": ("signalling / messages on links, ratio", _share),
    "failure_rise": ("signalling after a failure / before, ratio", _rise("failure")),
    "return_rise": ("signalling after the return / before, ratio", _rise("return")),
    "network_late_ms": ("the network late itself (p99), ms", _late),
    "connections_per_s": ("connections opened, connections/s", _said("connections_per_s")),
    "bytes_per_connection": ("memory of a connection, bytes", _said("bytes_per_connection")),
}
"""Measure -> (what it is called, what it is of a row of the table of runs and of run.json)."""
