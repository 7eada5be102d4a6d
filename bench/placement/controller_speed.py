"""How fast a federation answers where clients should connect: `mqttree bench placement controller`.

Brokers run as processes, and topics are published at all of them until their rates are known. Then
questions are sent at a given rate over HTTP, each of another client, over connections that stay
open. The time of a question counts from when it was due: one that had to wait because the ones
before it took long has waited.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import select
import socket
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

from mqttree.bench import checked
from mqttree.bench.lab.loopback import Broker, LoopbackError, federation, root_of
from mqttree.bench.lab.priority import woken_in_time
from mqttree.bench.load.cpu import cores, on_cores
from mqttree.bench.workloads.workload import popular_topics
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Connect, Publish

KNOWN_WAIT = 60.0
"""s until the rates of topics are known; brokers read them every ten seconds."""

PUBLISHING = 0.25
"""s between two rounds in which each topic is published to once."""

GRACE = 10.0
"""s for the last answers."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What came of questions."""

    asked: int
    seconds: float
    """From the first question to the last answer."""
    statuses: Counter[int]
    """Answers by their status; 0: none came."""
    times: list[float]
    """s until an answer with status 200, sorted."""
    cpu: float
    """s of CPU time of the broker that decides."""
    cpu_asked: float
    """The same of the broker that is asked."""

    def within(self, part: float) -> float:
        """Return within how many ms this `part` of the questions was answered."""
        times = self.times
        return times[min(len(times) - 1, int(part * len(times)))] * 1e3 if times else float("nan")


def questions(count: int, topics: int, each: int, alpha: float, seed: int) -> list[bytes]:
    """Return `count` requests, each of another client with `each` of the `topics`, whose popularity
    has the shape `alpha`; `seed`: of what is drawn."""
    draw = popular_topics(topics, alpha, random.Random(seed))
    found = []
    for number in range(count):
        names = [f"t/{topic}" for topic in draw(each)]
        body = json.dumps({"client": f"bench-{number}", "subscribe": names}).encode()
        head = b"POST /api/v1/placement HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        found.append(head % len(body) + body)
    return found


class _Asker:
    """One connection, which has one question at a time under way."""

    def __init__(self, admin: int) -> None:
        """`admin`: port of the broker. Raises OSError: the port is closed."""
        self.socket = socket.create_connection(("127.0.0.1", admin), 10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.due = 0.0
        """When its question was due (s)."""
        self._buffer = b""

    def fileno(self) -> int:
        """Return the number of its socket, for `select`."""
        return self.socket.fileno()

    def ask(self, request: bytes, due: float) -> None:
        """Send a question that was `due` at that time (s). Raises OSError: the broker has gone."""
        self.due = due
        self.socket.sendall(request)

    def answer(self) -> int | None:
        """Read what has come: return the status of the answer, None until it is whole. Raises
        OSError: the connection has ended."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the broker has closed the connection")
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return None
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        if len(rest) < size:
            return None
        self._buffer = rest[size:]
        return int(head[9:12])


def ask(admin: int, requests: list[bytes], rate: float, connections: int) -> Answered:
    """Send requests at a rate; CPU times are left 0.

    `admin`: port; `requests`: what is sent; `rate`: of them (1/s); `connections`: how many stay
    open. Raises LoopbackError: the port is closed.
    """
    askers: list[_Asker] = []
    try:
        for _ in range(connections):
            askers.append(_Asker(admin))
    except OSError as error:
        raise LoopbackError(f"no broker answers at port {admin}: {error}") from None
    else:
        return _ask_all(askers, requests, rate)
    finally:
        for asker in askers:
            asker.socket.close()


def _ask_all(idle: list[_Asker], requests: list[bytes], rate: float) -> Answered:
    """Send each request when it is due and one of the askers is `idle`."""
    # select() takes times of less than a millisecond, which epoll, as asyncio uses it, does not.
    statuses: Counter[int] = Counter()
    times: list[float] = []
    asking: list[_Asker] = []
    sent, began = 0, time.monotonic()
    while sent < len(requests) or asking:
        now = time.monotonic()
        due = began + sent / rate
        while idle and sent < len(requests) and due <= now:
            asker = idle.pop()
            asking.append(asker)
            try:
                asker.ask(requests[sent], due)
            except OSError:
                asking.remove(asker)
                statuses[0] += 1
            sent += 1
            due = began + sent / rate
        paced = bool(idle) and sent < len(requests)
        wait = max(0.0, due - time.monotonic()) if paced else GRACE
        ready = select.select(asking, [], [], wait)[0]
        if not ready and not paced:
            break
        for asker in ready:
            try:
                status = asker.answer()
            except OSError:
                asking.remove(asker)
                statuses[0] += 1
                continue
            if status is not None:
                statuses[status] += 1
                if status == 200:
                    times.append(time.monotonic() - asker.due)
                asking.remove(asker)
                idle.append(asker)
    statuses[0] += len(requests) - statuses.total()
    seconds = time.monotonic() - began
    return Answered(len(requests), seconds, statuses, sorted(times), 0.0, 0.0)


class Publishers:
    """A connection to each broker, over which topics are published in turn."""

    def __init__(self, brokers: list[Broker], topics: int) -> None:
        """`brokers`: all of them, each with its share of the `topics`."""
        self._sockets = [
            socket.create_connection(("127.0.0.1", broker.port), 10) for broker in brokers
        ]
        for number, each in enumerate(self._sockets):
            each.sendall(encode_packet(Connect("MQTT", 4, True, 600, f"publisher-{number}"), 4))
        packets: list[list[bytes]] = [[] for _ in brokers]
        for topic in range(topics):
            packet = Publish(f"t/{topic}", b"x" * 20)
            packets[topic % len(brokers)].append(encode_packet(packet, 4))
        self._rounds = [b"".join(each) for each in packets]

    def publish(self) -> None:
        """Publish to each topic once."""
        for each, packets in zip(self._sockets, self._rounds, strict=True):
            each.sendall(packets)

    def close(self) -> None:
        """End all connections."""
        for each in self._sockets:
            each.close()


def make_known(brokers: list[Broker], publishers: Publishers, topics: int) -> None:
    """Publish until the broker that decides knows the rates of all topics. Raises LoopbackError: it
    does not within `KNOWN_WAIT`.

    `brokers`: all of them; `publishers`: at them; `topics`: how many.
    """
    root = root_of(brokers)
    request = questions(1, topics, 1, 1.0, 1)[0]
    end = time.monotonic() + KNOWN_WAIT
    while time.monotonic() < end:
        for _ in range(4):
            publishers.publish()
            time.sleep(PUBLISHING)
        # It asks for rates while it is asked itself.
        ask(root.admin, [request], 1.0, 1)
        state = root.get("/placement")
        if state is not None and state["topics"] >= topics:
            return
    raise LoopbackError(f"the rates of {topics} topics are not known after {KNOWN_WAIT:g} s")


def measure(arguments: argparse.Namespace) -> Answered:
    """Return what came of questions to brokers that are started for them. Raises LoopbackError."""
    count = max(1, round(arguments.rate * arguments.seconds))
    requests = questions(count, arguments.topics, arguments.each, arguments.alpha, arguments.seed)
    there = cores()
    # Brokers are on all cores but one; the client that asks is on that one.
    with on_cores(there[:-1]), federation(arguments.brokers) as brokers:
        publishers = Publishers(brokers, arguments.topics)
        try:
            make_known(brokers, publishers, arguments.topics)
            root = root_of(brokers)
            asked = root
            if arguments.at == "other":
                asked = next((each for each in brokers if each is not root), root)
            before = root.cpu(), asked.cpu()
            with on_cores(there[-1:]), woken_in_time():
                gc.disable()  # of this process: it would make answers look late
                found = ask(asked.admin, requests, arguments.rate, arguments.connections)
                gc.enable()
            spent = root.cpu() - before[0], asked.cpu() - before[1]
        finally:
            publishers.close()
    return Answered(found.asked, found.seconds, found.statuses, found.times, *spent)


def add_arguments(commands: Any) -> None:
    """Add the command to argparse's `commands`."""
    parser = commands.add_parser(
        "controller", help="how fast brokers answer where clients should connect: runs brokers"
    )
    checked.add_counts(
        parser,
        (
            ("brokers", 3, 64, "brokers that are started"),
            ("topics", 1000, 100_000, "topics, published at all brokers in turn"),
            ("each", 10, 1000, "topics of a question"),
            ("connections", 8, 60, "HTTP connections"),
        ),
    )
    parser.add_argument(
        "--rate", type=checked.positive, default=500.0, metavar="X", help="questions a second (500)"
    )
    parser.add_argument(
        "--seconds",
        type=checked.seconds,
        default=10.0,
        metavar="S",
        help="for which they are asked",
    )
    parser.add_argument(
        "--at",
        choices=("root", "other"),
        default="root",
        help="who is asked: the broker that decides (root), or another one that passes it on",
    )
    parser.add_argument("--alpha", type=checked.positive, default=0.68, metavar="X", help="(0.68)")
    parser.add_argument("--seed", type=partial(checked.count, least=0), default=1, metavar="N")
    parser.set_defaults(handler=main)


def main(arguments: argparse.Namespace) -> int:
    """Carry out the command; 1: brokers failed. Raises ValueError, in one line, for bad input."""
    if arguments.each > arguments.topics:
        raise ValueError(f"a client cannot have {arguments.each} of {arguments.topics} topics")
    if arguments.rate * arguments.seconds > 100_000:
        raise ValueError("more than 100,000 questions: brokers remember no more clients")
    found = measure(arguments)
    answered = len(found.times)
    print(
        f"{found.asked:,} questions at {arguments.rate:,.0f}/s, {arguments.each} topics each, "
        f"{arguments.brokers} brokers, asked at {arguments.at}"
    )
    print(
        f"answered {answered:,}, {answered / found.seconds:,.0f}/s, "
        f"p50 {found.within(0.5):.2f} ms, p99 {found.within(0.99):.2f} ms, "
        f"most {found.within(1.0):.2f} ms"
    )
    others = {status: n for status, n in found.statuses.items() if n and status != 200}
    if others:
        said = ", ".join(
            f"{number:,} {'without an answer' if not status else f'with status {status}'}"
            for status, number in sorted(others.items())
        )
        print(f"not answered: {said}")
    line = f"CPU time of the broker that decides {found.cpu / found.asked * 1e6:.0f} us a question"
    if arguments.at == "other":
        line += f", of the one that is asked {found.cpu_asked / found.asked * 1e6:.0f} us"
    print(line)
    return 0 if answered else 1
