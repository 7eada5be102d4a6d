from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.base.address import Address
from mqttree.broker.base.broker_id import Identity
from mqttree.discovery.announcement import Announcement, decode
from mqttree.discovery.announcement_filter import MAX_COMPLAINTS, MAX_SEEN
from mqttree.discovery.dialler import DOUBTFUL_BURST, DOUBTFUL_RATE, MAX_DIALS, MAX_RETRIES
from mqttree.discovery.effects import (
    Announce,
    Dial,
    Effect,
    Left,
    Log,
    MembershipConfig,
    NewMember,
    StateChanged,
)
from mqttree.discovery.member_table import MAX_ADDRESSES, MAX_MEMBERS, MAX_TOMBSTONES
from mqttree.discovery.membership import MAX_GOSSIP_ONLY, MAX_OFFENDERS, Membership
from mqttree.discovery.states import State
from tests.kit.effort import examples

WALL = 1_700_000_000.0


def bid(number: int) -> bytes:
    return number.to_bytes(8, "big")


OWN = Identity(bid(50), 5, Address("10.0.0.50", 1883), "own")
LOW, HIGH = bid(10), bid(90)


def place(number: int) -> Address:
    return Address(f"10.0.{number // 256}.{number % 256}", 1883)


def source(number: int) -> tuple[str, int]:
    return (place(number).host, 18830)


class Subject:
    """One Membership with what came out of it."""

    def __init__(self, own: Identity = OWN, **settings: Any) -> None:
        self.own = own
        self.secret = settings.get("secret")
        self.membership = Membership(MembershipConfig(**settings), own, 0.0, WALL, random.Random(1))
        self.log: list[Effect] = []
        self.take()

    def take(self) -> list[Effect]:
        effects = self.membership.take_effects()
        self.log += effects
        return effects

    def until(self, now: float) -> list[Effect]:
        """Run the clock to `now` by deadlines alone."""
        start = len(self.log)
        self.take()
        for _ in range(10_000):
            due = self.membership.next_deadline()
            if due is None or due > now:
                break
            self.membership.tick(due)
            later = self.membership.next_deadline()
            assert later is None or later > due
            self.take()
        else:
            raise AssertionError("the clock does not advance")
        self.membership.tick(now)
        self.take()
        return self.log[start:]

    def hear(self, number: int, now: float, **fields: Any) -> list[Effect]:
        """Receive an announcement of broker `number`, at its own place unless given another."""
        secret = fields.pop("secret", self.secret)
        origin = fields.pop("source", source(number))
        values: dict[str, Any] = {
            "cluster": "mqttree",
            "id": bid(number),
            "boot": 1,
            "counter": int(now * 1000) + 1,
            "wall": WALL + now,
            "address": Address("", 1883),
            "name": f"b{number}",
        }
        self.membership.datagram_received(
            Announcement(**(values | fields)).encode(secret, origin[0]), origin, now
        )
        return self.take()

    @property
    def state(self) -> State:
        return self.membership.state

    @property
    def counters(self) -> dict[str, int]:
        return self.membership.counters

    def known(self, now: float = 0.0) -> set[bytes]:
        return {member[0] for member in self.membership.members(now)}


def dials(effects: list[Effect]) -> list[Address]:
    return [effect.address for effect in effects if isinstance(effect, Dial)]


def announcements(effects: list[Effect], secret: bytes | None = None) -> list[Announcement]:
    return [decode(effect.data, secret) for effect in effects if isinstance(effect, Announce)]


def lines(effects: list[Effect], level: str = "warning") -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, Log) and effect.level == level]


def states(effects: list[Effect]) -> list[State]:
    return [effect.state for effect in effects if isinstance(effect, StateChanged)]


# --- the machine of Overlays 3 --------------------------------------------------------------------


def test_a_lone_broker_goes_to_runtime_after_td() -> None:
    one = Subject()
    one.membership.tree_agreed(True, 0.1)
    assert states(one.log) == [State.DISCOVERY]
    assert states(one.until(0.299)) == []
    assert states(one.until(0.3)) == [State.FORMING, State.RUNTIME]


def own_again(one: Subject) -> None:
    for effect in list(one.log):
        if isinstance(effect, Announce):
            one.membership.datagram_received(effect.data, ("10.0.0.50", 1), 1.0)


NEW: dict[str, Callable[[Subject], Any]] = {
    "an announcement": lambda one: one.hear(77, 1.0),
    "a restart": lambda one: one.hear(90, 1.0, boot=2),
    "gossip": lambda one: one.membership.member_learnt(bid(78), 1, [place(78)], 1.0),
    "a link": lambda one: one.membership.link_up(bid(79), 1, place(79), 1.0),
}
NOTHING_NEW: dict[str, Callable[[Subject], Any]] = {
    "announced again": lambda one: one.hear(90, 1.0, new=True),
    "gossip again": lambda one: one.membership.member_learnt(HIGH, 1, [place(91)], 1.0),
    "linked": lambda one: one.membership.link_up(HIGH, 1, place(90), 1.0),
    "its own": own_again,
    "garbage": lambda one: one.membership.datagram_received(b"\xff" * 80, ("10.9.9.9", 1), 1.0),
    "another cluster": lambda one: one.hear(77, 1.0, cluster="other"),
    "goodbye": lambda one: one.hear(90, 1.0, leave=True),
    "time": lambda one: one.membership.tick(1.0),
}


@pytest.mark.parametrize("event", [*NEW, *NOTHING_NEW])
@pytest.mark.parametrize("state", [State.FORMING, State.RUNTIME])
def test_a_broker_that_is_new_leads_back_to_discovery_and_nothing_else(
    event: str, state: State
) -> None:
    """All steps of the paper's machine: test_discovery_states."""
    one = Subject()
    one.hear(90, 0.01)
    one.until(1.0)
    if state is State.RUNTIME:
        one.membership.tree_agreed(True, 1.0)
    assert one.state is state
    (NEW | NOTHING_NEW)[event](one)
    assert one.state is (State.DISCOVERY if event in NEW else state)


def test_a_newcomer_restarts_td_but_many_of_them_cannot_hold_it_for_ever() -> None:
    one = Subject()
    one.until(0.2)
    one.hear(1, 0.2)
    one.until(0.49)
    assert one.state is State.DISCOVERY
    one.until(0.51)
    assert one.state is State.FORMING
    stream = Subject()
    for step in range(1, 30):
        stream.until(step * 0.1)
        stream.hear(step, step * 0.1)
    assert State.FORMING in states(stream.log)


# --- announcing -----------------------------------------------------------------------------------


def test_a_burst_of_announcements_is_followed_by_beacons() -> None:
    one = Subject()
    one.until(one.membership.config.discovery_time)
    burst = announcements(one.log)
    assert [found.new for found in burst] == [True, True, True, True, False]
    assert [found.counter for found in burst] == [1, 2, 3, 4, 5]
    assert burst[0].address == OWN.address
    assert burst[0].boot == 5
    later = announcements(one.until(61.0))
    assert 10 <= len(later) <= 15
    assert one.counters["announcements_sent"] == 5 + len(later)


def test_a_wildcard_host_is_left_to_the_receiver() -> None:
    one = Subject(Identity(bid(50), 1, Address("0.0.0.0", 1884)))
    assert announcements(one.log)[0].address == Address("", 1884)


def test_newcomers_are_answered_once_and_known_ones_not() -> None:
    one = Subject()
    one.until(2.0)
    assert announcements(one.hear(90, 2.0)) == []
    answer = announcements(one.until(2.021))
    assert len(answer) == 1
    one.membership.link_up(HIGH, 1, place(90), 2.1)
    one.hear(90, 2.2, new=True)
    assert announcements(one.until(2.4)) == []
    one.hear(90, 2.5, boot=2)
    assert len(announcements(one.until(2.6))) == 1


def test_a_hundred_newcomers_get_few_answers_and_a_hundred_answerers_spread() -> None:
    one = Subject()
    one.until(2.0)
    for number in range(100, 200):
        one.hear(number, 2.0)
    assert len(announcements(one.until(2.2))) <= 1
    when = set()
    for seed in range(100):
        other = Membership(MembershipConfig(), OWN, 0.0, WALL, random.Random(seed))
        for _ in range(8):
            other.tick(other.next_deadline() or 0.0)
        now = (other.next_deadline() or 0.0) - 1.0
        data = Announcement("mqttree", HIGH, 1, 1, WALL, Address("", 1883)).encode(None)
        other.datagram_received(data, source(90), now)
        due = other.next_deadline()
        assert due is not None
        when.add(round((due - now) * 1000))
    assert len(when) > 10


def test_without_announcing_nothing_is_sent() -> None:
    one = Subject(announce=False, seeds=(place(90),))
    one.until(20.0)
    one.membership.leave(20.0)
    one.take()
    assert announcements(one.log) == []
    assert dials(one.log)


def test_leave_says_goodbye_and_ends_everything() -> None:
    one = Subject(secret=b"s")
    one.hear(90, 0.1)
    one.membership.leave(0.2)
    assert announcements(one.take(), b"s")[-1].leave
    assert one.membership.next_deadline() is None
    assert one.membership.left
    one.hear(91, 0.3)
    one.membership.member_learnt(LOW, 1, [place(10)], 0.3)
    one.membership.seed_resolved([place(3)], 0.3)
    one.membership.tick(9.0)
    one.membership.link_down(HIGH, 9.0)
    one.membership.leave(9.0)
    assert one.take() == []


# --- who dials ------------------------------------------------------------------------------------


def test_the_lower_id_dials_at_once_the_higher_after_its_patience() -> None:
    one = Subject()
    assert dials(one.hear(90, 0.1)) == [place(90)]
    assert dials(one.hear(10, 0.1)) == []
    patience = one.membership.config.dial_patience
    assert dials(one.until(0.1 + patience - 0.001)) == []
    assert dials(one.until(0.1 + patience + 0.001)) == [place(10)]


def test_the_second_address_waits_for_the_first() -> None:
    one = Subject()
    one.membership.member_learnt(HIGH, 1, [place(90), place(91)], 0.1)
    assert dials(one.take()) == [place(90)]
    assert dials(one.until(0.26)) == [place(91)]


def test_seeds_are_dialled_at_once_by_everyone_until_their_broker_is_linked() -> None:
    for broker in (LOW, HIGH):
        one = Subject(seeds=(place(1), place(2), OWN.address))
        assert dials(one.log) == [place(1), place(2)]
        one.membership.link_up(broker, 1, Address("10.9.9.9", 1883), 0.1, dialled=place(1))
        one.membership.dial_failed(place(2), "refused", 0.1)
        one.membership.member_learnt(bid(91), 1, [place(2)], 0.1)
        later = dials(one.until(4.0))
        assert place(1) not in later
        assert place(2) in later
        assert Address("10.9.9.9", 1883) not in later
        one.membership.link_down(broker, 4.0)
        assert place(1) in dials(one.until(4.5))


def test_a_seed_that_cannot_be_reached_is_dialled_for_ever_and_said_once() -> None:
    one = Subject(seeds=(place(1),))
    times = [0.0]
    one.membership.dial_failed(place(1), "refused", 0.0)
    one.take()
    for _ in range(2000):
        due = one.membership.next_deadline()
        if due is None or due > 1000.0:
            break
        one.membership.tick(due)
        for address in dials(one.take()):
            times.append(due)
            one.membership.dial_failed(address, "refused", due)
    one.take()
    assert lines(one.log, "info") == [
        "seed 10.0.0.1:1883 cannot be reached (refused); it is dialled again"
    ]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert max(gaps[:3]) <= 0.8
    assert max(gaps) <= 10.0
    assert any(gap > 5.0 for gap in gaps)
    assert times[-1] > 980.0


def test_a_dial_that_is_never_heard_of_times_out() -> None:
    one = Subject(seeds=(place(1),), dial_timeout=2.0)
    assert dials(one.until(1.99)) == []
    assert dials(one.until(2.2)) == [place(1)]
    assert one.counters["dials_timed_out"] == 1


def test_no_more_dials_than_allowed_and_dead_ones_leave_room() -> None:
    one = Subject(seeds=tuple(place(number) for number in range(1, 41)), dial_timeout=4.0)
    assert len(dials(one.log)) == MAX_DIALS
    done = set(dials(one.log))
    one.until(20.1)  # nothing answers: all of them time out, eight by eight
    done = set(dials(one.log))
    assert len(done) == 40
    one.until(60.0)
    assert len(one.membership._table.dialler._under_way) <= MAX_RETRIES
    assert dials(one.hear(200, 60.0)) == [place(200)]
    assert dials(one.hear(201, 60.0)) == [place(201)]


def test_an_address_that_is_oneself_is_left_alone() -> None:
    one = Subject(seeds=(place(1),))
    one.membership.address_is_self(place(1), 0.1)
    assert dials(one.until(290.0)) == []
    one.hear(90, 290.0, address=place(1))
    assert dials(one.until(295.0)) == []
    assert dials(one.until(301.0)) == [place(1)]
    wild = Subject(
        Identity(bid(50), 1, Address("0.0.0.0", 1884)), seeds=(Address("127.0.0.1", 1884),)
    )
    assert dials(wild.until(9.0)) == []


def test_an_address_that_is_a_linked_peer_is_remembered() -> None:
    one = Subject(seeds=(place(1),))
    one.membership.link_up(HIGH, 1, place(90), 0.1)
    one.membership.address_is_peer(place(1), HIGH, 0.2)
    assert dials(one.until(60.0)) == []
    assert set(one.membership.members(60.0)[0][2]) == {place(1), place(90)}
    one.membership.link_down(HIGH, 60.0)
    assert set(dials(one.until(60.3))) == {place(1), place(90)}


def test_an_address_of_a_peer_about_to_be_linked_is_tried_again_when_it_is_not() -> None:
    one = Subject(seeds=(place(1), place(2)))
    one.hear(90, 0.1)
    one.membership.address_is_peer(place(1), HIGH, 0.2)  # another connection's handshake has begun
    one.membership.address_is_peer(place(2), bid(91), 0.2)  # the same, of a broker not known yet
    assert {place(1), place(2)} <= set(dials(one.until(1.0)))
    one.membership.address_is_peer(place(1), HIGH, 1.0)
    one.membership.link_up(HIGH, 1, place(90), 1.01)
    assert place(1) not in dials(one.until(30.0))


def test_an_announcement_resets_the_backoff() -> None:
    one = Subject()
    one.hear(90, 0.1)
    now = 0.1
    for _ in range(8):
        one.membership.dial_failed(place(90), "refused", now)
        while not dials(one.take()):
            now = one.membership.next_deadline() or 0.0
            one.membership.tick(now)
    one.membership.dial_failed(place(90), "refused", now)
    now += 0.11
    one.until(now)
    already = bool(dials(one.log[-1:]))
    assert already or dials(one.hear(90, now)) == [place(90)]


def test_link_down_is_redialled_at_once_but_not_in_a_loop() -> None:
    one = Subject()
    one.membership.link_up(HIGH, 1, place(90), 0.5)
    one.membership.link_down(HIGH, 5.0)
    assert dials(one.until(5.021)) == [place(90)]
    now, count = 5.021, 0
    while now < 65.0:  # accepts and hangs up at once, for a minute
        one.membership.link_up(HIGH, 1, place(90), now)
        one.membership.link_down(HIGH, now + 0.001)
        now += 0.001
        found: list[Address] = []
        while not found and now < 65.0:
            now = min(one.membership.next_deadline() or 65.0, 65.0)
            one.membership.tick(now)
            found = dials(one.take())
        count += len(found)
    assert 10 < count < 80


def test_link_down_of_an_earlier_boot_is_ignored() -> None:
    one = Subject()
    one.membership.link_up(HIGH, 1, place(90), 0.5)
    one.membership.link_up(HIGH, 2, place(90), 3.0)
    one.membership.link_down(HIGH, 3.0, boot=1)
    assert dials(one.until(20.0)) == []
    assert one.membership.members(20.0)[0] == (HIGH, 2, (place(90),), True)


def test_a_restart_under_a_standing_link_is_dialled() -> None:
    one = Subject()
    one.membership.link_up(HIGH, 1, place(90), 0.5)
    effects = one.hear(90, 3.0, boot=2)
    assert dials(effects) == [place(90)]
    assert NewMember(HIGH) in effects


def test_a_broker_that_the_tree_has_lost_is_alive_once_it_announces_itself_again() -> None:
    one = Subject()

    def alive(now: float) -> bool:
        return one.membership.members(now)[0][3]

    one.hear(90, 0.5)
    one.membership.link_up(HIGH, 1, place(90), 0.6)
    one.membership.reachable(HIGH, True, 0.7)
    one.hear(90, 4.9)
    one.membership.link_down(HIGH, 5.0)
    assert alive(5.0)
    one.membership.reachable(HIGH, False, 5.0)
    assert not alive(5.0)
    one.hear(90, 9.9)
    assert alive(9.9) and alive(20.0)
    assert not alive(40.0)


def test_an_address_passes_to_who_answers_there() -> None:
    one = Subject()
    one.membership.link_up(HIGH, 1, place(90), 0.5)
    one.hear(91, 1.0, address=place(90))  # claims it while the link stands
    assert one.membership.members(1.0) == [(HIGH, 1, (place(90),), True), (bid(91), 1, (), True)]
    one.membership.link_down(HIGH, 2.0)
    one.take()
    one.membership.link_up(bid(91), 1, None, 2.1, dialled=place(90))
    assert one.membership.members(2.1)[1] == (bid(91), 1, (place(90),), True)
    assert dials(one.until(30.0)) == []


# --- gossip, leaving, forgetting ------------------------------------------------------------------


def test_gossip_version_grows_with_what_there_is_to_tell() -> None:
    one = Subject()
    versions = [one.membership.gossip_version]

    def grown() -> bool:
        versions.append(one.membership.gossip_version)
        return versions[-1] > versions[-2]

    one.hear(90, 0.1)
    assert grown()
    one.hear(90, 0.2)
    assert not grown()
    one.membership.link_up(HIGH, 1, place(90), 0.3)
    assert not grown()
    one.membership.member_learnt(HIGH, 1, [place(91)], 0.3)
    assert grown()
    one.membership.member_learnt(HIGH, 1, [place(91)], 0.4)
    assert not grown()
    one.hear(90, 0.5, boot=2)
    assert grown()
    one.hear(90, 0.6, boot=2, leave=True)
    assert grown()


def test_gossiped_addresses_that_cannot_be_dialled_from_here_are_ignored() -> None:
    one = Subject()
    near, far = Address("127.0.0.1", 1883), Address("10.0.0.7", 1883)
    addresses = [
        Address("127.0.0.1", 1884),
        Address("0.0.0.0", 1884),
        place(90),
        OWN.address,
        Address("10.0.0.1", 0),
    ]
    one.membership.member_learnt(HIGH, 1, [Address("two\nlines", 1)], 0.1)
    one.membership.member_learnt(HIGH, 1, addresses, 0.1, via=far)
    assert one.membership.members(0.1)[0][2] == (place(90),)
    one.membership.member_learnt(bid(91), 1, addresses[:2], 0.1, via=near)
    assert one.membership.members(0.1)[1][2] == (addresses[0],)
    one.membership.member_learnt(OWN.id, 9, [place(1)], 0.1)
    one.membership.member_learnt(b"short", 9, [place(1)], 0.1)
    assert one.known() == {HIGH, bid(91)}
    assert one.counters["gossip_refused"] == 2


def test_a_member_without_a_link_is_forgotten_and_not_gossiped_back() -> None:
    one = Subject()
    one.hear(90, 1.0)
    assert Left(HIGH) not in one.until(300.9)
    assert Left(HIGH) in one.until(301.1)
    one.membership.member_learnt(HIGH, 1, [place(90)], 302.0, alive=False)
    assert one.known() == set()
    assert dials(one.until(330.0)) == []
    one.membership.member_learnt(HIGH, 1, [place(90)], 330.0, alive=True)
    assert one.known() == {HIGH}


def test_linked_and_announcing_members_are_kept() -> None:
    one = Subject()
    one.membership.link_up(HIGH, 1, place(90), 1.0)
    for now in range(2, 1000, 100):
        one.until(float(now))
        one.hear(91, float(now))
    assert one.known() == {HIGH, bid(91)}
    one.membership.link_down(HIGH, 1000.0)
    one.until(1299.0)
    assert HIGH in one.known()
    one.until(1301.0)
    assert one.known() == set()


def test_a_goodbye_forgets_at_once_and_only_a_new_boot_comes_back() -> None:
    one = Subject(secret=b"s")
    one.hear(90, 1.0)
    effects = one.hear(90, 2.0, leave=True)
    assert Left(HIGH) in effects
    assert dials(one.until(30.0)) == []
    one.membership.member_learnt(HIGH, 1, [place(90)], 30.0, alive=True)
    assert one.known() == set()
    assert dials(one.hear(90, 31.0, boot=2)) == [place(90)]


def test_a_goodbye_of_a_linked_member_waits_for_the_link() -> None:
    one = Subject()
    one.membership.link_up(HIGH, 1, place(90), 1.0)
    one.membership.link_up(bid(91), 1, place(91), 1.0)
    assert Left(HIGH) not in one.hear(90, 2.0, leave=True)
    one.membership.member_left(bid(91), 1, 2.0)
    one.membership.link_down(HIGH, 2.1)
    one.membership.link_down(bid(91), 2.1)
    assert [effect for effect in one.take() if isinstance(effect, Left)] == [
        Left(HIGH),
        Left(bid(91)),
    ]
    assert dials(one.until(60.0)) == []


def test_a_seed_that_left_is_still_dialled() -> None:
    one = Subject(seeds=(place(90),))
    one.membership.link_up(HIGH, 1, place(90), 0.1, dialled=place(90))
    one.hear(90, 2.0, leave=True)
    one.membership.link_down(HIGH, 2.1)
    assert dials(one.until(4.0)) == []
    assert dials(one.until(20.0))[0] == place(90)


def test_resolved_names_replace_their_addresses() -> None:
    one = Subject(seeds=(place(1),))
    one.membership.seed_resolved([place(2), place(3)], 1.0, "name:1883")
    assert dials(one.take()) == [place(2), place(3)]
    one.membership.seed_resolved([place(3), place(4)], 2.0, "name:1883")
    assert dials(one.take()) == [place(4)]
    for number in (1, 2, 3, 4):
        one.membership.dial_failed(place(number), "refused", 2.1)
    assert set(dials(one.until(30.0))) == {place(1), place(3), place(4)}


# --- what is refused ------------------------------------------------------------------------------


def test_own_announcements_are_ignored() -> None:
    one = Subject(Identity(bid(50), 1, Address("0.0.0.0", 1883)))
    one.until(30.0)
    for effect in list(one.log):
        if isinstance(effect, Announce):
            one.membership.datagram_received(effect.data, ("127.0.0.1", 18830), 30.0)
            one.membership.datagram_received(effect.data, ("10.0.0.50", 18830), 30.0)
    assert one.counters["own"] == one.counters["received"] > 8
    assert lines(one.log + one.take()) == []
    assert one.known() == set()


@pytest.mark.parametrize("boot", [4, 5, 6])
def test_two_brokers_with_one_id_are_reported_once(boot: int) -> None:
    one = Subject()
    for now in (1.0, 2.0, 3.0, 4.0):
        one.hear(50, now, boot=boot, source=source(9))
    found = lines(one.log)
    assert len(found) == 1
    assert found[0].startswith("two brokers have one id: 10.0.0.9:1883 also uses 0000000000000032")
    assert one.counters["duplicate_id"] >= 3
    assert one.known() == set()
    assert dials(one.until(5.0)) == []


def test_an_earlier_life_is_no_second_broker() -> None:
    one = Subject()
    one.hear(50, 0.01, boot=4, counter=9)
    one.hear(50, 0.02, boot=4, counter=9)
    one.hear(50, 0.03, boot=4, counter=10, leave=True)
    assert lines(one.log) == []


def test_a_link_to_our_own_id_is_reported_and_not_dialled_again() -> None:
    one = Subject(seeds=(place(1), place(2)))
    one.membership.link_up(OWN.id, OWN.boot, None, 0.1, dialled=place(1))
    one.membership.link_up(OWN.id, 9, None, 0.1, dialled=place(2))
    assert len(lines(one.take())) == 1
    assert dials(one.until(100.0)) == []


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"secret": b"wrong"}, "wrong_secret", "another cluster secret"),
    ({"secret": None}, "wrong_secret", "not signed"),
    ({"wall": WALL - 61.0}, "wrong_clock", "differs by -6"),
    ({"wall": WALL + 70.0}, "wrong_clock", "differs by"),
    ({"counter": 500}, "replayed", "received before"),
    ({"counter": 900}, "replayed", "received before"),
    ({"boot": 1}, "replayed", "earlier incarnation"),
    ({"cluster": "other"}, "wrong_cluster", ""),
    ({"cluster": "other", "secret": b"others"}, "wrong_cluster", ""),
]


@pytest.mark.parametrize(("fields", "counter", "word"), REFUSED)
def test_refused_announcements_change_nothing(
    fields: dict[str, Any], counter: str, word: str
) -> None:
    one = Subject(secret=b"right")
    one.hear(90, 0.5, boot=2, counter=900)
    one.membership.link_up(HIGH, 2, place(90), 0.6)
    one.until(5.0)
    before = (one.membership.members(5.0), one.state, one.membership.next_deadline())
    effects = one.hear(90, 5.0, **({"boot": 2} | fields))
    assert (one.membership.members(5.0), one.state, one.membership.next_deadline()) == before
    assert one.counters[counter] == 1
    assert all(isinstance(effect, Log) for effect in effects)
    assert len(lines(effects)) == (1 if word else 0)
    assert word in "".join(lines(effects))
    one.hear(91, 5.0, **({"boot": 2, "address": Address("", 1)} | fields | {"leave": True}))
    assert one.known() <= {HIGH, bid(91)}


def test_the_second_copy_of_a_datagram_is_no_replay() -> None:
    one = Subject(secret=b"s")
    one.hear(90, 1.0, counter=7)
    one.hear(90, 1.001, counter=7, source=source(9))
    assert one.counters["repeated"] == 1
    assert lines(one.log) == []
    one.hear(90, 9.0, counter=7)
    assert one.counters["replayed"] == 1


def test_without_a_secret_a_forged_counter_or_boot_silences_no_broker_for_long() -> None:
    one = Subject()
    one.hear(90, 1.0, counter=2**32 - 1)
    one.hear(90, 2.0, counter=5)
    assert one.counters["repeated"] == 1
    one.hear(90, 12.0, counter=6)
    assert one.counters["accepted"] == 2
    one.hear(90, 13.0, boot=0)
    assert one.counters["stale_boot"] == 1


def test_a_clock_that_is_set_is_followed() -> None:
    one = Subject(secret=b"s")
    one.membership.set_wall(WALL + 1000.0, 0.5)
    one.hear(90, 0.5, wall=WALL + 1000.0)
    assert one.known() == {HIGH}


def test_bad_datagrams_are_logged_once_a_minute_for_each_host() -> None:
    one = Subject()
    for step in range(600):
        one.membership.datagram_received(b"junk", ("10.0.0.1", step), step / 10)
        one.membership.datagram_received(b"MQTr\x09\x00" + bytes(40), ("10.0.0.2", step), step / 10)
    found = lines(one.take())
    assert found == [
        "datagram from 10.0.0.1 ignored: not an announcement",
        "datagram from 10.0.0.2 ignored: announcement version 9, this broker speaks 1",
    ]
    assert one.counters["garbage"] == one.counters["wrong_version"] == 600
    one.membership.datagram_received(b"junk", ("10.0.0.1", 1), 61.0)
    assert len(lines(one.take())) == 1
    for host in range(5000):
        one.membership.datagram_received(b"junk", (f"10.1.{host // 256}.{host % 256}", 1), 70.0)
    assert len(lines(one.take())) <= MAX_COMPLAINTS


def check_bounds(membership: Membership) -> None:
    table, filter_ = membership._table, membership._filter
    assert len(table.members) <= MAX_MEMBERS
    assert len(table._tombstones) <= MAX_TOMBSTONES
    assert len(filter_._seen) <= MAX_SEEN
    assert len(filter_._complaints) <= MAX_COMPLAINTS
    assert len(membership._offenders) <= MAX_OFFENDERS
    dialler = table.dialler
    assert len(dialler._under_way) <= MAX_DIALS
    assert sum(map(len, dialler._heaps.values())) <= 4 * (4 * len(dialler.targets) + 65)
    begun = [target for target in dialler.targets.values() if target.under_way]
    assert len(begun) == len(dialler._under_way)
    assert 0 <= dialler._retrying <= MAX_RETRIES
    for member in table.members.values():
        owned = table._owned[member.id]
        assert len(table.addresses(member)) <= MAX_ADDRESSES
        assert sum(not target.static for target in owned) <= MAX_ADDRESSES
        assert all(target.owner == member.id for target in owned)
        assert not (member.linked and any(target.due < 1e18 for target in owned))
    for address, target in dialler.targets.items():
        assert address == target.address
        assert target.static or target.owner in table.members


def test_a_flood_of_forged_brokers_stays_in_bounds_and_keeps_the_linked() -> None:
    one = Subject()
    one.membership.link_up(HIGH, 1, place(90), 0.1)
    for step in range(4 * MAX_MEMBERS):
        one.hear(1000 + step, 1.0 + step / 1000)
    check_bounds(one.membership)
    assert HIGH in one.known()
    assert len(one.known()) == MAX_MEMBERS
    one.until(20.0)
    one.until(400.0)
    assert one.known() == {HIGH}


numbers = st.integers(1, 12).map(lambda number: number * 10)
boots = st.integers(0, 3)
places = st.integers(1, 20).map(place)
ADVANCE = st.sampled_from([0.0, 0.001, 0.02, 0.1, 0.5, 3.0, 40.0, 400.0])
inputs = st.one_of(
    st.tuples(
        st.just("hear"),
        numbers,
        boots,
        st.integers(0, 50),
        st.booleans(),
        st.booleans(),
        st.sampled_from([b"s", b"t", None]),
        st.sampled_from(["", "10.0.0.3", "127.0.0.1"]),
        st.sampled_from([0.0, 0.0, 100.0]),
    ),
    st.tuples(st.just("junk"), st.binary(max_size=60)),
    st.tuples(st.just("learnt"), numbers, boots, st.lists(places, max_size=6), st.booleans()),
    st.tuples(st.just("left"), numbers, boots),
    st.tuples(st.just("seed"), st.lists(places, max_size=4), st.sampled_from(["", "a"])),
    st.tuples(st.just("failed"), places),
    st.tuples(st.just("up"), numbers, boots, st.none() | places, st.none() | places),
    st.tuples(st.just("down"), numbers, st.none() | boots),
    st.tuples(st.just("self"), places),
    st.tuples(st.just("peer"), places, numbers),
    st.tuples(st.just("agreed"), st.booleans()),
    st.tuples(st.just("answer"), st.booleans()),
    st.tuples(st.just("tick")),
)


def apply(one: Subject, event: tuple[Any, ...], now: float, open_dials: list[Address]) -> None:
    membership, kind, rest = one.membership, event[0], event[1:]
    if kind == "hear":
        number, boot, counter, new, leave, secret, host, skew = rest
        one.hear(
            number,
            now,
            boot=boot,
            counter=counter,
            new=new,
            leave=leave,
            secret=secret,
            address=Address(host, 1883),
            wall=WALL + now + skew,
        )
    elif kind == "junk":
        membership.datagram_received(rest[0], ("10.0.0.1", 1), now)
    elif kind == "learnt":
        membership.member_learnt(bid(rest[0]), rest[1], rest[2], now, alive=rest[3])
    elif kind == "left":
        membership.member_left(bid(rest[0]), rest[1], now)
    elif kind == "seed":
        membership.seed_resolved(rest[0], now, rest[1])
    elif kind == "failed":
        membership.dial_failed(rest[0], "refused", now)
    elif kind == "up":
        membership.link_up(bid(rest[0]), rest[1], rest[2], now, dialled=rest[3])
    elif kind == "down":
        membership.link_down(bid(rest[0]), now, boot=rest[1])
    elif kind == "self":
        membership.address_is_self(rest[0], now)
    elif kind == "peer":
        membership.address_is_peer(rest[0], bid(rest[1]), now)
    elif kind == "agreed":
        membership.tree_agreed(rest[0], now)
    elif kind == "answer" and open_dials:
        membership.dial_failed(open_dials.pop(0), "refused", now)
    elif kind == "tick":
        membership.tick(now)


@given(
    st.lists(st.tuples(ADVANCE, inputs), max_size=30), st.sampled_from([None, b"s"]), st.booleans()
)
@settings(deadline=None, max_examples=examples(100))
def test_random_events_raise_nothing_and_stay_in_bounds(
    events: list[tuple[float, tuple[Any, ...]]], secret: bytes | None, announce: bool
) -> None:
    one = Subject(secret=secret, announce=announce, seeds=(place(1), place(2)))
    now, open_dials = 0.0, list(dials(one.log))
    for pause, event in events:
        one.until(now + pause)
        now += pause
        mark = len(one.log)
        apply(one, event, now, open_dials)
        one.take()
        open_dials += dials(one.log[mark:])
        check_bounds(one.membership)
        due = one.membership.next_deadline()
        assert due is None or due > now
        assert OWN.id not in one.known(now)
        assert OWN.address not in dials(one.log)


# --- several together -----------------------------------------------------------------------------


# ------------------------------------------------------------------ lies and floods


def test_the_goodbye_of_a_namesake_leaves_the_linked_original() -> None:
    """Another broker with the id of a linked one starts, announces itself with a later boot, and
    leaves or is gone."""
    one = Subject()
    one.hear(90, 0.1, boot=3)
    one.membership.link_up(HIGH, 3, place(90), 0.2)
    one.until(2.0)
    for boot in (7, 8):
        one.hear(90, 2.0 + boot, boot=boot, address=Address("10.9.9.9", 1883), counter=boot)
        one.hear(
            90,
            2.1 + boot,
            boot=boot,
            address=Address("10.9.9.9", 1883),
            counter=10 + boot,
            leave=True,
        )
        assert [(m[0], m[1], m[3]) for m in one.membership.members(2.1 + boot)] == [(HIGH, 3, True)]
        one.membership.member_left(HIGH, boot, 2.2 + boot)
        assert HIGH in one.known(2.2 + boot)
    assert not [effect for effect in one.log if isinstance(effect, Left)]
    one.membership.member_learnt(HIGH, 3, [place(90)], 20.0)
    one.membership.link_down(HIGH, 21.0, 3)
    assert place(90) in dials(one.until(25.0)), "it is sought as any other"


def test_a_namesake_that_falls_silent_does_not_take_the_linked_original_along() -> None:
    one = Subject(forget_after=30.0)
    one.hear(90, 0.1, boot=3)
    one.membership.link_up(HIGH, 3, place(90), 0.2)
    one.hear(90, 2.0, boot=7, address=Address("10.9.9.9", 1883))
    one.until(300.0)
    assert HIGH in one.known(300.0)
    one.membership.link_down(HIGH, 300.0, 3)
    one.until(400.0)
    assert HIGH not in one.known(400.0)


def flood(one: Subject, seconds: int, addresses: int = 4) -> list[float]:
    """Gossip of 500 new brokers a second, all of whose addresses refuse at once; returns when we
    dialled."""
    when: list[float] = []
    rng = random.Random(3)
    for tenth in range(10 * seconds):
        now = 1.0 + tenth / 10
        for _ in range(50):
            told = [
                Address(f"10.{rng.randrange(250)}.{rng.randrange(250)}.{rng.randrange(250)}", 1883)
                for _ in range(addresses)
            ]
            one.membership.member_learnt(rng.randbytes(8), 1, told, now)
        for step in range(10):
            at = now + step / 100
            one.until(at)
            for effect in one.take() + one.log:
                if isinstance(effect, Dial):
                    when.append(at)
                    one.membership.dial_failed(effect.address, "connection refused", at)
            one.log.clear()
    return when


def test_gossip_of_thousands_makes_us_dial_now_and_then() -> None:
    one = Subject()
    when = flood(one, 20)
    assert len(one.known()) <= MAX_GOSSIP_ONLY
    for start in range(1, 20):
        assert (
            sum(start <= at < start + 1 for at in when)
            <= DOUBTFUL_BURST * (start < 3) + DOUBTFUL_RATE + MAX_DIALS
        )
    assert sum(at >= 5 for at in when) > 100


def test_a_broker_that_was_linked_is_redialled_at_once_in_a_flood() -> None:
    one = Subject()
    one.hear(90, 0.1)
    one.membership.link_up(HIGH, 1, place(90), 0.2, place(90))
    flood(one, 5)
    one.membership.link_down(HIGH, 6.0)
    assert place(90) in dials(one.until(6.0 + one.membership.config.dial_patience + 0.05))


def test_a_hundred_that_start_together_are_dialled_without_delay() -> None:
    one = Subject(own=Identity(bid(0), 5, Address("10.0.9.9", 1883), "own"))
    found: set[Address] = set()
    for number in range(1, 101):
        one.hear(number, 0.1)
    for step in range(20):
        one.until(0.1 + step / 100)
        for address in dials(one.log):
            if address not in found:
                found.add(address)
                one.membership.link_up(
                    bid(address_number(address)), 1, address, 0.1 + step / 100, address
                )
    assert len(found) == 100


def address_number(address: Address) -> int:
    return int(address.host.rsplit(".", 1)[1])
