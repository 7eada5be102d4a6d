"""Thousands of sessions that a broker announces in one moment are handled later, as they are then
(link_state_directory.py)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.cluster.directory.link_state_directory import CLIENT, POST_INTERVAL
from mqttree.broker.cluster.strategy.subscription_barrier import ADMITS, LINKED_S
from mqttree.broker.core.session_owner import ANONYMOUS, KEPT, Entry
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.wire.packets import Disconnect, Pingreq, Publish, Subscribe, SubscriptionRequest
from mqttree.broker.wire.properties import Property
from tests.kit.link_harness import Neighbour, bid, listing_changes, lone
from tests.kit.node_harness import World, connect_packet

NAMES = [b"c%d" % number for number in range(6)]
OLD, NEW = 5 << 16, 1 << 60
KEPT_LONG = {Property.SESSION_EXPIRY_INTERVAL: 1000}

names = st.sets(st.sampled_from(NAMES))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("tells"), names),
        st.tuples(st.just("withdraws"), names),
        st.tuples(st.just("goes"), names),
        st.tuples(st.just("comes"), names),
        st.tuples(st.just("waits"), names),
    ),
    max_size=12,
)


def entry(stamp: int) -> bytes:
    return Entry(KEPT, stamp, stamp, 0, ANONYMOUS).encode()


def lost(world: World, neighbour: Neighbour) -> None:
    world.node.connection_lost(neighbour.conn, "reset", world.now)
    world.settle()


class Other:
    """A broker with sessions, and what was said of them here in the end."""

    def __init__(self) -> None:
        limits = Limits(listing_changes=0, listing_sessions=1)
        self.world = lone(routing="topic", link_timeout=10_000.0, limits=limits)
        self.listings = self.world.node.cluster.directory
        self.seen: dict[bytes, bytes | None] = {}
        self.listings.watch(CLIENT, self._saw)
        self.sessions: dict[bytes, bytes] = {}
        self.version, self.stamp = 1, OLD
        self.neighbour = Neighbour(self.world, 101).child().known(number=self.version)
        self.there = True

    def _saw(self, broker_id: bytes, key: bytes, value: bytes | None, gone: bool) -> None:
        assert broker_id == bid(101)
        if value is None and not gone:
            assert key not in self.sessions, "withdrawn, though it is told"
        self.seen[key] = value

    def change(self, changes: list[tuple[bytes, bytes | None]]) -> None:
        before, self.version = self.version, self.version + 1
        entries = [(CLIENT + key, value) for key, value in changes]
        self.neighbour.send(listing_changes(101, entries, before))

    def do(self, what: str, some: set[bytes]) -> None:
        if what == "waits":
            self.world.advance(POST_INTERVAL)
        elif what == "tells" and self.there:
            self.stamp += 1 << 16
            told = {key: entry(self.stamp) for key in sorted(some)}
            self.sessions |= told
            self.change(list(told.items()))
        elif what == "withdraws" and self.there:
            gone = [key for key in sorted(some) if self.sessions.pop(key, None) is not None]
            self.change([(key, None) for key in gone])
        elif what == "goes" and self.there:
            self.there = False
            lost(self.world, self.neighbour)
        elif what == "comes" and not self.there:
            self.there = True
            self.version += 1
            self.neighbour = Neighbour(self.world, 101).child()
            self.sessions = {key: entry(self.stamp) for key in sorted(some)}
            entries = [(CLIENT + key, value) for key, value in self.sessions.items()]
            self.neighbour.known(*entries, number=self.version)


@given(steps)
def test_sessions_announced_in_any_order_are_known_in_the_end(
    steps: list[tuple[str, set[bytes]]],
) -> None:
    other = Other()
    recently_elsewhere = other.world.node.cluster.recently_elsewhere
    for what, some in steps:
        before = set(other.sessions)
        other.do(what, some)
        for key in before - set(other.sessions) if other.there and what != "comes" else ():
            assert recently_elsewhere.elsewhere(key.decode()), (
                "it was elsewhere a moment ago, looked at or not"
            )
    other.world.advance(20 * POST_INTERVAL)
    assert not other.listings._deferred
    told = {key for key, value in other.seen.items() if value is not None}
    if other.there:
        assert told == set(other.sessions)
        assert all(other.seen[key] == value for key, value in other.sessions.items())
    else:
        assert not told


def test_a_client_is_found_before_its_announcement_is_handled() -> None:
    """A client whose session is announced, and has not been handled, is found by its CONNECT; the
    others are seen later."""
    limits = Limits(listing_changes=2, listing_sessions=1)
    world = lone(routing="topic", link_timeout=10_000.0, limits=limits)
    one = Neighbour(world, 101).child().known()
    here = world.connect("newer-there", clean=False, properties=KEPT_LONG)
    older = world.connect("older-there", clean=False, properties=KEPT_LONG)
    older.send(Subscribe(1, [SubscriptionRequest("t", 1)]))
    world.advance(6.0)  # no broker says that it has heard of it
    older.vanish()
    entries = {"newer-there": NEW, "older-there": OLD, "nowhere": NEW, "other": NEW}
    one.known(
        *((CLIENT + name.encode(), entry(stamp)) for name, stamp in entries.items()), number=2
    )
    assert not here.closed
    world.open().send(connect_packet("nowhere", clean=False, properties=KEPT_LONG))
    assert "nowhere" in world.node.cluster.takeover._pending, "its session is fetched"
    world.advance(10 * POST_INTERVAL)
    assert here.closed
    assert ("older-there", bid(101)) in world.node.cluster.session_merge._merges
    assert not world.node.cluster.directory._deferred


def test_a_connection_that_waited_to_be_admitted_is_not_read_while_its_session_comes() -> None:
    """Else it would count as one whose authentication does not end."""
    world = lone(routing="topic", link_timeout=10_000.0)
    one = Neighbour(world, 101).child()
    barrier = world.node.cluster.barrier
    barrier._searching = lambda now: True
    barrier._admits_until = world.now + ADMITS
    barrier._begins_until = world.now + DEFAULTS.suback_wait_s
    comes = world.open().sent(connect_packet("c", clean=False, properties=KEPT_LONG))
    world.advance(ADMITS + 0.1)
    assert "c" not in world.node.cluster.takeover._pending, "it is not admitted yet"
    one.known((CLIENT + b"c", entry(NEW)), number=2)
    world.advance(LINKED_S)
    assert "c" in world.node.cluster.takeover._pending
    assert comes.conn.waiting
    comes.send(Pingreq())
    assert not comes.take() and not comes.closed


def test_a_client_need_not_stay_until_it_is_admitted() -> None:
    world = lone(routing="topic", link_timeout=10_000.0)
    reader = world.connect("r").subscribed("x")
    barrier = world.node.cluster.barrier
    barrier._searching = lambda now: True
    barrier._admits_until = barrier._begins_until = world.now + ADMITS
    world.open().sent(connect_packet("c", clean=False), Publish("x", b"1"), Disconnect()).vanish()
    assert not reader.take()
    world.advance(ADMITS + 0.1)
    assert reader.payloads() == [b"1"]


def test_a_broker_that_is_lost_while_they_are_looked_at() -> None:
    limits = Limits(listing_changes=2, listing_sessions=1)
    world = lone(routing="topic", link_timeout=10_000.0, limits=limits)
    one = Neighbour(world, 101).child()
    here = world.connect("c0", clean=False, properties=KEPT_LONG)
    one.known(*((CLIENT + name, entry(NEW)) for name in NAMES), number=2)
    lost(world, one)
    world.advance(1.0)
    assert not here.closed, "no broker has said so while the broker was there"
    assert world.node.cluster.recently_elsewhere.elsewhere("c1")
