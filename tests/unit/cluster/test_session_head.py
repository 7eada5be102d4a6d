"""A session as bytes: nothing changes on the way, and what a broker invents gets no further than
what a client does."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.sequence_set import LAST, Ranges
from mqttree.broker.cluster.delivery.local_window import LocalWindow
from mqttree.broker.cluster.delivery.ordered_feed import OrderedFeed
from mqttree.broker.cluster.delivery.replay_log import ReplayLog
from mqttree.broker.cluster.link.message_batch import encode_batch, encode_message, read_messages
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.link.version_vector import OriginWindow, Vector
from mqttree.broker.cluster.sessions.image import Image
from mqttree.broker.cluster.sessions.message_vectors import (
    need_of,
    offered,
    ranges_of,
    vector_of,
    without,
)
from mqttree.broker.cluster.sessions.records import (
    LOCAL,
    NEW,
    GotAsRecord,
    Kind,
    SessionRecord,
    encode_about,
    encode_entry,
    encode_got,
    encode_got_run,
    encode_origin,
    encode_record,
    encode_snapshot_end,
)
from mqttree.broker.cluster.sessions.session_head import MADE, ended, recorded_head
from mqttree.broker.cluster.sessions.session_state import (
    IN_FLIGHT,
    IS_RELEASED,
    WAITING,
    Item,
    SessionState,
    behind_start,
    restoring,
    state_of,
    subscriptions_of,
)
from mqttree.broker.core.delivery_queue import RELEASED
from mqttree.broker.core.message import Message
from mqttree.broker.core.session import Session, SharedOutgoing, Subscription
from mqttree.broker.core.start_point import SubscriptionStart
from mqttree.broker.limits import Limits
from mqttree.broker.wire.errors import MalformedPacket, WireError
from mqttree.broker.wire.publish_header import PUBREC_HEAD
from mqttree.broker.wire.steps import finish
from tests.kit.heads import decode_head, encode_head, recorded_messages
from tests.kit.link_harness import entry_of
from tests.kit.node_harness import World

NOW = 500.0
KEYS = [origin_key(bytes([n]) * 8, n) for n in range(3)]


def whole_state(session: Session) -> SessionState:
    """The state of a session with its subscriptions."""
    state = state_of(session, {})
    state.subscriptions += subscriptions_of(session)
    return state


def window(top: int, gaps: list[tuple[int, int]], begin: int = 0) -> LocalWindow:
    found = LocalWindow(top, NOW, None, Limits().max_gaps)
    found.gaps = gaps
    found.begin = begin
    return found


@st.composite
def windows(draw: Any) -> LocalWindow:
    missing = draw(st.sets(st.integers(1, 20)))
    top = draw(st.integers(0, 25))
    return window(
        top, [(n, n) for n in sorted(missing) if n <= top], draw(st.sampled_from((0, 0, 3, 30)))
    )


vectors = st.dictionaries(st.sampled_from(KEYS), windows())
letters = st.characters(codec="utf-8", exclude_characters="\0+#/$", exclude_categories=("Cs", "Cc"))
names = st.text(letters, min_size=1, max_size=5)
messages = st.builds(
    Message,
    names.map(str.encode),
    st.binary(max_size=20),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from((b"", b"\x26\0\1a\0\1b", b"\x01\x01")),
    st.sampled_from((None, NOW + 60.0)),
    st.none(),
)


@st.composite
def items(draw: Any) -> list[Item]:
    """Of one session: those in flight come first, and messages with one name are one message."""
    found: list[Item] = []
    sent = draw(st.lists(st.integers(1, 65535), max_size=4, unique=True))
    for number, packet_id in enumerate([*sent, *[0] * draw(st.integers(0, 4))], 1):
        if packet_id and draw(st.booleans()):
            found.append(Item(IS_RELEASED, packet_id, 2, False, b"", RELEASED.message))
            continue
        message = draw(messages)
        if message.qos and draw(st.booleans()):
            message.named(KEYS[number % 2], draw(st.sampled_from((number, 100 * number))))
        qos = draw(st.integers(1 if packet_id else 0, 2))
        place = IN_FLIGHT if packet_id else WAITING
        ids = draw(st.sampled_from((b"", b"\x0b\x01", b"\x0b\xff\x7f\x0b\x02")))
        shared = draw(st.sampled_from((None, None, "$share/g/a")))
        found.append(Item(place, packet_id, qos, draw(st.booleans()), ids, message, shared))
    return found


states = st.builds(
    SessionState,
    st.one_of(st.none(), st.text(max_size=5)),
    st.sampled_from((0.0, 3600.0, float("inf"))),
    st.integers(0, 65535),
    vectors,
    st.sets(st.integers(0, 65535), max_size=5),
    st.lists(
        st.tuples(
            names, st.integers(0, 2), st.booleans(), st.booleans(), st.integers(0, 2**28 - 1)
        ),
        max_size=3,
        unique_by=lambda subscription: subscription[0],
    ),
    items(),
    st.one_of(st.none(), st.text(max_size=5)),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
)


def plain(state: SessionState) -> Any:
    """A state as something that can be compared."""
    seen = {key: (w.top, list(w.gaps)) for key, w in state.seen.items()}
    kept = [
        (
            i.place,
            i.packet_id,
            i.qos,
            i.retain,
            i.ids,
            i.shared,
            i.message.topic,
            i.message.payload,
            i.message.qos,
            i.message.retain,
            i.message.properties,
            i.message.expires_at,
            i.message.origin,
            i.message.sequence,
        )
        for i in state.items
    ]
    whose = (state.username, state.owner, state.created, state.floor)
    return (
        whose,
        state.expiry,
        state.next_packet_id,
        seen,
        state.incoming,
        state.subscriptions,
        kept,
    )


@given(states)
def test_nothing_changes_on_the_way(state: SessionState) -> None:
    assert plain(decode_head(encode_head(state, NOW), NOW)) == plain(state)


@given(states, st.data())
def test_bent_states_are_refused_or_read(state: SessionState, data: st.DataObject) -> None:
    encoded = bytearray(encode_head(state, NOW))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(encoded[: data.draw(st.integers(0, len(encoded)))])
    for bent in (bytes(encoded), cut):
        try:
            found = decode_head(bent, NOW)
        except WireError:
            continue
        world = World()
        session = world.connect("c", clean=False).owner.session
        finish(
            restoring(found, session, world.node.dispatcher, world.node.cluster.subscription_starts)
        )
        encode_head(whole_state(session), NOW)


def test_truncated_states_are_refused() -> None:
    state = SessionState(
        "anna", 60.0, 7, {KEYS[0]: window(5, [(2, 3)])}, {1, 2}, [("a/#", 1, False, False, 0)]
    )
    state.items = [Item(WAITING, 0, 1, False, b"", Message(b"a", b"x", 1, False, b"", None, None))]
    data = encode_head(state, NOW)
    for size in range(len(data)):
        with pytest.raises(MalformedPacket):
            decode_head(data[:size], NOW)
    with pytest.raises(MalformedPacket):
        decode_head(data + b"\0", NOW)


def one_message(topic: bytes = b"a", properties: bytes = b"") -> Message:
    return Message(topic, b"", 1, False, properties, None, None)


def with_item(
    kind: int = WAITING, number: int = 0, qos: int = 1, identifiers: bytes = b"", **message: bytes
) -> SessionState:
    """A session with one message."""
    return SessionState(items=[Item(kind, number, qos, False, identifiers, one_message(**message))])


@pytest.mark.parametrize(
    "state",
    [
        SessionState(expiry=float("nan")),
        SessionState(expiry=-1.0),
        SessionState(created=1 << 63),
        SessionState(owner="u" * 65_536),
        SessionState(subscriptions=[("a/#/b", 0, False, False, 0)]),
        SessionState(subscriptions=[("a", 3, False, False, 0)]),
        SessionState(subscriptions=[("/" * 300, 0, False, False, 0)]),
        with_item(IN_FLIGHT, number=5, qos=0),
        with_item(identifiers=b"\x0b"),
        with_item(topic=b"a+"),
        with_item(topic=b"\xff"),
        with_item(properties=b"\x23\0\1"),
        with_item(properties=b"\x26\0\x09a"),
    ],
    ids=lambda state: type(state).__name__,
)
def test_a_state_that_no_client_could_cause_is_refused(state: SessionState) -> None:
    with pytest.raises(WireError):
        decode_head(encode_head(state, NOW), NOW)


def with_records(*records: bytes) -> bytes:
    """A head of one session with a message and these records."""
    state = SessionState(items=[Item(WAITING, 0, 1, False, b"", one_message())])
    head = encode_head(state, NOW)
    known = head[: -len(encode_snapshot_end(0, 0))]
    return ended([known, *records], MADE)


@pytest.mark.parametrize(
    "record",
    [
        encode_about(Kind.END, 1),
        encode_got_run(0, 1, 1, 1, 1),
        encode_record(Kind.SEEN, b"x" * 18 + b"\xff" * 30),
        encode_got(9, 1, [1 << 16]),
        GotAsRecord(0, 1, 1, 1, 0, False, b"", b"").encode(),
        encode_about(Kind.ACKNOWLEDGED, 1, PUBREC_HEAD + b"\0\0"),
        encode_about(Kind.INCOMING, 1, b"x"),
        encode_about(Kind.START_VECTOR, 1, b"x"),
        encode_about(Kind.ABSORBED, 1, b"x"),
        encode_about(Kind.ABSORBED, 1, bytes(24 * 17)),
        encode_about(Kind.GIVEN, 1, b"x" * 16 + b"\0\1" + bytes(12)),
        encode_about(Kind.GIVEN, 1, b"!" * 16 + b"\0\0"),
        bytes((Kind.LAST_ID,)) + bytes((0, 0, 0, 1, 0)),
        SessionRecord(2, NEW, 4, 0.0, 0, 0, (0, 0), b"").encode(),
        encode_entry(False, 0, b""),
        encode_snapshot_end(0, 0),
        bytes((99,)) + bytes(4),
    ],
)
def test_a_record_that_no_head_has_is_refused(record: bytes) -> None:
    assert decode_head(with_records(), NOW).items
    with pytest.raises(WireError):
        decode_head(with_records(record), NOW)


def test_a_message_that_is_not_there_is_left_out() -> None:
    assert len(decode_head(with_records(encode_got(0, 2, [1 << 16])), NOW).items) == 1


def test_messages_that_follow_each_other_go_together() -> None:
    state = SessionState()
    for number in range(1, 2001):
        message = one_message(b"plant/1/device/7").named(KEYS[0], number)
        state.items.append(Item(WAITING, 0, 1, False, b"", message))
    together = encode_head(state, NOW)
    assert plain(decode_head(together, NOW)) == plain(state)
    for item in state.items:
        item.message.sequence *= 2
    apart = encode_head(state, NOW)
    assert plain(decode_head(apart, NOW)) == plain(state)
    assert len(together) < 50 * 2000 < len(apart)


def test_a_head_of_a_recorded_session_has_its_messages_alone() -> None:
    """Of a batch for others single messages, of one that is mostly for it all; they have aged."""
    expires = Message(b"a", b"%d", 1, False, b"", NOW + 60, None)
    packet = one_message().packet(5, 1, False, 1)
    batches = [
        encode_batch(KEYS[0], 1, packet * 9, 9, 5, 1),
        encode_batch(LOCAL, 1, packet * 2, 2, 5, 1),
        encode_message(expires, KEYS[1], 7, NOW),
    ]
    image = Image()
    records = [
        *(encode_origin(index, KEYS[index - 1]) for index in (1, 2)),
        *(encode_entry(True, 1_000_000, batch) for batch in batches),
        SessionRecord(5, NEW, 4, 9.0, 3, 0, (0, 0), b"c").encode(),
        encode_got(1, 3, [5 << 16 | 8, 4 << 48 | 5 << 16]),
        encode_got(0, 1, [5 << 16, 1 << 48 | 5 << 16]),
        GotAsRecord(2, 7, 5, 0, 1, True, b"\x0b\x02", b"").encode(),
        encode_about(Kind.ACKNOWLEDGED, 5, PUBREC_HEAD + b"\0\x09"),
    ]
    image.take(1_000_000, b"".join(records))
    messages = recorded_messages(image, NOW, 1_000_000)
    head = recorded_head(image.sessions[5], messages, b"", 1_010_000)
    assert head.count(packet) == 4
    state = decode_head(head, NOW)
    assert [(i.place, i.packet_id, i.message.name, i.ids) for i in state.items] == [
        (IN_FLIGHT, 8, (KEYS[0], 3), b""),
        (IS_RELEASED, 9, None, b""),
        (WAITING, 0, (KEYS[0], 7), b""),
        (WAITING, 0, None, b""),
        (WAITING, 0, None, b""),
        (WAITING, 0, (KEYS[1], 7), b"\x0b\x02"),
    ]
    assert state.items[-1].message.expires_at == NOW + 50
    assert (state.created, state.expiry, state.next_packet_id) == (3, 9.0, 8)


def test_what_is_left_of_messages_is_counted_from_when_the_head_was_made() -> None:
    state = with_item()
    state.items[0].message.expires_at = NOW + 60.25
    (item,) = decode_head(encode_head(state, NOW), NOW + 1000).items
    assert item.message.expires_at == pytest.approx(NOW + 1060.25, abs=0.001)


def test_a_session_becomes_the_same_session() -> None:
    """In flight, released, waiting, repeated, of a group; and what it does then is what it would
    have done."""
    here, there = World(), World()
    client = here.connect("c", clean=False, properties={0x11: 60, 0x21: 2})
    client.subscribe("a/#", qos=2, properties={0x0B: [9]})
    client.subscribe("$share/g/s", qos=1)
    publisher = here.connect("p")
    for number in range(4):
        publisher.publish(f"a/{number}", b"%d" % number, qos=2, packet_id=number + 1)
    publisher.publish("s", b"shared", qos=1, packet_id=9)
    client.take()
    client.send(b"\x50\x02\x00\x01")  # PUBREC
    client.send(b"\x34\x06\x00\x01x\x00\x05\x00")  # a QoS 2 message of its own, not released
    client.vanish()
    session = here.session("c")
    assert len(session.inflight) == 2
    state = decode_head(encode_head(whole_state(session), here.now), there.now)
    assert {i.place for i in state.items} == {IN_FLIGHT, IS_RELEASED, WAITING}
    moved = there.connect("c", clean=False, properties={0x11: 60}).owner.session
    there.node.connection_lost(there.peers[0].conn, "gone", there.now)
    finish(restoring(state, moved, there.node.dispatcher, there.node.cluster.subscription_starts))
    assert plain(whole_state(moved)) == plain(state)
    assert [type(o) for o in moved.queue].count(SharedOutgoing) == 1
    assert RELEASED in moved.inflight.values()
    again = there.connect("c", clean=False, properties={0x11: 60, 0x21: 1})
    assert again.connack.session_present
    packets = again.take()
    assert [p.packet_id for p in packets] == [1]  # type: ignore[union-attr]
    again.send(b"\x70\x02\x00\x01")  # PUBCOMP
    assert [(p.payload, p.packet_id, p.dup) for p in again.take_publishes()] == [(b"1", 2, True)]
    again.send(b"\x34\x06\x00\x01x\x00\x05\x00")
    assert there.counters.publish_received == 0  # it is known already


# ---------------------------------------------------------------- what was offered


def numbers(vector: Vector, delivered: bool) -> set[tuple[bytes, int]]:
    """What a vector says has been here, up to 30; `delivered`: or needs no delivery."""
    return {
        (key, n)
        for key, w in vector.items()
        for n in range(1, 31)
        if (n <= w.top and not any(a <= n <= b for a, b in w.gaps)) or (delivered and n <= w.begin)
    }


def listed(ranges: dict[bytes, Ranges]) -> set[tuple[bytes, int]]:
    """Each of these numbers."""
    return {
        (key, n)
        for key, pairs in ranges.items()
        for low, high in pairs
        for n in range(low, high + 1)
    }


@given(vectors)
def test_numbers_before_the_begin_count_as_offered(vector: Vector) -> None:
    assert numbers(offered(vector), False) == numbers(vector, True)


def test_each_of_many_gaps_is_exact() -> None:
    """While links are repaired, messages come between others that are missing yet."""
    found = window(6_000, [])
    feed = found.feed = OrderedFeed(cast(Any, None), KEYS[0], found, 6_000)
    feed.outstanding = [(n, n) for n in range(2, 6_000, 2)]
    seen = offered({KEYS[0]: found})
    again = decode_head(encode_head(SessionState(seen=seen), NOW), NOW).seen
    for vector in (seen, again, vector_of(ranges_of(seen))):
        assert vector[KEYS[0]].top == 6_000
        assert vector[KEYS[0]].gaps == feed.outstanding


tops = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 25))


@given(st.lists(tops, max_size=3))
def test_all_that_was_published_before_a_subscription_is_needed(
    starts: list[dict[bytes, int]],
) -> None:
    need = need_of(starts)
    assert listed(ranges_of(need)) == {
        (key, n) for start in starts for key, top in start.items() for n in range(1, top + 1)
    }
    # Of an earlier incarnation of this broker nothing comes any more.
    assert need_of([{KEYS[0]: LAST}]) == {}


@given(vectors, tops)
def test_numbers_behind_a_subscription_start_are_found(
    vector: Vector, begins: dict[bytes, int]
) -> None:
    before = {key: OriginWindow(top, NOW) for key, top in begins.items()}
    assert listed(behind_start(SessionState(seen=vector, before=before))) == {
        (key, n) for key, n in numbers(vector, False) if n > begins.get(key, 0)
    }


def test_a_session_begins_where_its_oldest_subscription_does() -> None:
    """The next broker has to deliver what is behind that, whatever a later subscription says."""
    world = World()
    session = world.connect("c", clean=False).owner.session
    for number, begins in enumerate(({KEYS[0]: 3}, {KEYS[0]: 5, KEYS[1]: 9})):
        subscription = Subscription(session, f"a/{number}", 1)
        subscription.start = SubscriptionStart(NOW, begins, set(), (0, 0, 0))
        world.node.dispatcher.subscribe(subscription, None, f"a/{number}")
    assert {key: w.top for key, w in state_of(session, {}).before.items()} == {KEYS[0]: 3}


def begun(*unsettled: bytes, began: float = -3.5) -> SessionState:
    state = SessionState(
        "anna", 60.0, before={KEYS[0]: window(5, []), KEYS[1]: window(0, [])}, began=began
    )
    state.open = set(unsettled)
    return state


@pytest.mark.parametrize(
    "state",
    [begun(KEYS[2]), begun(*KEYS), begun(KEYS[0], began=1e300), begun(KEYS[0], began=-1e300)],
)
def test_bent_beginnings_are_refused(state: SessionState) -> None:
    with pytest.raises(MalformedPacket):
        decode_head(encode_head(state, NOW), NOW)


@pytest.mark.parametrize("began", [float("nan"), float("inf"), -float("inf")])
def test_an_impossible_begin_of_a_session_is_refused(began: float) -> None:
    data = encode_head(begun(KEYS[0], began=7.0), NOW)
    assert data.count(struct.pack(">d", 7.0)) == 1
    with pytest.raises(MalformedPacket):
        decode_head(data.replace(struct.pack(">d", 7.0), struct.pack(">d", began)), NOW)


@given(vectors, vectors, vectors)
def test_the_difference_of_sets_is_that_of_their_numbers(
    mine: Vector, theirs: Vector, others: Vector
) -> None:
    left = without(ranges_of(mine), ranges_of(theirs), ranges_of(others))
    assert listed(left) == numbers(mine, False) - numbers(theirs, False) - numbers(others, False)


def test_the_log_gives_what_is_asked_for() -> None:
    world = World()
    log = ReplayLog(world.counters, limits=Limits())
    for n in range(1, 9):
        message = Message(
            b"t", b"%d" % n, 1, False, b"\x26\0\1a\0\1b", None if n < 8 else NOW + 60, None
        )
        log.append(entry_of(KEYS[0], n, message, NOW + n), None)
    found = log.those({KEYS[0]: [(2, 3), (5, 5), (8, LAST)], KEYS[1]: [(1, 1)]}, NOW)
    assert [e.sequence for e in found] == [2, 3, 5, 8]
    assert [m.payload for e in found for _, m in e.messages()] == [b"2", b"3", b"5", b"8"]
    assert [m.expires_at for _, m in found[-1].messages()] == [NOW + 60]
    assert [e.sequence for e in log.those({KEYS[0]: [(1, 8)]}, NOW + 7)] == [7, 8]
    read = list(read_messages(b"".join(e.data(NOW) for e in found), NOW))
    assert [(batch.key, n, m.payload) for batch, n, m in read] == [
        (KEYS[0], n, b"%d" % n) for n in (2, 3, 5, 8)
    ]
    assert read[0][2].properties == b"\x26\0\1a\0\1b"


@given(st.binary(max_size=60))
def test_messages_of_another_broker_are_read_or_refused(data: bytes) -> None:
    with suppress(WireError):
        list(read_messages(b"\x32" + data, NOW))
