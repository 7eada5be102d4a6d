"""What `mqttree bench run` takes, for other commands, too."""

from __future__ import annotations

import argparse
from functools import partial

from mqttree.bench import checked

WAYS = ("auto", "namespaces", "relays")
"""How a network is made."""

_count = partial(checked.count, most=None)


def of_run(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `run` to a `parser`."""
    parser.add_argument(
        "name",
        nargs="+",
        metavar="NAME",
        help="a scenario (see list), a paper, papers (all of them), all, or a file",
    )
    parser.add_argument("--out", default="", metavar="DIR", help="where to (results/TIME)")
    parser.add_argument("--short", action="store_true", help="the scenarios' shortened form")
    parser.add_argument(
        "--medium", action="store_true", help="their middle form: all papers in two hours"
    )
    parser.add_argument(
        "--repeat",
        type=int,
        default=0,
        metavar="N",
        help="repetitions of every cell (as the scenario says)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="do not repeat what is finished in DIR"
    )
    parser.add_argument(
        "--in-turn",
        action="store_true",
        help="repetitions in rounds over all cells, every second round backwards",
    )
    parser.add_argument(
        "--lab",
        choices=WAYS,
        default="auto",
        help="how the network is made (auto: namespaces for root)",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="FACTOR=VALUE",
        help="only these cells; may be repeated",
    )
    parser.add_argument(
        "--seed", type=_count, default=1, metavar="N", help="of everything that is drawn (1)"
    )
    of_foreign_brokers(parser)


def of_foreign_brokers(parser: argparse.ArgumentParser) -> None:
    """Add to a `parser` what describes brokers that are not ours."""
    parser.add_argument(
        "--add",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="a broker that is not ours: how it is started, with {port}, {address}, {dir}, {name}"
        " and {config} in it; may be repeated",
    )
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="the template of its file, {config}: text with the same words in braces",
    )
