"""What tracing costs the process that does it: `mqttree bench overhead`."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from mqttree.bench import checked
from mqttree.bench.trace.writer import Writer
from mqttree.broker.cli.command_line import Parser

_STEP = 0.002  # s between two bursts of the paced loop


def spent(rate: int, seconds: float, writer: Writer | None) -> float:
    """Return the CPU seconds (all threads) of a process that for so many `seconds` has `rate`
    events a second, and notes them with `writer` (None: it does not)."""
    events, sequence, clients = 0, 0, [f"s{number:03d}" for number in range(50)]
    topics = [f"load/{number}" for number in range(50)]
    began, before = time.monotonic(), time.process_time()
    while (now := time.monotonic()) - began < seconds:
        due = int((now - began) * rate)
        while events < due:  # one message, one subscriber: published, accepted, delivered
            at = time.monotonic_ns()
            which = sequence % 50
            if writer is not None:
                writer.published(at, which, sequence, clients[which], "b1", topics[which], 1, 64)
                writer.accepted(at, which, sequence, clients[which], "b1")
                writer.delivered(
                    at, which, sequence, clients[which], "b2", topics[which], 1, 64, False
                )
            events, sequence = events + 3, sequence + 1
        if writer is not None:
            writer.tick()
        time.sleep(_STEP)
    return time.process_time() - before


def main(argv: Sequence[str]) -> int:
    """Print one line for each round and the median."""
    parser = Parser(prog="mqttree bench overhead", description=__doc__)
    rate = partial(checked.count, most=10**9)
    parser.add_argument(
        "--rate", type=rate, default=50_000, metavar="N", help="events a second (50,000)"
    )
    parser.add_argument(
        "--seconds", type=checked.seconds, default=5.0, metavar="S", help="time of a run (5 s)"
    )
    parser.add_argument(
        "--rounds",
        type=checked.count,
        default=3,
        metavar="N",
        help="runs with and without, in turn (3)",
    )
    options = parser.parse_args(argv)
    shares = []
    spent(options.rate, 0.2, None)
    with tempfile.TemporaryDirectory() as folder:
        before = time.process_time()
        with Writer(Path(folder), run="first", scenario="overhead", process="overhead") as writer:
            writer.note(0, "the libraries' first use")
        print(
            f"first use in a process: {time.process_time() - before:.3f} s of CPU, once", flush=True
        )
    for number in range(options.rounds):
        without = spent(options.rate, options.seconds, None)
        with tempfile.TemporaryDirectory() as folder:
            before = time.process_time()
            with Writer(
                Path(folder), run="overhead", scenario="overhead", process="overhead"
            ) as writer:
                spent(options.rate, options.seconds, writer)
            inside = time.process_time() - before  # what it does at the end, too
            size = sum(path.stat().st_size for path in Path(folder).rglob("*.parquet"))
            rows, held = writer.rows, writer.held_ns / 1e6
        shares.append((inside - without) / options.seconds)
        print(
            f"round {number + 1}: {rows:,} events, "
            f"CPU {without:.3f} s without, {inside:.3f} s with a trace: "
            f"{shares[-1]:.1%} of a core, {(inside - without) / rows * 1e9:.0f} ns "
            f"and {size / rows:.1f} bytes an event, held {held:.1f} ms",
            flush=True,
        )
    print(
        f"tracing {options.rate:,} events/s costs {statistics.median(shares):.1%} of a core "
        f"(median of {options.rounds})"
    )
    return 0
