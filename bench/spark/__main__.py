"""`mqttree bench tables DIR...`: tables from traces; `mqttree bench live DIR`: what a benchmark is
doing right now. spark-submit takes this file, too."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from mqttree.bench import checked
from mqttree.bench.spark import source
from mqttree.bench.spark.session import SparkMissingError, cause, is_local, java, require, session
from mqttree.bench.spark.stages import Stages
from mqttree.broker.cli.command_line import Parser

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command; 0: done, 1: Spark failed, 2: bad input, or Java or PySpark is
    missing."""
    parser = Parser(prog="mqttree bench", description="Read traces by Spark.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    making = commands.add_parser("tables", help="aggregate the runs below folders")
    source.add_folders(making)
    watching = commands.add_parser("live", help="what is in the traces of a benchmark that runs")
    watching.add_argument("folder", metavar="DIR")
    for option, default, text in (
        ("--every", 5.0, "seconds between two looks (5)"),
        ("--window", 5.0, "seconds of a run in one line (5)"),
        ("--seconds", None, "stop after this time (at Ctrl-C)"),
    ):
        watching.add_argument(option, type=checked.seconds, default=default, metavar="S", help=text)
    watching.add_argument("--once", action="store_true", help="stop when all that is there is read")
    for each in (making, watching):
        each.add_argument(
            "--master", metavar="URL", help="a Spark cluster (spark-submit's, else local[*])"
        )
        each.add_argument(
            "--memory",
            default="2g",
            metavar="SIZE",
            help="of the driver, which does the work when local (2g)",
        )
    arguments = parser.parse_args(argv)
    name = f"mqttree bench {arguments.command}"
    try:
        if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has found a Java
            java()
            require(arguments.master, arguments.memory)
        return _live(arguments) if arguments.command == "live" else _tables(arguments)
    except ModuleNotFoundError as error:
        print(
            f"{name}: {error.name} is missing; install it with: pip install 'mqttree[bench]'",
            file=sys.stderr,
        )
        return 2
    except (SparkMissingError, ValueError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _tables(arguments: argparse.Namespace) -> int:
    from mqttree.bench.spark.pack import packing

    tell = Stages()
    sets = source.sets(arguments.folders, arguments.out, each=arguments.each)

    def work(spark: SparkSession) -> None:
        from mqttree.bench.spark import store
        from mqttree.bench.spark.tables import compute
        from mqttree.bench.tables.render import overview

        tell("Spark is up")
        for each in sets:
            for folder in each.folders:
                source.store(folder, spark)
            place = store.Store(spark, each.out)
            begun = packed if each is sets[0] and early else None
            tables = compute(spark, each.folders, each.runs, tell, begun)
            tell(f"writing {len(tables.tables)} tables to {each.out}")
            written = store.write(place, tables, each.out)
            print(overview(tables.runs, tables.cases))
            print(f"{each.out}: {', '.join(written)}", flush=True)
        tell("done")

    known = [each.runs for each in sets]
    rows = sum(sum(run.rows.values()) for runs in known for run in runs or [])
    early = is_local(arguments.master) and sets[0].runs
    with packing(early or []) as packed:  # while Java starts
        return _with_spark(arguments, None if None in known else rows, work, tell)


def _live(arguments: argparse.Namespace) -> int:
    if "://" not in arguments.folder and not Path(arguments.folder).is_dir():
        raise ValueError(f"{arguments.folder} is not a folder")

    def work(spark: SparkSession) -> None:
        from mqttree.bench.spark import live, live_screen

        with contextlib.ExitStack() as stack:
            live.watch(
                spark,
                arguments.folder,
                arguments.every,
                live_screen.view(sys.stdout, stack),
                window_s=arguments.window,
                seconds=arguments.seconds,
                once=arguments.once,
            )

    return _with_spark(arguments, 0, work, Stages())


def _with_spark(
    arguments: argparse.Namespace,
    rows: int | None,
    work: Callable[[SparkSession], None],
    tell: Callable[[str], None],
) -> int:
    """Do some work with a session; what Spark says about a failure becomes one line. `rows`: see
    `session`; `tell` hears that Spark is being started."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    tell("starting Spark")
    try:
        spark = session(arguments.master, arguments.memory, rows=rows)
    except (PySparkException, Py4JError) as error:
        raise ValueError(f"Spark does not start: {cause(error)}") from error
    before = _interruptible()
    try:
        work(spark)
    except (PySparkException, Py4JError, ConnectionError) as error:  # or Java was killed
        print(f"mqttree bench {arguments.command}: Spark failed: {_first(error)}", file=sys.stderr)
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


if __name__ == "__main__":
    sys.exit(main())
