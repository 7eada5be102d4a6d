"""The rules of the tree one by one, on single Trees fed by hand."""

from __future__ import annotations

import itertools
import math
import random
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.base import machine
from mqttree.broker.base.broker_id import Identity
from mqttree.stp import capability as capability_module
from mqttree.stp.bpdu import MAX_CHANGES, Bpdu, ChangeNumber, Role, SeqRequest, decode, encode
from mqttree.stp.changes import ChangeLog, ForwardingChanged, RootChanged, TopologyChange
from mqttree.stp.config import TreeConfig
from mqttree.stp.ports import Port
from mqttree.stp.priority_vector import FeasibilityTable, RootVector
from mqttree.stp.tree import Tree
from tests.kit.effort import examples

ROOT, DESIGNATED, BLOCKED, NONE = Role.ROOT, Role.DESIGNATED, Role.BLOCKED, Role.NONE


def who(name: str, boot: int = 1, port: int = 1883) -> Identity:
    return Identity(name.encode().ljust(8, b"."), boot, ("10.0.0.1", port + ord(name[0])))


def vector(name: str, tenths: int = 10, boot: int = 1) -> RootVector:
    identity = who(name, boot)
    return RootVector(identity.id, boot, tenths, identity.address)


class Hand:
    """A Tree named m with capability 5.0, its clock, and neighbours played by the test."""

    def __init__(
        self, *neighbours: str, capability: float = 5.0, config: TreeConfig | None = None
    ) -> None:
        self.now = 100.0
        self.numbers = itertools.count(1)
        self.tree = Tree(who("m"), capability, config or TreeConfig(), self.now, random.Random(1))
        for name in neighbours:
            self.up(name)
        self.sent()

    def up(self, name: str, rtt_ms: float | None = 4.0, boot: int = 1) -> None:
        self.tree.port_up(who(name, boot), 1.0, self.now)
        if rtt_ms is not None:
            self.tree.rtt_sample(who(name).id, rtt_ms, self.now)

    def hear(
        self,
        name: str,
        root: RootVector,
        seq: int = 1,
        cost_ms: float = 0.0,
        role: Role = DESIGNATED,
        echo: Role = NONE,
        **more: object,
    ) -> None:
        bpdu = Bpdu(
            root, seq, round(cost_ms * 1000), 10, role, echo, number=next(self.numbers), **more
        )  # type: ignore[arg-type]
        self.tree.bpdu_received(who(name).id, bpdu, self.now)

    def sent(self) -> dict[str, Bpdu]:
        return {
            peer.decode().rstrip("."): decode(encode(b))
            for peer, b in self.tree.take_bpdus(self.now)
        }

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while (deadline := self.tree.next_deadline()) <= end:
            self.now = max(self.now, deadline)
            self.tree.tick(self.now)
        self.now = end

    def port(self, name: str) -> Port:
        return self.tree.ports[who(name).id]

    @property
    def parent(self) -> str | None:
        return None if self.tree.parent is None else self.tree.parent.decode().rstrip(".")


BEST, GOOD, POOR = vector("r", 90), vector("s", 80), vector("p", 1)


def test_a_lone_broker_is_its_root() -> None:
    tree = Hand().tree
    assert (tree.is_root, tree.parent, tree.path_cost_ms, tree.agreed, tree.epoch) == (
        True,
        None,
        0.0,
        True,
        0,
    )
    assert tree.root == RootVector.of(who("m"), 5.0)
    assert tree.capability == 5.0


def test_a_new_port_is_announced_at_once() -> None:
    hand = Hand()
    hand.up("a", rtt_ms=None)
    assert not hand.tree.agreed
    (bpdu,) = hand.sent().values()
    assert (bpdu.role, bpdu.echo, bpdu.number, bpdu.path_cost_us) == (DESIGNATED, NONE, 1, 0)
    assert hand.sent() == {}


def test_better_root_wins_and_poorer_does_not() -> None:
    hand = Hand("a", "b")
    hand.hear("a", POOR)
    assert hand.tree.is_root
    hand.hear("a", GOOD, cost_ms=3.0)
    assert (hand.parent, hand.tree.path_cost_ms) == ("a", 7.0)
    hand.hear("b", BEST, cost_ms=50.0)
    assert (hand.parent, hand.tree.root, hand.tree.path_cost_ms) == ("b", BEST, 54.0)
    assert [c.root for c in hand.tree.take_changes() if isinstance(c, RootChanged)] == [GOOD, BEST]
    told = hand.sent()
    assert {name: b.role for name, b in told.items()} == {"a": DESIGNATED, "b": ROOT}
    assert all(b.path_cost_us == 54_000 and b.root == BEST and b.hops == 1 for b in told.values())


def test_forwarding_needs_both_ends() -> None:
    hand = Hand("a")
    hand.hear("a", BEST, echo=DESIGNATED)
    assert (hand.port("a").role, hand.port("a").forwarding) == (ROOT, False)
    assert (hand.sent()["a"].role, hand.tree.agreed) == (ROOT, False)
    hand.hear("a", BEST, echo=ROOT)
    assert hand.port("a").forwarding and hand.tree.agreed
    hand.hear("a", BEST, role=BLOCKED, echo=ROOT)
    assert not hand.port("a").forwarding
    assert [c.forwarding for c in hand.tree.take_changes() if isinstance(c, ForwardingChanged)] == [
        True,
        False,
    ]


def test_a_child_is_forwarded_to_and_answered() -> None:
    hand = Hand("a")
    hand.hear("a", hand.tree.root, seq=1, cost_ms=4.0, role=ROOT, echo=DESIGNATED)
    assert hand.port("a").forwarding and hand.tree.agreed
    assert hand.sent()["a"].echo is ROOT
    hand.hear("a", POOR)
    assert not hand.port("a").forwarding
    assert hand.sent()["a"].echo is DESIGNATED


def test_two_brokers_that_take_each_other_for_parent_never_both_forward() -> None:
    """Each adopts what the other said before it turned to it; the BPDUs that say so cross."""
    m, a = Hand(), Tree(who("a"), 4.0, TreeConfig(), 100.0, random.Random(2))
    m.up("a")
    a.port_up(m.tree.own, 5.0, m.now)
    m.hear("a", BEST)
    a.bpdu_received(m.tree.own.id, Bpdu(GOOD, 1, 0, 50, DESIGNATED), m.now)
    assert m.port("a").role is ROOT and a.ports[m.tree.own.id].role is ROOT
    for _ in range(6):
        crossing = (m.tree.take_bpdus(m.now), a.take_bpdus(m.now))
        for _, bpdu in crossing[0]:
            a.bpdu_received(m.tree.own.id, bpdu, m.now)
        for _, bpdu in crossing[1]:
            m.tree.bpdu_received(a.own.id, bpdu, m.now)
        ends = (m.port("a"), a.ports[m.tree.own.id])
        assert not all(end.forwarding and end.role is ROOT for end in ends)
    assert m.tree.is_root and a.parent == m.tree.own.id and all(end.forwarding for end in ends)


@pytest.mark.parametrize(
    ("cost_ms", "tenths", "role"),
    [
        (3.0, 10, BLOCKED),  # the neighbour is nearer to the root
        (5.0, 10, DESIGNATED),
        (4.0, 60, BLOCKED),  # equal cost: higher capability
        (4.0, 10, DESIGNATED),
        (4.0, 50, BLOCKED),  # equal capability: a's address is lower than m's
    ],
)
def test_the_better_end_of_a_link_is_designated(cost_ms: float, tenths: int, role: Role) -> None:
    hand = Hand("a", "r")
    hand.hear("r", BEST)  # our cost: 4 ms
    bpdu = Bpdu(BEST, 1, round(cost_ms * 1000), tenths, BLOCKED)
    hand.tree.bpdu_received(who("a").id, bpdu, hand.now)
    assert hand.port("a").role is role


def test_root_relays_by_hello_and_others_at_once() -> None:
    hand = Hand("a", "b")
    hand.wait(0.6)
    assert {b.seq for b in hand.sent().values()} == {2}
    hand.hear("a", BEST, seq=7)
    hand.sent()
    hand.hear("a", BEST, seq=8)
    assert {(name, b.seq) for name, b in hand.sent().items()} == {("a", 8), ("b", 8)}
    hand.hear("a", BEST, seq=8)
    assert hand.sent() == {}, "nothing new, nothing said"
    hand.wait(0.7)
    assert set(hand.sent()) == {"a", "b"}, "the periodic refresh"


def test_costs_stand_still_under_one_seq() -> None:
    hand = Hand("a")
    hand.hear("a", BEST, seq=1)
    for _ in range(20):
        hand.tree.rtt_sample(who("a").id, 15.0, hand.now)
    hand.hear("a", BEST, seq=1)
    assert hand.tree.path_cost_ms == 4.0
    hand.hear("a", BEST, seq=2)
    assert hand.tree.path_cost_ms > 5.0


def test_jitter_leaves_the_cost_alone_and_one_late_answer_too() -> None:
    port = Port(who("a"), 10, 0.0)
    rng = random.Random(5)
    for n in range(60):
        port.sample(rng.uniform(8.0, 12.0), n / 2)
    port.resample()
    settled = port.link_cost_us
    for n in range(60, 400):
        port.sample(900.0 if n % 50 == 0 else rng.uniform(8.0, 12.0), n / 2)
        port.resample()
        assert port.link_cost_us == settled
    for n in range(400, 410):
        port.sample(80.0, n / 2)  # another path
    port.resample()
    assert port.link_cost_us == 80_000


@pytest.mark.parametrize("nonsense", [math.nan, -1.0, math.inf])
def test_impossible_round_trips_are_ignored(nonsense: float) -> None:
    hand = Hand("a")
    hand.tree.rtt_sample(who("a").id, nonsense, hand.now)
    assert hand.port("a").rtt_ms == 4.0


def test_answers_that_a_stopped_neighbour_gives_late_are_no_round_trips() -> None:
    port = Port(who("a"), 10, 0.0)
    port.sample(2.0, 0.5)
    for late in range(12):
        port.sample(6000.0 - 500 * late, 6.5)
    assert port.rtt_ms is not None and port.rtt_ms < 1000


def settled_hand() -> Hand:
    """m follows BEST through a (4 ms from it, 8 in all), b is an alternative; the time of free
    choice is over."""
    hand = Hand("a", "b")
    hand.hear("a", BEST, seq=1, cost_ms=4.0, hops=1)
    hand.wait(1.1)
    hand.hear("a", BEST, seq=2, cost_ms=4.0, hops=1)
    hand.sent()
    return hand


@pytest.mark.parametrize(
    ("cost_ms", "hops", "moves"),
    [
        (3.0, 1, False),  # 1 ms is less than 2 ms
        (2.1, 1, False),
        (1.9, 1, True),  # 2.1 ms and 26 %
        (4.1, 0, False),
        (3.9, 0, True),  # hardly faster, but a hop less
        (3.9, 1, False),
    ],
)
def test_a_better_path_is_taken_only_when_it_stays_better(
    cost_ms: float, hops: int, moves: bool
) -> None:
    hand = settled_hand()
    for seq in (3, 4, 5):
        hand.hear("b", BEST, seq=seq, cost_ms=cost_ms, hops=hops)
        if seq == 3:
            assert hand.parent == "a", "one good moment is not enough"
        hand.hear("a", BEST, seq=seq, cost_ms=4.0, hops=1)
        hand.wait(0.5)
    assert hand.parent == ("b" if moves else "a")


def test_a_new_root_is_reached_by_the_best_path_at_once() -> None:
    hand = Hand("a", "b")
    hand.hear("a", BEST, cost_ms=4.0)
    hand.hear("b", BEST, cost_ms=3.9)
    assert hand.parent == "b"


@pytest.mark.parametrize(
    ("seq", "cost_ms", "parent"),
    [
        (2, 7.9, "b"),  # below our own distance: takes over without an election
        (2, 8.0, None),  # could be our own descendant
        (3, 30.0, "b"),  # a newer seq cannot have come through us
        (1, 0.0, None),  # an older one proves nothing
    ],
)
def test_a_lost_parent_is_replaced_and_the_change_announced(
    seq: int, cost_ms: float, parent: str | None
) -> None:
    hand = settled_hand()
    hand.hear("b", BEST, seq=seq, cost_ms=cost_ms)
    hand.sent()
    epoch = hand.tree.epoch
    hand.tree.port_down(who("a").id, hand.now, failed=True)
    assert hand.parent == parent
    assert hand.tree.epoch == epoch + 1
    bpdu = hand.sent()["b"]
    assert [(c.origin, c.number) for c in bpdu.changes] == [(who("m").id, 1)]
    if parent is None:
        assert bpdu.root.id == who("m").id and bpdu.request == SeqRequest(BEST.id, 1, 2)
        hand.hear("b", BEST, seq=3, cost_ms=8.0)
        assert hand.parent == "b", "the newer seq that was asked for"
    else:
        assert bpdu.request is None


def test_a_link_closed_on_purpose_announces_no_topology_change() -> None:
    hand = settled_hand()
    hand.hear("b", BEST, seq=2, cost_ms=5.0)
    hand.tree.port_down(who("a").id, hand.now, failed=False)
    assert (hand.parent, hand.tree.epoch) == ("b", 0)


def test_parent_is_kept_while_it_names_the_root_and_left_when_not() -> None:
    hand = settled_hand()
    hand.hear("a", BEST, seq=2, cost_ms=90.0)
    assert (hand.parent, hand.tree.path_cost_ms) == ("a", 94.0)
    hand.hear("b", BEST, seq=2, cost_ms=7.0)
    hand.hear("a", POOR)
    assert hand.parent == "b"


def test_root_mints_on_request_but_not_too_often() -> None:
    hand = Hand("a")
    hand.wait(0.3)
    hand.sent()
    for _ in range(3):
        request = SeqRequest(who("m").id, 1, hand.tree.root_seq)
        hand.hear("a", POOR, request=request)
    assert hand.tree.root_seq == 2, "the first at once"
    assert hand.tree.next_deadline() == pytest.approx(hand.now + 0.02)
    hand.wait(0.03)
    assert hand.tree.root_seq == 3, "the others together, later, but never lost"
    assert hand.sent()["a"].seq == 3


def test_requests_travel_towards_the_root_once() -> None:
    hand = settled_hand()
    request = SeqRequest(BEST.id, 1, 2)
    hand.hear("b", POOR, request=request)
    assert hand.sent()["a"].request == request
    hand.hear("b", POOR, request=request)
    assert "a" not in hand.sent()
    hand.hear("b", POOR, request=SeqRequest(BEST.id, 1, 1))
    told = hand.sent()
    assert set(told) == {"b"} and told["b"].seq == 2, "what it wants is here already"
    hand.hear("a", BEST, seq=2, cost_ms=4.0, request=request)
    hand.hear("b", POOR, request=SeqRequest(GOOD.id, 1, 2))
    assert all(b.request is None for b in hand.sent().values()), (
        "not back to the parent, not for another root"
    )


def test_a_silent_root_dies_of_age_everywhere_at_once() -> None:
    hand = Hand("a", "b")
    hand.hear("a", BEST, seq=5, age_ms=1200)
    hand.sent()
    hand.wait(0.75)
    assert hand.tree.root == BEST
    hand.wait(0.1)
    assert hand.tree.is_root
    hand.hear("b", BEST, seq=6, age_ms=2000)
    assert hand.tree.is_root, "too old to be news"
    hand.hear("b", BEST, seq=6, age_ms=0)
    assert hand.parent == "b"


def test_age_adds_up_on_the_way() -> None:
    hand = Hand("a", "b")
    hand.hear("a", BEST, seq=5, age_ms=300)
    hand.now += 0.2
    hand.tree.port_up(who("c"), 1.0, hand.now)
    assert hand.sent()["c"].age_ms == pytest.approx(300 + 200 + 2, abs=1)  # and half a round trip


def test_a_long_packet_from_the_parent_keeps_it_alive_and_others_not() -> None:
    hand = Hand("a", "b")
    hand.hear("b", GOOD, seq=1)
    hand.hear("a", BEST, seq=1)
    for _ in range(60):
        hand.wait(0.2)
        hand.tree.heard(who("a").id, hand.now)
        hand.tree.heard(who("b").id, hand.now)
    assert (hand.parent, hand.tree.root) == ("a", BEST)
    assert hand.sent()["b"].age_ms < 500, "children must not give up either"
    hand.wait(2.1)
    assert hand.tree.is_root, "neither the parent nor old news of another root outlives its age"


def test_a_hanging_parent_is_left_when_others_hear_of_the_root() -> None:
    hand = settled_hand()
    for seq in (3, 4, 5, 6):
        hand.wait(0.45)
        hand.hear("b", BEST, seq=seq, cost_ms=20.0)
    assert hand.parent == "b"


def test_a_stop_of_our_own_is_forgiven_once_and_not_passed_on() -> None:
    hand = settled_hand()
    hand.now += 30.0
    hand.tree.tick(hand.now)
    assert hand.parent == "a", "not thrown away before the sockets are read"
    assert hand.tree.take_bpdus(hand.now) == [], "nor told to anybody before that"
    assert hand.tree.next_deadline() <= hand.now + 0.05
    hand.wait(0.06)
    hand.tree.port_up(who("c"), 1.0, hand.now)
    assert hand.sent()["c"].age_ms >= 30_000, "the truth: old"
    hand.wait(1.1)
    assert hand.tree.is_root, "no renewal came"


def test_claims_of_an_older_incarnation_do_not_count() -> None:
    hand = Hand("a", "b", "c")
    hand.hear("a", BEST, seq=500)
    hand.hear("b", vector("r", 90, boot=2), seq=1, cost_ms=9.0)
    assert (hand.parent, hand.tree.root.boot) == ("b", 2)
    hand.hear("c", BEST, seq=501)
    assert hand.parent == "b"
    hand.up("r", boot=3)
    assert hand.tree.is_root, "the root itself says that it lives for the third time"
    hand.hear("r", vector("r", 90, boot=3))
    assert (hand.parent, hand.tree.root.boot) == ("r", 3)


def test_a_restarted_neighbour_begins_afresh() -> None:
    hand = Hand("a")
    hand.hear("a", BEST, echo=ROOT)
    hand.up("a", boot=2)
    assert hand.port("a").bpdu is None and not hand.port("a").forwarding and hand.tree.is_root
    assert ForwardingChanged(who("a").id, False) in hand.tree.take_changes()


@pytest.mark.parametrize("boot", [1, 0, 7])
def test_claims_about_ourselves_are_never_used(boot: int) -> None:
    hand = Hand("a", capability=5.0)
    hand.hear("a", vector("m", 99, boot), seq=1000)
    assert hand.tree.is_root


def test_unknown_neighbours_are_ignored_and_our_own_id_refused() -> None:
    hand = Hand()
    assert hand.tree.bpdu_received(b"nobody..", Bpdu(BEST, 1, 0, 1, DESIGNATED), hand.now) is False
    hand.tree.port_down(b"nobody..", hand.now, failed=True)
    hand.tree.rtt_sample(b"nobody..", 1.0, hand.now)
    hand.tree.heard(b"nobody..", hand.now)
    with pytest.raises(ValueError, match="own id"):
        hand.tree.port_up(who("m"), 1.0, hand.now)
    with pytest.raises(ValueError, match="capability"):
        hand.tree.port_up(who("a"), math.nan, hand.now)
    assert hand.tree.ports == {} and hand.tree.agreed


def test_paths_of_more_than_an_hour_are_not_taken() -> None:
    hand = Hand("a")
    hand.hear("a", BEST, cost_ms=3_599_999.0)
    assert hand.tree.is_root


def test_topology_changes_are_relayed_once_and_said_twice() -> None:
    hand = Hand("a", "b", "c")
    change = ChangeNumber(b"faraway.", 4, 7)
    for source in "ab":
        hand.hear(source, POOR, changes=(change,))
    assert hand.tree.epoch == 1
    assert hand.tree.take_changes().count(TopologyChange(7, b"faraway.")) == 1
    first = hand.sent()
    assert first["a"].changes == () and first["b"].changes == first["c"].changes == (change,)
    hand.wait(0.6)
    assert hand.sent()["c"].changes == (change,)
    hand.wait(0.6)
    assert hand.sent()["c"].changes == ()
    hand.hear("a", POOR, changes=(ChangeNumber(b"faraway.", 4, 6), ChangeNumber(who("m").id, 1, 9)))
    assert hand.tree.epoch == 1, "older, and our own come back"
    hand.hear("a", POOR, changes=(ChangeNumber(b"faraway.", 5, 1),))
    assert hand.tree.epoch == 2, "a later life counts from one"


def test_many_topology_changes_do_not_get_lost() -> None:
    hand = Hand("a", "b")
    wanted = {ChangeNumber(f"b{n:07}".encode(), 1, 1) for n in range(3 * MAX_CHANGES)}
    for change in wanted:
        hand.hear("a", POOR, changes=(change,))
    told = [b for peer, b in hand.tree.take_bpdus(hand.now) if peer == who("b").id]
    assert {c for b in told for c in b.changes} == wanted
    assert [b.number for b in told] == list(range(told[0].number, told[0].number + len(told)))


def test_change_log_is_bounded() -> None:
    log = ChangeLog(limit=4)
    for n in range(10):
        assert log.is_new(ChangeNumber(bytes([n]) * 8, 1, 1))
    assert len(log) == 4
    assert not log.is_new(ChangeNumber(bytes([9]) * 8, 1, 1))


def test_feasibility_table_is_bounded_and_expires() -> None:
    table = FeasibilityTable(expiry_s=10.0, limit=4)
    roots = [vector(chr(ord("a") + n)) for n in range(6)]
    for now, root in enumerate(roots):
        table.advertise(root, 1, 5, float(now))
    assert list(table) == [r.id for r in roots[2:]]
    table.expire(14.5, keep=roots[2].id)
    assert list(table) == [roots[2].id, roots[5].id]


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5), st.integers(0, 9)), max_size=30))
def test_a_cost_that_was_advertised_is_never_feasible_again(
    said: list[tuple[int, int, int]],
) -> None:
    """Neither one's own claim nor a dearer one under the same seq, an older seq or an older life
    may come back."""
    table = FeasibilityTable(10.0, 8)
    lowest: tuple[int, int, int] | None = None
    for boot, seq, cost in said:
        root = vector("r", boot=boot)
        order = (-boot, -seq, cost)
        assert table.feasible(root, seq, cost) == (lowest is None or order < lowest)
        if not table.stale(root):
            table.advertise(root, seq, cost, 0.0)
            lowest = order if lowest is None else min(lowest, order)


names = st.sampled_from(["a", "b", "c", "d"])
events = st.one_of(
    st.tuples(st.just("up"), names),
    st.tuples(st.just("down"), names),
    st.tuples(st.just("wait"), st.floats(0, 3)),
    st.tuples(
        st.just("hear"),
        names,
        st.sampled_from([BEST, GOOD, POOR, vector("r", 90, boot=2), vector("m", 50)]),
        st.integers(0, 6),
        st.floats(0, 3_600_000),
        st.sampled_from([ROOT, DESIGNATED, BLOCKED]),
        st.sampled_from(Role),
        st.sampled_from([0, 100, 5000]),
        st.none()
        | st.builds(
            SeqRequest, st.sampled_from([BEST.id, who("m").id]), st.just(1), st.integers(0, 9)
        ),
    ),
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(events, max_size=40))
def test_no_neighbour_can_break_the_invariants(script: list[tuple[object, ...]]) -> None:
    """Whatever neighbours claim: one root port at most, forwarding only as agreed, BPDUs that can
    be encoded, an end."""
    hand = Hand()
    for event in script:
        match event:
            case ("up", str(name)):
                hand.up(name)
            case ("down", str(name)):
                hand.tree.port_down(who(name).id, hand.now, failed=True)
            case ("wait", float(seconds)):
                hand.wait(seconds)
            case ("hear", str(name), root, seq, cost, role, echo, age, request):
                hand.hear(name, root, seq, cost, role, echo, age_ms=age, request=request)  # type: ignore[arg-type]
        hand.sent()
        tree = hand.tree
        assert [p.peer.id for p in tree.ports.values() if p.role is ROOT] == (
            [tree.parent] if tree.parent else []
        )
        assert tree.is_root == (tree.parent is None) == (tree.root == RootVector.of(tree.own, 5.0))
        assert tree.root.key <= RootVector.of(tree.own, 5.0).key
        for port in tree.ports.values():
            if port.forwarding:
                assert port.bpdu is not None and {port.role, port.bpdu.role} == {ROOT, DESIGNATED}
        assert tree.next_deadline() > hand.now or not tree.tick(hand.now)


def test_the_capability_follows_the_formula_of_the_paper() -> None:
    assert capability_module.capability(2.4, 4, 8.0) == 17.6
    assert capability_module.capability(2.4, 1, 0.96, alpha=0.5, beta=2.0) == 3.1
    with pytest.raises(ValueError, match="not usable"):
        capability_module.capability(1.0, 1, 1.0, beta=math.nan)


def unreadable() -> None:
    raise FileNotFoundError


@pytest.mark.parametrize(
    ("frequency", "expected"),
    [
        (lambda: SimpleNamespace(current=1200.0, max=3000.0), 6.0 + 4.0),
        (lambda: SimpleNamespace(current=1200.0, max=0.0), 2.4 + 4.0),
        (lambda: SimpleNamespace(current=0.0, max=0.0), 2.0 + 4.0),
        (lambda: None, 2.0 + 4.0),
        (unreadable, 2.0 + 4.0),
    ],
)
def test_capability_is_measured(
    monkeypatch: pytest.MonkeyPatch, frequency: object, expected: float
) -> None:
    # Where Linux's files are not, psutil says it.
    monkeypatch.setattr(machine.sys, "platform", "other")
    monkeypatch.setattr(psutil, "cpu_freq", frequency)
    monkeypatch.setattr(machine, "processors", lambda: 2)
    monkeypatch.setattr(machine, "available_memory", lambda: int(4.2 * 2**30))
    assert capability_module.measure() == expected


def test_the_capability_follows_available_memory_slowly() -> None:
    """A burst moves nothing, and neither does what comes and goes: the root must not flap."""
    damped = capability_module.Damped(20.0)
    assert not any(
        damped.take(value) for value in (24.9, 15.1, 5.0, 5.0, 20.0, 40.0, 5.0, 40.0, 40.0, 25.0)
    )
    assert [damped.take(value) for value in (10.0, 9.0, 11.0)] == [False, False, True]
    assert damped.value == 11.0
    assert [damped.take(value) for value in (14.0, 14.0, 14.0, 9.0)] == [False, False, True, False]


def test_weights_of_the_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "clock_mhz", lambda: 0.0)
    monkeypatch.setattr(machine, "processors", lambda: 2)
    monkeypatch.setattr(machine, "available_memory", lambda: int(1.26 * 2**30))
    assert capability_module.measure(alpha=3.0, beta=10.0) == 19.0


def test_a_root_that_can_do_less_is_root_no_longer() -> None:
    hand = Hand("a", capability=5.0)
    assert hand.tree.is_root
    hand.tree.set_capability(0.5, hand.now)
    hand.hear("a", RootVector.of(who("a"), 4.0))
    assert hand.tree.parent == who("a").id
    hand.tree.set_capability(9.0, hand.now)
    assert hand.tree.is_root
    assert hand.tree.root.tenths == 90
    assert hand.tree.capability == 9.0


def test_a_child_is_no_way_to_the_root() -> None:
    hand = Hand("a")
    hand.hear("a", BEST, role=ROOT)
    assert hand.tree.is_root


def test_a_very_slow_link_does_not_make_fresh_claims_look_dead() -> None:
    hand = Hand()
    hand.up("a", rtt_ms=900.0)
    for _ in range(40):
        hand.wait(0.5)
        hand.tree.rtt_sample(who("a").id, 5000.0, hand.now)
    assert hand.port("a").rtt_ms == 5000.0
    hand.hear("a", BEST)
    assert hand.parent == "a"
