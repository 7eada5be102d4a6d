"""What the broker tells about itself under $SYS/broker, by Mosquitto's names (mosquitto(8), "Broker
status"), and of clients that it sends to other brokers, if it does.

Everything comes from counters, every interval, and only values that changed are published; they are
retained here and never go to other brokers. Messages are MQTT packets of any type, as Mosquitto
counts them; "publish" is PUBLISH alone. publish/bytes are whole packets (Mosquitto: payloads),
because payloads would have to be measured one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from mqttree.broker.core.message import Message
from mqttree.broker.core.serving_broker import ServingBroker

if TYPE_CHECKING:
    from mqttree.broker.base.counters import Counters
    from mqttree.broker.core.client_registry import ClientRegistry

ROOT = "$SYS/broker/"

INTERVAL = 10.0
"""s; Mosquitto's sys_interval."""

AVERAGES = {"1min": 1.0, "5min": 5.0, "15min": 15.0}
"""Names of the moving averages -> minutes."""

LOADS: dict[str, Callable[[Counters], int]] = {
    "messages/received": lambda counters: counters.packets_received,
    "messages/sent": lambda counters: counters.packets_sent,
    "publish/received": lambda counters: counters.publish_received,
    "publish/sent": lambda counters: counters.delivered,
    "publish/dropped": lambda counters: counters.dropped,
    "bytes/received": lambda counters: counters.bytes_received,
    "bytes/sent": lambda counters: counters.bytes_sent,
    "connections": lambda counters: counters.connects,
    "sockets": lambda counters: counters.connections_accepted,
}
"""Counters whose averages a minute are published."""


class SysTopicsBroker(ServingBroker, Protocol):
    """What the statistics ask of their broker."""

    @property
    def clients(self) -> ClientRegistry:
        """The clients that are connected."""


class Load:
    """Exponentially weighted averages of a counter's growth per minute, over 1, 5 and 15
    minutes."""

    __slots__ = ("_last", "averages")

    def __init__(self) -> None:
        self._last = 0
        self.averages = dict.fromkeys(AVERAGES, 0.0)

    def update(self, value: int, seconds: float) -> None:
        """Take in what the counter stands at, so many `seconds` after the last time."""
        rate = (value - self._last) * 60.0 / seconds
        self._last = value
        for name, minutes in AVERAGES.items():
            old = self.averages[name]
            self.averages[name] = rate + math.exp(-seconds / (60.0 * minutes)) * (old - rate)


class SysTopics:
    """Publishes the statistics of one node; see `start`."""

    def __init__(
        self,
        node: SysTopicsBroker,
        version: str,
        memory: Callable[[], int],
        interval: float = INTERVAL,
    ) -> None:
        """`node`: the broker that is described; `version`: the text under version; `memory`:
        returns the bytes that the process uses; `interval`: s."""
        self.node = node
        self.interval = interval
        self._version = version
        self._memory = memory
        self._started = node.now
        self._last = node.now
        self._loads = {name: Load() for name in LOADS}
        self._published: dict[str, str] = {}
        self._most_clients = 0
        self._most_memory = 0

    def start(self, now: float) -> None:
        """Publish now, and every interval."""
        self._started = self._last = now
        self.tick(now)

    def tick(self, now: float) -> None:
        """Publish what changed, and come back."""
        self.node.timers.schedule(now + self.interval, self.tick)
        if now > self._last:
            for name, load in self._loads.items():
                load.update(LOADS[name](self.node.counters), now - self._last)
            self._last = now
        for name, text in self.values(now).items():
            if self._published.get(name) != text:
                self._published[name] = text
                self._publish(ROOT + name, text.encode())

    def values(self, now: float) -> dict[str, str]:
        """Return name (without "$SYS/broker/") -> value."""
        node = self.node
        counters = node.counters
        sessions = len(node.sessions)
        connected = node.clients.connected
        inflight, waiting, waiting_bytes = self._waiting()
        memory = self._memory()
        retained = len(node.retained) + node.retained.own
        self._most_clients = max(self._most_clients, sessions)
        self._most_memory = max(self._most_memory, memory)
        numbers: dict[str, int] = {
            "clients/total": sessions,
            "clients/maximum": self._most_clients,
            "clients/connected": connected,
            "clients/active": connected,
            "clients/disconnected": sessions - connected,
            "clients/inactive": sessions - connected,
            "clients/expired": counters.sessions_expired,
            "messages/received": counters.packets_received,
            "messages/sent": counters.packets_sent,
            "messages/inflight": inflight,
            "messages/stored": retained + waiting,
            "publish/messages/received": counters.publish_received,
            "publish/messages/sent": counters.delivered,
            "publish/messages/dropped": counters.dropped,
            "publish/bytes/received": counters.publish_bytes_received,
            "publish/bytes/sent": counters.publish_bytes_sent,
            "bytes/received": counters.bytes_received,
            "bytes/sent": counters.bytes_sent,
            "subscriptions/count": node.dispatcher.subscriptions,
            "shared_subscriptions/count": node.dispatcher.members,
            "retained messages/count": retained,
            "store/messages/count": retained + waiting,
            "store/messages/bytes": node.retained.size + waiting_bytes,
            "heap/current": memory,
            "heap/maximum": self._most_memory,
        }
        if node.config.redirect_clients:
            numbers |= {
                "redirection/sent": counters.redirected,
                "redirection/ignored": counters.redirects_ignored,
                "redirection/forgone": counters.redirects_forgone,
                "redirection/topics_invalid": counters.redirect_topics_invalid,
            }
        found = {"version": self._version, "uptime": f"{int(now - self._started)} seconds"}
        found |= {name: str(number) for name, number in numbers.items()}
        for name, load in self._loads.items():
            found |= {
                f"load/{name}/{window}": f"{average:.2f}"
                for window, average in load.averages.items()
            }
        return found

    def _waiting(self) -> tuple[int, int, int]:
        """Return how many messages await acknowledgement, how many are kept in sessions, these
        among them, and the bytes of those that were not sent; all 0 when there are too many
        sessions to ask."""
        if len(self.node.sessions) > self.node.limits.sys_sessions:
            return 0, 0, 0
        inflight = queued = size = 0
        for session in self.node.sessions.values():
            inflight += len(session.inflight)
            queued += len(session.queue)
            size += session.queued_bytes
        return inflight, inflight + queued, size

    def _publish(self, topic: str, payload: bytes) -> None:
        """Keep and deliver, at QoS 0: the next value makes this one worthless. It is not counted,
        and no plugin hears of it."""
        node = self.node
        name = topic.encode()
        node.retained.store(topic, Message(name, payload, 0, True, b"", None, None))
        node.dispatcher.publish(Message(name, payload, 0, False, b"", None, None), None)
