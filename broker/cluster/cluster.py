"""The part of a node that makes it a broker among others, as the node and its driver use it.

`composition` puts its modules together, `event_order` says which hear of what, `agenda` when it is
called; what follows from what they say is decided in the packages below.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mqttree.broker.base.address import Address
from mqttree.broker.cluster.composition import ClusterParts, FederatedBroker
from mqttree.broker.cluster.directory.link_state_directory import DRAINING
from mqttree.broker.cluster.event_order import event_order
from mqttree.broker.core.effects import Dial

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.ports import AbsentMembers, StandbyImages

ALONE_S = 10.0
"""s without any word of another broker after which nothing is kept for others, by a broker that has
never met one: long enough to find those that run."""


class Cluster(ClusterParts):
    """This broker's part in its cluster: links, members, and messages between brokers."""

    def __init__(self, node: FederatedBroker, now: float, wall: float, rng: random.Random) -> None:
        """As of `ClusterParts`."""
        super().__init__(node, now, wall, rng)
        self._next_sweep = now + 1.0
        self._alone_since = now
        self.agenda.plan()

    def attach(self, absent_members: AbsentMembers, images: StandbyImages) -> None:
        """Take the modules that are built above the cluster. To be called before any input."""
        self.absent_members, self.images = absent_members, images
        self.events.subscribe(event_order(self))

    def knows(self, broker_id: bytes) -> bool:
        """Return whether a broker is of this federation: this one, or one whose listing is known,
        reachable or not."""
        return broker_id == self.node.config.id or broker_id in self.database.listings

    @property
    def in_reach(self) -> int:
        """How many other brokers can be reached."""
        return len(self.database.reachable())

    # ---------------------------------------------------------------- inputs

    def datagram_received(self, data: bytes, source: tuple[str, int], now: float) -> None:
        """Take a datagram (`data`) of the discovery group from `source` (host, port); `now`: s."""
        self.membership.datagram_received(data, source, now)
        self.agenda.settle(now)

    def dial_answered(self, dial: Dial, error: str | None, now: float) -> bool:
        """Note that the driver could not open a connection for `dial`; one that it opened is known
        (`dialled`). Returns True: membership knows which dials are under way.

        `error`: why there is no connection, None when there is one; `now`: s.
        """
        if error is not None:
            self.membership.dial_failed(Address(dial.host, dial.port), str(error), now)
            self.agenda.settle(now)
        return True

    def set_wall(self, wall: float, now: float) -> int:
        """Take the time of day `wall` (s since the epoch) at `now` (s). Returns by how much the
        clock was set (ms)."""
        self.membership.set_wall(wall, now)
        return self.clock.set_wall(wall, now)

    def seed_resolved(self, seed: str, addresses: Iterable[tuple[str, int]], now: float) -> None:
        """Take the `addresses` (host, port) that the name of the configured `seed` resolved to;
        `now`: s."""
        self.membership.seed_resolved([Address(h, p) for h, p in addresses], now, seed)
        self.agenda.settle(now)

    # ---------------------------------------------------------------- time

    def tick(self, now: float) -> None:
        """Do what is due: hellos, time-outs, discovery, the tree."""
        if now < self.agenda.due:
            return
        self.link_registry.tick(now)
        self.id_conflict.tick(now)
        self.topology.tick(now)
        self.subscription_starts.past.note(self.origins.own.top, now)
        if now >= self._next_sweep:
            self._sweep(now)
        self.retained_sync.tick(now)
        self.retained_comparison.tick(now)
        self.directory.tick(now)
        self.sharing.groups.tick(now)
        self.strategy.tick(now)
        self.topology.tell_change(now)
        self.agenda.settle(now)

    def _sweep(self, now: float) -> None:
        """Do what is to be done once a second."""
        self._next_sweep = now + 1.0
        if (
            self.links
            or self.link_registry.handshakes
            or self.membership.members(now)
            or self.expects_others
        ):
            self._alone_since = now
            self.node.federated = True
        elif self._alone_since + ALONE_S < now:
            self.node.federated = False
        self.acks.tick(now)
        self.absent_members.tick(now)
        self.pulls.tick(now)
        self.gone_brokers.tick(now)
        self.replay_log.forget_old(now)
        self.evaluated.forget_all_paid()
        self.forwarder.sweep(now)

    def set_capability(self, capability: float, now: float) -> None:
        """Note that this broker's capability has changed."""
        self.node.log("info", f"capability is now {capability:g}, it was {self.tree.capability:g}")
        self.tree.set_capability(capability, now)
        self.agenda.settle(now)

    # ---------------------------------------------------------------- end

    def leave(self, now: float) -> None:
        """Tell all members and neighbours that this broker stops; the driver then closes."""
        self.directory.post_now(DRAINING, b"1")
        self.topology.leave(now)
        self.assignments.leave()
        self.agenda.settle(now)
        self.link_registry.close_all()
