"""The driver of a federator: moves messages between it and the clients at its own and its
neighbours' brokers, and tells it the time. It decides nothing."""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Mapping

from mqttree.bench.federator.client_connection import ClientConnection, ClientOptions
from mqttree.bench.federator.federator import Federator, Log
from mqttree.bench.federator.topics import FILTERS
from mqttree.broker.base.log_format import log_line
from mqttree.broker.config.broker_url import BrokerUrl


class FederatorDriver:
    """A federator in an event loop. It subscribes at its own broker, and only publishes at those of
    its neighbours."""

    def __init__(
        self,
        federator: Federator,
        urls: Mapping[int, BrokerUrl],
        *,
        password: str | None = None,
        context: ssl.SSLContext | None = None,
        qos: int = 2,
    ) -> None:
        """`federator`: decides; `urls`: where its own and its neighbours' brokers are, by their
        ids; `password`: for all of them whose address has a user; `context`: of TLS; `qos`: of
        subscriptions and publications."""
        self.federator = federator
        own = federator.settings.id
        self.name = f"federator of broker {own}"
        """For people."""
        self.neighbours = ", ".join(str(each) for each in urls if each != own) or "none"
        """Their ids, for people."""
        self._connections = {
            broker: ClientConnection(
                f"broker {broker}",
                url,
                ClientOptions(
                    f"mqttree-federator-{own}",
                    url.user,
                    password if url.user is not None else None,
                    FILTERS if broker == own else (),
                    qos,
                ),
                self._received if broker == own else self._ignore,
                context,
            )
            for broker, url in urls.items()
        }
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Serve until this is cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for connection in self._connections.values():
                    group.create_task(connection.run())
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def summary(self) -> str:
        """Return what was done so far, in one line."""
        counts = self.federator.counts
        dropped = sum(each.dropped for each in self._connections.values())
        return (
            f"{len(self.federator.meshes())} topics; {counts.published} publications taken, "
            f"{counts.delivered} delivered, {counts.duplicates} duplicates, "
            f"{counts.without_core} without a core; sent {counts.data} data, "
            f"{counts.announcements} announcements, {counts.memberships} memberships; "
            f"{dropped} not taken by brokers, {self.federator.bad_messages} not readable"
        )

    def _received(self, topic: str, payload: bytes) -> None:
        self.federator.received(topic, payload, asyncio.get_running_loop().time())
        self._settle()

    def _ignore(self, topic: str, payload: bytes) -> None:
        """Neighbours' brokers send nothing, as nothing is subscribed to there."""

    def _tick(self) -> None:
        self._timer = None
        self.federator.tick(asyncio.get_running_loop().time())
        self._settle()

    def _settle(self) -> None:
        """Do what the federator asks for, and wake it up when it wants."""
        for effect in self.federator.take_effects():
            if isinstance(effect, Log):
                log_line(effect.level, effect.text)
            else:
                self._connections[effect.broker].publish(effect.topic, effect.payload)
        due = self.federator.deadline()
        if self._timer is not None:
            if self._timer.when() == due:
                return
            self._timer.cancel()
            self._timer = None
        if due < math.inf:
            self._timer = asyncio.get_running_loop().call_at(due, self._tick)
