"""`mqttree bench list` and `mqttree bench run`: which scenarios there are, and carrying them out,
one run after the other."""

from __future__ import annotations

import argparse
import math
import multiprocessing
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mqttree.bench.lab import foreign
from mqttree.bench.lab.brokers import KINDS, PATIENCE
from mqttree.bench.lab.lab import resolved
from mqttree.bench.lab.namespaces import unsupported
from mqttree.bench.runner import one_run, run_folder
from mqttree.bench.scenarios import federator_tables, run_table, scenario
from mqttree.bench.scenarios.scenario import FORMS, PARAMETERS, Cell, Scenario
from mqttree.broker.config.yaml_file import ConfigError

OVERHEAD = 7.0
"""s that a run takes besides its load, until it is known better."""
PAPER_START = 19.5
"""s that brokers with the papers' timers take for their tree (Overlays, table 2)."""
LIMIT = 180.0
"""s beyond the load, and what is waited for by its parameters, after which a run that does not end
is ended."""
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

    def seed(self, arguments: argparse.Namespace) -> int:
        """Of all that is drawn in it."""
        return int(arguments.seed) * 1000 + self.repetition

    def guess(self) -> float:
        """s that it will take, by what is known beforehand."""
        return guess(self.cell)


def listing() -> int:
    """Print the scenarios; 1 if one cannot be read."""
    heads = " ".join(f"{form:>11}" for form in FORMS)
    print(f"{'scenario':21} {'paper':9} {heads}  title")
    code = 0
    of_papers = dict.fromkeys(FORMS, 0.0)
    for name in scenario.shipped():
        try:
            forms = {form: scenario.load(name, form) for form in FORMS}
        except ValueError as error:
            print(f"mqttree bench: {error}", file=sys.stderr)
            code = 1
            continue
        times = {form: duration(each) for form, each in forms.items()}
        words = " ".join(f"{forms[form].runs:4} {clock(times[form]):>6}" for form in FORMS)
        full = forms["full"]
        print(f"{name:21} {full.paper:9} {words}  {full.title}")
        if full.paper:
            of_papers = {form: of_papers[form] + times[form] for form in FORMS}
    words = " ".join(f"{'':4} {clock(seconds):>6}" for seconds in of_papers.values())
    print(f"{'papers':21} {'':9} {words}  all scenarios with a paper")
    print("\nruns and h:mm of each form, as guessed beforehand: full, --medium, --short")
    return code


def duration(of: Scenario) -> float:
    """Return s that all runs of a scenario will take, by what is known beforehand."""
    return sum(of.times(cell) * guess(cell) for cell in of.cells)


def clock(seconds: float) -> str:
    """Return a duration as hours and minutes, rounded up to a minute."""
    minutes = math.ceil(seconds / 60)
    return f"{minutes // 60}:{minutes % 60:02d}"


def guess(cell: Cell) -> float:
    """Return s that a run of a cell will take, by what is known beforehand."""
    # With the papers' timers it takes a while until there is a tree.
    slow = PAPER_START if KINDS[cell.main.broker].patience > PATIENCE else 0.0
    return OVERHEAD + slow + cell.duration() + cell.main.settle


def main(arguments: argparse.Namespace) -> int:
    """Carry out `run`; 0: all went well or is not available, 1: something failed or was lost, 130:
    interrupted.

    Raises ValueError, in one line, for bad input.
    """
    with foreign.known(foreign.kinds(arguments.add, arguments.config)):
        return _main(arguments)


def _main(arguments: argparse.Namespace) -> int:
    jobs = plan(arguments)
    if arguments.lab == "namespaces" and (reason := unsupported()):
        raise ValueError(f"--lab namespaces: {reason}")
    out = jobs[0].folder.parents[2]
    with run_folder.claimed(out):
        if not _look(jobs, arguments):
            raise ValueError(f"{out} has runs already: --resume, or another --out")
        interrupted = _carry_out(jobs, arguments)
    report(jobs)
    if interrupted:
        return 130
    return 0 if all(job.record is not None and _fine(job.record) for job in jobs) else 1


def _fine(record: dict[str, Any]) -> bool:
    """Whether a run went well; what another broker under test loses is its business, and is in the
    table."""
    if record["status"] == run_folder.COMPLETE:
        return not record["findings"] or KINDS[record["broker"]].program != "mqttree"
    return bool(record["status"] == run_folder.NOT_AVAILABLE)


def form_of(arguments: argparse.Namespace) -> str:
    """Return which form of the scenarios is asked for. ValueError in one line."""
    medium = bool(arguments.medium)
    if medium and arguments.short:
        raise ValueError("--short and --medium are two forms: one of them")
    return "medium" if medium else "short" if arguments.short else "full"


def chosen(names: list[str], form: str, added: Sequence[str] = ()) -> list[Scenario]:
    """The scenarios meant by `names`: their own, a paper's, "papers", "all", or files; in a `form`,
    with the brokers that were `added`. Raises ValueError in one line."""
    known = {name.lower(): name for name in scenario.PAPERS if name}
    found: dict[str, Scenario] = {}
    files: dict[str, Path] = {}
    for name in names:
        if name in ("all", "papers") or name.lower() in known:
            every = [scenario.load(each, form) for each in scenario.shipped()]
            own = [
                s
                for s in every
                if name == "all"
                or (s.paper if name == "papers" else s.paper == known[name.lower()])
            ]
            more = [_with_added(each, form, added) for each in own] if added else own
            wanted = [(each, scenario.path_of(each.name)) for each in more]
        else:
            wanted = [(scenario.load(name, form, added), scenario.path_of(name))]
        for each, path in wanted:
            if not path.samefile(files.setdefault(each.name, path)):
                raise ValueError(
                    f"{files[each.name]} and {path} are both called {each.name!r}, "
                    "and so would be their folders"
                )
            found[each.name] = each
    return list(found.values())


def _with_added(one: Scenario, form: str, added: Sequence[str]) -> Scenario:
    """Return one of many scenarios with the brokers that were added, or as it is, and say why, if
    it takes none."""
    try:
        return scenario.load(one.name, form, added)
    except ConfigError as error:
        print(f"mqttree bench: {error}; it runs without them", file=sys.stderr)
        return one


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
    added = [text.partition("=")[0] for text in arguments.add]
    scenarios = chosen(arguments.name, form_of(arguments), added)
    _check_only(only, [cell for each in scenarios for cell in each.cells])
    for each in scenarios:
        for cell in each.cells:
            if not all(spellings(cell, key) & values for key, values in only.items()):
                continue
            for repetition in range(1, (arguments.repeat or each.times(cell)) + 1):
                jobs.append(
                    Job(each, cell, repetition, out / each.name / cell.name / f"r{repetition}")
                )
    if not jobs:
        raise ValueError("no run is left by --only")
    return in_turn(jobs) if arguments.in_turn else jobs


def in_turn(jobs: list[Job]) -> list[Job]:
    """Return `jobs` in rounds: one repetition of each cell, then the next one in the opposite order
    (A B B A), so that what drifts on the machine does not favour a cell."""
    rounds: dict[int, list[Job]] = {}
    for job in jobs:
        rounds.setdefault(job.repetition, []).append(job)
    return [
        job
        for number, each in sorted(rounds.items())
        for job in (each if number % 2 else each[::-1])
    ]


def spellings(cell: Cell, key: str) -> set[str]:
    """How a factor's or parameter's value may be written: as the table and the folder show it, or
    as in a file."""
    value = cell.factors.get(key, getattr(cell.main, key) if key in PARAMETERS else None)
    return {str(value), scenario.short(value), str(value).lower()} if value is not None else set()


def _check_only(only: dict[str, set[str]], cells: list[Cell]) -> None:
    for key, values in only.items():
        there = [spellings(cell, key) for cell in cells]
        for value in sorted(values):
            if not any(there):
                known = dict.fromkeys(name for cell in cells for name in cell.factors)
                raise ValueError(
                    f"--only {key}={value}: unknown factor {key!r}: "
                    f"one of {', '.join(known) or 'none'}"
                )
            if not any(value in each for each in there):
                shown = dict.fromkeys(
                    scenario.short(cell.factors.get(key, getattr(cell.main, key, "")))
                    for cell, each in zip(cells, there, strict=True)
                    if each
                )
                raise ValueError(f"--only {key}={value}: {key} is one of {', '.join(shown)}")


def _look(jobs: list[Job], arguments: argparse.Namespace) -> bool:
    """Fill in what is finished; False if there are runs in the way."""
    ways: dict[bool, str] = {}
    commit = run_folder.commit()[0]
    for job in jobs:
        if not arguments.resume:
            if run_folder.taken(job.folder):
                return False
            continue
        record = run_folder.read(job.folder)
        if record is None or record.get("status") != run_folder.COMPLETE:
            continue
        network = job.cell.topology.network
        if network not in ways:
            ways[network] = resolved(job.cell.topology, arguments.lab)[0]
        same = (
            run_folder.SCHEMA,
            job.cell.fingerprint(),
            job.seed(arguments),
            ways[network],
            commit,
        )
        if tuple(map(record.get, ("schema", "fingerprint", "seed", "lab", "commit"))) == same:
            job.record = record
    return True


def _carry_out(jobs: list[Job], arguments: argparse.Namespace) -> bool:
    left = [job for job in jobs if job.record is None]
    if len(left) < len(jobs):
        print(f"{len(jobs) - len(left)} of {len(jobs)} runs are finished already", file=sys.stderr)
    common = run_folder.description()
    progress = Progress(left)
    for job in left:
        progress.begin(job)
        began = time.monotonic()
        try:
            carry_out(job, arguments, common)
        except KeyboardInterrupt:
            return True
        except OSError as error:  # nothing can be written any more
            _failed(job, run_folder.unwritable(error))
            return False
        finally:
            progress.end(job, time.monotonic() - began)
    return False


def carry_out(job: Job, arguments: argparse.Namespace, common: dict[str, Any]) -> None:
    """Make one run, `job`, in a process of its own, and read what came of it. `arguments` are the
    command line's, `common` is what all records have.

    Raises OSError when its folder cannot be written, KeyboardInterrupt once an interrupted run has
    ended.
    """
    cell = job.cell
    record = _record(job, arguments, common)
    job.record = record
    run_folder.fresh(job.folder)
    ours, theirs = _fork.Pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    process = _fork.Process(
        target=one_run.run, args=(cell, job.folder, record, arguments.lab, theirs), name="run"
    )
    process.start()
    theirs.close()
    patience = cell.besides() + LIMIT
    end = time.monotonic() + cell.duration() + patience
    interrupted = False
    reason = ""
    while process.is_alive():
        try:
            if ours.poll(0.2):
                reason = ours.recv()
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
            reason = f"the run did not end {patience:g} s after its load"
            process.terminate()
            process.join(15)
            process.kill()
    process.join()
    with suppress(EOFError):
        while ours.poll(0):
            reason = ours.recv()
    _conclude(job, process.exitcode, reason)
    if interrupted:
        raise KeyboardInterrupt


def _record(job: Job, arguments: argparse.Namespace, common: dict[str, Any]) -> dict[str, Any]:
    """What is noted about a run when it begins."""
    cell = job.cell
    kind = KINDS[cell.main.broker]
    foreign_one = (
        {"broker_command": kind.command, "broker_config": kind.config} if kind.command else {}
    )
    return {
        **common,
        **foreign_one,
        "run": run_folder.new_id(),
        "scenario": job.scenario.name,
        "title": job.scenario.title,
        "paper": job.scenario.paper,
        "cell": cell.factors,
        "repetition": job.repetition,
        "seed": job.seed(arguments),
        "form": form_of(arguments),
        "host": run_folder.HOST,
        "on": [],
        "broker": cell.main.broker,
        "routing": kind.routing,
        "parameters": cell.as_dict(),
        "fingerprint": cell.fingerprint(),
        "topology": cell.topology.as_dict(),
        "figure": job.scenario.figure,
        "asked": list(job.scenario.asked),
        "began": time.time(),
        "ended": None,
        "status": run_folder.RUNNING,
        "failures": [],
        "findings": [],
        "wall_minus_monotonic_ns": time.time_ns() - time.monotonic_ns(),
        "summary": {},
        "processes": [],
    }


def _conclude(job: Job, code: int | None, reason: str) -> None:
    record = job.record = run_folder.read(job.folder) or job.record
    assert record is not None
    if record["status"] == run_folder.RUNNING or reason:
        how = (
            f"was killed by {signal.Signals(-code).name}"
            if code is not None and code < 0
            else f"ended with code {code}"
        )
        _failed(job, reason or f"the run's process {how}")
        run_folder.write(job.folder, record)


def _failed(job: Job, reason: str) -> None:
    assert job.record is not None
    job.record["status"] = run_folder.FAILED
    if reason not in job.record["failures"]:
        job.record["failures"].append(reason)
    job.record["ended"] = time.time()


def report(jobs: list[Job]) -> None:
    """Print the tables, and every failure."""
    done = [job for job in jobs if job.record is not None]
    said = []
    for each in dict.fromkeys(job.scenario.name for job in done):
        own = [job for job in done if job.scenario.name == each]
        records = [job.record for job in own if job.record is not None]
        headings, lines = run_table.rows(records, own[0].scenario.show)
        print(run_table.text(f"{each}: {own[0].scenario.title}", headings, lines))
        for table in run_table.phases(records) + run_table.ratios(records):
            print(table)
        for found in federator_tables.tables(records):
            print(run_table.text(found.title, found.headings, found.lines))
            print("", *(f"* {remark}" for remark in found.remarks), sep="\n")
        said += run_table.failures(records) + run_table.remarks(records, own[0].scenario.show)
    out = jobs[0].folder.parents[2]
    undone = [
        job for job in jobs if job.record is None or job.record["status"] == run_folder.INTERRUPTED
    ]
    if undone:
        names = undone[0].name if len(undone) == 1 else f"{undone[0].name} to {undone[-1].name}"
        said.append(
            f"{len(undone)} of {len(jobs)} runs were not made ({names}): "
            f"the same with --out {out} --resume makes them"
        )
    if said:
        print()
    for line in said:
        print(line)
    if done:
        print(f"\nruns are in {out}")


class Estimate:
    """The time that is left: what was guessed for the runs to come, times how wrong the guesses
    have been."""

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


class Progress:
    """A line for each run: on a terminal when it begins, and everywhere what came of it, with the
    time that is left."""

    def __init__(self, jobs: list[Job]) -> None:
        """`jobs` are the runs to come."""
        self._estimate, self._count, self._done = Estimate(jobs), len(jobs), 0

    def begin(self, job: Job) -> None:
        """Say which run begins, on a terminal."""
        self._done += 1
        if sys.stderr.isatty():
            self._say(f"{job.name}: {self._estimate}")

    def end(self, job: Job, seconds: float) -> None:
        """Say what came of it."""
        self._estimate.end(job, seconds)
        state = job.record["status"] if job.record else "failed"
        self._say(f"{job.name}: {state}, {seconds:.1f} s; {self._estimate}")

    def _say(self, text: str) -> None:
        print(f"[{self._done}/{self._count}] {text}", file=sys.stderr, flush=True)
