"""Brokers that are killed with their disks, hang, or are cut off, in simulation: their clients find
their sessions at any other broker, and no two brokers serve them. Brokers with one fault each,
which the checkers have to find.

SEEDS=n runs n schedules of each kind instead of the default, FIRST=k begins with seed k.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from mqttree.broker.cluster.delivery.gap_recovery import GapRecovery
from mqttree.broker.cluster.delivery.ordered_feed import OrderedFeed
from mqttree.broker.cluster.delivery.replay_log import LogEntry
from mqttree.broker.cluster.sessions import merge
from mqttree.broker.cluster.sessions.evaluated import Evaluated
from mqttree.broker.cluster.sessions.merge import SessionMerge
from mqttree.broker.cluster.sessions.queue_merge import QueueMerge
from mqttree.broker.cluster.sessions.session_state import SessionState
from mqttree.broker.cluster.sharing.assignments import Assignments
from mqttree.broker.cluster.sharing.custody import Custody
from mqttree.broker.cluster.sharing.deputies import Deputies
from mqttree.broker.cluster.strategy.subscription_barrier import SubscriptionBarrier
from mqttree.broker.core.connection import Connection
from mqttree.broker.core.session import Session
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.persistence.adoption import Absentee, Adoption
from mqttree.broker.persistence.fences import Fences
from mqttree.broker.persistence.fencing import Fencing
from mqttree.broker.persistence.journal import Journal
from mqttree.broker.persistence.session_recorder import SessionRecorder
from mqttree.broker.persistence.stream import Stream
from mqttree.broker.persistence.succession import Succession
from tests.kit.core import needs_python
from tests.sim.clients import Ledger, SimClient
from tests.sim.disk import Disk
from tests.sim.mutants import Mutant, leaves_out
from tests.sim.successions import Refugee, kill, play, standbys_of, standing
from tests.sim.test_durability import check, check_order
from tests.sim.world import Host, World

SEEDS = int(os.environ.get("SEEDS", "0"))
FIRST = int(os.environ.get("FIRST", "0"))
BLOCKS = 2

COUNTS = {
    "kills": 6,
    "aimed": 6,
    "lags": 6,
    "doubles": 8,
    "wipes": 4,
    "hangs": 6,
    "splits": 4,
    "shared kills": 6,
    "shared lags": 6,
    "shared hangs": 4,
    "shared splits": 4,
    "slow shared hangs": 4,
}
"""Schedules of each kind in each run of the tests: brokers are killed; are killed while output
waits; are killed as their disks lack what their standbys have, and start again with these; are
killed with the first of two standbys; are killed one after the other, and start again without their
disks; hang; are cut off; with shared subscriptions; while all have long turns."""


@pytest.mark.parametrize("kind", COUNTS)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_sessions_of_a_broker_that_died_hung_or_was_cut_off_go_on(block: int, kind: str) -> None:
    bad = []
    for seed in range(FIRST + block, FIRST + (SEEDS or COUNTS[kind]), BLOCKS):
        violations = play(seed, kind)
        for found, text in violations[:5]:
            print(f"seed {seed}: {found}: {text}")
        if violations:
            bad.append(seed)
    assert not bad


@pytest.mark.parametrize(
    ("kind", "seed"),
    [("kills", seed) for seed in (2168, 2223, 3075, 3108)]
    + [("splits", 1058), ("aimed", 172), ("aimed", 160230), ("hangs", 160351)]
    + [("splits", 620005), ("splits", 630171), ("splits", 630277), ("doubles", 273086)]
    + [("shared splits", 650071), ("shared splits", 670072), ("aimed", 630019)]
    + [("aimed", 650077), ("kills", 650031), ("lags", 700007)]
    + [("shared kills", seed) for seed in (17, 106, 130014, 130030)]
    + [("shared lags", seed) for seed in (5004, 5066, 5086, 5138, 5262, 5403, 5496)],
)
def test_schedules_that_have_shown_faults(kind: str, seed: int) -> None:
    """A client of MQTT 5 comes to its adopted session; to one that was offered more than the copy
    of its broker, which is back; as the broker of its session has started again, and posts its
    sessions; to messages in flight behind another broker that is away; from a broker that is cut
    off, as it had left that without an answer; and from one that dies while messages of another
    dead one wait there. A broker dies that had given messages to members elsewhere, and one whose
    members had been granted messages; the standby of one that gave has lost its own standby some
    seconds before, and the disk of one that gave lacks that. The disk of a broker lacks what was in
    flight to a member, all that it published, or what it gave to a member of its own and no other
    subscriber wanted; it has what its client has settled elsewhere, and it lacks that it took it.
    What its standby says of that comes while links are made. A disk has what the standby has
    not. A taker asks a standby that stood still, and has not heard yet that the owner is there. A
    split ends as a session moves, or the tree is repaired once more as one ends. Members are given
    messages as their sessions are merged. Brokers know of none of a dead one's last messages. A
    session moves on as it has just been adopted. Clocks are an hour apart."""
    assert play(seed, kind) == []


def forgets_members(patch: Mutant) -> None:
    """What a session that has come had as a member of groups is not remembered."""
    inherit = Evaluated.inherit

    def planted(self: Evaluated, session: Session, state: SessionState) -> None:
        inherit(self, session, state)
        self._record(session).as_member.clear()

    patch.setattr(Evaluated, "inherit", planted)


def claims_when_done(patch: Mutant) -> None:
    """A session counts as claimed when its taker has it, not when that was sent it."""
    claim, claimed = Fences.claim, Succession._claim
    lent: dict[tuple[Fences, bytes, bytes], int] = {}

    def later(self: Fences, owner: bytes, client: bytes, stamp: int) -> None:
        lent[self, owner, client] = stamp

    def done(self: Succession, owner: bytes, client: bytes) -> None:
        if stamp := lent.pop((self.fences, owner, client), 0):
            claim(self.fences, owner, client, stamp)
        claimed(self, owner, client)

    patch.setattr(Fences, "claim", later)
    patch.setattr(Succession, "_claim", done)


def tells_links_early(patch: Mutant) -> None:
    """What a client with a session publishes goes to other brokers ahead of its record."""

    def logged(self: Journal, entry: LogEntry, source: Connection | None) -> None:
        self.entries.batch(entry, logged=True)
        self.frames.require(source)

    patch.setattr(Journal, "logged", logged)


def takes_nothing_back(patch: Mutant) -> None:
    """What an older session has had stays in the queue."""
    patch.setattr(QueueMerge, "_take_back", lambda *arguments, twin: set())


MUTANTS: list[tuple[Callable[[Mutant], None], str, int]] = [
    # A broker goes on with sessions that others have.
    (leaves_out(Fencing, "_carry_out"), "hangs", 2),
    # A broker that stood still goes on at once.
    (leaves_out(Stream, "on_suspended"), "hangs", 2),
    (claims_when_done, "hangs", 28),
    # Sessions that nobody comes for stay in their image.
    (leaves_out(Adoption, "_begin"), "kills", 1000),
    # Nobody rules on what a broker that is dead had given to members elsewhere.
    (leaves_out(Assignments, "succeed"), "shared kills", 17),
    # A standby does not say what members of a broker that is dead were granted.
    (leaves_out(Custody, "_answer_for"), "shared kills", 107),
    # QoS 2 messages go to clients ahead of their record.
    (leaves_out(SessionRecorder, "hold_output"), "lags", 5),
    (tells_links_early, "lags", 15),
    # Sessions are merged without their names.
    (leaves_out(Evaluated, "had", False), "splits", 0),
    # As a split ends a client is sent what it has had on the other side.
    (leaves_out(SessionMerge, "_pause"), "splits", 500015),
    # The same, if other brokers can be reached again ahead of its former one.
    (leaves_out(SessionMerge, "_pause_others"), "splits", 500106),
    (takes_nothing_back, "splits", 500015),
    # A session that came from a standby is not merged with that of its owner.
    (leaves_out(SessionMerge, "way_lost"), "splits", 500015),
    # What is in the queue of an older copy counts as evaluated.
    (leaves_out(Evaluated, "lacks", False), "aimed", 2),
    # A client gets new messages before its queue has come.
    (leaves_out(SessionMerge, "_hold"), "aimed", 3),
    # What has come from several brokers is sent as it came.
    (leaves_out(merge, "put_in_order"), "aimed", 3),
    # A session that moves is not given what its image lacks.
    (leaves_out(GapRecovery, "fetch"), "aimed", 2),
    # Answers to questions from before a session came count as all that it lacks.
    (leaves_out(OrderedFeed, "forget_questions"), "wipes", 214),
    (forgets_members, "slow shared hangs", 20),
    # A broker that has started again goes on with what its disk has.
    (leaves_out(Fencing, "started"), "lags", 0),
    # A broker that has started again takes what clients repeat for new.
    (leaves_out(Fencing, "_go_on_from"), "lags", 0),
]
"""Faults, each with a kind and a seed that show it."""


@pytest.mark.parametrize(
    ("plant", "kind", "seed"), MUTANTS, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_fault_is_found(
    plant: Any, kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_python("the faults are planted in methods")
    with Mutant(monkeypatch) as mutant:
        plant(mutant)
        assert play(seed, kind)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("stops", [True, False])
@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_the_standby_publishes_the_wills_of_clients_that_do_not_return(
    seed: int, returns: bool, stops: bool, clean: bool
) -> None:
    world, ledger = World(seed), Ledger()
    disks: dict[int, Disk] = {}
    world.on_start.append(lambda host: disks[host.index].started())
    for _ in range(3):
        host = world.add(discovery="multicast", replicas=1, standby_hosts="any")
        disks[host.index] = Disk(world, host, sync=False)
        host.start()
    listener = SimClient(world, ledger, "l", world.hosts[1], filters=[("will", 1)])
    kind = Refugee if returns else SimClient
    device = kind(world, ledger, "d", world.hosts[0], clean=clean, will=("will", 1, True))
    listener.connect()
    device.connect()
    world.run(4.0)
    if stops:  # it publishes them itself
        world.hosts[0].leave()
    else:
        kill(world, world.hosts[0], reset=True)
    world.run(1.5)
    assert not world.hosts[0].alive
    assert len(listener.got) == (1 if stops else 0)
    world.run(3.0)
    assert len(listener.got) == (0 if returns and not stops else 1)
    device.waits = True
    world.hosts[0].start()  # with its journal
    world.run(4.0)
    assert len(listener.got) == (0 if returns and not stops else 1)


def synced(
    seed: int, count: int = 3, routing: str = "flood", limits: Limits = DEFAULTS
) -> tuple[World, Ledger, Host, Host]:
    """A world in which each broker has a standby; returns the first one and its standby, too."""
    world = standing(seed, count, 1, routing, limits)
    owner = world.hosts[0]
    standby = standbys_of(owner)[0]
    return world, Ledger(), owner, standby


@pytest.mark.parametrize("routing", ["flood", "interest", "topic"])
@pytest.mark.parametrize("seed", range(4))
def test_the_last_messages_of_a_broker_that_dies_are_not_waited_for(
    seed: int, routing: str
) -> None:
    """Its standby has them all, and says so: others hold nothing back until the broker may be back
    after a split."""
    world, ledger, owner, _ = synced(seed, 4, routing)
    publishers = [Refugee(world, ledger, f"p{n}", owner, clean=False) for n in range(2)]
    clients = [
        Refugee(world, ledger, f"c{n}", host, clean=False, filters=[(f"t{n % 2}", 2)])
        for n, host in enumerate(each for each in world.hosts if each is not owner)
    ]
    for client in (*publishers, *clients):
        client.connect()
    world.run(1.0)
    for n in range(60):
        world.after(n * 0.01, publishers[n % 2].publish, f"t{n % 3}", 2)
    world.run(0.3007 + seed * 0.002)
    died = world.now
    kill(world, owner, reset=True)
    world.run(12.0)
    for client in clients:
        check(world, ledger, client)
        check_order(world, ledger, client)
        for got in client.got:
            assert got.at < max(died, ledger.sent[got.number].at) + 1.5
    assert not world.violations


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_goes_on_at_once_if_its_standby_has_not_missed_it(seed: int) -> None:
    world, ledger, owner, standby = synced(seed)
    client = Refugee(world, ledger, "c", owner, clean=False, filters=[("t", 2)])
    client.connect()
    world.run(1.0)
    owner.pause()
    client.publish("t", 2)
    world.run(1.3)
    owner.resume()
    world.run(0.3)
    counters = owner.running.counters
    assert (counters.doubts, counters.fences, standby.running.counters.promotions) == (1, 0, 0)
    assert len(client.got) == 1
    assert client.epoch == 1
    assert not client.errors


@pytest.mark.parametrize("later", [0.01, 0.05, 0.1, 0.15, 0.2])
@pytest.mark.parametrize("seed", range(2))
def test_a_session_goes_on_if_its_broker_dies_as_it_moves(seed: int, later: float) -> None:
    world, ledger, owner, standby = synced(seed, routing="topic")
    client = Refugee(world, ledger, "c", owner, clean=False, filters=[("t", 2)])
    client.connect()
    world.run(1.0)
    client.leave_for(1e6)
    client.host = next(host for host in world.hosts if host not in (owner, standby))
    client.connect()
    world.run(later)
    kill(world, owner, reset=True)
    world.run(3.0)
    assert (client.state, client.session) == ("up", 1)


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_whose_standby_is_gone_serves_clients_after_three_seconds(seed: int) -> None:
    world, ledger, owner, standby = synced(seed)
    client = SimClient(world, ledger, "c", owner, filters=[("t", 1)])
    client.connect()
    world.run(1.0)
    owner.pause()
    client.publish("t", 1)
    world.run(1.0)
    standby.kill(reset=False)
    world.run(2.0)
    owner.resume()
    world.run(2.8)
    assert not client.got
    world.run(0.5)
    assert len(client.got) == 1
    assert owner.running.counters.doubts == 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("hangs", [3.0, 6.0])
def test_one_broker_publishes_the_will_of_a_client_that_stays(seed: int, hangs: float) -> None:
    """The standby, if the hang is so long; then the owner closes the client's connection, for the
    next one to have a will of its own."""
    world, ledger, owner, _ = synced(seed)
    listener = SimClient(
        world, ledger, "l", next(h for h in world.hosts if h is not owner), filters=[("will", 1)]
    )
    device = SimClient(world, ledger, "d", owner, clean=False, will=("will", 1, False))
    listener.connect()
    device.connect()
    world.run(1.0)
    owner.pause()
    world.run(hangs)
    owner.resume()
    world.run(1.0)
    assert len(listener.got) == (hangs > 4.0)
    assert (device.state, device.epoch) == ("up", 1 + (hangs > 4.0))
    device.cut()
    world.run(1.0)
    assert len(listener.got) == 1 + (hangs > 4.0)


@pytest.mark.parametrize("voids", [True, False])
@pytest.mark.parametrize("routing", ["flood", "interest", "topic"])
def test_what_never_left_a_broker_is_void_as_its_client_repeats_it_elsewhere(
    routing: str, voids: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker stops in the turn in which it is published."""
    needs_python("voiding is left out to see that it matters")
    if not voids:
        monkeypatch.setattr(Fencing, "_void", lambda self, lsn, stamps: None)
    world, ledger, owner, _ = synced(0, routing=routing)
    others = [host for host in world.hosts if host is not owner]
    publisher = Refugee(world, ledger, "p", owner, clean=False)
    near = SimClient(world, ledger, "near", owner, clean=False, filters=[("t", 2)])
    far = SimClient(world, ledger, "far", others[0], clean=False, filters=[("t", 2)])
    near.doubt = True  # its connection may be closed
    for client in (publisher, near, far):
        client.connect()
    world.run(2.3)
    owner.pause_in_turn()
    publisher.publish("t", 2)
    world.run(0.5)
    assert owner.paused
    publisher.flee("hop")
    world.run(3.5)
    owner.resume()
    world.run(6.0)
    assert owner.running.counters.messages_voided == voids
    assert [len(client.got) for client in (near, far)] == ([1, 1] if voids else [2, 2])


@pytest.mark.parametrize("back", [True, False])
@pytest.mark.parametrize("routing", ["flood", "interest", "topic"])
def test_a_standby_adopts_no_session_whose_queue_is_still_to_be_taken(
    routing: str, back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its taker asks for that when all brokers know the filters there, which takes 4 s. `back`:
    its broker has started again by then, without its data."""
    world, ledger, owner, standby = synced(0, 4, routing)
    taker, elsewhere = (host for host in world.hosts if host not in (owner, standby))
    client = Refugee(world, ledger, "c", owner, version=5, clean=False, filters=[("t", 2)])
    hosts = (elsewhere, standby)
    publishers = [Refugee(world, ledger, f"p{n}", host) for n, host in enumerate(hosts)]
    for each in (client, *publishers):
        each.connect()
    world.run(1.0)

    def late(self: SubscriptionBarrier, filters: Any, then: Callable[[float], None]) -> bool:
        node = next(host.running for host in world.alive() if host.running.cluster.barrier is self)
        node.timers.schedule(node.now + 4.0, then)
        return True

    monkeypatch.setattr(SubscriptionBarrier, "expect", late)
    kill(world, owner, reset=True)
    client.host = taker
    world.on_start[:] = [lambda host: Disk(world, host, sync=False).started()]
    for turn in range(80):
        if back and turn == 30:
            owner.start()
        for publisher in publishers:
            publisher.publish("t", 2)
        world.run(0.1)
    world.run(15.0)
    assert client.session == 1
    check(world, ledger, client)
    check_order(world, ledger, client)
    assert not world.violations


@pytest.mark.parametrize("routing", ["flood", "interest", "topic"])
@pytest.mark.parametrize("seed", range(2))
def test_sessions_of_absent_clients_outlive_one_broker_after_the_other(
    seed: int, routing: str
) -> None:
    """Their broker dies, then its standby, then the one that was the standby's."""
    world, ledger, owner, _ = synced(seed, 4, routing)
    absent = Refugee(world, ledger, "absent", owner, version=5, clean=False, filters=[("t", 2)])
    publisher = Refugee(world, ledger, "p", owner, version=4, clean=False)
    absent.connect()
    publisher.connect()
    world.run(1.0)
    absent.leave_for(1e6)
    for _ in range(3):
        world.run(1.0)
        holder = max(
            (host for host in world.alive() if "absent" in host.running.sessions),
            key=lambda host: host.running.sessions["absent"].stamp,
        )
        kill(world, holder, reset=True)
        assert not holder.alive
        for _ in range(60):  # also while the session is adopted
            world.run(0.1)
            publisher.publish("t", 2)
    [last] = world.alive()
    absent.host = last
    absent.connect()
    world.run(1.0)
    publisher.publish("t", 2)  # by a route that was made while it was away
    world.run(2.0)
    assert absent.session == 1
    check(world, ledger, absent)
    check_order(world, ledger, absent)
    assert not world.violations
    assert len(absent.got) > 150


@pytest.mark.parametrize("routing", ["flood", "interest", "topic"])
@pytest.mark.parametrize("seed", range(2))
def test_a_session_that_waits_in_an_image_gets_what_was_published_meanwhile(
    seed: int, routing: str
) -> None:
    """Also what was published at the broker to which its client comes, some time before. It waits
    there for a Will Delay Interval, at most."""
    world, ledger, owner, standby = synced(seed, 4, routing, Limits(adoption_s=600.0))
    others = [host for host in world.hosts if host is not owner]
    absent = Refugee(world, ledger, "absent", owner, version=5, clean=False, filters=[("t", 2)])
    publishers = [
        Refugee(world, ledger, f"p{host.index}", host, version=4, clean=False) for host in others
    ]
    for client in (absent, *publishers):
        client.connect()
    world.run(1.0)
    absent.leave_for(1e6)
    world.run(0.5)
    kill(world, owner, reset=True)
    for _ in range(30):
        world.run(1.0)
        for publisher in publishers:
            publisher.publish("t", 2)
    assert not any("absent" in host.running.sessions for host in others)
    absent.host = next(host for host in others if host is not standby)
    absent.connect()
    world.run(5.0)
    assert absent.session == 1
    check(world, ledger, absent)
    check_order(world, ledger, absent)
    assert not world.violations
    assert len(absent.got) == 90


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("routing", ["flood", "interest", "topic"])
@pytest.mark.parametrize("seed", range(2))
def test_what_the_disk_has_and_the_standby_has_not_is_void(
    seed: int, routing: str, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client repeats it: at another broker, or (`stays`) at that one, which has to take it."""
    needs_python("frames are lost on their way")
    world, ledger, owner, _ = synced(seed, 4, routing)
    filters = [("t", 2)]
    clients = [
        Refugee(world, ledger, f"c{host.index}", host, clean=False, filters=filters)
        for host in world.hosts
    ]
    publisher = Refugee(world, ledger, "p", owner, clean=False)
    for client in (*clients, publisher):
        client.waits = True
        client.connect()
    publisher.waits = stays
    world.run(1.0)
    publisher.publish("t", 2)
    world.run(0.5)
    stream, send = owner.running.images.stream, Stream.send

    def sent(self: Stream, frame: bytes, lsn: int) -> None:
        if self is not stream:
            send(self, frame, lsn)

    monkeypatch.setattr(Stream, "send", sent)
    publisher.burst("t", 2, 3, 5)
    world.run(0.2)
    kill(world, owner, reset=True)
    world.run(3.0)
    assert not owner.alive
    owner.start()
    world.run(8.0)
    assert owner.running.counters.messages_voided == 3
    for client in clients:
        check(world, ledger, client)
        check_order(world, ledger, client)
        assert len(client.got) == 4
    assert not world.violations


@pytest.mark.parametrize("takes_back", [True, False])
@pytest.mark.parametrize("seed", [3, 4])
def test_what_never_left_a_broker_that_hangs_one_member_of_a_group_gets(
    seed: int, takes_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker stops in the turn in which its member is granted a message; its standby has no
    record of that, so the message is given to another member."""
    needs_python("the broker is stopped in the middle of a turn")
    if not takes_back:
        monkeypatch.setattr(Fencing, "_give_back", lambda self, lsn: None)
    world, ledger, owner, standby = synced(seed)
    giver = next(host for host in world.hosts if host not in (owner, standby))
    filters = [("$share/g/t", 2)]
    first = Refugee(world, ledger, "first", owner, clean=False, filters=filters)
    second = Refugee(world, ledger, "second", standby, clean=False, filters=filters)
    publisher = Refugee(world, ledger, "p", giver, clean=False)
    first.doubt = True  # its connection may be closed
    first.connect()
    publisher.connect()
    world.run(1.0)
    custody = owner.running.cluster.custody
    take = Custody._take

    def stops(self: Custody, taken: Any) -> None:
        if self is custody:
            owner.pause_in_turn()
        take(self, taken)

    monkeypatch.setattr(Custody, "_take", stops)
    publisher.publish("t", 2)
    world.run(0.3)
    monkeypatch.setattr(Custody, "_take", take)
    assert owner.paused
    second.connect()
    world.run(7.0)
    assert [len(client.got) for client in (first, second)] == [0, 1]
    owner.resume()
    world.run(8.0)
    assert [len(client.got) for client in (first, second)] == [0 if takes_back else 1, 1]
    counters = [host.running.counters for host in world.hosts]
    assert sum(each.shared_uncertain for each in counters) == 0


@pytest.mark.parametrize("guards", [True, False])
def test_the_two_sides_of_a_split_do_not_both_rule_on_a_message_of_a_group(
    guards: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The giver, which is the taker's standby, is alone on its side. Its own standby grants what
    the taker claims, so it gives nothing to its own member."""
    needs_python("a rule is left out to see that it matters")
    if not guards:
        monkeypatch.setattr(Deputies, "standby_lost", lambda self, broker_id: None)
    for seed in range(30):
        world, ledger, taker, giver = synced(seed)
        if standbys_of(giver) not in ([taker], []):
            break
    filters = [("$share/g/t", 2)]
    slow = Refugee(world, ledger, "slow", taker, version=5, clean=False, filters=filters)
    slow.receive_maximum, slow.ack_delay = 1, 0.1
    near = Refugee(world, ledger, "near", giver, clean=False, filters=filters)
    publisher = Refugee(world, ledger, "p", giver, clean=False)
    slow.connect()
    publisher.connect()
    world.run(1.0)
    for _ in range(100):
        publisher.publish("t", 2)
    world.run(0.5)
    near.connect()
    world.partition([(giver.index,)])
    world.run(10.0)
    assert near.interests
    world.heal()
    world.run(20.0)
    got = sorted(got.number for client in (slow, near) for got in client.got)
    assert (got == list(range(100))) == guards


@pytest.mark.parametrize("elsewhere", [True, False])
def test_what_waits_for_a_member_comes_once_if_its_session_was_adopted_meanwhile(
    elsewhere: bool,
) -> None:
    """Its broker hangs for so long, and has the messages, too. They are published there, or
    `elsewhere`."""
    world, ledger, owner, standby = synced(0)
    filters = [("$share/g/t", 2)]
    member = Refugee(world, ledger, "m", owner, clean=False, filters=filters)
    publisher = Refugee(world, ledger, "p", standby if elsewhere else owner, clean=False)
    member.connect()
    publisher.connect()
    world.run(1.0)
    member.leave_for(12.0)
    world.run(0.2)
    for _ in range(5):
        publisher.publish("t", 2)
    world.run(1.0)
    owner.pause()
    world.run(5.0)
    assert "m" in standby.running.sessions
    owner.resume()
    world.run(15.0)
    assert [got.number for got in member.got] == list(range(5))


@pytest.mark.parametrize("version", [4, 5])
def test_an_adopted_session_is_in_routes_as_its_client_speaks(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in those that are made while it is on its way."""
    needs_python("a route is asked for in the middle of an adoption")
    world, ledger, owner, standby = synced(0)
    absent = Refugee(world, ledger, "c", owner, version=version, clean=False, filters=[("t", 1)])
    absent.connect()
    world.run(1.0)
    absent.leave_for(1e6)
    world.run(0.5)
    kill(world, owner, reset=True)
    routes, on_takeover = [], Absentee.on_takeover

    def taken(self: Absentee, stamp: int, now: float) -> None:
        routes.append(standby.running.dispatcher.route(b"t"))
        on_takeover(self, stamp, now)

    monkeypatch.setattr(Absentee, "on_takeover", taken)
    world.run(4.0)
    [route] = routes
    session = standby.running.sessions["c"]
    assert (route.raw5 if version == 5 else route.raw4) == (session,)
