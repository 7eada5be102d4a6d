"""Messages at QoS 1 that a foreign broker sends again."""

from __future__ import annotations

import pytest

from mqttree.broker.leg.effects import LegEffect, ToForeign
from mqttree.broker.leg.packets import DROPPED
from mqttree.broker.leg.repeats import MAX_BYTES, Repeats
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Puback, Publish
from mqttree.broker.wire.properties import Property
from tests.kit.leg_harness import Joined
from tests.kit.node_harness import World


def publish(payload: bytes, number: int, *, dup: bool = False, alias: int = 0) -> bytes:
    properties = {Property.TOPIC_ALIAS: alias} if alias else None
    packet = Publish("t", payload, 1, packet_id=number, dup=dup, properties=properties)
    return encode_packet(packet, 5)


def puback(number: int) -> bytes:
    return encode_packet(Puback(number), 5)


def test_only_what_was_acknowledged_and_is_the_same_is_a_repetition() -> None:
    repeats = Repeats()
    for number in (1, 2, 3, 4):
        repeats.passed(publish(b"%d" % number, number), out=False)
    repeats.passed(puback(1) + puback(3) + puback(4), out=True)
    repeats.passed(publish(b"3 once more", 3), out=False)
    repeats.on_lost()
    again = [
        publish(b"1", 1, dup=True),
        publish(b"2", 2, dup=True),
        publish(b"3 once more", 3, dup=True),
        publish(b"4", 4),
    ]
    dropped = encode_packet(Publish(DROPPED, b"", 1, packet_id=1), 5)
    assert repeats.without(b"".join(again), 5) == dropped + b"".join(again[1:])
    assert repeats.dropped == 1
    assert repeats.without(again[0], 5) == again[0], "each identifier counts once"


def test_a_repetition_that_gives_an_alias_comes_in() -> None:
    repeats = Repeats()
    repeats.passed(publish(b"1", 1, alias=1), out=False)
    repeats.passed(puback(1), out=True)
    repeats.on_lost()
    again = publish(b"1", 1, dup=True, alias=1)
    assert repeats.without(again, 5) == again


def test_little_is_kept() -> None:
    repeats = Repeats()
    repeats.passed(publish(b"1", 1), out=False)
    repeats.passed(puback(1), out=True)
    repeats.passed(bytes(MAX_BYTES), out=True)
    assert sum(len(packets) for _, packets in repeats._kept) <= MAX_BYTES


@pytest.mark.parametrize("version", [4, 5])
def test_a_message_whose_acknowledgement_was_lost_comes_in_once(version: int) -> None:
    joined = Joined(version=version, foreign=World())
    here, there = joined.here.connect("h").subscribed("#", qos=1), joined.there.connect("t")

    def lose(effect: LegEffect) -> LegEffect | None:
        return None if isinstance(effect, ToForeign) else effect

    joined.edit = lose
    joined.send(there, Publish("t", b"1", 1, packet_id=1))
    joined.edit = lambda effect: effect
    joined.cut()
    joined.advance(60.0)
    assert joined.up
    joined.send(there, Publish("t", b"2", 1, packet_id=2))
    assert [p.payload for p in here.take() if isinstance(p, Publish)] == [b"1", b"2"]
    assert joined.leg.drops()["repeated"] == 1
    assert not joined.there.session("mqttree-n").inflight
