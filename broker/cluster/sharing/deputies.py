"""Who answers for a broker about messages of groups: that broker, or, while it cannot be reached,
its standby, which has the image of its journal (docs/decisions/0015). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mqttree.broker.cluster.directory.link_state_directory import has_died, standby_of

if TYPE_CHECKING:
    from mqttree.broker.cluster.events import RouteChanged
    from mqttree.broker.cluster.ports import MemberBroker
    from mqttree.broker.cluster.sharing.assignment_ledger import SequenceSet
    from mqttree.routing.link_state import LinkStateDatabase

TOGETHER_S = 5.0
"""s; brokers that are lost within this time may have been cut off together: a link that is silent
is noticed late."""


class TakenMessages(Protocol):
    """Has the images of other brokers."""

    def taken_by(self, broker_id: bytes) -> tuple[int, SequenceSet] | None:
        """Return the boot number of a broker that cannot be reached, and which messages its members
        were granted; None: this broker has not taken its place."""


class Deputies:
    """Which brokers answer for others."""

    taken: TakenMessages | None = None

    def __init__(self, node: MemberBroker, own: bytes, database: LinkStateDatabase) -> None:
        """`node`: this broker, with the id `own`; `database`: what brokers post."""
        self._node = node
        self._own = own
        self._database = database
        # The last standby of this broker that was lost, and when (s).
        self._lost, self._lost_at = b"", 0.0
        self._gone: dict[bytes, float] = {}  # broker that cannot be reached -> since when (s)

    def route_changed(self, event: RouteChanged) -> None:
        """Note that a broker can be reached again, or no longer."""
        if event.via is not None:
            self._gone.pop(event.broker_id, None)
        else:
            self._gone.setdefault(event.broker_id, self._node.now)

    def standby_lost(self, broker_id: bytes) -> None:
        """Note that the standby of this broker is lost."""
        self._lost, self._lost_at = broker_id, self._node.now

    def of(self, broker_id: bytes) -> bytes | None:
        """Return the broker that answers for `broker_id`, None: none does.

        Two brokers that are lost together are rather cut off than dead, and what is decided on one
        side of a split must not be decided on the other one, too: so none does if this broker has
        lost its own standby together with that one, unless that one was seen to die.
        """
        if broker_id == self._own or self._database.reaches(broker_id):
            return broker_id
        standby, lost = standby_of(self._database, broker_id), self._lost
        since = self._gone.get(broker_id, self._lost_at)
        together = abs(since - self._lost_at) < TOGETHER_S
        apart = lost not in (b"", broker_id) and together and not self._database.reaches(lost)
        if apart and not has_died(self._database, broker_id):
            return None
        there = standby == self._own or self._database.reaches(standby)
        return standby if there else None

    def answers(self, sender: bytes, broker_id: bytes) -> bool:
        """Whether `sender` is the broker `broker_id`, or its standby while that cannot be
        reached."""
        return sender in (broker_id, self.of(broker_id))
