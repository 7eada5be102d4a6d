"""Outages with restarts inside them: what was acknowledged meanwhile reaches the brokers that were
away, for an hour, in whatever order brokers are restarted.

With SEEDS set all of it in all routing modes, without in one of them where it takes longer.
"""

from __future__ import annotations

import os

import pytest

from mqttree.broker.limits import Limits
from tests.kit.journal_harness import Files
from tests.sim.outages import run_outage
from tests.sim.test_federation import Event, kill, part, start
from tests.sim.test_log_tail import ROUTINGS, Away, lonely, played
from tests.sim.test_merge import kept_row
from tests.sim.world import World

EVENTS: dict[str, tuple[int, float, list[Event]]] = {
    "both are killed, and the publisher's is started first": (
        2,
        30.0,
        [(4.0, kill(0, 1)), (5.0, start(0)), (30.0, start(1))],
    ),
    "the publisher's is restarted while the other one is down": (
        2,
        30.0,
        [(4.0, kill(1)), (7.0, kill(0)), (8.0, start(0)), (30.0, start(1))],
    ),
    "the publisher's is restarted inside a split": (
        3,
        30.0,
        [(4.0, part((0,), (1, 2))), (6.0, kill(0)), (7.0, start(0)), (28.0, part())],
    ),
    "the other one is down for six minutes": (2, 370.0, [(4.0, kill(1)), (366.0, start(1))]),
    "the other one is cut off for six minutes": (
        2,
        370.0,
        [(4.0, part((0,), (1,))), (366.0, part())],
    ),
}
"""Brokers, s of publishing, faults."""


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("name", EVENTS)
def test_a_broker_that_is_alone_keeps_what_the_others_lack(name: str, routing: str) -> None:
    """A broker that has met others keeps messages for them, however long it is alone and whatever
    was restarted meanwhile."""
    brokers, length, events = EVENTS[name]
    pause = 0.25 if length < 100 else 2.0
    scene = Away(brokers, round(length / pause), 100, pause, events, routing=routing)
    scene.kept = True
    played(scene, length + 8.0).check()
    assert scene.counted("replay_log_lost") == 0


def test_an_hour_counts_from_when_a_broker_was_there_last() -> None:
    """It is away, back for some seconds, and away again: with less time each, as what it lacks is
    kept for a minute here, and the log has five seconds."""
    events: list[Event] = [*lonely(40.0, 1, brokers=2), (49.0, part((0,), (1,))), (90.0, part())]
    scene = Away(2, 80, 100, 1.0, events, routing="topic")
    scene.world.limits = Limits(absent_max_s=60.0, log_age_s=5.0)
    scene.kept = True
    played(scene, 94.0).check()
    assert scene.counted("replay_log_lost") == 0


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_broker_without_sessions_knows_the_others(routing: str) -> None:
    """It is started again while it is cut off. A client that subscribes there gets what is
    published elsewhere from then on, when they meet; nothing of before."""
    row = kept_row(routing)
    publisher = row.connect(0, "p")
    publisher.publish("a", b"before")
    row.run()
    row.world.partition([[1]])
    row.host(1).kill()
    row.run()
    publisher.publish("a", b"meanwhile")
    row.host(1).start()
    row.run(2.0)
    client = row.connect(1, expiry=0).subscribed("a")
    publisher.publish("a", b"1", b"2")
    row.run(6.0)
    row.world.heal()
    row.join()
    row.run(3.0)
    assert client.payloads == [b"1", b"2"]


class Later(Away):
    """The broker of the reader starts some seconds after that of the publisher: what that one
    published before they met is not for it."""

    def build(self) -> None:
        super().build()
        self.hosts[1].kill()
        self.disks[1].files = Files()
        self.disks[1].files.lazy = True
        self.world.after(3.0, self.hosts[1].start)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_an_origin_that_was_quiet_before_an_outage_loses_nothing(routing: str) -> None:
    """It published something, and nothing for 55 minutes; then it is away for ten. That is longer
    than an origin is remembered which publishes nothing."""
    events: list[Event] = [(3302.0, part((0,), (1,))), (3902.0, part())]
    scene = Later(2, 20, 100, 0.0, events, routing=routing)
    scene.kept, scene.begin = True, 8.0
    scene.pauses = {number: 3300.0 + 30.0 * number for number in range(1, 20)}
    played(scene, 3910.0).check()
    assert scene.counted("replay_log_lost") == 0


ONCE_BAD = {
    92: "members of a shared subscription were away for six minutes",
    172: "the same, and the publishers' brokers had been restarted meanwhile",
    256: "a message left the log for its age after it was taken for gone",
    1069: "a broker that had taken a session was killed, and took the holder's copy for another",
    1085: "a taker forgot what it had claimed after 120 s, and said that it had come",
    1087: "a broker was away once more after it was back, and its filters of before counted",
    1109: "an origin was waited for one second as a broker joined: order",
    1226: "the same as 1087",
    1267: "a start deleted the tail, as one of several brokers was not away any more",
    1382: "the same as 1109",
    2161: "the same as 1069: what had come to the holder since was taken for the copy's",
    2571: "the log of an origin had what its neighbours' logs had no longer",
    10018: "a debt that was paid at once after a restart stayed in the journal",
    10205: "the same",
    40228: "a broker had been sent messages, and was killed before it recorded them",
    40726: "the same",
    100252: "an answer from the tail took what was published before it for published too early",
    504674: "an answer brought a retained message to one broker, and its neighbours got it later",
    406490: "a group's members went while they were given old messages, which waited in memory",
    131001: "a broker was back for half a second, and its absence counted from then at a start",
}


@pytest.mark.parametrize("seed", ONCE_BAD)
def test_outages_that_once_broke_a_promise_keep_it(seed: int) -> None:
    result = run_outage(seed)
    assert not result.violations, result.violations[:5]


def test_brokers_with_standbys_die_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session was adopted, and its client had left the standby again as that died. The first
    broker, which comes back, has the older session then, and merges the adopted copy."""
    monkeypatch.setattr(World, "replicas", 1)
    assert run_outage(220037).violations == []


def test_drawn_outages_keep_all_promises() -> None:
    """SEEDS=n plays n of them, from FIRST=k on."""
    seeds = int(os.environ.get("SEEDS", "12"))
    first = int(os.environ.get("FIRST", "0"))
    bad = {}
    for seed in range(first, first + seeds):
        if violations := run_outage(seed).violations:
            bad[seed] = violations[:3]
    assert not bad
