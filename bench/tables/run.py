"""One run as its folder has it: what it says of itself, and the whole files of its trace. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PLACE = re.compile(r"scenario=([^/]+)/run=([^/]+)/\.?([^/]+)-\d+\.parquet(\.part)?$")
"""Where a trace file is: scenario, run, process, and whether it is not complete."""
BY_PUBLISHER = 3
"""The last schema of run.json in whose runs `every` counted the messages of each publisher, not
those of the run."""
MAX_EVERY = 1_000_000
ROLES = ("generator", "network", "observer")
"""What the names of the bench's processes begin with."""


@dataclass
class Run:
    """One run: its run.json (about, empty where it is not known), and what is there of its trace.

    place: the path of run.json, or of the folder with the trace files.
    case: the name that repetitions of one measurement have in common.
    variant: what of it tells it from others of the same factors (summary.name_cases sets both).
    """

    run: str
    scenario: str
    about: dict[str, Any] = field(default_factory=dict)
    place: str = ""
    case: str = ""
    variant: str = ""
    files: list[str] = field(default_factory=list)
    seen: dict[str, str] = field(default_factory=dict)
    """Names of all files, complete or not -> paths."""
    rows: dict[str, int] = field(default_factory=dict)
    """Process -> rows in its complete files."""
    remarks: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    """Processes one of whose files is not whole."""

    @property
    def window(self) -> tuple[int, int] | None:
        """The measured time in ns of the coordinating host's monotonic clock, where it is known."""
        since, until = self.about.get("measure_from_ns"), self.about.get("measure_to_ns")
        return (
            (since, until)
            if isinstance(since, int) and isinstance(until, int) and since < until
            else None
        )

    @property
    def load(self) -> tuple[int, int] | None:
        """The time of the whole load, with the ramps that the measured time is without, on the same
        clock; where that is not known, the measured time."""
        measured = self.window
        since, until = self.about.get("load_from_ns"), self.about.get("load_to_ns")
        if measured is None or not isinstance(since, int) or not isinstance(until, int):
            return measured
        return min(since, measured[0]), max(until, measured[1])

    @property
    def every(self) -> int:
        """Of how many messages one is in the trace: its first flow's `every`, which is that of all
        its clients."""
        flows = (self.about.get("parameters") or {}).get("flows")
        first = next(iter(flows.values()), None) if isinstance(flows, Mapping) else None
        value = first.get("every") if isinstance(first, Mapping) else None
        return value if isinstance(value, int) and 1 <= value <= MAX_EVERY else 1

    @property
    def unfair(self) -> bool:
        """Whether its sample has too many messages, those of publishers that sent few: nothing
        that is counted of it says what the run did."""
        schema = self.about.get("schema")
        return self.every > 1 and isinstance(schema, int) and schema <= BY_PUBLISHER

    def silence(self, role: str) -> str:
        """Return why nothing follows from what the processes of a role (of ROLES) did not note;
        empty: they recorded everything.

        Where no process is named after the role, any of those that are named after none may have
        it.
        """
        if not self.files:
            return "no whole file in the trace" if self.broken else "no trace"
        told = {*self.rows, *self.broken}
        mine = {name for name in told if name.startswith(role)}
        others = {name for name in told if not name.startswith(ROLES)}
        gone = mine & self.broken if mine else others if others <= self.broken else set()
        return f"{', '.join(sorted(gone))}'s trace is incomplete" if gone else ""
