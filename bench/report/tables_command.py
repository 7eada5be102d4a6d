"""`mqttree bench tables DIR...`: tables from traces, by Spark, or by DuckDB where there is no
Java."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence

from mqttree.bench.spark import source, store
from mqttree.bench.spark.session import SparkMissingError, java, require
from mqttree.bench.spark.stages import Stages

ENGINES = ("spark", "duckdb")


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add the choice of who makes tables to what a `parser` takes."""
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        help="who makes the tables (spark; duckdb where there is no Java)",
    )
    parser.add_argument("--master", metavar="URL", help="a Spark cluster (local[*])")


def main(argv: Sequence[str] | None = None) -> int:
    """Make the tables; 0: done, 1: Spark or DuckDB failed, 2: bad input, or what was asked for is
    missing."""
    parser = argparse.ArgumentParser(
        prog="mqttree bench tables", description="Aggregate the runs below folders."
    )
    source.add_folders(parser)
    parser.add_argument(
        "--memory", default="2g", metavar="SIZE", help="of Spark's driver, or of DuckDB (2g)"
    )
    add_engine(parser)
    arguments = parser.parse_args(argv)
    try:
        engine, why = choose(arguments.engine, arguments.master, arguments.folders)
    except (SparkMissingError, ValueError) as error:
        print(f"mqttree bench tables: {error}", file=sys.stderr)
        return 2
    if why:
        print(f"mqttree bench tables: {why}", file=sys.stderr, flush=True)
    return _spark(arguments) if engine == "spark" else _duckdb(arguments)


def choose(engine: str | None, master: str | None, folders: Sequence[str]) -> tuple[str, str]:
    """Return which of ENGINES makes the tables of `folders`, and in a line why, where it is not the
    one that users expect.

    `engine` is the one that they ask for, `master` the cluster (None: any, and none). Raises
    ValueError where DuckDB cannot do it, SparkMissingError where only Spark can and there is none.
    """
    far = next((folder for folder in folders if "://" in folder), None)
    if engine == "duckdb":
        if master is not None:
            raise ValueError(f"--master {master}: DuckDB has no cluster; --engine spark has")
        if far is not None:
            raise ValueError(f"{far}: DuckDB reads folders of this machine; --engine spark, URLs")
        return engine, ""
    if engine is None and master is None and far is None and not _submitted():
        try:
            java()
            if importlib.util.find_spec("pyspark") is None:
                raise SparkMissingError("PySpark is missing")
        except SparkMissingError as error:
            return "duckdb", f"by DuckDB: {str(error).partition(';')[0]}"
    elif not _submitted():
        java()
    return "spark", ""


def _submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _spark(arguments: argparse.Namespace) -> int:
    from mqttree.bench.spark.__main__ import main as spark

    options = ["--memory", arguments.memory]
    options += ["--master", arguments.master] if arguments.master else []
    more = ["--out", arguments.out] if arguments.out else []
    more += ["--each"] if arguments.each else []
    return spark([*options, "tables", *more, "--", *arguments.folders])


def _duckdb(arguments: argparse.Namespace) -> int:
    try:
        import duckdb

        return _by_duckdb(arguments)
    except ModuleNotFoundError as error:
        print(
            f"mqttree bench tables: {error.name} is missing; "
            "install it with: pip install 'mqttree[bench]'",
            file=sys.stderr,
        )
        return 2
    except ValueError as error:
        print(f"mqttree bench tables: {error}", file=sys.stderr)
        return 2
    except duckdb.Error as error:
        text = next(iter(str(error).splitlines()), type(error).__name__)
        print(f"mqttree bench tables: DuckDB failed: {text[:300]}", file=sys.stderr)
        return 1


def _by_duckdb(arguments: argparse.Namespace) -> int:
    from mqttree.bench.duckdb.session import Bounds
    from mqttree.bench.duckdb.tables import compute
    from mqttree.bench.spark.render import overview
    from mqttree.bench.spark.table_set import write

    require(None, arguments.memory)
    tell = Stages()
    sets = source.sets(arguments.folders, arguments.out, each=arguments.each)
    for each in sets:
        found = compute(each.runs or [], tell, Bounds(arguments.memory))
        tell(f"writing {len(found.tables)} tables to {each.out}")
        written = write(store.Folder(each.out), found, each.out)
        print(overview(found.runs, found.cases))
        print(f"{each.out}: {', '.join(written)}", flush=True)
    tell("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
