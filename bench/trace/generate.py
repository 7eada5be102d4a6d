"""Makes runs with as many trace rows as wanted: `mqttree bench generate DIR --rows N`."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mqttree.bench.trace import Writer
from mqttree.broker.cli.command_line import Parser

BROKERS = ("b0", "b1", "b2", "b3", "b4")
PUBLISHERS = 100
MIN_ROWS = 1000
STEP_NS = 20_000  # between two messages of all publishers: 50,000 a second


@dataclass(frozen=True)
class Made:
    """What is in a run that was made: every figure that the tables should find again."""

    rows: int
    published: int
    expected: int
    lost: int
    duplicates: int


def make(folder: Path, rows: int, seed: int = 1, run: str = "made", subscribers: int = 2) -> Made:
    """Write the run `run` with about `rows` trace rows into `folder`, drawn by `seed`: each message
    is published, accepted, and delivered to the `subscribers` of its topic.

    One delivery of 10,000 is lost, one of 10,000 doubled. Raises ValueError for fewer rows than
    there are subscriptions.
    """
    if rows < MIN_ROWS:
        raise ValueError(f"at least {MIN_ROWS:,} rows")
    rng = random.Random(seed)
    count = (rows - PUBLISHERS * subscribers) // (2 + subscribers)
    # 1 ms at the median; a prime number of them, so that nothing repeats together.
    delays = [int(rng.lognormvariate(0, 0.5) * 1e6) for _ in range(9973)]
    zero = time.monotonic_ns()
    lost = duplicates = written = 0
    names = [
        [f"s{publisher:03d}-{which}" for which in range(subscribers)]
        for publisher in range(PUBLISHERS)
    ]
    with (
        Writer(
            folder / "trace", run=run, scenario="generated", process="publishers", rotate_s=60
        ) as out,
        Writer(
            folder / "trace", run=run, scenario="generated", process="subscribers", rotate_s=60
        ) as into,
    ):
        for publisher in range(PUBLISHERS):
            for name in names[publisher]:
                into.subscribed(zero, name, BROKERS[publisher % 5], f"topic/{publisher}", 1)
        for index in range(count):
            publisher, sequence = index % PUBLISHERS, index // PUBLISHERS
            at = zero + 1000 + index * STEP_NS
            broker, topic = BROKERS[publisher % 5], f"topic/{publisher}"
            out.published(at, publisher, sequence, f"p{publisher:03d}", broker, topic, 1, 64)
            out.accepted(
                at + delays[index % 9973] // 2, publisher, sequence, f"p{publisher:03d}", broker
            )
            for which, name in enumerate(names[publisher]):
                place = index * subscribers + which
                if place % 10_000 == 5000:
                    lost += 1
                    continue
                target = BROKERS[(publisher + which) % 5]
                into.delivered(
                    at + delays[place % 9973], publisher, sequence, name, target, topic, 1, 64
                )
                if place % 10_000 == 7777:
                    duplicates += 1
                    into.delivered(
                        at + delays[place % 9973],
                        publisher,
                        sequence,
                        name,
                        target,
                        topic,
                        1,
                        64,
                        True,
                    )
            if index % 10_000 == 0:
                out.tick()
                into.tick()
        into.agreed(zero, len(BROKERS), "b0")
    written = out.rows + into.rows
    about = _about(run, rows, seed, zero, count)
    (folder / "run.json").write_text(json.dumps(about, indent=1))
    return Made(written, count, count * subscribers, lost, duplicates)


def _about(run: str, rows: int, seed: int, zero: int, count: int) -> dict[str, Any]:
    """What is noted about the run."""
    return {
        "schema": 1,
        "run": run,
        "scenario": "generated",
        "title": "generated rows",
        "cell": {"rows": rows},
        "repetition": 1,
        "seed": seed,
        "broker": "none",
        "routing": "flood",
        "status": "complete",
        "failures": [],
        "measure_from_ns": zero,
        "measure_to_ns": zero + 2000 + count * STEP_NS,
        "topology": {"brokers": list(BROKERS)},
        "command": ["mqttree", "bench", "generate", "--rows", str(rows), "--seed", str(seed)],
    }


def main(argv: Sequence[str]) -> int:
    """Make one run."""
    parser = Parser(prog="mqttree bench generate", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument(
        "--rows", type=int, default=1_000_000, metavar="N", help="trace rows (1,000,000)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    options = parser.parse_args(argv)
    try:
        began = time.monotonic()
        made = make(options.folder, options.rows, options.seed)
    except ValueError as error:
        print(f"mqttree bench generate: {error}", file=sys.stderr)
        return 2
    print(f"{made.rows:,} rows in {time.monotonic() - began:.1f} s: {made}")
    return 0
