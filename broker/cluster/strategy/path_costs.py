"""What paths cost that lead through this broker, as it posts that for all others: each of its links
costs its round trip, the shortest of the last 64, and whoever passes on messages that it does
not want adds something (Overlays 4.2.2; docs/decisions/0020).

    entry LINK + id      -> u32 cost (us)
    entry STATE "relay"  -> u32 cost (us)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mqttree.broker.cluster.directory.link_state_directory import LINK, STATE, LinkStateDirectory
from mqttree.broker.cluster.link.link import Link
from mqttree.broker.cluster.strategy.ports import LinkedBroker
from mqttree.routing.shortest_paths import MAX_COST, Graph

RELAY = STATE + b"relay"

MIN_COST_US = 100
"""us; what every link costs at least, so that noise on loopback decides nothing."""

UNKNOWN = 10_000
"""us; what a link costs until its round trip has been measured."""

DIFFERS, DIFFERS_US = 0.35, 1000
"""A link's cost is posted again when it differs by this part and by so many us: jitter must not
change paths."""

THROUGH = 2000
"""us; what a path through another broker costs at least: it has to save that much before a broker
passes on messages that it does not want (the tree has the same hysteresis)."""

REVIEW = 2.0
"""s between two checks of what this broker's links and paths through it cost."""

HELLOS = 4
"""hellos between two additional measurements of a link."""

STEP = (5**0.5 - 1) / 2
"""The part of these hellos between additional measurements of two links: the golden ratio spreads
any number of them evenly, so that they meet neither hellos nor each other again and again."""

GAMMA, DELTA = 50, 2
"""us; RB = gamma*R + delta*clients (Overlays 4.2.2): what the policy `balance` adds for each origin
whose messages a broker passes on, and for each client that it has."""


class PathCosts:
    """What this broker's links, and paths through it, cost."""

    def __init__(
        self,
        node: LinkedBroker,
        *,
        directory: LinkStateDirectory,
        graph: Graph,
        open_links: Mapping[bytes, Link],
        relayed: Callable[[], int],
        changed: Callable[[], None],
    ) -> None:
        """`node`: this broker; `directory`: where costs are posted; `graph`: where this broker
        itself finds them; `open_links`: those that messages may take, by the neighbour's id;
        `relayed`: returns how many other origins' messages pass through this broker; `changed`: is
        called after each cost that was posted."""
        self._node = node
        self._directory = directory
        self._graph = graph
        self._config = node.config
        self._open = open_links
        self._relayed = relayed
        self._changed = changed
        self._next_review = 0.0  # s
        self._next_measurements = 0.0  # s
        # The part of their time at which the last additional measurement was. Brokers whose reviews
        # are at the same time begin at times of their own.
        self._measured_at = int.from_bytes(directory.own_id[-4:], "big") / (1 << 32)
        self._told_relay = 0  # us
        self._retired = False

    @property
    def policy(self) -> str:
        """`capability` or `balance`: what makes a path through this broker cost more."""
        return self._config.path_policy

    def posted(self, peer: bytes) -> int:
        """Return the cost (us) that was posted of the link to a neighbour."""
        return int.from_bytes(self._directory.database.own_entry(LINK + peer) or b"", "big")

    def opened(self, peer: bytes, link: Link) -> None:
        """Post the `link` to the neighbour `peer`: messages may take it once both ends have."""
        self._post(peer, link_cost(link))
        self._tell_relay()

    def closed(self, peer: bytes) -> None:
        """Withdraw the link to a neighbour."""
        self._graph.post(self._directory.own_id, peer, None)
        self._directory.withdraw(LINK + peer)

    def _post(self, peer: bytes, cost: int) -> None:
        self._graph.post(self._directory.own_id, peer, cost)
        self._directory.post(LINK + peer, cost.to_bytes(4, "big"))
        self._changed()

    def measured(self, link: Link) -> None:
        """Post the cost of a link whose first round trip has been measured; later ones count every
        REVIEW s."""
        peer = link.peer
        if peer is not None and self._open.get(peer.id) is link and self.posted(peer.id) == UNKNOWN:
            self._post(peer.id, link_cost(link))

    def tick(self, now: float) -> None:
        """Post the costs that have changed; `now`: s."""
        if now < self._next_review:
            return
        self._next_review = now + REVIEW
        for peer, link in self._open.items():
            cost = link_cost(link)
            if differs(cost, self.posted(peer)):
                self._post(peer, cost)
        if self._open:
            self._tell_relay()
            if now >= self._next_measurements:
                self._next_measurements = now + HELLOS * self._config.hello
                self._measure()

    def _measure(self) -> None:
        """Have links measured apart from hellos whose round trips mostly cost THROUGH more than
        another link, as only around these messages may go. All neighbours are sent hellos at once,
        and those that share a processor answer one after the other."""
        links = [link for link in self._open.values() if link.round_trips]
        least = min([link_cost(link) for link in links], default=0)
        for link in links:
            median = sorted(link.round_trips)[(len(link.round_trips) - 1) // 2]
            if 1000 * median > least + THROUGH:
                self._measure_soon(link)

    def _measure_soon(self, link: Link) -> None:
        """Have a link measured within some hellos."""
        self._measured_at = (self._measured_at + STEP) % 1.0
        within = HELLOS * self._config.hello
        self._node.timers.schedule(self._node.now + within * self._measured_at, link.measure)

    def retire(self) -> None:
        """Let messages take paths around this broker, as it is going to stop."""
        self._retired = True
        self._tell_relay()

    def _tell_relay(self) -> None:
        cost = MAX_COST if self._retired else THROUGH + self._load()
        if differs(cost, self._told_relay):
            self._told_relay = cost
            self._graph.relay(self._directory.own_id, cost)
            self._directory.post(RELAY, cost.to_bytes(4, "big"))
            self._changed()

    def _load(self) -> int:
        """The additional cost (us) of a path through this broker: for few resources, or for much
        work."""
        if self._config.path_policy == "balance":
            return GAMMA * self._relayed() + DELTA * self._node.clients.connected
        return round(THROUGH / (1.0 + max(0.0, self._config.capability)))


def link_cost(link: Link) -> int:
    """Return what a link costs (us): the shortest of its last round trips, so that a neighbour that
    waits for a processor now and then does not count as a longer path."""
    shortest = min(link.round_trips, default=None)
    return UNKNOWN if shortest is None else max(MIN_COST_US, min(MAX_COST, round(shortest * 1000)))


def differs(cost: int, said: int) -> bool:
    """Whether a `cost` (us) differs so much from the posted one (`said`) that it is posted
    again."""
    return abs(cost - said) > max(DIFFERS_US, DIFFERS * said)
