"""Overlays of topics: members, elections, paths, flooding inside the overlay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.stp.root_policy import BALANCE, OverlaySettings
from tests.kit.overlay_harness import SETTINGS, Net

T = b"a/b"
TT, PERIOD = SETTINGS.answer_s, SETTINGS.period_s
BALANCED = OverlaySettings(policy=BALANCE, gamma=50.0, delta=2.0)


def mesh(*capabilities: float, settings: OverlaySettings = SETTINGS) -> Net:
    net = Net(capabilities, settings=settings)
    for a in range(len(capabilities)):
        for b in range(a):
            net.link(a, b)
    return net


def test_only_brokers_with_a_client_of_a_topic_are_members() -> None:
    net = mesh(1, 2, 3, 4)
    for broker in (0, 2):
        net.want(broker, T)
    net.run(1.0)
    assert net.members(T) == {0, 2}
    assert (net.table(0, T), net.table(2, T)) == ([2], [0])
    assert net.reached(0, T) == [2]


def test_no_message_goes_out_before_tt_has_passed() -> None:
    net = mesh(1, 2)
    net.want(0, T)
    net.want(1, T)
    net.run(TT - 0.01)
    assert net.table(0, T) == net.table(1, T) == []
    net.run(0.1)
    assert (net.table(0, T), net.table(1, T)) == ([1], [0])


def test_the_member_with_the_highest_capability_is_root() -> None:
    net = mesh(1, 9, 3, 8)
    for broker in (0, 2, 3):
        net.want(broker, T)
    net.run(1.0)
    assert [net.root(broker, T) for broker in (0, 2, 3)] == [3, 3, 3]
    # The best one of all has no client of the topic until now.
    net.want(1, T)
    net.run(1.0)
    assert [net.root(broker, T) for broker in range(4)] == [1] * 4


def test_of_equal_capabilities_the_lowest_address_is_root() -> None:
    net = mesh(5, 5, 5)
    for broker in (2, 1, 0):
        net.want(broker, T)
    net.run(1.0)
    assert [net.root(broker, T) for broker in range(3)] == [0] * 3


def test_the_cheapest_path_to_the_root_may_lead_through_a_member() -> None:
    net = Net((9, 1, 1))
    net.link(0, 1, 0.005)
    net.link(1, 2, 0.005)
    net.link(0, 2, 0.050)
    for broker in range(3):
        net.want(broker, T)
    net.run(2.0)
    assert [net.table(broker, T) for broker in range(3)] == [[1], [0, 2], [1]]
    assert net.brokers[2].overlays[T].path_cost_us == 20_000


def test_a_cheaper_path_through_a_broker_without_a_client_is_not_taken() -> None:
    net = Net((9, 1, 1))
    net.link(0, 1, 0.005)
    net.link(1, 2, 0.005)
    net.link(0, 2, 0.050)
    net.want(0, T)
    net.want(2, T)
    net.run(2.0)
    assert (net.table(0, T), net.table(1, T), net.table(2, T)) == ([2], [], [0])


def test_members_that_are_no_neighbours_do_not_reach_each_other() -> None:
    net = Net((1, 2, 3))
    net.link(0, 1)
    net.link(1, 2)
    net.want(0, T)
    net.want(2, T)
    net.run(2.0)
    assert net.reached(0, T) == []
    # The broker between them sees it.
    assert [broker.in_parts() for broker in net.brokers] == [0, 1, 0]
    net.want(1, T)
    net.run(2.0)
    assert net.reached(0, T) == [1, 2]
    assert net.brokers[1].in_parts() == 0


def test_what_a_broker_between_two_parts_has_noted_is_forgotten() -> None:
    net = Net((1, 2, 3))
    net.link(0, 1)
    net.link(1, 2)
    net.want(0, T)
    net.want(2, T)
    net.run(2.0)
    net.unwant(0, T)
    net.run(2.0)
    assert net.brokers[1].in_parts() == 0
    net.cut(1, 2)
    net.run(5.0)
    assert net.brokers[1].deadline() == float("inf")


def test_a_broker_whose_last_client_is_gone_leaves_at_its_next_round() -> None:
    net = mesh(1, 9, 3)
    for broker in range(3):
        net.want(broker, T)
    net.run(1.0)
    net.unwant(1, T)
    net.run(PERIOD + 0.2)
    assert net.members(T) == {0, 2}
    assert (net.root(0, T), net.table(0, T), net.table(2, T)) == (2, [2], [0])


def test_a_member_that_answers_no_more_is_dropped_after_two_rounds() -> None:
    net = mesh(1, 9)
    net.want(0, T)
    net.want(1, T)
    net.run(1.0)
    net.brokers[1].overlays.clear()  # it says nothing, not even that it leaves
    net.wanted[1].clear()
    net.run(3 * PERIOD + TT)
    assert net.table(0, T) == []
    assert net.root(0, T) == 0


def test_a_broker_with_a_matching_wildcard_joins_when_it_hears_of_a_topic() -> None:
    net = mesh(1, 2, 3)
    net.want(0, T)
    net.wanted[2].add(T)  # nobody calls `join`: the filter is not the topic
    net.run(PERIOD + 2 * TT)
    assert net.members(T) == {0, 2}
    assert net.reached(0, T) == [2]


def test_beyond_the_limit_a_topic_has_no_overlay() -> None:
    net = Net((1, 2), limit=2)
    net.link(0, 1)
    for topic in (b"a", b"b", b"c"):
        net.want(0, topic)
        net.want(1, topic)
    net.run(1.0)
    assert net.table(0, b"a") == net.table(0, b"b") == [1]
    assert net.table(0, b"c") == []


def test_root_balance_shares_the_roots_out() -> None:
    net = mesh(9, 9, 9, settings=BALANCED)
    topics = [b"%d" % number for number in range(30)]
    for topic in topics:
        for broker in range(3):
            net.want(broker, topic)
    net.run(20.0)
    roots = [net.root(0, topic) for topic in topics]
    assert sorted(roots.count(broker) for broker in range(3)) == [10, 10, 10]
    before = roots
    net.run(20.0)
    assert [net.root(0, topic) for topic in topics] == before, "they move for ever"
    assert [broker.own.rooted for broker in net.brokers] == [10, 10, 10]


@pytest.mark.parametrize(("delta", "root"), [(2.0, 1), (0.0, 0)])
def test_root_balance_counts_clients_by_delta(delta: float, root: int) -> None:
    net = mesh(1, 1, 1, settings=OverlaySettings(policy=BALANCE, gamma=50.0, delta=delta))
    for broker, clients in enumerate((9, 1, 5)):
        net.brokers[broker].own.clients = clients
        net.want(broker, T)
    net.run(5.0)
    assert [net.root(broker, T) for broker in range(3)] == [root] * 3


def test_the_own_topic_is_left_out_when_its_root_is_elected_again() -> None:
    net = mesh(1, 1, settings=BALANCED)
    net.want(0, T)
    net.want(1, T)
    net.run(5.0)
    roots = set()
    for _ in range(100):
        net.run(0.1)
        roots |= {net.root(0, T), net.root(1, T)}
    assert roots == {0}


def test_each_broker_sends_one_pingreq_a_period_to_each_neighbour() -> None:
    net = mesh(1, 2, 3, 4, 5)
    for topic in (b"a", b"b"):
        for broker in (0, 1, 2):
            net.want(broker, topic)
    net.run(5.0)
    net.pings = 0
    net.run(10 * PERIOD)
    assert net.pings == 10 * 2 * 3 * 4  # periods, topics, members, neighbours


# ---------------------------------------------------------------- any network, any events

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["link", "cut", "want", "unwant", "run"]),
        st.integers(0, 5),
        st.integers(0, 5),
        st.sampled_from([0.001, 0.01, 0.03]),
    ),
    max_size=30,
)


@pytest.mark.parametrize("settings", [OverlaySettings(), BALANCED], ids=["capability", "balance"])
@given(st.lists(st.integers(0, 3), min_size=6, max_size=6), EVENTS)
def test_after_any_events_each_part_is_one_tree(
    settings: OverlaySettings, capabilities: list[int], events: list[tuple[str, int, int, float]]
) -> None:
    net = Net(capabilities, settings=settings)
    for what, a, b, delay in events:
        if what == "want":
            net.want(a, T)
        elif what == "unwant":
            net.unwant(a, T)
        elif what == "run":
            net.run(delay * (a + 1))
        elif a != b and what == "link":
            net.link(a, b, delay)
        elif a != b:
            net.cut(a, b)
        assert not net.looped(T)
    for _ in range(60):
        net.run(0.1)
        assert not net.looped(T)
    assert net.members(T) == {n for n, wanted in enumerate(net.wanted) if wanted}
    for part in net.components(T):
        roots = {net.root(broker, T) for broker in part}
        assert len(roots) == 1
        if settings is not BALANCED:
            best = max(capabilities[broker] for broker in part)
            assert roots == {min(b for b in part if capabilities[b] == best)}
        for broker in part:
            assert net.reached(broker, T) == sorted(part - {broker})
