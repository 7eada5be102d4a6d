"""Brokers that the spanning tree has lost, and that messages on source-rooted trees still go to and
come from (docs/decisions/0020).

While the spanning tree is repaired, the links of such a broker count for AWAY s, whatever it seems
to have withdrawn. If it is dead, its neighbours post that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from mqttree.broker.base.timers import TimedBroker, Timer
from mqttree.routing.shortest_paths import Graph

AWAY = 5.0
"""s for which messages go on to a broker that the tree has lost, as long as links lead there."""

UNHEARD = 0.1
"""s for which messages pass through such a broker: most repairs of the tree are shorter, and do not
change any path. It does not hear of new filters meanwhile; when there is one, messages go around it
at once."""


class AstrayBrokers:
    """Brokers that the spanning tree has lost not long ago."""

    __slots__ = ("_avoided", "_away", "_forgotten", "_graph", "_node", "_posted_at", "_unheard")

    def __init__(
        self,
        node: TimedBroker,
        graph: Graph,
        avoided: Callable[[], None],
        forgotten: Callable[[bytes], None],
    ) -> None:
        """`node`: this broker; `graph`: the links of all brokers; `avoided`: is called when
        messages go around some of these brokers from now on; `forgotten`: is called with the id of
        one that was away for too long."""
        self._node = node
        self._graph = graph
        self._avoided = avoided
        self._forgotten = forgotten
        # Until when they count; the neighbours that they posted last.
        self._away: dict[bytes, tuple[Timer, set[bytes]]] = {}
        # Those that messages still pass through.
        self._unheard: dict[bytes, Timer] = {}
        self._posted_at = 0.0  # s; when a broker posted a new filter, last

    def __iter__(self) -> Iterator[bytes]:
        """Return their ids."""
        return iter(self._away)

    def lost(self, broker_id: bytes) -> None:
        """Note that the spanning tree does not lead to a broker."""
        self._keep(broker_id)

    def link_withdrawn(self, broker_id: bytes, neighbour: bytes) -> None:
        """Keep the link of a broker to `neighbour`, although it is not posted any more."""
        self._keep(broker_id).add(neighbour)

    def link_posted(self, broker_id: bytes, neighbour: bytes) -> None:
        """Note that the link of a broker (`broker_id`) to `neighbour` counts as it is posted."""
        if (away := self._away.get(broker_id)) is not None:
            away[1].discard(neighbour)

    def found(self, broker_id: bytes) -> None:
        """Note that the spanning tree leads to a broker again, which has posted its links."""
        if (away := self._away.pop(broker_id, None)) is not None:
            self._node.timers.cancel(away[0])
            for neighbour in away[1]:
                self._graph.post(broker_id, neighbour, None)
            self._hears_filters(broker_id)

    def filter_posted(self) -> None:
        """Note that a filter has been posted, here or by another broker: those that the spanning
        tree does not reach do not hear of it."""
        self._posted_at = self._node.now
        if self._unheard:
            self._go_around(list(self._unheard))

    def forget_all(self) -> None:
        """Forget all of them now."""
        for broker_id in list(self._away):
            self._node.timers.cancel(self._away[broker_id][0])
            self._forget(broker_id)

    def _keep(self, broker_id: bytes) -> set[bytes]:
        found = self._away.get(broker_id)
        if found is None:
            timer = self._node.timers.schedule(
                self._node.now + AWAY, lambda now: self._forget(broker_id)
            )
            found = self._away[broker_id] = (timer, set())
            now = self._node.now
            until = now if now < self._posted_at + UNHEARD else now + UNHEARD
            self._unheard[broker_id] = self._node.timers.schedule(
                until, lambda _: self._go_around((broker_id,))
            )
        return found[1]

    def _go_around(self, brokers: Iterable[bytes]) -> None:
        """Let no messages pass through some of them."""
        for broker_id in brokers:
            self._node.timers.cancel(self._unheard.pop(broker_id))
            self._graph.leaf(broker_id, only=True)
        self._avoided()

    def _hears_filters(self, broker_id: bytes) -> None:
        if (timer := self._unheard.pop(broker_id, None)) is not None:
            self._node.timers.cancel(timer)
        self._graph.leaf(broker_id, only=False)

    def _forget(self, broker_id: bytes) -> None:
        del self._away[broker_id]
        self._hears_filters(broker_id)
        self._graph.forget(broker_id)
        self._forgotten(broker_id)
