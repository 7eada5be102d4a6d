"""`mqttree bench list` and `mqttree bench run`: which scenarios there are, and carrying them out, one run after the other."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench import rundir, runner, runtable, scenario
from bench.netlab.brokers import KINDS
from bench.netlab.namespaces import unsupported
from bench.scenario import Cell, Scenario

OVERHEAD = 7.0
"""s that a run takes besides its load, until it is known better."""
LIMIT = 180.0
"""s beyond the load after which a run that does not end is ended."""
_fork = multiprocessing.get_context("fork")


@dataclass(slots=True)
class Job:
    """One run that has to be made, or has been."""

    scenario: Scenario
    cell: Cell
    repetition: int
    folder: Path
    record: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.scenario.name} {self.cell.name} r{self.repetition}"

    def guess(self) -> float:
        """s that it will take, by what is known beforehand."""
        return OVERHEAD + self.cell.duration() + self.cell.main.settle


def listing() -> int:
    """Print the scenarios; 1 if one cannot be read."""
    print(f"{'scenario':26} {'paper':9} {'runs':>5} {'short':>5}  title")
    code = 0
    for name in scenario.shipped():
        try:
            full, short = scenario.load(name), scenario.load(name, short=True)
        except ValueError as error:
            print(f"mqttree bench: {error}", file=sys.stderr)
            code = 1
            continue
        runs, fewer = len(full.cells) * full.repetitions, len(short.cells) * short.repetitions
        print(f"{name:26} {full.paper:9} {runs:5} {fewer:5}  {full.title}")
    return code


def main(arguments: argparse.Namespace) -> int:
    """Carry out `run`; 0: all went well or is not available, 1: something failed or was lost, 130: interrupted.

    Raises ValueError, in one line, for bad input.
    """
    jobs = plan(arguments)
    if arguments.lab == "namespaces" and (reason := unsupported()):
        raise ValueError(f"--lab namespaces: {reason}")
    if _left(jobs, arguments.resume) is None:
        raise ValueError(f"{jobs[0].folder.parents[2]} has runs already: --resume, or another --out")
    interrupted = _carry_out(jobs, arguments)
    report(jobs)
    if interrupted:
        return 130
    return 0 if all(job.record is not None and _fine(job.record) for job in jobs) else 1


def _fine(record: dict[str, Any]) -> bool:
    """Whether a run went well; what another broker under test loses is its business, and is in the table."""
    if record["status"] == rundir.COMPLETE:
        return not record["findings"] or KINDS[record["broker"]].program != "mqttree"
    return bool(record["status"] == rundir.NOT_AVAILABLE)


def chosen(names: list[str], short: bool) -> list[Scenario]:
    """The scenarios meant by names: their own, a paper's, "papers", "all", or files. ValueError in one line."""
    known = {name.lower(): name for name in scenario.PAPERS if name}
    found: dict[str, Scenario] = {}
    for name in names:
        if name in ("all", "papers") or name.lower() in known:
            every = [scenario.load(each, short) for each in scenario.shipped()]
            wanted = [s for s in every if name == "all" or (s.paper if name == "papers" else s.paper == known[name.lower()])]
        else:
            wanted = [scenario.load(name, short)]
        found |= {each.name: each for each in wanted}
    return list(found.values())


def plan(arguments: argparse.Namespace) -> list[Job]:
    """All runs that are asked for. ValueError in one line."""
    out = Path(arguments.out or Path("results") / time.strftime("%Y%m%d-%H%M%S"))
    if arguments.repeat < 0 or arguments.repeat > 1000:
        raise ValueError("--repeat must be 1 to 1000")
    only: dict[str, set[str]] = {}
    for text in arguments.only:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--only {text}: expected FACTOR=VALUE")
        only.setdefault(key, set()).add(value)
    jobs = []
    for each in chosen(arguments.name, arguments.short):
        for cell in each.cells:
            if not all(str(cell.factors.get(key, getattr(cell.main, key, ""))) in values for key, values in only.items()):
                continue
            for repetition in range(1, (arguments.repeat or each.repetitions) + 1):
                jobs.append(Job(each, cell, repetition, out / each.name / cell.name / f"r{repetition}"))
    if not jobs:
        raise ValueError("no run is left by --only")
    return jobs


def _left(jobs: list[Job], resume: bool) -> list[Job] | None:
    """Runs that are still to be made; None if there are some in the way. Fills in what is finished."""
    left = []
    for job in jobs:
        record = rundir.read(job.folder)
        if record is not None and not resume:
            return None
        if record is not None and (record.get("status"), record.get("fingerprint")) == (rundir.COMPLETE, job.cell.fingerprint()):
            job.record = record
        else:
            left.append(job)
    return left


def _carry_out(jobs: list[Job], arguments: argparse.Namespace) -> bool:
    left = [job for job in jobs if job.record is None]
    if len(left) < len(jobs):
        print(f"{len(jobs) - len(left)} of {len(jobs)} runs are finished already", file=sys.stderr)
    common = rundir.description()
    with progress(left) as bar:
        for job in left:
            bar.begin(job)
            began = time.monotonic()
            try:
                carry_out(job, arguments, common, bar)
            except KeyboardInterrupt:
                return True
            finally:
                bar.end(job, time.monotonic() - began)
    return False


def carry_out(job: Job, arguments: argparse.Namespace, common: dict[str, Any], bar: Progress) -> None:
    """Make one run in a process of its own, and read what came of it."""
    rundir.fresh(job.folder)
    cell = job.cell
    record: dict[str, Any] = {
        **common, "run": rundir.new_id(), "scenario": job.scenario.name, "title": job.scenario.title,
        "paper": job.scenario.paper,
        "cell": cell.factors, "repetition": job.repetition, "seed": arguments.seed * 1000 + job.repetition,
        "short": arguments.short,
        "broker": cell.main.broker, "routing": KINDS[cell.main.broker].routing, "parameters": cell.as_dict(),
        "fingerprint": cell.fingerprint(), "topology": cell.topology.as_dict(), "figure": job.scenario.figure,
        "asked": list(job.scenario.asked), "began": time.time(), "ended": None, "status": rundir.RUNNING,
        "failures": [], "findings": [],
        "wall_minus_monotonic_ns": time.time_ns() - time.monotonic_ns(), "summary": {}, "processes": [],
    }  # fmt: skip
    job.record = record
    ours, theirs = _fork.Pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    process = _fork.Process(target=runner.run, args=(cell, job.folder, record, arguments.lab, theirs), name="run")
    process.start()
    theirs.close()
    end = time.monotonic() + cell.duration() + LIMIT
    interrupted = False
    reason = ""
    while process.is_alive():
        try:
            if ours.poll(0.2):
                bar.stage(job, ours.recv())
        except EOFError:
            process.join(10)
            if process.is_alive():
                process.kill()
        except KeyboardInterrupt:
            interrupted = True
            process.terminate()
            with suppress(KeyboardInterrupt):
                process.join(20)
            if process.is_alive():
                process.kill()
        if time.monotonic() > end and not reason:
            reason = f"the run did not end {LIMIT:g} s after its load"
            process.terminate()
            process.join(15)
            process.kill()
    process.join()
    _conclude(job, process.exitcode, reason)
    if interrupted:
        raise KeyboardInterrupt


def _conclude(job: Job, code: int | None, reason: str) -> None:
    record = rundir.read(job.folder) or job.record
    assert record is not None
    if record["status"] == rundir.RUNNING or reason:
        how = f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with code {code}"
        record["status"] = rundir.FAILED
        record["failures"].append(reason or f"the run's process {how}")
        record["ended"] = time.time()
        rundir.write(job.folder, record)
    job.record = record


def report(jobs: list[Job]) -> None:
    """Print the tables, and every failure."""
    done = [job for job in jobs if job.record is not None]
    for each in dict.fromkeys(job.scenario.name for job in done):
        own = [job for job in done if job.scenario.name == each]
        records = [job.record for job in own if job.record is not None]
        headings, lines = runtable.rows(records, own[0].scenario.show)
        print(runtable.text(f"{each}: {own[0].scenario.title}", headings, lines))
        for table in runtable.phases(records) + runtable.ratios(records):
            print(table)
    wrong = runtable.failures(job.record for job in done if job.record is not None)
    if wrong:
        print()
    for line in wrong:
        print(line)
    if done:
        print(f"\nruns are in {done[0].folder.parents[2]}")


class Progress(Protocol):
    """Shows how far it is."""

    def begin(self, job: Job) -> None:
        """A run begins."""

    def stage(self, job: Job, what: str) -> None:
        """It has come to a stage."""

    def end(self, job: Job, seconds: float) -> None:
        """It is over."""


class Estimate:
    """The time that is left: what was guessed for the runs to come, times how wrong the guesses have been."""

    def __init__(self, jobs: list[Job]) -> None:
        self.left = sum(job.guess() for job in jobs)
        self._guessed = self._taken = 0.0

    def end(self, job: Job, seconds: float) -> None:
        """A run has taken so long."""
        self.left -= job.guess()
        self._guessed += job.guess()
        self._taken += seconds

    def seconds(self) -> float:
        """s that are left."""
        return self.left * (self._taken / self._guessed if self._guessed else 1.0)

    def __str__(self) -> str:
        minutes, seconds = divmod(int(self.seconds()), 60)
        return f"{minutes}:{seconds:02d} left"


class Lines(AbstractContextManager["Lines"]):
    """Progress as one line for each run."""

    def __init__(self, jobs: list[Job]) -> None:
        self._estimate, self._count, self._done = Estimate(jobs), len(jobs), 0

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, job: Job) -> None:
        """Nothing to say yet."""

    def stage(self, job: Job, what: str) -> None:
        """Too much for lines."""

    def end(self, job: Job, seconds: float) -> None:
        """Say what came of it."""
        self._done += 1
        self._estimate.end(job, seconds)
        state = job.record["status"] if job.record else "failed"
        print(f"[{self._done}/{self._count}] {job.name}: {state}, {seconds:.1f} s; {self._estimate}", file=sys.stderr, flush=True)


class Bars(AbstractContextManager["Bars"]):
    """Progress as rich's bars, with the run that is being made."""

    def __init__(self, jobs: list[Job]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"))
        # No thread of its own: runs are forked from this process.
        self._bars = Progress(*columns, console=Console(stderr=True), auto_refresh=False)
        self._estimate = Estimate(jobs)
        self._task = self._bars.add_task("runs", total=len(jobs), left=str(self._estimate))
        self._failed = 0

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def begin(self, job: Job) -> None:
        """Show its name."""
        self._bars.update(self._task, description=job.name, refresh=True)

    def stage(self, job: Job, what: str) -> None:
        """Show the stage."""
        self._bars.update(self._task, description=f"{job.name}: {what}", refresh=True)

    def end(self, job: Job, seconds: float) -> None:
        """One more; what went wrong stays to be read."""
        self._estimate.end(job, seconds)
        self._bars.update(self._task, advance=1, left=str(self._estimate), refresh=True)
        if job.record is not None and job.record["status"] == rundir.FAILED:
            self._bars.console.print(f"{job.name}: {'; '.join(job.record['failures'])}", markup=False, highlight=False)


def progress(jobs: list[Job]) -> Lines | Bars:
    """Bars for a terminal where rich is installed, else lines."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with suppress(ImportError):
            return Bars(jobs)
    return Lines(jobs)
