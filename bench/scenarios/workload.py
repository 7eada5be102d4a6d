"""Who publishes what where, and who subscribes to it: a cell's clients, drawn by a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from mqttree.bench.federator.topics import Kind
from mqttree.bench.lab.topology import Topology
from mqttree.bench.scenarios.scenario import Cell, Parameters, client_site
from mqttree.bench.workloads import simulator
from mqttree.bench.workloads.named import named
from mqttree.bench.workloads.simulator import Placed

PREFIX = "topic-tree"


@dataclass(frozen=True, slots=True)
class ClientSpec:
    """One client. host: where it sits; broker: whom it connects to; number: of the publisher in the
    run, -1: a subscriber.

    topics: what a publisher publishes, or a subscriber's filters. start: s after the
    beginning at which its first message is due. beacon: the topic to which a subscriber says
    regularly that it is there ("": nowhere).
    """

    name: str
    flow: str
    host: str
    broker: str
    topics: tuple[str, ...]
    number: int = -1
    start: float = 0.0
    beacon: str = ""


def nearest(topology: Topology, host: str, brokers: Sequence[str]) -> str:
    """Return the one of `brokers` that clients on `host` connect to: the one on the same host, else
    the one with the shortest delay in the `topology`."""
    if host in brokers:
        return host
    wires = ((topology.wire(host, broker), broker) for broker in brokers)
    reachable = [(wire.delay_ms, broker) for wire, broker in wires if wire is not None]
    return min(reachable)[1] if reachable else brokers[0]


def _hosts(
    flow: Parameters, hosts: Sequence[str], sites: bool, source: random.Random
) -> tuple[list[str], list[str]]:
    """The hosts of publishers and of subscribers."""
    drawn = _drawn_hosts(flow, hosts, sites, source)
    return (
        _named_hosts(flow, flow.publish_at, flow.publishers) or drawn[0],
        _named_hosts(flow, flow.subscribe_at, flow.subscribers) or drawn[1],
    )


def _named_hosts(flow: Parameters, named: str, count: int) -> list[str]:
    """Return the hosts of so many clients that sit, in turn, where a parameter says; [] where it
    says nothing."""
    hosts = [client_site(host) if flow.client_delay else host for host in named.split("+") if host]
    return [hosts[number % len(hosts)] for number in range(count)] if hosts else []


def _drawn_hosts(
    flow: Parameters, hosts: Sequence[str], sites: bool, source: random.Random
) -> tuple[list[str], list[str]]:
    """The hosts of publishers and of subscribers by their locality."""
    publishers, subscribers = flow.publishers, flow.subscribers
    if flow.locality == "even" or len(hosts) == 1:
        return [hosts[n % len(hosts)] for n in range(publishers)], [
            hosts[n % len(hosts)] for n in range(subscribers)
        ]
    if flow.locality == "50":
        if sites:
            # Half of the pairs of equal numbers are at different sites.
            return [hosts[n % 2] for n in range(publishers)], [
                hosts[n // 2 % 2] for n in range(subscribers)
            ]
        return [source.choice(hosts) for _ in range(publishers)], [
            source.choice(hosts) for _ in range(subscribers)
        ]
    one, other = (hosts[0], hosts[1]) if sites else source.sample(list(hosts), 2)
    return [one] * publishers, [one if flow.locality == "100" else other] * subscribers


def clients(
    cell: Cell, brokers: Sequence[str], spared: Sequence[str], seed: int
) -> list[ClientSpec]:
    """Return all clients of a `cell`, subscribers first, drawn by `seed`. `brokers` are those that
    run, `spared` those that will fail and get no clients."""
    topology = cell.topology
    result: list[ClientSpec] = []
    publishers: list[ClientSpec] = []
    for flow_name, flow in cell.flows.items():
        if flow.workload:
            return _placed_clients(flow_name, flow, brokers, seed)
        source = random.Random(f"{seed}/{flow_name}")
        hosts = [host for host in topology.sites or topology.brokers if host not in spared]
        usable = [broker for broker in brokers if broker not in spared]
        where, whither = _hosts(flow, hosts, bool(topology.sites), source)
        stem = f"{PREFIX}/{flow_name}" if flow_name else PREFIX
        stem = Kind.FEDERATED.topic(stem) if flow.federated else stem
        names = [
            f"{stem}/{source.randrange(1 << 32):08x}/{number:03d}" for number in range(flow.topics)
        ]
        used = []
        for number, host in enumerate(where):
            topic = source.choice(names) if flow.choice == "random" else names[number % len(names)]
            used.append(topic)
            start = flow.begin + (source.random() / flow.rate if flow.rate else 0.0)
            name = f"{flow_name or 'p'}-pub-{number}"
            spec = ClientSpec(
                name,
                flow_name,
                host,
                nearest(topology, host, usable),
                (topic,),
                len(publishers),
                start,
            )
            publishers.append(spec)
        for number, host in enumerate(whither):
            if flow.choice == "all":
                chosen = f"{stem}/#"
            else:
                chosen = (
                    source.choice(used or names)
                    if flow.choice == "random"
                    else names[number % len(names)]
                )
            if flow.share:
                chosen = f"$share/{flow_name or 'group'}/{chosen}"
            name = f"{flow_name or 's'}-sub-{number}"
            beacon = (
                Kind.BEACON.topic(chosen.removeprefix(Kind.FEDERATED.value))
                if flow.federated
                else ""
            )
            result.append(
                ClientSpec(
                    name,
                    flow_name,
                    host,
                    nearest(topology, host, usable),
                    (chosen,),
                    beacon=beacon,
                )
            )
    return result + publishers


def placed(flow: Parameters, brokers: int, seed: int) -> Placed:
    """Return the clients of a flow's workload as its strategy places them, and the traffic that the
    model expects. Raises WorkloadError if the workload's file cannot be read.

    `flow`: that of a cell; `brokers`: how many; `seed`: of what is drawn.
    """
    return simulator.place(named(flow.workload, seed), brokers, flow.strategy, seed)


def _placed_clients(
    flow_name: str, flow: Parameters, brokers: Sequence[str], seed: int
) -> list[ClientSpec]:
    """The clients of a workload: a subscriber for each session, and a publisher for each topic.

    One message of each topic is due in every 1/rate s, at a time of its own.
    """
    work = named(flow.workload, seed)
    source = random.Random(f"{seed}/{flow_name}")
    at = work.publishers_on(len(brokers), seed)
    result = []
    for number, sessions in enumerate(placed(flow, len(brokers), seed).clients):
        for slot, topics in sessions:
            broker = brokers[int(slot)]
            names = tuple(_topic(flow_name, int(topic)) for topic in topics)
            name = f"{flow_name or 's'}-sub-{number}-{broker}"
            result.append(ClientSpec(name, flow_name, broker, broker, names))
    for number, topic in enumerate(sorted(at)):
        broker = brokers[at[topic]]
        start = flow.begin + (source.random() / flow.rate if flow.rate else 0.0)
        name = f"{flow_name or 'p'}-pub-{number}"
        topics = (_topic(flow_name, topic),)
        result.append(ClientSpec(name, flow_name, broker, broker, topics, number, start))
    return result


def shares(specs: Sequence[ClientSpec], count: int) -> list[list[ClientSpec]]:
    """Return the clients of `specs` as at most `count` shares, none empty, in each the order of
    `specs`.

    Who may get a message of whom is in the same share, as are all members of a shared subscription:
    each share knows for itself what has to arrive. Shares have about as many clients.
    """
    leader: dict[str, str] = {}

    def find(word: str) -> str:
        leader.setdefault(word, word)
        while leader[word] != word:
            leader[word] = leader[leader[word]]
            word = leader[word]
        return word

    topics = {topic for spec in specs if spec.number >= 0 for topic in spec.topics}
    wild = {}
    for filter in dict.fromkeys(each for spec in specs if spec.number < 0 for each in spec.topics):
        if filter.endswith("/#") or filter.startswith("$share/"):
            wild[filter] = [topic for topic in sorted(topics) if matches(filter, topic)]
    for filter, found in wild.items():
        for topic in found:
            leader[find(topic)] = find(filter)
    for spec in specs:
        for topic in spec.topics[1:]:
            leader[find(topic)] = find(spec.topics[0])
    groups: dict[str, list[int]] = {}
    for place, spec in enumerate(specs):
        groups.setdefault(find(spec.topics[0]), []).append(place)
    chosen: list[list[int]] = [[] for _ in range(count)]
    for places in sorted(groups.values(), key=len, reverse=True):
        min(chosen, key=len).extend(places)
    return [[specs[place] for place in sorted(places)] for places in chosen if places]


def _topic(flow_name: str, topic: int) -> str:
    return f"{PREFIX}/{flow_name or 'placed'}/{topic:06d}"


def matches(topic_filter: str, topic: str) -> bool:
    """Whether one of our own filters (a topic, or PREFIX/#, perhaps shared) takes a topic."""
    if topic_filter.startswith("$share/"):
        topic_filter = topic_filter.split("/", 2)[2]
    if topic_filter.endswith("/#"):
        return topic.startswith(topic_filter[:-1])
    return topic_filter == topic
