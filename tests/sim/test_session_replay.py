"""A client whose broker dies goes on at another one, and asks there for the messages of the last
seconds: none that was published meanwhile is missing, and none that its subscriptions get by
themselves comes twice."""

from __future__ import annotations

import json
from binascii import b2a_base64
from typing import Any

import pytest

from mqttree.broker.cluster.sessions.replay_messages import (
    CUT,
    LAST,
    MAX_FILTERS,
    MAX_MS,
    PIECE,
    encode_parts,
    encode_recent,
    read_part,
    read_recent,
)
from mqttree.broker.cluster.sessions.session_replay import WAIT_S
from mqttree.broker.cluster.strategy.subscription_barrier import LOST
from mqttree.broker.wire import Property, Publish, Suback, Subscribe, SubscriptionRequest
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.client_connection import Message, digest_of
from tests.sim.test_merge import kept_row
from tests.sim.test_takeover import Client, Row

ANSWERS = "$mqttree/answers/c"


def ask(client: Client, question: Any, qos: int = 1) -> None:
    payload = question if isinstance(question, bytes) else json.dumps(question).encode()
    client.packet_id += 1
    number = client.packet_id if qos else None
    properties: Any = {Property.RESPONSE_TOPIC: ANSWERS}
    client.send(Publish("$mqttree/replay", payload, qos, False, False, number, properties))


def answers(client: Client) -> list[Any]:
    return [
        json.loads(packet.payload)
        for packet in client.packets
        if isinstance(packet, Publish) and packet.topic == ANSWERS
    ]


def got(client: Client, topic: str) -> list[bytes]:
    return [p.payload for p in client.packets if isinstance(p, Publish) and p.topic == topic]


def marked(client: Client) -> list[bytes]:
    """The payloads of messages that say that they were replayed."""
    return [
        p.payload
        for p in client.packets
        if isinstance(p, Publish)
        and any(name == "mqttree-replayed" for name, _ in (p.properties or {}).get(0x26, ()))
    ]


@pytest.mark.parametrize("routing", ["interest", "topic"])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_client_whose_broker_died_is_granted_its_filters_at_once(
    routing: str, victim: int
) -> None:
    """Each SUBSCRIBE waits until the other broker has said what it has published, one that names a
    filter within an earlier one, too: none waits for a wave that has not been sent."""
    row = Row(3, meshed=True, routing=routing)
    row.connect(victim).subscribe("a/#")
    publishers = [row.connect(index, f"p{index}") for index in range(3) if index != victim]
    row.host(victim).kill()
    row.run(0.02)
    back = row.connect((victim + 1) % 3)
    for number, topic_filter in enumerate(("a/#", "a/b", "$mqttree/answers/c/+", ANSWERS + "/r")):
        began = row.world.now
        back.send(Subscribe(1 + number, [SubscriptionRequest(topic_filter, 1)]))
        for publisher in publishers:
            publisher.publish("a/b", b"%d" % number)
        row.until(lambda n=number: sum(isinstance(p, Suback) for p in back.packets) > n)
        assert row.world.now - began < LOST / 4


@pytest.mark.parametrize("routing", ["interest", "topic"])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_published_around_a_death_comes_once(routing: str, qos: int) -> None:
    row = Row(4, meshed=True, routing=routing)
    client = row.connect(1)
    client.subscribe("a/+", qos=qos)
    publishers = [row.connect(index, f"p{index}") for index in (0, 2, 3)]
    sent = 0

    def publish() -> None:
        nonlocal sent
        for number, publisher in enumerate(publishers):
            publisher.publish(f"a/{number}", b"%d" % sent, qos=qos)
        sent += 1

    for _ in range(5):
        publish()
        row.run(0.05)
    assert got(client, "a/0") == [b"0", b"1", b"2", b"3", b"4"]
    row.host(1).kill()
    # It begins again where one of the publishers is.
    for _ in range(5):
        publish()
        row.run(0.01)
    back = row.connect(2)
    publish()
    assert not back.present
    back.subscribe("a/+", ANSWERS, qos=qos)
    publish()
    ask(back, {"seconds": 10})
    publish()
    row.until(lambda: answers(back))
    row.run()
    [answer] = answers(back)
    assert answer["complete"]
    for number in range(3):
        payloads = got(back, f"a/{number}")
        assert sorted(payloads, key=int) == [b"%d" % n for n in range(sent)]
        old = [p for p in payloads if p in marked(back)]
        assert old == sorted(old, key=int)
    assert answer["replayed"] == len(marked(back)) >= 3 * 10
    assert row.node(2).counters.session_replayed == answer["replayed"]


def test_only_messages_of_the_time_that_is_asked_for_come() -> None:
    row = Row(3, meshed=True, routing="topic")
    publisher = row.connect(0, "p")
    publisher.publish("a", b"old")
    row.run(3.0)
    publisher.publish("a", b"new")
    row.run(0.5)
    client = row.connect(2)
    client.subscribe("a", ANSWERS)
    ask(client, {"seconds": 2})
    row.until(lambda: answers(client))
    assert got(client, "a") == [b"new"]


def digests(*messages: tuple[str, bytes]) -> str:
    """What a client says of messages that it has had."""
    found = [Message(topic, payload, 1, False) for topic, payload in messages]
    return b2a_base64(b"".join(map(digest_of, found)), newline=False).decode()


def test_what_a_client_has_had_is_left_out_as_often_as_it_says() -> None:
    row = Row(3, meshed=True, routing="topic")
    publisher = row.connect(0, "p")
    publisher.publish("a", b"1", b"2", b"2", b"2", b"3")
    row.run(0.1)
    client = row.connect(2)
    client.subscribe("a", ANSWERS)
    had = digests(("a", b"2"), ("a", b"1"), ("b", b"3"), ("a", b"2"))
    ask(client, {"seconds": 5, "had": had})
    row.until(lambda: answers(client))
    left_out = digests(("a", b"1"), ("a", b"2"), ("a", b"2"))
    assert answers(client) == [{"replayed": 2, "complete": True, "left_out": left_out}]
    assert got(client, "a") == [b"2", b"3"]
    assert row.node(2).counters.session_replayed == 2
    # It counts as delivered: it does not come if it is not named again.
    ask(client, {"seconds": 5})
    row.until(lambda: len(answers(client)) == 2)
    assert answers(client)[1] == {"replayed": 0, "complete": True}


@pytest.mark.parametrize("had", [None, 7, "?", "AAAA", "A" * (4 * 30_000), [""]])
def test_what_a_client_says_it_has_had_may_be_wrong(had: Any) -> None:
    row = Row(2, routing="topic")
    client = row.connect(1)
    client.subscribe("a", ANSWERS)
    ask(client, {"seconds": 1, "had": had})
    row.until(lambda: answers(client))
    [answer] = answers(client)
    assert answer["status"] == 400
    assert answer["error"].startswith("had: ")


def test_a_message_is_replayed_to_a_session_once() -> None:
    row = Row(3, meshed=True, routing="topic")
    row.connect(0, "p").publish("a", b"1")
    row.run(0.1)
    client = row.connect(2)
    client.subscribe("a", ANSWERS)
    for asked in (1, 2):
        ask(client, {"seconds": 5})
        row.until(lambda asked=asked: len(answers(client)) == asked)
        row.run(1.0)
    assert [each["replayed"] for each in answers(client)] == [1, 0]
    assert got(client, "a") == [b"1"]


def test_a_dead_broker_that_is_back_brings_nothing_twice() -> None:
    """Its session has a journal, and is merged into the newer one."""
    row = kept_row("topic")
    client = row.connect(1)
    client.subscribe("a")
    publisher = row.connect(0, "p")
    publisher.publish("a", b"0")
    row.run(0.2)
    row.host(1).kill()
    publisher.publish("a", *[b"%d" % n for n in range(1, 5)])
    row.run(0.1)
    back = row.connect(2)
    back.subscribe("a", ANSWERS)
    ask(back, {"seconds": 1})
    row.until(lambda: answers(back))
    assert sorted(got(back, "a")) == [b"0", b"1", b"2", b"3", b"4"]
    row.host(1).start()
    row.join()
    publisher.publish("a", b"5")
    row.run(3.0)
    assert sorted(got(back, "a")) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_broker_that_hangs_is_not_waited_for_long() -> None:
    row = Row(3, meshed=True, routing="topic")
    client = row.connect(2)
    client.subscribe("a", ANSWERS)
    row.connect(0, "p").publish("a", b"1")
    row.run()
    row.host(0).pause()
    ask(client, {"seconds": 5})
    row.until(lambda: answers(client), WAIT_S + 0.3)
    assert answers(client) == [{"replayed": 0, "complete": False}]
    assert row.node(2).counters.session_replays_incomplete == 1
    row.host(0).resume()
    row.run(1.0)
    assert len(answers(client)) == 1


def test_a_session_that_ends_meanwhile_gets_nothing() -> None:
    row = Row(3, meshed=True, routing="topic")
    row.connect(0, "p").publish("a", b"1")
    row.run(0.1)
    client = row.connect(2, expiry=0)
    client.subscribe("a", ANSWERS)
    row.host(0).pause()
    ask(client, {"seconds": 5})
    row.run(0.05)
    client.leave()
    row.host(0).resume()
    row.run(2.0)
    assert row.node(2).counters.session_replayed == 0
    assert row.node(2).cluster.session_replay.arriving == 0


def test_a_question_for_other_brokers_is_read_as_it_was_written() -> None:
    body = encode_recent(7, 1500, ["a/+", "\u00e9"])
    assert read_recent(body) == (7, 1500, ["a/+", "\u00e9"])
    for end in (0, 7, 9, len(body) - 1):
        with pytest.raises(MalformedPacket):
            read_recent(body[:end])
    for bad in (
        encode_recent(1, MAX_MS + 1, []),
        encode_recent(1, 1, [""]),
        encode_recent(1, 1, ["a"] * (MAX_FILTERS + 1)),
        encode_recent(1, 1, []) + b"\0\1\xff",
    ):
        with pytest.raises(MalformedPacket):
            read_recent(bad)


@pytest.mark.parametrize("size", [0, 1, PIECE, PIECE + 1, 3 * PIECE])
def test_an_answer_in_pieces_is_put_together(size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    parts = [read_part(part) for part in encode_parts(9, data, cut=True)]
    assert b"".join(part[3] for part in parts) == data
    assert [part[:2] for part in parts] == [(9, index) for index in range(len(parts))]
    assert [part[2] for part in parts] == [CUT] * (len(parts) - 1) + [CUT | LAST]
    with pytest.raises(MalformedPacket):
        read_part(bytes(8))
