"""A client with a connection to each broker where its topics are.

It is used like one client: it subscribes, publishes, and has one stream of messages. Underneath it
asks the federation where its filters and topics belong (`$mqttree/placement`), keeps at most
`sessions` connections, and moves what a broker that dies had to another one. Without a controller
it is a client with one connection.

    async with MultiClient(["broker-1:1883", "broker-2:1883"], "sensor-7") as client:
        await client.subscribe("site/+/t", qos=1)
        await client.publish("site/7/t", b"21.5", qos=1)
        async for message in client.messages():
            print(message.topic, message.payload)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from mqttree.client_connection import (
    Arrival,
    Connection,
    ConnectionLostError,
    Message,
    Options,
    SubscriptionRefusedError,
)

QUESTION: Final = "$mqttree/placement"
"""The topic of questions."""

AT_ONCE: Final = 200
"""filters of one SUBSCRIBE of a connection that goes on elsewhere."""

ANSWER_WAIT: Final = 3.0
"""s for an answer of the controller."""

ASK_PAUSE: Final = 0.2
"""s for which topics are collected that are asked for together."""

ASK_GAP: Final = 0.11
"""s between two questions: the controller answers ten a second."""

ASK_AGAIN: Final = 10.0
"""s after which a controller that has not answered is asked again."""

RETRY: Final = 0.1
MAX_RETRY_S: Final = 5.0
"""s between two rounds of attempts to reach any broker; twice as long each time."""

MAX_TRIED: Final = 64
"""brokers that are asked in one round, if each sends the client to another one."""

MAX_TOPICS: Final = 500
"""topics to publish that are asked for; others go over the first connection."""

MAX_FILTERS: Final = 500
"""filters that are asked for; others go over the first connection."""

log = logging.getLogger("mqttree.client")


@dataclass(slots=True)
class _Filter:
    """A filter of the application, and the connection that has it."""

    qos: int
    at: Connection | None = None
    refused: SubscriptionRefusedError | None = None


class MultiClient:
    """One client of a federation of mqttree brokers, over one or several connections.

    What a single client may rely on holds for each topic: order, QoS 1 at least once, QoS 2 exactly
    once. Messages of different topics may come over different connections, so their order is not
    kept. All methods are to be called in one event loop.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        client_id: str,
        *,
        sessions: int = 4,
        username: str | None = None,
        password: str | None = None,
        keep_alive: int = 30,
        session_expiry: int = 300,
        max_waiting: int = 4000,
        will: tuple[str, bytes, int, bool] | None = None,
        tls_context: Any = None,
        reach: Callable[[str], str] = lambda address: address,
    ) -> None:
        """Make a client that is not connected yet; `start`, or `async with`, connects it.

        Args:
            `addresses`: "HOST:PORT" of brokers, at least one; any of them is enough.
            `client_id`: of the first connection; the others are `client_id~2` and so on.
            `sessions`: connections at most.
            `username`, `password`: of all connections.
            `keep_alive`, `session_expiry`: s, of all connections.
            `max_waiting`: messages at QoS 1 and 2 that wait for the application: brokers keep
                further ones (Receive Maximum). When so many wait, those at QoS 0 are dropped.
            `will`: topic, payload, QoS and RETAIN; the first connection has it.
            `tls_context`: an `ssl.SSLContext`, None: plain TCP.
            `reach`: returns the address under which this machine reaches a broker's address.

        Raises:
            ValueError: there is no address, or one that is none; no client identifier;
                `max_waiting` is below 1.
        """
        known = [addresses] if isinstance(addresses, str) else list(addresses)
        if not known or not client_id:
            raise ValueError("a client needs the address of a broker, and an identifier")
        if max_waiting < 1:
            raise ValueError("max_waiting is below 1")
        self._addresses: list[str] = []
        for address in known:
            split_address(address)
            self._addresses.append(address)
        self._client_id = client_id
        self._sessions = max(1, sessions)
        self._max_waiting = max_waiting
        self._options = Options(
            username,
            password,
            keep_alive,
            session_expiry,
            tls_context,
            min(65_535, max(1, max_waiting // self._sessions)),
        )
        self._will = will
        self._reach = reach
        # No more than twice `max_waiting`.
        self._queue: asyncio.Queue[Arrival] = asyncio.Queue()
        self.dropped = 0
        """Messages at QoS 0 that were dropped because too many waited for the application."""
        self._filters: dict[str, _Filter] = {}
        self._topics: dict[str, Connection | None] = {}  # that it publishes
        self._connections: dict[str, Connection] = {}  # by client identifier
        self._brokers: dict[str, str] = {}  # id of the broker of each connection, by identifier
        self._avoid: dict[str, float] = {}  # broker -> until when (s)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._responses = f"$mqttree/answers/{client_id}"
        self._begin_asking()

    def _begin_asking(self) -> None:
        """Have asked the controller nothing yet."""
        self._version = 0
        self._next_question = 0.0  # s, no earlier
        self._asking = asyncio.Event()
        self._answer: asyncio.Future[dict[str, Any]] | None = None
        self._placing = asyncio.Lock()
        self._response = ""  # topic of the answer that is waited for
        self._questions = 0
        self._silent_until = 0.0  # s; the controller is not asked before

    # ---------------------------------------------------------------- start and end

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Connect to the first address that answers. Raises ConnectionLostError if none does."""
        first = self._new_connection(self._client_id, self._will)
        await self._connect_anywhere(first)
        self._spawn(self._keep_placed())

    async def stop(self) -> None:
        """Disconnect all connections."""
        self._closing = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*[each.close() for each in self._connections.values()])

    @property
    def connections(self) -> dict[str, str]:
        """The address of each connection that stands, by client identifier."""
        return {name: each.address for name, each in self._connections.items() if each.up}

    # ---------------------------------------------------------------- like one client

    async def subscribe(self, topic_filters: str | Iterable[str], qos: int = 0) -> None:
        """Subscribe to one or several filters; returns when their brokers have granted them. Give
        all that you know of at once: they are placed together, and the controller answers ten
        questions a second.

        Args:
            `topic_filters`: one or several.
            `qos`: of all of them.

        Raises:
            SubscriptionRefusedError: a broker refuses one; the others are granted.
        """
        names = [topic_filters] if isinstance(topic_filters, str) else list(topic_filters)
        for name in names:
            found = self._filters.setdefault(name, _Filter(qos))
            if found.qos != qos:
                found.qos = qos
                if found.at is not None:
                    await self._subscribe_at(name, found.at)
        # They are placed together with others that are asked for now.
        await asyncio.sleep(0)
        if any(self._filters[name].at is None for name in names):
            await self._place(names)
        refused = [self._filters[name].refused for name in names if name in self._filters]
        for name in names:
            if name in self._filters and self._filters[name].refused is not None:
                del self._filters[name]
        for error in refused:
            if error is not None:
                raise error

    async def unsubscribe(self, topic_filter: str) -> None:
        """End the subscription to `topic_filter`; nothing happens if there is none."""
        found = self._filters.pop(topic_filter, None)
        if found is not None and found.at is not None:
            await self._patiently(found.at, lambda at: at.unsubscribe(topic_filter))

    async def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, retain: bool = False
    ) -> None:
        """Publish a message; at QoS 1 and 2 returns when its broker has acknowledged it.

        Args:
            `topic`, `payload`: of the message.
            `qos`, `retain`: of its PUBLISH.
        """
        if topic not in self._topics and len(self._topics) < MAX_TOPICS:
            self._topics[topic] = None
            self._asking.set()
        connection = self._topics.get(topic) or self._first
        await connection.publish(topic, payload, qos, retain)

    async def messages(self) -> AsyncIterator[Message]:
        """Yield the messages of all subscriptions, until the client is stopped. Each is
        acknowledged when it is taken."""
        while not self._closing:
            arrival = await self._queue.get()
            arrival.acknowledge()
            yield arrival.message

    # ---------------------------------------------------------------- connections

    @property
    def _first(self) -> Connection:
        return self._connections[self._client_id]

    def _new_connection(
        self, client_id: str, will: tuple[str, bytes, int, bool] | None = None
    ) -> Connection:
        connection = Connection(
            client_id, self._options, will, on_message=self._received, on_lost=self._lost
        )
        self._connections[client_id] = connection
        return connection

    def _received(self, arrival: Arrival) -> None:
        message = arrival.message
        if not message.topic.startswith(self._responses):
            if not message.qos and self._queue.qsize() >= self._max_waiting:
                self.dropped += 1
            else:
                self._queue.put_nowait(arrival)
            return
        arrival.acknowledge()
        if message.topic == self._response and self._answer is not None:
            with contextlib.suppress(ValueError):
                body = json.loads(message.payload)
                if not self._answer.done() and isinstance(body, dict):
                    self._answer.set_result(body)

    def _lost(self, connection: Connection) -> None:
        """A connection broke: it goes on at another broker at once, and is placed again later."""
        if self._closing or self._connections.get(connection.client_id) is not connection:
            return
        broker = self._brokers.pop(connection.client_id, "")
        if broker:
            self._avoid[broker] = time.monotonic() + ASK_AGAIN
        self._spawn(self._restore(connection))

    async def _restore(self, connection: Connection) -> None:
        async with connection.moving:
            # The broker that it was about to go on at may have died as well.
            if not connection.up:
                await self._connect_anywhere(connection, connection.address)
        self._asking.set()

    async def _connect_anywhere(self, connection: Connection, last: str = "") -> None:
        """Connect to any broker, one to which the client was sent first, the one at `last` at the
        end, and subscribe to what the session lacks. Tries again and again, but for the first
        connection of all at its first attempt."""
        pause = RETRY
        while not self._closing:
            live = [each.address for each in self._connections.values() if each.up]
            # A host that is down does not even refuse: others are not to wait for that.
            known = [address for address in self._addresses if address != last]
            waiting = [*referred(connection.reference), *live, *known, last]
            tried: set[str] = set()
            while waiting:
                address = waiting.pop(0)
                if not address or address in tried:
                    continue
                # Brokers that send it to each other are asked once each.
                tried.add(address)
                try:
                    await self._connect(connection, address)
                except ConnectionLostError as error:
                    log.info("%s does not serve %s: %s", address, connection.client_id, error)
                    if len(tried) < MAX_TRIED:
                        waiting[:0] = referred(connection.reference)
                else:
                    return
            if not connection.known:
                raise ConnectionLostError("no broker answers")
            await asyncio.sleep(pause)
            pause = min(MAX_RETRY_S, 2 * pause)

    async def _connect(self, connection: Connection, address: str) -> None:
        host, port = split_address(self._reach(address))
        await connection.connect(host, port, address)
        if connection.subscribed:
            return
        filters = [(f"{self._responses}/+", 1)] if connection is self._first else []
        filters += [(name, at.qos) for name, at in self._filters.items() if at.at is connection]
        # All in one packet: brokers have each SUBSCRIBE wait until all others know of it.
        for first in range(0, len(filters), AT_ONCE):
            for name in await connection.subscribe_all(filters[first : first + AT_ONCE]):
                log.warning("%s: refused", name)
        connection.subscribed = True

    async def _patiently(
        self, connection: Connection, call: Callable[[Connection], Awaitable[None]]
    ) -> None:
        """Do something over a connection, again if it breaks meanwhile."""
        while not self._closing:
            try:
                await connection.ready()
                await call(connection)
            except ConnectionLostError:
                await asyncio.sleep(RETRY)
            else:
                return

    async def _subscribe_at(self, topic_filter: str, connection: Connection) -> None:
        found = self._filters.get(topic_filter)
        if found is None:
            return
        qos = found.qos
        # From now on a new session of this connection has it.
        found.at = connection
        try:
            await self._patiently(connection, lambda at: at.subscribe(topic_filter, qos))
        except SubscriptionRefusedError as error:
            found.refused = error

    # ---------------------------------------------------------------- placement

    async def _keep_placed(self) -> None:
        """Ask again when topics or brokers have changed, and before an answer ends."""
        ttl = ASK_AGAIN
        while not self._closing:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._asking.wait(), ttl)
            self._asking.clear()
            await asyncio.sleep(ASK_PAUSE)
            ttl = await self._place()

    async def _place(self, names: Sequence[str] = ()) -> float:
        """Ask where filters and topics belong, and bring them there. Returns when to ask again
        (s). `names`: filters; if all of them have a place by now, nothing is asked."""
        async with self._placing:
            if names and all(self._filters[n].at for n in names if n in self._filters):
                return ASK_AGAIN
            await asyncio.sleep(max(0.0, self._next_question - time.monotonic()))
            self._next_question = time.monotonic() + ASK_GAP
            answer = await self._ask()
            if answer is not None:
                self._version = int(answer.get("version", 0))
                await self._apply(answer["sessions"])
            # What the controller has no place for goes over the first connection.
            rest = [name for name, found in self._filters.items() if found.at is None]
            await asyncio.gather(*[self._subscribe_at(name, self._first) for name in rest])
        return ASK_AGAIN if answer is None else max(1.0, float(answer.get("ttl_s", 60)) / 2)

    async def _ask(self) -> dict[str, Any] | None:
        """Ask the controller; None if it does not answer, or not so."""
        now = time.monotonic()
        if now < self._silent_until:
            return None
        self._questions += 1
        self._response = f"{self._responses}/{self._questions}"
        self._avoid = {broker: until for broker, until in self._avoid.items() if until > now}
        question = {
            "subscribe": list(self._filters)[:MAX_FILTERS],
            "publish": [name for name in self._topics if not name.startswith("$")][:MAX_TOPICS],
            "sessions": self._sessions,
            "avoid": list(self._avoid),
            "version": self._version,
        }
        self._answer = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(ANSWER_WAIT):
                first = self._first
                await first.ready()
                await first.publish(
                    QUESTION, json.dumps(question).encode(), 0, False, self._response
                )
                answer = await self._answer
        except (TimeoutError, ConnectionLostError):
            self._silent_until = time.monotonic() + ASK_AGAIN
            return None
        finally:
            self._answer = None
        if not isinstance(answer.get("sessions"), list):
            log.info("the controller answers: %s", answer.get("error"))
            return None
        return answer

    async def _apply(self, sessions: Iterable[dict[str, Any]]) -> None:
        """Open the connections of an answer, all at once, and give each its filters and topics."""
        plan = [session for session in sessions if session.get("address")]
        await asyncio.gather(*[self._open(session) for session in plan])
        work = []
        for session in plan:
            connection = self._connections.get(str(session["client_id"]))
            if connection is None or not connection.known:
                continue  # its filters go over the first connection
            for name in session["subscribe"]:
                found = self._filters.get(name)
                # A filter that is subscribed stays: while it moved, messages could come twice.
                if found is not None and found.at is None:
                    work.append(self._subscribe_at(name, connection))
            for topic in session["publish"]:
                await self._publish_at(topic, connection)
        await asyncio.gather(*work)
        await self._close_unused({str(session["client_id"]) for session in plan})

    async def _open(self, session: dict[str, Any]) -> None:
        client_id, address = str(session["client_id"]), str(session["address"])
        connection = self._connections.get(client_id)
        if connection is not None and connection.up and connection.address == address:
            self._brokers[client_id] = str(session["broker"])
            return
        new = connection is None
        if connection is None:
            connection = self._new_connection(client_id)
        async with connection.moving:
            try:
                # The session goes along with its client identifier, if there is one.
                await self._connect(connection, address)
                self._brokers[client_id] = str(session["broker"])
            except ConnectionLostError as error:
                log.info("%s cannot be reached: %s", address, error)
                self._avoid[str(session["broker"])] = time.monotonic() + 6 * ASK_AGAIN
                self._asking.set()
                if new:
                    del self._connections[client_id]
                else:
                    await self._connect_anywhere(connection)

    async def _publish_at(self, topic: str, connection: Connection) -> None:
        """Publish a topic over this connection from now on, behind what is under way elsewhere."""
        before = self._topics.get(topic) or self._first
        if topic in self._topics and before is not connection:
            self._topics[topic] = connection
            connection.follow(topic, before)

    async def _close_unused(self, used: set[str]) -> None:
        needed = {found.at for found in self._filters.values()}
        needed |= {connection for connection in self._topics.values() if connection is not None}
        for client_id, connection in list(self._connections.items()):
            if client_id in used or connection in needed or connection is self._first:
                continue
            if connection.busy:
                continue  # it is closed after a later answer
            del self._connections[client_id]
            self._brokers.pop(client_id, None)
            await connection.close()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def referred(reference: str) -> list[str]:
    """Return the addresses in a Server Reference, those that can be used: "HOST:PORT", several with
    spaces between."""
    found = []
    for address in reference.split():
        with contextlib.suppress(ValueError):
            split_address(address)
            found.append(address)
    return found


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "HOST:PORT" or "[IPv6]:PORT"; without a port it is 1883. Raises
    ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or "]" in port:
        host, port = address, "1883"
    host = host.strip("[]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is no HOST:PORT")
    return host, int(port)
