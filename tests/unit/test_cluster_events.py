"""Events of the cluster: who hears of them, in which order."""

from __future__ import annotations

from broker.cluster.events import ClusterEvents, Event, MemberGone, OriginLost, RouteChanged
from tests.unit.node_harness import World

ORDER: dict[type[Event], list[str]] = {
    OriginLost: ["Resync.origin_lost"],
    MemberGone: ["AbsentMembers.member_gone"],
    RouteChanged: [
        "Cluster._route_changed",
        "SourceTrees.route_changed",
        "SubscriptionBarrier.route_changed",
        "RemoteFlowControl.route_changed",
        "Interest.route_changed",
        "SharedSubscriptions.route_changed",
        "Assignments.route_changed",
        "Custody.route_changed",
        "Takeover.route_changed",
        "UnloggedNumbers.route_changed",
        "GapRecovery.route_changed",
        "Resync.route_changed",
        "AbsentMembers.route_changed",
    ],
}


def test_subscribers_hear_of_events_in_this_order() -> None:
    """Behaviour depends on it: whoever changes the order has to know why it was so."""
    order = World().node.cluster.events.order
    found = {
        kind: [call.__qualname__ for call in subscribers] for kind, subscribers in order.items()
    }
    assert found == ORDER


def test_what_a_subscriber_dispatches_is_told_before_the_next_one_hears() -> None:
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
