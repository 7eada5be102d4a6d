from __future__ import annotations

import random
from collections import deque

import pytest

from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.routing.link_state import (
    ASK_LISTINGS,
    CHANGES,
    LISTING,
    STAMPS,
    BrokerReachable,
    BrokerUnreachable,
    LinkStateDatabase,
    Posted,
)
from mqttree.routing.listing import DirectoryError


def name(number: int) -> bytes:
    return number.to_bytes(8, "big")


class Net:
    """Directories joined by ordered, lossless links, as a tree; messages take their time in a
    random order between links."""

    def __init__(self, seed: int = 0, limits: Limits = DEFAULTS) -> None:
        self.limits = limits
        self.random = random.Random(seed)
        self.brokers: dict[bytes, LinkStateDatabase] = {}
        self.boots: dict[bytes, int] = {}
        self.links: dict[tuple[bytes, bytes], deque[bytes]] = {}
        # This is what each learnt by its events.
        self.heard: dict[bytes, dict[bytes, dict[bytes, bytes]]] = {}

    def start(self, broker: bytes) -> LinkStateDatabase:
        self.boots[broker] = self.boots.get(broker, 0) + 1
        self.brokers[broker] = LinkStateDatabase(broker, self.boots[broker], self.limits)
        self.heard[broker] = {}
        return self.brokers[broker]

    def stop(self, broker: bytes) -> None:
        for a, b in [pair for pair in self.links if broker == pair[0]]:
            self.cut(a, b)
        del self.brokers[broker]

    def join(self, a: bytes, b: bytes) -> None:
        self.links[a, b], self.links[b, a] = deque(), deque()
        ends = [(a, b), (b, a)]
        self.random.shuffle(ends)
        for mine, other in ends:
            self.brokers[mine].neighbour_up(other)
            self.collect()
            for _ in range(self.random.randrange(3)):
                self.step()
        for mine, other in ends:
            self.brokers[mine].neighbour_ready(other)

    def cut(self, a: bytes, b: bytes) -> None:
        for mine, other in ((a, b), (b, a)):
            del self.links[mine, other]
            self.brokers[mine].neighbour_down(other)

    def collect(self) -> None:
        for broker, directory in self.brokers.items():
            directory.flush()
            for peer, message in directory.take_messages():
                if (broker, peer) in self.links:
                    self.links[broker, peer].append(message)
            for event in directory.take_events():
                known = self.heard[broker]
                match event:
                    case BrokerReachable(who, _):
                        assert who not in known
                        known[who] = dict(directory.listings[who].entries)
                    case BrokerUnreachable(who, _):
                        del known[who]
                    case Posted(who, changes):
                        for key, value in changes:
                            if value is None:
                                known[who].pop(key, None)
                            else:
                                known[who][key] = value

    def step(self) -> bool:
        self.collect()
        waiting = [pair for pair, queue in self.links.items() if queue]
        if not waiting:
            return False
        sender, receiver = self.random.choice(waiting)
        self.brokers[receiver].received(sender, self.links[sender, receiver].popleft())
        self.collect()
        return True

    def settle(self) -> int:
        steps = 0
        while self.step():
            steps += 1
            assert steps < 100_000, "messages circulate"
        return steps

    def component(self, broker: bytes) -> set[bytes]:
        found, todo = {broker}, [broker]
        while todo:
            at = todo.pop()
            for a, b in self.links:
                if a == at and b not in found:
                    found.add(b)
                    todo.append(b)
        return found

    def check(self) -> None:
        for broker, directory in self.brokers.items():
            others = self.component(broker) - {broker}
            assert {listing.id for listing in directory.reachable()} == others
            expected = {other: self.brokers[other].own.entries for other in others}
            assert {listing.id: listing.entries for listing in directory.reachable()} == expected
            assert self.heard[broker] == expected
            for other in others:  # via the neighbour that is on the way
                via = directory.via(other)
                assert via is not None and (broker, via) in self.links
                self_cut = {
                    pair: queue for pair, queue in self.links.items() if set(pair) != {broker, via}
                }
                whole, self.links = self.links, self_cut
                assert other in self.component(via)
                self.links = whole


@pytest.mark.parametrize("seed", range(150))
def test_all_brokers_know_all_that_can_be_reached(seed: int) -> None:
    net = Net(seed)
    chance = net.random
    names = [name(n) for n in range(chance.randrange(2, 9))]
    for broker in names:
        net.start(broker)
    for _ in range(60):
        broker = chance.choice(list(net.brokers))
        what = chance.random()
        if what < 0.4:
            net.brokers[broker].post(b"k%d" % chance.randrange(5), b"v%d" % chance.randrange(1000))
        elif what < 0.5:
            net.brokers[broker].withdraw(b"k%d" % chance.randrange(5))
        elif what < 0.75:
            far = [b for b in net.brokers if b not in net.component(broker)]
            if far:
                net.join(broker, chance.choice(far))
        elif what < 0.85:
            near = [b for a, b in net.links if a == broker]
            if near:
                net.cut(broker, chance.choice(near))
        elif what < 0.9 and len(net.brokers) > 1:
            net.stop(broker)
        elif what < 0.95:
            gone = [b for b in names if b not in net.brokers]
            if gone:
                net.start(chance.choice(gone))
        for _ in range(chance.randrange(6)):
            net.step()
    net.settle()
    net.check()
    for a, b in list(net.links):
        net.brokers[a].check(b)
    assert net.settle() <= len(net.links)  # digests only: all know the same


def two() -> Net:
    net = Net()
    net.start(name(1))
    net.start(name(2))
    return net


def test_a_link_that_returns_costs_no_listing() -> None:
    net = two()
    for number in range(100):
        net.brokers[name(1)].post(b"%d" % number, b"x")
    net.join(name(1), name(2))
    net.settle()
    net.cut(name(1), name(2))
    net.brokers[name(1)].neighbour_up(name(2))
    net.brokers[name(2)].neighbour_up(name(1))
    net.links[name(1), name(2)], net.links[name(2), name(1)] = deque(), deque()
    kinds = []
    while True:
        net.collect()
        kinds += [message[0] for queue in net.links.values() for message in list(queue)[-1:]]
        if not net.step():
            break
    assert LISTING not in kinds


def test_a_long_listing_comes_in_parts() -> None:
    net = two()
    entries = {b"%d" % number: bytes(1000) for number in range(1000)}
    for key, value in entries.items():
        net.brokers[name(1)].post(key, value)
    net.join(name(1), name(2))
    assert net.settle() > 10
    net.check()


def test_two_digests_that_differ_ask_for_all() -> None:
    net = two()
    net.join(name(1), name(2))
    net.settle()
    net.brokers[name(2)].listings[name(1)].version -= 1
    for _ in range(2):
        net.brokers[name(1)].check(name(2))
        net.settle()
    assert net.brokers[name(2)].listings[name(1)].version == net.brokers[name(1)].own.version


def test_nothing_circulates_in_a_loop() -> None:
    net = Net()
    for number in (1, 2, 3):
        net.start(name(number))
    for a, b in ((1, 2), (2, 3), (3, 1)):
        net.join(name(a), name(b))
    net.settle()
    net.brokers[name(1)].post(b"k", b"v")
    assert net.settle() < 10
    assert net.heard[name(3)][name(1)][b"k"] == b"v"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        bytes((STAMPS,)) + b"short",
        bytes((ASK_LISTINGS,)) + bytes(21),
        bytes((LISTING,)) + bytes(20),
        bytes((LISTING,)) + bytes(21) + b"\0\0\0\x01\0\0\0\x01k",
        bytes((CHANGES,)) + bytes(27),
    ],
)
def test_malformed_messages_raise_an_error(message: bytes) -> None:
    net = two()
    net.join(name(1), name(2))
    net.settle()
    with pytest.raises(DirectoryError):
        net.brokers[name(1)].received(name(2), message)


def test_an_entry_that_is_too_large_is_refused() -> None:
    directory = LinkStateDatabase(name(1), 1, DEFAULTS)
    with pytest.raises(ValueError, match="limits"):
        directory.post(b"k", bytes(80_000))


def test_a_stranger_changes_nothing() -> None:
    directory = LinkStateDatabase(name(1), 1, DEFAULTS)
    directory.received(name(9), bytes((STAMPS,)) + name(9) + bytes(12))
    assert directory.reachable() == []


def test_a_listing_is_bounded_in_bytes() -> None:
    one = LinkStateDatabase(name(1), 1, Limits(listing_own_bytes=1000))
    one.post(b"a" * 400, b"")
    one.post(b"b" * 400, b"12345678")
    with pytest.raises(ValueError, match="more bytes"):
        one.post(b"c" * 400, b"")
    one.post(b"b" * 400, b"x" * 20)
    one.post(b"small", b"finds room")
    one.withdraw(b"a" * 400)
    one.post(b"c" * 400, b"")
    assert one.own.size == sum(len(key) + len(value) for key, value in one.own.entries.items())


@pytest.mark.parametrize("late", [False, True])
def test_a_neighbour_cannot_have_us_keep_more_bytes_than_a_listing_may_have(late: bool) -> None:
    net = Net(limits=Limits(listing_bytes=1500))
    one, two = net.start(name(1)), net.start(name(2))
    if late:
        net.join(name(1), name(2))
        net.settle()
    with pytest.raises(DirectoryError):
        for number in range(100):
            one.post(b"%3d" % number + b"x" * 100, b"1")
            one.post(b"%3d" % number, b"1")
            one.withdraw(b"%3d" % number)
            if late:
                net.settle()
        net.join(name(1), name(2))
        net.settle()
    assert two.memory < 100_000


def test_the_bytes_of_a_listing_are_counted_through_all_changes() -> None:
    net = Net()
    one, two = net.start(name(1)), net.start(name(2))
    one.post(b"before", b"1")
    net.join(name(1), name(2))
    net.settle()
    for key, value in (
        (b"a", b"1"),
        (b"a", b"22"),
        (b"b", b""),
        (b"a", None),
        (b"none", None),
        (b"before", b"333"),
    ):
        if value is None:
            one.withdraw(key)
        else:
            one.post(key, value)
        net.settle()
    (listing,) = two.listings.values()
    assert listing.entries == one.own.entries
    assert listing.size == sum(len(key) + len(value) for key, value in listing.entries.items())
