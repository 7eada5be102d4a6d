"""Schedules in which messages expire: nothing comes later than its promise allows, and what lasts
is not lost with what has expired."""

from __future__ import annotations

import pytest

from mqttree.broker.wire.packets import Publish
from mqttree.broker.wire.properties import Property
from tests.sim.schedule import Result, Schedule
from tests.sim.test_takeover import Row

EXPIRIES = (3600, 1, 3600, 3, 3600, 3600)
"""s"""


def run(seed: int) -> Result:
    schedule = Schedule(seed)
    schedule.expiries = EXPIRIES
    return schedule.run()


@pytest.mark.parametrize("seed", [1002, 1032, 1080, 1101])
def test_messages_that_expire_do_no_harm_to_others(seed: int) -> None:
    """In two of these, what had expired was not replayed: brokers that lacked its numbers lost and
    disordered others."""
    assert run(seed).violations == []


@pytest.mark.parametrize("routing", ["flood", "interest", "topic"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_interval_of_0_is_for_those_that_are_there_at_every_broker(
    qos: int, routing: str
) -> None:
    """Two links away, too, where it comes later. Who comes afterwards gets nothing, wherever."""
    row = Row(routing=routing)
    there = [row.connect(index, f"there{index}") for index in range(3)]
    away = [row.connect(index, f"away{index}") for index in range(3)]
    for client in there + away:
        client.subscribe("a/#")
    for client in away:
        client.leave()
    publisher = row.connect(1, "publisher")
    interval = {Property.MESSAGE_EXPIRY_INTERVAL: 0}
    for retain in (False, True):
        publisher.packet_id += 1
        publisher.send(
            Publish(
                "a/b",
                b"x",
                qos,
                retain,
                packet_id=publisher.packet_id if qos else None,
                properties=interval,
            )
        )
    row.run()
    for client in there:
        found = [packet.properties for packet in client.packets if isinstance(packet, Publish)]
        assert found == [{Property.MESSAGE_EXPIRY_INTERVAL: 1}] * 2
    for index in range(3):
        back, new = row.connect(index, f"away{index}"), row.connect(index, f"new{index}")
        new.subscribe("a/#")
        assert back.present
        assert back.payloads == new.payloads == []
