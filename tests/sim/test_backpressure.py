"""Slow subscribers behind links, and publishers that are faster than they: nothing acknowledged is
lost, and others go on."""

from __future__ import annotations

import pytest

from mqttree.broker.core.connection import Connection
from mqttree.broker.limits import Limits
from tests.sim.clients import SimClient
from tests.sim.test_federation import Event, Scene, kill, part, pause, resume, start
from tests.sim.world import World

QUEUE = 40
"""Messages that a session may have waiting: small, so that little traffic fills it."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "limits", Limits(max_queued=QUEUE, hold_queued=QUEUE // 2))


class Slow(Scene):
    """A chain of brokers, a fast publisher at one end, a slow subscriber at the other; calm traffic
    everywhere."""

    bursts = 30
    burst = 30

    def __init__(
        self, seed: int, brokers: int, events: list[Event], *, pause: float = 0.02, **config: str
    ) -> None:
        """`pause`: s until the slow subscriber acknowledges; it takes four at a time."""
        super().__init__(seed, brokers, events, **config)
        self.apart = [(a, b) for b in range(brokers) for a in range(b) if b > a + 1]
        self.pause = pause
        self.slow: list[SimClient] = []
        self.fast: list[SimClient] = []

    def build(self) -> None:
        for index in range(self.count):
            self.world.add(capability=float(90 - index), **self.config).start()
        for a, b in self.apart:
            self.world.block(a, b)
        for host in self.world.hosts:
            self._client(
                f"sub{host.index}", host, filters=[("calm/#", 2)], clean=True, receive_maximum=0
            )
            self.publishers.append(self._client(f"pub{host.index}", host, clean=True))
        for qos in (1, 2):
            slow = self._client(
                f"slow{qos}",
                self.hosts[-1],
                filters=[("fast/#", qos)],
                clean=True,
                receive_maximum=4,
                version=5,
            )
            slow.ack_delay = self.pause
            self.slow.append(slow)
        self.fast = [self._client(f"fast{n}", self.hosts[0], clean=True) for n in (0, 1)]

    def traffic(self) -> None:
        for publisher in self.publishers:
            for number in range(40):
                self.world.after(
                    1.0 + number * 0.1, publisher.publish, f"calm/{publisher.name}", 1 + number % 2
                )
        for number in range(self.bursts):
            for client in self.fast:
                topic = f"fast/{client.name}/{number % 3}"
                self.world.after(
                    1.5 + number * 0.01, client.burst, topic, 1 + number % 2, self.burst, 20
                )

    def _end(self) -> None:
        self.world.run(
            30.0, lambda: all(len(c.got) >= 2 * self.bursts * self.burst for c in self.slow)
        )
        super()._end()


def calm_delay(scene: Slow) -> float:
    """The longest time (s) that a message of the calm traffic took."""
    sent = scene.ledger.sent
    return max(
        g.at - sent[g.number].at
        for c in scene.clients
        for g in c.got
        if g.topic.startswith("calm/")
    )


@pytest.mark.parametrize("routing", ["interest", "topic"])
@pytest.mark.parametrize("brokers", [2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_a_slow_subscriber_loses_nothing_and_delays_no_other(
    seed: int, brokers: int, routing: str
) -> None:
    scene = Slow(seed, brokers, [], routing=routing)
    result = scene.run()
    assert not result.violations
    assert result.counters["publishers_paused"]
    assert result.counters["dropped_queue_full"] == 0
    assert all(len(c.got) >= 2 * scene.bursts * scene.burst for c in scene.slow)
    assert calm_delay(scene) < 1.0  # the slow ones took ten times as long
    for host in scene.hosts:
        backpressure = host.running.cluster.remote_flow_control
        assert not backpressure.held
        assert backpressure.over == 0
        assert not backpressure._wishes
        assert not backpressure._wanted
        assert not host.running.flow_control._held


FAULTS: dict[str, list[Event]] = {
    "the slow one's broker is killed": [(2.5, kill(2)), (4.0, start(2))],
    "the publishers' broker is killed": [(2.5, kill(0)), (4.0, start(0))],
    "the one between is killed": [(2.5, kill(1)), (4.0, start(1))],
    "cut off from each other": [(2.5, part((0,), (1, 2))), (4.0, part())],
    "the slow one's broker hangs": [(2.5, pause(2)), (3.5, resume(2))],
    "the one between hangs": [(2.5, pause(1)), (3.5, resume(1))],
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_leave_no_publisher_held(name: str) -> None:
    """No publisher stays held, and what the others were promised is kept."""
    scene = Slow(5, 3, FAULTS[name])
    result = scene.run()
    # A session that its broker took with it, or a queue that overflowed while no publisher could be
    # paused, may lose messages.
    assert not [v for v in result.violations if v[0] != "lost" or "calm" in v[1]]
    assert not any(h.running.cluster.remote_flow_control.held for h in scene.hosts)
    assert not [
        c
        for h in scene.hosts
        for c in h.running.connections
        if isinstance(c, Connection) and c.held
    ]
