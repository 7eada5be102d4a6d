"""What clients say about their topics that is too much, not allowed or nonsense, clients that
ignore where they are sent, addresses that nobody serves, and brokers that send a client round: all
of them are served by real brokers."""

from __future__ import annotations

import asyncio
import json
import logging
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest

from mqttree import Broker
from tests.kit.waiting import eventually
from tests.process.test_redirected_clients import (
    Comes,
    Follower,
    Publisher,
    federation,
    known,
)

MANY = 10_000


def filters(count: int) -> list[str]:
    """Different filters, short ones: ten thousand fit a User Property."""
    return ["".join(letters) for letters in islice(product(ascii_lowercase, repeat=3), count)]


async def start(client: Follower, broker: Broker) -> None:
    await asyncio.get_running_loop().run_in_executor(None, client.start, broker.port)


def state_of(broker: Broker) -> dict[str, Any]:
    found: dict[str, Any] = broker.state()["redirection"]
    return found


async def test_invalid_topics_are_counted_logged_once_and_the_client_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One host says nonsense again and again: one line."""
    rules = tmp_path / "rules"
    rules.write_text("anonymous\nallow all a\nallow all open/#\n")
    said = [
        json.dumps({"subscribe": filters(MANY)}, separators=(",", ":")),
        json.dumps({"subscribe": filters(1001)}),
        json.dumps({"subscribe": filters(201)}),
        json.dumps({"subscribe": ["secret/#"]}),
        json.dumps({"publish": ["secret"]}),
        json.dumps({"subscribe": ["#"]}),
        "[]",
        "{",
    ]
    caplog.set_level(logging.WARNING)
    async with federation_with(rules) as (here, there):
        publisher = Publisher(there.port, "a")
        await known(there)
        for number, text in enumerate(said):
            client = Follower(f"c{number}", "a", topics=text, follows=False)
            await start(client, here)
            await eventually(client.subscribed.is_set, "it is let in")
            await eventually(lambda client=client: client.payloads, "it is served")
            assert client.reasons[0] == 0
            client.stop()
        assert state_of(here)["topics_invalid"] == len(said)
        lines = [line for line in caplog.messages if "mqttree-topics" in line]
        assert len(lines) == 1
        assert "\n" not in lines[0]
        publisher.stop()


def federation_with(rules: Path) -> Any:
    """Brokers whose clients are checked, and that let each other in."""
    access = {"rules": str(rules)}
    return federation(access=access, **{"allow-unauthenticated-brokers": True})


async def test_a_client_that_ignores_it_is_sent_once_however_often_it_comes() -> None:
    async with federation() as (here, there):
        publisher = Publisher(there.port, "a")
        await known(there)
        client = Comes("c", "a")
        await client.client.connect("127.0.0.1", here.port)
        await eventually(lambda: state_of(here)["ignored"] == 1, "it is back")
        for number in range(2, 6):
            await eventually(lambda number=number: client.connected == number, "it is let in")
            count = len(client.payloads)
            await eventually(lambda count=count: len(client.payloads) > count + 5, "it is served")
            # Its network fails.
            client.client._connection._transport.abort()
        await eventually(lambda: client.connected == 6, "it is let in")
        # It is not asked about any more.
        assert state_of(here)["waiting"] == 0
        assert (state_of(here)["sent"], state_of(here)["ignored"]) == (1, 1)
        publisher.stop()
        await client.client.disconnect()


async def test_a_client_that_cannot_reach_the_address_comes_back_and_is_served() -> None:
    async with federation(**{"client-address": "127.0.0.1:1"}) as (here, there):
        publisher = Publisher(there.port, "a")
        await known(there)
        client = Follower("c", "a")
        client.paho.on_connect_fail = lambda *given: client.connect_to(here.port)
        await start(client, here)
        await eventually(lambda: state_of(here)["ignored"] == 1, "it is back")
        await eventually(lambda: len(client.reasons) > 2, "it knows that it is back")
        assert client.reasons[:3] == [0, 0x9C, 0]
        count = len(client.payloads)
        await eventually(lambda: len(client.payloads) > count + 20, "it is served")
        assert state_of(here)["sent"] == 1
        publisher.stop()
        client.stop()
