"""`mqttree federate`: a process beside a foreign broker that makes it part of a federation."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mqttree.bench.federator.federator import Federator
from mqttree.bench.federator.settings import Codec, NonMember, Settings
from mqttree.broker.base import log_format
from mqttree.broker.base.log_format import log_line
from mqttree.broker.cli.command_line import Parser, complain
from mqttree.broker.config.broker_url import BrokerUrl, read_url
from mqttree.broker.config.options import LEVELS
from mqttree.broker.config.secret_file import read_secret
from mqttree.broker.io.tls import client_context, describe_error

if TYPE_CHECKING:
    from mqttree.bench.federator.driver import FederatorDriver


def main(words: Sequence[str]) -> int:
    """Carry out `mqttree federate` with these arguments; return the exit code: 0 after a signal, 2
    for bad input, or if a package is missing."""
    try:
        arguments = _parser().parse_args(words)
    except SystemExit as leave:  # argparse has said why
        return leave.code if isinstance(leave.code, int) else 2
    try:
        driver = _driver(arguments)
    except (ValueError, OSError) as error:
        complain(" ".join(str(error).split()))
        return 2
    except ImportError as error:
        complain(f"federate: {error.name} is missing; pip install 'mqttree[client]'")
        return 2
    log_format.set_up(arguments.log_level, arguments.log_format)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(driver))
    return 0


async def _serve(driver: FederatorDriver) -> None:
    """Run the driver until a signal comes."""
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(driver.run())
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    log_line("info", f"{driver.name} (protocol spohn) begins, neighbours: {driver.neighbours}")
    with contextlib.suppress(asyncio.CancelledError):
        await task
    log_line("info", f"{driver.name} ends: {driver.summary()}")


def _driver(arguments: argparse.Namespace) -> FederatorDriver:
    """Make a federator and its driver of the command line. Raises ValueError,
    OSError, and ImportError without the client's package."""
    from mqttree.bench.federator.driver import FederatorDriver

    urls = {arguments.id: _url("--broker", arguments.broker)}
    for text in arguments.neighbour:
        number, _, url = text.partition("=")
        if not number.isascii() or not number.isdigit():
            raise ValueError(f"--neighbour: must be ID=URL, not {text.split('@')[0]!r}")
        if int(number) in urls:
            raise ValueError(f"--neighbour: broker {int(number)} is given twice")
        urls[int(number)] = _url("--neighbour", url)
    settings = Settings(
        id=arguments.id,
        neighbours=tuple(each for each in urls if each != arguments.id),
        redundancy=arguments.redundancy,
        core_interval=arguments.core_interval,
        beacon_interval=arguments.beacon_interval,
        log_size=arguments.log,
        log_time=arguments.log_time,
        nonmember=NonMember(arguments.nonmember),
        preferred_parent=arguments.prefer_parent,
        codec=Codec(arguments.codec),
    )
    if arguments.as_public_code:
        settings = settings.as_public_code()
    password = None
    if arguments.password_file is not None:
        password = read_secret(arguments.password_file, 1, "a password").decode()
    return FederatorDriver(
        Federator(settings),
        urls,
        password=password,
        context=_context(arguments.cafile) if any(url.tls for url in urls.values()) else None,
        qos=arguments.qos,
    )


def _url(flag: str, text: str) -> BrokerUrl:
    try:
        return read_url(text)
    except ValueError as error:
        raise ValueError(f"{flag}: {error}") from None


def _context(cafile: Path | None) -> ssl.SSLContext:
    try:
        return client_context(cafile)
    except OSError as error:
        raise ValueError(f"--cafile: cannot use {cafile}: {describe_error(error)}") from None


def _parser() -> Parser:
    parser = Parser(
        prog="mqttree federate",
        description="Make a foreign broker part of a federation, without changing it: run one "
        "federator beside each broker. Clients publish and subscribe to federated/TOPIC, and "
        "subscribers publish to federator/beacon/TOPIC regularly.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--protocol",
        choices=("spohn",),
        required=True,
        help="how federators speak: spohn, the protocol of the paper, which may lose messages",
    )
    add(
        "--broker",
        metavar="URL",
        required=True,
        help="the broker: mqtt[s]://[USER@]HOST[:PORT]; it has to speak MQTT 5",
    )
    add("--id", metavar="N", type=int, required=True, help="the broker's number in the federation")
    add(
        "--neighbour",
        metavar="ID=URL",
        action="append",
        default=[],
        help="number and address of a neighbour's broker; may be repeated",
    )
    add("--redundancy", metavar="R", type=int, default=2, help="parents in a mesh at most (2)")
    add("--core-interval", metavar="S", type=float, default=10.0, help="of core announcements (10)")
    add("--beacon-interval", metavar="S", type=float, default=5.0, help="of clients' beacons (5)")
    add(
        "--log",
        metavar="IDS",
        type=int,
        default=5000,
        help="publications of a topic that are remembered (5000)",
    )
    add("--log-time", metavar="S", type=float, default=0.0, help="... at least for so long (0)")
    add(
        "--nonmember",
        choices=("one", "all"),
        default="one",
        help="parents that a broker outside of the mesh sends to (one)",
    )
    add("--prefer-parent", metavar="ID", type=int, help="which one, if it is one (the lowest id)")
    add(
        "--codec",
        choices=("bincode", "json"),
        default="bincode",
        help="bytes of the public implementations in Rust, or in Go (bincode)",
    )
    add(
        "--as-public-code",
        action="store_true",
        help="differ from the paper where the public implementation in Rust does, to mix with it",
    )
    add("--qos", type=int, choices=(0, 1, 2), default=2, help="of all that federators send (2)")
    add(
        "--password-file",
        metavar="FILE",
        type=Path,
        help="file with the password of the URLs' users",
    )
    add("--cafile", metavar="FILE", type=Path, help="authorities that brokers' certificates are of")
    add("--log-level", choices=LEVELS, default="info", help="lowest level that is logged (info)")
    add("--log-format", choices=("text", "json"), default="text", help="of the log (text)")
    return parser
