"""`mqttree bench placement place FILE`: a workload, placed, and the traffic that follows."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench import checked
from bench.placement import simulator, workload_file
from placement.state import MOST_BROKERS

MOST_BYTES = 1 << 30


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
    parser = argparse.ArgumentParser(
        prog="mqttree bench placement",
        description="Where clients should connect, computed; no broker runs.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    place = commands.add_parser("place", help="place the clients of a file")
    place.add_argument("file", metavar="FILE", help="a workload (docs/guides/placement.md)")
    place.add_argument(
        "--strategy",
        choices=(*simulator.NAMES, simulator.GIVEN),
        default="load",
        help="how (load); given: as the file has placed them",
    )
    place.add_argument(
        "--brokers", type=partial(checked.count, most=MOST_BROKERS), required=True, metavar="M"
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
        type=partial(checked.count, most=MOST_BROKERS),
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
    return parser


def _read(path: str) -> str:
    try:
        file = Path(path)
        if file.stat().st_size > MOST_BYTES:
            raise ValueError(f"{path}: larger than {MOST_BYTES:,} bytes")
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: no text in UTF-8") from None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None


def _place(arguments: argparse.Namespace) -> int:
    text = _read(arguments.file)
    try:
        work = workload_file.read(text)
        placed = simulator.place(
            work,
            arguments.brokers,
            arguments.strategy,
            arguments.seed,
            arguments.sessions,
            arguments.gamma,
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
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{3 if value < 1e6 else 0}f}"
