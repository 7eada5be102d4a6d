"""`mqttree bench ...`: everything that measures, from the command line."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any

from mqttree.bench import checked
from mqttree.bench.lab.owner import open_standard
from mqttree.bench.load import LoadError
from mqttree.bench.load.mix import run_mix
from mqttree.bench.load.mixture import MixSpec
from mqttree.bench.runner import arguments as options
from mqttree.bench.studies import comparison, micro, mixed, targets
from mqttree.broker.cli.command_line import Parser

TOOLS = {
    "converge": (
        "mqttree.bench.studies.converge",
        "how fast brokers agree on a tree and repair it",
    ),
    "paths": ("mqttree.bench.studies.paths", "what a hop costs, how fast paths open and close"),
    "overlays": ("mqttree.bench.studies.overlays", "what kinds of trees are worth, computed"),
    "placement": (
        "mqttree.bench.placement.command",
        "where clients should connect, computed or measured",
    ),
    "restart": (
        "mqttree.bench.studies.restart",
        "how long a broker takes to be back, with how much memory",
    ),
    "capacity": ("mqttree.bench.studies.capacity", "what a test network can carry on this machine"),
    "generate": ("mqttree.bench.trace.generate", "a run with as many trace rows as wanted"),
    "overhead": ("mqttree.bench.trace.overhead", "what writing a trace costs"),
    "clock": ("mqttree.bench.trace.clock", "how far the clocks of two machines differ"),
    "live": ("mqttree.bench.spark.__main__", "what a benchmark is doing right now"),
    "tables": ("mqttree.bench.spark.__main__", "tables from traces, by Spark"),
}
"""Commands with a parser of their own: name -> (module with `main(argv)`, what it is for)."""

SHORT_FORMS = ("live", "tables")
"""Tools that are a command of their module."""


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a bench command; 0: done, 1: it failed or something was lost, 2: bad input or not
    there yet."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        work = _work(words)
    except SystemExit as leave:  # argparse has said why
        return leave.code if isinstance(leave.code, int) else 2
    except ValueError as error:
        print(f"mqttree bench: {error}", file=sys.stderr)
        return 2
    open_standard()
    before = _terminate_as_interrupt()
    try:
        return work()
    except ValueError as error:
        print(f"mqttree bench: {error}", file=sys.stderr)
        return 2
    except LoadError as error:
        print(f"mqttree bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("mqttree bench: interrupted", file=sys.stderr)
        return 130
    finally:
        before()


def _terminate_as_interrupt() -> Callable[[], None]:
    """Let SIGTERM unwind like Ctrl-C, so that every broker that was started is ended; return what
    undoes it."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        previous = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread, which decides
        return lambda: None

    def restore() -> None:
        signal.signal(signal.SIGTERM, previous)

    return restore


def _work(words: list[str]) -> Callable[[], int]:
    """Return what the command line asks for. Raises SystemExit if it asks for nothing that there
    is, or for help, ValueError, in one line, if what the report needs is not installed."""
    if words and words[0] in TOOLS:
        # A short form of one of a tool's commands.
        rest = words if words[0] in SHORT_FORMS else words[1:]
        return partial(_tool, TOOLS[words[0]][0], rest)
    arguments = _parser(words[:1] == ["report"]).parse_args(words)
    handler: Callable[[argparse.Namespace], int] = arguments.handler
    return partial(handler, arguments)


def _tool(module: str, words: list[str]) -> int:
    """Run a command that has a parser of its own."""
    main_of_tool: Callable[[list[str]], int] = _with_extra(module).main
    try:
        return main_of_tool(words)
    except SystemExit as leave:  # its parser has said why
        return leave.code if isinstance(leave.code, int) else 2


_count = partial(checked.count, most=None)
_METAVARS: dict[type, str] = {int: "N", float: "S", str: "TEXT"}


def parser() -> argparse.ArgumentParser:
    """Describe the command line, for `mqttree completion`."""
    return _parser(reporting=False)


def _parser(reporting: bool) -> argparse.ArgumentParser:
    parser = Parser(prog="mqttree bench", description="Measure brokers.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    comparing = commands.add_parser(
        "compare", help="the same loads against several brokers in turn"
    )
    comparison.arguments(comparing)

    load = commands.add_parser("load", help="one load against one broker")
    _load_arguments(load)

    small = commands.add_parser("micro", help="ns per operation of decoder, trie and fan-out")
    small.add_argument(
        "--seconds", type=checked.positive, default=0.5, metavar="S", help="time for each (0.5 s)"
    )
    small.set_defaults(handler=lambda arguments: micro.main(arguments.seconds))

    scenarios = commands.add_parser("list", help="the scenarios that there are")
    scenarios.set_defaults(handler=lambda _: _with_extra("mqttree.bench.runner.run").listing())
    one = commands.add_parser("run", help="run scenarios: test networks, loads, faults, traces")
    options.of_run(one)
    one.set_defaults(
        handler=lambda arguments: _with_extra("mqttree.bench.runner.run").main(arguments)
    )
    lab = commands.add_parser(
        "lab", help="a test network to play with: type faults while your own clients run"
    )
    _lab_arguments(lab)
    report = commands.add_parser("report", help="a page with tables and plots of runs")
    if reporting:
        _report_arguments(report)
    for name, (_, purpose) in TOOLS.items():
        commands.add_parser(name, help=purpose, add_help=False)
    return parser


def _load_arguments(load: argparse.ArgumentParser) -> None:
    load.add_argument(
        "--target",
        metavar="TARGET",
        help="start this broker (a name or NAME=COMMAND) instead of --host",
    )
    load.add_argument("--pid", type=_count, metavar="N", help="of the broker, for its CPU time")
    load.add_argument(
        "--subscriber-port", type=_count, metavar="N", help="where subscribers connect (--port)"
    )
    load.add_argument(
        "--rate",
        type=checked.positive,
        metavar="R",
        help="messages/s by the clock (as fast as can)",
    )
    for item in dataclasses.fields(MixSpec):
        kind = type(item.default)
        if kind in _METAVARS:
            load.add_argument(
                f"--{item.name.replace('_', '-')}",
                type=kind,
                default=item.default,
                help=f"({item.default})",
                metavar=_METAVARS[kind],
            )
    load.set_defaults(handler=_load)


def _lab_arguments(lab: argparse.ArgumentParser) -> None:
    lab.add_argument(
        "topology", nargs="?", default="mesh5", metavar="TOPOLOGY", help="a name or a file (mesh5)"
    )
    lab.add_argument(
        "--broker", default="mqttree-flood", metavar="KIND", help="which brokers (mqttree-flood)"
    )
    lab.add_argument(
        "--lab",
        choices=options.WAYS,
        default="auto",
        help="how the network is made (auto: namespaces for root)",
    )
    lab.add_argument("--seed", type=_count, default=1, metavar="N", help="of what is drawn (1)")
    options.of_foreign_brokers(lab)
    lab.set_defaults(
        handler=lambda arguments: _with_extra("mqttree.bench.runner.shell").main(arguments)
    )


def _with_extra(name: str) -> Any:
    """Import a module that needs what the extra "bench" installs; ValueError in one line when that
    is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "mqttree":
            raise
        raise ValueError(f"{error.name} is not installed: pip install 'mqttree[bench]'") from None


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the report are its own. Raises ValueError, in one line, without its
    libraries."""
    report = _with_extra("mqttree.bench.report")
    report.add_arguments(parser)
    parser.set_defaults(handler=report.main)


def _load(arguments: argparse.Namespace) -> int:
    names = [item.name for item in dataclasses.fields(MixSpec)]
    given = {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}
    spec = MixSpec(**given)
    spec.check()
    if arguments.target is None:
        return _load_against(spec, [] if arguments.pid is None else [arguments.pid])
    with targets.running(targets.target(arguments.target)) as broker:
        spec = dataclasses.replace(spec, host="127.0.0.1", port=broker.port)
        return _load_against(spec, [broker.pid])


def _load_against(spec: MixSpec, pids: list[int]) -> int:
    result = run_mix(spec, pids)
    print(mixed.figures(result))
    print(result.proof())
    return 0 if result.complete else 1


if __name__ == "__main__":
    sys.exit(main())
