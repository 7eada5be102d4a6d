"""When a leg sends probes, and what it does where one comes back."""

from __future__ import annotations

import random

import pytest

from mqttree.broker.leg.crossing import (
    LOOP_TIME,
    PROBE,
    PROBE_BYTES,
    PROBE_LEAST,
    PROBE_PAUSE,
    Crossing,
)
from mqttree.broker.leg.effects import LegEffect, ToForeign
from mqttree.broker.leg.marks import Federation
from mqttree.broker.leg.ring_alarm import RingAlarm
from mqttree.broker.leg.rings import REPEATS
from mqttree.broker.leg.rules import Rules, parse_rule
from mqttree.broker.wire.constants import PacketType
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Publish
from tests.kit.leg_harness import Joined

HOUR = 3600.0
OWN, OTHER = bytes([1]) * 8, bytes([2]) * 8
KILOBYTE = encode_packet(Publish("t", bytes(1000)), 5)


def crossing(name: str, own: bytes, *, marks: bool) -> Crossing:
    """That of an MQTT 5 leg that is up since second 0, of a federation of OWN and OTHER."""
    rules = Rules([parse_rule("# both 2")])
    federation = Federation(own, lambda broker_id: broker_id in (OWN, OTHER))
    made = Crossing(name, rules, random.Random(1), federation, marks=marks)
    made.begin(5, False, 0.0)
    made.accepted(1 << 20)
    return made


def hear(made: Crossing, size: int, now: float) -> None:
    """Have this many bytes come from the foreign broker."""
    made.inwards(KILOBYTE * (size // len(KILOBYTE) + 1), now)


def muted(made: Crossing, message: Publish, now: float) -> int:
    """How many messages are muted once this one has come 17 times."""
    for _ in range(REPEATS + 1):
        made.inwards(encode_packet(message, 5), now)
    return made.drops()["muted"]


@pytest.mark.parametrize("marks", [False, True])
def test_a_leg_sends_a_probe_when_it_is_up_and_every_five_minutes(marks: bool) -> None:
    made = crossing("a", OWN, marks=marks)
    assert made.probe(0.0)
    hear(made, 10, 1.0)
    assert not made.probe(PROBE_PAUSE - 1.0)
    assert made.probe(PROBE_PAUSE)
    assert not made.probe(2 * PROBE_PAUSE), "nothing has come since"
    hear(made, 10, 2 * PROBE_PAUSE)
    assert made.probe(3 * PROBE_PAUSE)


def test_a_loud_leg_without_marks_sends_a_probe_sooner() -> None:
    """Legs elsewhere may have closed a ring since, in which messages go round without end."""
    plain, marked = crossing("a", OWN, marks=False), crossing("a", OWN, marks=True)
    for made in (plain, marked):
        assert made.probe(0.0)
        hear(made, PROBE_BYTES, 1.0)
        assert not made.probe(PROBE_LEAST - 0.1)
    assert plain.probe(PROBE_LEAST)
    assert not plain.probe(2 * PROBE_LEAST), "little has come since"
    assert not marked.probe(PROBE_LEAST)


def test_a_leg_mutes_a_ring_that_the_probe_of_another_leg_shows() -> None:
    """Its own probe was sent before there was a ring, and only the other leg's went round."""
    first, second = crossing("a", OWN, marks=False), crossing("b", OTHER, marks=False)
    assert not muted(second, Publish("t", b"round"), 1.0)
    alarm = RingAlarm("b", second)
    probe = first.probe(1.0)
    assert PROBE in second.inwards(probe, 2.0), "it goes on to the first leg"
    assert (second.loops, second.same_broker(2.0)) == (1, ["a"])
    assert second.same_broker(2.0 + LOOP_TIME) == []
    assert alarm.due
    (line,) = alarm.lines("f:1883", 2.0)
    assert "legs b and 'a' of this federation lead to one broker" in line
    second.inwards(probe, 3.0)
    assert alarm.lines("f:1883", 3.0) == []
    assert muted(second, Publish("t", b"round"), 2.0) == 2


def test_the_probe_of_a_leg_of_another_federation_is_no_loop() -> None:
    first, second = crossing("a", bytes([3]) * 8, marks=True), crossing("b", OWN, marks=True)
    second.inwards(first.probe(1.0), 2.0)
    assert second.loops == 0


def test_a_ring_that_marks_end_mutes_nothing() -> None:
    first, second = crossing("a", OWN, marks=True), crossing("b", OTHER, marks=True)
    assert PROBE not in second.inwards(first.probe(1.0), 2.0)
    assert second.loops == 1
    assert not muted(second, Publish("t", b"round"), 2.0)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("topic", [PROBE, b"t/state"])
def test_what_a_foreign_broker_closes_for_is_sent_once(topic: bytes, version: int) -> None:
    """Its rules let the leg publish elsewhere alone."""
    sent: list[bytes] = []

    def close(effect: LegEffect) -> LegEffect | None:
        data = effect.data if isinstance(effect, ToForeign) else b""
        if topic in data and data[0] >> 4 == PacketType.PUBLISH:
            sent.append(data)
            joined.ends["there"].conn.close()
            return None
        return effect

    joined = Joined(probes=True, state_topic="t/state", version=version)
    assert joined.up
    joined.cut()
    joined.edit = close
    joined.advance(2 * HOUR)
    assert joined.up and joined.leg.counters.connects == 3
    assert len(sent) == 1
    assert sum("which is left out from now on" in line for line in joined.log) == 1
    watcher = joined.there.connect("w").subscribed("#")
    watcher.take()
    joined.cut()
    joined.advance(60.0)
    others = {PROBE.decode() in p.topic for p in watcher.take() if isinstance(p, Publish)}
    assert others == {topic != PROBE}, "the other one is sent as before"


def test_a_connection_that_is_reset_is_not_the_probes_fault() -> None:
    sent: list[bytes] = []

    def lose(effect: LegEffect) -> LegEffect | None:
        if isinstance(effect, ToForeign) and PROBE in effect.data:
            sent.append(effect.data)
            joined.deaf = len(sent) < 3
        return effect

    joined = Joined(probes=True)
    joined.edit = lose
    joined.cut()
    for _ in range(3):
        joined.advance(40.0)
        if joined.deaf:
            joined.deaf = False
            joined.cut()
    joined.advance(60.0)
    assert joined.up and len(sent) == 3
