"""`mqttree bench spark tables DIR...`: tables from traces; `live DIR`: what a benchmark is doing
right now."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from bench import checked
from bench.spark.session import SparkMissingError, cause, java, require, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command; 0: done, 1: Spark failed, 2: bad input, or Java or PySpark is
    missing."""
    parser = argparse.ArgumentParser(
        prog="mqttree bench spark", description="Aggregate traces of benchmarks."
    )
    parser.add_argument(
        "--master", metavar="URL", help="a Spark cluster (spark-submit's, else local[*])"
    )
    parser.add_argument(
        "--memory",
        default="2g",
        metavar="SIZE",
        help="of the driver, which does the work when local (2g)",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    making = commands.add_parser("tables", help="aggregate the runs below folders")
    making.add_argument(
        "folders",
        nargs="+",
        metavar="DIR",
        help="folders (or URLs that Spark's file systems know) above run.json files",
    )
    making.add_argument(
        "--out", metavar="DIR", help="where the tables go (DIR/tables of the first folder)"
    )
    watching = commands.add_parser("live", help="what is in the traces of a benchmark that runs")
    watching.add_argument("folder", metavar="DIR")
    watching.add_argument(
        "--every",
        type=checked.seconds,
        default=5.0,
        metavar="S",
        help="seconds between two looks (5)",
    )
    watching.add_argument(
        "--seconds", type=checked.seconds, metavar="S", help="stop after this time (at Ctrl-C)"
    )
    arguments = parser.parse_args(argv)
    try:
        if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has found a Java
            java()
            require(arguments.master, arguments.memory)
        return _live(arguments) if arguments.command == "live" else _tables(arguments)
    except ModuleNotFoundError as error:
        print(
            f"mqttree bench spark: {error.name} is missing; "
            "install it with: pip install 'mqttree[spark]'",
            file=sys.stderr,
        )
        return 2
    except (SparkMissingError, ValueError) as error:
        print(f"mqttree bench spark: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _tables(arguments: argparse.Namespace) -> int:
    rows = _rows(arguments.folders)
    out = arguments.out or f"{arguments.folders[0].rstrip('/')}/tables"
    if "://" not in out:
        _writable(out)

    def work(spark: SparkSession) -> None:
        from bench.spark import source
        from bench.spark.render import overview
        from bench.spark.tables import compute, prepare, write

        for folder in arguments.folders:
            source.store(folder, spark)
        prepare(spark, out)
        tables = compute(spark, arguments.folders)
        written = write(spark, tables, out)
        print(overview(tables.runs, tables.cases))
        print(f"{out}: {', '.join(written)}")

    return _with_spark(arguments, rows, work)


def _live(arguments: argparse.Namespace) -> int:
    def work(spark: SparkSession) -> None:
        from bench.spark import live

        live.watch(spark, arguments.folder, arguments.every, arguments.seconds)

    return _with_spark(arguments, 0, work)


def _with_spark(
    arguments: argparse.Namespace, rows: int | None, work: Callable[[SparkSession], None]
) -> int:
    """Do some work with a session; what Spark says about a failure becomes one line."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        spark = session(arguments.master, arguments.memory, rows=rows)
    except (PySparkException, Py4JError) as error:
        raise ValueError(f"Spark does not start: {cause(error)}") from error
    before = _interruptible()
    try:
        work(spark)
    except (PySparkException, Py4JError) as error:
        print(f"mqttree bench spark: Spark failed: {_first(error)}", file=sys.stderr)
        return 1
    finally:
        # After Ctrl-C the call that was broken off was one to Java.
        with contextlib.suppress(Exception):
            spark.stop()
        signal.signal(signal.SIGINT, before)
    return 0


def _interruptible() -> Any:
    """Let Ctrl-C end it in silence, and return who had the signal before: PySpark asks Java to
    cancel, in the middle of another call to it, and three stack traces follow."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        logging.disable(logging.CRITICAL)
        raise KeyboardInterrupt

    return signal.signal(signal.SIGINT, interrupt)


def _rows(folders: Sequence[str]) -> int | None:
    """Return how many rows there are, as far as that can be seen without Spark."""
    from bench.spark import source

    if any("://" in folder for folder in folders):
        return None
    return sum(sum(run.rows.values()) for run in source.read(folders))


def _first(error: Exception) -> str:
    """Return what matters of a Java stack trace, in one line."""
    lines = [
        line.strip() for line in str(error).splitlines() if not line.lstrip().startswith("at ")
    ]
    causes = [
        line
        for line in lines
        if "FAILED_READ" in line or "is not a Parquet file" in line or "No space" in line
    ]
    return causes[-1][:300] if causes else cause(error)


def _writable(folder: str) -> None:
    """Raise ValueError if no files can be put into a folder of this machine: before the work, not
    after it."""
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise ValueError(
            f"no tables can be written to {folder}: {error.strerror or error}"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
