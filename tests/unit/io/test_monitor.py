"""What the admin port sees of its broker once a second: alarms, history, readers that are slow."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any

import pytest

from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.io.api import federation
from mqttree.broker.io.api.alarm_history import MAX_PAST
from mqttree.broker.io.api.event_stream import BEHIND, EventStream
from mqttree.broker.io.api.monitor import ALARM, COLUMNS, HISTORY, ROWS, Monitor
from mqttree.broker.node import Node
from tests.kit.loop_harness import Loop


class Watch:
    """A monitor of a lone node, and what it told."""

    def __init__(self) -> None:
        self.loop, self.told = Loop(), list[tuple[str, Any]]()
        self.legs: list[dict[str, Any]] = []
        config = NodeConfig(id=b"\1" * 8, name="one", discovery="off")
        self.node = Node(config, 100.0, 1e9, random.Random(1))
        self.monitor = Monitor(
            self.node,
            self.loop,  # type: ignore[arg-type]
            began=90.0,
            legs=lambda: self.legs,
            tell=lambda kind, data: self.told.append((kind, data)),
        )

    def look(self, seconds: int = 1) -> None:
        self.loop.run(seconds)

    def alarms(self) -> list[tuple[str, str]]:
        return [(alarm["level"], alarm["text"]) for alarm in self.monitor.alarms()]


def test_what_is_dropped_is_an_alarm_for_a_minute() -> None:
    watch = Watch()
    watch.look()
    assert watch.alarms() == []
    watch.node.counters.dropped_queue_full += 3
    watch.look()
    watch.node.counters.dropped_queue_full += 2
    watch.look()
    text = "messages dropped, as queues of clients are full: 5 within 60 s"
    assert watch.alarms() == [("warning", text)]
    assert watch.monitor.summary()["alarms"] == 1
    watch.look(59)
    assert watch.alarms() == [("warning", text)]
    watch.look()
    assert watch.alarms() == []


def test_a_long_turn_is_told_as_what_clients_notice() -> None:
    watch = Watch()
    watch.node.counters.turns_long += 1
    watch.look()
    text = "times that clients waited for more than 50 ms, as broker or machine was busy: 1 within"
    assert watch.alarms() == [("warning", f"{text} 60 s")]


def test_a_leg_that_is_down_is_an_error_ahead_of_warnings() -> None:
    watch = Watch()
    watch.node.counters.plugin_errors += 1
    watch.look()
    watch.legs = [{"name": "plant", "state": "waiting"}, {"name": "up", "state": "up"}]
    assert watch.alarms()[0] == ("error", "leg plant is not up: waiting")
    assert [level for level, _ in watch.alarms()] == ["error", "warning"]


def test_an_alarm_that_is_over_is_history() -> None:
    watch = Watch()
    watch.legs = [{"name": "plant", "state": "waiting"}]
    watch.look(10)
    assert watch.monitor.alarm_history.past == deque()
    # What it says may change; the alarm is the same.
    watch.legs = [{"name": "plant", "state": "dialling"}]
    watch.look()
    watch.legs = []
    watch.look()
    (over,) = watch.monitor.alarm_history.past
    assert (over["level"], over["text"]) == ("error", "leg plant is not up: dialling")
    assert over["since"] <= over["until"]
    for number in range(MAX_PAST + 1):
        watch.monitor.alarm_history.look([{**ALARM, "text": f"{number}"}], 0.0)
    assert len(watch.monitor.alarm_history.past) == MAX_PAST


def test_rates_are_those_of_the_last_second() -> None:
    watch = Watch()
    watch.node.counters.over_links.received += 500
    watch.look()
    assert watch.monitor.summary()["link_in_per_s"] == 500
    assert watch.monitor.summary()["uptime_s"] == 11
    watch.look()
    assert watch.monitor.summary()["link_in_per_s"] == 0


def test_the_history_has_an_hour_and_no_more() -> None:
    watch = Watch()
    watch.node.counters.over_links.received += 100
    watch.look(HISTORY)
    found = watch.monitor.history()
    assert found["interval_s"] == 10
    assert dict(zip(COLUMNS, found["rows"][0], strict=True))["link_in_per_s"] == 10
    watch.look(HISTORY * (ROWS + 5))
    rows = watch.monitor.history()["rows"]
    assert len(rows) == 360
    assert all(len(row) == len(COLUMNS) for row in rows)


def test_a_broker_that_was_stopped_looks_on_once_a_second() -> None:
    """uvloop's handles of what is due already do not know when."""
    watch = Watch()
    watch.loop.now += 30
    watch.loop.timers.pop().call()
    assert [timer.when for timer in watch.loop.armed] == [watch.loop.now]
    watch.loop.run()
    assert [timer.when for timer in watch.loop.armed] == [watch.loop.now + 1]


def test_events_are_made_only_while_somebody_reads_them() -> None:
    watch = Watch()
    watch.look(5)
    assert watch.told == []
    watch.monitor.watched = lambda: True
    watch.look(5)
    assert [kind for kind, _ in watch.told] == ["summary"] * 5 + ["topology"]
    watch.monitor.close()
    assert not watch.loop.armed


def test_changes_have_the_names_of_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    own, other = b"\1" * 8, b"\2" * 8
    shapes = [
        (other, frozenset((own, other)), frozenset(((own, other),))),
        (own, frozenset((own,)), frozenset()),
    ]
    monkeypatch.setattr(federation, "shape", lambda parts: shapes[0])
    watch.look()
    shapes.pop(0)
    watch.look()
    came, went = list(watch.monitor.changes)[1:]
    assert came["text"] == [
        "0202020202020202 can be reached",
        "0202020202020202 is the root, before it was one",
        "the link between one and 0202020202020202 is part of the tree",
    ]
    assert (came["root"], came["links"]) == ("02" * 8, [["01" * 8, "02" * 8]])
    assert went["text"][0] == "0202020202020202 cannot be reached"
    assert went["brokers"] == ["01" * 8]


async def test_a_reader_that_stops_reading_is_closed_and_the_others_go_on() -> None:
    node = Node(NodeConfig(id=b"\1" * 8, discovery="off"), 0.0, 1e9, random.Random(1))
    stream, loop = EventStream(node.counters, 2), asyncio.get_running_loop()

    class Reader(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            stream.add(transport, b"")  # type: ignore[arg-type]

        def connection_lost(self, error: Exception | None) -> None:
            for transport in list(stream.readers):
                if transport.is_closing():
                    stream.remove(transport)

    server = await loop.create_server(Reader, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    slow = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    slow[1].transport.pause_reading()
    good = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(60):
        while not stream.full:
            await asyncio.sleep(0)
        # More than the kernel and the buffer take together.
        for number in range(1000):
            stream.tell("summary", {"number": number, "text": "x" * 20_000})
            await good[0].readuntil(b'"number":%d,' % number)
            await good[0].readuntil(b"\n\n")
            if len(stream.readers) == 1:
                break
    assert node.counters.admin_readers_closed == 1
    assert len(stream.readers) == 1
    assert number * 20_000 < 64 * BEHIND
    for _, writer in (slow, good):
        writer.close()
    server.close()
