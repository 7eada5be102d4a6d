"""SUBACK waits until all brokers know of a subscription, and for nothing else
(docs/decisions/0024)."""

from __future__ import annotations

import pytest

from mqttree.broker.base import costs
from mqttree.broker.cluster.directory.link_state_directory import AT_ONCE, INTEREST, POST_INTERVAL
from mqttree.broker.cluster.link.control_records import HEARD, TOLD
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.strategy.interest_table import LINGER
from mqttree.broker.cluster.strategy.subscription_barrier import ADMITS, LOST, MAX_PAUSE_S, PAUSE
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.wire.packets import (
    Connack,
    Pingreq,
    Pingresp,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from mqttree.broker.wire.properties import Property
from mqttree.routing.listing import Listing
from tests.kit.journal_harness import Durable
from tests.kit.link_harness import OWN, Neighbour, bid, lone, message, ping
from tests.kit.node_harness import FakeClient, World, connect_packet


@pytest.fixture
def world() -> World:
    return lone(routing="interest", link_timeout=1000.0)


def subscribe(client: FakeClient, topic_filter: str) -> None:
    client.send(Subscribe(7, [SubscriptionRequest(topic_filter, 0)]))


def heard(told: bytes, *numbers: int, boot: int = 1, own: bytes = b"") -> bytes:
    """What a neighbour answers: these brokers know."""
    return (
        told[:8]
        + told[20:]
        + own
        + b"".join(bid(number) + boot.to_bytes(4, "big") + bytes(6) for number in numbers)
    )


def answer(neighbour: Neighbour) -> int:
    """The neighbour says that all behind it know; returns how often it was asked."""
    asked = neighbour.records(TOLD)
    for body in asked:
        neighbour.send(ping((HEARD, heard(body, neighbour.number, boot=neighbour.boot))))
    return len(asked)


def answered(client: FakeClient) -> bool:
    return any(isinstance(packet, Suback) for packet in client.take())


def beside(world: World) -> tuple[Neighbour, FakeClient]:
    """A neighbour in the tree, and a client here."""
    neighbour = Neighbour(world, 101).child()
    return neighbour, world.connect("c")


def confirmed(world: World) -> tuple[Neighbour, FakeClient]:
    """The same, and the client has a subscription that the neighbour knows."""
    neighbour, client = beside(world)
    subscribe(client, "a")
    world.advance(POST_INTERVAL)
    answer(neighbour)
    assert answered(client)
    return neighbour, client


def test_an_answer_that_never_comes_delays_no_other_client(world: World) -> None:
    """Not even when no client waited for that one, so that it was not given up then."""
    neighbour = Neighbour(world, 101).child()
    world.node.cluster.strategy.table.changed("restored", wanted=True)
    world.advance(POST_INTERVAL)
    assert len(neighbour.records(TOLD)) == 1
    client = world.connect("c")
    world.advance(10.0)
    subscribe(client, "a")
    world.advance(POST_INTERVAL)
    assert answer(neighbour)
    assert answered(client)
    assert world.counters.subscriptions_unconfirmed == 0


def test_a_wave_does_not_overtake_what_it_tells_of(world: World) -> None:
    """When the last one was given up, too: what was posted since is sent first."""
    neighbour = Neighbour(world, 101).child()
    one, two = world.connect("one"), world.connect("two")
    subscribe(one, "a")
    world.advance(DEFAULTS.suback_wait_s - POST_INTERVAL / 4)
    neighbour.take()
    own = world.node.cluster.directory.database.own
    for number in range(AT_ONCE + 1):  # so that the next one has to wait for POST_INTERVAL
        world.node.cluster.directory.post(b"s-test", str(number).encode())
        world.advance(POST_INTERVAL / 8 / (AT_ONCE + 1))
    subscribe(two, "b")
    world.advance(POST_INTERVAL / 4)
    assert INTEREST + b"b" in own.entries
    answer(neighbour)
    assert answered(two) is False
    world.advance(LOST + POST_INTERVAL)
    answer(neighbour)
    assert answered(two)


def test_made_up_brokers_are_not_remembered(world: World) -> None:
    one, two = Neighbour(world, 101).child(), Neighbour(world, 102).child()
    for number in range(2000):
        one.send(ping((TOLD, b"made%04d" % number + bytes(12) + bytes(4))))
    assert len(world.node.cluster.barrier._waves) == 0
    assert two.records(TOLD) == []


def test_subscribing_and_unsubscribing_again_leaves_no_timers(world: World) -> None:
    """However often a client takes a subscription and gives it back, it is looked at once."""
    _, client = confirmed(world)
    before = len(world.node.timers)
    for _ in range(200):
        client.unsubscribe("a")
        assert client.subscribe("a") == [0]
        world.advance(LINGER / 50)
    client.unsubscribe("a")
    assert len(world.node.timers) <= before + 5
    world.advance(2 * LINGER)
    assert INTEREST + b"a" not in world.node.cluster.directory.database.own.entries


def test_timers_do_not_add_up_while_a_broker_hangs(world: World) -> None:
    _, client = beside(world)
    before = len(world.node.timers)
    client.send(*(Subscribe(1 + n, [SubscriptionRequest(f"f/{n}", 0)]) for n in range(40)))
    world.advance(30 * DEFAULTS.suback_wait_s)
    assert len(world.node.timers) <= before + 5


def test_a_wave_does_not_go_round(world: World) -> None:
    """One that is here already, or was, is answered and goes no further: links in a circle would
    pass it on for ever."""
    neighbours = [Neighbour(world, number) for number in (101, 102, 103)]
    for neighbour in neighbours:
        neighbour.child()
    one, two, three = neighbours
    directory = world.node.cluster.directory.database
    directory.listings[bid(101)] = listing = Listing(bid(101), 1)
    listing.version = 1
    listing.via = bid(101)
    wave = listing.stamp() + b"\0\0\0\1"
    one.send(ping((TOLD, wave)))
    assert two.records(TOLD) == three.records(TOLD) == [wave]
    for neighbour in (two, three):
        neighbour.send(ping((HEARD, heard(wave, neighbour.number))))
    own = OWN + (1000).to_bytes(4, "big") + bytes(6)
    assert one.records(HEARD) == [heard(wave, 102, 103, own=own)]
    for neighbour in (two, three, one):
        neighbour.send(ping((TOLD, wave)))
        assert neighbour.records(HEARD) == [heard(wave, own=own)]
    assert [neighbour.records(TOLD) for neighbour in neighbours] == [[], [], []]


def test_many_brokers_ask_less_often() -> None:
    """All waves of all brokers cross each link: together they must stay below what a link takes."""
    world = lone(routing="interest", link_timeout=1000.0, limits=Limits(suback_waves=5.0))
    neighbour = Neighbour(world, 101).child()
    clients = [world.connect(f"c{number}") for number in range(100)]
    asked = 0
    for number, client in enumerate(clients):
        subscribe(client, f"f/{number}")
        world.advance(0.02)
        asked += answer(neighbour)
    assert 10 <= asked <= 5 + 5 * 2 + 1
    for _ in range(15):
        world.advance(0.02)
        answer(neighbour)
    assert all(map(answered, clients))
    assert world.counters.subscriptions_unconfirmed == 0


@pytest.mark.parametrize("disk", ("none", "quick", "slow"))
@pytest.mark.parametrize(
    "how", ("vanish", "taken over", "redirected", "link lost", "answered", "nothing")
)
def test_no_client_waits_for_ever_whatever_happens(how: str, disk: str) -> None:
    """No client waits for ever, and what no client wants is announced no longer."""
    if disk == "none":
        world = lone(routing="interest", link_timeout=1000.0)
    else:
        world = Durable(routing="interest", discovery="static", link_timeout=1000.0)
        world.files.lazy = disk == "slow"
    neighbour = Neighbour(world, 101).child()
    client = world.open().sent(
        connect_packet("k", 5, clean=False, properties={Property.SESSION_EXPIRY_INTERVAL: 1000})
    )
    subscribe(client, "a")
    client.send(Pingreq())
    world.advance(POST_INTERVAL)
    assert client.conn.waiting
    client.take()
    again = client
    if how == "vanish":
        client.vanish()
    elif how == "taken over":
        again = world.open().sent(
            connect_packet("k", 5, clean=False, properties={Property.SESSION_EXPIRY_INTERVAL: 1000})
        )
    elif how == "redirected":
        world.node.clients.redirect(client.owner, "elsewhere:1883", False)
        world.settle()
    elif how == "link lost":
        world.node.connection_lost(neighbour.conn, "reset", world.now)
        world.settle()
    elif how == "answered":
        answer(neighbour)
    world.advance(2 * DEFAULTS.suback_wait_s)
    if disk != "none":
        assert isinstance(world, Durable)
        world.tell()
        world.advance(0.1)
    assert not client.conn.waiting
    assert "a" in world.session("k").subscriptions  # what came before its end counts
    packets = [type(packet) for packet in client.take()]
    if how in ("link lost", "answered", "nothing"):
        assert {Suback, Pingresp} <= set(packets)
        assert Connack not in packets[1:]
    else:
        assert client.closed
        assert Suback not in packets
    if how == "taken over":
        assert any(isinstance(packet, Connack) for packet in again.take())
    world.advance(2 * LINGER)
    assert INTEREST + b"a" in world.node.cluster.directory.database.own.entries
    assert not world.node.cluster.barrier._waiters


def test_every_broker_has_to_know(world: World) -> None:
    """A wave that ended early does not stand for those that it did not reach: another follows."""
    one, two = Neighbour(world, 101).child(), Neighbour(world, 102)
    client = world.connect("c")
    subscribe(client, "a")
    world.advance(POST_INTERVAL)
    assert answer(one) == 1
    assert not answered(client)  # a link to the other one stands, which is not in the tree yet
    two.child()
    world.advance(LOST)
    assert answer(two) == 1
    assert not answered(client)
    answer(one)
    assert answered(client)
    assert world.counters.subscriptions_unconfirmed == 0


def test_the_next_wave_does_not_wait_for_one_that_has_come_back(world: World) -> None:
    """A check was planned for the time when that one would have been lost."""
    neighbour, client = beside(world)
    subscribe(client, "a")
    world.advance(PAUSE + POST_INTERVAL)
    [told] = neighbour.records(TOLD)
    neighbour.send(ping((HEARD, heard(told))))  # it names nobody
    world.advance(PAUSE + POST_INTERVAL)
    assert answer(neighbour) == 1
    assert answered(client)


def test_a_filter_within_an_earlier_one_has_its_wave_at_once(world: World) -> None:
    """Nothing is posted for it, but a client that was elsewhere is to know where it begins."""
    neighbour, client = confirmed(world)
    gone: list[float] = []
    assert world.node.cluster.barrier.expect(["a"], gone.append, again=True)
    world.advance(0.001)
    assert answer(neighbour) == 1
    assert gone
    subscribe(client, "b")
    world.advance(POST_INTERVAL)
    assert answer(neighbour) == 1
    assert answered(client)


def test_a_new_incarnation_of_a_broker_has_to_hear_it_again(world: World) -> None:
    neighbour, client = confirmed(world)
    world.node.connection_lost(neighbour.conn, "reset", world.now)
    world.settle()
    again = Neighbour(world, 101, boot=2).child()
    subscribe(client, "a")
    world.advance(LOST / 2)
    assert not answered(client)
    assert answer(again) == 1
    assert answered(client)


def test_the_barrier_does_not_wait_for_a_lost_neighbour(world: World) -> None:
    neighbour, client = beside(world)
    subscribe(client, "a")
    world.advance(1.0)
    assert not answered(client)
    world.node.connection_lost(neighbour.conn, "silent", world.now)
    world.settle()
    world.advance(MAX_PAUSE_S)
    assert answered(client)
    assert world.counters.subscriptions_unconfirmed == 0


@pytest.mark.parametrize("body", (b"", b"x" * 11, b"x" * 13, b"x" * 12 + b"y" * (18 * 1024 + 18)))
def test_a_malformed_answer_closes_the_link(world: World, body: bytes) -> None:
    neighbour = Neighbour(world, 101).child()
    neighbour.send(ping((HEARD, body)))
    assert not neighbour.up


@pytest.mark.parametrize("routing", ["interest", "topic"])
def test_a_new_broker_joins_before_it_grants_subscriptions(routing: str) -> None:
    """Clients that come before it has joined would get a SUBACK for a subscription that no broker
    knows."""
    world = lone(routing=routing, seeds=(("10.0.0.101", 1883),), link_timeout=1000.0)
    world.node.cluster.barrier._begins_until = world.now + DEFAULTS.suback_wait_s
    client = world.connect("c")
    subscribe(client, "a")
    world.advance(0.1)
    assert not answered(client)
    world.advance(DEFAULTS.suback_wait_s)
    assert answered(client)  # there are no others


@pytest.mark.parametrize("routing", ["interest", "topic"])
def test_a_session_may_be_elsewhere_until_a_broker_has_joined(routing: str) -> None:
    """Who asks for a new session is let in at once; who may have one elsewhere waits for a second
    at most, with all that it has sent; who does not wait is no harm."""
    world = lone(routing=routing, seeds=(("10.0.0.101", 1883),), link_timeout=1000.0)
    world.node.cluster.barrier._admits_until = world.now + ADMITS
    world.node.cluster.barrier._begins_until = world.now + DEFAULTS.suback_wait_s
    assert world.connect("new").connack.code == 0
    clients = [world.open(version) for version in (4, 5, 5)]
    for number, client in enumerate(clients):
        client.send(connect_packet(f"c{number // 2}", client.version, clean=False))
    clients[1].send(Subscribe(7, [SubscriptionRequest("a", 0)]))
    world.advance(ADMITS / 2)
    assert not any(client.take() for client in clients)
    clients[2].vanish()
    world.advance(ADMITS)
    assert isinstance(clients[1].take()[0], Connack)
    assert set(world.node.sessions) == {"new", "c0"}
    world.advance(DEFAULTS.suback_wait_s)
    assert answered(clients[1])
    assert world.connect("c9", clean=False).connack.code == 0


def test_many_sessions_that_may_be_elsewhere_go_on_in_several_turns() -> None:
    """In order; who comes meanwhile comes behind them: of two connections of a client the later one
    stays."""
    world = lone(routing="topic", seeds=(("10.0.0.101", 1883),), link_timeout=1000.0)
    world.node.cluster.barrier._admits_until = world.now + ADMITS
    world.node.cluster.barrier._begins_until = world.now + DEFAULTS.suback_wait_s
    clients = [world.open(4) for _ in range(MANY)]
    for number, client in enumerate(clients):
        client.send(connect_packet(f"c{number}", 4, clean=False))
    assert served(clients) == 0
    while not (some := served(clients)):
        turn(world)
    assert some < MANY
    later = world.open(4).sent(connect_packet(f"c{MANY - 1}", 4, clean=False))
    assert not later.take()
    while (now := served(clients)) < MANY:
        assert now - some < MANY / 2
        some = now
        while served(clients) == some:
            turn(world)
    world.advance(0.1)
    assert isinstance(later.take()[0], Connack)
    assert clients[-1].closed
    assert not later.closed


@pytest.mark.parametrize("says", (True, False))
def test_an_answer_says_where_a_subscription_begins(world: World, says: bool) -> None:
    """A feed that is being repaired may bring anything: the number of the origin's last message
    when it heard decides."""
    neighbour = Neighbour(world, 101).child()
    key = origin_key(bid(101), 1)
    neighbour.send(message(key=key, sequence=5))
    client = world.connect("c")
    subscribe(client, "a")
    world.advance(POST_INTERVAL)
    (told,) = neighbour.records(TOLD)
    if says:
        neighbour.send(
            ping((HEARD, heard(told) + bid(101) + (1).to_bytes(4, "big") + (7).to_bytes(6, "big")))
        )
    world.advance(0 if says else DEFAULTS.suback_wait_s)
    assert answered(client)
    start = world.session("c").subscriptions["a"].start
    assert start is not None
    assert start.tops[key] == (7 if says else 5)
    assert (key in start.open) is not says


# ------------------------------------------------------------------ very many

MANY = 3 * DEFAULTS.turn_work // costs.PACKET_WORK


def crowd(world: World) -> tuple[Neighbour, list[FakeClient]]:
    """Clients that all wait for the same neighbour."""
    neighbour, _ = beside(world)
    clients = [world.connect(f"c{number}") for number in range(MANY)]
    world.peers = [neighbour]  # type: ignore[list-item]
    for number, client in enumerate(clients):
        subscribe(client, f"a/{number}")
    world.advance(POST_INTERVAL)
    return neighbour, clients


def served(clients: list[FakeClient]) -> int:
    """How many have been answered; none of them came behind one that has not been."""
    got = [bool(client.transport.written) for client in clients]
    assert got == sorted(got, reverse=True)
    return sum(got)


def turn(world: World) -> None:
    due = world.node.next_deadline()
    assert due is not None
    world.now = max(world.now, due)
    world.node.tick(world.now)
    world.settle()


def test_a_broker_that_comes_before_all_have_gone_on_has_to_know(world: World) -> None:
    neighbour, clients = crowd(world)
    world.node.turns.work = 0
    answer(neighbour)
    some = served(clients)
    assert 0 < some < MANY
    other = Neighbour(world, 102)
    for _ in range(10):
        turn(world)
    assert served(clients) < MANY
    other.child()
    world.advance(POST_INTERVAL)
    world.advance(MAX_PAUSE_S)
    assert served(clients) < MANY
    for _ in range(20):
        answer(neighbour)
        answer(other)
        world.advance(MAX_PAUSE_S)
    assert served(clients) == MANY


def test_many_that_have_waited_in_vain_go_on_in_several_turns(world: World) -> None:
    _, clients = crowd(world)
    most = before = 0
    until = world.now + DEFAULTS.suback_wait_s + 1.0
    while world.now < until:
        world.node.turns.work = 0
        turn(world)
        now = served(clients)
        most, before = max(most, now - before), now
    assert before == MANY
    assert most < MANY / 2
    assert world.counters.subscriptions_unconfirmed == MANY
