"""The command line of `mqttree bench report`."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mqttree.bench.report import data
from mqttree.bench.report.page import page
from mqttree.bench.report.repeated import pairs, summary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `mqttree bench report` takes."""
    parser.add_argument(
        "folder",
        type=Path,
        metavar="DIR",
        help="a folder with runs (of `mqttree bench run --out DIR`)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="the page (DIR/report.html)")
    parser.add_argument(
        "--repeated",
        type=Path,
        metavar="DIR",
        help="runs of the same scenarios: do their ratios differ?",
    )
    parser.add_argument(
        "--note", default="", metavar="TEXT", help="what readers have to know of the circumstances"
    )
    parser.add_argument("--master", metavar="URL", help="a Spark cluster (local[*])")
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="make the tables again even if no run is newer than they are",
    )


def main(arguments: argparse.Namespace) -> int:
    """Write the page, after the tables if those are missing or old. Returns 0: written, 1: Spark
    failed, 2: no Java. Raises ReportError, in one line, for a folder or a file that is not what it
    should be."""
    folder: Path = arguments.folder
    other: Path | None = arguments.repeated
    out: Path = arguments.out or folder / "report.html"
    for each in filter(None, (folder, other)):
        if not each.is_dir():
            raise data.ReportError(f"{each} is not a folder")
    if other is not None and other.resolve() == folder.resolve():
        raise data.ReportError(f"--repeated {other} is the same folder; it takes another one")
    if out.is_dir():
        raise data.ReportError(f"{out} is a folder; --out takes a file")
    if not out.parent.is_dir():
        raise data.ReportError(f"{out} cannot be written: {out.parent} is not a folder")
    both = [folder, *([other] if other is not None else [])]
    old = [each for each in both if arguments.fresh or data.outdated(each)]
    if old:
        names = " and ".join(map(str, old))
        print(f"making the tables of {names}", file=sys.stderr, flush=True)
        if code := _tables(old, arguments.master):
            return code
    found = [data.read(each) for each in both]
    results, repeated = found[0], found[1] if other is not None else None
    options = [
        *(["--repeated", str(other)] if other else []),
        *(["--out", str(arguments.out)] if arguments.out else []),
        *(["--note", arguments.note] if arguments.note else []),
    ]
    text = page(
        results,
        shlex.join(["mqttree", "bench", "report", str(folder), *options]),
        repeated,
        arguments.note,
    )
    part = out.with_name(f".{out.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, out)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise data.ReportError(f"{out} cannot be written: {error.strerror}") from error
    if repeated is not None:
        print(summary(pairs(results, repeated)))
    print(out)
    return 0


def _tables(folders: Sequence[Path], master: str | None) -> int:
    """Run the pipeline as a process of its own, one for all `folders`: Java keeps its memory until
    it ends, and starting Spark takes longer than a small set of runs."""
    options = ["--master", master] if master else []
    command = [sys.executable, "-m", "mqttree.bench.cli", "tables", *options, "--each", "--"]
    command += [str(folder) for folder in folders]
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
