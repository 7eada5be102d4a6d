"""Each message in a session has the name that its origin gave it, whatever way it came: merges and
takeovers know it by that alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hypothesis import example, given
from hypothesis import strategies as st

from mqttree.broker.cluster.link.message_batch import encode_batch
from mqttree.broker.cluster.link.origin_keys import lone_key, origin_key
from mqttree.broker.core.delivery_queue import RELEASED, Repeat
from mqttree.broker.core.message import Name
from mqttree.broker.core.session import Session
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Publish
from mqttree.broker.wire.properties import Property
from tests.kit.journal_harness import Durable
from tests.kit.link_harness import FAR, Neighbour, let_through, lone
from tests.kit.node_harness import World
from tests.unit.persistence.test_journal import copy_of, durable_client

KEY = origin_key(FAR, 1)
TOPICS = ("a", "a/b", "b", "a/b/c")

KINDS = st.tuples(
    st.sampled_from(TOPICS),
    st.integers(0, 2),
    st.sampled_from((0, 1, 3, 5)),  # bytes that the payload has more
    st.sampled_from(("plain", "plain", "plain", "retained", "expiring", "user")),
)
CHUNKS = st.lists(st.tuples(st.lists(KINDS, min_size=1, max_size=5), st.integers(1, 7)), max_size=6)


def packets(kinds: list[tuple[str, int, int, str]], first: int, version: int) -> list[bytes]:
    """PUBLISH packets whose payloads say their place."""
    found = []
    for number, (topic, qos, more, kind) in enumerate(kinds, first):
        properties = {
            "expiring": {Property.MESSAGE_EXPIRY_INTERVAL: 50},
            "user": {Property.USER_PROPERTY: [("k", "v")]},
        }.get(kind)
        packet = Publish(
            topic,
            b"%06d" % number + b"x" * more,
            qos,
            retain=kind == "retained",
            packet_id=number if qos else None,
            properties=properties if version == 5 else None,  # type: ignore[arg-type]
        )
        found.append(encode_packet(packet, version))
    return found


WHO = [(name, version) for name in ("quick", "slow", "away") for version in (4, 5)]
SUBSCRIBERS = st.sets(st.sampled_from(WHO), min_size=1)


def subscribe(world: World, who: Iterable[tuple[str, int]], *, group: bool = False) -> None:
    """Clients that keep up, that take two at a time and that are away; `group`: they are members of
    one, too."""
    kept = {Property.SESSION_EXPIRY_INTERVAL: 3600}
    few = {**kept, Property.RECEIVE_MAXIMUM: 2}
    for name, version in who:
        told = few if name == "slow" else kept
        client = world.connect(
            f"{name}{version}", version, clean=False, properties=told if version == 5 else None
        ).subscribed("#", qos=2)
        if group:
            client.subscribe("$share/g/a/#", qos=1)
        if name == "away":
            client.disconnect()


def names(session: Session) -> Iterator[tuple[bytes, Name | None]]:
    """Payload and name of what is in flight and what is queued."""
    session.unpack()
    for outgoing in (*session.inflight.values(), *session.queue):
        assert not isinstance(outgoing, tuple)
        if isinstance(outgoing, Repeat):
            outgoing = outgoing.original
        if outgoing is not RELEASED:
            yield outgoing.message.payload, outgoing.message.name


def logged(world: World) -> dict[bytes, Name]:
    """The names of messages as the log has them, by payload."""
    log = world.node.cluster.forwarder.log
    return {
        message.payload: (entry.key, number)
        for piece in log.pieces()
        for entry in piece
        for number, message in entry.messages()
    }


def check(world: World) -> None:
    known = logged(world)
    for session in world.node.sessions.values():
        for payload, name in names(session):
            assert name == known[payload], (session.client_id, payload)


@example(chunks=[([("b", 1, 0, "plain")], 7)], version=4, who={("quick", 4)}, group=False)
@example(chunks=[([("b", 2, 0, "plain")], 7)], version=5, who={("quick", 4)}, group=False)
@given(chunks=CHUNKS, version=st.sampled_from((4, 5)), who=SUBSCRIBERS, group=st.booleans())
def test_messages_that_are_published_here_have_the_name_that_the_log_says(
    chunks: list[tuple[list[tuple[str, int, int, str]], int]],
    version: int,
    who: set[tuple[str, int]],
    group: bool,
) -> None:
    world = lone()
    neighbour = Neighbour(world, 101).child()
    subscribe(world, sorted(who), group=group)
    writer = world.connect("writer", version)
    number = 1
    for kinds, times in chunks:
        whole = [kind for kind in kinds for _ in range(times)]
        writer.conn.receive(b"".join(packets(whole, number, version)), world.now)
        world.settle()
        number += len(whole)
    check(world)
    sent = {one.payload for batch in neighbour.batches() for _, one in batch.messages()}
    assert sent >= logged(world).keys()


@given(
    st.lists(KINDS, min_size=1, max_size=12),
    st.integers(1, 9),
    st.sampled_from((4, 5)),
    st.booleans(),
)
def test_messages_that_a_link_brings_have_the_name_that_it_says(
    kinds: list[tuple[str, int, int, str]], first: int, version: int, mixed: bool
) -> None:
    world = lone()
    neighbour = Neighbour(world, 101).child()
    subscribe(world, WHO if mixed else [("quick", version), ("away", version)])
    let_through(neighbour)
    ordinary = [(topic, 1, more, "plain") for topic, _, more, _ in kinds]
    whole = b"".join(packets(ordinary, 1, version))
    neighbour.send(encode_batch(KEY, first, whole, len(ordinary), version, 1))
    found = dict(names(world.session(f"away{version}")))
    assert [name for _, name in sorted(found.items())] == [
        (KEY, number) for number in range(first, first + len(ordinary))
    ]
    check(world)


@given(chunks=CHUNKS, version=st.sampled_from((4, 5)), who=SUBSCRIBERS, group=st.booleans())
def test_messages_that_are_published_while_no_broker_is_known_have_names_of_their_own(
    chunks: list[tuple[list[tuple[str, int, int, str]], int]],
    version: int,
    who: set[tuple[str, int]],
    group: bool,
) -> None:
    """Those at QoS 1 and 2 are numbered in the order in which they came. Nothing of it is in the
    log, or in what others are told; and what is published for others begins with 1."""
    world = lone()
    world.node.cluster.expects_others = world.node.federated = False
    subscribe(world, sorted(who), group=group)
    writer = world.connect("writer", version)
    number, numbered = 1, []
    for kinds, times in chunks:
        whole = [kind for kind in kinds for _ in range(times)]
        sent = packets(whole, number, version)
        numbered += [number + n for n, (_, qos, *_) in enumerate(whole) if qos]
        writer.conn.receive(b"".join(sent), world.now)
        world.settle()
        number += len(whole)
    expected = {b"%06d" % each: place for place, each in enumerate(numbered, 1)}
    own = world.node.config
    for session in world.node.sessions.values():
        for payload, name in names(session):
            assert name == (lone_key(own.id, own.boot), expected[payload[:6]])
    forwarder = world.node.cluster.forwarder
    assert (forwarder.own.top, len(forwarder.log)) == (0, 0)
    Neighbour(world, 101).child()
    writer.conn.receive(b"".join(packets([("a", 1, 0, "plain")] * 2, number, version)), world.now)
    assert forwarder.own.top == 2


def test_no_broker_gives_a_name_twice() -> None:
    """Not after a restart, and not when it is alone again."""
    boots = (1, 2, 1_700_000_000, (1 << 31) - 1)
    keys = [key(FAR, boot) for boot in boots for key in (origin_key, lone_key)]
    assert len(set(keys)) == len(keys)


def test_a_message_of_a_broker_that_was_alone_keeps_its_name_through_restarts() -> None:
    world = Durable()
    world.advance(11.0)
    durable_client(world, "k").subscribed("#", qos=2).disconnect()
    publisher = world.connect("p")
    publisher.publish("a", b"1", 1, 1)
    publisher.publish("a", b"2", 2, 2)
    before = dict(names(world.session("k")))
    assert before.keys() == {b"1", b"2"}
    assert None not in before.values()
    again = world.again(1.0, copy_of(world.files))
    assert dict(names(again.session("k"))) == before
