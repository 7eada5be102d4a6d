"""`mqttree run | status | drain | passwd | live | federate | bench` and the commands of
`operator_commands`: the command line.

Exit codes: 0 all went well; 1 no broker answered; 2 bad input of any kind, or a package is missing,
said in one line; 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from mqttree.broker import CORE
from mqttree.broker.base.version import VERSION
from mqttree.broker.cli.command_line import DEFAULT_ADMIN, Parser, complain
from mqttree.broker.config.routing_modes import ROUTINGS


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line (without the program's name) and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    try:
        code = _main(words)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of this program's output has left; Python would complain when it flushes.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "mqttree"):
            raise
        complain(f"{package} is missing: pip install {package}")
        return 2


def _open_streams() -> None:
    """Open /dev/null where standard streams are closed; else a socket would get such a number, and
    receive what is written there."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number, which is this one.
            os.open(os.devnull, os.O_RDWR)


def _main(words: list[str]) -> int:
    if words and words[0] == "live":
        from mqttree.broker.cli import live

        return live.main(words[1:])
    if words and words[0] == "federate" and _asks_for_protocol(words):
        return int(_above("mqttree.bench.federator.command").main(words[1:]))
    if words and words[0] == "bench":
        bench = _bench()
        return 2 if bench is None else int(bench.main(words[1:]) or 0)
    try:
        parser = make_parser(words)
        if not words:
            parser.print_help()
            return 0
        if words[0].startswith("-") and words[0] not in parser.flags:
            # argparse would rather miss a command.
            parser.error(f"unrecognized arguments: {words[0]}")
        arguments = parser.parse_args(words)
    except SystemExit as leave:  # argparse has said why
        return leave.code if isinstance(leave.code, int) else 2
    from mqttree.broker.config.yaml_file import ConfigError

    try:
        return _carry_out(arguments)
    except ConfigError as error:
        complain(str(error))
        return 2


def _carry_out(arguments: argparse.Namespace) -> int:
    """Carry out a command whose parser is here. Raises ConfigError."""
    match arguments.command:
        case "run" | "federate":
            return _run(arguments)
        case "passwd":
            from mqttree.broker.cli import passwd

            return passwd.run(arguments)
        case "completion":
            return _complete(arguments)
        case _:
            return _operate(arguments)


def _asks_for_protocol(words: list[str]) -> bool:
    """Return whether `federate` is to be a federator of another protocol than ours."""
    return any(word.partition("=")[0] == "--protocol" for word in words)


def _run(arguments: argparse.Namespace) -> int:
    """Start without the garbage collector, which would search all modules ten times and find
    nothing (20 ms)."""
    import gc

    gc.disable()
    try:
        if arguments.command == "federate":
            from mqttree.broker.cli import gateway

            return gateway.federate(arguments)
        from mqttree.broker.cli.run import run

        return run(arguments)
    finally:
        gc.enable()


def _bench() -> Any:
    """Return the module of `mqttree bench`, None if a package is missing that it needs."""
    try:
        return _above("mqttree.bench.cli")
    except ImportError as error:
        complain(f"bench: {error.name} is missing; pip install 'mqttree[bench]'")
        return None


def _above(name: str) -> Any:
    """Return a module of a floor above this one, so that it is imported by its `name`."""
    import importlib

    return importlib.import_module(name)


def _operate(arguments: argparse.Namespace) -> int:
    from mqttree.broker.cli import operator_commands
    from mqttree.broker.cli.admin_client import StatusError, TokenError

    try:
        return operator_commands.run(arguments)
    except StatusError as error:
        complain(str(error))
        return 2 if isinstance(error, TokenError) else 1


def _complete(arguments: argparse.Namespace) -> int:
    from mqttree.broker.cli import live
    from mqttree.broker.cli.completion import script

    own = {"live": live.make_parser()}
    if (bench := _bench()) is not None:
        own["bench"] = bench.parser()
    text = script(arguments.shell, make_parser(), own)
    if sys.stdout is not None:
        sys.stdout.write(text)
    return 0


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"mqttree {VERSION}, core {CORE.running}")
        parser.exit()


def make_parser(words: Sequence[str] = ()) -> Parser:
    """Describe the command line. Values stay texts: `options.read_settings` checks them, like those
    of the file and the environment. `words`: that are read; only the parser for them needs be
    whole."""
    parser = Parser(
        prog="mqttree",
        description="An MQTT broker whose instances find each other and act as one broker.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=Parser
    )
    run = commands.add_parser(
        "run",
        help="run a broker",
        allow_abbrev=False,
        epilog="Every option can also be set as MQTTREE_<OPTION> in the environment, and, below "
        "that, in the `federation:` section of the configuration file.",
    )
    _add_run(run)
    # A broker starts without the others.
    if words[:1] != ["run"]:
        _add_others(commands)
    return parser


def _add_others(commands: argparse._SubParsersAction[Parser]) -> None:
    from mqttree.broker.cli.operator_commands import add_commands

    federate = commands.add_parser(
        "federate",
        help="make a foreign broker part of a federation",
        allow_abbrev=False,
    )
    _add_federate(federate)
    _add_run(federate)
    _add_run(add_commands(commands))
    users = commands.add_parser(
        "passwd", help="set a password in the users file", allow_abbrev=False
    )
    _add_passwd(users)
    commands.add_parser(
        "live", help="run several brokers on this machine and draw their tree", add_help=False
    )
    commands.add_parser(
        "bench", help="scenarios, comparison, reports (mqttree bench --help)", add_help=False
    )


RUN_FLAGS = (
    ("--listen", "HOST:PORT", "address of the default listener (0.0.0.0:1883)"),
    ("--name", "NAME", "name of this broker in logs and status (machine and port)"),
    ("--data-dir", "DIR", "folder of the broker's key, boot number and journal (none)"),
    (
        "--durability",
        "none|async|sync",
        "what survives: nothing, kill -9, a power cut (async with a data directory)",
    ),
    ("--cluster", "NAME", "cluster name; only brokers of one cluster federate (mqttree)"),
    ("--secret-file", "FILE", "file with the cluster's secret; brokers without it cannot join"),
    ("--discovery", "multicast|static|dns|off", "how brokers find each other (multicast)"),
    ("--seed", "HOST:PORT", "address of a broker to ask first; may be repeated"),
    ("--advertise", "HOST:PORT", "address that this broker announces to other brokers"),
    ("--routing", "|".join(ROUTINGS), "which links a message takes (topic)"),
    (
        "--admin",
        "HOST:PORT",
        f"address of the admin port: health, metrics, state ({DEFAULT_ADMIN} if free)",
    ),
    (
        "--admin-token-file",
        "FILE",
        "file of the token that requests to the admin port need; made if there is none",
    ),
    (
        "--wait-for",
        "BROKERS",
        "brokers, this one included, to be seen before /readyz says yes (1)",
    ),
    ("--log-level", "debug|info|warning|error", "lowest level that is logged (info)"),
    ("--log-format", "text|json", "lines of text or JSON objects (text)"),
)
"""Flags of a broker that take one value, and the one that may be repeated."""


def _add_run(run: Parser) -> None:
    run.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        help="configuration file: amqtt's YAML with a `federation:` section",
    )
    for flag, metavar, text in RUN_FLAGS:
        action = "append" if flag == "--seed" else "store"
        run.add_argument(flag, metavar=metavar, action=action, help=text)
    # The broker ends when its standard input ends.
    run.add_argument("--die-with-parent", action="store_true", help=argparse.SUPPRESS)


LEG_FLAGS = (
    ("--password-file", "FILE", "file with the password there"),
    ("--cafile", "FILE", "authority of its certificate"),
    ("--cert", "FILE", "certificate to show there"),
    ("--key", "FILE", "key of that certificate"),
    (
        "--as-user",
        "USER",
        "user of this broker whose rules count for what crosses (everything is allowed)",
    ),
    (
        "--state-topic",
        "TOPIC",
        'where both brokers have a retained "1" while the leg is up, and "0" else; off: nowhere '
        "(mqttree/leg/NAME/state)",
    ),
    (
        "--retain",
        "both|in|out|off",
        "which way RETAIN crosses, and retained messages are compared; in: to here (both)",
    ),
    ("--mqtt", "VERSION", "version of MQTT there: 5, 3.1.1, 3.1.1-plain or auto (auto)"),
    ("--max-qos", "0|1|2", "highest QoS of messages that cross (2)"),
    ("--start", "automatic|lazy|once", "connected always, while messages cross, or until lost"),
    ("--idle-timeout", "S", "s without messages after which a lazy leg disconnects (60)"),
    ("--threshold", "N", "messages that wait for a lazy leg to connect (1)"),
    ("--client-id", "ID", "client id there (mqttree-NAME)"),
    ("--keep-alive", "S", "keep-alive there (10)"),
    ("--receive-maximum", "N", "messages that it may have under way to here (1000)"),
    ("--max-queued", "N", "messages that wait here at most while it is away (100000)"),
    ("--max-queued-bytes", "N", "bytes of these (268435456)"),
    ("--max-rate", "N", "messages sent there in a second at most (no limit)"),
    ("--alpn", "NAME", "protocol that TLS asks for"),
    ("--psk-identity", "NAME", "name of the key that both sides know, instead of certificates"),
    ("--psk-file", "FILE", "file with that key, in hexadecimal digits"),
    ("--marks", "on|off", "mark what goes there, so that it is known if it comes back (on)"),
    ("--probes", "on|off", "publish probes there, to find rings (on)"),
)
"""Flags of a leg that take one value."""


def _add_federate(federate: Parser) -> None:
    federate.add_argument(
        "--broker",
        metavar="mqtt[s]://[USER@]HOST[:PORT]",
        action="append",
        help="the foreign broker; may be repeated for one that has several addresses",
    )
    federate.add_argument(
        "--from-mosquitto",
        metavar="FILE",
        help="configuration file of a Mosquitto, whose bridges become legs (instead of --broker)",
    )
    federate.add_argument(
        "--topic",
        metavar="RULE",
        action="append",
        help="FILTER [in|out|both] [QOS] [LOCAL REMOTE], as in Mosquitto's file (# both 2); may be "
        "repeated",
    )
    federate.add_flags(*LEG_FLAGS)
    federate.add_argument(
        "--round-robin",
        action="store_const",
        const=True,
        help="all addresses are equal (the first one is dialled first)",
    )
    federate.add_argument(
        "--forget",
        action="store_true",
        help="end the sessions there and here, and exit",
    )
    federate.add_argument(
        "--protocol",
        metavar="spohn",
        help="be a federator of this protocol instead (mqttree federate --protocol spohn --help)",
    )
    federate.add_argument(
        "--no-data-dir",
        action="store_true",
        help="keep nothing on the disk: at QoS 2 a message may come twice after a restart",
    )


def _add_passwd(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="the users file; created if it does not exist")
    parser.add_argument("user", metavar="USER", help="the user's name")
    parser.add_argument("--delete", action="store_true", help="delete the user instead")
    parser.add_argument(
        "--no-scram",
        action="store_true",
        help="write no SCRAM-SHA-256 verifier: the user logs in by password only",
    )
    parser.add_argument(
        "--iterations", metavar="N", help="rounds of the SCRAM-SHA-256 verifier (15000)"
    )


if __name__ == "__main__":
    sys.exit(main())
