"""Members and the tree: what discovery and the spanning tree decide is carried out here.

`mqttree.discovery.membership` knows the members, and `mqttree.stp.tree` computes the tree; both are
pure and return what is to be done. This module sends BPDUs and members to neighbours, asks the
driver to dial, closes links that are one too many, and dispatches what the tree decides as events.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from mqttree.broker.base.address import Address
from mqttree.broker.base.broker_id import Identity
from mqttree.broker.base.rate_limit import RateLimit
from mqttree.broker.cluster.events import LinkForwards, TopologyChanged
from mqttree.broker.cluster.link.control_records import BPDU, MEMBERS
from mqttree.broker.cluster.link_registry import MAX_LINK_LINES
from mqttree.broker.core.effects import Datagram, Dial
from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.broker.wire.packets import Disconnect
from mqttree.discovery import effects as discovery
from mqttree.discovery.gossip import decode_members, encode_members
from mqttree.discovery.member_table import MAX_MEMBERS
from mqttree.stp import bpdu as bpdus
from mqttree.stp.bpdu import Role
from mqttree.stp.changes import ForwardingChanged, RootChanged, TopologyChange

if TYPE_CHECKING:
    from mqttree.broker.cluster.events import ClusterEvents, LinkDown, LinkUp, RouteChanged
    from mqttree.broker.cluster.link.link import Handler, Link
    from mqttree.broker.cluster.ports import MemberBroker
    from mqttree.discovery.membership import Membership
    from mqttree.stp.tree import Tree

GOSSIP_INTERVAL_S = 0.05
"""s between two lists of members to one neighbour: newcomers are sent at once, a flood of them
in one piece."""

TOPOLOGY_CHANGES_PER_SECOND = 10
"""publications of TOPOLOGY a second; beyond it only the newest, a little later: no subscriber can
use more."""

TOPOLOGY = "$mqttree/topology"
"""The topic of topology changes, for clients of this broker."""


class LosesLinks(Protocol):
    """Called when a link is to end, or has ended."""

    def __call__(
        self, link: Link, reason: str, now: float, *, quiet: bool = False, replaced: bool = False
    ) -> None:
        """Note that a `link` is gone for a `reason` (text); `now`: s. `quiet`: that is not logged;
        `replaced`: the next link to the same broker is up already."""


class Topology:
    """The members of the federation, and the tree, as this broker takes part in them."""

    def __init__(
        self,
        node: MemberBroker,
        *,
        tree: Tree,
        membership: Membership,
        links: dict[bytes, Link],
        events: ClusterEvents,
        lose: LosesLinks,
        same_id: Callable[[Address, float], None],
    ) -> None:
        """`node`: this broker; `tree`, `membership`: what decides; `links`: by the id of the
        neighbour, those that are gone are taken out here; `events`: dispatches what happens;
        `lose`: ends a link; `same_id`: called where another broker is said to have the id of this
        one, and when (s)."""
        self._node = node
        self.tree = tree
        self.membership = membership
        self._links = links
        self._events = events
        self._lose = lose
        self._same_id = same_id
        now = node.now
        self._gossip_at = now  # members are gossiped no earlier
        self._leaving = False
        # The newest one that is not published yet.
        self._change: TopologyChange | None = None
        self._changes = RateLimit(TOPOLOGY_CHANGES_PER_SECOND, now)
        self._change_at = now
        self.records: dict[int, Handler] = {
            BPDU: self._bpdu_received,
            MEMBERS: self._members_received,
        }

    # ---------------------------------------------------------------- time

    def tick(self, now: float) -> None:
        """Do what is due in discovery and in the tree at `now` (s)."""
        self.membership.tick(now)
        self.tree.tick(now)

    def change_deadline(self) -> float | None:
        """When the newest topology change is published (s)."""
        return None if self._change is None else self._change_at

    def gossip_deadline(self, now: float) -> float | None:
        """When members are gossiped again (s), None when nothing is new."""
        version = self.membership.gossip_version
        if self._gossip_at > now and any(link.gossiped != version for link in self._links.values()):
            return self._gossip_at
        return None

    # ---------------------------------------------------------------- what was decided

    def settle(self, now: float) -> bool:
        """Carry out what discovery and the tree have decided. Returns False if that is nothing."""
        busy = False
        for effect in self.membership.take_effects():
            busy = True
            self._discovery(effect, now)
        for change in self.tree.take_changes():
            busy = True
            self._tree_changed(change, now)
        for peer_id, bpdu in self.tree.take_bpdus(now):
            link = self._links.get(peer_id)
            if link is not None and link.up:
                link.add_record(BPDU, bpdus.encode(bpdu))
        self.membership.tree_agreed(self.tree.agreed, now)
        return busy

    def gossip(self, now: float) -> None:
        """Tell neighbours of members: a new neighbour of all at once, the others of changes,
        several of these together."""
        version = self.membership.gossip_version
        again = now >= self._gossip_at
        news: dict[int, bytes] = {}
        for link in self._links.values():
            since = link.gossiped
            if since != version and link.up and (again or since == -1):
                if since != -1:
                    self._gossip_at = now + GOSSIP_INTERVAL_S
                link.gossiped = version
                if since not in news:
                    news[since] = encode_members(self.membership.members(now, since))
                if news[since]:
                    link.add_record(MEMBERS, news[since])

    def _discovery(self, effect: discovery.Effect, now: float) -> None:
        match effect:
            case discovery.Announce(data):
                self._node.effects.append(Datagram(data))
            case discovery.Dial(address):
                if self._alive_at(address, now):
                    self.membership.dial_failed(address, "the broker there is linked", now)
                else:
                    self._node.effects.append(Dial(address.host, address.port))
            case discovery.Surplus(broker_id):
                self._close_surplus(broker_id, now)
            case discovery.SameId(address):
                self._same_id(address, now)
            case discovery.Log(level, text):
                self._node.log(level, text)
            case discovery.StateChanged(state):
                self._node.log("debug", f"federation state: {state}")

    def _close_surplus(self, broker_id: bytes, now: float) -> None:
        """Close a link that is one too many, if neither end needs it in the tree; the other broker
        may dial again."""
        link, port = self._links.get(broker_id), self.tree.ports.get(broker_id)
        if link is None or port is None or not link.up or not link.dialled:
            return
        if link.forwarding or port.forwarding or Role.ROOT in (port.role, port.echo):
            return
        self._node.counters.links_surplus += 1
        link.conn.close(encode_packet(Disconnect(ReasonCode.NORMAL_DISCONNECTION), 5))
        self._lose(link, "one too many", now, quiet=True)

    def _alive_at(self, address: Address, now: float) -> bool:
        """Say whether the link to the broker that advertises this address works.

        Another broker that goes about with its id (a copied data directory) makes discovery think
        that it was restarted. A second dial would take the place of the link that stands, again
        with every announcement.
        """
        return any(
            link.up
            and link.peer is not None
            and (link.peer.host, link.peer.port) == address
            and link.conn.last_heard + 2 * self._node.config.hello > now
            for link in self._links.values()
        )

    def _tree_changed(self, change: object, now: float) -> None:
        match change:
            case RootChanged():
                root = self.tree.root
                who = "this broker" if self.tree.is_root else f"{root.address[0]}:{root.address[1]}"
                self._node.log(
                    "debug" if self._leaving else "info", f"root of the tree is now {who}"
                )
            case ForwardingChanged():
                link = self._links.get(change.peer)
                if link is not None:
                    self._events.dispatch(LinkForwards(link, change.forwarding, now))
            case TopologyChange():
                self._events.dispatch(TopologyChanged(change, now))

    def route_changed(self, event: RouteChanged) -> None:
        """Note that a broker can be reached over the tree, or cannot any more."""
        self.membership.reachable(event.broker_id, event.via is not None, self._node.now)

    def topology_changed(self, event: TopologyChanged) -> None:
        """Publish a topology change for clients (TOPOLOGY)."""
        self._node.counters.topology_changes += 1
        self._change = event.change
        self.tell_change(event.now)

    def tell_change(self, now: float) -> None:
        """Publish the newest topology change. Of changes that follow each other too fast only the
        newest one is published, a little later."""
        change = self._change
        if change is None:
            return
        if not self._changes.take(now):
            self._change_at = now + 1 / TOPOLOGY_CHANGES_PER_SECOND
            return
        self._change = None
        text = {"origin": change.origin.hex(), "number": change.number, "epoch": self.tree.epoch}
        self._node.publisher.publish_internal(TOPOLOGY, json.dumps(text).encode(), 0, False)

    # ---------------------------------------------------------------- neighbours

    def neighbour_up(self, event: LinkUp) -> None:
        """Add a neighbour to the members, and a port to the tree."""
        link, peer = event.link, event.link.peer
        assert peer is not None
        address = Address(peer.host, peer.port)
        dialled = Address(*link.address) if link.dialled else None
        self.membership.link_up(peer.id, peer.boot, address, event.now, dialled)
        self.tree.port_up(
            Identity(peer.id, peer.boot, Address(peer.host, peer.port)),
            peer.capability,
            event.now,
        )

    def neighbour_down(self, event: LinkDown) -> None:
        """Remove the port to a neighbour from the tree; discovery may dial it again."""
        link, peer, now = event.link, event.link.peer, event.now
        if peer is not None and self._links.get(peer.id) is link:
            del self._links[peer.id]
            if event.was_up:
                self._node.counters.links_closed += 1
                if not event.quiet:
                    text = f"link to {link.title} is down: {event.reason}"
                    self._node.log_limit.line(
                        "info", "link down", link.conn.peer, text, MAX_LINK_LINES
                    )
                self.tree.port_down(peer.id, now, not event.replaced)
                if not event.replaced:
                    self.membership.link_down(peer.id, now, peer.boot)
        if link.dialled and not event.was_up:
            self.membership.dial_failed(Address(*link.address), event.reason, now)

    def on_link_alive(self, link: Link, now: float) -> None:
        """Note that part of a packet came: the peer lives, however large the packet."""
        if link.peer is not None and link.up:
            self.tree.heard(link.peer.id, now)

    def leave(self, now: float) -> None:
        """Tell the members that this broker stops."""
        self._leaving = True  # that it has no root then is not logged
        self.membership.leave(now)

    def _bpdu_received(self, link: Link, body: bytes, now: float) -> None:
        assert link.peer is not None
        try:
            self.tree.bpdu_received(link.peer.id, bpdus.decode(body), now)
        except bpdus.BpduError as error:
            raise MalformedPacket(f"BPDU: {error}") from None

    def _members_received(self, link: Link, body: bytes, now: float) -> None:
        peer = link.peer
        assert peer is not None
        via = Address(peer.host, peer.port)
        for broker_id, boot, addresses, alive in decode_members(body)[:MAX_MEMBERS]:
            self.membership.member_learnt(broker_id, boot, addresses, now, alive=alive, via=via)
