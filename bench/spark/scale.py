"""Time for a row from a million rows up, and the same question to DuckDB."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import psutil

from mqttree.bench import checked
from mqttree.bench.spark.session import SparkMissingError, java, require
from mqttree.bench.trace.generate import LEAST_ROWS, Made, make

DUCK = """
with p as (select publisher, sequence, min("at") as t, first(topic) as topic from '{files}'
      where kind = 'published' group by all),
d as (select publisher, sequence, client, min("at") as t, count(*) as n from '{files}'
      where kind = 'delivered' group by all),
j as (select d.client, d.publisher, p.topic, d.sequence, d.t, d.n, d.t - p.t as delay
      from d join p using (publisher, sequence)),
o as (select *, min(t) over (partition by publisher, client, topic order by sequence desc
                             rows between unbounded preceding and 1 preceding) as newer from j),
s as (select p.topic, count(*) as published from p group by all),
w as (select sum(published) as expected
      from s join (select distinct client, topic from '{files}' where kind = 'subscribed')
      using (topic))
select count(*), sum(n) - count(*), (select expected from w) - count(*),
       count(*) filter (t > newer), avg(delay) / 1e6,
       approx_quantile(delay, [0.5, 0.9, 0.99, 0.999]::float[]) from o
"""
"""The core of the pipeline as one query: deliveries, duplicates, losses, order, mean delay,
percentiles."""


FIGURES = (
    "delivered",
    "duplicates",
    "lost",
    "reordered",
    "delay_mean_ms",
    "delay_p50_ms",
    "delay_p90_ms",
    "delay_p99_ms",
    "delay_p999_ms",
)
"""What both are asked for, in the order of the query."""


@dataclass
class Cost:
    """What a question took: seconds, CPU time (s) and the most memory (bytes) of the process and
    its children, and its answers."""

    seconds: float
    cpu: float
    memory: int
    answers: dict[str, float]


class Watch:
    """Samples the resident memory of a process and its children while it is open."""

    def __init__(self, pid: int) -> None:
        self._process, self._done = psutil.Process(pid), threading.Event()
        self.most = 0
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(0.2):
            try:
                alive = [self._process, *self._process.children(recursive=True)]
                self.most = max(self.most, sum(each.memory_info().rss for each in alive))
            except psutil.Error:
                continue


def spent() -> float:
    """Return the CPU time (s) that this process and the children that it has now have used."""
    times = [each.cpu_times() for each in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(each.user + each.system for each in times)


def _run(what: str, program: list[str]) -> Cost:
    """Run a program, whose last line is JSON of its seconds, CPU time and answers. Raises
    RuntimeError."""
    process = subprocess.Popen(
        [sys.executable, "-c", *program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with Watch(process.pid) as watch:
        out, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(errors.strip().splitlines()[-1] if errors.strip() else f"{what} failed")
    seconds, cpu, answers = json.loads(out.strip().splitlines()[-1])
    return Cost(seconds, cpu, watch.most, answers)


_SPARK = """
import json, sys, time
from mqttree.bench.spark.session import session
from mqttree.bench.spark import tables
from mqttree.bench.spark.scale import FIGURES, spent
spark = session(sys.argv[2], sys.argv[3], int(sys.argv[4]))
before, began = spent(), time.monotonic()
run = tables.compute(spark, [sys.argv[1]]).runs[0]
seconds, cpu = time.monotonic() - began, spent() - before
print(json.dumps([seconds, cpu, {name: run[name] for name in FIGURES}]))
spark.stop()
"""


def ask_spark(folder: Path, rows: int, master: str, memory: str) -> Cost:
    """Return what it costs Spark to aggregate the `rows` trace rows in `folder`, in a process of
    its own at `master` with `memory` for the driver ("2g"). The session's start is not counted, nor
    is the CPU time of executors elsewhere. Raises RuntimeError, in one line."""
    return _run("Spark", [_SPARK, str(folder), master, memory, str(rows)])


_DUCK = """
import json, sys, time, duckdb
from mqttree.bench.spark.scale import FIGURES, spent
connection = duckdb.connect()
connection.execute(f"set memory_limit='{sys.argv[3]}'")
connection.execute(f"set threads={sys.argv[4]}")
connection.execute(f"set temp_directory='{sys.argv[5]}'")
before, began = spent(), time.monotonic()
row = connection.execute(sys.argv[2]).fetchone()
seconds, cpu = time.monotonic() - began, spent() - before
values = [float(value) for value in row[:5]] + [value / 1e6 for value in row[5]]
print(json.dumps([seconds, cpu, dict(zip(FIGURES, values, strict=True))]))
"""


def ask_duckdb(folder: Path, threads: int, memory: str) -> Cost:
    """Return what the same costs DuckDB, in a process of its own: the traces in `folder`, with so
    many `threads` and at most so much `memory` ("2g")."""
    query = DUCK.format(files=f"{folder}/trace/*/*/*.parquet")
    with tempfile.TemporaryDirectory(dir=folder) as spill:
        return _run("DuckDB", [_DUCK, "", query, memory, str(threads), spill])


def check(made: Made, cost: Cost) -> str:
    """Return what is wrong with the answers, empty if nothing is."""
    wanted = {
        "delivered": made.expected - made.lost,
        "duplicates": made.duplicates,
        "lost": made.lost,
    }
    wrong = [
        f"{name} {cost.answers[name]:,.0f}, not {value:,}"
        for name, value in wanted.items()
        if cost.answers[name] != value
    ]
    return "; ".join(wrong)


def measure(rows: int, master: str, memory: str, threads: int, folder: Path) -> list[str]:
    """Make so many `rows` in `folder`, ask both, and return the lines of the table. `master` is
    Spark's URL, `threads` are DuckDB's, `memory` ("2g") is what each may use."""
    began = time.monotonic()
    made = make(folder, rows)
    print(
        f"{made.rows:,} rows made in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True
    )
    lines = []
    asked: tuple[tuple[str, Callable[[], Cost]], ...] = (
        ("Spark", lambda: ask_spark(folder, made.rows, master, memory)),
        ("DuckDB", lambda: ask_duckdb(folder, threads, memory)),
    )
    for name, ask in asked:
        try:
            cost = ask()
        except RuntimeError as error:
            lines.append(f"| {made.rows:,} | {name} | failed: {error} | | | | |")
            continue
        wrong = check(made, cost)
        answers: dict[str, Any] = cost.answers
        lines.append(
            f"| {made.rows:,} | {name} | {cost.seconds:.1f} | {cost.cpu:.1f} | "
            f"{cost.seconds / made.rows * 1e9:,.0f} | {cost.memory / 2**20:,.0f} | "
            f"{wrong or 'right'}; p50 {answers['delay_p50_ms']:.3f}, "
            f"p99 {answers['delay_p99_ms']:.3f} ms |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 0: done, 2: bad input (a ValueError becomes one line), or Java is
    missing."""
    parser = argparse.ArgumentParser(prog="mqttree bench spark-scale", description=__doc__)
    least = partial(checked.count, least=LEAST_ROWS)
    parser.add_argument(
        "--rows", type=least, nargs="+", default=[1_000_000, 10_000_000], metavar="N"
    )
    parser.add_argument("--master", default="local[2]", metavar="URL", help="(local[2])")
    parser.add_argument(
        "--threads",
        type=partial(checked.count, most=4096),
        default=2,
        metavar="N",
        help="of DuckDB (2)",
    )
    parser.add_argument(
        "--memory",
        default="2g",
        metavar="SIZE",
        help="what each may use: Java's heap, DuckDB's memory_limit (2g)",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="where the rows are made, and deleted again (the system's)",
    )
    options = parser.parse_args(argv)
    try:
        java()
        require(options.master, options.memory)
        if options.folder is not None and not options.folder.is_dir():
            raise ValueError(f"--folder {options.folder} is not a folder")
    except (SparkMissingError, ValueError) as error:
        print(f"mqttree bench spark-scale: {error}", file=sys.stderr)
        return 2
    print(
        f"DuckDB {duckdb.__version__}, {options.threads} threads; "
        f"Spark {options.master}; {options.memory} each\n"
    )
    print(
        "| rows | | s | CPU s | ns a row | MiB resident, at most | answers |\n"
        "|---|---|---|---|---|---|---|",
        flush=True,
    )
    for rows in options.rows:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            for line in measure(
                rows, options.master, options.memory, options.threads, Path(folder)
            ):
                print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
