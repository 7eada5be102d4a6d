"""What trees are worth: computed ways of messages over the networks of Overlays 6, and over
networks with fewer links.

`mqttree bench overlays [--seed N]` draws networks, clients and topics and counts
links: no broker runs, nothing is timed. Compared are flooding over one tree, that tree with
messages only where brokers want them (as with `interest`, and with `srt` when its ways are open),
one tree for each topic with an elected root (t-ORT, by capability or by root balance), and trees
from where messages are published (docs/decisions/0020).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from mqttree.broker.cli.command_line import Parser
from mqttree.broker.cluster.strategy.path_costs import DELTA, GAMMA, THROUGH
from mqttree.routing.shortest_paths import Graph

Edge = tuple[int, int]

DRAWS = 300
"""Networks with clients."""
STRATEGIES = ("flood", "interest", "t-ORT capability", "t-ORT balance", "topic")


@dataclass
class Network:
    """Brokers, what their links delay (ms, one way), and what each can do."""

    delays: dict[Edge, float]
    capabilities: list[float]

    @property
    def brokers(self) -> range:
        """All of them."""
        return range(len(self.capabilities))

    def tree(self, root: int, members: Iterable[int], through: float = 0.0) -> dict[int, int]:
        """Return the broker before each one on the shortest paths from `root` over links between
        `members`; each broker on the way adds `through` ms."""
        graph = Graph(b"")
        inside = set(members)
        for (a, b), delay in self.delays.items():
            if a in inside and b in inside:
                for one, other in ((a, b), (b, a)):
                    graph.post(name(one), name(other), round(delay * 2000))  # the round trip
        for broker in inside:
            graph.relay(name(broker), round(through * 1000))
        parents = {}
        for broker in inside:
            graph.own = name(broker)
            tree = graph.tree(name(root))
            if tree.parent is not None:
                parents[broker] = int.from_bytes(tree.parent, "big")
        return parents


def name(broker: int) -> bytes:
    """Return a broker's id."""
    return broker.to_bytes(8, "big")


@dataclass
class Costs:
    """What a strategy cost over all messages of all draws."""

    delays: list[float] = field(default_factory=list)  # ms, of each delivery
    crossings: int = 0  # links
    idle: int = 0  # of these, to brokers that do not want the message
    messages: int = 0
    # Of all sendings of a draw, the busiest broker's.
    shares: list[float] = field(default_factory=list)
    told: list[int] = field(default_factory=list)  # trees that have to be stored, for each draw
    unreached: int = 0


def mesh(rng: random.Random, brokers: int) -> Network:
    """Overlays 6: a full mesh, delays normal(10, 2.5) ms."""
    pairs = [(a, b) for b in range(brokers) for a in range(b)]
    return Network(
        {pair: max(0.5, rng.gauss(10.0, 2.5)) for pair in pairs},
        [rng.uniform(1, 9) for _ in range(brokers)],
    )


def sparse(rng: random.Random, brokers: int) -> Network:
    """A ring with as many chords, of the same delays."""
    network = mesh(rng, brokers)
    ring = {tuple(sorted((a, (a + 1) % brokers))) for a in range(brokers)}
    chords = rng.sample(
        sorted(set(network.delays) - ring), min(brokers, len(network.delays) - len(ring))
    )
    keep = ring | set(chords)
    return Network(
        {pair: delay for pair, delay in network.delays.items() if pair in keep},
        network.capabilities,
    )


def walk(parents: dict[int, int], source: int, wanting: set[int] | None) -> list[Edge]:
    """Return the links that a message takes from `source` over the tree of `parents` (broker -> the
    one before it) to the brokers `wanting` it (None: to all)."""
    near: dict[int, list[int]] = {}
    for child, parent in parents.items():
        near.setdefault(child, []).append(parent)
        near.setdefault(parent, []).append(child)
    found: list[Edge] = []

    def visit(broker: int, before: int | None) -> bool:
        needed = wanting is None or broker in wanting
        for other in near.get(broker, ()):
            if other != before:
                at = len(found)
                if visit(other, broker):
                    found.insert(at, (broker, other))
                    needed = True
        return needed

    visit(source, None)
    return found


def draw(
    rng: random.Random,
    network: Network,
    topics: int,
    publishers: int,
    subscribers: int,
    costs: dict[str, Costs],
) -> None:
    """Draw by `rng` so many `publishers` and `subscribers` at brokers of `network`, each with one
    of so many `topics` (locality 50 % in the paper), and add one message of each publisher to the
    `costs` of each strategy."""
    published = [(rng.choice(network.brokers), rng.randrange(topics)) for _ in range(publishers)]
    subscribed = [(rng.choice(network.brokers), rng.randrange(topics)) for _ in range(subscribers)]
    clients = Counter(broker for broker, _ in published + subscribed)
    best = max(network.brokers, key=lambda b: network.capabilities[b])
    single = network.tree(best, network.brokers)
    origins = {
        broker: network.tree(broker, network.brokers, THROUGH / 1000)
        for broker in {b for b, _ in published}
    }
    members = {t: {b for b, u in published + subscribed if u == t} for t in range(topics)}
    roots: dict[str, dict[int, int]] = {"t-ORT capability": {}, "t-ORT balance": {}}
    rooted: Counter[int] = Counter()
    for topic, inside in members.items():
        if inside:
            roots["t-ORT capability"][topic] = max(inside, key=lambda b: network.capabilities[b])
            least = min(sorted(inside), key=lambda b: GAMMA * rooted[b] + DELTA * clients[b])
            roots["t-ORT balance"][topic] = least
            rooted[least] += 1
    for strategy in STRATEGIES:
        cost = costs[strategy]
        sent: Counter[int] = Counter()
        for source, topic in published:
            wanting = {b for b, t in subscribed if t == topic}
            if strategy == "flood":
                edges = walk(single, source, None)
            elif strategy == "interest":
                edges = walk(single, source, wanting)
            elif strategy == "topic":
                edges = walk(origins[source], source, wanting)
            else:  # flooding inside the overlay
                edges = walk(network.tree(roots[strategy][topic], members[topic]), source, None)
            note(cost, network, source, wanting, edges, sent)
        if sent:
            cost.shares.append(max(sent.values()) / sum(sent.values()))
        trees = {"flood": 1, "interest": 1, "topic": 0}.get(
            strategy, sum(len(m) > 1 for m in members.values())
        )
        cost.told.append(trees)


def note(
    cost: Costs,
    network: Network,
    source: int,
    wanting: set[int],
    edges: list[Edge],
    sent: Counter[int],
) -> None:
    """Add one message to `cost`: it went over the `edges` of `network` from `source` to the brokers
    `wanting` it; `sent` counts what each broker sends."""
    at = {source: 0.0}
    for a, b in edges:
        at[b] = at[a] + network.delays[min(a, b), max(a, b)]
        sent[a] += 1
        cost.idle += b not in wanting
    cost.messages += 1
    cost.crossings += len(edges)
    cost.unreached += len(wanting - at.keys())
    cost.delays += [at[broker] for broker in wanting if broker in at]


def main(argv: Sequence[str]) -> int:
    """Print a table for each network; 0."""
    parser = Parser(
        prog="mqttree bench overlays", description="Compare trees by what messages cross."
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    arguments = parser.parse_args(argv)
    for title, make, brokers in (
        ("full mesh of 5 (Overlays 6)", mesh, 5),
        ("ring of 16 with 16 chords", sparse, 16),
    ):
        for topics in (3, 30, 60):
            rng = random.Random(arguments.seed)
            costs = {strategy: Costs() for strategy in STRATEGIES}
            for _ in range(DRAWS):
                draw(rng, make(rng, brokers), topics, 20, 5 * brokers, costs)
            print(
                f"{title}, {topics} topics, 20 publishers, {5 * brokers} subscribers, {DRAWS} draws"
            )
            print(
                f"{'':18}{'ms mean':>9}{'links':>8}"
                f"{'in vain':>9}{'busiest':>9}{'trees':>8}"
                f"{'unreached':>11}"
            )
            for strategy, cost in costs.items():
                print(
                    f"{strategy:18}{fmean(cost.delays):9.2f}{cost.crossings / cost.messages:8.2f}"
                    f"{cost.idle / max(1, cost.crossings):9.0%}{fmean(cost.shares):9.0%}"
                    f"{fmean(cost.told):8.1f}"
                    f"{cost.unreached:11}"
                )
            print()
    return 0
