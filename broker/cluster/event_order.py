"""Which modules of the cluster hear of an event, in which order, and why (docs/decisions/0037)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqttree.broker.cluster.events import (
    EntriesHandled,
    EntriesSent,
    EventOrder,
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

if TYPE_CHECKING:
    from mqttree.broker.cluster.composition import ClusterParts


def event_order(parts: ClusterParts) -> EventOrder:
    """Return the subscribers of each event, in the order in which they are called."""
    return {**link_event_order(parts), **member_event_order(parts)}


def link_event_order(parts: ClusterParts) -> EventOrder:
    """Return the subscribers of what happens to a link."""
    return {
        LinkUp: (
            # The members and the tree are known to all subscribers behind this one.
            parts.topology.neighbour_up,
            parts.gone_brokers.link_up,
            # From now on a neighbour may miss messages.
            parts.begin_log,
            # SUBACK waits for this neighbour, too, before it is sent the wanted filters,
            # and messages may take the link.
            parts.barrier.links_changed,
            parts.strategy.on_link_open,
            # It may be the standby.
            parts.images.link_up,
        ),
        LinkForwards: (
            # The brokers behind the link count as reachable,
            parts.directory.on_link_forwards,
            # before it is sent the version vector, or gets a replay.
            parts.resync.link_forwards,
        ),
        # No subscription waits for an answer over it.
        LinkLeftTree: (parts.barrier.link_left,),
        # Brokers with new filters ask for earlier messages, ahead of those that they get next.
        EntriesHandled: (parts.strategy.on_entries_handled,),
        # SUBACK waits until all brokers have heard of it: they are asked behind it.
        EntriesSent: (parts.barrier.entries_sent,),
        LinkBehind: (
            # A replay goes on when the link has drained: until then nothing is queued for it.
            parts.resync.link_left,
            parts.forwarder.link_left,
            # Messages take paths around it.
            parts.strategy.on_link_closed,
        ),
        LinkDrained: (
            # Messages may take it again, before its neighbour asks for those that it missed.
            parts.strategy.on_link_open,
            parts.resync.link_drained,
        ),
        LinkDown: (
            # Messages under way are noted while the link still says which are not acknowledged,
            parts.absent_members.link_down,
            # and the log is kept for the neighbour, before anything can drop it.
            parts.acks.link_down,
            # The replay over it and sending on it stop,
            parts.resync.link_left,
            parts.forwarder.link_left,
            # the feeds that had it as their source lose it,
            parts.gap_recovery.link_down,
            # Messages and directory entries take other paths.
            parts.strategy.on_link_closed,
            parts.directory.on_link_down,
            # The tree and the members come last: what they decide finds all that done.
            parts.topology.neighbour_down,
            parts.barrier.links_changed,
            # Another neighbour becomes the standby, now that the links are known.
            parts.images.link_down,
            # Operators hear of it when all is done.
            parts.gone_brokers.link_down,
        ),
    }


def member_event_order(parts: ClusterParts) -> EventOrder:
    """Return the subscribers of what happens to the tree and to other brokers."""
    return {
        # It is published to clients that subscribe to $mqttree/topology.
        TopologyChanged: (
            parts.topology.topology_changed,
            # No client is sent to another broker for a while.
            parts.placement.topology_changed,
        ),
        # Neighbours may have other messages of the origin.
        OriginLost: (parts.resync.origin_lost,),
        MemberGone: (
            # The filters of the broker are noted while its entries are still there, and the
            # number from which on its copy of the log counts, before the log may drop that.
            parts.absent_members.member_gone,
            parts.gone_brokers.member_gone,
        ),
        RouteChanged: (
            # The other subscribers ask which brokers can be reached.
            parts.topology.route_changed,
            # The brokers' filters and the paths of messages, and which brokers have to know of
            # subscriptions: before anything is sent that asks for either.
            parts.strategy.on_route_changed,
            parts.barrier.route_changed,
            # Publishers go on before messages are given to others.
            parts.remote_flow_control.route_changed,
            # Members that are gone, then what was given to them, then what they gave.
            parts.sharing.deputies.route_changed,
            parts.sharing.groups.route_changed,
            parts.assignments.route_changed,
            parts.custody.route_changed,
            # Sessions of a broker are asked for once messages find their path to it.
            parts.takeover.route_changed,
            # Those of a broker that is gone, its standby has.
            parts.images.route_changed,
            # A BREAK tells the broker of the new path ahead of the messages that take it,
            parts.gap_recovery.route_changed,
            # then messages of origins that are gone are exchanged,
            parts.resync.route_changed,
            # and the log is kept for a broker that is back and is about to ask.
            parts.absent_members.route_changed,
            # Where clients should connect is of no concern to messages.
            parts.placement.route_changed,
            parts.gone_brokers.route_changed,
        ),
    }
