"""Who answers for a broker about messages of groups: that broker, or, while it cannot be reached,
its first standby that can be, which has the image of its journal (docs/decisions/0015). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mqttree.broker.cluster.directory.link_state_directory import has_died, standbys_of

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
        self._lost: dict[bytes, float] = {}  # standby of this broker -> when it was lost (s)
        self._gone: dict[bytes, float] = {}  # broker that cannot be reached -> since when (s)

    def route_changed(self, event: RouteChanged) -> None:
        """Note that a broker can be reached again, or no longer."""
        if event.via is not None:
            self._gone.pop(event.broker_id, None)
        else:
            self._gone.setdefault(event.broker_id, self._node.now)

    def standby_lost(self, broker_id: bytes) -> None:
        """Note that a standby of this broker is lost."""
        self._lost[broker_id] = self._node.now

    def of(self, broker_id: bytes) -> bytes | None:
        """Return the broker that answers for `broker_id`, None: none does.

        Two brokers that are lost together are rather cut off than dead, and what is decided on one
        side of a split must not be decided on the other one, too: so none does if this broker has
        lost a standby of its own together with that one, unless that one was seen to die.
        """
        if broker_id == self._own or self._database.reaches(broker_id):
            return broker_id
        reaches = self._database.reaches
        apart = any(
            lost != broker_id
            and abs(self._gone.get(broker_id, at) - at) < TOGETHER_S
            and not reaches(lost)
            for lost, at in self._lost.items()
        )
        if apart and not has_died(self._database, broker_id):
            return None
        standbys = standbys_of(self._database, broker_id)
        return next((each for each in standbys if each == self._own or reaches(each)), None)

    def answers(self, sender: bytes, broker_id: bytes) -> bool:
        """Whether `sender` is the broker `broker_id`, or answers for it while that cannot be
        reached."""
        return sender in (broker_id, self.of(broker_id))
