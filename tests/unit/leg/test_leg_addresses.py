"""A leg with several addresses, and when it starts and rests."""

from __future__ import annotations

import pytest

from mqttree.broker.leg.addresses import HOME_PAUSE, Addresses
from mqttree.broker.leg.backoff import LONGEST, OWN_PAUSE, SHORTEST, TAKEN_OVER_PAUSE
from mqttree.broker.leg.effects import DialForeign, Log, Prepare
from mqttree.broker.leg.leg_settings import Start
from mqttree.broker.leg.leg_states import State
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Disconnect, Publish, Pubrel
from tests.kit.leg_harness import Joined, new_leg, settings
from tests.kit.node_harness import World


def test_home_comes_first_after_each_loss() -> None:
    addresses = Addresses(3, round_robin=False)
    found = []
    for was_up in (False, False, True, True, False, False, False):
        addresses.on_lost(was_up=was_up)
        found.append(addresses.place)
    assert found == [1, 2, 0, 0, 1, 2, 0]


def test_in_turn_each_loss_leads_to_the_next_address() -> None:
    addresses = Addresses(3, round_robin=True)
    found = []
    for was_up in (True, True, False, True):
        addresses.on_lost(was_up=was_up)
        found.append(addresses.place)
    assert found == [1, 2, 0, 1]
    assert not addresses.looks_home(1e9)


def test_a_home_that_answers_and_lets_no_leg_in_is_looked_at_less_and_less() -> None:
    addresses, now, looks = Addresses(2, round_robin=False), 0.0, []
    for _ in range(3):
        addresses.on_lost(was_up=False)
        addresses.on_up(now)
        since = now
        while not addresses.looks_home(now):
            now += 1.0
        looks.append(now - since)
        addresses.go_home()
    assert looks == [HOME_PAUSE, 2 * HOME_PAUSE, 4 * HOME_PAUSE]


def joined(**more: object) -> Joined:
    """A leg with two addresses."""
    return Joined(others=(World(),), more_addresses=("second:1883",), **more)


def test_a_leg_goes_on_at_the_second_address_and_goes_back() -> None:
    pair = joined()
    home, second = pair.places
    here = pair.here.connect("h")
    pair.down = {0}
    pair.cut()
    assert pair.leg.state is State.WAITING
    pair.advance(2 * LONGEST)
    assert pair.up
    assert pair.there is second
    assert pair.leg.counters.moves == 1
    there = second.connect("t").subscribed("#", qos=2)
    pair.send(here, Publish("a", b"1", 2, packet_id=1), Pubrel(1))
    assert [p.payload for p in there.take() if isinstance(p, Publish)] == [b"1"]
    pair.down = set()
    pair.advance(2 * HOME_PAUSE)
    assert pair.up
    assert pair.there is home
    assert any("goes back to foreign:1883 from second:1883" in line for line in pair.log)


@pytest.mark.parametrize("version", [4, 5])
def test_identifiers_of_a_session_at_another_address_do_not_hide_messages(version: int) -> None:
    """The first foreign broker has received a message and not seen it released. It must not take
    another message with that identifier for a repetition, when the leg comes back."""
    pair = joined(version=version)
    home, second = pair.places
    here, at_home = pair.here.connect("h"), home.connect("t").subscribed("#", qos=2)
    pair.send(here, Publish("a", b"1", 2, packet_id=1))
    session = home.session(pair.settings.client_id)
    number = pair.here.session(pair.settings.session).next_packet_id
    session.incoming.add(number + 1)  # its PUBREL was lost with the connection
    pair.down = {0}
    pair.cut()
    pair.advance(2 * LONGEST)
    assert pair.there is second
    pair.down = {1}
    pair.cut()
    pair.advance(2 * LONGEST)
    assert pair.up
    assert pair.there is home
    assert not session.incoming
    at_home.take()
    pair.send(here, Publish("a", b"2", 2, packet_id=2))
    assert [p.payload for p in at_home.take() if isinstance(p, Publish)] == [b"2"]
    assert home.node.counters.protocol_errors == 0
    assert pair.here.node.counters.protocol_errors == 0


def test_the_pause_is_short_while_another_address_is_left() -> None:
    leg, now, places, pauses = new_leg(two()), 0.0, [], []
    for _ in range(8):
        leg.tick(now)
        places += [e.place for e in leg.take_effects() if isinstance(e, DialForeign)]
        leg.on_lost("no route", now)
        due = leg.next_deadline() or 0.0
        pauses.append(due - now)
        now = due
    assert places == [0, 1] * 4
    assert pauses[::2] == [pytest.approx(SHORTEST)] * 4


def two(**more: object):  # type: ignore[no-untyped-def]
    return settings(more_addresses=("b:1",), **more)


# ---------------------------------------------------------------- start types


def test_a_lazy_leg_rests_until_messages_wait() -> None:
    pair = Joined(start=Start.LAZY, idle_timeout=20.0, threshold=2)
    assert pair.up
    here, there = pair.here.connect("h"), pair.there.connect("t").subscribed("#", qos=1)
    pair.advance(15.0)
    pair.send(here, Publish("a", b"0"))
    pair.advance(15.0)
    assert pair.up, "a message crossed meanwhile"
    pair.advance(30.0)
    assert pair.leg.state is State.RESTING
    assert pair.there.session("mqttree-n").conn is None
    pair.send(here, Publish("a", b"1", 1, packet_id=1))
    pair.advance(60.0)
    assert pair.leg.state is State.RESTING
    pair.send(here, Publish("a", b"2", 1, packet_id=2))
    pair.advance(2.0)
    assert pair.up
    assert pair.leg.counters.failures == 0
    assert [p.payload for p in there.take() if isinstance(p, Publish)] == [b"0", b"1", b"2"]


def test_what_comes_for_a_resting_leg_waits_at_the_foreign_broker() -> None:
    pair = Joined(start=Start.LAZY, idle_timeout=20.0)
    here, there = pair.here.connect("h").subscribed("#", qos=1), pair.there.connect("t")
    pair.advance(40.0)
    assert pair.leg.state is State.RESTING
    pair.send(there, Publish("t", b"1", 1, packet_id=1))
    pair.send(here, Publish("h", b"2", 1, packet_id=1))
    pair.advance(2.0)
    assert {p.payload for p in here.take() if isinstance(p, Publish)} == {b"1", b"2"}


def test_a_leg_that_starts_once_ends_with_its_connection() -> None:
    pair = Joined(start=Start.ONCE)
    assert pair.up
    pair.cut()
    assert pair.leg.state is State.STOPPED
    assert "it is not dialled again (start once)" in pair.log[-1]
    pair.advance(10 * LONGEST)
    assert pair.leg.counters.connects == 1


def test_a_leg_that_starts_once_still_finds_out_which_mqtt_is_spoken() -> None:
    leg, now, tried = new_leg(settings(start=Start.ONCE)), 0.0, 0
    while (due := leg.next_deadline()) is not None:
        now = due
        leg.tick(now)
        leg.on_dialled(None, now)
        leg.foreign_received(b"\x20\x02\x00\x01", now)
        tried += 1
    assert tried == 3
    assert leg.state is State.STOPPED


# ---------------------------------------------------------------- QoS, standby, long pauses


@pytest.mark.parametrize("version", [4, 5])
def test_no_message_crosses_above_the_highest_qos(version: int) -> None:
    pair = Joined(version=version, max_qos=1)
    here, there = pair.here.connect("h"), pair.there.connect("t")
    for client in (here, there):
        client.subscribe("#", qos=2)
    pair.send(here, Publish("h", b"1", 2, packet_id=1), Pubrel(1))
    pair.send(there, Publish("t", b"2", 2, packet_id=1), Pubrel(1))
    for client, topic in ((here, "t"), (there, "h")):
        (found,) = [p for p in client.take() if isinstance(p, Publish) and p.topic == topic]
        assert found.qos == 1


def test_a_leg_on_standby_dials_when_it_is_its_turn() -> None:
    leg = new_leg(settings(), standby=True)
    assert leg.next_deadline() is None
    leg.tick(5.0)
    for _ in range(2):
        leg.stand_by("f is active", 5.0)
    assert leg.take_effects() == [Log("info", "leg n is on standby: f is active")]
    leg.take_turn(6.0, heir=False)
    assert [type(effect) for effect in leg.take_effects()] == [Prepare, DialForeign]
    leg.stand_by("g is active", 7.0)
    assert [e.text for e in leg.take_effects() if isinstance(e, Log)] == [
        "leg n is on standby: g is active"
    ]
    leg.on_dialled(None, 8.0)
    assert leg.state is State.STANDBY
    leg.on_lost("closed", 8.0)
    assert leg.counters.failures == 0


@pytest.mark.parametrize("version", [4, 5])
def test_an_heir_takes_the_foreign_session_with_what_waits_there(version: int) -> None:
    """Also if that has received identifiers which the new session here is going to use."""
    first = Joined(version=version)
    there = first.there.connect("t").subscribed("#", qos=2)
    foreign = first.there.session("mqttree-n")
    first.cut()
    foreign.incoming.add(1)
    there.send(Publish("t", b"waits", 1, packet_id=1))
    second = Joined(version=version, foreign=first.there, standby=True)
    here = second.here.connect("h").subscribed("#", qos=2)
    second.leg.take_turn(second.here.now, heir=True)
    second.advance(5.0)
    assert second.up
    assert [p.payload for p in here.take() if isinstance(p, Publish)] == [b"waits"]
    there.take()
    second.send(here, Publish("h", b"first", 2, packet_id=1))
    assert [p.payload for p in there.take() if isinstance(p, Publish)] == [b"first"]


def test_two_that_take_a_session_from_each_other_do_so_rarely() -> None:
    pair = Joined()
    pair.leg.foreign_received(encode_packet(Disconnect(0x8E), 5), pair.here.now)
    due = pair.leg.next_deadline() or 0.0
    assert due - pair.here.now >= TAKEN_OVER_PAUSE
    pair.advance(LONGEST + 1)
    pair.leg.on_lost("it is this broker", pair.here.now, OWN_PAUSE)
    due = pair.leg.next_deadline() or 0.0
    assert due - pair.here.now == pytest.approx(OWN_PAUSE)
