"""Overlays: the tree on which the messages of one broker reach those that want them (Overlays 4.2,
5.2; docs/decisions/0020).

Every broker tells what each of its links costs, and what a way through it costs. An edge is there
when both its ends say so. The tree of an origin is that of the shortest ways from it to all others
(Dijkstra); an overlay is the part of it that leads to the brokers that want a topic. All brokers
that know the same graph find the same trees: ties go to fewer hops, then to the lower id. Pure:
what is said comes in, trees come out.
"""

from __future__ import annotations

from heapq import heappop, heappush

MAX_LINKS = 1024
"""links of one broker; as many as there may be others."""

MAX_COST = (1 << 32) - 1
"""Microseconds; what four bytes tell."""


class Tree:
    """The source-rooted tree of one origin, seen from one broker."""

    __slots__ = ("hops", "next", "parent")

    def __init__(self) -> None:
        self.parent: bytes | None = None
        """The neighbour towards the origin; None for the origin itself, and without a path."""
        self.next: dict[bytes, bytes] = {}
        """Brokers behind this one -> the neighbour towards them. Others get nothing of this origin
        from here."""
        self.hops: dict[bytes, int] = {}
        """Number of links between the origin and each broker that it reaches."""


class Graph:
    """The links between brokers that both their ends have posted."""

    __slots__ = ("_edges", "_leaves", "_relays", "_said", "own")

    def __init__(self, own: bytes) -> None:
        self.own = own
        # Broker -> neighbour -> cost.
        self._said: dict[bytes, dict[bytes, int]] = {}
        self._relays: dict[bytes, int] = {}
        self._leaves: set[bytes] = set()
        # Of links that both ends have posted; None: to be computed.
        self._edges: dict[bytes, list[tuple[bytes, int]]] | None = None

    def post(self, broker: bytes, neighbour: bytes, cost: int | None) -> None:
        """Set the cost of the link from `broker` to `neighbour`: `cost` in microseconds, None if
        there is no link. Raises ValueError: it has more links than a broker may have."""
        said = self._said.setdefault(broker, {})
        if cost is None:
            if said.pop(neighbour, None) is None:
                return
            if not said:
                del self._said[broker]
        elif said.get(neighbour) == cost:
            return
        elif len(said) >= MAX_LINKS and neighbour not in said:
            raise ValueError("more links than a broker may have")
        else:
            said[neighbour] = min(cost, MAX_COST)
        self._edges = None

    def forget(self, broker: bytes) -> None:
        """Remove all that a broker has posted."""
        if self._said.pop(broker, None) is not None:
            self._edges = None
        self._relays.pop(broker, None)
        self._leaves.discard(broker)

    def leaf(self, broker: bytes, *, only: bool) -> None:
        """Let no path lead through a broker, only to it and from it; or again any path."""
        (self._leaves.add if only else self._leaves.discard)(broker)

    def relay(self, broker: bytes, cost: int | None) -> None:
        """Set the cost of paths through a broker that it adds to the links' (microseconds); None:
        nothing."""
        if cost is None:
            self._relays.pop(broker, None)
        else:
            self._relays[broker] = min(cost, MAX_COST)

    def cost(self, one: bytes, other: bytes) -> int | None:
        """Return the cost of the link between two brokers: the higher one of those that its ends
        have posted. None: there is no link."""
        there = self._said.get(one, {}).get(other)
        back = self._said.get(other, {}).get(one)
        return None if there is None or back is None else max(there, back)

    def edges(self) -> dict[bytes, list[tuple[bytes, int]]]:
        """Return the links that both ends have posted, with their costs."""
        if self._edges is None:
            edges: dict[bytes, list[tuple[bytes, int]]] = {}
            for broker, said in self._said.items():
                for neighbour in said:
                    cost = self.cost(broker, neighbour)
                    if cost is not None and neighbour != broker:
                        edges.setdefault(broker, []).append((neighbour, cost))
            self._edges = edges
        return self._edges

    def links(self) -> int:
        """Return the number of links that both ends have posted."""
        return sum(map(len, self.edges().values())) // 2

    def tree(self, origin: bytes) -> Tree:
        """Return the tree of an origin; if it has no path to this broker, the tree leads nowhere
        from here."""
        tree = Tree()
        parents = self._parents(origin, tree.hops)
        own = self.own
        tree.parent = parents.get(own)
        if own not in tree.hops:
            return tree
        # Broker -> the neighbour towards it; None: it is not behind this broker.
        first: dict[bytes, bytes | None] = {own: None}
        # Nearest first.
        for broker in tree.hops:
            if broker == origin:
                first.setdefault(broker, None)
                continue
            above = parents[broker]
            step = broker if above == own else first.get(above)
            if broker != own:
                first[broker] = step
                if step is not None:
                    tree.next[broker] = step
        return tree

    def parents(self, origin: bytes) -> dict[bytes, bytes]:
        """Return the broker before each one on the shortest paths from an origin."""
        return self._parents(origin, {})

    def _parents(self, origin: bytes, hops: dict[bytes, int]) -> dict[bytes, bytes]:
        """Return the broker before each one on the shortest paths from an origin. Fills `hops`,
        nearest first."""
        edges = self.edges()
        relays, leaves = self._relays, self._leaves
        parents: dict[bytes, bytes] = {}
        heap: list[tuple[int, int, bytes, bytes]] = [(0, 0, origin, b"")]
        while heap:
            cost, steps, broker, above = heappop(heap)
            if broker in hops:
                continue
            hops[broker] = steps
            if above:
                parents[broker] = above
                if broker in leaves:
                    continue
                cost += relays.get(broker, 0)
            for neighbour, edge in edges.get(broker, ()):
                if neighbour not in hops:
                    heappush(heap, (cost + edge, steps + 1, neighbour, broker))
        return parents
