"""Merges of the retained messages of both brokers of a leg, on a virtual clock."""

from __future__ import annotations

from typing import Any, TypeGuard

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.leg.backoff import LONGEST
from mqttree.broker.leg.effects import LegEffect, ToForeign
from mqttree.broker.leg.own_topics import own
from mqttree.broker.leg.retained_exchange import PERIOD, SOON
from mqttree.broker.leg.retained_rules import Retain
from mqttree.broker.leg.sync_session import QUIET
from mqttree.broker.wire.packets import Publish, Pubrel
from mqttree.broker.wire.properties import Property
from tests.kit.effort import examples
from tests.kit.leg_harness import Joined
from tests.kit.node_harness import World

MERGED = LONGEST + SOON + 4 * QUIET + 20
"""s in which a lost leg is up and has compared."""


def retained(world: World) -> dict[str, bytes]:
    """What is retained, without the legs' own topics."""
    return {
        topic: message.payload
        for topic in world.node.retained.topics()
        if not own(topic.encode())
        and (message := world.node.retained.get(topic))
        and not message.expired(world.now)
    }


def put(world: World, topic: str, payload: bytes, qos: int = 0, **more: Any) -> None:
    """Publish a retained message as a client that comes and goes."""
    client = world.connect(f"w{len(world.peers)}")
    client.send(Publish(topic, payload, qos, True, packet_id=1 if qos else None, **more))
    if qos == 2:
        client.send(Pubrel(1))
    client.vanish()


def away(joined: Joined) -> None:
    """Lose the foreign broker until `back`."""
    joined.reachable = joined.syncs = False
    joined.cut()


def back(joined: Joined) -> None:
    """Let the leg come up, and compare."""
    joined.reachable = joined.syncs = True
    joined.advance(MERGED)
    assert joined.up


def in_common(*topics: str, **more: Any) -> Joined:
    """A leg whose both sides have these topics, as an earlier merge has seen."""
    joined = Joined(**more)
    for topic in topics:
        put(joined.here, topic, b"old", 1)
    joined.run()
    joined.advance(MERGED)
    # A merge has to see them there.
    joined.cut()
    joined.advance(MERGED)
    assert retained(joined.here) == retained(joined.there) == dict.fromkeys(topics, b"old")
    return joined


# ---------------------------------------------------------------- first contact


def test_at_first_contact_each_side_gets_what_only_the_other_one_has() -> None:
    ours, theirs = World(), World()
    put(ours, "o", b"1")
    put(theirs, "t", b"2")
    put(ours, "same", b"3")
    put(theirs, "same", b"3")
    put(ours, "both", b"ours")
    put(theirs, "both", b"theirs")
    watcher = ours.connect("watcher").subscribed("#")
    watcher.take()
    joined = Joined(here=ours, foreign=theirs)
    joined.advance(QUIET + 5)
    wanted = {"o": b"1", "t": b"2", "same": b"3", "both": b"theirs"}
    assert retained(ours) == retained(theirs) == wanted
    got = [p for p in watcher.take() if isinstance(p, Publish) and not own(p.topic.encode())]
    assert {(p.topic, p.payload, p.retain) for p in got} == {
        ("t", b"2", False),
        ("both", b"theirs", False),
    }
    counters = joined.exchange.counters
    assert (counters.merges, counters.published_here, counters.published_there) == (1, 2, 1)
    joined.cut()
    joined.advance(MERGED)
    assert joined.up
    assert not watcher.payloads(), "nothing is published again"


@pytest.mark.parametrize("version", [4, 5])
def test_a_merge_brings_what_changed_while_the_leg_was_away(version: int) -> None:
    joined = in_common("a", "b", "c", "d", "e", "h", version=version)
    away(joined)
    put(joined.here, "a", b"new")
    put(joined.there, "b", b"new")
    put(joined.here, "c", b"")
    put(joined.there, "d", b"")
    put(joined.here, "f", b"set")
    put(joined.there, "g", b"set")
    put(joined.here, "h", b"ours")
    put(joined.there, "h", b"theirs")
    back(joined)
    wanted = {"a": b"new", "b": b"new", "e": b"old", "f": b"set", "g": b"set", "h": b"ours"}
    assert retained(joined.here) == wanted
    assert retained(joined.there) == wanted
    counters = joined.exchange.counters
    assert (counters.deleted_here, counters.deleted_there) == (1, 1)


@pytest.mark.parametrize("version", [4, 5])
def test_each_retained_message_comes_that_waited_for_the_leg(version: int) -> None:
    joined = in_common("a", version=version)
    watcher = joined.here.connect("watcher").subscribed("a", qos=1)
    watcher.take()
    away(joined)
    for payload in (b"1", b"2"):
        put(joined.there, "a", payload, 1)
    back(joined)
    assert [p.payload for p in watcher.take() if isinstance(p, Publish)] == [b"1", b"2"]


def test_a_deletion_there_of_a_topic_that_was_not_seen_there_is_undone() -> None:
    joined = Joined()
    joined.advance(MERGED)
    put(joined.here, "a", b"1", 1)
    joined.run()
    joined.advance(30)
    away(joined)
    put(joined.there, "a", b"")
    back(joined)
    assert retained(joined.here) == retained(joined.there) == {"a": b"1"}


def test_rules_of_a_user_hold_for_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = in_common("a", "b")
    away(joined)
    put(joined.here, "a", b"ours")
    put(joined.there, "b", b"theirs")
    monkeypatch.setattr(type(joined.retained), "may_receive", lambda here, topic: topic != "a")
    monkeypatch.setattr(type(joined.retained), "may_publish", lambda here, topic: topic != "b")
    back(joined)
    assert retained(joined.here) == retained(joined.there) == {"a": b"old", "b": b"old"}


def test_a_value_that_came_from_there_is_not_newer_here() -> None:
    """It comes at QoS 1 when the leg is back, its deletion at QoS 0 does not."""
    joined = in_common("a", "b")
    away(joined)
    for topic in ("a", "b"):
        put(joined.there, topic, b"new", 1)
    put(joined.there, "a", b"")
    put(joined.there, "b", b"last")
    back(joined)
    assert retained(joined.here) == retained(joined.there) == {"b": b"last"}


def test_after_a_restart_what_was_written_meanwhile_is_known_and_a_deletion_there_is_not() -> None:
    joined = in_common("a", "b", "c", "d", "e")
    away(joined)
    put(joined.here, "e", b"ours")
    joined.begin()
    put(joined.there, "e", b"theirs")
    put(joined.here, "a", b"new")
    put(joined.there, "b", b"new")
    put(joined.here, "c", b"")
    put(joined.there, "d", b"")
    back(joined)
    wanted = {"a": b"new", "b": b"new", "d": b"old", "e": b"ours"}
    assert retained(joined.here) == retained(joined.there) == wanted


@pytest.mark.parametrize("version", [4, 5])
def test_a_value_that_came_just_before_a_restart_is_not_newer_here(version: int) -> None:
    joined = in_common("a", version=version)
    away(joined)
    put(joined.there, "a", b"1")
    joined.reachable = joined.syncs = True
    while retained(joined.here) != {"a": b"1"}:
        joined.advance(1)
    away(joined)
    joined.begin()
    put(joined.there, "a", b"2")
    back(joined)
    assert retained(joined.here) == retained(joined.there) == {"a": b"2"}


def test_a_gateway_that_goes_on_says_that_it_is_active() -> None:
    joined = in_common("a")
    topic = "mqttree/leg/n/common"
    away(joined)
    put(joined.here, topic, b"1 0 00000000000000ff")
    joined.begin()
    joined.reachable = True
    while not joined.up:
        joined.advance(0.1)
    found = joined.here.node.retained.get(topic)
    assert found is not None
    ids = {b"00000000000000ff", joined.retained.broker_id.hex().encode()}
    assert set(found.payload.split()[2:]) == ids


@pytest.mark.parametrize(
    "payload", [b"1", b"x 0 00000000000000ff", b"9" * 19 + b" 0 00000000000000ff"]
)
def test_a_broken_note_of_what_both_had_is_none(payload: bytes) -> None:
    here = World()
    put(here, "mqttree/leg/n/common", payload)
    joined = Joined(here=here)
    joined.advance(1)
    assert joined.up
    assert joined.exchange.history.common == 0


def test_it_is_written_down_until_when_both_had_the_same_while_something_crosses() -> None:
    joined = in_common("a")
    topic = "mqttree/leg/n/common"
    found = joined.here.node.retained.get(topic)
    assert found is not None
    assert joined.there.node.retained.get(topic) is None
    common, _, gateway = found.payload.split()
    assert int(common) > joined.retained.last_write("a").stamp
    assert bytes.fromhex(gateway.decode()) == joined.retained.broker_id
    joined.advance(30)
    written = joined.retained.last_write(topic)
    joined.advance(30)
    assert joined.retained.last_write(topic) == written
    put(joined.here, "a", b"new")
    joined.run()
    joined.advance(30)
    assert joined.retained.last_write(topic) > written


def test_topics_under_other_names_are_merged_under_them() -> None:
    joined = Joined("# both 1 here/ there/")
    put(joined.here, "here/a", b"1", 1)
    put(joined.here, "elsewhere", b"1")
    joined.run()
    joined.advance(MERGED)
    away(joined)
    put(joined.here, "here/a", b"2")
    put(joined.there, "there/b", b"3")
    back(joined)
    assert retained(joined.there) == {"there/a": b"2", "there/b": b"3"}
    assert retained(joined.here) == {"here/a": b"2", "here/b": b"3", "elsewhere": b"1"}


def test_properties_of_mqtt_5_are_compared_and_kept() -> None:
    joined = in_common("a")
    away(joined)
    properties = {Property.CONTENT_TYPE: "t", Property.USER_PROPERTY: [("k", "v")]}
    put(joined.here, "a", b"old", properties=properties)
    put(joined.there, "b", b"x", properties=properties | {Property.RESPONSE_TOPIC: "r"})
    back(joined)
    for world, topic in ((joined.there, "a"), (joined.here, "b")):
        late = world.connect("late").subscribed(topic)
        (got,) = late.take_publishes()
        assert (got.properties or {}).items() >= properties.items()


# ---------------------------------------------------------------- directions


@pytest.mark.parametrize(
    ("rule", "ours", "theirs"),
    [
        ("# in 1", {"o": b"1", "both": b"theirs", "t": b"2"}, {"both": b"theirs", "t": b"2"}),
        ("# out 1", {"both": b"ours", "o": b"1"}, {"both": b"ours", "t": b"2", "o": b"1"}),
    ],
)
def test_a_rule_of_one_direction_publishes_nothing_at_its_source(
    rule: str, ours: dict[str, bytes], theirs: dict[str, bytes]
) -> None:
    here, there = World(), World()
    put(here, "o", b"1")
    put(here, "both", b"ours")
    put(there, "both", b"theirs")
    put(there, "t", b"2")
    Joined(rule, here=here, foreign=there).advance(QUIET + 5)
    assert (retained(here), retained(there)) == (ours, theirs)


@pytest.mark.parametrize("retain", list(Retain))
@pytest.mark.parametrize("version", [4, 5])
def test_retain_crosses_as_the_option_says(retain: Retain, version: int) -> None:
    ours, theirs = World(), World()
    put(ours, "old/o", b"1")
    put(theirs, "old/t", b"2")
    joined = Joined(here=ours, foreign=theirs, retain=retain, version=version)
    joined.advance(QUIET + 5)
    put(ours, "new/o", b"3")
    put(theirs, "new/t", b"4")
    joined.run()
    there = {"old/t", "new/t"} | ({"old/o", "new/o"} if retain.outwards else set())
    here = {"old/o", "new/o"} | ({"old/t", "new/t"} if retain.inwards else set())
    assert retained(theirs).keys() == there
    assert retained(ours).keys() == here


def test_with_a_foreign_broker_that_retains_nothing_retain_does_not_cross() -> None:
    ours, theirs = World(), World(retain_available=False)
    put(ours, "o", b"1")
    joined = Joined(here=ours, foreign=theirs)
    joined.advance(MERGED)
    put(ours, "n", b"1")
    joined.run()
    assert joined.up
    assert joined.exchange.counters.merges == 0
    assert sum("retains nothing" in line for line in joined.log) == 1
    assert retained(theirs) == {}


def test_the_legs_own_topics_are_left_out() -> None:
    ours, theirs = World(), World()
    put(ours, "mqttree/leg/x/state", b"1")
    put(theirs, "mqttree/leg/y/state", b"1")
    put(theirs, "mqttree/probe/leg/y/1", b"1")
    joined = Joined(here=ours, foreign=theirs)
    joined.advance(QUIET + 5)
    assert joined.exchange.counters.published_here == 0
    assert joined.exchange.counters.published_there == 0


# ---------------------------------------------------------------- what is no deletion


def test_a_foreign_broker_that_lost_everything_gets_it_again() -> None:
    joined = in_common("a", "b")
    away(joined)
    joined.places = (World(),)
    joined.reachable = True
    joined.advance(MERGED)
    assert joined.up
    assert joined.exchange.counters.failures
    # No merge was complete, and the session that it has now is known there.
    joined.cut()
    back(joined)
    assert retained(joined.here) == retained(joined.there) == dict.fromkeys("ab", b"old")
    assert joined.exchange.counters.deleted_here == 0


def hide(effect: LegEffect) -> LegEffect | None:
    """Lose what is sent to a topic."""
    if isinstance(effect, ToForeign) and effect.data[:1] == b"\x31" and b"secret" in effect.data:
        return None
    return effect


def test_a_topic_that_cannot_be_written_there_gets_their_value_with_the_next_merge() -> None:
    ours, theirs = World(), World()
    put(theirs, "secret", b"theirs")
    joined = Joined(here=ours, foreign=theirs, edit=hide)
    joined.advance(QUIET + 5)
    put(ours, "secret", b"ours")
    joined.run()
    joined.advance(QUIET + 5)
    assert retained(ours) == {"secret": b"ours"}
    joined.advance(1.2 * PERIOD)
    assert retained(ours) == retained(theirs) == {"secret": b"theirs"}


def test_a_topic_that_was_never_read_there_is_not_deleted_here() -> None:
    joined = Joined(edit=hide)
    put(joined.here, "secret", b"ours")
    joined.run()
    joined.advance(3 * PERIOD)
    assert retained(joined.here) == {"secret": b"ours"}
    assert joined.exchange.counters.published_there <= 1
    assert joined.exchange.counters.deleted_here == 0


def test_a_topic_that_is_too_large_for_there_stays_as_it_is() -> None:
    joined = Joined(foreign=World(max_packet_size=100))
    put(joined.there, "a", b"small")
    joined.run()
    put(joined.here, "a", b"x" * 200)
    joined.advance(3 * PERIOD)
    assert retained(joined.here) == {"a": b"x" * 200}
    assert retained(joined.there) == {"a": b"small"}


def asks_for_all(effect: LegEffect) -> TypeGuard[ToForeign]:
    """Whether a sync session subscribes to all topics."""
    if not isinstance(effect, ToForeign) or not effect.sync:
        return False
    return effect.data[:1] == b"\x82" and b"\x01#" in effect.data


def test_what_a_long_answer_lacks_is_asked_for_by_name() -> None:
    joined = in_common("a", "b")
    away(joined)

    def shorten_answer(effect: LegEffect) -> LegEffect | None:
        """Have the broker leave out b where all is asked for."""
        if asks_for_all(effect):
            return ToForeign(effect.data.replace(b"\x01#", b"\x01a"), sync=True)
        return effect

    joined.edit = shorten_answer
    back(joined)
    assert retained(joined.here) == retained(joined.there) == dict.fromkeys("ab", b"old")
    assert joined.exchange.counters.incomplete == 1


def test_a_refused_filter_deletes_nothing() -> None:
    joined = in_common("a", "b")
    away(joined)

    def misspell(effect: LegEffect) -> LegEffect | None:
        if asks_for_all(effect):
            data = effect.data.replace(b"\x00\x01#", b"\x00\x03a#b")
            return ToForeign(data.replace(b"\x82\x07", b"\x82\x09"), sync=True)
        return effect

    joined.edit = misspell
    put(joined.there, "a", b"")
    joined.reachable = joined.syncs = True
    joined.advance(MERGED)
    assert retained(joined.here) == dict.fromkeys("ab", b"old")


# ---------------------------------------------------------------- when


@pytest.mark.parametrize(("qos", "merged"), [(0, 1.2 * PERIOD), (1, MERGED), (2, MERGED)])
def test_both_sides_that_write_at_one_time_are_equal_after_a_merge(qos: int, merged: float) -> None:
    joined = in_common("a")
    held: list[LegEffect] = []

    def hold(effect: LegEffect) -> LegEffect | None:
        if isinstance(effect, ToForeign):
            held.append(effect)
            return None
        return effect

    joined.edit = hold
    put(joined.here, "a", b"ours", qos)
    joined.run()
    put(joined.there, "a", b"theirs", qos)
    joined.run()
    joined.edit = lambda effect: effect
    joined.leg._effects += held
    joined.run()
    assert retained(joined.here) != retained(joined.there)
    joined.advance(merged)
    assert retained(joined.here) == retained(joined.there)


def test_a_merge_comes_every_hour() -> None:
    joined = in_common("a")
    before = joined.exchange.counters.merges
    joined.advance(1.2 * PERIOD)
    assert joined.exchange.counters.merges == before + 1


def test_messages_that_were_dropped_bring_a_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = in_common("a")
    before = joined.exchange.counters.merges
    monkeypatch.setattr(type(joined.retained), "dropped", property(lambda here: 1))
    joined.advance(PERIOD / 2)
    assert joined.exchange.counters.merges == before + 1


def test_a_message_that_was_dropped_ahead_of_a_leg_is_counted() -> None:
    joined = in_common("a")
    assert joined.retained.dropped == 0
    joined.here.session("leg:n").dropped_full += 1
    assert joined.retained.dropped == 1
    joined.here.counters.dropped_slow_consumer += 1
    assert joined.retained.dropped == 1
    away(joined)
    joined.here.counters.dropped_slow_consumer += 1
    assert joined.retained.dropped == 2


def test_a_sync_session_that_fails_is_one_line_and_comes_once_more() -> None:
    joined = Joined()
    joined.syncs = False
    joined.cut()
    joined.advance(MERGED)
    assert joined.up
    lines = [line for line in joined.log if "cannot compare retained messages" in line]
    assert len(lines) == joined.exchange.counters.failures == 2
    joined.syncs = True
    put(joined.there, "t", b"1")
    joined.advance(1.2 * PERIOD)
    assert retained(joined.here) == {"t": b"1"}


def test_a_merge_looks_at_few_topics_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = World()
    client = ours.connect("many")
    for number in range(1000):
        client.send(Publish(f"t/{number}", b"x", retain=True))
    joined = Joined(here=ours)
    most, step = 0, joined.exchange.resume

    def counted(now: float) -> None:
        nonlocal most
        before = joined.exchange.counters.published_there
        step(now)
        most = max(most, joined.exchange.counters.published_there - before)

    monkeypatch.setattr(joined.exchange, "resume", counted)
    joined.advance(QUIET + 10)
    assert len(retained(joined.there)) == 1000
    assert 0 < most <= 200


def test_a_value_on_its_way_as_a_merge_begins_is_not_undone_by_an_older_answer() -> None:
    """The foreign broker has said what it retained before the value took effect there."""
    joined = in_common("a")
    exchange, now = joined.exchange, joined.here.now
    put(joined.here, "a", b"new")
    exchange._begin(now)
    merge = exchange._merge
    assert merge is not None
    merge.arrived(Publish("a", b"old", 0, True), now)
    assert not any(deed.here for deed in merge.take_deeds())
    assert retained(joined.here) == {"a": b"new"}


# ---------------------------------------------------------------- any schedule

TOPICS = ["a", "b"]
WRITE = st.tuples(
    st.sampled_from(["here", "there"]),
    st.sampled_from(TOPICS),
    st.sampled_from([b"", b"1", b"2"]),
    st.integers(0, 2),
)
PHASE = st.tuples(
    st.lists(WRITE, max_size=4),  # while the leg is up
    st.sampled_from(["none", "out", "in", "both"]),  # what is lost ahead of the cut
    st.lists(WRITE, max_size=4),  # meanwhile
    st.lists(WRITE, max_size=4),  # while it is away
)


class Model:
    """What each side wrote since both were equal."""

    def __init__(self) -> None:
        self.common: dict[str, bytes] = {}
        self.begin()

    def begin(self) -> None:
        self.wrote: dict[str, dict[str, list[bytes]]] = {"here": {}, "there": {}}

    def write(self, joined: Joined, write: tuple[str, str, bytes, int]) -> None:
        side, topic, payload, qos = write
        self.wrote[side].setdefault(topic, []).append(payload)
        put(joined.here if side == "here" else joined.there, topic, payload, qos)

    def check(self, joined: Joined) -> None:
        ours, theirs = retained(joined.here), retained(joined.there)
        assert ours == theirs
        for topic in TOPICS:
            found = ours.get(topic, b"")
            changes = [wrote[topic] for wrote in self.wrote.values() if topic in wrote]
            match changes:
                case []:
                    assert found == self.common.get(topic, b""), topic
                case [alone]:
                    assert found == alone[-1], topic
                case [one, other]:
                    # An older one may be repeated at QoS 1, behind the other side's last.
                    assert found in one + other, topic
        self.common = ours
        self.begin()


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(PHASE, min_size=1, max_size=3), st.sampled_from([4, 5]))
def test_after_a_merge_both_sides_are_equal_and_no_single_change_is_lost(
    phases: list[Any], version: int
) -> None:
    joined = Joined(version=version)
    joined.advance(QUIET + 3)
    model = Model()
    for live, lost, meanwhile, absent in phases:
        for write in live:
            model.write(joined, write)
            joined.run()
            joined.advance(0.5)
        joined.advance(2 * MERGED)
        model.check(joined)
        if lost in ("out", "both"):
            joined.edit = lambda e: None if isinstance(e, ToForeign) else e
        joined.deaf = lost in ("in", "both")
        for write in meanwhile:
            model.write(joined, write)
            joined.run()
        joined.edit = lambda effect: effect
        away(joined)
        joined.deaf = False
        for write in absent:
            model.write(joined, write)
        back(joined)
        joined.advance(MERGED)
        model.check(joined)
