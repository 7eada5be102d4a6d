"""Which of many members a broker links to: the choice by itself, and its upkeep as members come, go
and cannot be reached."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.address import Address
from mqttree.broker.base.broker_id import Identity
from mqttree.discovery.effects import Dial, MembershipConfig, Surplus
from mqttree.discovery.membership import Membership
from mqttree.discovery.neighbour_selection import REVIEW, STRAY_AFTER, SURPLUS_AFTER, neighbours

FEW = 8
OWN = (5000).to_bytes(8, "big")
IDS = st.sets(st.binary(min_size=8, max_size=8), min_size=1, max_size=80)


def bid(number: int) -> bytes:
    return number.to_bytes(8, "big")


def place(number: int) -> Address:
    return Address(f"10.0.{number // 250}.{number % 250 + 1}", 1883)


def distances(graph: Mapping[bytes, set[bytes]], start: bytes) -> dict[bytes, int]:
    found = {start: 0}
    edge = deque([start])
    while edge:
        broker = edge.popleft()
        for near in sorted(graph[broker] - found.keys()):
            found[near] = found[broker] + 1
            edge.append(near)
    return found


def links(choices: Mapping[bytes, set[bytes]], alive: set[bytes]) -> dict[bytes, set[bytes]]:
    """A link stands when one end wants it and both live."""
    graph: dict[bytes, set[bytes]] = {broker: set() for broker in alive}
    for one, chosen in choices.items():
        for other in chosen & alive:
            graph[one].add(other)
            graph[other].add(one)
    return graph


# --- the choice -----------------------------------------------------------------------------------


@given(IDS)
def test_the_graph_is_connected_mutual_and_sparse(ids: set[bytes]) -> None:
    graph = {broker: neighbours(broker, ids) for broker in ids}
    bound = math.floor(math.log2(len(ids)))
    for broker in ids:
        assert broker not in graph[broker]
        assert len(graph[broker]) <= 2 * bound
        assert all(broker in graph[other] for other in graph[broker])
        found = distances(graph, broker)
        assert found.keys() == ids
        assert max(found.values()) <= bound


@given(IDS, st.data())
def test_the_living_stay_connected_when_the_dead_are_passed_over(
    ids: set[bytes], data: st.DataObject
) -> None:
    alive = data.draw(st.sets(st.sampled_from(sorted(ids)), min_size=1))
    choices = {
        broker: neighbours(broker, ids, lambda other: other not in alive) for broker in alive
    }
    graph = links(choices, alive)
    bound = 2 * math.floor(math.log2(len(ids)))
    for broker in alive:
        assert len(choices[broker] & alive) <= bound
        assert len(choices[broker] - alive) <= bound, (
            "of those that fail only the first of each distance is tried on"
        )
    assert distances(graph, min(alive)).keys() == alive


@given(IDS, st.binary(min_size=8, max_size=8))
def test_a_join_or_leave_changes_few_links(ids: set[bytes], other: bytes) -> None:
    """Those that know of it and those that do not yet are connected all the same."""
    before, after = ids - {other}, ids | {other}
    for late in (set(), {min(after)}, set(sorted(after)[::2])):
        choices = {
            broker: neighbours(broker, before if broker in late else after) for broker in after
        }
        assert distances(links(choices, after), other).keys() == after


@pytest.mark.parametrize(
    ("count", "degree", "diameter"), [(10, 6, 2), (50, 10, 3), (200, 14, 4), (1000, 18, 6)]
)
def test_the_graph_has_the_expected_degree_and_diameter(
    count: int, degree: int, diameter: int
) -> None:
    ids = [bid(number) for number in range(count)]
    graph = {broker: neighbours(broker, ids) for broker in ids}
    assert {len(chosen) for chosen in graph.values()} == {degree}
    assert max(distances(graph, ids[0]).values()) == diameter


# --- its upkeep -----------------------------------------------------------------------------------


class Subject:
    """A membership whose dials are answered as the test says: those in `dead` fail, all others
    become links."""

    def __init__(self, few: int | None = FEW) -> None:
        own = Identity(OWN, 1, Address("10.9.9.9", 1883))
        self.membership = Membership(
            MembershipConfig(announce=False, full_mesh=few), own, 0.0, 1e9, random.Random(1)
        )
        self.links: set[int] = set()
        self.dead: set[int] = set()
        self.dialled: list[int] = []
        self.surplus: list[int] = []
        self.numbers: dict[Address, int] = {}
        self.now = 0.0

    def learn(self, *numbers: int) -> None:
        for number in numbers:
            self.numbers[place(number)] = number
            self.membership.member_learnt(bid(number), 1, [place(number)], self.now)
        self.settle()

    def settle(self) -> None:
        while effects := self.membership.take_effects():
            for effect in effects:
                if isinstance(effect, Dial):
                    number = self.numbers[effect.address]
                    self.dialled.append(number)
                    if number in self.dead:
                        self.membership.dial_failed(effect.address, "refused", self.now)
                    else:
                        self.links.add(number)
                        self.membership.link_up(
                            bid(number), 1, effect.address, self.now, effect.address
                        )
                        self.membership.reachable(bid(number), True, self.now)
                elif isinstance(effect, Surplus):
                    self.surplus.append(int.from_bytes(effect.id, "big"))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.membership.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            self.membership.tick(self.now)
            self.settle()
        self.now = until

    def reach(self, numbers: range | set[int]) -> None:
        for number in numbers:
            self.membership.reachable(bid(number), True, self.now)

    def lose(self, number: int) -> None:
        self.dead.add(number)
        self.links.discard(number)
        self.membership.link_down(bid(number), self.now)
        self.membership.reachable(bid(number), False, self.now)
        self.settle()

    def wanted(self, known: range | set[int]) -> set[int]:
        return {int.from_bytes(broker, "big") for broker in neighbours(OWN, map(bid, known))}


def test_of_many_members_some_are_linked_and_surplus_links_are_closed_later() -> None:
    one = Subject()
    everybody = range(4900, 5100)
    one.learn(*(number for number in everybody if number != 5000))
    one.run(1.0)
    wanted = one.wanted(set(everybody) - {5000})
    early = one.links - wanted
    assert one.links >= wanted
    assert len(early) <= FEW, "only those that were the first to be heard of"
    one.reach(set(everybody) - {5000})
    one.run(SURPLUS_AFTER - 2.0)
    assert one.surplus == []
    one.run(2.0 + 2 * REVIEW)
    assert set(one.surplus) == early
    assert one.links >= wanted


def test_a_link_that_the_other_end_dialled_is_left_to_it() -> None:
    one = Subject()
    one.learn(*range(1, 100))
    one.run(1.0)
    other = next(number for number in range(1, 100) if number not in one.links)
    one.membership.link_up(bid(other), 1, place(other), one.now)
    one.reach(range(1, 100))
    one.run(3 * SURPLUS_AFTER)
    assert other not in one.surplus
    one.membership.link_down(bid(other), one.now)
    before = len(one.dialled)
    one.run(5.0)
    assert other not in one.dialled[before:], "nor is it missed"


def test_the_next_on_the_ring_takes_the_place_of_a_dead_neighbour() -> None:
    one = Subject()
    one.learn(*range(5001, 5100))
    one.run(1.0)
    one.reach(range(5001, 5100))
    one.run(2 * SURPLUS_AFTER)
    one.links -= set(one.surplus)
    for number in set(one.surplus):
        one.membership.link_down(bid(number), one.now)
    assert 5001 in one.links
    one.lose(5001)
    one.run(1.0)
    assert 5002 in one.links
    one.dead.clear()
    one.run(20.0)
    assert 5001 in one.links, "it is tried on"


def test_members_that_no_broker_reaches_are_dialled_wherever_they_are() -> None:
    """As when two halves of the federation see each other but no neighbours on the ring can
    connect."""
    one = Subject()
    near, far = set(range(4900, 5100, 2)) - {5000}, set(range(4901, 5100, 2))
    one.dead = far - {5041}
    one.learn(*near, *far)
    one.run(1.0)
    one.reach(near)
    assert 5041 not in one.links, "the schedule needs one that is not chosen"
    one.run(STRAY_AFTER + 60.0)
    assert 5041 in one.links
    dials = len(one.dialled)
    one.run(20.0)
    assert len(one.dialled) - dials <= 20 * 16, "and the dead cost no more than some dials a second"


def test_members_in_the_tree_are_not_forgotten_without_a_link() -> None:
    one = Subject()
    one.learn(*range(1, 100))
    one.run(1.0)
    one.reach(range(1, 90))
    one.dead = set(range(90, 100))
    one.run(400.0)
    known = {int.from_bytes(member[0], "big") for member in one.membership.members(one.now)}
    assert known >= set(range(1, 90))
    one.membership.reachable(bid(3), False, one.now)
    one.dead.add(3)
    if 3 in one.links:
        one.lose(3)
    one.run(400.0)
    assert bid(3) not in {member[0] for member in one.membership.members(one.now)}


def test_made_up_members_hold_no_place_for_long() -> None:
    one = Subject()
    one.learn(*range(1, 6))
    one.run(1.0)
    one.dead = set(range(6000, 6100))
    one.learn(*one.dead)
    one.run(20.0)
    one.learn(7)
    one.run(1.0)
    assert one.links == {1, 2, 3, 4, 5, 7}, "as if the others were not there"
    one.reach(one.dead)
    one.run(3 * SURPLUS_AFTER)
    assert one.surplus == []


@given(
    st.lists(st.tuples(st.sampled_from("jlkrt"), st.integers(1, 60)), max_size=60),
    st.integers(0, 9),
)
def test_chosen_members_that_live_are_linked_whatever_happens(
    events: list[tuple[str, int]], seed: int
) -> None:
    one = Subject()
    one.now = float(seed)
    one.learn(*range(1, 12))
    for event, number in events:
        if event == "j":
            one.learn(number)
        elif event == "l":
            one.dead.discard(number)
        elif event == "k" and number in one.links:
            one.lose(number)
        elif event == "r":
            one.reach({number})
        else:
            one.run(number / 20)
    one.dead.clear()
    one.run(60.0)
    known = {int.from_bytes(member[0], "big") for member in one.membership.members(one.now)}
    wanted = one.wanted(known) if len(known) > FEW else known
    assert one.links >= wanted
