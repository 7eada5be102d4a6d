"""How far another machine's clock is from this one's, by asking it:
`mqttree bench clock serve` there, `measure` here.

The machine that serves has the common time: its monotonic clock plus what made that wall time when
serving began. Each of the others adds what it measured to its own monotonic times (Writer.clock),
so that no clock has to be set, and none that is set meanwhile does harm.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Iterable, Sequence

from mqttree.broker.cli.command_line import Parser

PORT = 4711
ROUNDS = 50
_QUESTION = struct.Struct("!8sQ")
_ANSWER = struct.Struct("!8sQq")
_MAGIC = b"mqtclock"
_PATIENCE = 0.5


class ClockError(Exception):
    """No clock server answers; one line."""


def best(samples: Iterable[tuple[int, int, int]]) -> tuple[int, int]:
    """Return (offset, error) in ns from samples (asked, common time of the answer, heard), asked
    and heard by the own monotonic clock.

    offset: to be added to own times for the common time. The sample with the shortest way there and
    back counts; its half is the error. Raises ClockError without samples.
    """
    found = min(
        ((heard - asked, (asked + heard) // 2, common) for asked, common, heard in samples),
        default=None,
    )
    if found is None:
        raise ClockError("no clock answered")
    way, middle, common = found
    return common - middle, -(-way // 2)


def measure(host: str, port: int = PORT, rounds: int = ROUNDS) -> tuple[int, int]:
    """Ask the machine that serves at `host` and `port`, so many `rounds`; return (offset, error) in
    ns, of the best one. Raises ClockError."""
    samples = []
    try:
        with socket.create_connection((host, port), timeout=_PATIENCE) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for number in range(rounds):
                asked = time.monotonic_ns()
                sock.sendall(_QUESTION.pack(_MAGIC, number))
                answer = _exactly(sock, _ANSWER.size)
                heard = time.monotonic_ns()
                magic, told, common = _ANSWER.unpack(answer)
                if magic != _MAGIC or told != number:
                    raise ClockError(f"{host}:{port} is no clock")
                samples.append((asked, common, heard))
    except (OSError, EOFError) as error:
        raise ClockError(
            f"the clock at {host}:{port} does not answer: {error or 'closed'}"
        ) from error
    return best(samples)


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def serve(listener: socket.socket, clients: int | None = None) -> None:
    """Answer one client after the other; for so many of them, or until interrupted."""
    offset = time.time_ns() - time.monotonic_ns()
    while clients is None or clients > 0:
        sock, _ = listener.accept()
        clients = clients - 1 if clients is not None else None
        with sock:
            sock.settimeout(_PATIENCE)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                while True:
                    magic, number = _QUESTION.unpack(_exactly(sock, _QUESTION.size))
                    if magic != _MAGIC:
                        break
                    sock.sendall(_ANSWER.pack(_MAGIC, number, time.monotonic_ns() + offset))
            except (OSError, EOFError):  # gone, or silent: the next one
                continue


def main(argv: Sequence[str]) -> int:
    """Serve, or measure and print."""
    parser = Parser(prog="mqttree bench clock", description="Compare the clocks of two machines.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serving = commands.add_parser("serve", help="be the common time")
    serving.add_argument("--host", default="0.0.0.0", metavar="ADDRESS")
    serving.add_argument("--port", type=int, default=PORT, metavar="N")
    asking = commands.add_parser("measure", help="how far the own clock is from that")
    asking.add_argument("host", metavar="HOST")
    asking.add_argument("--port", type=int, default=PORT, metavar="N")
    options = parser.parse_args(argv)
    try:
        if options.command == "serve":
            with socket.create_server((options.host, options.port)) as listener:
                serve(listener)
        offset, error = measure(options.host, options.port)
    except (ClockError, OSError) as problem:
        print(f"mqttree bench clock: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(f"offset_ns {offset} error_ns {error}")
    return 0
