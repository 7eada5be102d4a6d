"""SRT and PRT (`mqttree.routing.advertised_routes`): the paper's example, and its invariants in
random networks whose tree changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from mqttree.routing.advertised_routes import SEARCHED, Hop, RoutingTables, Told, cost
from mqttree.routing.topic_filter import matches

TOPICS = ("t", "t/1", "u")
FILTERS = ("t", "t/#", "+", "u", "none")
ROOM = 1 << 20


class Network:
    """Brokers with all links between them, of which some are live; what they tell each other is
    under way until `deliver`."""

    def __init__(self, size: int, memory: int = ROOM) -> None:
        self.tables = [RoutingTables(memory) for _ in range(size)]
        self.now = 0.0
        # (from, to) -> what is under way; it exists while the link is up.
        self.wire: dict[tuple[int, int], deque[tuple[bool, Told, float]]] = {}
        self.hops: dict[tuple[int, int], Hop] = {}
        self.records = 0

    def up(self, a: int, b: int) -> None:
        for here, there in ((a, b), (b, a)):
            self.wire[here, there] = deque()
            self.hops[here, there] = self.tables[here].open(bytes((there,)) * 8)

    def down(self, a: int, b: int) -> None:
        for here, there in ((a, b), (b, a)):
            if (here, there) in self.hops:
                del self.wire[here, there]
                self.tables[here].close(self.hops.pop((here, there)), self.now)

    def live(self, here: int, there: int, live: bool) -> None:
        """Each end decides by itself whether a link is live."""
        if (here, there) in self.hops:
            self.tables[here].set_live(self.hops[here, there], live)

    def publish(self, broker: int, topic: str, on: bool = True) -> None:
        self.tables[broker].advertised(self.tables[broker].here, topic, on)

    def subscribe(self, broker: int, topic_filter: str, on: bool = True) -> None:
        tables = self.tables[broker]
        if on:
            tables.wanted(tables.here, topic_filter, self.now)
        else:
            tables.unwanted(tables.here, topic_filter)

    def send(self, most: int = 3) -> bool:
        """Each broker handles and tells up to so much."""
        busy = False
        for index, tables in enumerate(self.tables):
            busy |= tables.work(most)
            for (here, there), hop in self.hops.items():
                if here == index:
                    for is_filter, told in enumerate(tables.due(hop, most, self.now)):
                        self.wire[here, there].extend((bool(is_filter), t, self.now) for t in told)
                        self.records += len(told)
                    busy |= hop.due
        return busy

    def deliver(self, here: int, there: int) -> bool:
        """Let one entry arrive."""
        wire = self.wire.get((here, there))
        if not wire:
            return False
        is_filter, told, sent = wire.popleft()
        tables, hop = self.tables[there], self.hops[there, here]
        if not is_filter:
            tables.advertised(hop, told.text, told.on)
        elif told.on:
            tables.wanted(hop, told.text, sent - told.age)
        else:
            tables.unwanted(hop, told.text)
        return True

    def rest(self) -> None:
        """Let everything arrive. A network that never rests fails here."""
        for _ in range(1000):
            busy = self.send(100)
            for pair in list(self.wire):
                while self.deliver(*pair):
                    busy = True
            if not busy:
                return
        raise AssertionError("the network does not come to rest")

    # ---------------------------------------------------------------- what should be so

    def behind(self, here: int, there: int, tree: set[tuple[int, int]]) -> Iterator[int]:
        """The brokers on the other side of a link of the tree."""
        yield there
        for a, b in tree:
            if there in (a, b) and here not in (a, b):
                yield from self.behind(there, b if a == there else a, tree)

    def check(
        self,
        tree: set[tuple[int, int]],
        published: set[tuple[int, str]],
        wanted: set[tuple[int, str]],
    ) -> None:
        """Compare all tables with the invariants of the module."""
        for (here, there), hop in self.hops.items():
            expected_topics: set[str] = set()
            expected_filters: set[str] = set()
            if (here, there) in tree or (there, here) in tree:
                behind = set(self.behind(here, there, tree))
                side = set(self.behind(there, here, tree))
                expected_topics = {topic for broker, topic in published if broker in behind}
                ours = {topic for broker, topic in published if broker in side}
                expected_filters = {
                    text
                    for broker, text in wanted
                    if broker in behind and any(matches(text, topic) for topic in ours)
                }
            assert set(hop.topics) == expected_topics
            assert set(hop.filters) == expected_filters
            # Nothing is said that does not count there.
            other = self.hops[there, here]
            assert set(hop.sent_topics) == set(other.topics)
            assert set(hop.sent_filters) == set(other.filters)
        for index, tables in enumerate(self.tables):
            for topic in TOPICS:
                hops = {hop.id for (a, _), hop in self.hops.items() if a == index}
                assert set(tables.next_hops(topic)) == {
                    hop.id
                    for (a, _), hop in self.hops.items()
                    if a == index and any(matches(text, topic) for text in hop.filters)
                }
                assert set(tables.next_hops(topic)) <= hops


def line(size: int) -> tuple[Network, set[tuple[int, int]]]:
    network = Network(size)
    tree = {(index, index + 1) for index in range(size - 1)}
    for a, b in tree:
        network.up(a, b)
        network.live(a, b, True)
        network.live(b, a, True)
    return network, tree


def test_the_papers_example_is_routed_along_the_advertisement() -> None:
    """Figure 5: A publishes, C subscribes; the subscription takes C, B, A and reaches no other."""
    network = Network(5)
    a, b, c, d, e = range(5)
    tree = {(a, b), (b, c), (b, d), (d, e)}
    for one, other in tree:
        network.up(one, other)
        network.live(one, other, True)
        network.live(other, one, True)
    network.publish(a, "t")
    network.rest()
    assert {pair for pair, hop in network.hops.items() if "t" in hop.topics} == {
        (b, a), (c, b), (d, b), (e, d),
    }  # fmt: skip
    network.subscribe(c, "t")
    network.rest()
    assert {pair for pair, hop in network.hops.items() if "t" in hop.filters} == {(a, b), (b, c)}
    assert network.tables[d].next_hops("t") == ()
    network.check(tree, {(a, "t")}, {(c, "t")})


def test_one_filter_of_many_brokers_crosses_a_link_once() -> None:
    network, tree = line(3)
    for broker in (1, 2):
        network.subscribe(broker, "t")
    network.publish(0, "t")
    network.rest()
    # Two advertisements, a filter over each link.
    assert network.records == 4
    network.subscribe(1, "t", False)
    network.rest()
    assert network.records == 4
    network.check(tree, {(0, "t")}, {(2, "t")})


def test_a_step_is_bounded_however_many_topics_filters_match_in_vain() -> None:
    tables = RoutingTables(64 * ROOM)
    hop = tables.open(b"neighbour")
    tables.set_live(hop, True)
    for number in range(5000):
        tables.advertised(hop, f"{number}/a/{number}", True)
    for number in range(100):
        tables.wanted(tables.here, f"+/+/{number}/+", 0.0)
    while tables.work(1000):
        pass
    rounds = 0
    while hop.due:
        before = hop.topics.steps
        assert tables.due(hop, 500, 0.0)[1] == []
        # The search that goes beyond the bound is the last one.
        assert hop.topics.steps - before <= SEARCHED + 3 * 5000 + 1
        rounds += 1
    assert rounds > 10


def test_what_is_beyond_the_memory_is_refused() -> None:
    network = Network(2, memory=cost("t/1") * 2)
    here = network.tables[0].here
    assert network.tables[0].advertised(here, "t/1", True)
    assert network.tables[0].wanted(here, "t/2", 0.0)
    assert network.tables[0].memory == cost("t/1") * 2
    assert not network.tables[0].advertised(here, "t/3", True)
    assert not network.tables[0].wanted(here, "t/4", 0.0)
    assert network.tables[0].wanted(here, "t/2", 1.0)
    network.tables[0].advertised(here, "t/1", False)
    assert network.tables[0].wanted(here, "t/4", 0.0)
    network.tables[0].unwanted(here, "t/4")
    network.tables[0].unwanted(here, "t/4")
    assert network.tables[0].memory == cost("t/2")


def test_after_a_change_of_the_tree_only_messages_since_then_are_missing() -> None:
    network, _ = line(2)
    network.subscribe(1, "t")
    network.publish(0, "t")
    network.rest()
    network.now = 60.0
    network.down(0, 1)
    network.rest()
    network.now = 65.0
    network.up(0, 1)
    network.live(0, 1, True)
    network.live(1, 0, True)
    network.rest()
    assert [row.since for row in network.tables[0].arrived] == [0.0, 60.0]


def test_what_comes_over_a_link_counts_while_it_is_live_here() -> None:
    """The two ends of a link do not change their minds at the same moment."""
    network, tree = line(3)
    network.publish(0, "t")
    network.subscribe(0, "u")
    network.publish(2, "u")
    network.rest()
    network.live(1, 0, False)
    network.rest()
    near, far = network.hops[1, 0], network.hops[2, 1]
    assert (list(near.told_topics), list(near.told_filters)) == (["t"], [])
    assert (list(near.topics), list(near.filters), list(far.topics)) == ([], [], [])
    assert network.tables[1].next_hops("u") == ()
    network.live(1, 0, True)
    network.rest()
    network.check(tree, {(0, "t"), (2, "u")}, {(0, "u")})


SIZE = 4
PAIRS = [(a, b) for b in range(SIZE) for a in range(b)]
BROKERS = st.integers(0, SIZE - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), BROKERS, st.sampled_from(TOPICS), st.booleans()),
        st.tuples(st.just("subscribe"), BROKERS, st.sampled_from(FILTERS), st.booleans()),
        st.tuples(st.just("live"), st.sampled_from(PAIRS), st.booleans(), st.booleans()),
        st.tuples(st.just("down"), st.sampled_from(PAIRS)),
        st.tuples(st.just("send"), st.integers(1, 4)),
        st.tuples(st.just("deliver"), st.permutations(range(SIZE)), st.integers(1, 5)),
    ),
    max_size=40,
)


@given(
    st.sets(st.tuples(BROKERS, st.sampled_from(TOPICS))),
    st.sets(st.tuples(BROKERS, st.sampled_from(FILTERS))),
    STEPS,
    st.lists(st.integers(0, 5), min_size=SIZE - 1, max_size=SIZE - 1),
)
def test_tables_agree_with_the_tree_after_any_history(
    published: set[tuple[int, str]],
    wanted: set[tuple[int, str]],
    steps: list[tuple[object, ...]],
    parents: list[int],
) -> None:
    """Links come, go and are live at one end only, trees have circles: when that is over, all
    tables are what the invariants say."""
    network = Network(SIZE)
    for broker, topic in published:
        network.publish(broker, topic)
    for broker, topic_filter in wanted:
        network.subscribe(broker, topic_filter)
    for a, b in PAIRS:
        network.up(a, b)
    for step in steps:
        take(network, step, published, wanted)
    tree = {(parent % broker, broker) for broker, parent in enumerate(parents, 1)}
    for a, b in PAIRS:
        if (a, b) not in network.hops:
            network.up(a, b)
        for here, there in ((a, b), (b, a)):
            network.live(here, there, (a, b) in tree)
    network.rest()
    network.check(tree, published, wanted)
    records = network.records
    network.rest()
    assert network.records == records


def take(
    network: Network,
    step: tuple[object, ...],
    published: set[tuple[int, str]],
    wanted: set[tuple[int, str]],
) -> None:
    match step:
        case ("publish", int(broker), str(topic), bool(on)):
            network.publish(broker, topic, on)
            (published.add if on else published.discard)((broker, topic))
        case ("subscribe", int(broker), str(text), bool(on)):
            network.subscribe(broker, text, on)
            (wanted.add if on else wanted.discard)((broker, text))
        case ("live", (int(a), int(b)), bool(one), bool(other)):
            network.live(a, b, one)
            network.live(b, a, other)
        case ("down", (int(a), int(b))):
            network.down(a, b)
        case ("send", int(most)):
            network.send(most)
        case ("deliver", list() as order, int(count)):
            for here in order:
                for there in order:
                    for _ in range(count):
                        network.deliver(here, there)
