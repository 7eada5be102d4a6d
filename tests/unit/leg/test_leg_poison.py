"""A foreign broker that closes the connection for one message, as MQTT 3.1.1 has no other way to
refuse it: that one is dropped and counted, all others cross. One that is killed loses none."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from mqttree.broker.leg.backoff import CLOSED, RESET
from mqttree.broker.leg.effects import LegEffect, ToForeign, TryAddress
from mqttree.broker.leg.packets import places
from mqttree.broker.leg.poison import PAUSE, ROW, SOON
from mqttree.broker.wire.constants import PacketType, ReasonCode
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Disconnect, Publish
from tests.kit.leg_harness import Joined

ends = pytest.mark.parametrize("why", [CLOSED, RESET, "disconnects"])
versions = pytest.mark.parametrize("version", [4, 5])


class Picky:
    """A foreign broker that takes all ahead of a PUBLISH with certain bytes, and then closes."""

    def __init__(self, *lines: str, bad: bytes = b"bad", why: str = CLOSED, **more: object) -> None:
        """`lines`, `more`: of `Joined`; `bad`: what it does not like; `why`: how it closes."""
        self.bad, self.why = bad, why
        self.closed = 0
        self.ids = itertools.count(1)
        self.killed = False
        """Whether it is gone when it has closed, for some seconds."""
        self.joined = Joined(*lines, edit=self.sees, **more)  # type: ignore[arg-type]
        self.here = self.joined.here.connect("h")
        self.there = self.joined.there.connect("t").subscribed("#", qos=2)
        self.there.take()

    def sees(self, effect: LegEffect) -> LegEffect | None:
        if isinstance(effect, TryAddress) and self.killed:
            return None
        if not isinstance(effect, ToForeign) or effect.sync or not self.bad:
            return effect
        data = effect.data
        for begin, _, end in places(data):
            if data[begin] >> 4 == PacketType.PUBLISH and self.bad in data[begin:end]:
                joined = self.joined
                self.closed += 1
                if "there" in joined.ends:
                    joined.ends["there"].chunks([data[:begin]])
                    self.close()
                return None
        return effect

    def close(self) -> None:
        """Close the connection of the leg, behind all answers."""
        joined = self.joined
        end = joined.ends.pop("there")
        now = joined.here.now
        joined.leg.foreign_received(bytes(end.transport.written), now)
        end.vanish()
        if self.why == "disconnects" and joined.leg.version == 5:
            packet = Disconnect(ReasonCode.PACKET_TOO_LARGE)
            joined.leg.foreign_received(encode_packet(packet, 5), now)
        joined.leg.on_lost(CLOSED if self.why == "disconnects" else self.why, now)

    def publish(self, *topics: str, qos: int = 1, retain: bool = False) -> None:
        """Have a client here publish to topics at once."""
        packets = [
            Publish(topic, topic.encode(), qos, retain, packet_id=next(self.ids) if qos else None)
            for topic in topics
        ]
        self.joined.send(self.here, *packets)

    def came(self) -> list[str]:
        """The topics of what came there, each once."""
        got = [p.topic for p in self.there.take() if isinstance(p, Publish)]
        return list(dict.fromkeys(t for t in got if not t.startswith("mqttree/")))

    @property
    def refused(self) -> int:
        return self.joined.leg.drops()["refused_there"]

    def lines(self, text: str) -> int:
        return sum(text in line for line in self.joined.log)


@versions
@ends
@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_foreign_broker_closes_for_is_dropped_and_the_rest_crosses(
    qos: int, why: str, version: int
) -> None:
    picky = Picky(version=version, why=why, state_topic="mqttree/state", probes=True)
    picky.publish("a", "b", "bad", "c", "d", qos=qos)
    picky.joined.advance(120.0)
    assert picky.joined.up
    assert picky.came() == ["a", "b", "c", "d"]
    assert picky.refused == 1
    assert picky.lines("closes the connection for a message to 'bad' of ") == 1
    assert picky.closed == 1 + ROW
    assert not picky.joined.here.session("leg:n").inflight
    assert picky.lines("left out from now on") == picky.lines("another client may be") == 0
    picky.joined.advance(120.0)
    picky.publish("e", qos=qos)
    assert picky.came() == ["e"] and picky.closed == 1 + ROW


@versions
def test_the_name_there_of_what_is_dropped_is_logged(version: int) -> None:
    picky = Picky('# out 1 "" there/', version=version)
    picky.publish("bad", "good")
    picky.joined.advance(120.0)
    assert picky.came() == ["there/good"]
    assert picky.lines("a message to 'there/bad' of ") == 1


def test_several_of_them_are_dropped_one_by_one() -> None:
    picky = Picky(version=4)
    picky.publish("bad", "a", "bad", "bad", "b")
    picky.joined.advance(1200.0)
    assert picky.came() == ["a", "b"]
    assert picky.refused == 3
    assert picky.joined.up


def test_a_gateway_that_was_restarted_finds_it_again() -> None:
    """The message crosses ahead of the first SUBACK then."""
    picky = Picky(version=4)
    picky.publish("bad", "a")
    picky.joined.advance(1.0)
    for end in list(picky.joined.ends):
        picky.joined._vanish(end)
    picky.joined.begin()
    picky.joined.advance(120.0)
    assert picky.came() == ["a"] and picky.refused == 1


@versions
@ends
def test_a_foreign_broker_that_is_killed_each_time_loses_nothing(why: str, version: int) -> None:
    """However often, with the same message in flight, alone, and as soon as it has come: for a
    moment nothing listens at its address."""
    picky = Picky(version=version, why=why)
    picky.killed = True
    picky.publish("a", "bad", "b")
    picky.joined.advance(600.0)
    assert picky.closed > 2 * ROW
    assert picky.refused == 0
    picky.bad = b""
    picky.joined.advance(60.0)
    assert picky.came() == ["a", "bad", "b"]


def broken_by_a_dial(picky: Picky) -> None:
    """Have one dial fail."""
    picky.joined.reachable = False
    picky.joined.advance(40.0)
    picky.joined.reachable = True


def broken_by_the_network(picky: Picky) -> None:
    """Have a connection end on the way, with the message in flight."""
    bad, picky.bad = picky.bad, b""
    picky.joined.deaf = True
    while "there" not in picky.joined.ends:
        picky.joined.advance(0.1)
    picky.joined.cut()
    picky.joined.deaf = False
    picky.bad = bad


def broken_by_a_refusal(picky: Picky) -> None:
    """Have it close ahead of CONNACK."""
    picky.joined.deaf = True
    while "there" not in picky.joined.ends:
        picky.joined.advance(0.1)
    picky.close()
    picky.joined.deaf = False


@pytest.mark.parametrize("breaks", [broken_by_a_dial, broken_by_the_network, broken_by_a_refusal])
def test_any_other_end_breaks_the_row(breaks: Callable[[Picky], None]) -> None:
    picky = Picky(version=4)
    picky.publish("bad", "a")
    for _ in range(5):
        before = picky.closed
        while picky.closed < before + ROW:
            picky.joined.advance(0.1)
        breaks(picky)
        assert picky.refused == 0
    picky.joined.advance(300.0)
    assert picky.refused == 1


def test_a_close_long_after_a_message_is_not_for_it() -> None:
    """It hangs, and is ended."""
    picky = Picky(version=4, keep_alive=0)
    joined = picky.joined
    picky.bad = b""

    def silent(effect: LegEffect) -> LegEffect | None:
        sent = isinstance(effect, ToForeign) and b"slow" in effect.data
        return None if sent else effect

    joined.edit = silent
    picky.publish("slow")
    for _ in range(3 * ROW):
        while not joined.up:
            joined.advance(1.0)
        joined.advance(SOON + 1.0)
        picky.close()
    assert picky.refused == 0
    joined.edit = lambda effect: effect
    joined.advance(60.0)
    assert picky.came() == ["slow"]


def test_what_was_answered_is_not_to_blame() -> None:
    """It closes again and again, for another reason."""
    picky = Picky(version=4)
    for number in range(4 * ROW):
        while not picky.joined.up:
            picky.joined.advance(1.0)
        picky.publish(f"a{number}")
        picky.close()
    picky.joined.advance(60.0)
    assert picky.refused == 0
    assert picky.came() == [f"a{number}" for number in range(4 * ROW)]


@versions
def test_what_it_closes_for_is_not_sent_faster_than_that(version: int) -> None:
    picky = Picky(version=version)
    picky.publish("bad")
    times, before = [], 0
    while picky.refused == 0:
        picky.joined.advance(0.1)
        if picky.closed > before:
            before = picky.closed
            times.append(picky.joined.here.now)
    assert len(times) == 1 + ROW
    assert all(b - a >= PAUSE for a, b in itertools.pairwise(times[1:]))


@pytest.mark.parametrize(
    "reason",
    [
        ReasonCode.SERVER_SHUTTING_DOWN,
        ReasonCode.SERVER_BUSY,
        ReasonCode.ADMINISTRATIVE_ACTION,
        ReasonCode.USE_ANOTHER_SERVER,
    ],
)
def test_a_reason_that_is_not_about_messages_drops_none(reason: ReasonCode) -> None:
    picky = Picky(version=5)
    joined = picky.joined

    def close() -> None:
        joined.leg.foreign_received(encode_packet(Disconnect(reason), 5), joined.here.now)

    picky.close = close  # type: ignore[method-assign]
    picky.publish("bad", "a")
    joined.advance(600.0)
    assert picky.closed > 2 * ROW and picky.refused == 0
    picky.bad = b""
    joined.advance(60.0)
    assert set(picky.came()) == {"bad", "a"}


@versions
@ends
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_retained_message_for_which_it_closes_is_not_compared_for_ever(
    qos: int, first: bool, why: str, version: int
) -> None:
    """A comparison publishes all that the foreign broker lacks. `first`: at the first contact."""
    picky = Picky(version=version, why=why, standby=first, state_topic="mqttree/state", probes=True)
    joined = picky.joined
    picky.publish("a", "bad", "c", qos=qos, retain=True)
    if first:
        joined.leg.take_turn(joined.here.now, heir=False)
    joined.advance(1000.0)
    closed = picky.closed
    assert closed <= 2 * (1 + ROW)
    assert picky.refused == picky.lines("closes the connection for a message to 'bad' of ") == 1
    assert joined.up and set(picky.came()) == {"a", "c"}
    assert not picky.lines("left out from now on")
    merges = joined.exchange.counters.merges
    joined.advance(8000.0)
    assert joined.exchange.counters.merges > merges
    assert picky.closed == closed and picky.refused == 1
    assert joined.here.node.retained.get("bad") and not joined.there.node.retained.get("bad")
    # Another value is none that was refused.
    joined.send(picky.here, Publish("bad", b"fine", 1, True, packet_id=1000))
    joined.advance(1000.0)
    assert picky.refused == 2


def test_what_is_retained_at_qos_0_meanwhile_is_compared_afterwards() -> None:
    """While a message is alone in flight, messages at QoS 0 are lost."""
    picky = Picky(version=4)
    joined = picky.joined
    picky.publish("bad")
    joined.advance(1.0)
    late: list[bytes] = []

    def slow(effect: LegEffect) -> LegEffect | None:
        if isinstance(effect, ToForeign) and b"bad" in effect.data:
            late.append(effect.data)
            return None
        return effect

    joined.edit = slow
    while not joined.up:
        joined.advance(0.1)
    joined.advance(100.0)
    picky.publish("kept", qos=0, retain=True)
    joined.ends["there"].chunks(late)
    joined.advance(100.0)
    assert joined.leg.counters.connects == 2
    assert set(picky.came()) == {"bad", "kept"}
    assert joined.there.node.retained.get("kept")


@pytest.mark.parametrize("newer", ["here", "there"])
def test_what_a_comparison_still_has_to_publish_does_not_undo_what_is_newer(newer: str) -> None:
    picky = Picky(standby=True)
    joined = picky.joined
    topics = [f"t/{number}" for number in range(10)]
    picky.publish("bad", *topics, qos=0, retain=True)
    joined.leg.take_turn(joined.here.now, heir=False)
    while picky.closed < 2:
        joined.advance(0.1)
    while not joined.exchange._deeds:
        joined.deaf = joined.exchange._careful and joined.exchange._merge is not None
        picky.bad = b""
        joined.advance(0.01)
    joined.deaf = False
    last = joined.exchange._deeds[-1].topic
    client = picky.here if newer == "here" else picky.there
    joined.send(client, Publish(last, b"newer", 1, True, packet_id=1000))
    joined.advance(600.0)
    assert joined.up and not joined.exchange._deeds
    for world in (joined.here, joined.there):
        found = world.node.retained.get(last)
        assert found is not None and found.payload == b"newer"
        assert all(world.node.retained.get(topic) for topic in topics)
