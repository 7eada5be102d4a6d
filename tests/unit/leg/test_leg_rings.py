"""Echoes and rings of a leg (rings.py)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.leg.rings import (
    ECHO_TIME,
    ECHOES,
    MUTE_TIME,
    REPEAT_TIME,
    REPEATS,
    EchoList,
    RingWatch,
)

MESSAGES = st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.sampled_from([b"1", b"2"])))


@given(MESSAGES)
def test_each_echo_in_order_is_taken_once(sent: list[tuple[bytes, bytes]]) -> None:
    echoes = EchoList()
    for topic, payload in sent:
        echoes.sent(topic, payload, 1.0)
    assert all(echoes.takes(topic, payload, 2.0) for topic, payload in sent)
    assert not any(echoes.takes(topic, payload, 2.0) for topic, payload in sent)


def test_an_echo_has_its_time_and_no_second_chance() -> None:
    echoes = EchoList()
    for payload in (b"1", b"2", b"3"):
        echoes.sent(b"t", payload, 0.0)
    assert echoes.takes(b"t", b"2", 1.0)
    assert not echoes.takes(b"t", b"1", 1.0), "its echo would have come before"
    assert not echoes.takes(b"t", b"3", ECHO_TIME + 0.1)
    echoes.sent(b"t", b"4", 20.0)
    echoes.resume(100.0)
    assert echoes.takes(b"t", b"4", 105.0)


def test_echoes_at_qos_0_overtake_those_that_wait_for_a_place_in_flight() -> None:
    echoes = EchoList()
    for payload, waits in ((b"1", True), (b"2", False), (b"3", True), (b"4", False)):
        echoes.sent(b"t", payload, 0.0, waits=waits)
    assert [echoes.takes(b"t", payload, 1.0) for payload in (b"4", b"1", b"3")] == [True] * 3
    assert not echoes.takes(b"t", b"2", 1.0), "its echo would have come before"


def test_the_list_is_bounded() -> None:
    echoes = EchoList()
    for number in range(ECHOES + 10):
        echoes.sent(b"%d" % (number % 1000), b"%d" % number, 0.0)
    assert not echoes.takes(b"0", b"0", 0.0)
    last = ECHOES + 9
    assert echoes.takes(b"%d" % (last % 1000), b"%d" % last, 0.0)


def test_a_topic_is_muted_when_one_message_repeats_too_often() -> None:
    watch = RingWatch()
    watch.begin(0.0)
    assert [watch.stops(b"t", b"x", 1.0) for _ in range(REPEATS)] == [False] * (REPEATS - 1) + [
        True
    ]
    assert watch.stops(b"t", b"y", 2.0)
    assert not watch.stops(b"u", b"x", 2.0)
    assert not watch.stops(b"t", b"y", 1.0 + MUTE_TIME)
    slow = RingWatch()
    slow.begin(0.0)
    pause = REPEAT_TIME / (REPEATS - 2)
    assert not any(slow.stops(b"t", b"x", number * pause) for number in range(100))
