"""How a `MultiClient` goes on when its broker is killed: `mqttree bench placement takeover`.

Three brokers with standbys run as processes. A client is at one of them; publishers at the two
others publish at an even rate, each message with its number and time. The client's broker is killed
(kill -9) and does not come back. Measured are the time until the first message that was published
after the death has come, and which of the messages that brokers had acknowledged came never, or
more than once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import signal
import statistics
import time
from collections import Counter, deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mqttree.bench import checked
from mqttree.bench.lab.loopback import Broker, LoopbackError, federation

if TYPE_CHECKING:
    from mqttree.multi_client import MultiClient

CONFIG = "federation: {replicas: 1, standby-hosts: any}"
"""All brokers are on this machine, so no standby is looked for elsewhere."""

BEFORE = 2.0
"""s of publishing before the death."""

AFTER = 3.0
"""s of publishing after the client is served again."""

PATIENCE = 30.0
"""s until it is; in which nothing comes: what has not come until then is lost."""

QUIET = 2.0
"""s in which nothing comes when all has come: nothing comes twice after that."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one death."""

    first: float
    """s from the death to the first message that was published after it."""
    published: int
    """Messages that were acknowledged."""
    lost: int
    """Those of them that did not come."""
    doubled: int
    """Those that came more than once."""


class _Reader:
    """Counts what comes to a client."""

    def __init__(self, client: MultiClient) -> None:
        self.count: Counter[bytes] = Counter()
        self.came = time.monotonic()
        self.died = 0.0
        self.first = 0.0
        """When the first message came that was published after the death; 0: none has."""
        self._task = asyncio.get_running_loop().create_task(self._read(client))

    async def _read(self, client: MultiClient) -> None:
        async for message in client.messages():
            self.came = time.monotonic()
            self.count[message.payload] += 1
            if self.died and not self.first and float(message.payload.split()[2]) > self.died:
                self.first = self.came

    def stop(self) -> None:
        """Count no more."""
        self._task.cancel()


class _Publisher:
    """A client of one broker, where it stays."""

    def __init__(self, broker: Broker, name: str) -> None:
        """Connect to a `broker`; `name`: begins each of its payloads."""
        import paho.mqtt.client as paho
        from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

        self.acknowledged: list[bytes] = []
        self._name = name
        self._sent: dict[int, bytes] = {}
        self._paho = paho.Client(
            CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion.MQTTv5
        )
        self._paho.max_inflight_messages_set(1000)
        self._early: deque[int] = deque()  # acknowledged packet identifiers
        self._paho.on_publish = lambda *given: self._early.append(given[2])
        self._paho.connect("127.0.0.1", broker.port)
        self._paho.loop_start()

    async def publish(self, qos: int, rate: float, stop: asyncio.Event) -> None:
        """Publish until `stop` is set, at a `rate` (messages/s); return when all is acknowledged.
        Raises LoopbackError: it is not."""
        began, number = time.monotonic(), 0
        while not stop.is_set():
            payload = f"{self._name} {number} {time.monotonic():.6f}".encode()
            self._sent[self._paho.publish(f"takeover/{self._name}", payload, qos).mid] = payload
            self._take()
            number += 1
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        end = time.monotonic() + PATIENCE
        while self._sent:
            if time.monotonic() > end:
                raise LoopbackError(f"{len(self._sent)} messages are not acknowledged")
            await asyncio.sleep(0.01)
            self._take()

    def _take(self) -> None:
        """Note what was acknowledged; paho says it in a thread of its own, maybe before `publish`
        has returned."""
        for _ in range(len(self._early)):
            mid = self._early.popleft()
            payload = self._sent.pop(mid, None)
            if payload is None:
                self._early.append(mid)
            else:
                self.acknowledged.append(payload)

    def close(self) -> None:
        """Disconnect."""
        self._paho.disconnect()
        self._paho.loop_stop()


async def _settled(reader: _Reader, sent: list[bytes]) -> None:
    """Wait until all that was sent has come and nothing further does, or nothing has for long."""
    while any(payload not in reader.count for payload in sent):
        if time.monotonic() > reader.came + PATIENCE:
            return
        await asyncio.sleep(0.05)
    while time.monotonic() < reader.came + QUIET:
        await asyncio.sleep(0.05)


async def strike(brokers: list[Broker], qos: int, rate: float) -> Outcome:
    """Kill the broker of a client, and return what came of it.

    `brokers`: three, the last of which is killed; `qos`: of all messages; `rate`: of each of the
    two publishers (messages/s). Raises LoopbackError: the client is not served again.
    """
    # Its client library is an extra of the distribution.
    from mqttree.multi_client import MultiClient

    victim = brokers[-1]
    others = brokers[:-1]
    stop = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        addresses = [victim.address, *[each.address for each in others]]
        client = await stack.enter_async_context(MultiClient(addresses, "takeover", sessions=1))
        reader = _Reader(client)
        stack.callback(reader.stop)
        await client.subscribe("takeover/#", qos)
        publishers = [_Publisher(broker, f"p{number}") for number, broker in enumerate(others)]
        for each in publishers:
            stack.callback(each.close)
        work = [asyncio.create_task(each.publish(qos, rate, stop)) for each in publishers]
        await asyncio.sleep(BEFORE)
        victim.end(signal.SIGKILL)
        died = reader.died = time.monotonic()
        while not reader.first:
            if time.monotonic() > died + PATIENCE:
                raise LoopbackError(f"nothing came within {PATIENCE:g} s of the death")
            await asyncio.sleep(0.01)
        await asyncio.sleep(AFTER)
        stop.set()
        await asyncio.gather(*work)
        sent = [payload for each in publishers for payload in each.acknowledged]
        await _settled(reader, sent)
    lost = sum(payload not in reader.count for payload in sent)
    doubled = sum(number > 1 for number in reader.count.values())
    return Outcome(reader.first - died, len(sent), lost, doubled)


def add_arguments(commands: Any) -> None:
    """Add the command to argparse's `commands`."""
    parser = commands.add_parser(
        "takeover", help="how a MultiClient goes on when its broker is killed: runs brokers"
    )
    parser.add_argument(
        "--rounds",
        type=partial(checked.count, most=1000),
        default=5,
        metavar="N",
        help="deaths at each QoS (5)",
    )
    parser.add_argument(
        "--qos", type=int, choices=(1, 2), action="append", help="of all messages (1 and 2)"
    )
    parser.add_argument(
        "--rate",
        type=checked.positive,
        default=100.0,
        metavar="X",
        help="messages a second of each of the two publishers (100)",
    )
    parser.set_defaults(handler=main)


def main(arguments: argparse.Namespace) -> int:
    """Carry out the command; 1: a message was lost, or came twice at QoS 2. Raises ValueError, in
    one line: brokers failed, or the client's library is not installed."""
    if importlib.util.find_spec("paho") is None:
        raise ValueError("paho is not installed: pip install 'mqttree[client]'")
    code = 0
    print(
        f"{'QoS':>3} {'deaths':>7} {'first message after ms: median':>31} {'most':>7} "
        f"{'published':>10} {'lost':>6} {'doubled':>8}"
    )
    for qos in arguments.qos or (1, 2):
        found = []
        for _ in range(arguments.rounds):
            with federation(3, CONFIG) as brokers:
                found.append(asyncio.run(strike(brokers, qos, arguments.rate)))
        firsts = [each.first * 1e3 for each in found]
        lost = sum(each.lost for each in found)
        doubled = sum(each.doubled for each in found)
        published = sum(each.published for each in found)
        print(
            f"{qos:>3} {len(found):>7} {statistics.median(firsts):>31.0f} {max(firsts):>7.0f} "
            f"{published:>10,} {lost:>6} {doubled:>8}"
        )
        if lost or (qos == 2 and doubled):
            code = 1
    return code
