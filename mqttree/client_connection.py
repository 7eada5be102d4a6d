"""One connection of a `MultiClient`: a paho client whose thread hands everything to an event loop.

The paho client stays the same when the connection goes to another broker, so that it sends again
what was not acknowledged, with the same packet identifiers: exactly once at QoS 2.

Messages that come at QoS 1 and 2 are acknowledged when the application takes them, so no more than
Receive Maximum wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

CONNECT_WAIT: Final = 5.0
"""s for CONNACK."""

SOCKET_WAIT: Final = 1.0
"""s for the TCP connection."""

ANSWER_WAIT: Final = 10.0
"""s for SUBACK and UNSUBACK."""

ELSEWHERE: Final = (0x9C, 0x9D)
"""Reason Codes of a broker that sends its clients to another one: temporarily, permanently."""

INFLIGHT: Final = 500
"""messages at QoS 1 and 2 that are not acknowledged; further ones wait."""


class ConnectionLostError(Exception):
    """A broker does not answer, or refuses the client."""


class SubscriptionRefusedError(Exception):
    """A broker refused a subscription."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message that came."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


class Arrival(NamedTuple):
    """A message that waits for the application."""

    message: Message
    connection: Connection
    mid: int
    """Packet identifier, 0 at QoS 0."""
    session: int
    """Which session of its connection it belongs to."""

    def acknowledge(self) -> None:
        """Tell the broker that the application has it."""
        self.connection.acknowledge(self.mid, self.message.qos, self.session)


class Options(NamedTuple):
    """What all connections of a client have in common. Times in s."""

    username: str | None
    password: str | None
    keep_alive: int
    session_expiry: int
    tls_context: Any
    receive_maximum: int
    """Messages at QoS 1 and 2 that the application has not taken."""


class Connection:
    """A connection with a client identifier of its own."""

    def __init__(
        self,
        client_id: str,
        options: Options,
        will: tuple[str, bytes, int, bool] | None,
        *,
        on_message: Callable[[Arrival], None],
        on_lost: Callable[[Connection], None],
    ) -> None:
        """Make a connection that is not connected.

        Args:
            `client_id`: its client identifier.
            `options`: of all connections.
            `will`: topic, payload, QoS, RETAIN; None: no will.
            `on_message`, `on_lost`: called in the event loop.
        """
        self.client_id = client_id
        self.address = ""
        """Of the broker, as the federation says it."""
        self.up = False
        self.reference = ""
        """Where the broker that refused or disconnected it last has sent it, "": nowhere (Server
        Reference; MQTT 5, 4.11)."""
        self.known = False
        """Whether it has been connected once."""
        self.subscribed = False
        """Whether its session has its filters; one that a broker has begun lacks them."""
        # Held by the thread that dials or disconnects: `close` comes while another one dials.
        self._dialling = threading.Lock()
        self.moving = asyncio.Lock()
        """Held while it goes to another broker."""
        self._options = options
        self._on_message = on_message
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._connack: asyncio.Future[None] | None = None
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._early: dict[int, Any] = {}
        self._published: dict[int, asyncio.Future[None]] = {}
        self._topics: dict[str, set[asyncio.Future[None]]] = {}  # under way at QoS 1 and 2
        self._behind: dict[str, asyncio.Task[Any]] = {}
        self._wanted = False  # to be connected
        self._session = 0  # counts those that brokers have begun
        # QoS 2 messages of this session that are acknowledged; the broker may ask again.
        self._completed: deque[int] = deque(maxlen=options.receive_maximum)
        self._paho = self._new_paho(will)

    def _new_paho(self, will: tuple[str, bytes, int, bool] | None) -> paho.Client:
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            self.client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.connect_timeout = SOCKET_WAIT
        client.max_inflight_messages_set(INFLIGHT)
        client.on_connect = self._paho_connected
        client.on_disconnect = self._paho_disconnected
        client.on_message = self._paho_message
        client.on_publish = self._paho_published
        client.on_subscribe = self._paho_subscribed
        client.on_unsubscribe = self._paho_unsubscribed
        if self._options.username is not None:
            client.username_pw_set(self._options.username, self._options.password)
        if self._options.tls_context is not None:
            client.tls_set_context(self._options.tls_context)
        if will is not None:
            client.will_set(*will)
        return client

    # ---------------------------------------------------------------- callbacks, in paho's thread

    def _call(self, call: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(call, *arguments)

    def _paho_connected(
        self, client: Any, data: Any, flags: Any, reason: Any, properties: Any
    ) -> None:
        where = _reference(reason, properties)
        present = bool(flags.session_present)
        self._call(self._connected, present, str(reason), reason.is_failure, where)

    def _paho_disconnected(
        self, client: Any, data: Any, flags: Any, reason: Any, properties: Any
    ) -> None:
        self._call(self._disconnected, str(reason), _reference(reason, properties))

    def _paho_message(self, client: Any, data: Any, message: paho.MQTTMessage) -> None:
        found = Message(message.topic, bytes(message.payload), message.qos, message.retain)
        self._call(self._arrived, found, message.mid)

    def _paho_published(
        self, client: Any, data: Any, mid: int, reason: Any, properties: Any
    ) -> None:
        self._call(self._acknowledged, mid)

    def _paho_subscribed(
        self, client: Any, data: Any, mid: int, reasons: Any, properties: Any
    ) -> None:
        self._call(self._on_answer, mid, [reason.value for reason in reasons])

    def _paho_unsubscribed(
        self, client: Any, data: Any, mid: int, reasons: Any, properties: Any
    ) -> None:
        self._call(self._on_answer, mid, [])

    # ---------------------------------------------------------------- in the event loop

    def _connected(self, present: bool, reason: str, failed: bool, where: str) -> None:
        if not failed and present:
            # It asks for the end of these again (PUBREL), which paho does not answer.
            for mid in self._completed:
                self._paho.ack(mid, 2)
        elif not failed:
            self._session += 1
            self._completed.clear()
            self.subscribed = False
        if self._connack is not None and not self._connack.done():
            if failed:
                self.reference = where
                self._connack.set_exception(ConnectionLostError(reason))
            else:
                self._connack.set_result(None)

    def _arrived(self, message: Message, mid: int) -> None:
        self._on_message(Arrival(message, self, mid, self._session))

    def acknowledge(self, mid: int, qos: int, session: int) -> None:
        """Acknowledge a message that has come, unless its session is gone.

        Args:
            `mid`: its packet identifier, 0 at QoS 0.
            `qos`: of the message.
            `session`: the one in which it came.
        """
        if not qos or session != self._session:
            return
        if qos == 2:
            self._completed.append(mid)
        self._paho.ack(mid, qos)

    def _disconnected(self, reason: str, where: str) -> None:
        self.reference = where or self.reference
        if self._connack is not None and not self._connack.done():
            # The broker may have begun a session.
            self.subscribed = False
            self._connack.set_exception(ConnectionLostError(reason))
        for future in self._answers.values():
            if not future.done():
                future.set_exception(ConnectionLostError(reason))
        self._answers.clear()
        if self.up:
            self.up = False
            self._ready.clear()
            if self._wanted:
                self._on_lost(self)

    def _on_answer(self, mid: int, codes: list[int]) -> None:
        future = self._answers.pop(mid, None)
        if future is None:
            self._early[mid] = codes
        elif not future.done():
            future.set_result(codes)

    def _acknowledged(self, mid: int) -> None:
        future = self._published.pop(mid, None)
        if future is None:
            self._early[mid] = None
        elif not future.done():
            future.set_result(None)

    @property
    def busy(self) -> bool:
        """Whether messages at QoS 1 and 2 are not acknowledged yet."""
        return bool(self._published)

    async def ready(self) -> None:
        """Wait until it is connected."""
        await self._ready.wait()

    async def connect(self, host: str, port: int, address: str) -> None:
        """Connect to a broker, in place of the one where it is. Then `subscribed` says whether the
        session was there with its filters. Raises ConnectionLostError.

        Args:
            `host`, `port`: where the broker is reached.
            `address`: of the broker, as the federation says it.
        """
        self._wanted = False
        self.up = False
        self._ready.clear()
        await self._loop.run_in_executor(None, self._leave)
        # What the older connection had to say has been said by now.
        await asyncio.sleep(0)
        self.reference = ""
        self._connack = self._loop.create_future()
        try:
            await self._loop.run_in_executor(None, self._dial, host, port)
            async with asyncio.timeout(CONNECT_WAIT):
                await self._connack
        except TimeoutError:
            self.subscribed = False
            raise ConnectionLostError("no answer") from None
        except (OSError, ValueError) as error:
            raise ConnectionLostError(str(error) or type(error).__name__) from None
        finally:
            self._connack = None
        self.address = address
        self.up = self.known = self._wanted = True
        self._ready.set()

    def _leave(self) -> None:
        """End the connection; its session goes on elsewhere, and its will is not sent."""
        with self._dialling:
            self._paho.disconnect()
            self._paho.loop_stop()

    def _dial(self, host: str, port: int) -> None:
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = self._options.session_expiry
        properties.ReceiveMaximum = self._options.receive_maximum
        # A session goes on with this object; an older one of the same name is another client's.
        clean_start = not self.known
        with self._dialling:
            self._paho.connect(
                host, port, self._options.keep_alive, clean_start=clean_start, properties=properties
            )
            self._paho.loop_start()

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        """Subscribe to `topic_filter` with `qos`. Raises ConnectionLostError, and
        SubscriptionRefusedError if the broker refuses it."""
        [code] = await self._subscribe([(topic_filter, SubscribeOptions(qos))])
        if code >= 0x80:
            raise SubscriptionRefusedError(f"{topic_filter}: refused with 0x{code:02x}")

    async def subscribe_all(self, filters: Sequence[tuple[str, int]]) -> list[str]:
        """Subscribe to `filters`, each with its QoS, in one packet; return those that the broker
        refuses. What is retained comes for those that the session lacks. Raises
        ConnectionLostError."""
        handling = SubscribeOptions.RETAIN_SEND_IF_NEW_SUB
        codes = await self._subscribe(
            [(name, SubscribeOptions(qos, retainHandling=handling)) for name, qos in filters]
        )
        return [name for (name, _), code in zip(filters, codes, strict=True) if code >= 0x80]

    async def _subscribe(self, filters: Sequence[tuple[str, SubscribeOptions]]) -> list[int]:
        """Subscribe in one packet; return the Reason Codes."""
        codes = list(await self._ask(lambda: self._paho.subscribe(list(filters))))
        return codes if len(codes) == len(filters) else [0x80] * len(filters)

    async def unsubscribe(self, topic_filter: str) -> None:
        """End a subscription. Raises ConnectionLostError."""
        await self._ask(lambda: self._paho.unsubscribe(topic_filter))

    async def _ask(self, call: Callable[[], Any]) -> Any:
        result, mid = call()
        if result != paho.MQTT_ERR_SUCCESS or mid is None:
            raise ConnectionLostError("not connected")
        if mid in self._early:
            return self._early.pop(mid)
        future = self._answers[mid] = self._loop.create_future()
        try:
            async with asyncio.timeout(ANSWER_WAIT):
                return await future
        except TimeoutError:
            self._answers.pop(mid, None)
            raise ConnectionLostError("no answer") from None

    async def publish(
        self, topic: str, payload: bytes, qos: int, retain: bool, response: str = ""
    ) -> None:
        """Publish a message, and wait until it is acknowledged at QoS 1 and 2, over however many
        connections.

        Args:
            `topic`, `payload`, `qos`, `retain`: of the message.
            `response`: its Response Topic, "": none.
        """
        behind = self._behind.get(topic)
        if behind is not None:
            await asyncio.wait([behind])
        properties = None
        if response:
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            properties.ResponseTopic = response
        info = self._paho.publish(topic, payload, qos, retain, properties)
        if not qos:
            return
        if info.mid in self._early:
            del self._early[info.mid]
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._published[info.mid] = future
        under_way = self._topics.setdefault(topic, set())
        under_way.add(future)
        try:
            await asyncio.shield(future)
        finally:
            under_way.discard(future)
            if not under_way:
                self._topics.pop(topic, None)

    def follow(self, topic: str, before: Connection) -> None:
        """Publish messages of a topic only when those are acknowledged that are under way over the
        connection `before`."""
        under_way = list(before._topics.get(topic, ()))
        if under_way:
            task = self._behind[topic] = self._loop.create_task(asyncio.wait(under_way))
            task.add_done_callback(lambda _: self._behind.pop(topic, None))

    async def close(self) -> None:
        """Disconnect: the session ends when its time is up."""
        self._wanted = self.up = False
        self._ready.clear()
        await self._loop.run_in_executor(None, self._leave)


def _reference(reason: Any, properties: Any) -> str:
    """Return the Server Reference of a CONNACK or DISCONNECT, "" if it is not to be followed."""
    if reason.value not in ELSEWHERE:
        return ""
    return str(getattr(properties, "ServerReference", ""))
