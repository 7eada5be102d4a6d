"""Shared subscriptions over several simulated brokers, looked at closely; and their checker, tried
on brokers that are wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from mqttree.broker.auth.acl_file import parse_rules
from mqttree.broker.auth.authorization import Access
from mqttree.broker.cluster.sharing.catchup import Catchup
from mqttree.broker.cluster.sharing.group_table import GroupTable
from mqttree.broker.cluster.sharing.shared_subscriptions import SharedSubscriptions
from mqttree.broker.core.connection import Connection
from mqttree.broker.core.message import Message
from mqttree.broker.core.receiver_assignment import ReceiverAssignment
from mqttree.broker.core.route import Route
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.wire.packets import Suback, Subscribe, SubscriptionRequest
from mqttree.broker.wire.properties import Property
from mqttree.routing.group_selection import Own
from tests.sim.clients import Ledger, SimClient
from tests.sim.mutants import Mutant
from tests.sim.schedule import quiet, run_seed
from tests.sim.test_takeover import Client, Row
from tests.sim.world import World

Patch = pytest.MonkeyPatch

SEEDS = (3, 4)
"""An odd one routes by interest."""


class Scene:
    """Three brokers, a publisher at the first, members of one group at the two others."""

    def __init__(self, seed: int, limits: Limits = DEFAULTS, **member: Any) -> None:
        self.world = world = World(seed)
        world.limits = limits
        for index in range(3):
            world.add(
                capability=float(9 - index),
                discovery="multicast",
                routing="interest" if seed % 2 else "flood",
            )
        for host in world.hosts:
            host.start()
        self.ledger = Ledger()
        filters = [("$share/g/t", 2)]
        self.members = [
            SimClient(world, self.ledger, f"work{host.index}", host, filters=filters, **member)
            for host in world.hosts[1:]
        ]
        self.publisher = SimClient(world, self.ledger, "pub", world.hosts[0])
        for client in (*self.members, self.publisher):
            world.after(0.1, client.connect)
        quiet(world)
        assert not world.violations

    def publish(self, number: int, qos: int) -> list[int]:
        """Publish so many messages; returns their numbers."""
        sent = [self.publisher.publish("t", qos) for _ in range(number)]
        return [one.number for one in sent if one is not None]

    def got(self) -> Counter[int]:
        """How often each message came to anybody."""
        return Counter(got.number for client in self.members for got in client.got)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_unsent_messages_of_a_member_that_leaves_go_to_another(seed: int, qos: int) -> None:
    """What it has not had goes to the other broker: at QoS 1 all of it, at QoS 2 what was not sent
    to it."""
    scene = Scene(seed, version=5, receive_maximum=3)
    scene.members[0].read(False)
    numbers = scene.publish(40, qos)
    scene.world.run(2.0)
    assert len(scene.members[1].got) == 20
    scene.members[0].disconnect()
    scene.world.run(2.0)
    got = scene.got()
    assert set(got.values()) == {1}
    assert len(got) == len(numbers) - (3 if qos == 2 else 0)
    if qos == 1:
        assert scene.world.hosts[1].running.counters.shared_passed_on == 20
    else:
        # These had not been claimed.
        assert scene.world.hosts[0].running.counters.shared_reassigned == 17


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_messages_given_to_a_broker_that_is_cut_off_wait_for_it(seed: int, qos: int) -> None:
    """What it was given waits for it, as the cut is unknown at first; then the other gets
    everything. Nothing comes twice."""
    scene = Scene(seed)
    world = scene.world
    world.partition([(1,)])
    numbers = scene.publish(20, qos)
    world.run(5.0)
    later = scene.publish(20, qos)
    world.run(1.0)
    assert {got.number for got in scene.members[1].got} >= set(later)
    world.heal()
    world.run(20.0)
    assert scene.got() == dict.fromkeys(numbers + later, 1)


def tables(scene: Scene) -> list[tuple[str, str, int]]:
    """What brokers still keep of messages that were given to members elsewhere: broker, table,
    size."""
    found = []
    for host in scene.world.alive():
        cluster = host.running.cluster
        custody = cluster.custody
        for name in (
            "_held",
            "_claimed",
            "_claims",
            "_parked",
            "_ready",
            "_granted",
            "_given",
            "_out",
            "_unsaid",
        ):
            found.append((host.name, name, len(getattr(custody, name))))
        found += [(host.name, "bytes", custody.size), (host.name, "count", custody._count)]
        found.append((host.name, "ledger", len(cluster.assignments.ledger)))
    return [entry for entry in found if entry[2]]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_message_that_no_member_may_receive_is_offered_once(seed: int, qos: int) -> None:
    """By the rules of their brokers: it is tried everywhere, given up and counted, and what others
    may have is not behind it."""
    scene = Scene(seed)
    for host in scene.world.hosts:
        host.running.set_access(
            Access(
                None, parse_rules("rules", "deny receive t\nallow all #", limits=Limits()), True
            ),
            scene.world.now,
        )
    scene.publish(20, qos)
    scene.world.run(30.0)
    nodes = [host.running for host in scene.world.hosts]
    assert sum(node.counters.shared_undelivered for node in nodes) == 20
    assert sum(node.cluster.forwarder.own.top for node in nodes) <= 40, "each is sent on once"
    assert not scene.got()
    assert not tables(scene)
    nodes[2].set_access(None, scene.world.now)
    numbers = scene.publish(20, qos)
    scene.world.run(5.0)
    assert {got.number for got in scene.members[1].got} == set(numbers)
    assert not tables(scene)


@pytest.mark.parametrize("seed", SEEDS)
def test_brokers_without_room_do_not_throw_messages_to_and_fro(seed: int) -> None:
    """Two brokers without room do not throw a message to and fro; it is delivered when one has
    room."""
    scene = Scene(seed, Limits(max_held_shared=5), version=5, receive_maximum=1)
    for member in scene.members:
        member.ack_delay = 10.0
    numbers = scene.publish(80, 2)
    scene.world.run(20.0)
    assert scene.world.hosts[0].running.counters.shared_reassigned < 15 * len(numbers)
    for member in scene.members:
        member.ack_delay = 0.0
    scene.world.run(120.0)
    assert scene.got() == dict.fromkeys(numbers, 1)
    assert not tables(scene)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_message_that_no_member_can_take_is_not_kept(seed: int) -> None:
    """Too large for it, or expired: the giver hears so at once, and nothing is left when the giver
    is gone."""
    scene = Scene(seed, version=5, receive_maximum=1)
    for host in scene.world.hosts[1:]:
        for session in host.running.sessions.values():
            session.limited = session.checked = True
            session.maximum_packet_size = 60
    for _ in range(20):
        scene.publisher.publish("t", 1, padding=100)
    scene.world.run(1.0)
    assert sum(host.running.counters.dropped_too_large for host in scene.world.hosts) == 20
    assert not tables(scene)
    for member in scene.members:
        member.ack_delay = 3.0
    publisher = SimClient(scene.world, scene.ledger, "pub5", scene.world.hosts[0], version=5)
    publisher.connect()
    scene.world.run(0.5)
    for _ in range(20):
        publisher.publish("t", 1, digits=3, properties={Property.MESSAGE_EXPIRY_INTERVAL: 1})
    scene.world.run(1.0)
    scene.world.hosts[0].kill()
    scene.world.run(10.0)
    assert sum(host.running.counters.expired for host in scene.world.alive()) > 10
    assert not tables(scene)


@pytest.mark.parametrize("pause", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_messages_of_a_giver_that_is_gone_delay_no_others(seed: int, pause: bool) -> None:
    """What it gave waits aside, for as long as it may come back; what others give goes on."""
    scene = Scene(seed, version=5, receive_maximum=1)
    world, member = scene.world, scene.members[1]
    member.ack_delay = 0.02
    other = SimClient(world, scene.ledger, "pub2", world.hosts[1])
    other.connect()
    scene.members[0].disconnect()
    world.run(0.5)
    first = scene.publish(200, 2)
    world.run(0.3)
    if pause:
        world.hosts[0].pause()
    else:
        world.hosts[0].kill()
    world.run(0.2)
    second = [
        sent.number for sent in (other.publish("t", 2) for _ in range(20)) if sent is not None
    ]
    world.run(8.0)
    came = [got.number for got in member.got]
    assert [number for number in came if number in second] == second
    assert len(came) < len(first)
    if pause:
        world.hosts[0].resume()
        world.run(30.0)
        assert scene.got() == dict.fromkeys([*first, *second], 1)
    else:
        world.run(DEFAULTS.absent_max_s + 10.0)
        assert world.hosts[2].running.counters.shared_undelivered == len(first) + len(second) - len(
            member.got
        )
    assert not tables(scene)


# ---------------------------------------------------------------- the checker


def everybody(patch: Mutant) -> None:
    """All brokers give everything to their own members."""
    patch.setattr(
        SharedSubscriptions,
        "received",
        lambda self, message, choice, source, *, ordinary: self._node.dispatcher.publish(
            message, source
        ),
    )


def unnamed(patch: Mutant) -> None:
    """No broker is named."""
    choose = SharedSubscriptions._choose
    patch.setattr(
        SharedSubscriptions, "_choose", lambda self, route: (choose(self, route)[0], None)
    )


def never_here(patch: Mutant) -> None:
    """Members at home come last."""
    patch.setattr(
        GroupTable,
        "best",
        lambda self, group, allowed: Own.NONE if group is None else Own.AWAY,
    )


def twice(patch: Mutant) -> None:
    """Who is named delivers two times."""
    received = SharedSubscriptions.received

    def wrong(
        self: SharedSubscriptions,
        message: Message,
        choice: ReceiverAssignment,
        source: Connection | None,
        *,
        ordinary: bool,
    ) -> None:
        received(self, message, choice, source, ordinary=ordinary)
        received(self, message, choice, source, ordinary=False)

    patch.setattr(SharedSubscriptions, "received", wrong)


def loses(patch: Mutant) -> None:
    """Every fifth choice is forgotten."""
    choose = SharedSubscriptions._choose
    calls = Counter[None]()

    def wrong(
        self: SharedSubscriptions, route: Route
    ) -> tuple[list[Any], ReceiverAssignment | None]:
        calls[None] += 1
        groups, choice = choose(self, route)
        return groups, choice if calls[None] % 5 else None

    patch.setattr(SharedSubscriptions, "_choose", wrong)


MUTANTS: dict[str, tuple[Callable[[Mutant], None], set[str]]] = {
    "everybody delivers": (everybody, {"group", "group twice"}),
    "no broker is named": (unnamed, {"group", "group lost"}),
    "members at home come last": (never_here, {"group not here"}),
    "delivers twice": (twice, {"group", "group twice"}),
    "forgets some": (loses, {"group lost"}),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str, monkeypatch: Patch) -> None:
    plant, kinds = MUTANTS[name]
    found: set[str] = set()
    with Mutant(monkeypatch) as mutant:
        plant(mutant)
        for seed in range(0, 90, 6):
            found |= {kind for kind, _ in run_seed(seed).violations}
            if found >= kinds:
                break
        assert found >= kinds


@pytest.mark.parametrize("at", [0.056, 0.057, 0.06])
@pytest.mark.parametrize("routing", ["interest", "topic"])
def test_a_member_that_moves_gets_what_its_first_broker_was_given(routing: str, at: float) -> None:
    """What its first broker is granted for it, when the session has been encoded for the next one,
    comes to it there."""
    row = Row(2, routing=routing)
    work = row.connect(0, "work").subscribed("$share/g/t")
    publishers = [row.connect(0, "p"), row.connect(1, "q")]
    sent = [b"%d" % number for number in range(120)]
    for number, payload in enumerate(sent):
        row.world.after(0.05 + number * 0.0001, publishers[number % 2].publish, "t", payload)
    row.run(at)
    there = row.connect(1, "work")
    assert there.present
    row.until(lambda: len(work.payloads) + len(there.fresh(work.payloads)) >= len(sent), 10.0)
    row.run(1.0)
    assert Counter([*work.payloads, *there.fresh(work.payloads)]) == dict.fromkeys(sent, 1)
    assert not sum(row.node(index).counters.shared_undelivered for index in (0, 1))


@pytest.mark.parametrize("routing", ["interest", "topic"])
def test_a_group_gets_messages_that_left_the_log_before_its_age_was_known(
    routing: str, monkeypatch: Patch
) -> None:
    """The question for its age is lost, and is repeated after a second; meanwhile the log is
    emptied by large messages."""
    lost: list[bytes] = []
    heard = Catchup._ask_received

    def deaf(self: Catchup, sender: bytes, body: bytes, now: float) -> None:
        if lost:
            heard(self, sender, body, now)
        lost.append(body)

    monkeypatch.setattr(Catchup, "_ask_received", deaf)
    row = Row(2, routing=routing)
    row.world.rate, row.world.window = 1.25e8, 1 << 20
    publisher = row.connect(1, "p")
    row.world.partition([(0,)])
    row.run(5.0)
    work = row.connect(0, "work").subscribed("$share/g/t")
    publisher.publish("t", b"old", b"older", qos=1)
    row.world.heal()
    row.until(lambda: lost, 20.0)
    log = row.node(1).cluster.forwarder.log
    publisher.publish("large", bytes(40_000_000), bytes(40_000_000), b"end", qos=1)
    row.until(lambda: len(log) <= 3, 0.9)
    assert len(lost) == 1 and not work.payloads
    row.until(lambda: len(work.payloads) == 2)
    assert work.payloads == [b"old", b"older"]
    row.run(2.0)
    assert not row.node(1).cluster.catchup.keeps
    assert row.node(1).counters.replay_log_reserve_full == 0


@pytest.mark.parametrize(("routing", "qos"), [("interest", 1), ("topic", 2)])
def test_a_message_lost_on_a_cut_link_is_given_again(routing: str, qos: int) -> None:
    """A message is on a link that is cut, and leaves the log before that is mended. The taker is
    told that there is nothing else up to what is newer, and must not say that it has had it when
    its giver asks."""
    row = Row(2, routing=routing)
    row.world.rate, row.world.window = 1.25e8, 1 << 20
    work, publisher = row.connect(1, "work").subscribed("$share/g/t"), row.connect(0, "p")
    publisher.publish("t", b"first", qos=qos)
    row.until(lambda: work.payloads == [b"first"])
    row.world.partition([(0,)])
    row.run(0.2)
    publisher.publish("t", b"lost", qos=qos)
    log = row.node(0).cluster.forwarder.log
    for _ in range(2):
        publisher.publish("large", *[bytes(1_000_000)] * 80, qos=1)
        row.run(3.5)
    publisher.publish("large", b"end", qos=1)
    assert len(log) < 40
    row.world.heal()
    row.run(8.0)
    publisher.publish("t", b"newer", qos=qos)
    row.until(lambda: len(work.payloads) == 2)
    assert work.payloads == [b"first", b"newer"]
    ledger = row.node(0).cluster.assignments.ledger
    row.until(lambda: not ledger.refs, 60.0)
    assert work.payloads == [b"first", b"newer", b"lost"]
    assert row.node(0).counters.shared_reassigned == 1


@pytest.mark.parametrize("routing", ["interest", "topic"])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("after", [0.06, 0.095])
def test_members_that_join_while_the_age_is_asked_for_get_all_messages(
    after: float, again: bool, routing: str
) -> None:
    """The publisher's broker hears of a group and asks how old it is, 0.05 s each way. Before it
    has an answer it hears of another member, or (`again`) that the only one left and another came.
    What was published after SUBACK is for them."""
    row = Row(2, routing=routing)
    publisher = row.connect(1, "p")
    publisher.publish("b", b"so that something may be owed")
    row.world.jitter = 0.0
    row.world._base[0, 1] = row.world._base[1, 0] = 0.05
    row.run(1.0)
    sent = [b"%d" % number for number in range(400)]
    at: dict[bytes, float] = {}

    def publish(payload: bytes) -> None:
        at[payload] = row.world.now
        publisher.publish("t", payload, qos=1)

    def join(client: Client) -> float:
        client.send(Subscribe(1, [SubscriptionRequest("$share/g/t", 1)]))
        row.until(lambda: any(isinstance(packet, Suback) for packet in client.packets))
        return row.world.now

    for number, payload in enumerate(sent):
        row.world.after(0.001 * number, publish, payload)
    first = row.connect(0, "first", clean=True, expiry=0)
    begin = join(first)
    row.run(after)
    if again:
        first.leave()
    second = row.connect(0, "second", clean=True, expiry=0)
    joined = join(second)
    begin = joined if again else begin
    row.run(3.0)
    got = Counter([*first.payloads, *second.payloads])
    assert not [payload for payload in sent if at[payload] > begin and got[payload] != 1]
