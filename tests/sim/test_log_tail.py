"""Brokers that are away for longer, or miss more, than the replay log keeps: with data directories
nothing is lost.

With SEEDS set all of it in all routing modes, without in one of them where it takes longer.
"""

from __future__ import annotations

import os

import pytest

from mqttree.broker.cluster.delivery.tree_paths import SPLIT
from mqttree.broker.limits import Limits
from tests.sim.clients import SimClient
from tests.sim.disk import Disk, Stayer
from tests.sim.test_federation import Event, Scene, kill, part, start
from tests.sim.world import Host

MB = 1_000_000
MBIT = 125_000.0
"""bytes/s"""
ROUTINGS = ["interest", "topic"]


def some(routing: str) -> list[str]:
    """The routings of a test that takes more than a second: all of them with SEEDS set."""
    return ROUTINGS if "SEEDS" in os.environ else [routing]


class Away(Scene):
    """Brokers with data directories. At the first one it is published on two topics, at QoS 1 and
    2; a reader at each of the others wants all of it."""

    def __init__(
        self,
        brokers: int,
        count: int,
        size: int,
        pause: float,
        events: list[Event],
        **config: object,
    ) -> None:
        """`count` messages of `size` bytes on each topic, `pause` s between two."""
        super().__init__(1, brokers, events, **config)
        world = self.world
        world.rate, world.window, world.high_water, world.cutting = 1.25e8, 1 << 20, 1 << 18, 0.0
        self.each, self.size, self.pause = count, size, pause
        self.groups = None
        self.begin = 2.0
        self.disks: dict[int, Disk] = {}
        self.chain = False
        self.kept = False  # whether the readers' sessions are
        self.pauses: dict[int, float] = {}  # number -> when (s) it is published, if not in turn
        self.readers: list[SimClient] = []
        self.writers: list[SimClient] = []
        world.on_start.append(lambda host: self.disks[host.index].started())

    def build(self) -> None:
        for index in range(self.count):
            host = self.world.add(capability=float(90 - index), **self.config)
            self.disks[index] = Disk(self.world, host, sync=False)
            host.start()
        if self.chain:
            for index in range(2, self.count):
                self.world.block(0, index)
        for host in self.hosts[1:]:
            self.world.after(max(0.0, self.begin - 2.0), self._join, host)
        self.writers = [self._client(f"large{n}", self.hosts[0], clean=True) for n in (0, 1)]

    def _join(self, host: Host) -> None:
        self.readers.append(self._reader(host))

    def _reader(self, host: Host) -> SimClient:
        if not self.kept:
            return self._client(
                f"reader{host.index}", host, filters=[("large/#", 2)], clean=True, receive_maximum=0
            )
        client = Stayer(
            self.world,
            self.ledger,
            f"reader{host.index}",
            host,
            version=5,
            clean=False,
            filters=[("large/#", 2)],
        )
        self.world.after(0.1, client.connect)
        return client

    def traffic(self) -> None:
        for qos, client in enumerate(self.writers, 1):
            for number in range(self.each):
                self.world.after(
                    self.begin + self.pauses.get(number, number * self.pause),
                    client.publish,
                    f"large/{qos}",
                    qos,
                    False,
                    self.size,
                )

    def _end(self) -> None:
        self.world.run(
            60.0, lambda: all(len(reader.got) >= self.acked() for reader in self.readers)
        )
        super()._end()

    def acked(self) -> int:
        return sum(
            sent.acked is not None for sent in self.ledger.sent if sent.topic.startswith("large/")
        )

    def check(self) -> None:
        """All that was acknowledged came, QoS 2 once, and in order."""
        for reader in self.readers:
            got = [one.number for one in reader.got]
            due = [
                sent
                for sent in self.ledger.sent
                if sent.topic.startswith("large/") and sent.acked is not None
            ]
            assert not [sent.number for sent in due if sent.number not in set(got)], (
                f"lost at {reader.name}"
            )
            assert len(due) >= self.each
            for topic in ("large/1", "large/2"):
                numbers = [number for number in got if self.ledger.sent[number].topic == topic]
                assert len(numbers) == len(set(numbers)), f"{topic} twice at {reader.name}"
                assert numbers == sorted(numbers), f"{topic} out of order at {reader.name}"

    def counted(self, name: str) -> int:
        return sum(getattr(host.running.counters, name) for host in self.hosts)


def lonely(outage: float, *away: int, brokers: int) -> list[Event]:
    """Events: some brokers are cut off from the others, and from each other, for so long."""
    others = tuple(index for index in range(brokers) if index not in away)
    return [(1.9, part(others, *((index,) for index in away))), (1.9 + outage, part())]


def played(scene: Away, length: float) -> Away:
    scene.length = length
    result = scene.run()
    assert not result.violations
    return scene


@pytest.mark.parametrize("routing", ROUTINGS)
def test_an_outage_longer_than_the_log_loses_nothing(routing: str) -> None:
    """150 s: what was published in the first 30 has left the log for its age."""
    scene = played(Away(2, 150, 100, 1.0, lonely(150.0, 1, brokers=2), routing=routing), 156.0)
    scene.check()
    assert scene.counted("replay_log_lost") == 0
    assert scene.counted("log_tail_replayed") > 20


@pytest.mark.parametrize("routing", ROUTINGS)
def test_messages_that_exceed_the_log_come_from_the_tail(routing: str) -> None:
    """80 MB in 8 s, and the log has 32 MiB."""
    scene = played(Away(2, 40, MB, 0.1, lonely(8.0, 1, brokers=2), routing=routing), 12.0)
    scene.check()
    assert scene.counted("replay_log_lost") == 0
    assert scene.counted("log_tail_replayed") > 40


@pytest.mark.parametrize("routing", some("interest"))
@pytest.mark.parametrize("far", [True, False], ids=["two links away", "the one between"])
def test_brokers_in_a_row_get_what_they_missed(routing: str, far: bool) -> None:
    """The last of three in a row is away, or the one in the middle and with it the last."""
    scene = Away(3, 40, MB, 0.1, lonely(8.0, 2 if far else 1, brokers=3), routing=routing)
    scene.chain = True
    played(scene, 12.0).check()
    assert scene.counted("replay_log_lost") == 0


@pytest.mark.parametrize("routing", some("topic"))
def test_two_brokers_that_are_away_each_get_all_they_missed(routing: str) -> None:
    """Each for itself, and each gets all of it."""
    scene = played(Away(3, 40, MB, 0.1, lonely(8.0, 1, 2, brokers=3), routing=routing), 12.0)
    scene.check()
    assert scene.counted("replay_log_lost") == 0


@pytest.mark.parametrize("routing", some("interest"))
def test_an_origin_that_is_cut_off_loses_nothing(routing: str) -> None:
    """It is away for all others, and they for it."""
    scene = played(
        Away(3, 40, MB, 0.1, [(1.9, part((0,), (1, 2))), (9.9, part())], routing=routing), 12.0
    )
    scene.check()
    assert scene.counted("replay_log_lost") == 0


@pytest.mark.parametrize("routing", some("topic"))
def test_an_origin_that_is_killed_meanwhile_loses_nothing_of_its_tail(routing: str) -> None:
    """What the tail had of its earlier incarnation is still delivered, and what its next one
    publishes comes behind it."""
    events: list[Event] = [*lonely(14.0, 1, brokers=2), (6.0, kill(0)), (7.0, start(0))]
    scene = Away(2, 80, MB, 0.1, events, routing=routing)
    played(scene, 18.0).check()
    assert scene.counted("replay_log_lost") == 0
    assert scene.counted("log_tail_replayed") > 40


@pytest.mark.parametrize("routing", some("interest"))
def test_killing_the_origin_and_the_absent_broker_loses_nothing(routing: str) -> None:
    """First the one that is away; the other one meanwhile, in the moment when it is back."""
    scene = Away(
        2,
        40,
        MB,
        0.1,
        [(1.9, kill(1)), (8.0, start(1)), (9.2, kill(0)), (10.0, start(0))],
        routing=routing,
    )
    scene.kept = True
    played(scene, 14.0).check()
    assert scene.counted("replay_log_lost") == 0


class Slow(Away):
    """Three in a row, the last link of which is slow, and one that publishes small messages in the
    middle."""

    def build(self) -> None:
        self.chain = True
        super().build()
        self.world.limit_rate(1, 2, 20 * MBIT)
        self.quick = self._client("quick", self.hosts[1], clean=True)

    def traffic(self) -> None:
        super().traffic()
        for number in range(300):
            self.world.after(
                self.begin + number * 0.005, self.quick.burst, "large/quick", 1, 20, 50
            )
            self.world.after(
                self.begin + number * 0.005, self.quick.publish, "nobody/wants/it", 1, False, 2000
            )


@pytest.mark.parametrize(
    ("routing", "count", "size"), [("interest", 2, 20 * MB), ("topic", 6, 5 * MB)]
)
def test_messages_queued_for_a_slow_link_that_is_cut_arrive_later(
    routing: str, count: int, size: int
) -> None:
    """The log has kept more for that neighbour than it may have for one that is away, and the
    brokers where it was published have nothing of it any more: as if it had no more room for large
    messages."""
    scene = Slow(3, count, size, 0.05, [(3.0, part((0, 1), (2,))), (5.7, part())], routing=routing)
    scene.world.limits = Limits(log_large_s=0.0)
    scene.length = 8.0
    scene.run()
    acked = {
        s.number for s in scene.ledger.sent if s.topic.startswith("large/") and s.acked is not None
    }
    assert len(acked) == 6000 + 2 * count
    for reader in scene.readers:
        assert not acked - {one.number for one in reader.got}
    assert scene.counted("replay_log_lost") == 0
    # Nothing is replayed without end because unwanted messages are missing in between.
    assert 0 < scene.counted("log_tail_replayed") <= len(acked)


def lost(scene: Away) -> int:
    """Messages that were acknowledged and did not come; each is counted, and a line says how many
    they are."""
    got = {one.number for one in scene.readers[0].got}
    missing = [
        s
        for s in scene.ledger.sent
        if s.topic.startswith("large/") and s.acked is not None and s.number not in got
    ]
    lines = [text for host in scene.hosts for _, _, text in host.logs if "that it lacked" in text]
    assert scene.counted("replay_log_lost") == len(missing)
    assert len(lines) == bool(missing)
    assert all(f" {len(missing)} messages of this broker that it lacked" in text for text in lines)
    return len(missing)


class Everywhere(Away):
    """It is published at each broker, and wanted at each; sessions are kept."""

    def build(self) -> None:
        self.kept = True
        super().build()
        self.world.after(0.0, self._join, self.hosts[0])
        self.writers = [self._client(f"from{host.index}", host, clean=True) for host in self.hosts]

    def traffic(self) -> None:
        for writer in self.writers:
            topic = f"large/{writer.name}"
            for number in range(self.each):
                at = self.begin + number * self.pause
                self.world.after(at, writer.publish, topic, 2, False, self.size)


FALSE_ALARMS: dict[str, list[Event]] = {
    "the broker between two is cut off": [(4.0, part((0,), (1, 2))), (7.5, part())],
    "it was published before a restart": [
        (4.0, kill(0)),
        (8.6, start(0)),
        (13.6, part((1,), (0, 2))),
        (18.5, part()),
    ],
    "the other one was killed as well": [
        (4.0, part((0,), (1, 2))),
        (8.7, part()),
        (10.2, kill(2)),
        (14.5, start(2)),
    ],
}


@pytest.mark.parametrize("name", FALSE_ALARMS)
@pytest.mark.parametrize("routing", some("topic"))
def test_a_broker_that_lacks_nothing_has_nothing_counted(routing: str, name: str) -> None:
    """What leaves the log while it is away it has had long before. It has no reason to ask the
    origin for anything once it is back."""
    scene = Everywhere(3, 45, 100, 0.4, FALSE_ALARMS[name], routing=routing)
    scene.world.limits = Limits(log_age_s=3.0)
    played(scene, 30.0)
    scene.world.run(80.0)
    acked = {sent.number for sent in scene.ledger.sent if sent.acked is not None}
    for reader in scene.readers:
        assert not acked - {one.number for one in reader.got}
    assert scene.counted("replay_log_lost") == 0


@pytest.mark.parametrize("routing", some("topic"))
def test_messages_that_exceed_the_tail_are_counted_as_lost(routing: str) -> None:
    """80 MB: the log has 33, and its tail 20."""
    scene = Away(2, 40, MB, 0.1, lonely(8.0, 1, brokers=2), routing=routing, log_tail=20 * MB)
    scene.length = 12.0
    scene.run()
    assert 25 <= lost(scene) <= 32
    assert any("log-tail" in text for _, _, text in scene.hosts[0].logs)


def full(scene: Scene) -> None:
    assert isinstance(scene, Away)
    scene.disks[0].files.broken = "No space left on device"


def room(scene: Scene) -> None:
    assert isinstance(scene, Away)
    scene.disks[0].files.broken = ""


@pytest.mark.parametrize("routing", some("topic"))
def test_a_full_disk_loses_only_what_leaves_the_log_meanwhile(routing: str) -> None:
    """What leaves the log meanwhile is lost, and counted; what does so before and after is not."""
    events: list[Event] = [*lonely(8.0, 1, brokers=2), (5.0, full), (6.5, room)]
    scene = Away(2, 40, MB, 0.1, events, routing=routing)
    scene.length = 12.0
    scene.run()
    assert 10 <= lost(scene) <= 30
    lines = [text for _, _, text in scene.hosts[0].logs if text.startswith("the log tail")]
    assert ["cannot be written" in line for line in lines] == [True, False]
    assert "can be written again" in lines[1]


def damage(scene: Scene) -> None:
    assert isinstance(scene, Away)
    for data in scene.disks[0].files.tail_segments.values():
        data[len(data) // 2] ^= 1


@pytest.mark.parametrize("routing", some("interest"))
def test_a_damaged_segment_loses_only_the_frame_that_cannot_be_read(routing: str) -> None:
    """The piece that cannot be read is counted, and a line says so; the others come."""
    scene = Away(2, 40, MB, 0.1, [*lonely(8.0, 1, brokers=2), (9.5, damage)], routing=routing)
    scene.length = 12.0
    scene.run()
    assert 1 <= lost(scene) <= 8
    assert scene.counted("log_tail_damaged") >= 1


def remove(scene: Scene) -> None:
    assert isinstance(scene, Away)
    scene.disks[0].files.tail_segments.clear()


@pytest.mark.parametrize("routing", some("interest"))
def test_a_removed_tail_costs_what_was_in_it_and_nothing_waits_for_that(routing: str) -> None:
    """80 MB: the log has 33. What is published when the broker is back comes as soon as what the
    log has, and is acknowledged at once."""
    scene = Away(2, 40, MB, 0.1, [*lonely(8.0, 1, brokers=2), (9.8, remove)], routing=routing)
    scene.pauses[39] = 12.0
    scene.length = 17.0
    scene.run()
    assert 40 <= lost(scene) <= 50
    came = {one.number: one.at for one in scene.readers[0].got}
    for sent in scene.ledger.sent[-2:]:
        assert sent.acked is not None and sent.acked < sent.at + 0.5
        # As long as a split may last it waits for what another path may bring.
        assert came[sent.number] < sent.at + SPLIT + 2.0
    logs = [text for _, level, text in scene.hosts[0].logs if level != "debug"]
    (line,) = [text for text in logs if "of the log tail" in text]
    assert "is gone" in line


@pytest.mark.parametrize("routing", some("interest"))
def test_what_the_journal_still_has_of_a_removed_tail_is_not_lost(routing: str) -> None:
    """The tail is removed, goes on in a new segment, and its broker is killed."""
    events = [*lonely(14.0, 1, brokers=2), (4.6, remove), (8.0, kill(0)), (9.0, start(0))]
    scene = Away(2, 80, MB, 0.1, events, routing=routing)
    scene.world.limits = Limits(journal_smallest=1 << 30)
    played(scene, 18.0).check()
    assert scene.counted("replay_log_lost") == 0


@pytest.mark.parametrize("tail", [0, 1 << 30], ids=["without a tail", "with one"])
def test_the_tail_serves_a_broker_that_is_away_again_with_new_subscribers(tail: int) -> None:
    """It is away once more a second after it was back, and wants more by then."""
    events: list[Event] = [
        (0.5, part((0,), (1,))),
        (4.0, part()),
        (6.9, part((0,), (1,))),
        (14.9, part()),
    ]
    scene = Away(2, 40, MB, 0.1, events, routing="interest", log_tail=tail)
    scene.begin = 7.0
    scene.length = 17.0
    scene.run()
    missing = lost(scene)
    assert bool(missing) == (not tail)


@pytest.mark.parametrize("routing", some("interest"))
def test_without_a_tail_an_origin_counts_what_each_broker_lost(routing: str) -> None:
    """Without a tail, for each of the others what it lacks."""
    scene = Away(
        3, 40, MB, 0.1, [(1.9, part((0,), (1, 2))), (9.9, part())], routing=routing, log_tail=0
    )
    scene.length = 12.0
    scene.run()
    acked = [
        sent.number
        for sent in scene.ledger.sent
        if sent.topic.startswith("large/") and sent.acked is not None
    ]
    missing = [len(set(acked) - {got.number for got in reader.got}) for reader in scene.readers]
    assert min(missing) > 40
    assert scene.counted("replay_log_lost") == sum(missing)
