"""Brokers that drain, one after the other or in the midst of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from mqttree.broker.cluster.drain import DrainOptions
from tests.sim.checkers import Messages, bound_faults
from tests.sim.clients import Ledger, Sent, SimClient
from tests.sim.schedule import quiet
from tests.sim.successions import Refugee
from tests.sim.test_federation import Event, Scene, kill, part, start
from tests.sim.walker import Roamer
from tests.sim.world import Host, World


class Everything(Messages):
    """Nothing that was acknowledged may be missing at anybody who stayed where he was, whether the
    broker that acknowledged it is still there or not."""

    def _lives(self, life: tuple[int, int]) -> bool:
        return True

    def _owed(self, sent: Sent) -> bool:
        return not sent.will and super()._owed(sent)


class Draining(Scene):
    """A scene in which brokers drain; without other faults nothing at all may be lost."""

    strict = True
    persistent = False

    def _client(self, name: str, host: Host, **settings: Any) -> SimClient:
        rng = self.rng
        settings["version"] = 5 if self.persistent else rng.choice((3, 4, 5, 5))
        settings["clean"] = not self.persistent
        client = Roamer(self.world, self.ledger, name, host, **settings)
        self.clients.append(client)
        self.world.after(rng.uniform(0.0, 0.5), client.connect)
        return client

    def _end(self) -> None:
        world = self.world
        for host in world.hosts:
            host.resume()
        world.heal()
        for a, b in self.apart:
            world.block(a, b)
        world.run(
            40.0,
            lambda: not any(h.node is not None and h.node.drain is not None for h in world.hosts),
        )
        for host in world.hosts:
            if not host.alive:
                host.start()
        quiet(world)
        world.run(2.0)
        for kind, text in bound_faults(world.alive()):
            world.violation(kind, text)
        messages = (Everything if self.strict else Messages)(
            world, self.ledger, self.clients, self.meetings, self.splits
        )
        if not world.violations:
            self._probe(messages)
        messages.check()

    def drained(self, index: int) -> str:
        """The last line about a drain of this broker."""
        return next(
            (
                text
                for _, _, text in reversed(self.hosts[index].logs)
                if text.startswith("drained in")
            ),
            "",
        )


def drain(index: int, back: float | None = 0.3, **options: Any) -> Callable[[Scene], None]:
    """Drain a broker; `back` s after it is gone it comes back, None: it does not."""

    def event(scene: Scene) -> None:
        host = scene.hosts[index]
        host.drain(DrainOptions(**options))
        if back is not None:
            scene.world.after(0.1, again, host)

    def again(host: Host) -> None:
        if host.alive:
            host.world.after(0.1, again, host)
        else:
            host.world.after(back or 0.0, host.start)

    return event


DRAINS: dict[str, tuple[int, list[Event]]] = {
    "the root": (4, [(3.0, drain(0, None))]),
    "a leaf": (4, [(3.0, drain(3, None))]),
    "the root, and back": (4, [(3.0, drain(0))]),
    "one of two": (2, [(3.0, drain(0))]),
    "each in turn": (3, [(3.0, drain(0)), (7.0, drain(1)), (11.0, drain(2))]),
    "slowly": (3, [(3.0, drain(0, rate=2.0))]),
    "two at once": (4, [(3.0, drain(0)), (3.0, drain(1))]),
    "all but one at once": (4, [(3.0, drain(i)) for i in range(3)]),
}


@pytest.mark.parametrize("routing", ["interest", "topic"])
@pytest.mark.parametrize("seed", (1, 2))
@pytest.mark.parametrize("name", DRAINS)
def test_a_drain_loses_no_message(name: str, seed: int, routing: str) -> None:
    brokers, events = DRAINS[name]
    scene = Draining(seed, brokers, events, routing=routing)
    scene.length = 8.0 if len(events) < 3 else 15.0
    result = scene.run()
    assert result.violations == [], "\n".join(result.transcript)
    assert result.messages and result.deliveries > result.messages
    for index, host in enumerate(scene.hosts):
        if host.left:
            assert scene.drained(index) and "left are" not in scene.drained(index), scene.drained(
                index
            )


def test_a_broker_in_the_middle_of_a_line_can_drain() -> None:
    """In a line of brokers the one in the middle has no way around it: it stops all the same, and
    nothing of its own is lost."""
    scene = Draining(4, 3, [(4.0, drain(1))])
    scene.config["seeds"] = tuple((f"10.0.0.{i}", 1883) for i in range(1, 4))
    scene.apart = [(0, 2)]
    scene.world.block(0, 2)
    scene.length = 12.0
    result = scene.run()
    # Those on both sides are split for a moment: what one of them publishes then is kept, and
    # replayed when they are one again.
    assert result.violations == [], "\n".join(result.transcript)
    assert "left are" not in scene.drained(1)


def test_a_draining_broker_keeps_sessions_until_they_are_taken() -> None:
    """A persistent session outlives its client's departure for a while; then its will, which
    waited, is published."""
    scene = Draining(6, 3, [(3.0, drain(0, None))])
    scene.length = 10.0
    scene.build()
    host = scene.hosts[0]
    away = Roamer(
        scene.world, scene.ledger, "away", host, version=4, clean=False, filters=[("t/#", 1)]
    )
    scene.world.after(1.0, away.connect)
    scene.world.after(2.0, away.disconnect)
    scene.traffic()
    scene.faults()
    scene.world.run(4.5)
    assert host.alive and host.running.drain is not None and host.running.drain.state == "sessions"
    scene.world.run(9.0)
    assert not host.alive
    assert "1 session with" in scene.drained(0) and "left are" not in scene.drained(0)
    assert scene.world.violations == []


@pytest.mark.parametrize("routing", ["interest", "topic"])
@pytest.mark.parametrize("seed", (1, 2, 3))
def test_draining_all_brokers_in_turn_moves_each_session_with_its_client(
    seed: int, routing: str
) -> None:
    """All brokers are restarted, one after the other, and clients go where they are sent, with
    their sessions: each message that was acknowledged since all have subscribed reaches all of
    them, at QoS 2 once."""
    scene = Draining(seed, 3, [(3.0, drain(0)), (8.0, drain(1)), (13.0, drain(2))], routing=routing)
    scene.length = 18.0
    scene.persistent = True
    result = scene.run()
    assert result.violations == [], "\n".join(result.transcript)
    for index in range(3):
        assert "ended here" not in scene.drained(index) and "left are" not in scene.drained(
            index
        ), scene.drained(index)
    # No client began a new one.
    assert sum(client.session for client in scene.clients) == len(scene.clients)
    since = scene.world.started + 2.0
    due = {
        sent.number
        for sent in scene.ledger.sent
        if sent.acked is not None and sent.qos and sent.at > since
    }
    assert len(due) > 200
    for client in scene.clients:
        if client.filters:
            got = [found.number for found in client.got if found.qos == 2]
            assert due <= {found.number for found in client.got}
            assert len(set(got)) == len(got)


def test_sessions_of_a_broker_that_drains_go_on_at_its_standby() -> None:
    """None is waited for. A broker that loses its standby so has another one before."""
    world, ledger = World(3), Ledger()
    hosts = [world.add(discovery="multicast", replicas=1, standby_hosts="any") for _ in range(3)]
    for host in hosts:
        host.start()
    world.run(2.0)
    publisher = SimClient(world, ledger, "p", hosts[1], version=5)
    publisher.connect()
    away = [
        Refugee(world, ledger, f"c{n}", host, version=5, clean=False, filters=[("t", 2)])
        for n, host in enumerate(hosts)
    ]
    for client in away:
        client.connect()
    world.run(1.0)
    for client in away:
        client.leave_for(11.0)
    publisher.burst("t", 2, 20, 5)
    world.run(1.0)
    for index in (2, 0):
        hosts[index].drain(DrainOptions())
        world.run(4.0)
        lines = [text for _, _, text in hosts[index].logs]
        assert not hosts[index].alive and "left are" not in lines[-1]
        publisher.burst("t", 2, 20, 5)
        world.run(0.5)
        if index == 2:  # then there is none
            texts = [text for host in hosts[:2] for _, _, text in host.logs]
            assert not any("is gone: another one" in text for text in texts)
    world.run(3.0)
    assert [client.session for client in away] == [True] * 3
    assert [len(client.got) for client in away] == [60] * 3
    assert world.violations == []


# ---------------------------------------------------------------- in the midst of other faults


@pytest.mark.parametrize("seed", range(12))
def test_drains_beside_faults_keep_all_promises(seed: int) -> None:
    """Whatever else happens: the promises for brokers that live hold, and whoever drains is gone in
    time."""
    rng = random.Random(seed)
    events: list[Event] = []
    for _ in range(3):
        at, index = rng.uniform(2.0, 7.0), rng.randrange(5)
        events.append((at, drain(index, rng.choice((0.1, 1.0)), within=rng.choice((3.0, 8.0)))))
    for _ in range(3):
        at, index = rng.uniform(2.0, 8.0), rng.randrange(5)
        events += rng.choice(
            (
                [(at, kill(index)), (at + 0.5, start(index))],
                [(at, part((index,))), (at + rng.uniform(0.3, 3.0), part())],
            )
        )
    scene = Draining(
        seed,
        5,
        sorted(events, key=lambda e: e[0]),
        routing=rng.choice(("flood", "interest", "topic")),
    )
    scene.strict = False
    scene.length = 12.0
    result = scene.run()
    assert result.violations == [], "\n".join(result.transcript)
