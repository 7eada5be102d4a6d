"""`--routing ort` in simulation: what it promises, in random schedules, and what is lost, to the
message."""

from __future__ import annotations

import os

import pytest

from mqttree.broker import CORE
from mqttree.broker.cluster.link.link import Link
from mqttree.broker.cluster.strategy.ort import Ort
from mqttree.stp.topic_overlay import TopicOverlay
from tests.sim.clients import SimClient
from tests.sim.lossy_modes import EvenScene, missing
from tests.sim.ort import OrtSchedule, Unowed, members, overlay_faults, reached, run_ort
from tests.sim.test_federation import Event, kill, part, start

SEEDS = int(os.environ.get("SEEDS", "4"))
FIRST = int(os.environ.get("FIRST", "0"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_random_schedules_keep_what_ort_promises(seed: int) -> None:
    result = run_ort(seed)
    assert result.violations == [], "\n".join(result.transcript)
    assert result.messages


class Mesh(EvenScene):
    """All brokers are linked to each other, but for some pairs."""

    def __init__(
        self, brokers: int, apart: tuple[tuple[int, int], ...] = (), **config: object
    ) -> None:
        super().__init__(brokers, [], apart, routing="ort", **config)

    def check(self) -> None:
        """All that is promised at any time, and the overlays."""
        Unowed(self.world, self.ledger, self.clients, self.meetings, self.splits).check()
        for kind, text in overlay_faults(self.world):
            self.world.violation(kind, text)
        assert self.world.violations == []


@pytest.mark.parametrize("burst", (1, 3, 10))
@pytest.mark.parametrize("topic", ("a", "a/b"))
def test_exactly_what_is_counted_is_lost_until_the_overlay_is_there(topic: str, burst: int) -> None:
    """The subscriber's broker is a member before the first message, or joins by a wildcard."""
    scene = Mesh(3)
    subscriber = scene.client("sub", 2, "a", "a/#")
    publisher = scene.client("pub", 1)
    world = scene.world
    for number in range(100):
        for _ in range(burst):
            world.after(number * 0.02, publisher.publish, topic, 1 + number % 2)
    world.run(4.0)
    lost = missing(publisher, subscriber)
    assert 0 < len(lost) < 60 * burst
    assert lost == list(range(len(lost)))
    assert scene.lost() == len(lost)
    scene.check()


def test_a_later_subscriber_misses_what_is_published_while_it_joins() -> None:
    scene = Mesh(4)
    near = scene.client("near", 1, "a")
    publisher = scene.client("pub", 0)
    world = scene.world
    publisher.publish("a", 1)
    world.run(2.0)
    before, counted = len(missing(publisher, near)), scene.lost()
    assert before == counted == 1
    far = SimClient(world, scene.ledger, "far", scene.hosts[3], filters=[("a", 2)])
    scene.clients.append(far)
    for number in range(100):
        world.after(0.5 + number * 0.02, publisher.publish, "a", 1)
    world.after(0.7, far.connect)
    world.run(4.0)
    assert len(missing(publisher, near)) == before
    since = far.interests[0].since
    sent = {one.number: one.at for one in scene.ledger.sent}
    late = [number for number in missing(publisher, far) if sent[number] > since]
    assert late
    # What is under way in both directions meanwhile is counted to the ms, not to the message.
    assert abs(scene.lost() - counted - len(late)) <= 2
    scene.check()


def test_brokers_without_a_client_of_a_topic_get_none_of_its_messages() -> None:
    scene = Mesh(5)
    subscriber = scene.client("sub", 3, "a")
    scene.client("other", 2, "x/y")
    publisher = scene.client("pub", 4)
    publisher.publish("a", 1)
    scene.world.run(2.0)
    for number in range(20):
        publisher.publish("a", number % 3)
    scene.world.run(1.0)
    assert len(subscriber.got) == 20
    assert [host.running.counters.received_link for host in scene.hosts] == [0, 0, 0, 20, 0]
    assert [host.index for host in members(scene.world, "a")] == [3, 4]
    scene.check()


def test_members_that_are_not_linked_do_not_reach_each_other() -> None:
    """b0 is between b1 and b2, and has no client of the topic until later."""
    scene = Mesh(3, apart=((1, 2),))
    subscriber = scene.client("sub", 2, "a")
    publisher = scene.client("pub", 1)
    world = scene.world
    for number in range(20):
        world.after(number * 0.1, publisher.publish, "a", 1)
    world.run(4.0)
    assert subscriber.got == []
    states = [host.running.cluster.strategy.report()["topic_overlays"] for host in scene.hosts]
    assert [state["in_parts"] for state in states] == [1, 0, 0]
    between = scene.client("between", 0, "a")
    world.run(2.0)
    for _ in range(10):
        publisher.publish("a", 1)
    world.run(1.0)
    assert len(subscriber.got) == len(between.got) == 10
    scene.check()


CHANGES: dict[str, list[Event]] = {
    "the root dies and comes back": [(2.5, kill(0)), (5.0, start(0))],
    "a member dies for good": [(2.5, kill(2))],
    "the publisher's broker is cut off for a while": [(2.5, part((1,))), (8.0, part())],
    "all are cut off": [(2.5, part((0,), (1,), (2,), (3,), (4,))), (7.0, part())],
}


@pytest.mark.parametrize("policy", ("capability", "balance"))
@pytest.mark.parametrize("name", CHANGES)
def test_overlays_form_again_after_a_change(name: str, policy: str) -> None:
    scene = Mesh(5, overlay_policy=policy)
    subscribers = [scene.client(f"sub{broker}", broker, "a/#") for broker in (0, 3, 4)]
    publisher = scene.client("pub", 1)
    scene.client("pub2", 2).publish("a/b", 1)
    world = scene.world
    for at, event in CHANGES[name]:
        world.after(at, event, scene)
    for number in range(100):
        world.after(number * 0.2, publisher.publish, "a/b", 1)
    world.run(22.0)
    sent = {one.number: one.at for one in scene.ledger.sent}
    first = min(sent[one.number] for one in scene.ledger.sent if one.client is publisher)
    for subscriber in subscribers[1:]:
        # From some seconds after the last event on, nothing is lost.
        late = [number for number in missing(publisher, subscriber) if sent[number] > first + 13.0]
        assert late == []
    scene.check()


def test_root_balance_shares_the_roots_out_among_brokers() -> None:
    scene = Mesh(3, overlay_policy="balance")
    topics = [f"t/{number}" for number in range(12)]
    for broker in range(3):
        client = scene.client(f"pub{broker}", broker)
        for topic in topics:
            client.publish(topic, 1)
    scene.world.run(15.0)
    roots = [
        host.running.cluster.strategy.report()["topic_overlays"]["root_of"] for host in scene.hosts
    ]
    assert roots == [4, 4, 4]
    assert reached(scene.world, scene.hosts[0], "t/0") == set(scene.hosts[1:])


def all_links(ort: Ort, brokers: tuple[bytes, ...]) -> list[Link]:
    """Flood over all links, whatever the overlay."""
    return list(ort._open.values())


def no_children(overlay: TopicOverlay) -> None:
    """Send to the parent alone."""
    overlay.neighbours = () if overlay.parent is None else (overlay.parent,)


def own_root(overlay: TopicOverlay, claims: object) -> None:
    """Follow nobody."""


@pytest.mark.long
@pytest.mark.skipif(CORE.running != "python", reason="a compiled core cannot be changed")
@pytest.mark.parametrize(
    ("place", "name", "mutant", "kinds"),
    [
        (Ort, "_links", all_links, {"ways"}),
        (TopicOverlay, "_find_neighbours", no_children, {"overlay"}),
        (TopicOverlay, "_best_root", own_root, {"overlay root", "overlay"}),
    ],
    ids=["all links", "no children", "no root but itself"],
)
def test_a_broker_that_does_it_wrong_is_noticed(
    monkeypatch: pytest.MonkeyPatch, place: type, name: str, mutant: object, kinds: set[str]
) -> None:
    monkeypatch.setattr(place, name, mutant)
    assert kinds <= {kind for kind, _ in run_ort(3, 4).violations}


def test_a_schedule_is_the_same_each_time() -> None:
    assert OrtSchedule(3).run().digest == OrtSchedule(3).run().digest
