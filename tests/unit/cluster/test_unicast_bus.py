"""Messages of brokers far away (unicast_bus.py), and a listing that is full."""

from __future__ import annotations

import pytest

from mqttree.broker.cluster.delivery.pull_messages import ENTRIES, ENTRIES_PIECE, PULL
from mqttree.broker.cluster.delivery.remote_flow_control import HOLD
from mqttree.broker.cluster.delivery.replay_log import NEVER
from mqttree.broker.cluster.directory.link_state_directory import CLIENT, GROUP, INTEREST
from mqttree.broker.cluster.directory.questions import (
    ADMIN_ANSWER,
    ADMIN_QUESTION,
    MAX_ANSWER,
    SILENT,
    TOO_LARGE,
    WAIT_S,
    Answer,
    encode_answer,
)
from mqttree.broker.cluster.link.control_records import ROUTED
from mqttree.broker.cluster.sessions.takeover_messages import (
    SESSION_ANSWER,
    SESSION_PART,
    SESSION_REQUEST,
    decode_takeover,
)
from mqttree.broker.cluster.strategy.path_change import BREAK, CHANGED
from mqttree.broker.limits import Limits
from mqttree.broker.wire.properties import Property
from mqttree.routing.listing import NEIGHBOUR, UP
from tests.kit.link_harness import Neighbour, bid, lone, ping, routed

FOREVER = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}


@pytest.mark.parametrize(
    "kind",
    (
        PULL,
        ENTRIES,
        ENTRIES_PIECE,
        CHANGED,
        SESSION_REQUEST,
        SESSION_ANSWER,
        SESSION_PART,
        BREAK,
        HOLD,
        ADMIN_QUESTION,
        ADMIN_ANSWER,
        77,
    ),
)
@pytest.mark.parametrize("body", (b"", b"\xff" * 9, b"\xff" * 40), ids=len)
def test_garbage_from_afar_closes_no_link_to_the_neighbour_that_passed_it_on(
    kind: int, body: bytes
) -> None:
    world = lone(routing="interest")
    neighbour = Neighbour(world, 101).child()
    neighbour.send(routed(kind, body, sender=b"somebody"))
    assert neighbour.up
    assert world.counters.link_garbage == 0


def test_a_question_has_one_answer_from_the_broker_that_was_asked_or_none_in_time() -> None:
    world = lone()
    neighbour = Neighbour(world, 101).child().known()
    world.advance(1)
    questions, found = world.node.cluster.admin_questions, list[Answer]()
    questions.ask(bid(101), b"first", found.append)
    world.advance(0)
    asked = neighbour.routed(ADMIN_QUESTION)[-1]
    assert asked[4:] == b"first"
    answer = asked[:4] + encode_answer((200, {"a": 1}))
    neighbour.send(routed(ADMIN_ANSWER, answer, sender=b"somebody"))
    assert found == []
    neighbour.send(routed(ADMIN_ANSWER, answer, answer))
    assert found == [(200, {"a": 1})]
    questions.ask(bid(101), b"second", found.append)
    world.advance(WAIT_S)
    questions.ask(b"nobody!!", b"third", found.append)
    assert found[1:] == [SILENT, SILENT]
    assert encode_answer((200, "x" * MAX_ANSWER)) == encode_answer(TOO_LARGE)


def test_a_full_listing_still_has_room_for_what_the_federation_needs() -> None:
    """Clients may come with as many sessions and groups as they like: links, filters and the tree
    go on."""
    limits = Limits(listing_entries=60, listing_reserved=30)
    world = lone(routing="topic", link_timeout=1000.0, limits=limits)
    one = Neighbour(world, 101, routing="topic").child().known()
    for number in range(40):
        client = world.connect(f"c{number}", properties=FOREVER)
        assert client.subscribe(f"$share/g{number}/a", qos=1) == [1]
        client.vanish()
    world.advance(1)
    own = world.node.cluster.directory.database.own.entries
    assert sum(key[:1] in (CLIENT, GROUP) for key in own) <= 30
    assert world.counters.sessions_unannounced + world.counters.groups_refused > 0
    world.connect("late").send(b"\x82\x07\x00\x01\x00\x00\x01z\x00")
    world.advance(1)
    assert INTEREST + b"z" in own
    two = Neighbour(world, 102, routing="topic").child()
    world.advance(1)
    assert one.up
    assert two.up
    assert own[NEIGHBOUR + bid(102)][:1] == UP


def asked(neighbour: Neighbour) -> list[tuple[int, bytes]]:
    """What the node answered about sessions: (answer, rest)."""
    found = [decode_takeover(body) for body in neighbour.routed(SESSION_ANSWER)]
    return [(what, rest) for what, _, _, rest in found]


def test_messages_to_one_broker_do_not_fill_the_memory() -> None:
    """However short: brokers behind a link that takes nothing get them once it does."""
    limits = Limits(link_kept_bytes=50_000, pieces_backlog=10_000)
    world = lone(routing="interest", link_timeout=1000.0, limits=limits)
    slow, fast = Neighbour(world, 101).child().known(), Neighbour(world, 102).child()
    slow.transport.capacity = 0
    record = (ROUTED, bid(101) + b"somebody" + bytes((0, SESSION_PART)) + bytes(500))
    for _ in range(20):
        fast.send(ping(*[record] * 50))
    assert slow.conn.backlog_bytes < 60_000
    assert fast.up
    assert world.counters.routed_dropped > 800


@pytest.mark.parametrize("lags", [True, False])
def test_the_backlog_of_a_link_that_lags_is_noted(lags: bool) -> None:
    """What another one had not taken yet was little, and its origin still has it: nothing of others
    is kept for that."""
    world = lone(routing="flood")
    neighbour = Neighbour(world, 101).child().known()
    link = neighbour.link()
    position = link.kept_from
    assert position is not None
    if lags:
        neighbour.transport.capacity = 0
        world.connect("p").publish("a", bytes(1000), 1)
        world.advance(1.1)
        assert link.unsent
    world.node.connection_lost(neighbour.conn, "reset", world.now)
    world.settle()
    absent = world.node.absent_members.absent[bid(101)]
    assert absent.cut_from == (position if lags else NEVER)
    assert absent.back is None
