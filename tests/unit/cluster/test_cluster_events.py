"""Events of the cluster: who hears of them, in which order."""

from __future__ import annotations

from mqttree.broker.cluster.events import (
    ClusterEvents,
    EntriesHandled,
    EntriesSent,
    Event,
    LinkBehind,
    LinkDown,
    LinkDrained,
    LinkForwards,
    LinkLeftTree,
    LinkUp,
    MemberGone,
    OriginLost,
    RouteChanged,
    TopologyChanged,
)
from tests.kit.node_harness import World

ORDER: dict[type[Event], list[str]] = {
    LinkUp: [
        "Topology.neighbour_up",
        "GoneBrokers.link_up",
        "Cluster.begin_log",
        "SubscriptionBarrier.links_changed",
        "Topic.on_link_open",
        "Images.link_up",
    ],
    LinkForwards: ["LinkStateDirectory.on_link_forwards", "Resync.link_forwards"],
    LinkLeftTree: ["SubscriptionBarrier.link_left"],
    EntriesHandled: ["Topic.on_entries_handled"],
    EntriesSent: ["SubscriptionBarrier.entries_sent"],
    LinkBehind: ["Resync.link_left", "Forwarder.link_left", "Topic.on_link_closed"],
    LinkDrained: ["Topic.on_link_open", "Resync.link_drained"],
    LinkDown: [
        "AbsentMembers.link_down",
        "LinkAcks.link_down",
        "Resync.link_left",
        "Forwarder.link_left",
        "GapRecovery.link_down",
        "Topic.on_link_closed",
        "LinkStateDirectory.on_link_down",
        "Topology.neighbour_down",
        "SubscriptionBarrier.links_changed",
        "Images.link_down",
        "GoneBrokers.link_down",
    ],
    TopologyChanged: ["Topology.topology_changed", "PlacementService.topology_changed"],
    OriginLost: ["Resync.origin_lost"],
    MemberGone: ["AbsentMembers.member_gone", "GoneBrokers.member_gone"],
    RouteChanged: [
        "Topology.route_changed",
        "Topic.on_route_changed",
        "SubscriptionBarrier.route_changed",
        "RemoteFlowControl.route_changed",
        "Deputies.route_changed",
        "GroupTable.route_changed",
        "Assignments.route_changed",
        "Custody.route_changed",
        "Takeover.route_changed",
        "Images.route_changed",
        "GapRecovery.route_changed",
        "Resync.route_changed",
        "AbsentMembers.route_changed",
        "PlacementService.route_changed",
        "GoneBrokers.route_changed",
    ],
}


def test_subscribers_hear_of_events_in_this_order() -> None:
    """Behaviour depends on it: whoever changes the order has to know why it was so."""
    order = World(routing="topic").node.cluster.events.order
    found = {
        kind: [f"{type(call.__self__).__name__}.{call.__name__}" for call in subscribers]
        for kind, subscribers in order.items()
    }
    assert found == ORDER


def test_an_event_dispatched_within_another_is_handled_first() -> None:
    events, told = ClusterEvents(), list[str]()

    def first(event: RouteChanged) -> None:
        told.append("route, first")
        events.dispatch(MemberGone(event.broker_id, ()))

    events.subscribe(
        {
            RouteChanged: (first, lambda _: told.append("route, second")),
            MemberGone: (lambda _: told.append("gone"),),
        }
    )
    events.dispatch(RouteChanged(b"a" * 8, None))
    assert told == ["route, first", "gone", "route, second"]
