"""`mqttree live`: a federation on this machine, to look at and to try (`make run`).

It starts brokers as processes of their own, draws their tree in the terminal, and ends them when it
ends, however that happens.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

from mqttree.broker.base.address import Address
from mqttree.broker.cli.admin_client import AdminPort, StatusError
from mqttree.broker.cli.command_line import DEFAULT_ADMIN, Parser, complain
from mqttree.broker.cli.table import cut
from mqttree.broker.cli.tree_view import Seen, draw
from mqttree.broker.config.options import split_bind

HOST = "127.0.0.1"
FIRST_ADMIN_PORT = split_bind(DEFAULT_ADMIN).port
"""That of the first broker if it is free: `mqttree status` finds it."""
MAX_BROKERS = 64
"""brokers; each is a process of some 50 MB."""
INTERVAL = 0.5
"""s between two pictures."""
ANSWER_TIMEOUT = 0.4
"""s for a broker to answer; one that is stopped must not hold up the picture."""
END_TIMEOUT = 5.0
"""s for all brokers to stop, then they are killed."""

PROGRAM = "mqttree live"


class Child:
    """One broker that this program has started: it listens on `port`, has its admin port at
    `admin`, and belongs to the cluster named `cluster`."""

    def __init__(self, port: int, admin: int, cluster: str) -> None:
        self.port = port
        self.admin = Address(HOST, admin)
        # A file without a name: it is deleted with the last process that has it open, and a broker
        # never waits for a reader.
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the broker lives
        command = [
            sys.executable,
            "-m",
            "mqttree.broker.cli",
            "run",
            "--listen",
            f"{HOST}:{port}",
            "--name",
            str(port),
        ]
        command += ["--cluster", cluster, "--admin", str(self.admin), "--die-with-parent"]
        self.process = subprocess.Popen(
            command,
            # Nothing is written to it: its end tells the broker that this program has ended, even
            # by kill -9.
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,  # Ctrl-C is for us; we end the brokers in good order
            env={
                name: value for name, value in os.environ.items() if not name.startswith("MQTTREE_")
            },
        )
        self.state: dict[str, Any] | None = None
        self.answered = False
        self.rates = (0.0, 0.0)
        self._counts: tuple[float, int, int] | None = None

    def look(self) -> None:
        """Fetch the broker's state; None when it does not answer."""
        try:
            self.state = AdminPort(self.admin).federation(ANSWER_TIMEOUT)
        except StatusError:
            self.state = None
            self._counts = None
            return
        self.answered = True
        counters = self.state.get("counters", {})
        taken = counters.get("published", 0) + counters.get("received_link", 0)
        given = counters.get("delivered", 0) + counters.get("forwarded", 0)
        now = time.monotonic()
        if self._counts is not None and now > self._counts[0]:
            seconds = now - self._counts[0]
            self.rates = ((taken - self._counts[1]) / seconds, (given - self._counts[2]) / seconds)
        self._counts = (now, taken, given)

    def seen(self) -> Seen:
        """Return what the picture shows of the broker."""
        code = self.process.poll()
        ended = None if code is None else _ending(code)
        return Seen(self.port, self.process.pid, ended, self.state, *self.rates, str(self.admin))

    def last_words(self) -> str:
        """Return the last line that it logged, without its time and level."""
        size = os.fstat(self.log.fileno()).st_size
        text = os.pread(self.log.fileno(), 4096, max(0, size - 4096)).decode(errors="replace")
        lines = text.strip().splitlines()
        return lines[-1].removeprefix("mqttree: ") if lines else ""


class Live:
    """All brokers, and the picture."""

    def __init__(self, ports: list[int], cluster: str) -> None:
        self.ports = ports
        self.cluster = cluster
        self.children: list[Child] = []
        self.stopping = threading.Event()
        self.terminal = (
            sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        )
        self._height = 0
        self._shown = ""

    def run(self) -> int:
        """Start, draw until a signal comes, and end all brokers. Returns the exit code."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._signalled)
        try:
            for port, admin in zip(self.ports, _admin_ports(self.ports), strict=True):
                if self.stopping.is_set():
                    break
                self.children.append(Child(port, admin, self.cluster))
            return self._watch()
        # The terminal is gone, or the system allows no more processes.
        except OSError as error:
            complain(error.strerror or str(error), PROGRAM)
            return 1
        finally:
            self._end()

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if self.stopping.is_set():
            for child in self.children:
                with contextlib.suppress(OSError):
                    child.process.kill()
            os._exit(128 + number)
        self.stopping.set()

    def _watch(self) -> int:
        with ThreadPoolExecutor(len(self.ports)) as pool:
            while not self.stopping.is_set():
                list(
                    pool.map(
                        Child.look,
                        [child for child in self.children if child.process.poll() is None],
                    )
                )
                # Polled once for both questions: a broker may end between two polls.
                codes = [child.process.poll() for child in self.children]
                for child, code in zip(self.children, codes, strict=True):
                    # It could not start, and its last line says why.
                    if code == 2 and not child.answered:
                        complain(
                            child.last_words() or f"broker {child.port} did not start", PROGRAM
                        )
                        return 2
                self._show()
                if None not in codes:
                    complain("no broker is left", PROGRAM)
                    return 1
                self.stopping.wait(INTERVAL if self._shown else INTERVAL / 5)
        return 0

    def _show(self) -> None:
        brokers = [child.seen() for child in self.children]
        if not any(child.answered for child in self.children):
            return
        if not self.terminal:
            text = "\n".join(draw(brokers, self.cluster, moving=False))
            if text != self._shown:
                self._shown = text
                print(text, end="\n\n", flush=True)
            return
        width, height = shutil.get_terminal_size()
        lines = [cut(line, max(width - 1, 3)) for line in draw(brokers, self.cluster, moving=True)][
            : height - 1
        ]
        up = f"\x1b[{self._height}F" if self._height else ""
        self._shown = "".join(f"{line}\x1b[K\n" for line in lines)
        sys.stdout.write(f"{up}{self._shown}\x1b[J")
        sys.stdout.flush()
        self._height = len(lines)

    def _end(self) -> None:
        """Ask every broker to stop, and kill those that do not."""
        for child in self.children:
            with contextlib.suppress(OSError):
                child.process.terminate()
        deadline = time.monotonic() + END_TIMEOUT
        for child in self.children:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            if child.process.stdin is not None:
                child.process.stdin.close()
            child.log.close()


def _ending(code: int) -> str:
    """Return how a process ended; `code` is what `Popen.poll` returned."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _admin_ports(taken: list[int]) -> list[int]:
    """Choose as many free ports as there are brokers, from FIRST_ADMIN_PORT on. Raises OSError when
    there are none."""
    found: list[int] = []
    port = FIRST_ADMIN_PORT
    while len(found) < len(taken):
        if port > 65535:
            raise OSError("no free port for health and metrics")
        if port not in taken and _in_use(port) is None:
            found.append(port)
        port += 1
    return found


def _in_use(port: int) -> str | None:
    """Return why no process can listen on a port, None if one can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError as error:
            return (error.strerror or str(error)).lower()
    return None


def make_parser() -> Parser:
    """Describe the command line."""
    parser = Parser(
        prog=PROGRAM,
        description="Run several brokers on this machine and draw their tree.",
    )
    parser.add_argument("--brokers", type=int, default=3, metavar="N", help="number of brokers (3)")
    parser.add_argument(
        "--port",
        type=int,
        default=1883,
        metavar="PORT",
        help="port of the first broker; the others follow (1883)",
    )
    parser.add_argument("--cluster", default="demo", metavar="NAME", help="cluster name (demo)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out the command line; 0: ended by a signal, 1: no broker is left, 2: bad input or a
    port in use."""
    try:
        arguments = make_parser().parse_args(argv)
    except SystemExit as leave:  # argparse has said why
        return leave.code if isinstance(leave.code, int) else 2
    if not 1 <= arguments.brokers <= MAX_BROKERS:
        complain(f"--brokers: {arguments.brokers} is not between 1 and {MAX_BROKERS}", PROGRAM)
        return 2
    if not 1 <= arguments.port <= 65536 - arguments.brokers:
        complain(
            f"--port: {arguments.port} is not between 1 and {65536 - arguments.brokers}", PROGRAM
        )
        return 2
    ports = list(range(arguments.port, arguments.port + arguments.brokers))
    for port in ports:
        reason = _in_use(port)
        if reason is not None:
            complain(f"cannot listen on {HOST}:{port}: {reason}", PROGRAM)
            return 2
    if sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    return Live(ports, arguments.cluster).run()


if __name__ == "__main__":
    sys.exit(main())
