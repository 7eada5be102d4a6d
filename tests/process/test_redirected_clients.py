"""`MultiClient` is sent to another broker. Other clients: tests/sim/test_redirection.py."""

from __future__ import annotations

from typing import Any

import pytest

from mqttree import Broker
from mqttree.bench.lab.ports import free_ports
from mqttree.client_connection import ConnectionLostError
from mqttree.multi_client import MultiClient, referred


def node_of(broker: Broker) -> Any:
    assert broker._broker is not None
    return broker._broker.node


async def test_a_multi_client_goes_where_it_is_sent() -> None:
    ports = free_ports(2)
    config = {"mqtt": {"server_reference": f"127.0.0.1:{ports[1]}"}}
    async with (
        Broker(listen=f"127.0.0.1:{ports[0]}", config=config),
        Broker(listen=f"127.0.0.1:{ports[1]}"),
        MultiClient(f"127.0.0.1:{ports[0]}", "m") as client,
    ):
        assert client.connections == {"m": f"127.0.0.1:{ports[1]}"}


async def test_a_multi_client_gives_up_when_brokers_send_it_in_a_circle() -> None:
    ports = free_ports(2)
    brokers = [
        Broker(
            listen=f"127.0.0.1:{ports[n]}",
            config={"mqtt": {"server_reference": f"127.0.0.1:{ports[1 - n]} nonsense:port"}},
        )
        for n in range(2)
    ]
    async with brokers[0], brokers[1]:
        client = MultiClient(f"127.0.0.1:{ports[0]}", "m")
        with pytest.raises(ConnectionLostError, match="no broker answers"):
            await client.start()
        await client.stop()
        assert [node_of(each).counters.redirected for each in brokers] == [1, 1]


def test_addresses_of_a_server_reference_are_those_that_can_be_used() -> None:
    assert referred("a:1 b [::1]:2") == ["a:1", "b", "[::1]:2"]
    assert referred("a:x :1 a:70000  b:2") == ["b:2"]
    assert referred("") == []
