"""Routing by topic in simulation: messages take the shortest hops, and repairs keep what is
promised (docs/decisions/0020)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
from mqttree.broker.cluster.strategy.path_change import BREAK, CHANGED
from mqttree.broker.cluster.strategy.source_trees import SourceTrees
from mqttree.broker.limits import DEFAULTS, Limits
from tests.sim.schedule import run_seed
from tests.sim.signalling import measure
from tests.sim.test_federation import Event, Scene, kill, start
from tests.sim.world import Host, World


class Meshed(Scene):
    """Brokers that are all linked, with given delays (ms); every client wants its own topic
    besides those of all."""

    def __init__(
        self, seed: int, brokers: int, events: list[Event], delays: dict[tuple[int, int], float]
    ) -> None:
        super().__init__(seed, brokers, events, routing="topic")
        self.world.loss = self.world.jitter = 0.0
        for (a, b), delay in delays.items():
            self.world._base[a, b] = self.world._base[b, a] = delay / 1000


def far(brokers: int, near: float = 2.0, **other: float) -> dict[tuple[int, int], float]:
    """Delays of a full mesh: `near`, and those of pairs like b0_b2 = 9.0."""
    found = {(a, b): near for b in range(brokers) for a in range(b)}
    for pair, delay in other.items():
        a, b = (int(name[1:]) for name in pair.split("_"))
        found[a, b] = delay
    return found


def hops(host: Host, origin: Host) -> dict[str, str]:
    """Where an origin's messages go from a host: broker -> neighbour."""
    names = {h.id: h.name for h in host.world.hosts}
    found = host.running.cluster.strategy.trees.next_hops(origin.id).next
    return {
        names[broker]: names[link.peer.id]
        for broker, link in found.items()
        if link.peer is not None
    }


def test_in_a_full_mesh_messages_go_straight_to_each_broker() -> None:
    """In a full mesh everybody sends straight to everybody, whatever the spanning tree blocks."""
    scene = Meshed(1, 5, [], far(5))
    result = scene.run()
    assert result.violations == [], "\n".join(result.transcript)
    for host, origin in itertools.product(scene.hosts, repeat=2):
        expected = {h.name: h.name for h in scene.hosts if h is not host} if host is origin else {}
        assert hops(host, origin) == expected


def test_messages_take_two_cheap_links_around_a_costly_one() -> None:
    """Where a way through another broker saves more than it costs, that broker passes messages
    on."""
    scene = Meshed(2, 4, [], far(4, b1_b3=40.0))
    result = scene.run()
    assert result.violations == [], "\n".join(result.transcript)
    b0, b1, b2, b3 = scene.hosts
    through = hops(b1, b1)["b3"]
    assert through in ("b0", "b2")
    relay = b0 if through == "b0" else b2
    assert hops(relay, b1) == {"b3": "b3"}
    assert hops(b3, b1) == {}


@pytest.mark.parametrize("seed", (1, 2, 3))
def test_messages_survive_the_kill_of_a_relay(seed: int) -> None:
    """Who passed messages on is killed, and comes back: nothing is lost or twice, and order is
    kept."""
    scene = Meshed(
        seed, 4, [(3.0, kill(0)), (5.0, start(0)), (6.5, kill(2, reset=False))], far(4, b1_b3=40.0)
    )
    result = scene.run()
    assert result.violations == [], "\n".join(result.transcript)
    assert result.messages and result.deliveries > result.messages


def test_filters_announced_again_after_a_repair_are_not_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Brokers that the tree has lost for a moment announce their filters again; no message goes
    around the others for that."""
    learnt: list[float] = []

    def watched(self: SourceTrees, broker: bytes, topic_filter: str) -> None:
        learnt.append(self._node.now - scene.world.started)

    monkeypatch.setattr(SourceTrees, "learnt", watched)
    scene = Meshed(1, 6, [(3.0, kill(0, reset=False))], far(6, b1_b3=40.0))
    scene.run()
    assert learnt
    assert not [at for at in learnt if 2.0 < at < 8.0]


class Unheard(Meshed):
    """b1's messages for b3 pass through b2. A client of b3 subscribes to something new while b2
    cannot hear of it."""

    def __init__(self, seed: int, events: list[Event]) -> None:
        super().__init__(seed, 4, events, far(4, near=4.0, b1_b3=40.0, b1_b2=2.0, b2_b3=2.0))

    def build(self) -> None:
        super().build()
        for client in self.clients:
            if client.name.startswith("sub"):
                client.filters = [("t/#", 2)]  # no broker knows the topic already
        subscriber = self._client("late", self.hosts[3], filters=[], clean=True, receive_maximum=0)
        publisher = self._client("other", self.hosts[1], clean=True)

        def subscribe() -> None:
            assert hops(self.hosts[1], self.hosts[1])["b3"] == "b2"
            subscriber.filters.append(("new/#", 2))
            subscriber.subscribe([("new/#", 2)])

        self.world.after(3.2, subscribe)
        for at in (3.6, 3.7, 3.8):
            self.world.after(at, publisher.publish, "new/x", 2)


@pytest.mark.parametrize(
    "wait", (0.3, DEFAULTS.suback_wait_s), ids=("SUBACK at once", "SUBACK when all know")
)
@pytest.mark.parametrize(
    "events",
    (
        [(3.0, lambda scene: scene.hosts[2].pause()), (4.0, lambda scene: scene.hosts[2].resume())],
        [(3.0, lambda scene: scene.world.block(0, 2)), (9.0, lambda scene: scene._unblock(0, 2))],
        [(3.0, lambda scene: scene.world.block(0, 2)), (4.2, lambda scene: scene._unblock(0, 2))],
        [(3.0, lambda scene: scene.world.block(0, 2)), (4.2, kill(2))],
    ),
    ids=("it hangs", "the tree's link is cut", "shortly", "then it dies"),
)
def test_a_message_passes_a_relay_that_does_not_know_the_filter_yet(
    events: list[Event], wait: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is published after SUBACK arrives, also if the relay had not heard by then, drops it,
    and sends newer messages."""
    monkeypatch.setattr(World, "limits", Limits(suback_wait_s=wait))
    scene = Unheard(1, events)
    result = scene.run()
    assert result.violations == [], "\n".join(result.transcript)
    (late,) = [client for client in scene.clients if client.name == "late"]
    (interest,) = late.interests
    due = [sent for sent in scene.ledger.sent if sent.topic == "new/x" and sent.at > interest.since]
    assert wait > 0.3 or len(due) == 3
    assert {sent.number for sent in due} <= {got.number for got in late.got}


class Joined(Meshed):
    """Brokers that route by topic, and one, the last, that comes later, routes otherwise, and
    goes."""

    def __init__(self, seed: int, otherwise: str) -> None:
        super().__init__(seed, 4, [(5.5, kill(3)), (7.0, start(3))], far(4, b0_b2=30.0))
        self.late[3] = 3.0
        self.otherwise = otherwise

    def build(self) -> None:
        super().build()
        self.hosts[3].config["routing"] = self.otherwise


@pytest.mark.parametrize("otherwise", ("flood", "interest"))
def test_a_broker_of_another_strategy_may_come_and_go(
    monkeypatch: pytest.MonkeyPatch, otherwise: str
) -> None:
    """All messages go back to the tree for as long as it is there, and nothing is lost. Whoever
    gets messages from a broker is told ahead of each change, on the hops of up to then and on the
    next ones."""
    told: list[tuple[bytes, bytes]] = []
    entered, left = [], []
    enter, leave, send_over, send = (
        SourceTrees._enter,
        SourceTrees._leave,
        UnicastBus.send_over,
        UnicastBus.send,
    )

    def over(self: UnicastBus, link: Any, broker: bytes, kind: int, body: bytes) -> None:
        if kind == CHANGED:
            told.append((body, broker))
        send_over(self, link, broker, kind, body)

    def to(self: UnicastBus, broker: bytes, kind: int, body: bytes, **how: bool) -> bool:
        if kind == BREAK:
            told.append((b"", broker))
        return send(self, broker, kind, body)

    def watched_enter(self: SourceTrees, reachable: dict[bytes, None]) -> None:
        live = [
            b for b in reachable if (link := self._directory.link_to(b)) is not None and link.live
        ]
        told.clear()
        enter(self, reachable)
        assert told == [(b"", broker) for broker in live]
        entered.extend(live)

    def watched_leave(self: SourceTrees, reachable: dict[bytes, None]) -> None:
        behind = [
            (o, b)
            for o, hops in self._next_hops.items()
            for b, link in hops.next.items()
            if link.up
        ]
        told.clear()
        leave(self, reachable)
        assert [entry for entry in told if entry[0]] == behind
        assert not self.active
        left.extend(behind)

    monkeypatch.setattr(UnicastBus, "send_over", over)
    monkeypatch.setattr(UnicastBus, "send", to)
    monkeypatch.setattr(SourceTrees, "_enter", watched_enter)
    monkeypatch.setattr(SourceTrees, "_leave", watched_leave)
    scene = Joined(3, otherwise)
    result = scene.run()
    assert result.violations == [], "\n".join(result.transcript)
    assert entered
    assert left
    reports = [host.running.cluster.strategy.report() for host in scene.hosts]
    assert [report["source_trees"]["active"] for report in reports if report] == [False] * 3


@pytest.mark.parametrize("seed", (6, 70))
def test_mixed_routing_keeps_all_promises(seed: int) -> None:
    """Schedules in which some brokers route by topic, some by interest, and some flood."""
    result = run_seed(seed)
    assert result.routing == "mixed"
    assert result.violations == [], "\n".join(result.transcript)


def test_signalling_does_not_grow_with_topics() -> None:
    """The paper pays 1,500 % for 60 topics: here it is what flooding costs, and the messages are a
    fraction of it."""
    flood, few, many = measure("flood", 60, 10), measure("topic", 3, 10), measure("topic", 60, 10)
    assert few.lost == many.lost == flood.lost == 0
    assert many.signalling < 1.3 * flood.signalling
    assert many.signalling < 1.05 * few.signalling
    assert many.data < 0.2 * flood.data
    assert many.delay < 0.8 * flood.delay
