"""Who of a shared subscription gets a message when its members are on several brokers: the choice
and what follows from it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.cluster.directory.link_state_directory import GROUP
from mqttree.broker.cluster.link.message_batch import (
    MessageBatch,
    choice_of,
    encode_batch,
    encode_message,
    read_messages,
)
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.sharing.assignment_ledger import encode_refs
from mqttree.broker.cluster.sharing.assignments import (
    CLAIM,
    DECLINE,
    DENY,
    GRANT,
    REFUSE,
    REPORT,
    RULING,
    STEP,
    UNKNOWN,
)
from mqttree.broker.core.message import Message
from mqttree.broker.core.receiver_assignment import MAX_PASSES, ReceiverAssignment, decode_choice
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.wire.decode import decode_packet
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.broker.wire.packets import Publish
from mqttree.broker.wire.properties import Properties, Property
from mqttree.routing.group_selection import (
    GROUP_ID_SIZE,
    HERE,
    Announcer,
    Own,
    Pool,
    Standing,
    decode_standing,
    encode_standing,
    group_id_of,
    group_key,
    parse_key,
)
from tests.kit.effort import examples
from tests.kit.link_harness import (
    FAR,
    OWN,
    Neighbour,
    bid,
    let_through,
    lone,
    message,
    routed,
)
from tests.kit.node_harness import FakeClient, World

KEY = origin_key(FAR, 1)
GROUP_ID = group_id_of(group_key("g", "t"))


def pool(**brokers: int | None) -> Pool:
    """A pool; weights by broker, None: cut off."""
    made = Pool(GROUP_ID, "g", "t")
    for name, weight in brokers.items():
        standing = made.brokers[name.encode()] = Standing(Announcer(name.encode()))
        standing.weight = weight or 0
        standing.announcer.cut = weight is None
    return made


# ------------------------------------------------------------------ the choice


@pytest.mark.parametrize(
    ("own", "there", "expected"),
    [
        (Own.READY, {"a": 4}, HERE),
        (Own.BUSY, {"a": 4}, b"a"),
        (Own.BUSY, {"a": 0}, HERE),
        (Own.AWAY, {"a": 1}, b"a"),
        (Own.AWAY, {"a": 0}, HERE),
        (Own.AWAY, {"a": None}, HERE),
        (Own.NONE, {"a": 0, "b": 1}, b"b"),
        (Own.NONE, {"a": 0}, b"a"),
        (Own.NONE, {"a": None, "b": 0}, b"b"),
        (Own.NONE, {"a": None}, b"a"),
        (Own.NONE, {}, None),
    ],
)
def test_members_are_chosen_by_where_they_are_and_how_they_stand(
    own: Own, there: dict[str, int | None], expected: bytes | None
) -> None:
    assert pool(**there).choose(own) == expected


def test_a_broker_that_had_the_message_is_not_chosen_again() -> None:
    both = pool(a=1, b=1)
    assert {both.choose(Own.NONE, (b"a",)) for _ in range(5)} == {b"b"}
    assert both.choose(Own.NONE, (b"a", b"b")) is None
    assert pool(a=1, b=0).choose(Own.NONE, (b"a",)) == b"b"


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 64), min_size=1), st.integers(1, 5)
)
def test_turns_follow_the_weights(weights: dict[str, int], rounds: int) -> None:
    """In as many turns as the weights' sum each broker has exactly as many as its weight says."""
    there = pool(**weights)
    turns = Counter(there.choose(Own.NONE) for _ in range(rounds * sum(weights.values())))
    assert turns == {name.encode(): rounds * weight for name, weight in weights.items()}


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.booleans(), st.sampled_from(Own)),
        max_size=60,
    )
)
def test_the_broker_with_the_best_member_is_chosen(steps: list[tuple[str, int, bool, Own]]) -> None:
    """Whatever was before: no member is chosen while a better one is there, and none only when
    there is none."""
    there = pool()
    for name, weight, cut, own in steps:
        standing = there.brokers.setdefault(name.encode(), Standing(Announcer(name.encode())))
        standing.weight, standing.announcer.cut = weight, cut

        def rank(chosen: bytes | None, own: Own = own) -> int:
            if chosen is None:
                return 0
            if chosen == HERE:
                return {Own.NONE: 0, Own.AWAY: 3, Own.BUSY: 4, Own.READY: 6}[own]
            other = there.brokers[chosen]
            return 1 if other.announcer.cut else 5 if other.weight else 2

        assert rank(there.choose(own)) == max(map(rank, (None, HERE, *there.brokers)))


@given(st.integers(0, 100_000))
def test_standing_is_a_power_of_two(connected: int) -> None:
    told = decode_standing(encode_standing(connected))
    assert told <= connected < 2 * told or told == connected == 0
    assert decode_standing(encode_standing(connected) + b"more") == told


def test_malformed_standings_and_keys_are_read_without_harm() -> None:
    assert decode_standing(b"") == 0
    assert decode_standing(b"\xff") == 1 << 19
    assert parse_key(group_key("g", "a/+/#")) == ("g", "a/+/#")
    for key in (
        b"",
        b"\0",
        b"g",
        b"g\0",
        b"\0t",
        b"g\0t\0t",
        b"g/h\0t",
        b"+\0t",
        b"g\0a/#/b",
        b"g\0\xff",
    ):
        with pytest.raises(ValueError):
            parse_key(key)


# ------------------------------------------------------------------ on the link

whos = st.binary(min_size=12, max_size=12)
group_ids = st.binary(min_size=GROUP_ID_SIZE, max_size=GROUP_ID_SIZE)


@given(st.lists(st.tuples(whos, group_ids), min_size=1, max_size=20))
def test_an_encoded_assignment_decodes_to_the_same(entries: list[tuple[bytes, bytes]]) -> None:
    found = decode_choice(ReceiverAssignment(entries).encode())
    assert (found.entries, found.passed, found.visited) == (entries, False, ())


@given(
    whos,
    group_ids,
    st.booleans(),
    st.lists(st.binary(min_size=8, max_size=8), min_size=1, max_size=MAX_PASSES),
)
def test_an_encoded_reassignment_decodes_to_the_same(
    who: bytes, group_id: bytes, retain: bool, visited: list[bytes]
) -> None:
    found = decode_choice(
        ReceiverAssignment(
            [(who, group_id)], passed=True, retain=retain, visited=tuple(visited)
        ).encode()
    )
    assert (found.entries, found.passed, found.retain, found.visited) == (
        [(who, group_id)],
        True,
        retain,
        tuple(visited),
    )


@given(st.binary(max_size=80))
def test_other_bytes_are_refused_or_read(text: bytes) -> None:
    try:
        found = decode_choice(text)
    except MalformedPacket:
        return
    assert found.encode() == text


@pytest.mark.parametrize("properties", [b"", b"\x26\0\1a\0\1b", b"\x26\0\1o\0\1b"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_assignment_is_read_from_its_publish_packet(properties: bytes, qos: int) -> None:
    """It is read from the packet wherever it is needed."""
    whole = Message(b"t", b"hello", qos, False, properties, None, None)
    told = ReceiverAssignment([(FAR + bytes(4), GROUP_ID)] * 3)
    data = encode_message(whole, KEY, 7, 0.0, told)
    found = choice_of(data)
    assert found is not None
    assert found.encode() == told.encode()
    assert choice_of(encode_message(whole, KEY, 7, 0.0)) is None
    ((batch, sequence, read),) = read_messages(data, 0.0)
    assert (batch.key, sequence, read.properties, read.payload) == (KEY, 7, properties, b"hello")
    assert batch.choice is not None
    assert not batch.choice.passed
    alone = ReceiverAssignment([(FAR + bytes(4), GROUP_ID)], passed=True, visited=(FAR,))
    returned = MessageBatch.read(encode_message(whole, KEY, 7, 0.0, alone)).choice
    assert returned is not None
    assert returned.passed


# ------------------------------------------------------------------ a broker among others


def cluster(count: int = 2, limits: Limits = DEFAULTS) -> tuple[World, list[Neighbour]]:
    """A node and neighbours, which have not announced groups yet."""
    world = lone(limits=limits)
    neighbours = [Neighbour(world, 101 + number) for number in range(count)]
    for neighbour in neighbours:
        neighbour.child()
    let_through(neighbours[0], origin_key(bid(101), 2_000))
    return world, neighbours


def post(
    world: World, number: int, connected: int | None, group: str = "g", topic_filter: str = "t"
) -> None:
    """Let the node hear of members at broker `number`, as the directory tells it; None: they are
    gone."""
    sharing = world.node.cluster.sharing
    value = None if connected is None else encode_standing(connected)
    sharing.groups._posted(bid(number), group_key(group, topic_filter), value)


def member(
    world: World, name: str = "m", topic_filter: str = "$share/g/t", qos: int = 2
) -> FakeClient:
    client = world.connect(name)
    assert client.subscribe(topic_filter, qos=qos) == [qos]
    return client


def chosen(neighbour: Neighbour) -> list[tuple[bytes, ReceiverAssignment | None]]:
    """(payload, who gets it) of every message that came."""
    found: list[tuple[bytes, ReceiverAssignment | None]] = []
    for batch in neighbour.batches():
        payloads = [one.payload.rpartition(b"|")[2] for _, one in batch.messages()]
        found += [(payload, batch.choice) for payload in payloads]
    return found


def at(*numbers: int) -> list[tuple[bytes, bytes]]:
    """What names the group g of topic t at these brokers, whose listings are not known."""
    return [(bid(number) + bytes(4), GROUP_ID) for number in numbers]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_members_at_other_brokers_take_turns(qos: int) -> None:
    world, (one, _) = cluster()
    post(world, 101, 1)
    post(world, 102, 1)
    publisher = world.connect("p")
    for number in range(4):
        publisher.publish("t", b"|%d" % number, qos, number + 1)
    told = chosen(one)
    assert [payload for payload, _ in told] == [b"0", b"1", b"2", b"3"]
    assert [choice.entries for _, choice in told if choice] == [at(101), at(102), at(101), at(102)]
    assert world.counters.shared_assigned == 4


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_members_at_this_broker_come_first(qos: int) -> None:
    """As one piece, too, without a word about groups."""
    world, (one, _) = cluster()
    post(world, 101, 1)
    client = member(world)
    publisher = world.connect("p")
    packets = [
        Publish("t", b"|%d" % number, qos, packet_id=number + 1 if qos else None)
        for number in range(8)
    ]
    publisher.send(*packets)
    assert [p.payload for p in client.take_publishes()] == [b"|%d" % number for number in range(8)]
    assert all(choice is None for _, choice in chosen(one))
    assert world.counters.shared_assigned == 0


def test_members_that_are_away_or_behind_come_later() -> None:
    world, (one, _) = cluster()
    post(world, 101, 1)
    world.connect("m", properties={17: 1000}).subscribed("$share/g/t", qos=1).vanish()
    publisher = world.connect("p")
    publisher.publish("t", b"|away", 1)
    assert [choice and choice.entries for _, choice in chosen(one)] == [at(101)]
    post(world, 101, 0)
    publisher.publish("t", b"|kept", 1)
    assert [choice for _, choice in chosen(one)] == [None]
    assert len(world.session("m").queue) == 1


def test_a_message_assigned_to_others_is_not_delivered_to_members_here() -> None:
    """A message of another broker that does not name this one's members is not for them, whatever
    its shape."""
    world, (one, _) = cluster()
    client = member(world)
    ordinary = world.connect("o").subscribed("t", qos=2)
    for qos in (0, 1, 2):
        one.send(message(qos=qos, sequence=1 + qos, key=origin_key(bid(101), 2_000)))
    one.send(message(qos=0, sequence=9, key=origin_key(bid(101), 2_000)))
    one.send(encode_batch(origin_key(bid(101), 2_000), 10, b"\x30\x05\0\1t\0x" * 3, 3, 5, 0))
    assert len(ordinary.take_publishes()) == 7
    assert client.take_publishes() == []


def named(
    payload: bytes,
    who: bytes,
    sequence: int,
    *,
    qos: int = 1,
    choice: ReceiverAssignment | None = None,
) -> bytes:
    """A message of broker 101 that names a receiver."""
    choice = choice or ReceiverAssignment([(who, GROUP_ID)])
    whole = Message(b"t", payload, qos, False, b"", None, None)
    return encode_message(whole, origin_key(bid(101), 2_000), sequence, 0.0, choice)


def rule(broker: Neighbour, ruling: int, number: int) -> None:
    """Broker 101 answers a claim."""
    (body,) = encode_refs([(ruling, (origin_key(bid(101), 2_000), number, GROUP_ID))])
    broker.send(routed(RULING, body))


ME = OWN + (1_000).to_bytes(4, "big")


def test_an_assigned_message_is_delivered_once() -> None:
    world, (one, other) = cluster()
    client = member(world)
    one.send(named(b"|mine", ME, 1), named(b"|mine", ME, 1))
    one.send(named(b"|other life", OWN + bytes(4), 2), named(b"|other", bid(102) + bytes(4), 3))
    assert [p.payload for p in client.take_publishes()] == [b"|mine"]
    assert [payload for payload, _ in chosen(other)] == [b"mine", b"other life", b"other"]


def test_a_message_of_an_unknown_giver_waits_for_its_grant() -> None:
    """It may have given it to another one, as it could not reach us, before we have ever heard of
    it."""
    world, (one, _) = cluster()
    client = member(world)
    one.send(*[named(b"|%d" % n, ME, n, qos=2) for n in (1, 2)])
    assert client.take_publishes() == []
    rule(one, REFUSE, 1)
    rule(one, GRANT, 2)
    world.advance(0.1)
    assert [p.payload for p in client.take_publishes()] == [b"|2"]
    one.send(named(b"|3", ME, 3))
    assert [p.payload for p in client.take_publishes()] == [b"|3"]


def test_a_broker_without_members_passes_the_message_on() -> None:
    world, (one, other) = cluster()
    post(world, 102, 1)
    ordinary = world.connect("o").subscribed("t", qos=2)
    one.send(named(b"|x", ME, 1))
    assert [p.payload for p in ordinary.take_publishes()] == [b"|x"]
    (first, _), (second, choice) = chosen(other)
    assert first == second == b"x"
    assert choice is not None
    assert choice.passed
    assert choice.entries == at(102)
    assert choice.visited == (OWN,)
    assert world.counters.shared_passed_on == 1


def test_a_message_that_was_passed_on_is_for_the_group_alone() -> None:
    world, (one, other) = cluster()
    client = member(world)
    ordinary = world.connect("o").subscribed("t", qos=2)
    one.send(
        named(
            b"|x",
            b"",
            1,
            choice=ReceiverAssignment([(ME, GROUP_ID)], passed=True, visited=(bid(102),)),
        )
    )
    assert [p.payload for p in client.take_publishes()] == [b"|x"]
    assert ordinary.take_publishes() == []
    assert [payload for payload, _ in chosen(other)] == [b"x"]


def test_no_member_gets_it_twice() -> None:
    """Who had it is not asked again: it goes back to who gave it. What that one does not keep is
    counted."""
    world, (one, _) = cluster()
    post(world, 102, 1)
    one.send(
        named(
            b"|x",
            b"",
            1,
            choice=ReceiverAssignment([(ME, GROUP_ID)], passed=True, visited=(bid(102),)),
        )
    )
    assert (world.counters.shared_passed_on, world.counters.shared_undelivered) == (0, 0)
    one.send(named(b"|x", ME, 2, qos=0))
    assert (world.counters.shared_passed_on, world.counters.shared_undelivered) == (0, 1)


def test_the_last_member_leaves_with_messages_in_flight() -> None:
    """What it had not acknowledged at QoS 1, and what waited, goes to another broker; QoS 2 that
    was sent does not."""
    world, (one, other) = cluster()
    client = world.connect("m", properties={33: 2}).subscribed("$share/g/t", qos=2)
    one.send(named(b"|1", ME, 1), named(b"|2", ME, 2, qos=2))
    rule(one, GRANT, 2)
    one.send(named(b"|3", ME, 3))
    assert [p.payload for p in client.take_publishes()] == [b"|1", b"|2"]
    post(world, 102, 1)
    other.take()
    client.disconnect()
    assert [(payload, choice.passed) for payload, choice in chosen(other) if choice] == [
        (b"1", True),
        (b"3", True),
    ]


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(
            st.sampled_from((10, 11, 12, 13, 14)),
            st.one_of(
                st.binary(max_size=60),
                st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), max_size=5).map(
                    lambda said: b"".join(
                        encode_refs(
                            [(op, (origin_key(bid(101), 2_000), n, GROUP_ID)) for op, n in said]
                        )
                    )
                ),
            ),
        ),
        max_size=8,
    )
)
def test_false_statements_about_shared_subscriptions_do_no_harm(
    said: list[tuple[int, bytes]],
) -> None:
    world, (one, _) = cluster()
    client = member(world)
    post(world, 101, 1)
    one.send(named(b"|x", ME, 1, qos=2))
    for kind, body in said:
        one.send(routed(kind, body))
        world.advance(0.1)
    assert one.up
    assert [p.payload for p in client.take_publishes()] in ([], [b"|x"])
    client.publish("t", b"here")
    assert [p.payload for p in client.take_publishes()][-1:] == [b"here"]


def test_members_are_posted() -> None:
    """Each on its first and last, with about how many are connected."""
    world, _ = cluster()
    entries = world.node.cluster.directory.database.own.entries
    key = GROUP + group_key("g", "t")
    clients = [member(world, f"m{number}") for number in range(3)]
    assert entries[key] == encode_standing(3)
    clients[0].disconnect()
    assert entries[key] == encode_standing(2)
    last_member = world.connect("k", properties={17: 1000}).subscribed("$share/g/t")
    for client in clients[1:]:
        client.unsubscribe("$share/g/t")
    assert entries[key] == encode_standing(1)
    last_member.vanish()
    assert entries[key] == encode_standing(0)
    world.connect("k", clean=False)
    assert entries[key] == encode_standing(1)
    world.connect("k")
    assert key not in entries


def test_malformed_group_entries_are_counted() -> None:
    world, _ = cluster()
    sharing = world.node.cluster.sharing
    sharing.groups._posted(bid(101), b"g\0a/#/b", b"\1")
    assert world.counters.groups_refused == 1
    assert not sharing.has_remote_members


def test_nothing_is_kept_of_a_broker_that_is_gone() -> None:
    world, (one, _) = cluster()
    post(world, 101, 1)
    post(world, 101, 1, topic_filter="+")
    publisher = world.connect("p")
    publisher.publish("t", b"|x", 1)
    ((_, choice),) = chosen(one)
    assert choice is not None
    assert len(choice.entries) == 2
    post(world, 101, None)
    post(world, 101, None, topic_filter="+")
    assert not world.node.cluster.sharing.has_remote_members
    publisher.publish("t", b"|x", 1)
    assert [choice for _, choice in chosen(one)] == [None]


def test_a_clients_own_user_property_is_no_assignment() -> None:
    """It is carried on, and says nothing to brokers."""
    world, (one, _) = cluster()
    publisher = world.connect("p")
    properties: Properties = {Property.USER_PROPERTY: [("o", "x" * 60)]}
    publisher.send(
        *[Publish("t", b"|%d" % n, 1, packet_id=n, properties=properties) for n in range(1, 9)]
    )
    found = [decode_packet(first, body, 5) for first, body in one.take() if first >> 4 == 3]
    told = [
        p.properties[Property.USER_PROPERTY]
        for p in found
        if isinstance(p, Publish) and p.properties
    ]
    assert [len(pairs) for pairs in told] == [2] * 8
    assert all(len(origin[1]) == 24 and own == ("o", "x" * 60) for origin, own in told)


@pytest.mark.parametrize("text", [b"", b"x", b"cAAA", b"p" + bytes(17), b"p" + bytes(25)])
def test_garbage_costs_the_link(text: bytes) -> None:
    world, (one, _) = cluster()
    choice = ReceiverAssignment([])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReceiverAssignment, "encode", lambda _: text)
        one.send(message(key=origin_key(bid(101), 2_000), choice=choice))
    assert not one.up
    assert world.counters.link_garbage == 1


def test_messages_given_back_beyond_the_ledger_are_counted() -> None:
    world, (one, _) = cluster(limits=Limits(max_assigned=2))
    post(world, 101, 1)
    publisher = world.connect("p")
    for number in range(1, 6):
        publisher.publish("t", b"x", qos=1, packet_id=number)
    assert (len(world.node.cluster.assignments.ledger), world.counters.shared_untracked) == (
        2,
        3,
    )
    key = world.node.cluster.forwarder.key
    for operation in (DECLINE, DENY):
        (body,) = encode_refs([(operation, (key, number, GROUP_ID)) for number in range(1, 6)])
        one.send(routed(REPORT, body))
        world.advance(0.1)
    # Three were never kept; two wait for a member, and are not given back by those who do not have
    # them.
    assert world.counters.shared_undelivered == 2 * 3
    assert len(world.node.cluster.assignments.ledger) == 2


def test_publishers_wait_for_members_elsewhere_and_go_on() -> None:
    """With many messages unacknowledged a publisher is held until they are fewer, or nothing
    happens for half a second."""
    world, _ = cluster(limits=Limits(hold_queued=4))
    post(world, 102, 1)
    publisher = world.connect("p")
    for number in range(1, 6):
        publisher.publish("t", b"x", qos=1, packet_id=number)
    assignments = world.node.cluster.assignments
    assert len(assignments.ledger) == 5
    assert publisher.conn.held
    for ref in list(assignments.ledger.refs):
        assignments.ledger.close(ref)  # as given to a member here
    world.advance(0.3)
    assert not publisher.conn.held
    for number in range(6, 11):
        publisher.publish("t", b"x", qos=1, packet_id=number)
    assert publisher.conn.held
    world.advance(0.6)
    world.advance(0.3)
    assert not publisher.conn.held


def reported(operation: int, key: bytes, numbers: range) -> bytes:
    """What broker 101 says of messages, in as many records as it takes."""
    bodies = encode_refs([(operation, (key, number, GROUP_ID)) for number in numbers])
    return routed(REPORT, *bodies)


@pytest.mark.parametrize("operation", [DECLINE, DENY, UNKNOWN])
def test_all_messages_of_a_broker_are_given_back_in_order(operation: int) -> None:
    """The next member gets it in order, some in each turn; what is published meanwhile is not lost
    either."""
    count = 8 * STEP
    world, (one, other) = cluster()
    post(world, 101, 1)
    publisher = world.connect("p", 4)  # keeps to no Receive Maximum
    for number in range(count):
        publisher.publish("t", b"|%d" % number, qos=2, packet_id=number + 1)
    one.send(reported(CLAIM, world.node.cluster.forwarder.key, range(1, count + 1)))
    post(world, 102, 1)
    other.take()
    one.send(reported(operation, world.node.cluster.forwarder.key, range(1, count + 1)))
    assert world.counters.shared_reassigned <= STEP
    # It had said that it has none of them.
    one.send(reported(CLAIM, world.node.cluster.forwarder.key, range(count - 9, count + 1)))
    publisher.publish("t", b"|new", qos=2, packet_id=count + 1)
    assert world.most(0.1, lambda: int(world.counters.shared_reassigned)) <= STEP
    assert world.counters.shared_reassigned == count
    got = [payload for payload, choice in chosen(other) if choice is not None]
    assert [payload for payload in got if payload != b"new"] == [
        b"%d" % number for number in range(count)
    ]
    assert len(world.node.cluster.assignments.ledger) == count + 1
