"""A batch of messages of several topics in the replay log: for all who read the log it is what its
messages are one by one, and it is not looked into for those who want everything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.base.costs import HELD_MEMORY
from mqttree.broker.base.counters import Counters
from mqttree.broker.base.sequence_set import LAST, Ranges, merge
from mqttree.broker.cluster.delivery.answers import (
    CHUNK,
    ENTRIES,
    ENTRIES_PIECE,
    PULL,
    named,
    parts_of,
)
from mqttree.broker.cluster.delivery.feed_states import Input
from mqttree.broker.cluster.delivery.local_window import LocalWindow
from mqttree.broker.cluster.delivery.replay_log import (
    LogEntry,
    Looked,
    ReplayLog,
    in_order,
    lacked_parts,
    wanted_parts,
)
from mqttree.broker.cluster.delivery.subscription_start import encode_ages, numbers_at
from mqttree.broker.cluster.directory.link_state_directory import INTEREST
from mqttree.broker.cluster.link.control_records import DIRECTORY
from mqttree.broker.cluster.link.message_batch import MessageBatch, encode_message, read_messages
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.link.version_vector import OriginWindow
from mqttree.broker.cluster.sharing.assignment_ledger import Ref
from mqttree.broker.cluster.sharing.catchup import Job
from mqttree.broker.cluster.strategy.routing_strategy import every_topic
from mqttree.broker.core.message import Message
from mqttree.broker.core.receiver_assignment import ENTRY, WHO, ReceiverAssignment
from mqttree.broker.limits import Limits
from mqttree.broker.persistence.absent_members import AbsentMember
from mqttree.broker.wire.packets import Puback, Publish
from mqttree.broker.wire.properties import Property
from mqttree.routing.link_state import ALL
from mqttree.routing.subscription_trie import SubscriptionTrie
from tests.kit.link_harness import (
    FAR,
    OWN,
    Neighbour,
    batch_entry,
    bid,
    entry_of,
    lone,
    ping,
    pull_body,
    routed,
    some_link,
)
from tests.kit.node_harness import World

KEYS = [origin_key(FAR, 2_000), origin_key(bid(77), 1)]
TOPICS = [b"a", b"b", b"a/b", b"\xc3\xa4"]

Piece = tuple[int, bool, int, int, int, list[bytes], float]
"""Origin, whether it is one batch, numbers that are left out before it, QoS, version, topics, s
since the one before it."""

pieces: st.SearchStrategy[list[Piece]] = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.booleans(),
        st.integers(0, 3),
        st.integers(1, 2),
        st.sampled_from([4, 5]),
        st.lists(st.sampled_from(TOPICS), min_size=1, max_size=7),
        st.sampled_from([0.0, 1.0]),
    ),
    max_size=10,
)
numbers: st.SearchStrategy[Ranges] = st.lists(
    st.tuples(st.integers(1, 60), st.integers(0, 12)), min_size=1, max_size=5
).map(lambda found: merge([(low, low + more) for low, more in found]))

Told = tuple[bytes, int, bytes, int, bytes]
"""Origin, number, topic, QoS, payload of a message."""


def payload(number: int) -> bytes:
    return b"%03d" % number


def single(key: bytes, number: int, topic: bytes, qos: int = 1, at: float = 0.0) -> LogEntry:
    return entry_of(key, number, Message(topic, payload(number), qos, False, b"", None, None), at)


def entries_of(
    together: bool, key: bytes, first: int, topics: list[bytes], qos: int, version: int, now: float
) -> list[LogEntry]:
    """Messages with these topics as one batch, or one by one."""
    if together:
        messages = [(topic, payload(n)) for n, topic in enumerate(topics, first)]
        return [batch_entry(key, first, messages, qos=qos, version=version, at=now)]
    return [single(key, n, topic, qos, now) for n, topic in enumerate(topics, first)]


def logs(said: list[Piece]) -> tuple[ReplayLog, ReplayLog]:
    """A log with batches, and one with the same messages one by one."""
    mixed, plain = (ReplayLog(Counters(), limits=Limits()) for _ in range(2))
    tops, now = [0, 0], 100.0
    for origin, together, skipped, qos, version, topics, later in said:
        key, first, count = KEYS[origin], tops[origin] + skipped + 1, len(topics)
        now += later
        for entry in entries_of(together, key, first, topics, qos, version, now):
            mixed.append(entry, None)
        for n, topic in enumerate(topics, first):
            plain.append(single(key, n, topic, qos, now), None)
        tops[origin] = first + count - 1
    return mixed, plain


def told(entries: Iterable[LogEntry]) -> list[Told]:
    """All messages of some entries, in order: as links carry them, and as they are delivered, which
    is the same."""
    found: list[Told] = []
    for entry in entries:
        read = [
            (batch.key, number, m.topic, m.qos, m.payload)
            for batch, number, m in read_messages(entry.data(0.0), 0.0)
        ]
        assert read == [
            (entry.key, number, m.topic, m.qos, m.payload) for number, m in entry.messages()
        ]
        assert len(read) == entry.count
        assert list(entry.topics()) == [m[2] for m in read]
        assert {m[3] for m in read} == {entry.qos}
        assert not entry.retain and not named(entry, OWN)
        batch = MessageBatch.read(entry.data(0.0))
        assert (batch.key, batch.sequence, batch.count) == (entry.key, entry.sequence, entry.count)
        assert entry.size == len(entry.data(0.0))
        found += read
    return found


# ---------------------------------------------------------------- the log itself


@settings(deadline=None)
@given(
    pieces,
    st.integers(0, 60),
    st.lists(st.integers(1, 60), max_size=8),
    st.sets(st.sampled_from(TOPICS)),
)
def test_a_neighbour_lacks_the_same_messages_of_a_batch_as_one_by_one(
    said: list[Piece], top: int, gaps: list[int], wanted: set[bytes]
) -> None:
    window = LocalWindow(top, 0.0, None, Limits().max_gaps)
    window.gaps = merge([(n, n) for n in gaps if n <= top])
    found = []
    for log in logs(said):
        candidates, behind = log.lacked({KEYS[0]: window}, 0, len(log))
        assert behind == log.next
        lacked = [
            part for entry in in_order(candidates, KEYS) for part in lacked_parts(entry, window)
        ]
        some = [part for entry in lacked for part in wanted_parts(entry, wanted.__contains__)]
        found.append((told(lacked), told(some)))
    assert found[0] == found[1]
    lacked_told, some_told = found[0]
    assert all(window.missing(number) for _, number, *_ in lacked_told)
    assert some_told == [one for one in lacked_told if one[2] in wanted]


@settings(deadline=None)
@given(pieces, numbers, numbers, st.sampled_from([0.0, 101.5]))
def test_messages_are_found_in_batches_as_one_by_one(
    said: list[Piece], some: Ranges, others: Ranges, horizon: float
) -> None:
    mixed, plain = logs(said)
    asked = {KEYS[0]: some, KEYS[1]: others}
    expected = told(plain.those(asked, horizon))
    found = mixed.those(asked, horizon)
    # Batches are one entry where they are whole, so origins may follow each other otherwise.
    for key in KEYS:
        assert [one for one in told(found) if one[0] == key] == [
            one for one in expected if one[0] == key
        ]
    own = told(plain.those({KEYS[0]: some}, 0.0))
    assert told(mixed.own(KEYS[0], some, Looked())) == own
    assert told(parts_of(mixed.latest(), KEYS[0], some)) == told(
        parts_of(mixed.those({KEYS[0]: [(1, LAST)]}, 0.0)[::-1], KEYS[0], some)
    )
    assert mixed.first_of(KEYS[0]) == plain.first_of(KEYS[0])
    times = [100.0, 101.0, 101.5, 105.0, 1000.0]
    top = max([one[1] for one in told(plain.latest())], default=0)
    assert (
        numbers_at(mixed.latest(), KEYS[0], times, top)[0]
        == (numbers_at(plain.latest(), KEYS[0], times, top)[0])
    )


@given(pieces)
def test_ages_name_the_newest_message_of_a_batch(said: list[Piece]) -> None:
    mixed, _ = logs(said)
    entries = [entry for piece in mixed.pieces() for entry in piece]
    ages = encode_ages(entries, 200.0)
    for entry in entries:
        last = (entry.sequence + entry.count - 1).to_bytes(6, "big")
        assert last + round((200.0 - entry.at) * 1000).to_bytes(4, "big") in ages


def test_a_neighbour_that_wants_everything_gets_batches_undecoded() -> None:
    """Neither to be kept, nor to go, nor to be replayed is a batch looked into."""
    whole = batch_entry(KEYS[0], 1, [(b"a", b"x")] * 9).data(0.0)
    data = whole[:-30] + b"\xff" * 30  # no packets that could be read
    log = ReplayLog(Counters(), 10 * len(data), limits=Limits())
    for number in range(50):
        log.append(LogEntry(KEYS[0], 1 + 9 * number, 9, data, float(number)), None)
    assert len(log) == 10
    window = LocalWindow(9 * 44, 0.0, None, Limits().max_gaps)
    found, _ = log.lacked({KEYS[0]: window}, 0, 100)
    lacked = [part for entry in found for part in lacked_parts(entry, window)]
    assert [wanted_parts(entry, every_topic) for entry in lacked] == [[entry] for entry in lacked]
    assert len(lacked) == 6
    log.forget_old(1e9)
    assert len(log) == 0


def test_old_batches_go_some_messages_at_a_time_while_somebody_looks_at_each() -> None:
    log = ReplayLog(Counters(), limits=Limits(log_old=10))
    for number in range(50):
        log.append(batch_entry(KEYS[0], 1 + 4 * number, [(b"a", b"x")] * 4), None)
    log.forget_old(1e9)
    assert len(log) == 40
    gone: list[int] = []
    log.on_dropped.append(lambda entry, position, source: gone.append(entry.sequence))
    log.forget_old(1e9)
    assert gone == [41, 45, 49]
    assert len(log) == 37


# ---------------------------------------------------------------- replay and answers


def selective(world: World, *filters: bytes) -> Neighbour:
    """A neighbour of which it is known that nothing but these filters is wanted behind it."""
    neighbour = Neighbour(world, 101, routing="interest").child()
    neighbour.known(*((INTEREST + one, b"") for one in filters))
    neighbour.send(ping((DIRECTORY, bytes((ALL,)))))
    assert not world.node.cluster.strategy.wanted_behind(neighbour.link())(b"unwanted")
    return neighbour


def test_a_selective_neighbour_gets_the_messages_of_a_batch_that_it_wants() -> None:
    world = lone(routing="interest", link_timeout=1000.0)
    neighbour = selective(world, b"a", b"a/#")
    walks, link = world.node.cluster.walks, neighbour.link()
    topics = [b"a", b"a/b", b"b", b"b", b"a", b"b", b"a/b", b"a"]
    entry = batch_entry(KEYS[0], 1, [(topic, payload(n)) for n, topic in enumerate(topics, 1)])
    found = walks.wanted([entry], link, {KEYS[0]: OriginWindow(0, 0.0)})
    assert [(part.sequence, part.count) for part in found] == [(1, 2), (5, 1), (7, 2)]
    assert [one[1] for one in told(found)] == [1, 2, 5, 7, 8]
    found = walks.wanted([entry], link, {KEYS[0]: OriginWindow(1, 0.0)})
    assert [one[1] for one in told(found)] == [2, 5, 7, 8]


def test_batches_of_many_messages_are_replayed_in_steps() -> None:
    world = lone(routing="interest", link_timeout=1000.0)
    neighbour = selective(world, b"a")
    relay, count = world.node.cluster.forwarder, 1000
    relay.accept(KEYS[0], 1, 100 * count, world.now)
    for number in range(100):
        messages = [(TOPICS[n % 2], payload(n)) for n in range(count)]
        entry = batch_entry(KEYS[0], 1 + number * count, messages)
        relay.log.append(entry, None)
    taken: list[list[int]] = []
    ended: list[float] = []
    walk = world.node.cluster.walks.walk(
        neighbour.link(),
        {KEYS[0]: OriginWindow(0, 0.0)},
        lambda entries, _: taken.append([one[1] for one in told(entries)]),
        ended.append,
    )
    walk.begin(world.now)
    for _ in range(100):
        world.node.turns.work = 0
        world.advance(0.01)
    assert ended
    found = [number for part in taken for number in part]
    assert found == list(range(1, 100 * count, 2))
    most = world.node.limits.turn_work * 2 + 2 * count
    assert max(map(len, taken)) <= most // 2


def asked(world: World, neighbour: Neighbour, low: int, high: int) -> tuple[list[Told], int, bool]:
    """Have the neighbour ask for numbers of this broker: the messages that come, up to which number
    that is all, and whether there are more."""
    neighbour.send(routed(PULL, pull_body(world.node.cluster.forwarder.key, (low, high))))
    parts = neighbour.routed(ENTRIES, ENTRIES_PIECE)
    data = b"".join(part[33:] for part in parts)[7:]
    found = [
        (batch.key, number, m.topic, m.qos, m.payload)
        for batch, number, m in read_messages(data, world.now)
    ]
    return found, int.from_bytes(parts[0][21:27], "big"), bool(parts[0][20] & 2)


@pytest.mark.parametrize("size", [10, CHUNK // 100])
def test_a_question_is_answered_with_the_wanted_messages_of_batches(size: int) -> None:
    """In as many answers as that takes."""
    world = lone(routing="interest", link_timeout=1000.0)
    neighbour = Neighbour(world, 101).child().known((INTEREST + b"a", b""))
    relay, count = world.node.cluster.forwarder, 600
    for number in range(1, 5 * count, count):
        messages = [(TOPICS[n % 2], bytes(size)) for n in range(number, number + count)]
        relay.log.append(batch_entry(relay.key, number, messages, at=world.now), None)
        relay.own.top = number + count - 1
    got: list[int] = []
    begin = 5
    while begin <= 2_500:
        found, top, _ = asked(world, neighbour, begin, 2_500)
        assert all(one[2] == b"a" and begin <= one[1] <= top for one in found)
        got += [one[1] for one in found]
        begin = top + 1
        world.advance(0.1)
    assert got == [n for n in range(5, 2_501) if n % 2 == 0]


# ---------------------------------------------------------------- held back, or on the move


def test_held_messages_of_a_batch_are_delivered_by_their_own_topics() -> None:
    world = lone(routing="interest", link_timeout=1000.0)
    key = origin_key(FAR, 1_000)
    window = world.node.cluster.forwarder.vector[key] = LocalWindow(
        0, world.now, world.node.counters, Limits().max_gaps
    )
    recovery = world.node.cluster.gap_recovery
    recovery.met(key, window)
    feed: Any = window.feed
    clients = [world.connect(topic, properties={Property.RECEIVE_MAXIMUM: 9}) for topic in "ab"]
    for client, topic in zip(clients, "ab", strict=True):
        client.subscribe(topic, qos=1)
    messages = [(b"abc"[n % 3 : n % 3 + 1], payload(n)) for n in range(4, 31)]
    assert feed.take(some_link(), 4, 27) == 0
    batch = batch_entry(key, 4, messages)
    recovery.hold(feed, batch)
    assert (feed.held_count, feed.held_bytes) == (27, batch.size + HELD_MEMORY)
    feed.advance(1, 9)  # local subscribers have had these meanwhile
    feed.settled = 25
    feed.step(Input.ANSWERED, some_link())
    recovery.release.begin(feed, world.now)
    got: list[list[int]] = [[], []]
    for _ in range(10):
        world.advance(0.1)
        for client, found in zip(clients, got, strict=True):
            packets = [packet for packet in client.take() if isinstance(packet, Publish)]
            client.send(*(Puback(packet.packet_id or 0) for packet in packets))
            found += [int(packet.payload) for packet in packets]
    assert got == [[n for n in range(10, 26) if n % 3 == rest] for rest in (0, 1)]
    assert (feed.done, feed.held_count) == (25, 5)
    assert recovery.release.held_bytes == feed.held_bytes == 0  # it was counted as a whole
    assert feed.here() == [(26, 30)]


def test_what_a_session_had_is_found_in_batches() -> None:
    """What it got before its subscriptions began."""
    world = lone(routing="interest")
    node, now = world.node, world.now
    world.connect("c", 5, clean=False, properties={17: 3600}).subscribe("a", qos=1)
    session = world.session("c")
    topics = [b"a", b"b", b"a", b"a/b", b"a"]
    messages = [(topic, b"x" if n < 5 else b"y") for n, topic in enumerate(topics, 1)]
    node.cluster.forwarder.log.append(batch_entry(KEYS[0], 1, messages, at=now), None)
    window = node.cluster.forwarder.vector[KEYS[0]] = LocalWindow(
        5, now, node.counters, Limits().max_gaps
    )
    history = node.cluster.session_history
    every = {KEYS[0]: [(1, 5)]}
    found = [(n, m.topic) for (_, n), m in history.logged(session, every)]
    assert found == [(1, b"a"), (3, b"a"), (5, b"a")]
    start: Any = session.subscriptions["a"].start
    start.tops, start.early = {KEYS[0]: 9}, {KEYS[0]: [(2, 4)]}
    history.note(session)
    assert node.cluster.evaluated.names(session) == {(KEYS[0], 3)}
    assert window.top == 5


def test_an_entry_is_decoded_once_for_sessions_that_come_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A void one is decoded again."""
    world = lone(routing="interest")
    for name in ("c", "d"):
        world.connect(name, 5, clean=False, properties={17: 3600}).subscribe(name, qos=1)
    node, decoded = world.node, list[LogEntry]()
    messages = LogEntry.messages

    def counted(self: LogEntry) -> Iterator[tuple[int, Message]]:
        decoded.append(self)
        return messages(self)

    monkeypatch.setattr(LogEntry, "messages", counted)
    entry = batch_entry(KEYS[0], 1, [(b"d", b"x"), (b"c", b"x"), (b"e", b"x")], at=world.now)
    node.cluster.forwarder.log.append(entry, None)
    numbers = {KEYS[0]: [(1, 3)]}

    def found(name: str) -> list[int]:
        logged = node.cluster.session_history.logged(world.session(name), numbers)
        return [number for (_, number), _ in logged]

    assert (found("c"), found("d")) == ([2], [1])
    assert decoded == [entry]
    entry.void()
    assert found("c") == []
    world.advance(1.1)
    assert found("d") == []
    assert decoded == [entry] * 3


def test_a_message_for_another_member_of_a_group_is_no_ordinary_subscriptions() -> None:
    """A session has it by its first number: when it moves it is not offered it again (seed 5046:
    twice at QoS 2), and when it is merged this is not taken for another message (seed 6126)."""
    world = lone(routing="interest")
    node, now = world.node, world.now
    world.connect("c", 5, clean=False, properties={17: 3600}).subscribe("+", qos=1)
    log, history = node.cluster.forwarder.log, node.cluster.session_history
    node.cluster.forwarder.vector[KEYS[0]] = LocalWindow(2, now, node.counters, Limits().max_gaps)
    message = Message(b"a", b"x", 1, False, b"", None, None)
    for number, again in enumerate((False, True), 1):
        choice = ReceiverAssignment([(bytes(WHO), bytes(ENTRY - WHO))], passed=again)
        data = encode_message(message, KEYS[0], number, now, choice)
        log.append(LogEntry(KEYS[0], number, 1, data, now), None)
    found = history.logged(world.session("c"), {KEYS[0]: [(1, 2)]})
    assert [number for (_, number), _ in found] == [1]


# ---------------------------------------------------------------- groups, and brokers that are away


def test_a_group_gets_those_messages_of_a_batch_that_it_wants() -> None:
    world = lone()
    relay, catchup = world.node.cluster.forwarder, world.node.cluster.catchup
    given: list[tuple[bytes, bytes]] = []

    class Giver:
        def give_late(self, group_id: bytes, message: Message) -> bool:
            given.append((group_id, message.topic))
            return len(given) < 3

        def is_closed(self, ref: Ref) -> bool:
            return False

    catchup._giver = Giver()  # type: ignore[assignment]
    group = b"g" * 8
    job = Job(bid(101), {group: 0.0})
    job.trie = SubscriptionTrie()
    job.trie.insert("a/#", "g", group)
    topics = [b"a", b"b", b"a/b", b"b", b"a"]
    entry = batch_entry(relay.key, 1, [(topic, b"x") for topic in topics], at=world.now)
    catchup._covered[group] = {relay.key: [(5, LAST)]}
    job.entries = iter([entry, entry])
    assert job.next() is entry
    assert job.next() is None
    assert sum(catchup._give(job, entry, *one) for one in entry.messages()) == 2
    assert given == [(group, b"a"), (group, b"a/b")]
    assert job.first == {(group, relay.key): 1}
    # Its members have gone: it has what it was given, and is asked again.
    later = batch_entry(relay.key, 6, [(b"a", b"x")] * 3, at=world.now)
    catchup._covered[group] = {relay.key: [(5, 6)]}
    job.entries = iter([later])
    assert job.next() is later
    assert sum(catchup._give(job, later, *one) for one in later.messages()) == 0
    assert not job.group_ids
    assert catchup._covered[group] == {relay.key: [(1, 6)]}
    assert group in catchup._asked[bid(101)].group_ids


def test_messages_of_a_batch_are_lost_for_those_who_want_them() -> None:
    """Counted to the message, for each broker that is away."""
    world = lone(log_tail=0)
    absent = world.node.absent_members
    wishes: dict[bytes, tuple[bytes, ...]] = {
        bid(1): (b"#",),
        bid(2): (b"a", b"a/b"),
        bid(3): (b"c",),
    }
    for broker, filters in wishes.items():
        absent.absent[broker] = AbsentMember(filters, 0, world.now)
    topics = [b"a", b"a/b", b"b", b"b", b"a"]
    key = world.node.cluster.forwarder.key
    absent._dropped(batch_entry(key, 1, [(topic, b"x") for topic in topics]), 0, None)
    assert [absent.absent[broker].lost for broker in wishes] == [5, 3, 0]
    assert absent.absent[bid(1)].dropped == {key: [(1, 5, 5)]}
    assert absent.absent[bid(2)].dropped == {key: [(1, 2, 2), (5, 5, 1)]}


def test_what_a_link_in_repair_loses_of_a_batch_is_what_it_wants() -> None:
    world = lone(routing="interest", link_timeout=1000.0)
    neighbour = selective(world, b"a")
    link, acks = neighbour.link(), world.node.cluster.acks
    acks.keep(link, 0)
    world.node.cluster.forwarder.leave(link)
    link.seen = {KEYS[0]: OriginWindow(1, 0.0)}
    topics = [b"a", b"b", b"a", b"a", b"b"]
    acks._lost(batch_entry(KEYS[0], 1, [(topic, b"x") for topic in topics]), 0)
    assert link.log_lost == 2
