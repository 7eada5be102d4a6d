"""Where a connection of `MultiClient` goes on when its broker has died, and the next one, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mqttree.client_connection import Connection, ConnectionLostError, Options
from mqttree.multi_client import MultiClient, _Filter

ADDRESSES = ["a:1", "b:2", "c:3"]


class Tried(MultiClient):
    """A client whose brokers the test is."""

    def __init__(self, brokers: Callable[[Connection, str], Any], **options: Any) -> None:
        super().__init__(ADDRESSES, "multi", **options)
        self.tried: list[str] = []
        self._brokers_are = brokers

    async def _connect(self, connection: Connection, address: str) -> None:
        self.tried.append(address)
        await asyncio.sleep(0)
        self._brokers_are(connection, address)
        connection.address = address
        connection.up = connection.known = True


def lose(client: MultiClient, connection: Connection) -> None:
    connection.up = False
    client._lost(connection)


async def at_rest(client: MultiClient) -> None:
    while client._tasks:
        await asyncio.gather(*client._tasks)


@pytest.mark.parametrize("died", ADDRESSES)
async def test_the_broker_that_was_lost_is_tried_after_all_others(died: str) -> None:
    """Its host may be down, which a connection attempt only learns of in a second."""
    up = {died}

    def broker(connection: Connection, address: str) -> None:
        if address not in up:
            raise ConnectionLostError(address)

    client = Tried(broker)
    connection = client._new_connection("multi")
    await client._connect_anywhere(connection)
    client.tried.clear()
    lose(client, connection)
    await at_rest(client)
    assert client.tried == [*(address for address in ADDRESSES if address != died), died]


async def test_another_death_meanwhile_has_the_connection_go_on_once() -> None:
    """The broker where it goes on dies before its filters are granted there."""
    client: Tried

    def broker(connection: Connection, address: str) -> None:
        if address == "b:2":
            connection.known = True
            lose(client, connection)
            raise ConnectionLostError(address)

    client = Tried(broker)
    connection = client._new_connection("multi")
    await client._connect_anywhere(connection)
    client.tried.clear()
    lose(client, connection)
    await at_rest(client)
    assert client.tried == ["b:2", "c:3"]
    assert connection.up


class Played(Connection):
    """A connection whose brokers the test plays: what each does with CONNECT, in this order."""

    def __init__(self, *brokers: str) -> None:
        options = Options(None, None, 30, 300, None, 100)
        super().__init__("multi", options, None, on_message=print, on_lost=print)
        self.brokers = list(brokers)
        self.broker = ""
        self.filters: list[str] = []

    def _leave(self) -> None: ...

    def _dial(self, host: str, port: int) -> None:
        self.broker = self.brokers.pop(0)
        if self.broker == "refuses":
            self._call(self._connected, False, "busy", True, "")
        elif self.broker == "dies before CONNACK":
            self._call(self._disconnected, "it died", "")
        elif self.broker == "is down":
            raise OSError
        else:
            self._call(self._connected, self.broker == "has the session", "", False, "")

    async def _subscribe(self, filters: Sequence[tuple[str, Any]]) -> list[int]:
        if self.broker == "dies before SUBACK":
            raise ConnectionLostError("it died")
        self.filters += [name for name, _ in filters]
        return [1 for _ in filters]


@pytest.mark.parametrize(
    ("brokers", "subscribes"),
    [
        (["has the session"], False),
        (["refuses", "has the session"], False),
        (["is down", "has the session"], False),
        (["begins one"], True),
        (["dies before SUBACK", "has the session"], True),
        (["dies before CONNACK", "has the session"], True),
        (["dies before CONNACK", "is down", "refuses", "has the session"], True),
    ],
)
async def test_a_session_that_may_lack_its_filters_gets_them(
    brokers: list[str], subscribes: bool
) -> None:
    """A broker may begin a session and die before its client can subscribe, or know of it."""
    client = MultiClient(ADDRESSES, "multi")
    connection = client._connections["multi"] = Played("begins one", *brokers)
    answers = "$mqttree/answers/multi/+"
    await client._connect_anywhere(connection)
    assert connection.filters == [answers]
    client._filters["a"] = _Filter(1, connection)
    connection.filters.clear()
    await client._connect_anywhere(connection)
    assert not connection.brokers
    assert connection.filters == ([answers, "a"] if subscribes else [])
