"""The rows of all runs with one common time, `t`: those that are few as a table, the others as
queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from mqttree.bench.duckdb.files import Files
from mqttree.bench.duckdb.session import Database
from mqttree.bench.spark.clocks import MARKS, Placed, placed
from mqttree.bench.spark.counted import MESSAGES
from mqttree.bench.spark.source import Run
from mqttree.bench.spark.traffic import COUNTED
from mqttree.bench.trace.schema import KINDS

TAPPED = ("forwarded", "control")
"""Single packets between brokers: of some runs there are more of them than messages."""
OTHERS = tuple(
    kind for kind in KINDS if kind not in (*MESSAGES, *TAPPED, "began", "ended", "clock")
)
"""Kinds of rows that come into the table `other`."""


@dataclass
class Events(Placed):
    """The rows of all runs, in a database: rows of OTHERS are its table `other`, those of `files`
    are asked for."""

    database: Database
    files: Files

    def batches(self, most: int) -> list[list[int]]:
        """Return the numbers of the runs, as lists whose runs have no more than `most` rows, or
        that have a single run."""
        found: list[list[int]] = []
        there = most
        for number, run in enumerate(self.runs):
            rows = sum(run.rows.values())
            if not run.files:
                continue
            if there + rows > most:
                found.append([])
                there = 0
            found[-1].append(number)
            there += rows
        return found

    def of(self, numbers: Sequence[int]) -> Files:
        """Return the files of the runs with these `numbers`; those that were asked for before are
        forgotten."""
        mine = [(number, file) for number in numbers for file in self.runs[number].files]
        return Files(self.database, "batch", mine)


def load(database: Database, runs: list[Run]) -> Events:
    """Return the events of these `runs`, in a `database`, and look at their processes: those that
    did not end are named in the runs' remarks."""
    files = Files(
        database, "every", ((number, file) for number, run in enumerate(runs) for file in run.files)
    )
    times = placed(_marks(database, files), runs)
    if times is None:
        return load(database, runs)
    database.put(
        "host",
        "host string, no int, moved long, since long, until long, load_since long, "
        "load_until long, zero long",
        [(host, *each) for (_, host), each in times.hosts().items()],
    )
    database.make("other", files.rows(_COLUMNS, OTHERS, _COUNTED))
    return Events(**vars(times), database=database, files=files)


_COLUMNS = """
    h.no, h.since, h.until, h.zero, r.process, r.kind, r.client, r.broker, r.peer, r.topic, r.name,
    r."count", r.size, r.control_bytes, r.data_bytes, r.cpu_s, r.rss
"""
_COUNTED = "(r.kind <> 'counted' or r.name in ({}))".format(
    ", ".join(f"'{name}'" for name in COUNTED)
)


def _marks(database: Database, files: Files) -> list[dict[str, Any]]:
    """Return when each process of each run began and ended, what clocks it measured and when it
    noted subscriptions, with the file (`path`) that says so."""
    rows = files.plain(
        'f.path, r.scenario, r.run, r.host, r.process, r.kind, r."at", r."count", r.offset_ns, '
        "r.error_ns",
        MARKS,
    )
    found = database.rows(f"""
        select path, scenario, run, host, process, kind, count(*) as marks, min("at") as first,
            arg_min(offset_ns, "at") as "offset", sum("count") as rows, max("count") as version,
            arg_min(offset_ns, coalesce(error_ns, 0)) as best, min(error_ns) as error
        from ({rows}) group by all
    """)
    return [row | {"path": quote(row["path"])} for row in found]
