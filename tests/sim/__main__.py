"""Run schedules: `python -m tests.sim --seeds N [--first K] [--step K] [--kind KIND] [--brokers N]
[--jobs 2] [-v]`; exit 1 on a violation. A seed draws its kind: three of four are plain schedules
(schedule.py), the others put brokers under load (strains.py). `--kind legs` are federations with
legs to foreign brokers (legs.py), of which some are rings and chains, and some have two gateways of
one name (leg_rings.py); `--kind srt` and `--kind ort` are federations that route as in the papers
(srt.py, ort.py); `--kind outages` are long outages with restarts, and kills while sessions move
(outages.py); `--kind devices` are devices with retained wills that move (devices.py);
`--kind standbys` are brokers with standbys (standbys.py).

A seed is the same run every time, on every machine and with a compiled core: the digest that is
printed last, of all that was said and sent in all runs, is the same. Strings are hashed alike in
each process for that; PYTHONHASHSEED in the environment has precedence."""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing import get_context

from tests.sim.devices import run_devices
from tests.sim.leg_rings import run_any
from tests.sim.ort import run_ort
from tests.sim.outages import run_outage
from tests.sim.schedule import Result, run_seed
from tests.sim.srt import run_srt
from tests.sim.standbys import run_standbys
from tests.sim.strains import run_strain

STRAINED = 0.25
"""of the seeds."""


def play(seed: int, kind: str = "", brokers: int | None = None, verbose: int = 0) -> Result:
    """Run the schedule of a seed, of the kind that it draws or that is given."""
    if kind == "legs":
        return run_any(seed, verbose)
    if kind == "srt":
        return run_srt(seed, brokers, verbose)
    if kind == "ort":
        return run_ort(seed, brokers, verbose)
    if kind == "outages":
        return run_outage(seed, verbose)
    if kind == "devices":
        return run_devices(seed, verbose)
    if kind == "standbys":
        return run_standbys(seed, verbose)
    strained = kind == "strained" or (
        not kind and brokers is None and random.Random(f"{seed} kind").random() < STRAINED
    )
    return run_strain(seed, verbose) if strained else run_seed(seed, brokers, verbose)


def results(arguments: argparse.Namespace) -> Iterator[Result]:
    """Run the seeds, in processes when there are several."""
    seeds = range(
        arguments.first, arguments.first + arguments.seeds * arguments.step, arguments.step
    )
    work = [(seed, arguments.kind, arguments.brokers, arguments.verbose) for seed in seeds]
    if arguments.jobs == 1 or len(work) == 1:
        for item in work:
            yield play(*item)
        return
    with get_context("fork").Pool(arguments.jobs) as pool:
        yield from pool.imap_unordered(_run, work, chunksize=1)


def _run(item: tuple[int, str, int | None, int]) -> Result:
    result = play(*item)
    result.transcript = []
    return result


def digest(found: dict[int, str]) -> str:
    """Return one digest of those that schedules have. `found`: theirs, by seed."""
    lines = "".join(f"{seed} {found[seed]}\n" for seed in sorted(found))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def hash_alike() -> None:
    """Start this process once more with hashes of strings that are always the same, unless the
    environment says which ones it wants."""
    if os.environ.get("PYTHONHASHSEED", "random") == "random":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument(
        "--step",
        type=int,
        default=1,
        help="between seeds: 2 from an odd one on is routing by interest",
    )
    parser.add_argument("--brokers", type=int, default=None)
    parser.add_argument(
        "--kind",
        choices=("", "plain", "strained", "legs", "srt", "ort", "outages", "devices", "standbys"),
        default="",
        help="of all seeds, not the one that each draws",
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="print the transcript; twice: debug lines too",
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run, tell, and return the exit code."""
    arguments = options().parse_args(argv)
    began = time.perf_counter()
    kinds: Counter[str] = Counter()
    routings: Counter[str] = Counter()
    violations = 0
    totals: Counter[str] = Counter()
    bad: list[int] = []
    converge: list[float] = []
    virtual = 0.0
    digests: dict[int, str] = {}
    for number, result in enumerate(results(arguments), 1):
        totals.update(
            events=result.events,
            messages=result.messages,
            deliveries=result.deliveries,
            brokers=result.brokers,
        )
        totals.update(result.counters)
        routings[result.routing] += 1
        digests[result.seed] = result.digest
        violations += len(result.violations)
        virtual += result.virtual * result.brokers
        converge.append(result.converge)
        if result.violations:
            bad.append(result.seed)
            kinds.update({kind for kind, _ in result.violations})
            print(
                f"seed {result.seed}: {len(result.violations)} violations "
                f"({result.brokers} brokers)"
            )
            for kind, text in result.violations[:3]:
                print(f"    {kind}: {text}")
            sys.stdout.flush()
        if number % 100 == 0:
            print(
                f"{number} schedules, {len(bad)} bad, {time.perf_counter() - began:.0f} s",
                flush=True,
            )
    converge.sort()
    print(
        f"{len(converge)} schedules from seed {arguments.first}: {len(bad)} bad; "
        f"{totals['brokers']} brokers, {totals['messages']} messages, "
        f"{totals['deliveries']} deliveries, {totals['events']} events, "
        f"{time.perf_counter() - began:.1f} s"
    )
    print(
        f"agreed after healing, virtual s: median {converge[len(converge) // 2]:.2f}, longest "
        f"{converge[-1]:.2f}; signalling {totals['link_bytes_control'] / max(virtual, 1e-9):.0f} "
        f"bytes/s for each broker; replayed {totals['replayed']}, "
        f"duplicates {totals['duplicates']}, topology changes {totals['topology_changes']}"
    )
    for kind, count in kinds.most_common():
        print(f"  {kind}: {count} schedules")
    if bad:
        print(
            f"again with: python -m tests.sim --first {bad[0]} --seeds 1 -v   "
            f"(bad seeds: {sorted(bad)[:40]})"
        )
    shares = ", ".join(f"{count} {name}" for name, count in sorted(routings.items()))
    print(f"{len(converge)} schedules ({shares}): {violations} violations")
    print(f"digest {digest(digests)}")
    return 1 if bad else 0


if __name__ == "__main__":
    hash_alike()
    sys.exit(main())
