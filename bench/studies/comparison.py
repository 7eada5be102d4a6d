"""`mqttree bench compare`: the same loads against several brokers in turn."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from mqttree.bench import checked
from mqttree.bench.studies import configurations, mixed, mixed_table, targets

DEFAULT = ("mix", "paced", "hop")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to its parser."""
    parser.add_argument(
        "--rounds",
        type=partial(checked.count, most=None),
        default=3,
        metavar="N",
        help="rounds of A B A B ... (3)",
    )
    parser.add_argument(
        "--seconds",
        type=checked.positive,
        default=3.0,
        metavar="S",
        help="measured time of a run (3 s)",
    )
    parser.add_argument(
        "--work",
        nargs="+",
        metavar="NAME",
        default=list(DEFAULT),
        help=f"groups: {', '.join(mixed.GROUPS)}; works: {', '.join(mixed.WORKS)}; "
        f"default {' '.join(DEFAULT)}",
    )
    parser.add_argument(
        "--target",
        metavar="TARGET",
        help="what is compared: a name, or NAME=COMMAND with {port} (mqttree)",
    )
    parser.add_argument(
        "--mqttree",
        metavar="NAME=PROGRAM",
        action="append",
        default=[],
        help="another installation instead: its program, or the Python that has it; repeatable",
    )
    parser.add_argument(
        "--against",
        metavar="TARGET,...",
        default="mosquitto-nodelay",
        help=f"names of {', '.join(targets.TARGETS)} (mosquitto-nodelay)",
    )
    parser.add_argument(
        "--binary",
        metavar="NAME=PATH",
        action="append",
        default=[],
        help=f"one more: where the program of {', '.join(configurations.OTHERS)} is; "
        "may be repeated",
    )
    parser.add_argument(
        "--pin",
        action="store_true",
        help="brokers and generator on cores of their own",
    )
    parser.add_argument("--json", metavar="FILE", help="also write all figures here")
    parser.set_defaults(handler=main)


def chosen_targets(options: argparse.Namespace) -> list[targets.Target]:
    """Return the brokers that the command line names, the first one first. Raises ValueError, in
    one line, for what does not exist."""
    found = [targets.mqttree(*_pair("--mqttree", text)) for text in options.mqttree]
    if options.target is not None or not found:
        found.insert(0, targets.target(options.target or "mqttree"))
    found += [targets.target(name) for name in options.against.split(",") if name]
    found += [targets.other(*_pair("--binary", text)) for text in options.binary]
    if len({each.name for each in found}) < len(found):
        raise ValueError("a target is named twice")
    for each in found:
        if not each.available():
            raise ValueError(f"{each.name} is not installed")
    return found


def _pair(option: str, text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    if not checked.NAME.fullmatch(name) or not path:
        raise ValueError(f"{option} {text}: expected NAME=PATH")
    return name, path


def chosen_works(names: list[str]) -> list[mixed.MixedWork]:
    """Return the works of these names and groups, each once. Raises ValueError, in one line, for an
    unknown one."""
    wanted = dict.fromkeys(each for name in names for each in mixed.GROUPS.get(name, (name,)))
    for name in wanted:
        if name not in mixed.WORKS:
            known = ", ".join([*mixed.GROUPS, *mixed.WORKS])
            raise ValueError(f"unknown work {name!r}: one of {known}")
    return [mixed.WORKS[name] for name in wanted]


def main(options: argparse.Namespace) -> int:
    """Measure and print; 1 when something failed or was lost. Raises ValueError for bad input."""
    works = chosen_works(options.work)
    brokers = chosen_targets(options)
    if options.json is not None:
        _writable(options.json)
    say = partial(print, file=sys.stderr, flush=True)
    table = mixed.measure(works, brokers, options.rounds, options.seconds, pin=options.pin, say=say)
    mixed_table.render(works, brokers, table)
    if options.json is not None:
        words = {key: value for key, value in vars(options).items() if key != "handler"}
        text = mixed_table.as_json(works, brokers, table, words)
        Path(options.json).write_text(text)
    failed = any(runs.complaints for row in table.values() for runs in row.values())
    return 1 if failed else 0


def _writable(path: str) -> None:
    """Raise ValueError, in one line, if no file can be written there: before anything is
    measured."""
    try:
        with Path(path).open("a"):
            pass
    except OSError as error:
        raise ValueError(f"--json {path}: {error.strerror}") from error
