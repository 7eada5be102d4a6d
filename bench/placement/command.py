"""`mqttree bench placement`: `place` places a workload, `figures` makes the page with the paper's
figures, `drift` changes rates, `scaling` runs brokers."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mqttree.bench import checked
from mqttree.bench.model import traffic
from mqttree.bench.model.state import MAX_BROKERS
from mqttree.bench.placement import (
    averages,
    controller_speed,
    drift,
    grid,
    page,
    scaling_command,
    speed,
    takeover,
)
from mqttree.bench.placement.grid import Case
from mqttree.bench.workloads import named, simulator, workload, workload_file
from mqttree.broker.cli.command_line import Parser

MAX_BYTES = 1 << 30
MAX_DRAWN = 1_000_000

KINDS = ("social", "uniform", "tree", "graph")
"""Workloads that can be drawn."""

Commands = Any
"""argparse's private type of what `add_subparsers` returns."""


def main(argv: Sequence[str]) -> int:
    """Carry out the command; 0: done. Raises ValueError for bad input, in one line.

    `argv`: its words.
    """
    arguments = _parser().parse_args(argv)
    return int(arguments.handler(arguments))


def _gamma(text: str) -> float:
    value = checked.positive(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="mqttree bench placement",
        description="Where clients should connect, computed and measured.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _draw_arguments(commands)
    _place_arguments(commands)
    _figures_arguments(commands)
    _speed_arguments(commands)
    scaling_command.add_arguments(commands)
    controller_speed.add_arguments(commands)
    takeover.add_arguments(commands)
    drift.add_arguments(commands)
    return parser


def _draw_arguments(commands: Commands) -> None:
    draw = commands.add_parser("draw", help="print a workload of the paper's kinds")
    draw.add_argument("kind", choices=KINDS, help="who wants which topics")
    checked.add_counts(
        draw,
        (
            ("subscribers", 1000, MAX_DRAWN, "how many; of a graph the users"),
            ("topics", 1000, MAX_DRAWN, "how many, unless they are a tree, or users of a graph"),
            ("each", 10, MAX_DRAWN, "topics of a subscriber, unless they are a tree"),
            ("depth", 4, 30, "levels of a topic tree"),
            ("fan", 10, MAX_DRAWN, "nodes below each node of a topic tree"),
        ),
    )
    draw.add_argument(
        "--alpha",
        type=checked.positive,
        default=1.13,
        metavar="X",
        help="shape of popularity, of a tree how often leaves are chosen (1.13)",
    )
    draw.add_argument("--rates", choices=workload.RATES, default="equal", help="(equal)")
    draw.add_argument(
        "--shape",
        type=checked.positive,
        default=1.0,
        metavar="X",
        help="of rates: deviation / mean, of zipf alpha (1)",
    )
    draw.add_argument("--seed", type=partial(checked.count, least=0), default=1, metavar="N")
    draw.set_defaults(handler=_draw)


def _draw(arguments: argparse.Namespace) -> int:
    seed, subscribers, alpha = arguments.seed, arguments.subscribers, arguments.alpha
    topics = arguments.topics
    if arguments.kind == "tree":
        nodes = [arguments.fan**level for level in range(arguments.depth)]
        topics = nodes[-1]
        if arguments.depth < 2 or topics > MAX_DRAWN:
            raise ValueError(f"a tree of {arguments.depth} levels with {topics:,} leaves")
        chances = traffic.level_chances(arguments.depth, alpha)
        work = workload.topic_tree(chances, nodes, subscribers, seed)
    elif arguments.kind == "graph":
        topics = subscribers
        work = workload.follower_graph(subscribers, arguments.each, seed)
    else:
        shape = 0.0 if arguments.kind == "uniform" else alpha
        work = workload.social(topics, subscribers, arguments.each, shape, seed)
    rates = workload.drawn_rates(arguments.rates, topics, arguments.shape, seed)
    said = {
        "name": arguments.kind,
        "about": {"ntop": topics, "nsub": subscribers, "seed": seed},
        "gamma": work.gamma,
        "nses": work.sessions,
        "rates": 1 if arguments.rates == "equal" else rates,
        "clients": work.clients,
    }
    print(json.dumps(said, separators=(",", ":")))
    return 0


def _place_arguments(commands: Commands) -> None:
    place = commands.add_parser("place", help="place the clients of a file")
    place.add_argument("file", metavar="FILE", help="a workload (docs/guides/placement.md)")
    place.add_argument(
        "--strategy",
        choices=(*simulator.NAMES, simulator.HOPS, simulator.GIVEN),
        default="load",
        help="how (load); hops: by the ways on a tree; given: as the file has placed them",
    )
    place.add_argument(
        "--brokers", type=partial(checked.count, most=MAX_BROKERS), required=True, metavar="M"
    )
    place.add_argument(
        "--network",
        choices=simulator.NETWORKS,
        default=simulator.MESH,
        help="how brokers are linked; messages follow the links of a tree (mesh)",
    )
    place.add_argument(
        "--seed",
        type=partial(checked.count, least=0),
        default=1,
        metavar="N",
        help="of what the file does not say (1)",
    )
    place.add_argument(
        "--sessions",
        type=partial(checked.count, most=MAX_BROKERS),
        metavar="N",
        help="connections of a client at most (as the file says, else 4)",
    )
    place.add_argument(
        "--gamma",
        type=_gamma,
        metavar="X",
        help="how many times its due a broker may have (as the file says, else 1.1)",
    )
    place.add_argument("--json", action="store_true", help="one JSON object")
    place.set_defaults(handler=_place)


def _figures_arguments(commands: Commands) -> None:
    figures = commands.add_parser("figures", help="the paper's figures as a page")
    figures.add_argument(
        "--out", default="placement.md", metavar="FILE", help="the page (placement.md)"
    )
    figures.add_argument(
        "--rows", metavar="FILE", help="keep the rows, as Parquet (they are removed)"
    )
    figures.add_argument(
        "--read", metavar="FILE", help="the page of rows that were kept, instead of new ones"
    )
    figures.add_argument(
        "--seeds",
        type=partial(checked.count, most=1000),
        metavar="N",
        help="draws of each point (10, in the quick form 2)",
    )
    figures.add_argument("--quick", action="store_true", help="a tenth of the workloads")
    figures.set_defaults(handler=_figures)


def _speed_arguments(commands: Commands) -> None:
    fast = commands.add_parser("speed", help="how fast clients are placed")
    checked.add_counts(
        fast,
        (
            ("clients", 1_000_000, 10**8, "clients that come one after the other"),
            ("topics", 100_000, 10**8, "topics, with one publisher each"),
            ("brokers", 8, MAX_BROKERS, "brokers"),
            ("each", 10, 10**8, "topics of a client"),
            ("sessions", 4, 10**8, "connections of a client at most"),
        ),
    )
    fast.add_argument("--alpha", type=checked.positive, default=1.13, metavar="X", help="(1.13)")
    fast.add_argument("--seed", type=partial(checked.count, least=0), default=1, metavar="N")
    fast.add_argument("--blocks", action="store_true", help="thousands at once, by numpy")
    fast.set_defaults(handler=_speed)


def _figures(arguments: argparse.Namespace) -> int:
    for file in filter(None, (arguments.out, arguments.rows)):
        # Before minutes of work.
        if Path(file).is_dir() or not Path(file).resolve().parent.is_dir():
            raise ValueError(f"{file}: no file can be written there")
    seeds = arguments.seeds or (2 if arguments.quick else 10)
    cases = grid.cases(arguments.quick)
    try:
        if arguments.read:
            rows = averages.read(Path(arguments.read))
            seeds = len({row["seed"] for row in rows})
        else:
            rows = list(_rows(cases, seeds))
        if arguments.rows:
            averages.write(rows, Path(arguments.rows))
    except OSError as error:
        file = error.filename or arguments.read or arguments.rows
        raise ValueError(f"{file}: {error.strerror or error}") from None
    found = averages.means_of(rows)
    text = "\n".join(page.page(cases, found, seeds, arguments.quick)) + "\n"
    try:
        Path(arguments.out).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{arguments.out}: {error.strerror or error}") from None
    return 0


def _speed(arguments: argparse.Namespace) -> int:
    if arguments.each >= arguments.topics:
        raise ValueError(f"a client cannot have {arguments.each} of {arguments.topics} topics")
    found = speed.measure(
        arguments.clients,
        arguments.topics,
        arguments.brokers,
        arguments.each,
        arguments.alpha,
        arguments.sessions,
        arguments.seed,
        arguments.blocks,
    )
    print(
        f"{found.clients:,} clients in {found.seconds:.2f} s of CPU time, "
        f"{found.seconds / found.clients * 1e6:.1f} us each, {found.memory / 1e6:,.0f} MB"
    )
    if found.looked_up:
        print(
            f"numbers of their topics: {found.looked_up:.2f} s of CPU time before, "
            f"{found.looked_up / found.clients * 1e6:.1f} us each"
        )
    print(
        f"one client: join p99 {found.join_p99:.1f} us, leave p99 {found.leave_p99:.1f} us of CPU "
        "time"
    )
    print(
        f"between brokers {_short(found.internal)} messages/s, Jain {found.jain:.4f}, "
        f"{found.sessions / found.clients:.2f} connections a client"
    )
    return 0


def _rows(cases: Sequence[Case], seeds: int) -> Iterator[dict[str, Any]]:
    """All rows; how far it is stands on standard error, if that is a terminal."""
    telling = sys.stderr.isatty()
    # The same draws follow each other: they are kept for a moment.
    for seed in range(1, seeds + 1):
        for number, case in enumerate(cases, 1):
            yield grid.run(case, seed)
            if telling:
                print(
                    f"\rseed {seed} of {seeds}, {number} of {len(cases)}  ", end="", file=sys.stderr
                )
    if telling:
        print(file=sys.stderr)


def _place(arguments: argparse.Namespace) -> int:
    text = named.text_of(Path(arguments.file), MAX_BYTES)
    try:
        work = workload_file.read(text)
        placed = simulator.place(
            work,
            arguments.brokers,
            arguments.strategy,
            arguments.seed,
            arguments.sessions,
            arguments.gamma,
            network=arguments.network,
        )
    except ValueError as error:
        raise ValueError(f"{arguments.file}: {error}") from None
    row = placed.row()
    if arguments.json:
        print(json.dumps({**row, "placement": placed.placement()}))
        return 0
    _print(row, placed.placement())
    return 0


def _print(row: dict[str, Any], placement: list[dict[str, list[int]]]) -> None:
    for number, client in enumerate(placement):
        where = "  ".join(
            f"{broker}: {' '.join(map(str, topics))}" for broker, topics in client.items()
        )
        print(f"client {number}  {where}")
    print()
    print(f"{'broker':>6} {'in':>12} {'out':>12} {'links in':>12} {'links out':>12}  messages/s")
    kinds = zip(row["aei"], row["aeo"], row["aii"], row["aio"], strict=True)
    for broker, each in enumerate(kinds):
        print(f"{broker:>6} " + " ".join(f"{_short(value):>12}" for value in each))
    print(
        f"between brokers {_short(row['Ai'])} messages/s, "
        f"routing {row['h_rt']:.4f}, forwarding {row['h_fw']:.4f} times what clients need"
    )
    print(
        f"fairness {row['jain']:.4f} (Jain), largest load {row['peak']:.4f} of the mean, "
        f"{row['sessions']} connections"
    )


def _short(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:,.{3 if value < 1e6 else 0}f}"
