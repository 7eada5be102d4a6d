"""A connection to a foreign broker that is made again whenever it is lost."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from typing import cast

from mqttree.broker.base.log_format import log_line
from mqttree.broker.config.broker_url import BrokerUrl
from mqttree.broker.io.client_protocol import ClientError, ClientOptions, ClientProtocol, Received
from mqttree.broker.io.tls import describe_error

__all__ = ["ClientConnection"]

CONNECT_TIMEOUT = 5.0
"""s until the broker has taken the CONNECT and the subscriptions."""

FIRST_WAIT = 1.0
LONGEST_WAIT = 30.0
"""s between two attempts: at random, up to three times as long as before."""

STABLE = 60.0
"""s after which a connection counts as good: the next one begins with the first wait again."""

MAX_UNWRITTEN = 8 << 20
"""bytes that the network has not taken; with more, messages are dropped."""

Receive = Callable[[Received], None]


class _Stream(asyncio.Protocol):
    """One TCP connection: moves bytes between a socket and a `ClientProtocol`."""

    def __init__(self, protocol: ClientProtocol, receive: Receive) -> None:
        self.protocol = protocol
        self.receive = receive
        loop = asyncio.get_running_loop()
        self.up: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[str] = loop.create_future()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.flush()

    def data_received(self, data: bytes) -> None:
        try:
            messages = self.protocol.receive(data)
        except ClientError as error:
            self.end(str(error))
            return
        for message in messages:
            self.receive(message)
        self.flush()
        if self.protocol.connected and not self.up.done():
            self.up.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._note("it closes the connection" if exc is None else describe_error(exc))

    def publish(self, topic: str, payload: bytes) -> None:
        transport = self.transport
        if transport is None or transport.get_write_buffer_size() > MAX_UNWRITTEN:
            self.protocol.dropped += 1
        elif self.protocol.publish(topic, payload):
            self.flush()

    def flush(self) -> None:
        if self.protocol.out and self.transport is not None:
            out = bytes(self.protocol.out)
            self.protocol.out.clear()
            self.transport.write(out)

    def end(self, why: str) -> None:
        """Close the connection; bytes that are still to be written are lost."""
        self._note(why)
        if self.transport is not None:
            self.transport.abort()

    def _note(self, why: str) -> None:
        if not self.lost.done():
            self.lost.set_result(why)


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
        self._receive = receive
        self._context = context
        self._stream: _Stream | None = None
        self._dropped = 0
        self._random = random.SystemRandom()

    @property
    def connected(self) -> bool:
        """Whether messages can be published now."""
        return self._stream is not None

    @property
    def dropped(self) -> int:
        """Messages that the broker did not get, as far as is known."""
        return self._dropped + (self._stream.protocol.dropped if self._stream is not None else 0)

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish a message; without a connection it is dropped, and counted."""
        if self._stream is None:
            self._dropped += 1
        else:
            self._stream.publish(topic, payload)

    async def run(self) -> None:
        """Connect, and connect again whenever the connection is lost."""
        loop = asyncio.get_running_loop()
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
        loop = asyncio.get_running_loop()
        stream = _Stream(ClientProtocol(self.options), self._receive)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await loop.create_connection(
                    lambda: stream,
                    self.url.host,
                    self.url.port,
                    ssl=self._context if self.url.tls else None,
                )
                await asyncio.wait((stream.up, stream.lost), return_when=asyncio.FIRST_COMPLETED)
            if stream.lost.done():
                return stream.lost.result()
            self._connected(stream)
            return await self._keep_alive(stream)
        except TimeoutError:
            return f"no answer within {CONNECT_TIMEOUT:.0f} s"
        except (OSError, ssl.SSLError, UnicodeError) as error:
            return describe_error(error)
        finally:
            self._ended(stream)

    def _connected(self, stream: _Stream) -> None:
        self._stream = stream
        log_line("info", f"connected to {self.name} at {self.url}")
        for each in stream.protocol.refused_filters:
            log_line("error", f"{self.name} refuses the subscription to {each}")

    def _ended(self, stream: _Stream) -> None:
        """Say goodbye if the other end is there, and count what it did not get."""
        self._stream = None
        if stream.transport is not None and not stream.transport.is_closing():
            stream.protocol.disconnect()
            stream.flush()
            stream.transport.close()
        self._dropped += stream.protocol.dropped + stream.protocol.unfinished

    async def _keep_alive(self, stream: _Stream) -> str:
        """Ask for signs of life until the connection ends; return why it did."""
        while True:
            period = stream.protocol.keep_alive / 2 or None
            done, _ = await asyncio.wait((stream.lost,), timeout=period)
            if done:
                return stream.lost.result()
            try:
                stream.protocol.ping()
            except ClientError as error:
                stream.end(str(error))
            stream.flush()
