"""Fuzz: `python -m tests.fuzz [--seconds N] [--seed N] [--engine own|atheris] [--keep] [--replay
FILE] [target ...]`.

The seconds are shared by the targets. A fault is shrunk, shown with its traceback and written to
`--found`; exit code 1 then. `--engine atheris` needs `pip install atheris` (Linux, x86-64).
`--keep` adds what reached new lines to the corpus.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.fuzz.engine import CORPUS, LARGEST, Search, fault_of, kept, place, shrunk
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS


def main(argv: list[str] | None = None) -> int:
    """Run, tell, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "targets", nargs="*", choices=[*TARGETS, []], help=f"of {', '.join(TARGETS)}; all without"
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="default: the time")
    parser.add_argument("--engine", choices=("own", "atheris"), default="own")
    parser.add_argument("--keep", action="store_true", help="add to the corpus")
    parser.add_argument("--empty", action="store_true", help="begin with the seeds alone")
    parser.add_argument("--replay", type=Path, help="play this input alone")
    parser.add_argument(
        "--found",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="folder for inputs that show faults",
    )
    arguments = parser.parse_args(argv)
    names = arguments.targets or list(TARGETS)
    if arguments.replay:
        TARGETS[names[0]](arguments.replay.read_bytes())
        return 0
    seed = arguments.seed if arguments.seed is not None else int(time.time())
    seconds = arguments.seconds / len(names)
    bad = 0
    for name in names:
        if arguments.engine == "atheris":
            bad += atheris(name, seconds, seed, empty=arguments.empty)
        else:
            bad += own(name, seconds, seed, arguments)
    return 1 if bad else 0


def own(name: str, seconds: float, seed: int, arguments: argparse.Namespace) -> int:
    """Search by the engine of this folder; returns the number of faults."""
    target = TARGETS[name]
    search = Search(target, seeds(name) if arguments.empty else seeds(name) + kept(name), seed)
    search.run(seconds)
    print(
        f"{name}: {search.runs} inputs, seed {seed}, {len(search.coverage.seen)} pairs of lines, "
        f"{len(search.new)} inputs went where none went before, {len(search.faults)} faults",
        flush=True,
    )
    for where, (data, _) in search.faults.items():

        def same(candidate: bytes, where: tuple[str, str, int] = where) -> bool:
            error = fault_of(target, candidate)
            return error is not None and place(error) == where

        data = shrunk(data, same)
        path = arguments.found / f"mqttree-fuzz-{name}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
        path.write_bytes(data)
        print(
            f"\n{name}: {len(data)} bytes, again with: python -m tests.fuzz {name} "
            f"--replay {path}\n{data!r}"
        )
        error = fault_of(target, data)
        if error is not None:
            traceback.print_exception(error, limit=-8)
    if arguments.keep:
        keep(name, search)
    return len(search.faults)


def keep(name: str, search: Search) -> None:
    """Write the smallest corpus that goes where all went."""
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    chosen = search.minimal()
    for path in folder.glob("*.bin"):
        path.unlink()
    for data in chosen:
        (folder / f"{hashlib.sha256(data).hexdigest()[:12]}.bin").write_bytes(data)
    print(f"{name}: {len(chosen)} inputs kept, {sum(map(len, chosen))} bytes")


ATHERIS = """
import sys
import atheris
with atheris.instrument_imports(include=["broker", "stp", "discovery", "routing"]):
    from tests.fuzz.targets import TARGETS
atheris.Setup(sys.argv, TARGETS[{name!r}])
atheris.Fuzz()
"""


def atheris(name: str, seconds: float, seed: int, *, empty: bool) -> int:
    """Search by libFuzzer, in a process of its own; returns 1 when it stopped at a fault."""
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(seeds(name)):
            (Path(folder) / str(number)).write_bytes(data)
        corpora = [folder] if empty else [folder, str(CORPUS / name)]
        flags = [
            f"-max_total_time={int(seconds)}",
            f"-max_len={LARGEST}",
            f"-seed={seed}",
            "-print_final_stats=1",
        ]
        flags.append(f"-artifact_prefix={tempfile.gettempdir()}/mqttree-fuzz-{name}-")
        done = subprocess.run(
            [sys.executable, "-c", ATHERIS.format(name=name), *flags, *corpora], check=False
        )
    return int(done.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
