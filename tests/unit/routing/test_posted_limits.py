"""A proven neighbour that posts as much as it can: every table that it fills has a limit, and what
is beyond is counted."""

from __future__ import annotations

from typing import Any

import pytest

from mqttree.broker.cluster.directory.link_state_directory import GROUP, INTEREST
from mqttree.broker.cluster.events import LinkForwards
from mqttree.broker.cluster.link.control_records import DIRECTORY
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.link.version_vector import OriginWindow
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.routing.group_selection import encode_standing, group_key
from mqttree.routing.link_state import ASK_LISTINGS, AT_ONCE, LinkStateDatabase
from mqttree.routing.listing import ENTRY_MEMORY, NEIGHBOUR, UP
from tests.kit.link_harness import FAR, OWN, Neighbour, bid, listing, listing_changes, lone, ping
from tests.kit.node_harness import World

Entries = list[tuple[bytes, bytes | None]]
FOREVER = 60_000.0


def linked(number: int = 1, **config: Any) -> tuple[World, Neighbour]:
    world = lone(**{"routing": "interest", "link_timeout": FOREVER, **config})
    liar = Neighbour(world, number).child()
    return world, liar


def told(
    neighbour: Neighbour, broker: int, entries: Entries, *, number: int = 5, flags: int = 3
) -> None:
    """Let the neighbour say what a broker says of itself, or (`flags`) a part of that."""
    neighbour.send(listing(broker, entries, number, flags))
    neighbour.world.advance(0.02)


def changed(neighbour: Neighbour, broker: int, before: int, entries: Entries) -> None:
    neighbour.send(listing_changes(broker, entries, before))
    neighbour.world.advance(0.02)


def there(broker: int) -> Entries:
    """What makes a broker reachable that is the neighbour."""
    return [(NEIGHBOUR + OWN, UP + b"\xff" * 12)]


# ---------------------------------------------------------------- listings


def well_subscribed() -> tuple[World, Neighbour]:
    """A broker whose own listing is long, and its neighbour, who has heard of that."""
    world, liar = linked()
    for number in range(20_000):
        world.node.cluster.directory.post(INTEREST + b"device/%d/state" % number)
    world.advance(1.0)
    liar.take()
    return world, liar


def test_asking_for_a_listing_again_and_again_brings_it_once_at_a_time() -> None:
    world, liar = well_subscribed()
    whole = sum(len(key) + 8 for key in world.node.cluster.directory.database.own.entries)
    liar.send(ping((DIRECTORY, bytes((ASK_LISTINGS,)) + (OWN + bytes(12)) * 10_000)))
    assert (
        world.most(1.0, lambda: int(world.counters.link_bytes_data) + len(liar.transport.written))
        <= 2 * AT_ONCE
    )
    assert whole <= len(liar.transport.written) <= whole + AT_ONCE


def test_a_neighbour_that_reads_nothing_gets_no_more_listings() -> None:
    world, liar = well_subscribed()
    liar.transport.capacity = 1000
    for _ in range(100):
        liar.send(ping((DIRECTORY, bytes((ASK_LISTINGS,)) + OWN + bytes(12))))
        world.advance(0.05)
    assert liar.conn.backlog_bytes <= DEFAULTS.pieces_backlog + 2 * AT_ONCE


def test_a_listing_in_parts_and_what_changes_meanwhile() -> None:
    """The neighbour ends up with what is posted, whatever was posted and withdrawn between two
    parts."""
    here, other = (LinkStateDatabase(broker, 1, DEFAULTS) for broker in (OWN, FAR))

    def exchange(rounds: int) -> None:
        for _ in range(rounds):
            for _, said in here.take_messages():
                other.received(OWN, said)
            for _, said in other.take_messages():
                here.received(FAR, said)

    for number in range(30_000):
        here.post(b"f%d" % number, b"x" * 10)
    here.neighbour_up(FAR)
    other.neighbour_up(OWN)
    exchange(2)
    for number in range(0, 30_000, 700):
        here.withdraw(b"f%d" % number)
        here.post(b"f%d" % (number + 1), b"other")
        here.post(b"new%d" % number, b"")
        here.flush()
        exchange(1)
    exchange(100)
    assert other.listings[OWN].entries == here.own.entries
    assert other.state(OWN) == here.own.stamp()[8:]
    assert not here.busy


def test_parts_of_one_listing_from_two_neighbours_at_once() -> None:
    world, one = linked()
    two = Neighbour(world, 2).child()
    known = world.node.cluster.directory.database
    told(one, 7, [(b"a", b"1")], flags=1)
    told(two, 7, [(b"a", b"1"), (b"b", b"2")], flags=1)
    told(one, 7, [(b"c", b"3")], flags=2)
    assert 7 not in known.listings or known.listings[bid(7)].entries == {b"a": b"1", b"c": b"3"}
    told(two, 7, [(b"d", b"4")], number=6, flags=2)  # of another state than its first part
    assert known.listings[bid(7)].entries == {b"a": b"1", b"c": b"3"}
    told(two, 7, [(b"a", b"1"), (b"b", b"2")], number=6, flags=1)
    told(two, 7, [(b"d", b"4")], number=6, flags=2)
    assert known.listings[bid(7)].entries == {b"a": b"1", b"b": b"2", b"d": b"4"}


def memory(world: World) -> int:
    """What listings take, counted again."""
    known = world.node.cluster.directory.database
    loading = [
        parts for neighbour in known._neighbours.values() for parts in neighbour.loading.values()
    ]
    return sum(one.memory for one in (*known.listings.values(), *loading))


@pytest.mark.parametrize("flags", [1, 3])
def test_listings_of_made_up_brokers_have_an_end(flags: int) -> None:
    world, liar = linked(limits=Limits(listings_memory=2_000_000))
    known = world.node.cluster.directory.database
    honest: Entries = [*there(1), (b"s", b"honest")]
    told(liar, 1, honest)
    for broker in range(100, 300):
        told(liar, broker, [(b"x", bytes(60_000))], flags=flags)
        assert known.memory == memory(world) <= 2_000_000
    # Who is not reachable makes room.
    assert world.counters.link_state_refused >= 160 if flags == 1 else len(known.listings) < 40
    assert known.listings[bid(1)].entries == dict(honest)
    assert liar.up
    changed(liar, 1, 5, [(b"s", b"still")])
    assert known.listings[bid(1)].entries[b"s"] == b"still"
    world.node.cluster.events.dispatch(LinkForwards(liar.link(), False, world.now))
    assert known.memory == memory(world)
    assert not any(neighbour.loading for neighbour in known._neighbours.values())


def test_more_than_a_listing_may_have_costs_the_link() -> None:
    world, liar = linked(limits=Limits(listing_entries=100))
    told(liar, 1, [(b"x%d" % n, b"") for n in range(101)])
    assert not liar.up
    assert world.counters.link_garbage == 1


# ---------------------------------------------------------------- filters


def deep(number: int) -> bytes:
    """A filter that takes far more memory than bytes on the wire."""
    return INTEREST + b"%x/+" % number + b"/a" * 150


def test_a_broker_with_too_many_filters_gets_every_message() -> None:
    world, liar = linked(limits=Limits(told_filters_memory=4_000_000))
    interest = world.node.cluster.strategy.table
    told(liar, 1, [*there(1), *((deep(n), b"") for n in range(2_000))])
    most = 4_000_000 + 100_000
    assert world.counters.interest_widened == 1
    assert interest.memory <= most
    world.advance(DEFAULTS.interest_step * 0.005)
    assert interest.memory < 10_000, "its filters are gone, some at a time"
    client = world.connect("c")
    client.publish("quite/another", b"all of it", 1)
    assert liar.messages() == [b"all of it"]
    changed(liar, 1, 5, [(deep(n), b"") for n in range(5_000, 6_000)] + [(deep(3), None)])
    assert interest.memory < 10_000
    client.publish("0/x" + "/a" * 150, b"that, too", 1)
    assert liar.messages() == [b"that, too"]
    # It has been away, and has fewer now.
    told(liar, 1, [], number=90)
    assert not interest.memory
    told(liar, 1, [*there(1), (INTEREST + b"few", b"")], number=91)
    client.publish("quite/another", b"not for it", 1)
    client.publish("few", b"for it", 1)
    world.advance(0.1)
    assert b"for it" in liar.messages()
    assert list(interest.brokers_wanting("quite/another")) == []


def test_the_filters_of_all_brokers_together_are_bounded() -> None:
    world, liar = linked(limits=Limits(all_filters_memory=4_000_000))
    told(
        liar,
        1,
        [*there(1), *((NEIGHBOUR + bid(broker), UP + b"\xff" * 12) for broker in range(10, 60))],
    )
    for broker in range(10, 60):
        told(
            liar,
            broker,
            [
                (NEIGHBOUR + bid(1), UP + b"\xff" * 12),
                *((deep(1_000 * broker + n), b"") for n in range(20)),
            ],
        )
    assert world.node.cluster.strategy.table.memory <= 4_000_000 + 100_000
    assert world.counters.interest_widened > 10
    world.connect("c").publish("quite/another", b"x", 1)
    assert liar.messages() == [b"x"]


def test_groups_that_others_tell_of_have_an_end() -> None:
    world, liar = linked(limits=Limits(told_groups_memory=1_000_000))
    sharing = world.node.cluster.sharing
    groups: Entries = [
        (GROUP + group_key(f"g{n}", "a/+"), encode_standing(1)) for n in range(2_000)
    ]
    told(liar, 1, [*there(1), *groups])
    assert 0 < len(sharing.groups.pools) < 1_000
    assert sharing.groups.memory <= 1_000_000 + 5_000
    assert world.counters.groups_refused == 2_000 - len(sharing.groups.pools)
    changed(liar, 1, 5, [(key, None) for key, _ in groups])
    assert not sharing.groups.memory
    assert not sharing.has_remote_members


def test_memory_of_others_clients_and_links_is_counted() -> None:
    """Each entry counts as memory, whatever it is of: the limit of all listings is theirs."""
    world, liar = linked()
    before = world.node.memory.used
    told(
        liar,
        1,
        [
            *there(1),
            *((kind + b"%d" % n, b"x" * 20) for kind in (b"c", b"s", b"l") for n in range(2_000)),
        ],
    )
    assert liar.up
    assert world.node.memory.used - before >= 6_000 * (ENTRY_MEMORY + 20)


# ---------------------------------------------------------------- numbers


def test_numbers_that_are_missing_of_made_up_origins_have_an_end() -> None:
    world, liar = linked(limits=Limits(max_ranges=100_000))
    relay = world.node.cluster.forwarder
    for boot in range(100):
        key = origin_key(FAR, 2_000 + boot)
        relay._meet(key, OriginWindow(0, world.now), world.now)
        for number in range(2, 4_000, 2):
            relay.accept(key, number, 1, world.now)
    assert sum(window.ranges for window in relay.vector.values()) > 190_000
    world.advance(1.1)
    assert sum(window.ranges for window in relay.vector.values()) <= 100_000
    assert world.counters.gaps_forgotten >= 90_000
    assert liar.up
