"""What runs beside a node while its broker is started."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mqttree.broker.io.discovery_driver import DiscoveryDriver
from mqttree.broker.limits import Limits


class Told:
    """A driver whose node is only given the time of day."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.node = self
        self.cluster = None
        self.walls: list[float] = []
        self.told = asyncio.Event()

    def time(self) -> float:
        return 5.0

    def set_wall(self, wall: float, now: float) -> None:
        assert now == 5.0
        self.walls.append(wall)
        if len(self.walls) == 3:
            self.told.set()


async def test_the_node_is_told_the_time_of_day_regularly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", iter(range(1, 1_000_000)).__next__)
    driver: Any = Told(asyncio.get_running_loop())
    reach = DiscoveryDriver(None, Limits(clock_interval_s=0.001))
    reach.start(driver)
    await asyncio.wait_for(driver.told.wait(), 60)
    await reach.close()
    assert driver.walls[:3] == [1, 2, 3]
    number = len(driver.walls)
    await asyncio.sleep(0.02)
    assert len(driver.walls) == number
