"""What a leg knows of retained messages: the table of a merge, the base and its records, what is
not confirmed, and the sync session."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.state_table import ImpossibleInputError
from mqttree.broker.leg.effects import Close, DialForeign, ToForeign
from mqttree.broker.leg.retained_base import RetainedBase, RetainedBases, Standing, own
from mqttree.broker.leg.retained_digest import digest_of, key_of, read_section
from mqttree.broker.leg.retained_merge import STEPS, Relation, Step, relate
from mqttree.broker.leg.retained_packets import publishes, without_retain, without_stored
from mqttree.broker.leg.retained_rules import Retain, RetainedRules
from mqttree.broker.leg.retained_watch import RetainedWatch
from mqttree.broker.leg.rules import Direction, Rules, parse_rule
from mqttree.broker.leg.sync_session import PATIENCE, QUIET, SyncSession
from mqttree.broker.leg.sync_states import (
    SYNC_TRANSITIONS,
    SyncAction,
    SyncInput,
    SyncState,
    sync_transition,
)
from mqttree.broker.persistence.image import Image
from mqttree.broker.persistence.leg_base_record import CLEARED, ENDED, LegBaseRecord
from mqttree.broker.persistence.records import (
    encode_snapshot_end,
)
from mqttree.broker.wire import (
    Connack,
    Disconnect,
    Pingresp,
    Properties,
    Property,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Suback,
    encode_packet,
)
from mqttree.broker.wire.properties import encode_properties
from tests.kit.journal_harness import Durable, Files
from tests.kit.node_harness import World
from tests.kit.state_tables import check_table

# ---------------------------------------------------------------- the table of a merge


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("base", [None, 1, 2, 3])
@pytest.mark.parametrize("theirs", [None, 1, 2])
@pytest.mark.parametrize("ours", [None, 1, 2])
def test_what_a_merge_does_about_a_topic(
    ours: int | None, theirs: int | None, base: int | None, direction: Direction
) -> None:
    step = STEPS[relate(ours, theirs, base), direction]
    inwards, outwards = direction is not Direction.OUT, direction is not Direction.IN
    if ours == theirs:
        assert step is (Step.FORGET if ours is None else Step.KEEP)
    elif theirs == base:  # only ours has changed
        assert step is (
            Step.NOTHING if not outwards else Step.DELETE_THERE if ours is None else Step.THERE
        )
    elif ours == base:  # only theirs has changed
        assert step is (
            Step.NOTHING if not inwards else Step.DELETE_HERE if theirs is None else Step.HERE
        )
    elif ours is not None and theirs is not None:
        both = Step.CONFLICT if inwards and outwards else None
        assert step is (both or (Step.HERE if inwards else Step.THERE))
    elif ours is None:  # a value wins over a deletion
        assert step is (Step.HERE if inwards else Step.NOTHING)
    else:
        assert step is (Step.THERE if outwards else Step.NOTHING)


def test_the_table_of_a_merge_is_whole() -> None:
    assert STEPS.keys() == {(r, d) for r in Relation for d in Direction}
    assert set(STEPS.values()) == set(Step)


# ---------------------------------------------------------------- digests and names


def test_a_digest_has_what_receivers_get_and_no_more() -> None:
    plain = digest_of(b"x", None)
    assert plain == digest_of(b"x", {Property.MESSAGE_EXPIRY_INTERVAL: 5})
    assert plain == digest_of(b"x", {Property.RESPONSE_TOPIC: "r"})
    assert plain == digest_of(b"x", {Property.USER_PROPERTY: [("mqttree", "1")]})
    typed: Properties = {Property.CONTENT_TYPE: "t", Property.USER_PROPERTY: [("a", "b")]}
    turned: Properties = {Property.USER_PROPERTY: [("a", "b")], Property.CONTENT_TYPE: "t"}
    assert digest_of(b"x", typed) == digest_of(b"x", turned) != plain
    assert digest_of(b"", typed) == 0
    assert read_section(encode_properties(typed)[1:]) == typed


@pytest.mark.parametrize(
    ("topic", "is_own"),
    [
        ("$SYS/x", True),
        ("mqttree/leg/a/state", True),
        ("mqttree/leg/a/other", False),
        ("mqttree/probe/1", True),
        ("mqttree/x", False),
        ("a", False),
    ],
)
def test_topics_that_are_a_brokers_own(topic: str, is_own: bool) -> None:
    assert own(topic.encode()) is is_own


def rules(*lines: str, retain: Retain = Retain.BOTH) -> RetainedRules:
    """Of a leg with these lines."""
    return RetainedRules(Rules([parse_rule(line) for line in lines]), retain)


def test_names_of_both_sides_and_the_ways_between() -> None:
    found = rules("a/# both 2 l/ r/", "b/# in", "b/# out 1", "$share/g/c out", "d in")
    assert found.remote == ["r/a/#", "b/#", "d"]
    assert found.local == ["l/a/#", "b/#", "d"]
    assert found.remote_of("l/a/1") == "r/a/1"
    assert found.local_of("r/a/1") == "l/a/1"
    assert found.remote_of("c") is None
    assert found.local_of("x") is None
    way = found.way("l/a/1", "r/a/1")
    assert (way.inwards, way.outwards, way.qos) == (True, True, 2)
    way = found.way("b/1", "b/1")
    assert (way.inwards, way.outwards, way.qos) == (True, True, 0)
    way = found.way("d", "d")
    assert (way.inwards, way.outwards) == (True, False)
    assert rules("# both", retain=Retain.OUT).way("x", "x").inwards is False
    assert rules("# in", retain=Retain.OUT).remote == []
    assert rules("# both").mapping == 0
    assert found.mapping != rules("a/# both 2 l/ s/").mapping != 0


def test_of_two_topics_with_one_name_here_the_first_rules_counts() -> None:
    found = rules("# in 0 l/ r/", "# in 0 l/ s/")
    assert found.local_of("r/a") == "l/a"
    assert found.local_of("s/a") is None


# ---------------------------------------------------------------- packets


@pytest.mark.parametrize("version", [4, 5])
def test_retained_messages_are_found_among_packets(version: int) -> None:
    packets = b"".join(
        encode_packet(packet, version)
        for packet in (
            Publish("a", b"1"),
            Puback(7),
            Publish("b", b"2", 1, True, packet_id=3),
            Publish("c", b"", 0, True),
        )
    )
    found = [(p.retain, p.packet_id, p.topic, p.payload) for p in publishes(packets, version)]
    assert found == [(False, 0, b"a", b"1"), (True, 3, b"b", b"2"), (True, 0, b"c", b"")]
    assert not any(p.retain for p in publishes(without_retain(packets), version))
    left = [(p.topic, p.packet_id) for p in publishes(without_stored(packets), version)]
    assert left == [(b"a", 0), (b"$leg/dropped", 3), (b"$leg/dropped", 0)]


# ---------------------------------------------------------------- what is not confirmed


def base_and_watch() -> tuple[RetainedBase, RetainedWatch]:
    """Of one leg."""
    base = RetainedBase("leg:n", 100)
    return base, RetainedWatch(base)


A = key_of(b"a")


@pytest.mark.parametrize(
    ("answers", "confirmed"),
    [
        ([Puback(1)], True),
        ([Puback(1, 0x10)], True),
        ([Puback(1, 0x87)], False),
        ([Puback(2)], False),
        ([Pubrec(1)], False),
        ([Pubrec(1, 0x87)], False),
        ([Pubrec(1), Pubcomp(1)], True),
    ],
)
def test_a_numbered_message_is_in_the_base_once_it_is_acknowledged(
    answers: list[Puback | Pubrec | Pubcomp], confirmed: bool
) -> None:
    base, watch = base_and_watch()
    watch.sent(b"a", 5, 1, 1)
    assert base.digest(A) is None
    watch.acknowledged(b"".join(encode_packet(answer, 5) for answer in answers))
    assert base.digest(A) == (5 if confirmed else None)


def test_a_message_at_qos_0_is_in_the_base_behind_the_answer_to_a_ping() -> None:
    base, watch = base_and_watch()
    watch.ping_sent()
    watch.sent(b"a", 5, 0, 0)
    assert watch.wants_ping
    watch.ping_answered()  # to the one ahead of it
    assert base.digest(A) is None
    watch.ping_sent()
    assert not watch.wants_ping
    watch.ping_answered()
    assert base.digest(A) == 5
    assert list(watch.unproven) == [b"a"]


def test_a_repeated_message_says_nothing_of_what_is_there() -> None:
    base, watch = base_and_watch()
    watch.sent(b"a", 5, 1, 1, repeated=True)
    assert watch.waits(A)
    watch.acknowledged(encode_packet(Puback(1), 5))
    assert base.digest(A) is None
    assert watch.maybe == {A: {5}}


def test_messages_that_have_crossed_have_no_base() -> None:
    base, watch = base_and_watch()
    base.exchanged(A, 4)
    watch.sent(b"a", 5, 1, 1)
    base.heard(A, 6)
    watch.crossed(A)
    assert base.digest(A) is None
    watch.acknowledged(encode_packet(Puback(1), 5))
    assert base.digest(A) is None
    assert watch.disordered


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("ahead", [False, True])
def test_of_two_messages_of_a_topic_the_newer_one_is_there(first: int, ahead: bool) -> None:
    """Unless the older one has QoS 2 and is not complete: it may take effect later."""
    base, watch = base_and_watch()
    watch.sent(b"a", 5, 1 if first else 0, first)
    watch.sent(b"a", 6, 2, 1)
    watch.ping_sent()
    answers = [encode_packet(Puback(1) if first == 1 else Pubcomp(1), 5) if first else b""]
    answers.insert(0 if ahead else 1, encode_packet(Puback(2), 5))
    for answer in answers:
        watch.acknowledged(answer)
    watch.ping_answered()
    assert base.digest(A) == (None if first == 2 else 6)
    assert watch.disordered is (first == 2)
    assert not watch.waits(A)


def test_what_was_on_its_way_when_the_connection_ended_may_be_there() -> None:
    base, watch = base_and_watch()
    watch.sent(b"a", 5, 1, 1)
    watch.sent(b"a", 0, 0, 0)
    watch.clear()
    assert not watch.waits(A)
    assert watch.maybe == {A: {0, 5}}
    assert base.digest(A) is None


# ---------------------------------------------------------------- the base


def test_a_base_has_a_bound() -> None:
    base = RetainedBase("leg:n", 2)
    for key in (1, 2, 3):
        base.exchanged(key, 7)
    assert (len(base.entries), base.over) == (2, 1)
    base.exchanged(1, 8)
    assert base.digest(1) == 8


def test_what_is_known_of_a_topic_stays_when_its_value_changes() -> None:
    base = RetainedBase("leg:n", 10)
    base.exchanged(1, 7)
    assert base.standing(1) is Standing.NEW
    base.heard(1, 8)
    assert base.standing(1) is Standing.READ
    base.exchanged(1, 9, Standing.MUTE)
    base.heard(1, 8)
    assert base.standing(1) is Standing.READ_ONLY
    base.heard(1, 0)
    assert 1 not in base.entries


def test_a_base_of_other_names_is_emptied() -> None:
    bases = RetainedBases(10)
    bases.of("leg:n", 1).exchanged(5, 7)
    assert bases.of("leg:n", 1).entries
    assert not bases.of("leg:n", 2).entries
    bases.of("leg:n", 2).exchanged(5, 7)
    bases.clear("leg:n")
    assert not bases.of("leg:n", 2).entries
    bases.forget("leg:n")
    assert not bases


def test_only_what_a_leg_publishes_and_the_store_keeps_is_in_its_base() -> None:
    world = World(max_retained_bytes=10)
    base = world.node.leg_bases.of("leg:n", 0)
    for name, topic, payload in (("leg:n", "a", b"1"), ("c", "b", b"1"), ("leg:n", "d", b"x" * 20)):
        world.connect(name).send(Publish(topic, payload, retain=True))
    assert list(base.entries) == [A]
    world.connect("leg:n").send(Publish("a", b"", retain=True))
    assert not base.entries


ENTRIES = st.lists(st.tuples(st.integers(1, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=5)


@given(st.integers(0, 7), st.integers(0, 2**64 - 1), st.binary(max_size=20), ENTRIES)
def test_an_encoded_base_record_decodes_to_the_same(
    flags: int, mapping: int, session: bytes, entries: list[tuple[int, int]]
) -> None:
    record = LegBaseRecord(flags, mapping, session, tuple(entries))
    data = record.encode()
    assert data[0] == 22
    assert LegBaseRecord.decode(data[5:]) == record


def image_of(*segments: list[bytes]) -> dict[bytes, dict[int, int]]:
    """What records add up to."""
    image = Image()
    for records in segments:
        image.begin()
        for record in records:
            image.take(1, record)
    assert not image.skipped
    again = Image()
    again.begin()
    for piece in image.records(50):
        again.take(1, b"".join(piece))
    found = {name: base.entries() for name, base in image.leg_bases.items()}
    assert {name: base.entries() for name, base in again.leg_bases.items()} == found
    return found


def record(*entries: tuple[int, int], flags: int = 0, session: bytes = b"leg:n") -> bytes:
    """One LEG_BASE."""
    return LegBaseRecord(flags, 9, session, entries).encode()


END = encode_snapshot_end(2, 1)


def test_base_records_add_up() -> None:
    assert image_of([record((1, 8), (2, 8)), record((1, 0), (3, 8))]) == {b"leg:n": {2: 8, 3: 8}}
    assert image_of([record((1, 8)), record((2, 8), flags=CLEARED)]) == {b"leg:n": {2: 8}}
    assert image_of([record((1, 8)), record(flags=ENDED)]) == {}


def test_a_snapshot_replaces_older_entries_of_a_base_when_it_is_complete() -> None:
    older = [record((1, 8), (2, 8)), record((1, 8), session=b"leg:gone")]
    newer = record((2, 16))
    assert image_of(older, [newer]) == {b"leg:n": {1: 8, 2: 16}, b"leg:gone": {1: 8}}
    assert image_of(older, [newer, END]) == {b"leg:n": {2: 16}}


def test_a_base_comes_back_after_a_restart() -> None:
    world = Durable(files=Files())
    base = world.node.leg_bases.of("leg:n", 3)
    world.connect("leg:n").send(Publish("a", b"1", 1, True, packet_id=1))
    base.doubt(True)
    base.exchanged(77, 5)
    base.forget(77)
    world.node.leg_bases.of("leg:gone", 0).exchanged(5, 5)
    world.node.leg_bases.forget("leg:gone")
    world.settle()
    again = world.again()
    (found,) = again.node.leg_bases
    assert (found.session, found.mapping, found.doubted) == ("leg:n", 3, True)
    assert found.entries == base.entries == {A: digest_of(b"1", None) << 3 | Standing.READ}


def test_a_base_that_was_emptied_is_empty_after_a_restart() -> None:
    world = Durable(files=Files())
    bases = world.node.leg_bases
    bases.of("leg:n", 3).exchanged(5, 5)
    world.settle()
    bases.clear("leg:n")
    world.settle()
    (found,) = world.again().node.leg_bases
    assert (found.mapping, found.entries) == (3, {})


def test_a_base_is_recorded_in_the_frame_of_its_message() -> None:
    """Cut anywhere, the journal has both or neither."""
    world = Durable(files=Files())
    world.node.leg_bases.of("leg:n", 0)
    client = world.connect("leg:n")
    client.send(Publish("a", b"1", 1, True, packet_id=1))
    for cut in range(len(world.files.segments[max(world.files.segments)]) + 1):
        image = world.files.image(cut)
        assert bool(image.leg_bases) == bool(image.retained)


def test_a_base_is_in_a_snapshot() -> None:
    world = Durable(files=Files())
    base = world.node.leg_bases.of("leg:n", 3)
    for key in range(1, 5001):
        base.exchanged(key, 5)
    world.settle()
    world.begin_snapshot()
    base.exchanged(9999, 6)
    base.forget(17)
    world.advance(5)
    assert len(world.files.segments) == 1
    (found,) = world.again().node.leg_bases
    assert found.entries == base.entries


# ---------------------------------------------------------------- the sync session


def test_the_table_of_sync_sessions_is_whole() -> None:
    check_table(SYNC_TRANSITIONS, SyncAction, [SyncState.IDLE])


@pytest.mark.parametrize("state", list(SyncState))
@pytest.mark.parametrize("given_", list(SyncInput))
def test_every_pair_of_a_sync_session_is_in_the_table_or_impossible(
    state: SyncState, given_: SyncInput
) -> None:
    if (state, given_) in SYNC_TRANSITIONS:
        assert sync_transition(state, given_) == SYNC_TRANSITIONS[state, given_]
    else:
        with pytest.raises(ImpossibleInputError):
            sync_transition(state, given_)


def ready(version: int = 5) -> SyncSession:
    """A session that has no question yet."""
    session = SyncSession("mqttree-n-sync", "u", 10)
    session.want(version, 0.0)
    session.dialled(0.1)
    session.received(encode_packet(Connack(False, 0), version), 0.2)
    assert session.take(10, 0.2) == []
    assert session.state is SyncState.READY
    return session


@pytest.mark.parametrize("version", [4, 5])
def test_a_question_in_packets(version: int) -> None:
    session = ready(version)
    session.ask(["a", "b"], 1.0)
    connect = b"\x04MQTT\x04\x82\x00\x0a" if version == 4 else b"\x04MQTT\x05\x82\x00\x0a\x00"
    five = b"\x00" if version == 5 else b""
    subscribe = b"\x00\x01" + five + b"\x00\x01a\x00\x00\x01b\x00"
    sent = session.take_effects()
    assert sent[0] == DialForeign(sync=True)
    assert isinstance(sent[1], ToForeign)
    assert connect in sent[1].data
    packets = (b"\x82%c%b" % (len(subscribe), subscribe), b"\xc0\x00")
    assert sent[2:] == [ToForeign(packet, sync=True) for packet in packets]
    stored = encode_packet(Publish("a", b"1", retain=True), version)
    live = encode_packet(Publish("a", b"2"), version)
    session.received(stored + live + encode_packet(Suback(1, [0, 0x80]), version), 1.1)
    assert [p.payload for p in session.take(10, 1.1)] == [b"1"]
    session.tick(1.1 + 2 * QUIET)
    assert session.state is SyncState.ASKING
    session.received(encode_packet(Pingresp(), version), 5.2)
    session.take(10, 5.2)
    session.tick(5.2 + QUIET / 2)
    assert session.state is SyncState.ASKING
    session.received(stored, 5.2 + QUIET / 2)
    session.take(10, 5.2 + QUIET / 2)
    assert session.due == 5.2 + 1.5 * QUIET or session.due == pytest.approx(6.0)
    session.tick(5.3 + 1.5 * QUIET)
    assert session.state is SyncState.READY
    assert session.refused == ["b"]
    session.end(9.0)
    assert session.take_effects()[-1] == Close(sync=True)
    assert session.state is SyncState.IDLE


def test_packets_cut_anywhere_are_taken_one_by_one() -> None:
    session = ready()
    session.ask(["#"], 1.0)
    data = b"".join(
        encode_packet(Publish(f"t/{n}", b"x" * n, retain=True), 5) for n in range(1, 20)
    )
    found = []
    for at in range(0, len(data), 7):
        session.received(data[at : at + 7], 1.1)
        while session.waits:
            found += session.take(1, 1.1)
    assert [p.topic for p in found] == [f"t/{n}" for n in range(1, 20)]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (encode_packet(Connack(False, 0x87), 5), "it refuses (code 0x87)"),
        (encode_packet(Pingresp(), 5), "PINGRESP instead of CONNACK"),
        (b"\xff\xff\xff\xff\xff\xff", "Remaining Length"),
    ],
)
def test_a_sync_session_that_cannot_begin_says_why(data: bytes, why: str) -> None:
    session = SyncSession("mqttree-n-sync", None, 10)
    session.want(5, 0.0)
    session.dialled(0.1)
    session.received(data, 0.2)
    session.take(10, 0.2)
    assert session.state is SyncState.IDLE
    assert why.lower() in session.failure.lower()
    assert session.take_effects()[-1] == Close(sync=True)


def test_a_sync_session_is_given_up_that_is_not_answered() -> None:
    session = SyncSession("mqttree-n-sync", None, 10)
    session.want(5, 0.0)
    assert session.due == PATIENCE
    session.tick(PATIENCE)
    assert session.state is SyncState.IDLE
    session.dialled(PATIENCE + 1)  # too late
    assert session.take_effects()[-1] == Close(sync=True)
    session = ready()
    session.ask(["#"], 1.0)
    session.tick(1.0 + 5)
    assert session.state is SyncState.ASKING
    session.tick(1.0 + 15)
    assert (session.state, session.failure) == (SyncState.IDLE, "it is silent")
    session = ready()
    session.received(encode_packet(Disconnect(0x8E), 5), 1.0)
    session.take(10, 1.0)
    assert session.failure == "it disconnects (reason 0x8e)"
