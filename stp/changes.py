"""Events of a tree for its owner, and the memory by which each numbered topology change is relayed
exactly once."""

from __future__ import annotations

from collections import OrderedDict

from mqttree.broker.base.record import Record
from mqttree.stp.bpdu import ChangeNumber
from mqttree.stp.priority_vector import RootVector


class RootChanged(Record):
    """This broker follows another root now (possibly itself)."""

    root: RootVector


class ForwardingChanged(Record):
    """A port began or ceased to forward messages; so did a port that went down while it
    forwarded."""

    peer: bytes
    forwarding: bool


class TopologyChange(Record):
    """A numbered topology change was seen here for the first time."""

    number: int
    origin: bytes


Change = RootChanged | ForwardingChanged | TopologyChange


class ChangeLog:
    """The newest topology change of each origin. MQTT-ST II-C6 does not say how a relay stops; it
    stops here."""

    def __init__(self, limit: int) -> None:
        """At most `limit` origins are remembered; the one that was heard of longest ago is
        forgotten first."""
        self._seen: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        self._own_number = 0
        self.limit = limit

    def __len__(self) -> int:
        return len(self._seen)

    def mint(self, origin: bytes, boot: int) -> ChangeNumber:
        """Number a change that this broker saw itself."""
        self._own_number += 1
        return ChangeNumber(origin, boot, self._own_number)

    def is_new(self, change: ChangeNumber) -> bool:
        """Return whether the change has to be applied and relayed, and remember it. A later boot
        number of an origin starts from the beginning."""
        incarnation = (change.boot, change.number)
        seen = self._seen.pop(change.origin, None)
        if seen is None and len(self._seen) >= self.limit:
            self._seen.popitem(last=False)
        self._seen[change.origin] = incarnation if seen is None else max(seen, incarnation)
        return seen is None or incarnation > seen
