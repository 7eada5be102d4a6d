"""Clients of real brokers that remember what came."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties

from tests.kit.waiting import PATIENCE, until

_numbers = count()


class Client:
    """paho-mqtt that waits for the answer to everything it asks and keeps every message."""

    def __init__(
        self,
        port: int,
        *,
        client_id: str = "",
        protocol: int = 5,
        clean: bool = True,
        expiry: int = 0,
        will: tuple[str, bytes, int, bool] | None = None,
        will_properties: Properties | None = None,
        transport: str = "tcp",
        ca: Path | None = None,
        keep_alive: int = 60,
        user: tuple[str, str] | None = None,
    ) -> None:
        """Connect. `expiry`: s that an MQTT 5 session is kept; `user`: name and password."""
        self.port = port
        self.messages: list[paho.MQTTMessage] = []
        self.acknowledged: set[int] = set()
        self.connack: Any = None
        self.session_present = False
        self._granted: dict[int, Any] = {}
        self._unsubscribed: set[int] = set()
        self._connected = threading.Event()
        self.lost = threading.Event()
        v5 = protocol == paho.MQTTv5
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean_session=None if v5 else clean,
            protocol=paho.MQTTProtocolVersion(protocol),
            transport=transport,  # type: ignore[arg-type]
            reconnect_on_failure=False,
        )
        self.paho.connect_timeout = PATIENCE
        self.paho.on_connect = self._on_connect
        self.paho.on_disconnect = self._on_disconnect
        self.paho.on_message = self._on_message
        self.paho.on_publish = self._on_publish
        self.paho.on_subscribe = self._on_subscribe
        self.paho.on_unsubscribe = self._on_unsubscribe
        if will is not None:
            self.paho.will_set(*will, properties=will_properties)
        if ca is not None:
            self.paho.tls_set(str(ca))
        if user is not None:
            self.paho.username_pw_set(*user)
        if v5:
            properties = Properties(1)  # of CONNECT
            properties.SessionExpiryInterval = expiry
            self.paho.connect(
                "127.0.0.1", port, keep_alive, clean_start=clean, properties=properties
            )
        else:
            self.paho.connect("127.0.0.1", port, keep_alive)
        self.paho.loop_start()
        assert self._connected.wait(PATIENCE), f"no CONNACK from {port}"
        assert not self.connack.is_failure, self.connack

    def _on_connect(
        self, _client: Any, _data: Any, flags: Any, reason: Any, _properties: Any
    ) -> None:
        self.connack = reason
        self.session_present = flags.session_present
        self._connected.set()

    def _on_disconnect(self, *_: Any) -> None:
        self.lost.set()

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        self.messages.append(message)

    def _on_publish(
        self, _client: Any, _data: Any, mid: int, reason: Any, _properties: Any
    ) -> None:
        if not reason.is_failure:
            self.acknowledged.add(mid)

    def _on_subscribe(
        self, _client: Any, _data: Any, mid: int, reasons: Any, _properties: Any
    ) -> None:
        self._granted[mid] = [reason.value for reason in reasons]

    def _on_unsubscribe(self, _client: Any, _data: Any, mid: int, *_: Any) -> None:
        self._unsubscribed.add(mid)

    def subscribe(self, topic_filter: str, qos: int = 0) -> list[int]:
        """Subscribe; returns what was granted."""
        _, mid = self.paho.subscribe(topic_filter, qos)
        assert mid is not None
        granted: list[int] = until(lambda: self._granted.get(mid), f"SUBACK for {topic_filter}")
        return granted

    def subscribed(self, topic_filter: str, qos: int = 0) -> Self:
        """Subscribe as `subscribe` does; returns the client."""
        self.subscribe(topic_filter, qos)
        return self

    def unsubscribe(self, topic_filter: str) -> None:
        """Unsubscribe."""
        _, mid = self.paho.unsubscribe(topic_filter)
        until(lambda: mid in self._unsubscribed, f"UNSUBACK for {topic_filter}")

    def publish(self, topic: str, payload: bytes | str, qos: int = 0, **more: Any) -> int:
        """Publish without waiting; returns the packet identifier."""
        mid: int = self.paho.publish(topic, payload, qos, **more).mid
        return mid

    def done(self, *mids: int) -> None:
        """Wait until these PUBLISHes are acknowledged (QoS 0: sent)."""
        until(lambda: self.acknowledged.issuperset(mids), "acknowledgements")

    def probe(self, topic: str, come: Callable[[], object]) -> None:
        """Publish probes to a topic until they have come to whom they should."""

        def sent() -> object:
            self.publish(topic, b"probe", 1)
            return come()

        until(sent, f"probes of {topic} come")

    def payloads(self, prefix: str = "") -> list[bytes]:
        """What came, in order, under topics that begin so."""
        return [bytes(m.payload) for m in list(self.messages) if m.topic.startswith(prefix)]

    def got(self, number: int, prefix: str = "") -> list[bytes]:
        """Wait for so many messages; returns all that came."""
        until(
            lambda: len(self.payloads(prefix)) >= number,
            f"{number} messages of '{prefix}' at {self.port}",
        )
        return self.payloads(prefix)

    def break_off(self) -> None:
        """Lose the connection without DISCONNECT."""
        sock = self.paho.socket()
        assert sock is not None
        sock.shutdown(socket.SHUT_RDWR)
        assert self.lost.wait(PATIENCE)
        self.paho.loop_stop()

    def close(self) -> None:
        """Disconnect; harmless when the connection is gone."""
        self.paho.disconnect()
        self.paho.loop_stop()


Make = Callable[..., Client]
"""Makes a client of a port."""


@contextmanager
def clients() -> Iterator[Make]:
    """Give a maker of clients, and close all of them at the end."""
    made: list[Client] = []

    def make(port: int, **more: Any) -> Client:
        made.append(Client(port, **more))
        return made[-1]

    try:
        yield make
    finally:
        for client in made:
            client.close()


class Mosquitto:
    """A mosquitto_sub that runs; its lines are what came."""

    def __init__(self, folder: Path, port: int, *flags: str) -> None:
        self.out = folder / f"mosquitto-{next(_numbers)}.txt"
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                ["stdbuf", "-oL", "mosquitto_sub", "-p", str(port), "-d", *flags],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def __enter__(self) -> Mosquitto:
        """Wait until it has subscribed."""
        try:
            until(
                lambda: "Subscribed (mid" in self.out.read_text(errors="replace"),
                "mosquitto_sub has subscribed",
            )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def lines(self) -> list[str]:
        """What came; without a line that is still being written."""
        noise = ("Client ", "Subscribed (mid")
        return [
            line
            for line in self.out.read_text(errors="replace").split("\n")[:-1]
            if not line.startswith(noise)
        ]

    def got(self, number: int) -> list[str]:
        """Wait for so many lines; returns all."""
        until(lambda: len(self.lines()) >= number, f"{number} lines of mosquitto_sub")
        return self.lines()


def mosquitto_pub(port: int, *flags: str, lines: list[str] | None = None) -> None:
    """Publish by mosquitto_pub; `lines` go to its standard input."""
    text = "".join(f"{line}\n" for line in lines) if lines is not None else None
    done = subprocess.run(
        ["mosquitto_pub", "-p", str(port), *flags],
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def repeated(messages: list[bytes]) -> list[bytes]:
    """Those that came more than once."""
    return [message for message, times in Counter(messages).items() if times > 1]
