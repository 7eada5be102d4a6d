"""`mqttree bench placement scaling`: runs the scenarios of measured scaling, and says what came of
them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from mqttree.bench import checked
from mqttree.bench.placement import averages, scaling, scaling_page
from mqttree.bench.runner import run, run_folder
from mqttree.bench.runner.arguments import of_run
from mqttree.broker.cli.command_line import Parser

SCENARIOS = ("scaling-costs", "scaling-social", "scaling-pairs")
MEASURES = (*scaling.MEASURES, *scaling.RESOURCES)


def add_arguments(commands: Any) -> None:
    """Add the command to argparse's `commands`."""
    parser = commands.add_parser(
        "scaling", help="what several brokers do beside one, measured: runs brokers, needs minutes"
    )
    parser.add_argument("folder", metavar="DIR", help="for the runs")
    parser.add_argument(
        "--rounds",
        type=partial(checked.count, most=1000),
        metavar="N",
        help="repetitions of every cell (as the scenarios say)",
    )
    parser.add_argument("--short", action="store_true", help="the scenarios' shortened form")
    parser.add_argument(
        "--resume", action="store_true", help="do not repeat what is finished in DIR"
    )
    parser.add_argument("--read", action="store_true", help="only say what came of runs in DIR")
    parser.add_argument(
        "--share",
        type=checked.positive,
        metavar="X",
        default=scaling.SHARE,
        help=f"of a core, at which capacities are compared ({scaling.SHARE:g})",
    )
    parser.add_argument("--page", metavar="FILE", help="write the page here (it is printed)")
    parser.set_defaults(handler=main)


def main(arguments: argparse.Namespace) -> int:
    """Run the scenarios if they are to be run, print the tables, write the page if one is wanted;
    1: a run failed. Raises ValueError, in one line, for bad input."""
    folder = Path(arguments.folder)
    page = Path(arguments.page) if arguments.page else None
    if page is not None and (page.is_dir() or not page.resolve().parent.is_dir()):
        raise ValueError(f"{page}: no file can be written there")
    code = 0 if arguments.read else _carry_out(arguments)
    if code == 130:  # interrupted
        return code
    found = scaling.normalized(scaling.runs(_records(folder)))
    if not found:
        raise ValueError(f"{folder}: no complete run of {', '.join(SCENARIOS)} is there")
    fits = scaling.all_costs(found)
    rows = [dict.fromkeys(MEASURES) | row for row in scaling.rows(found, fits, arguments.share)]
    command = f"mqttree bench placement scaling DIR --rounds {max(r.repetition for r in found)}"
    means = averages.means_of(rows, MEASURES)
    text = "\n".join(scaling_page.page(means, fits, found, arguments.share, command)) + "\n"
    if page is None:
        print(text, end="")
        return code
    try:
        page.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{page}: {error.strerror or error}") from None
    return code


def _carry_out(arguments: argparse.Namespace) -> int:
    """Run the scenarios in turn."""
    words = [
        *SCENARIOS,
        "--in-turn",
        f"--out={arguments.folder}",
        f"--repeat={arguments.rounds or 0}",
    ]
    words += [f"--{name}" for name in ("short", "resume") if getattr(arguments, name)]
    parser = Parser()
    of_run(parser)
    return run.main(parser.parse_args(words))


def _records(folder: Path) -> Iterator[dict[str, Any]]:
    """The records of all runs of these scenarios in a folder."""
    for scenario in SCENARIOS:
        for path in sorted((folder / scenario).glob("*/r*/run.json")):
            record = run_folder.read(path.parent)
            if record is not None and record.get("schema") == run_folder.SCHEMA:
                yield record
