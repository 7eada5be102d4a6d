"""The commands for operators: `mqttree status | clients | topics | links | alarms | top | doctor |
drain | completion`. Their arguments; what they do is imported when one is asked for."""

from __future__ import annotations

import argparse
import importlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mqttree.broker.cli.command_line import DEFAULT_ADMIN, Parser

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Parser]

COMMANDS: Final = {
    "status": ("mqttree.broker.cli.status", "show the federation as a broker sees it"),
    "clients": ("mqttree.broker.cli.views", "show clients and their queued messages"),
    "topics": ("mqttree.broker.cli.views", "show the busiest topics, or retained messages"),
    "links": ("mqttree.broker.cli.views", "show the links between brokers"),
    "alarms": ("mqttree.broker.cli.views", "show what needs attention, or dismiss an alarm"),
    "top": ("mqttree.broker.cli.top", "show brokers, topics and alarms, again and again"),
    "doctor": ("mqttree.broker.cli.doctor", "find out why brokers do not see each other"),
    "drain": ("mqttree.broker.cli.drain", "send a broker's clients to other brokers, then stop it"),
}
"""Name of a command, which is that of its function, too -> the module, what it is for."""


def add_commands(commands: Commands) -> Parser:
    """Add the parsers of these commands to those of the others; return that of `doctor`, which
    takes the options of `run` as well."""
    adders: dict[str, Callable[[Parser], None]] = {
        "status": _add_status,
        "clients": _add_clients,
        "topics": _add_topics,
        "links": _add_links,
        "alarms": _add_alarms,
        "top": _add_top,
        "doctor": _add_doctor,
        "drain": _add_drain,
    }
    parsers: dict[str, Parser] = {}
    for name, (_, text) in COMMANDS.items():
        parsers[name] = commands.add_parser(name, help=text, allow_abbrev=False)
        adders[name](parsers[name])
    completion = commands.add_parser(
        "completion", help="print a script by which a shell completes these commands"
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="for this shell")
    return parsers["doctor"]


def run(arguments: argparse.Namespace) -> int:
    """Carry out one of these commands; return the exit code. Raises ConfigError for bad input,
    StatusError if no broker answers."""
    module, _ = COMMANDS[arguments.command]
    command: Callable[[argparse.Namespace], int] = getattr(
        importlib.import_module(module), arguments.command
    )
    return command(arguments)


ADMIN_FLAGS: Final = (
    ("--admin", "HOST:PORT", f"the broker's admin address ({DEFAULT_ADMIN})"),
    ("--admin-token-file", "FILE", "file of the token that it asks for"),
    ("--admin-cafile", "FILE", "authority of its certificate, if it has TLS"),
    ("--admin-cert", "FILE", "certificate to show there"),
    ("--admin-key", "FILE", "key of that certificate"),
)
"""Where an admin port is, and what opens it."""


def _add_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print the answer of /api/v1 as JSON")
    parser.add_flags(*ADMIN_FLAGS)


def _add_status(parser: Parser) -> None:
    parser.add_flags(*ADMIN_FLAGS)
    parser.add_argument("--json", action="store_true", help="print /api/v1/federation as JSON")


def _add_drain(parser: Parser) -> None:
    parser.add_flags(
        *ADMIN_FLAGS,
        (
            "--rate",
            "CLIENTS_PER_S",
            "clients disconnected in a second (100, or more if there are many)",
        ),
        ("--to", "HOST:PORT", "address where clients are to go (the other brokers, in turn)"),
        ("--within", "S", "seconds until the broker stops, whatever is left (30)"),
    )
    parser.add_argument(
        "--no-wait", action="store_true", help="return at once instead of waiting for its end"
    )


def _add_clients(parser: Parser) -> None:
    parser.add_argument(
        "text",
        nargs="?",
        default="",
        metavar="TEXT",
        help="only those whose id, user or address has it",
    )
    parser.add_argument(
        "--state",
        choices=("all", "connected", "disconnected"),
        default="all",
        help="only these, at the broker that answers (all)",
    )
    parser.add_argument("--broker", metavar="NAME", help="only those of this broker, by name or id")
    _add_output(parser)


def _add_topics(parser: Parser) -> None:
    parser.add_argument(
        "text", nargs="?", default="", metavar="TEXT", help="only topics that have it"
    )
    parser.add_argument(
        "--retained", action="store_true", help="show retained messages instead of rates"
    )
    parser.add_argument(
        "--filter", default="#", metavar="FILTER", help="only topics that it matches (#)"
    )
    _add_output(parser)


def _add_links(parser: Parser) -> None:
    parser.add_flags(
        ("--origin", "NAME", "only those that messages of this broker take"),
        ("--topic", "TOPIC", "only those that messages to this topic take from there"),
    )
    _add_json(parser)


def _add_alarms(parser: Parser) -> None:
    parser.add_argument(
        "--dismiss",
        metavar="NAME",
        help="forget, at all brokers, that this broker is gone (its name or id)",
    )
    _add_json(parser)


def _add_top(parser: Parser) -> None:
    parser.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="S", help="s between two pictures (1)"
    )
    parser.add_argument(
        "--count", type=_count, default=0, metavar="N", help="pictures, then it ends (no end)"
    )
    parser.add_argument(
        "--sort",
        choices=("name", "clients", "published", "delivered", "links"),
        default="name",
        help="order of the brokers (name)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print a line of JSON instead of each picture"
    )
    parser.add_flags(*ADMIN_FLAGS)


def _add_doctor(parser: Parser) -> None:
    parser.description = (
        "Give it the options of the broker of this machine (-c FILE and others, or the same "
        "environment), and run it at both machines."
    )
    parser.add_argument(
        "targets", nargs="*", metavar="HOST:PORT", help="address of a broker that is not seen"
    )
    parser.add_argument(
        "--other", metavar="HOST:PORT", help="admin address of the other broker, to compare both"
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=7.0,
        metavar="S",
        help="time to hear announcements (7: brokers send one each 5 s)",
    )
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    parser.add_argument(
        "--admin-cafile", metavar="FILE", help="authority of the admin port's certificate"
    )
    parser.add_argument("--admin-cert", metavar="FILE", help="certificate to show there")
    parser.add_argument("--admin-key", metavar="FILE", help="key of that certificate")


def _add_output(parser: Parser) -> None:
    parser.add_argument("--limit", type=_count, default=100, metavar="N", help="rows at most (100)")
    _add_json(parser)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 999999999")
    return int(text)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0.1 <= found <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 3600")
    return found
