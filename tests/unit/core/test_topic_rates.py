"""How often topics are published to: counted on the publish path, read every ten seconds."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.core.dispatcher import MAX_CACHED_TOPIC_BYTES
from mqttree.broker.core.topic_rates import TOP, Average, TopicRates
from mqttree.broker.core.topic_tally import WEIGHT, TopicTally
from mqttree.broker.core.traffic_meter import PERIOD
from mqttree.broker.limits import DEFAULTS
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Publish
from tests.kit.node_harness import World

TOPICS = [b"a", b"b", b"c", b"d", b"e", b"f"]


def meter_of(world: World):  # type: ignore[no-untyped-def]
    assert world.node.traffic is not None
    return world.node.traffic


def packet(topic: str, qos: int = 0, number: int = 1, version: int = 5) -> bytes:
    return encode_packet(Publish(topic, b"x", qos, False, False, number if qos else None), version)


@given(st.lists(st.sampled_from(TOPICS)))
def test_counts_are_exact_as_long_as_there_is_room(topics: list[bytes]) -> None:
    tally = TopicTally(len(TOPICS), 512)
    for topic in topics:
        tally.add(topic, 1)
    assert tally.exact == Counter(topics)


@given(st.lists(st.integers(0, 5000), max_size=3000))
def test_counts_never_have_more_topics_than_there_is_room_for(numbers: list[int]) -> None:
    tally = TopicTally(100, 512)
    for number in numbers:
        tally.add(b"%d" % number, 1)
        assert len(tally.exact) <= 100


def test_a_topic_that_is_published_to_often_stays_when_there_is_no_room() -> None:
    tally = TopicTally(100, 512)
    for number in range(20_000):
        tally.add(b"rare/%d" % number, 1)
        if not number % 10:
            tally.add(b"often", 1)
    assert tally.exact[b"often"] >= 2000


def test_chunks_that_are_drawn_keep_to_the_room_for_topics() -> None:
    world = World(topic_rates=True, limits=DEFAULTS.replace(counted_topics=100))
    client = world.connect("p")
    for number in range(2000):
        client.send(b"".join(packet(f"t/{number}/{at}") for at in range(10)))
    _, sampled = world.node.dispatcher.tally.take()  # type: ignore[union-attr]
    assert 0 < len(sampled) <= 110


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_packets_that_come_one_by_one_are_counted_exactly(qos: int) -> None:
    world = World(topic_rates=True)
    client = world.connect("p")
    for number in range(300):
        client.send(packet("a" if number % 3 else "b/c", qos, number + 1))
    exact, sampled = world.node.dispatcher.tally.take()  # type: ignore[union-attr]
    assert exact == {b"a": 200, b"b/c": 100}
    assert not any(sampled.values())


@pytest.mark.parametrize("qos", [0, 1])
def test_a_chunk_with_one_topic_is_counted_exactly(qos: int) -> None:
    world = World(topic_rates=True)
    client = world.connect("p")
    for begin in range(1, 5000, 50):
        client.send(b"".join(packet("a", qos, number) for number in range(begin, begin + 50)))
    exact, sampled = world.node.dispatcher.tally.take()  # type: ignore[union-attr]
    assert exact == {b"a": 5000}
    assert not any(sampled.values())


@pytest.mark.parametrize("qos", [0, 1])
def test_of_chunks_with_several_topics_some_stand_for_all(qos: int) -> None:
    world = World(topic_rates=True)
    client = world.connect("p")
    topics = [f"t/{number}" for number in range(10)]
    chunk = b"".join(packet(topic, qos, at + 1) for at, topic in enumerate(topics))
    for _ in range(WEIGHT * 100):
        client.send(chunk)
    exact, sampled = world.node.dispatcher.tally.take()  # type: ignore[union-attr]
    assert not any(exact.values())
    for topic in topics:
        assert 60 <= sampled[topic.encode()] <= 140


def test_messages_off_the_fast_path_are_counted() -> None:
    world = World(topic_rates=True)
    client = world.connect("p")
    world.connect("r").subscribe("nl", no_local=True)
    client.send(encode_packet(Publish("kept", b"x", 0, True, False, None), 5))
    client.send(packet("nl") * 3)
    exact, _ = world.node.dispatcher.tally.take()  # type: ignore[union-attr]
    assert exact == {b"kept": 1, b"nl": 3}


def test_nothing_is_counted_when_it_is_switched_off() -> None:
    world = World(topic_rates=False)
    world.connect("p").send(packet("a"))
    assert world.node.traffic is None
    assert world.node.dispatcher.tally is None


def test_what_the_broker_says_of_itself_is_not_counted() -> None:
    world = World(topic_rates=True)
    world.node.publisher.publish_internal("$SYS/x", b"1", 0, False)
    world.node.publisher.publish_internal("x" * (MAX_CACHED_TOPIC_BYTES + 1), b"1", 0, False)
    exact, _ = world.node.dispatcher.tally.take()  # type: ignore[union-attr]
    assert exact == {}


def told(rates: TopicRates) -> dict[bytes, float]:
    return {topic: rate for rate, topic in rates.top}


def test_a_steady_rate_is_known_after_the_first_reading() -> None:
    average = Average(0.0)
    for second in range(10, 100, 10):
        average.add(50, second)
        assert average.rate == pytest.approx(5.0)


def test_after_a_half_life_of_silence_half_of_a_rate_is_left() -> None:
    rates = TopicRates(100, 0.0)
    for second in range(10, 1010, 10):
        list(rates.take({b"a": 10}, {}, second))
    assert told(rates)[b"a"] == pytest.approx(1.0)
    for second in range(1010, 1070, 10):
        list(rates.take({b"b": 1}, {}, second))
    assert told(rates)[b"a"] == pytest.approx(0.5, rel=1e-3)


def test_what_was_drawn_stands_for_more() -> None:
    rates = TopicRates(100, 0.0)
    list(rates.take({b"a": 10}, {b"a": 1, b"b": 2, b"c": 0}, 10.0))
    assert told(rates)[b"a"] == pytest.approx(1 + WEIGHT / 10)
    assert told(rates)[b"b"] == pytest.approx(2 * WEIGHT / 10)
    assert b"c" not in told(rates)
    assert [topic for _, topic in rates.top] == [b"b", b"a"]


def test_the_topics_with_the_highest_rates_are_told() -> None:
    rates = TopicRates(10_000, 0.0)
    counts = {b"%d" % number: number for number in range(1, 5001)}
    list(rates.take(counts, {}, 10.0))
    assert len(rates.top) == TOP
    assert [topic for _, topic in rates.top] == [b"%d" % n for n in range(5000, 4000, -1)]


def test_of_too_many_topics_those_with_low_rates_are_forgotten() -> None:
    rates = TopicRates(1000, 0.0)
    counts = {b"%d" % number: 1 + number % 7 for number in range(3000)} | {b"often": 1000}
    list(rates.take(counts, {}, 10.0))
    assert len(rates) <= 1000
    assert told(rates)[b"often"] == pytest.approx(100.0)


def test_reading_is_cut_into_pieces() -> None:
    rates = TopicRates(100_000, 0.0)
    counts = {b"%d" % number: 1 for number in range(50_000)}
    assert max(rates.take(counts, {}, 10.0)) <= 1000


def test_the_meter_reads_every_ten_seconds_and_says_who_gets_a_topic() -> None:
    world = World(topic_rates=True)
    told: list[float] = []
    meter = meter_of(world)
    meter.on_read.append(told.append)
    publisher = world.connect("p")
    world.connect("r").subscribe("a/+", "$share/g/a/b")
    for _ in range(100):
        publisher.send(packet("a/b"))
    world.advance(PERIOD + 1)
    assert len(told) == 1
    assert meter.sums.published == pytest.approx(10.0)
    assert meter.sums.delivered == pytest.approx(20.0)
    assert meter.sums.link_in == meter.sums.link_out == 0.0
    [found] = meter.top()
    assert (found.topic, found.receivers) == (b"a/b", 2)
    assert found.rate == pytest.approx(10.0)
