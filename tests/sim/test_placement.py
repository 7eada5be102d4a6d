"""Where clients should connect, asked in a simulated federation: one broker decides, the others
pass questions on, brokers die and are cut off meanwhile, and no message depends on any of it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from mqttree.broker.cluster.directory.questions import WAIT_S
from mqttree.broker.cluster.placement.decider import PERIOD_S, TOPIC_WORK, WORK, State
from mqttree.broker.cluster.placement.placement_messages import FORGET, PLACE, PLAN, STATUS, TOLD
from mqttree.broker.cluster.placement.topic_knowledge import FRESH_S, MAX_LATE, MIN_KEPT
from mqttree.broker.core.traffic_meter import PERIOD as READING
from mqttree.broker.wire.packets import Puback, Publish
from mqttree.broker.wire.properties import Property
from tests.sim.test_takeover import Client, Row

ANSWERS = "answers/of/mine"


def row_of(count: int = 4, **config: Any) -> Row:
    return Row(count, meshed=True, **({"routing": "topic", "topic_rates": True} | config))


def answered(row: Row, index: int, operation: int, body: Any, seconds: float = 5.0) -> Any:
    """Ask at a broker as an operator; return status and body."""
    found: list[Any] = []

    def ask(node: Any) -> None:
        node.now = row.world.now
        node.cluster.placement.ask(operation, body, found.append)

    row.host(index).do(ask, row.node(index))
    row.until(lambda: found, seconds)
    return found[0]


def place(row: Row, index: int, client: str = "c", **question: Any) -> Any:
    status, body = answered(row, index, PLACE, {"client": client, **question})
    assert status == 200, body
    return body


def ask(client: Client, question: Any, topic: str = ANSWERS, qos: int = 1) -> None:
    """Ask as a client."""
    payload = question if isinstance(question, bytes) else json.dumps(question).encode()
    properties: Any = {Property.RESPONSE_TOPIC: topic, Property.CORRELATION_DATA: b"\0\1\2"}
    client.packet_id += 1
    number = client.packet_id if qos else None
    client.send(Publish("$mqttree/placement", payload, qos, False, False, number, properties))


def answers(client: Client, topic: str = ANSWERS) -> list[Any]:
    return [
        json.loads(packet.payload)
        for packet in client.packets
        if isinstance(packet, Publish) and packet.topic == topic
    ]


def broker_id(row: Row, index: int) -> str:
    return row.host(index).id.hex()


def flow(row: Row, index: int, topic: str, rate: int, seconds: float = 2 * READING) -> Client:
    """A client that publishes at a rate."""
    client = row.connect(index, f"p-{index}-{topic}")
    for _ in range(int(seconds)):
        client.publish(topic, *[b"x"] * rate, qos=0)
        row.run(1.0)
    return client


def where(body: Any) -> dict[str, list[str]]:
    return {session["broker"]: session["subscribe"] for session in body["sessions"]}


def test_any_broker_answers_where_topics_are_published() -> None:
    row = row_of()
    flow(row, 1, "a", 20)
    flow(row, 3, "b", 10)
    row.run(PERIOD_S)
    expected = {broker_id(row, 1): ["a"], broker_id(row, 3): ["b"]}
    for index in range(4):
        body = place(row, index, f"c{index}", subscribe=["a", "b"])
        assert where(body) == expected
        assert body["internal_per_s"] < body["internal_single_per_s"]
        first, second = body["sessions"]
        assert (first["client_id"], second["client_id"]) == (f"c{index}", f"c{index}~2")
        assert {first["address"], second["address"]} == {"10.0.0.2:1883", "10.0.0.4:1883"}
    # One broker has decided for all.
    deciders = [len(row.node(n).cluster.placement.decider.controller) for n in range(4)]
    assert sorted(deciders) == [0, 0, 0, 4]


def test_wildcards_stand_for_the_topics_that_are_known() -> None:
    row = row_of()
    flow(row, 2, "site/1/t", 20)
    flow(row, 1, "site/2/t", 5)
    row.run(PERIOD_S)
    body = place(row, 0, subscribe=["site/#", "site/+/t", "other"])
    found = {name: broker for broker, names in where(body).items() for name in names}
    assert found["site/#"] == found["site/+/t"] == broker_id(row, 2)
    # The first session costs what comes from the other broker.
    assert 2.0 < body["internal_per_s"] < 8.0


@pytest.mark.parametrize("routing", ["interest", "topic"])
def test_a_client_asks_by_mqtt_and_it_alone_gets_the_answer(routing: str) -> None:
    row = row_of(routing=routing)
    for index in range(4):
        client = row.connect(index, f"c{index}")
        spy = row.connect(index, f"spy{index}")
        client.subscribe(ANSWERS, qos=1)
        spy.subscribe("#", ANSWERS)
        ask(client, {"subscribe": ["a", "b/+"], "publish": ["x"]})
        row.until(lambda client=client: answers(client))
        [body] = answers(client)
        assert body["sessions"][0]["client_id"] == f"c{index}"
        assert sorted(n for s in body["sessions"] for n in s["subscribe"]) == ["a", "b/+"]
        assert [n for s in body["sessions"] for n in s["publish"]] == ["x"]
        [packet] = [p for p in client.packets if isinstance(p, Publish)]
        assert (packet.properties or {})[Property.CORRELATION_DATA] == b"\0\1\2"
        assert packet.qos == 1
        [puback] = [p for p in client.packets if isinstance(p, Puback)]
        assert puback.reason == 0
        assert not spy.payloads


def test_a_question_without_a_response_topic_is_refused() -> None:
    row = row_of(2)
    client = row.connect(1, "c")
    client.send(Publish("$mqttree/placement", b"{}", 1, packet_id=7))
    row.until(lambda: any(isinstance(p, Puback) for p in client.packets))
    assert [p.reason for p in client.packets if isinstance(p, Puback)] == [0x83]
    old = row.connect(1, "old", version=4)
    old.send(Publish("$mqttree/placement", b"{}", 1, packet_id=7))
    row.until(lambda: any(isinstance(p, Puback) for p in old.packets))
    assert not client.gone
    assert not old.gone


def test_questions_take_a_bounded_part_of_the_time() -> None:
    row = row_of(2)
    service = row.node(0).cluster.placement
    names = [f"+/{number}" for number in range(500)]
    topics = [f"t/{number}" for number in range(500)]
    found: list[Any] = []
    for number in range(200):
        body = {"client": f"c{number}", "subscribe": names, "publish": topics}
        service.ask(PLACE, body, found.append)
    row.run(1.0)
    statuses = [status for status, _ in found]
    assert statuses.count(200) <= WORK / (TOPIC_WORK * (len(names) + len(topics))) + 1
    assert statuses.count(429) == 200 - statuses.count(200)
    row.run(2.0)
    place(row, 1, subscribe=["a"])


def test_what_a_client_was_told_can_be_asked_for_and_forgotten_anywhere() -> None:
    row = row_of()
    told = place(row, 1, subscribe=["a"])
    status, body = answered(row, 2, TOLD, {"client": "c"})
    assert (status, body["sessions"]) == (200, told["sessions"])
    assert answered(row, 3, FORGET, {"client": "c"})[0] == 200
    assert answered(row, 3, FORGET, {"client": "c"})[0] == 404
    assert answered(row, 2, TOLD, {"client": "c"})[0] == 404
    assert answered(row, 2, TOLD, {})[0] == 400
    assert answered(row, 2, 99, {})[0] == 400


def test_the_state_names_all_brokers_with_their_traffic() -> None:
    row = row_of()
    flow(row, 1, "a", 20)
    place(row, 3, subscribe=["a"])
    status, body = answered(row, 2, STATUS, {})
    assert status == 200
    assert {broker["id"] for broker in body["brokers"]} == {broker_id(row, n) for n in range(4)}
    published = {broker["id"]: broker["published_per_s"] for broker in body["brokers"]}
    assert published[broker_id(row, 1)] > 10
    assert body["controller"] == broker_id(row, 0)
    assert body["clients"] == 1


def test_a_plan_names_moves_that_pay_and_applies_them_when_told() -> None:
    row = row_of()
    flow(row, 1, "a", 20)
    row.run(PERIOD_S)
    assert where(place(row, 0, subscribe=["a"])) == {broker_id(row, 1): ["a"]}
    # The publisher moves to another broker, and the rates follow.
    flow(row, 2, "a", 50, 12 * READING)
    status, body = answered(row, 3, PLAN, {"moves": 10})
    assert status == 200
    [move] = body["moves"]
    assert (move["client"], move["from"], move["to"]) == (
        "c",
        broker_id(row, 1),
        broker_id(row, 2),
    )
    assert move["saving_per_s"] > 1
    assert where(answered(row, 1, TOLD, {"client": "c"})[1]) == {broker_id(row, 1): ["a"]}
    assert answered(row, 3, PLAN, {"moves": 10, "apply": True})[1]["applied"]
    assert where(answered(row, 1, TOLD, {"client": "c"})[1]) == {broker_id(row, 2): ["a"]}
    assert answered(row, 3, PLAN, {})[1]["moves"] == []
    for bad in ([], {"moves": 0}, {"moves": "x"}, {"apply": 1}, {"more": 1}):
        assert answered(row, 3, PLAN, bad)[0] == 400


def test_when_the_controller_dies_clients_stay_and_the_next_root_decides() -> None:
    row = row_of()
    flow(row, 1, "a", 20)
    place(row, 2, "before", subscribe=["a"])
    found: list[Any] = []
    node = row.node(2)
    row.host(0).kill(reset=False)

    def asked(node: Any) -> None:
        node.now = row.world.now
        node.cluster.placement.ask(PLACE, {"client": "c", "subscribe": ["a"]}, found.append)

    row.host(2).do(asked, node)
    row.until(lambda: found, WAIT_S + 1.0)
    assert found[0][0] == 503
    row.join()
    body = place(row, 2, subscribe=["a"], version=40)
    assert where(body) == {broker_id(row, 1): ["a"]}
    assert body["version"] > 40
    state = answered(row, 3, STATUS, {})[1]
    assert broker_id(row, 0) not in {broker["id"] for broker in state["brokers"]}


def test_two_controllers_after_a_split_become_one_again() -> None:
    row = row_of()
    row.world.partition([[0, 1], [2, 3]])
    row.join()
    for index, half in ((1, {0, 1}), (3, {2, 3})):
        body = place(row, index, f"c{index}", subscribe=["a"])
        [session] = body["sessions"]
        assert session["broker"] in {broker_id(row, n) for n in half}
    row.world.heal()
    row.join()
    row.run(2 * PERIOD_S)
    controllers = [row.node(n).cluster.placement.decider for n in range(4)]
    body = place(row, 3, "c3", subscribe=["a"])
    assert body["sessions"]
    assert [d.state for d in controllers].count(State.READY) == 1


def test_a_broker_without_topic_rates_takes_part() -> None:
    row = row_of(topic_rates=False)
    body = place(row, 2, subscribe=["a"], publish=["x"])
    assert body["sessions"][0]["subscribe"] == ["a"]


def test_what_is_known_is_looked_at_again_when_it_may_have_changed() -> None:
    row = row_of(2)
    place(row, 0)
    knowledge = row.node(0).cluster.placement.decider.knowledge
    before = knowledge.state()
    assert knowledge.state() is before
    knowledge.take("b", {"t": 5.0}, 0.0, 0)
    changed = knowledge.state()
    assert changed is not before
    row.run(FRESH_S + 0.1)
    place(row, 0, "d")
    assert knowledge.state() is not changed


def test_where_topics_are_wanted_is_not_looked_up_for_all_at_once() -> None:
    row = row_of(2)
    names = [f"t/{number}" for number in range(100)]
    place(row, 0, subscribe=names)
    knowledge = row.node(0).cluster.placement.decider.knowledge
    now = row.node(0).now
    until = sorted(kept[1] - now for kept in knowledge._wanted.values())
    assert len(until) == 100
    assert until[0] >= MIN_KEPT - 0.1 and until[-1] <= FRESH_S - MAX_LATE
    steps = [after - before for before, after in pairwise(until)]
    assert max(steps) < 0.2, "no moment at which many of them end"
    row.connect(1, "w").subscribe("t/1")
    row.run(FRESH_S + 0.1)
    place(row, 0, "d", subscribe=names)
    assert broker_id(row, 1) in knowledge.wanted("t/1")


def test_rates_are_not_asked_for_when_nobody_asks() -> None:
    row = row_of(2)
    place(row, 1, subscribe=["a"])
    decider = row.node(0).cluster.placement.decider
    assert decider.state is State.READY
    row.run(700.0)
    assert decider.state is State.IDLE


@pytest.mark.parametrize("qos", [1, 2])
def test_a_wrong_placement_costs_no_message(qos: int) -> None:
    """Clients go where they are told, or anywhere else, while brokers die: what is acknowledged
    comes, and at QoS 2 once."""
    row = row_of()
    reader = row.connect(2, "c").subscribed("a/#", qos=2)
    publisher = row.connect(1, "p")
    publisher.publish("a/1", *[b"%d" % n for n in range(10)], qos=qos)
    row.run(1.0)
    body = place(row, 2, "c", subscribe=["a/#"])
    target = body["sessions"][0]["broker"]
    index = next(n for n in range(4) if broker_id(row, n) == target)
    got = list(reader.payloads)
    reader.cut()
    publisher.publish("a/1", *[b"%d" % n for n in range(10, 20)], qos=qos)
    row.run(0.5)
    row.host(0).kill()
    moved = row.connect(3 if index in (0, 2) else index, "c")
    assert moved.present
    publisher.publish("a/1", *[b"%d" % n for n in range(20, 30)], qos=qos)
    row.until(lambda: b"29" in moved.payloads, 20.0)
    row.run(2.0)
    assert got + moved.fresh(got) == [b"%d" % n for n in range(30)]
