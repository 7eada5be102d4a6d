"""What a leg knows of retained messages: the rule of a merge, what was there earlier, what is not
confirmed, and the sync session."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mqttree.broker.leg.effects import Close, DialForeign, ToForeign
from mqttree.broker.leg.own_topics import own
from mqttree.broker.leg.packets import messages, messages_with_ids
from mqttree.broker.leg.retained_history import MAX_GATEWAYS, RetainedHistory, Write
from mqttree.broker.leg.retained_merge import Found, Step, step_of
from mqttree.broker.leg.retained_packets import Seen, retained, without_retain, without_stored
from mqttree.broker.leg.retained_rules import Retain, RetainedRules
from mqttree.broker.leg.retained_values import equal, read_section
from mqttree.broker.leg.retained_watch import RetainedWatch
from mqttree.broker.leg.rules import Rules, parse_rule
from mqttree.broker.leg.sync_session import PATIENCE, QUIET, READ_AHEAD, SyncSession
from mqttree.broker.leg.sync_states import (
    SyncState,
)
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import (
    Connack,
    Disconnect,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Suback,
)
from mqttree.broker.wire.properties import Properties, Property, encode_properties

# ---------------------------------------------------------------- the rule of a merge

YES_OR_NO = st.booleans()


@given(*[YES_OR_NO] * 7)
def test_what_a_merge_does_about_a_topic(
    ours: bool,
    theirs: bool,
    newer: bool,
    seen: bool,
    fresh: bool,
    inwards: bool,
    outwards: bool,
) -> None:
    assume((ours or theirs) and (inwards or outwards))
    step = step_of(Found(ours, theirs, newer, seen, fresh, inwards, outwards))
    if inwards and outwards and newer:
        assert step is (Step.THERE if ours else Step.DELETE_THERE)
    elif inwards and outwards and theirs:
        assert step is Step.HERE
    elif inwards and outwards:
        assert step is (Step.DELETE_HERE if seen else Step.THERE if fresh else Step.NOTHING)
    elif inwards:
        gone = seen and not newer
        assert step is (Step.HERE if theirs else Step.DELETE_HERE if gone else Step.NOTHING)
    elif ours:
        assert step is (Step.THERE if theirs or newer or fresh else Step.NOTHING)
    else:
        assert step is (Step.DELETE_THERE if newer else Step.NOTHING)


# ---------------------------------------------------------------- what a leg knows of earlier


def test_what_was_written_after_both_had_the_same_is_newer() -> None:
    history = RetainedHistory(b"us", 0)
    assert not history.newer_here("a", Write(5, b"us")), "they never had the same"
    history.advance(5)
    history.advance(3)
    assert history.common == 5
    newer = [history.newer_here("a", Write(stamp, b"us")) for stamp in (0, 5, 6)]
    assert newer == [False, False, True]
    history.came_in("a", 6)
    assert not history.newer_here("a", Write(6, b"us"))
    assert history.newer_here("a", Write(7, b"us"))
    assert history.has_seen("a")
    history.came_in("b", 8)
    history.advance(7)
    assert list(history._came) == ["b"]
    history.forget_seen()
    assert not history.has_seen("a")


def test_what_is_known_of_earlier_has_a_bound() -> None:
    history = RetainedHistory(b"us", 0, 2, 2)
    history.advance(1)
    for stamp, topic in enumerate("abc", 2):
        history.came_in(topic, stamp)
    newer = [history.newer_here(t, Write(stamp, b"us")) for stamp, t in enumerate("abc", 2)]
    assert newer == [True, False, False]
    assert [history.has_seen(topic) for topic in "abc"] == [True, True, False]
    history.take_over([bytes((number,)) for number in range(100)], 9)
    assert len(history.gateways) <= MAX_GATEWAYS


def test_what_an_earlier_gateway_wrote_may_have_come_from_there() -> None:
    history = RetainedHistory(b"us", began=7)
    history.advance(5)
    history.take_over([b"us", b"one"], until=9)
    history.take_over([b"us", b"three"], until=6)
    assert history.gateways == {b"us", b"one", b"three"}
    newer = {
        broker_id: [
            stamp for stamp in range(10) if history.newer_here("a", Write(stamp, broker_id))
        ]
        for broker_id in (b"us", b"one", b"two", b"three")
    }
    assert newer == {b"us": [7, 8, 9], b"one": [], b"two": [6, 7, 8, 9], b"three": [7, 8, 9]}
    history.advance(9)
    assert history.gateways == {b"us"}


# ---------------------------------------------------------------- digests and names


def test_a_value_is_what_receivers_get_and_no_more() -> None:
    def value(properties: Properties | None) -> Publish:
        return Publish("a", b"x", properties=properties)

    plain = value(None)
    for properties in (
        {Property.MESSAGE_EXPIRY_INTERVAL: 5},
        {Property.RESPONSE_TOPIC: "r"},
        {Property.USER_PROPERTY: [("mqttree", "1")]},
    ):
        assert equal(plain, value(properties), 5)
    typed: Properties = {Property.CONTENT_TYPE: "t", Property.USER_PROPERTY: [("a", "b")]}
    turned: Properties = {Property.USER_PROPERTY: [("a", "b")], Property.CONTENT_TYPE: "t"}
    assert equal(value(typed), value(turned), 5)
    assert not equal(plain, value(typed), 5)
    assert equal(plain, value(typed), 4)
    assert not equal(plain, Publish("a", b"y"), 4)
    assert read_section(encode_properties(typed)[1:]) == typed


@pytest.mark.parametrize(
    ("topic", "is_own"),
    [
        ("$SYS/x", True),
        ("mqttree/leg/a/state", True),
        ("mqttree/leg/a/common", True),
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
    assert list(retained(packets)) == [Seen(b"b", 3, 1, False), Seen(b"c", 0, 0, False)]
    assert not list(retained(without_retain(packets)))
    stored = without_stored(packets)
    assert not list(retained(stored))
    topics = [topic for topic, _, _ in messages(stored, version)]
    assert topics == [b"a", b"$mqttree/leg/dropped", b"$mqttree/leg/dropped"]
    assert [number for number, _ in messages_with_ids(stored)] == [b"\x00\x03"]


# ---------------------------------------------------------------- what is not confirmed


@pytest.mark.parametrize(
    ("answers", "confirmed"),
    [
        ([Puback(1)], True),
        ([Puback(1, 0x10)], True),
        ([Puback(1, 0x87)], True),
        ([Puback(2)], False),
        ([Pubrec(1)], False),
        ([Pubrec(1, 0x87)], True),
        ([Pubrec(1), Pubcomp(1)], True),
    ],
)
def test_a_message_is_waited_for_until_it_is_answered(
    answers: list[Puback | Pubrec | Pubcomp], confirmed: bool
) -> None:
    watch = RetainedWatch()
    watch.sent("a", 1, 1, repeated=True)
    assert watch.waits("a")
    assert watch.repeating
    watch.on_acknowledged(b"".join(encode_packet(answer, 5) for answer in answers))
    assert watch.waits("a") is watch.repeating is bool(watch) is not confirmed


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("second", [0, 1, 2])
def test_a_message_at_qos_2_may_take_effect_behind_a_newer_one(first: int, second: int) -> None:
    watch = RetainedWatch()
    assert not watch.sent("a", 1 if first else 0, first, repeated=False)
    assert not watch.sent("b", 2 if second else 0, second, repeated=False)
    disordered = watch.sent("a", 3 if second else 0, second, repeated=False)
    assert disordered is (first == 2 and second < 2)
    watch.clear()
    assert not watch
    assert not watch.waits("a")


# ---------------------------------------------------------------- the sync session


def ready(version: int = 5) -> SyncSession:
    """A session that has no question yet."""
    session = SyncSession("mqttree-n-sync", "u", 10)
    session.want(version, 0.0)
    session.on_dialled(0.1)
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
    session.on_dialled(0.1)
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
    session.on_dialled(PATIENCE + 1)  # too late
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


@pytest.mark.parametrize("version", [4, 5])
def test_a_retained_message_that_cannot_be_here_is_left_out(version: int) -> None:
    """One that is too large is not kept, and one of many pieces is read to its end."""
    session = ready(version)
    session.maximum_packet_size = 3 * READ_AHEAD
    session.ask(["#"], 1.0)
    deep = "/".join("a" * 202)
    messages = [
        encode_packet(Publish("large", bytes(4 * READ_AHEAD), retain=True), version),
        encode_packet(Publish(deep, b"1", retain=True), version),
        encode_packet(Publish("a.b", b"1", retain=True), version).replace(b".", b"\0"),
        encode_packet(Publish("long", bytes(2 * READ_AHEAD), retain=True), version),
        encode_packet(Publish("good", b"1", retain=True), version),
    ]
    data, found = b"".join(messages), []
    for at in range(0, len(data), 100_000):
        assert session.reads
        session.received(data[at : at + 100_000], 1.1)
        found += session.take(10, 1.1)
    assert [p.topic for p in found] == ["long", "good"]
    assert session.unusable == 3
    code = b"\0\x97" if version == 5 else b"\x97"
    session.received(b"\x90%c\0\1%b" % (2 + len(code), code), 1.2)
    session.take(10, 1.2)
    assert session.refused == ["#"]
