"""Links slower than who publishes, messages larger than what may wait: nothing acknowledged is
lost, and control gets through."""

from __future__ import annotations

import pytest

from mqttree.broker.cluster.drain import DrainOptions
from mqttree.broker.limits import DEFAULTS, Limits
from tests.sim.clients import SimClient
from tests.sim.test_federation import Event, Scene, kill, part, start
from tests.sim.test_takeover import Row

MBIT = 125_000.0
"""bytes/s"""
MB = 1_000_000


class SlowLink(Scene):
    """A chain of brokers, of which the last link is slow, and publishers at its beginning who send
    as fast as they are read."""

    def __init__(
        self,
        seed: int,
        brokers: int,
        rate: float,
        count: int,
        size: int,
        events: list[Event],
        **config: str,
    ) -> None:
        """`rate`: of the slow link, bytes/s; `count` messages of `size` bytes from each of two
        publishers, at QoS 1 and 2."""
        super().__init__(seed, brokers, events, **config)
        world = self.world
        world.rate, world.window, world.high_water, world.cutting = 1.25e8, 1 << 20, 1 << 18, 0.0
        self.rate, self.each, self.size = rate, count, size
        self.apart = [(a, b) for b in range(brokers) for a in range(b) if b > a + 1]
        self.large: list[SimClient] = []
        self.most = 0  # bytes that waited for a link, or in a log
        self.groups = None

    def build(self) -> None:
        for index in range(self.count):
            self.world.add(capability=float(90 - index), **self.config).start()
        for a, b in self.apart:
            self.world.block(a, b)
        self.world.limit_rate(self.count - 2, self.count - 1, self.rate)
        self._client(
            "reader", self.hosts[-1], filters=[("large/#", 2)], clean=True, receive_maximum=0
        )
        self.large = [self._client(f"large{n}", self.hosts[0], clean=True) for n in (0, 1)]

    def traffic(self) -> None:
        for qos, client in enumerate(self.large, 1):
            for number in range(self.each):
                self.world.after(
                    2.0 + number * 0.001, client.publish, f"large/{qos}", qos, False, self.size
                )
        self._look()

    def _look(self) -> None:
        for host in self.world.alive():
            links = host.running.cluster.links.values()
            self.most = max(
                self.most,
                host.running.cluster.forwarder.log.size,
                *(link.conn.backlog_bytes for link in links),
                0,
            )
        self.world.after(0.05, self._look)

    def _end(self) -> None:
        due = 2.0 + 2 * self.each * self.size / self.rate
        self.world.run(2.0 * due, lambda: len(self.clients[0].got) >= 2 * self.each)
        super()._end()


def counters(scene: Scene, name: str) -> int:
    return sum(getattr(host.running.counters, name) for host in scene.hosts)


@pytest.mark.parametrize("routing", ["interest", "topic"])
@pytest.mark.parametrize("brokers", [2, 3])
def test_more_than_the_log_holds_waits_for_a_slow_link(brokers: int, routing: str) -> None:
    """60 MB at 20 Mbit/s: no message is dropped and none is replayed, as every link stays live."""
    scene = SlowLink(1, brokers, 20 * MBIT, 30, MB, [], routing=routing)
    result = scene.run()
    assert not result.violations
    assert len(scene.clients[0].got) == 60
    assert (
        counters(scene, "links_closed")
        == counters(scene, "replay_log_lost")
        == counters(scene, "replayed")
        == 0
    )
    assert scene.most < DEFAULTS.log_bytes + DEFAULTS.hold_log_bytes + 4 * MB


def test_messages_larger_than_all_queues_close_no_link() -> None:
    """Four of 50 MB, which take longer each than a link may be silent, are no failure of the
    link."""
    scene = SlowLink(2, 2, 100 * MBIT, 2, 50 * MB, [], routing="topic")
    result = scene.run()
    assert not result.violations
    assert len(scene.clients[0].got) == 4
    assert counters(scene, "links_closed") == counters(scene, "replay_log_lost") == 0
    assert scene.most < DEFAULTS.log_bytes + DEFAULTS.hold_log_bytes + 3 * 51 * MB


@pytest.mark.parametrize("routing", ["interest", "topic"])
def test_large_messages_of_a_killed_broker_are_asked_for_over_a_slow_link(routing: str) -> None:
    """The broker that had them in its queue is killed. An answer comes in pieces, faster than the
    next link takes them."""
    scene = SlowLink(1, 3, 20 * MBIT, 2, 5 * MB, [(2.5, kill(1)), (3.5, start(1))], routing=routing)
    assert not scene.run().violations
    assert len(scene.clients[0].got) == 4


@pytest.mark.parametrize("routing", ["interest", "topic"])
@pytest.mark.parametrize("count", [10, 40])
def test_what_a_broker_loses_while_it_is_away_is_counted(count: int, routing: str) -> None:
    """20 MB fit into the log, of 80 MB the oldest are lost for who is away: to the message, and one
    line says so."""
    scene = SlowLink(
        3, 2, 1.25e8, count, MB, [(1.9, part((0,), (1,))), (9.0, part())], routing=routing
    )
    result = scene.run()
    assert not [v for v in result.violations if v[0] != "lost"]
    got = len(scene.clients[0].got)
    acked = sum(
        sent.acked is not None for sent in scene.ledger.sent if sent.topic.startswith("large/")
    )
    assert acked == 2 * count
    assert counters(scene, "replay_log_lost") == acked - got
    lines = [text for host in scene.hosts for _, _, text in host.logs if "that it lacked" in text]
    assert bool(lines) == bool(acked - got) == (count > 16)
    assert all(f" {acked - got} messages of this broker that it lacked" in text for text in lines)


def reset(scene: Scene) -> None:
    """The first link breaks, for as long as a new one takes."""
    one, other = scene.hosts[:2]
    for end in list(one.ends.values()):
        if end.peer.host is other:
            end.abort()


def broken_link(routing: str) -> SlowLink:
    """A link breaks while more than a log is on its way over it, and its publishers go on."""
    return SlowLink(1, 2, 20 * MBIT, 30, MB, [(4.0, reset)], routing=routing)


@pytest.mark.parametrize("routing", ["interest", "topic"])
def test_a_link_that_breaks_for_a_moment_loses_nothing(routing: str) -> None:
    """Nor is a publisher held for a broker that may be gone permanently, until there are four logs
    for it."""
    scene = broken_link(routing)
    assert not scene.run().violations
    assert len(scene.clients[0].got) == 60
    assert counters(scene, "replay_log_lost") == 0


@pytest.mark.parametrize("routing", ["interest", "topic"])
def test_the_log_kept_for_a_broker_that_is_gone_is_bounded(routing: str) -> None:
    """160 MB within the five seconds: a log of 32 MiB is left of it, and what is lost is
    counted."""
    scene = SlowLink(1, 2, 20 * MBIT, 80, MB, [(2.5, kill(1)), (9.0, start(1))], routing=routing)
    scene.run()
    assert all(
        sent.acked is not None and sent.acked < 107.0
        for sent in scene.ledger.sent
        if sent.topic.startswith("large/")
    )
    assert 2 * DEFAULTS.log_bytes < scene.most < (DEFAULTS.away_logs + 1) * DEFAULTS.log_bytes
    assert scene.hosts[0].running.cluster.forwarder.log.size <= DEFAULTS.log_bytes


class NextWay(SlowLink):
    """A chain of brokers with two slow links, whose ends are linked while four messages of 20 MB
    are on their way along it."""

    def __init__(self, routing: str, events: list[Event]) -> None:
        super().__init__(
            1, 5, 100 * MBIT, 2, 20 * MB, [(2.5, NextWay.join), *events], routing=routing
        )

    def build(self) -> None:
        super().build()
        self.world.lines.clear()
        self.world.limit_rate(1, 2, self.rate)
        self.world.limit_rate(2, 3, self.rate)

    @staticmethod
    def join(scene: Scene) -> None:
        scene.world.blocked.discard((0, scene.count - 1))


def drain(scene: Scene) -> None:
    scene.hosts[1].drain(DrainOptions(within=30.0))


@pytest.mark.parametrize(
    "event", [None, (2.6, kill(2)), (2.6, drain)], ids=["", "killed", "drained"]
)
@pytest.mark.parametrize("routing", ["interest", "topic"])
def test_messages_on_their_way_arrive_though_their_path_changes(
    routing: str, event: Event | None
) -> None:
    """The next broker has acknowledged the messages. Those between do not pass them on, as their
    ways do not lead to the reader any more, or are killed or drained: the log of the origin still
    has them."""
    scene = NextWay(routing, [event] if event else [])
    assert not scene.run().violations
    assert len(scene.clients[0].got) == 4


class Drained(Scene):
    """b0 - b1 - b3, the last link slow, and b0 - b2 - b3. b1 is drained while large messages wait
    there for b3."""

    def __init__(self, **config: str) -> None:
        super().__init__(
            1, 4, [(3.0, lambda scene: scene.hosts[1].drain(DrainOptions(within=60.0)))], **config
        )
        world = self.world
        world.rate, world.window, world.high_water, world.cutting = 1.25e8, 1 << 20, 1 << 18, 0.0
        self.length = 6.0
        self.groups = None

    def build(self) -> None:
        for index in range(4):
            host = self.world.add(capability=float(90 - index), **self.config)
            self.world.after(1.0 if index == 2 else 0.0, host.start)
        self.world.block(0, 3)
        self.world.block(1, 2)
        self.world.limit_rate(1, 3, 20 * MBIT)
        self._client(
            "reader",
            self.hosts[3],
            filters=[("large", 2), ("small", 2)],
            clean=True,
            receive_maximum=0,
        )
        self.writers = [
            self._client(name, self.hosts[0], clean=True) for name in ("large", "small")
        ]

    def traffic(self) -> None:
        large, small = self.writers
        for number in range(4):
            self.world.after(
                2.0 + number * 0.1, large.publish, "large", 1 + number % 2, False, 20 * MB
            )
        for number in range(300):
            self.world.after(1.8 + number * 0.01, small.publish, "small", 1 + number % 2)

    def _end(self) -> None:
        self.world.run(120.0, lambda: len(self.clients[0].got) == 304)
        super()._end()


@pytest.mark.parametrize("routing", ["interest", "topic"])
def test_a_path_change_loses_no_large_messages_of_the_old_path(routing: str) -> None:
    """They had pushed what was missing behind the new way out of the logs there: it was lost, with
    no link and no broker, or came behind what is newer."""
    scene = Drained(routing=routing)
    assert not scene.run().violations
    assert len(scene.clients[0].got) == 304


def test_a_session_that_moves_gets_messages_queued_behind_large_ones() -> None:
    """b1 - b0 - b2, the last link slow: what is published at b1 has left the log there when its
    client comes from b2, where it is behind a large message, as is the request for the session. As
    if the log had no more room for large messages."""
    row = Row(routing="flood", limits=Limits(log_large_s=0.0))
    world = row.world
    world.rate, world.window, world.high_water = 1.25e8, 1 << 20, 1 << 18
    world.limit_rate(0, 2, 100 * MBIT)
    client = row.connect(2).subscribed("t")
    publishers = [row.connect(1, f"p{number}") for number in range(3)]
    log = row.node(1).cluster.forwarder.log
    publishers[0].publish("large", bytes(10 * MB))
    row.until(lambda: len(log) == 1)
    sent = [b"%d" % number for number in range(5)]
    publishers[1].publish("t", *sent)
    publishers[2].publish("large", bytes(40 * MB))
    row.until(lambda: log.size > 40 * MB and len(log) == 1)
    assert not client.payloads
    client.cut()
    back = row.client(1)
    row.until(lambda: back.connacks, 10.0)
    row.run(10.0)
    assert back.present and back.payloads == sent
    assert sum(row.node(index).counters.replay_log_reserve_full for index in range(3)) == 0
