"""How fast a federation answers where clients should connect: `mqttree bench placement controller`.

Brokers run as processes, and topics are published at all of them until their rates are known. Then
questions are sent at a given rate over HTTP, each of another client, over connections that stay
open. The time of a question counts from when it was due: one that had to wait because the ones
before it took long has waited.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import socket
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench import checked
from bench.placement.loopback import Broker, LoopbackError, federation, root_of
from bench.workloads.workload import popular_topics
from broker.wire import encode_packet
from broker.wire.packets import Connect, Publish

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
        head = f"POST /api/placement HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        found.append(head.encode() + b"\r\n" + body)
    return found


class _Asker(asyncio.Protocol):
    """One connection, which has one question at a time under way."""

    def __init__(self, idle: asyncio.Queue[_Asker]) -> None:
        self._idle = idle
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._answered: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._idle.put_nowait(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._done(0)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        if len(rest) >= size:
            self._buffer = rest[size:]
            self._done(int(head[9:12]))

    def _done(self, status: int) -> None:
        future, self._answered = self._answered, None
        if future is not None and not future.done():
            future.set_result(status)

    async def ask(self, request: bytes) -> int:
        """Return the status of the answer, 0 if the connection has ended."""
        assert self._transport is not None
        if self._transport.is_closing():
            return 0
        future = self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        status: int = await future
        if status:
            self._idle.put_nowait(self)
        return status

    def close(self) -> None:
        """End it."""
        if self._transport is not None:
            self._transport.abort()


async def ask(admin: int, requests: list[bytes], rate: float, connections: int) -> Answered:
    """Send requests at a rate; CPU times are left 0.

    `admin`: port; `requests`: what is sent; `rate`: of them (1/s); `connections`: how many stay
    open. Raises LoopbackError: nobody listens.
    """
    loop = asyncio.get_running_loop()
    idle: asyncio.Queue[_Asker] = asyncio.Queue()
    askers = []
    try:
        for _ in range(connections):
            _, asker = await loop.create_connection(lambda: _Asker(idle), "127.0.0.1", admin)
            askers.append(asker)
    except OSError as error:
        raise LoopbackError(f"no broker answers at port {admin}: {error}") from None
    statuses: Counter[int] = Counter()
    times: list[float] = []
    under_way: set[asyncio.Task[None]] = set()

    async def one(asker: _Asker, request: bytes, due: float) -> None:
        status = await asker.ask(request)
        statuses[status] += 1
        if status == 200:
            times.append(loop.time() - due)

    began = loop.time()
    for number, request in enumerate(requests):
        due = began + number / rate
        if due > loop.time():
            await asyncio.sleep(due - loop.time())
        try:
            asker = await asyncio.wait_for(idle.get(), GRACE)
        except TimeoutError:
            statuses[0] += len(requests) - number
            break
        task = loop.create_task(one(asker, request, due))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    if under_way:
        _, late = await asyncio.wait(under_way, timeout=GRACE)
        statuses[0] += len(late)
        for task in late:
            task.cancel()
    seconds = loop.time() - began
    for asker in askers:
        asker.close()
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
        asyncio.run(ask(root.admin, [request], 1.0, 1))
        state = root.get("/api/placement")
        if state is not None and state["topics"] >= topics:
            return
    raise LoopbackError(f"the rates of {topics} topics are not known after {KNOWN_WAIT:g} s")


def measure(arguments: argparse.Namespace) -> Answered:
    """Return what came of questions to brokers that are started for them. Raises LoopbackError."""
    count = max(1, round(arguments.rate * arguments.seconds))
    requests = questions(count, arguments.topics, arguments.each, arguments.alpha, arguments.seed)
    with federation(arguments.brokers) as brokers:
        publishers = Publishers(brokers, arguments.topics)
        try:
            make_known(brokers, publishers, arguments.topics)
            root = root_of(brokers)
            asked = root
            if arguments.at == "other":
                asked = next((each for each in brokers if each is not root), root)
            before = root.cpu(), asked.cpu()
            gc.disable()  # of this process: it would make answers look late
            found = asyncio.run(ask(asked.admin, requests, arguments.rate, arguments.connections))
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
