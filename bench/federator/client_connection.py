"""A connection to a foreign broker, by a paho client, that is made again whenever it is lost. Each
paho client has one connection: what is not acknowledged when that ends is lost, and counted."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from mqttree.broker.base.log_format import log_line
from mqttree.broker.base.record import Record
from mqttree.broker.config.broker_url import BrokerUrl
from mqttree.broker.io.tls import describe_error

CONNECT_TIMEOUT = 5.0
"""s until the broker has taken the CONNECT and the subscriptions."""

KEEP_ALIVE = 30
"""s; a broker that does not answer for so long is lost."""

FIRST_WAIT = 1.0
LONGEST_WAIT = 30.0
"""s between two attempts: at random, up to three times as long as before."""

STABLE = 60.0
"""s after which a connection counts as good: the next one begins with the first wait again."""

RECEIVE_MAXIMUM = 1_000
"""QoS 2 messages (and QoS 1) that the broker may send before the first is completed."""

MAX_WAITING = 1_000
"""messages that wait because the broker has not acknowledged as many as it takes at once, or the
network takes no more; further ones are dropped."""

Receive = Callable[[str, bytes], None]
"""Takes topic and payload of a message."""


class ClientOptions(Record):
    """As whom a client connects, and what it wants."""

    client_id: str
    user: str | None = None
    password: str | None = None
    filters: tuple[str, ...] = ()
    """Topic filters to subscribe to, with No Local: own messages do not come back."""
    qos: int = 2
    """QoS of subscriptions and publications."""


class ClientConnection:
    """A client at one broker. `run` keeps it connected until it is cancelled."""

    def __init__(
        self,
        name: str,
        url: BrokerUrl,
        options: ClientOptions,
        receive: Receive,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Nothing is dialled yet.

        `name`: of the broker in the log; `url`: where it is; `options`: as whom to connect;
        `receive`: is handed each message; `context`: of TLS, if `url` asks for it.
        """
        self.name = name
        self.url = url
        self.options = options
        self.dropped = 0
        """Messages that the broker did not get, as far as is known."""
        self._receive = receive
        self._context = context
        self._random = random.SystemRandom()
        self._loop: asyncio.AbstractEventLoop
        self._dialled: paho.Client
        # Of the present connection: its client while it stands, how it came up and ended, what the
        # broker allows, how many messages it has not acknowledged, and those that wait for it to.
        self._client: paho.Client | None = None
        self._up: asyncio.Future[None]
        self._lost: asyncio.Future[str]
        self._qos = options.qos
        self._window = 0
        self._max_packet = 0
        self._unacknowledged = 0
        self._waiting: deque[tuple[str, bytes]] = deque()

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish a message; without a connection it is dropped, and counted."""
        # The broker would close the connection: 5 bytes are the fixed header, 5 more the lengths.
        size = len(topic.encode()) + len(payload) + 10
        full = len(self._waiting) >= MAX_WAITING
        if self._client is None or full or size > self._max_packet > 0:
            self.dropped += 1
        else:
            self._waiting.append((topic, payload))
            self._send(self._client)

    def _send(self, client: paho.Client) -> None:
        """Send queued messages, as far as the broker takes them now."""
        while self._waiting and self._unacknowledged < self._window:
            if client.publish(*self._waiting.popleft(), self._qos).rc == paho.MQTT_ERR_SUCCESS:
                self._unacknowledged += 1
            else:
                self.dropped += 1

    async def run(self) -> None:
        """Connect, and connect again whenever the connection is lost."""
        loop = self._loop = asyncio.get_running_loop()
        wait = FIRST_WAIT
        while True:
            began = loop.time()
            why = await self._serve()
            if loop.time() - began >= STABLE:
                wait = FIRST_WAIT
            wait = min(LONGEST_WAIT, self._random.uniform(FIRST_WAIT, 3 * wait))
            text = (
                f"no connection to {self.name} at {self.url}: {why}; next attempt in {wait:.1f} s"
            )
            log_line("warning", text)
            await asyncio.sleep(wait)

    async def _serve(self) -> str:
        """Serve one connection to its end; return why it ended, or was not made."""
        loop = self._loop
        self._up, self._lost = loop.create_future(), loop.create_future()
        self._unacknowledged = 0
        client = self._new_client()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await loop.run_in_executor(None, self._dial, client)
                client.loop_start()  # not in `_dial`, which may go on after `loop_stop`
                await asyncio.wait((self._up, self._lost), return_when=asyncio.FIRST_COMPLETED)
            if not self._lost.done():
                self._client = client
                log_line("info", f"connected to {self.name} at {self.url}")
            return await self._lost
        except TimeoutError:
            return f"no answer within {CONNECT_TIMEOUT:.0f} s"
        except (OSError, ValueError) as error:
            return describe_error(error)
        finally:
            self._client = None
            self.dropped += self._unacknowledged + len(self._waiting)
            self._waiting.clear()
            client.disconnect()
            await loop.run_in_executor(None, client.loop_stop)

    def _new_client(self) -> paho.Client:
        options = self.options
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            options.client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False,
        )
        client.connect_timeout = CONNECT_TIMEOUT
        client.max_inflight_messages_set(65_535)  # what the broker takes is counted here
        if options.user is not None:
            client.username_pw_set(options.user, options.password)
        if self.url.tls and self._context is not None:
            client.tls_set_context(self._context)

        def tell(call: Callable[..., None], *arguments: Any) -> None:
            """Hand something to the event loop, from the thread of the client."""
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._hear, client, call, *arguments)

        client.on_connect = lambda _, __, ___, reason, given: tell(self._connected, reason, given)
        client.on_disconnect = lambda _, __, ___, reason, ____: tell(self._on_lost, str(reason))
        client.on_subscribe = lambda _, __, ___, reasons, ____: tell(self._subscribed, reasons)
        client.on_publish = lambda _, __, ___, reason, ____: tell(self._acknowledged, reason)
        client.on_message = lambda _, __, message: tell(
            self._receive, message.topic, message.payload
        )
        self._dialled = client
        return client

    def _dial(self, client: paho.Client) -> None:
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.ReceiveMaximum = RECEIVE_MAXIMUM
        client.connect(self.url.host, self.url.port, KEEP_ALIVE, properties=properties)

    # ---------------------------------------------------------------- in the event loop

    def _hear(self, client: paho.Client, call: Callable[..., None], *arguments: Any) -> None:
        """Take a word of a client, unless another one has replaced it."""
        if client is self._dialled:
            call(*arguments)

    def _connected(self, reason: Any, given: Any) -> None:
        if reason.is_failure:
            self._on_lost(f"it refuses: {reason}")
            return
        options, client = self.options, self._dialled
        self._window = getattr(given, "ReceiveMaximum", 65_535)
        self._max_packet = getattr(given, "MaximumPacketSize", 0)
        self._qos = min(options.qos, getattr(given, "MaximumQoS", 2))
        if not options.filters:
            self._on_up()
            return
        # Retained messages are old, and would be taken for new ones at each reconnect.
        asked = SubscribeOptions(
            self._qos, noLocal=True, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND
        )
        client.subscribe([(each, asked) for each in options.filters])

    def _subscribed(self, reasons: list[Any]) -> None:
        for each, reason in zip(self.options.filters, reasons, strict=False):
            if reason.is_failure:
                log_line("error", f"{self.name} refuses the subscription to {each}")
        self._on_up()

    def _on_up(self) -> None:
        if not self._up.done():
            self._up.set_result(None)

    def _on_lost(self, why: str) -> None:
        if not self._lost.done():
            self._lost.set_result(why)

    def _acknowledged(self, reason: Any) -> None:
        self._unacknowledged -= 1
        if reason.is_failure:
            self.dropped += 1
        if self._client is not None:
            self._send(self._client)
