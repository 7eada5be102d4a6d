"""A client asks by MQTT where it should connect; rules say what about."""

from __future__ import annotations

import json
from typing import Any

from mqttree.broker.auth.acl_file import parse_rules
from mqttree.broker.auth.authorization import Access
from mqttree.broker.wire.packets import Puback, Publish, Pubrec
from mqttree.broker.wire.properties import Property
from tests.kit.node_harness import FakeClient, World

RULES = """
everyone
allow all mine/#
allow subscribe shown/#
allow subscribe $mqttree/answers/#
"""


def ask(client: FakeClient, question: Any, qos: int = 1, topic: str = "$mqttree/answers/c") -> Any:
    """Ask, and return the acknowledgement and the answers."""
    client.inbox.clear()
    properties: Any = {Property.RESPONSE_TOPIC: topic}
    payload = json.dumps(question).encode()
    number = 9 if qos else None
    client.send(Publish("$mqttree/placement", payload, qos, False, False, number, properties))
    client.world.advance(1.0)
    packets = client.take()
    acks = [p.reason for p in packets if isinstance(p, Puback | Pubrec)]
    return acks, [json.loads(p.payload) for p in packets if isinstance(p, Publish)]


def asking(world: World) -> FakeClient:
    return world.connect("c").subscribed("$mqttree/answers/c")


def test_a_client_asks_about_what_it_may_do_only() -> None:
    world = World()
    rules = parse_rules("rules", RULES, limits=world.node.limits)
    world.node.set_access(Access(rules=rules), world.now)
    client = asking(world)
    acks, [answer] = ask(client, {"subscribe": ["mine/+", "shown/#"], "publish": ["mine/1"]})
    assert acks == [0]
    assert answer["sessions"][0]["subscribe"] == ["mine/+", "shown/#"]
    for question in (
        {"subscribe": ["other/#"]},
        {"subscribe": ["$share/g/other"]},
        {"subscribe": ["#"]},
        {"publish": ["shown/1"]},
    ):
        acks, [answer] = ask(client, question)
        assert acks == [0x87]
        assert answer["status"] == 403
        assert "not allowed" in answer["error"]
        world.advance(1.0)
    assert world.counters.placement_refused == 4


def test_a_question_is_acknowledged_as_its_qos_asks() -> None:
    world = World()
    client = asking(world)
    for qos, acks in ((0, []), (1, [0]), (2, [0])):
        found, [answer] = ask(client, {"subscribe": ["a"]}, qos)
        assert found == acks
        assert answer["sessions"][0]["broker"] == world.node.config.id.hex()


def test_a_question_is_published_to_nobody() -> None:
    world = World()
    client, spy = asking(world), world.connect("spy")
    spy.subscribe("#", "$mqttree/placement", "$mqttree/answers/c")
    spy.take()
    ask(client, {"subscribe": ["a"]})
    assert not [p for p in spy.take() if isinstance(p, Publish)]


def test_an_answer_keeps_to_the_largest_packet_that_a_client_takes() -> None:
    world = World()
    client = world.connect("c", properties={Property.MAXIMUM_PACKET_SIZE: 100})
    client.subscribe("$mqttree/answers/c")
    _, answers = ask(client, {"subscribe": [f"t/{number}" for number in range(100)]})
    assert answers == []
    assert not client.closed


def test_a_session_that_ends_meanwhile_gets_no_answer() -> None:
    world = World()
    client = asking(world)
    payload = json.dumps({"subscribe": ["a"]}).encode()
    properties: Any = {Property.RESPONSE_TOPIC: "$mqttree/answers/c"}
    client.send(Publish("$mqttree/placement", payload, 0, False, False, None, properties))
    client.transport.aborted = True
    world.settle()
    world.advance(3.0)
    assert "c" not in world.node.sessions
