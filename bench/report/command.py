"""The command line of `mqttree bench report`."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from bench.report import data
from bench.report.page import page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `mqttree bench report` takes."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder with runs (of `mqttree bench run --out DIR`)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the page (DIR/report.html)")
    parser.add_argument("--title", default="mqttree: benchmark report", metavar="TEXT")
    parser.add_argument("--master", metavar="URL", help="the Spark cluster that makes the tables (local[*])")
    parser.add_argument("--fresh", action="store_true", help="make the tables anew even if no run is newer than they are")


def main(arguments: argparse.Namespace) -> int:
    """Write the page, after the tables if those are missing or old; 0: written, 1: Spark failed, 2: nothing to report."""
    folder: Path = arguments.folder
    if not folder.is_dir():
        raise data.ReportError(f"{folder} is not a folder")
    out: Path = arguments.out or folder / "report.html"
    if out.is_dir():
        raise data.ReportError(f"{out} is a folder; --out takes a file")
    if not out.parent.is_dir():
        raise data.ReportError(f"{out} cannot be written: {out.parent} is not a folder")
    if arguments.fresh or data.outdated(folder):
        print(f"making the tables of {folder} with Spark", file=sys.stderr, flush=True)
        if code := _tables(folder, arguments.master):
            return code
    results = data.read(folder)
    command = shlex.join(["mqttree", "bench", "report", str(folder), *(["--out", str(arguments.out)] if arguments.out else [])])
    text = page(results, command, arguments.title)
    part = out.with_name(f".{out.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, out)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise data.ReportError(f"{out} cannot be written: {error.strerror}") from error
    print(out)
    return 0


def _tables(folder: Path, master: str | None) -> int:
    """Run the pipeline as a process of its own: Java keeps its memory until it ends."""
    options = ["--master", master] if master else []
    command = [sys.executable, "-m", "bench.spark", *options, "tables", str(folder)]
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
