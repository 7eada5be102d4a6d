"""Where a connection of `MultiClient` goes on when its broker has died, and the next one, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mqttree.client_connection import Connection, ConnectionLostError
from mqttree.multi_client import MultiClient

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
