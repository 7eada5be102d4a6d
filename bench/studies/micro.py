"""Micro-benchmarks of the broker's inner parts: ns per operation, the best of several turns.

mqttree bench micro [--seconds SECONDS]
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from mqttree.bench.load import packets
from mqttree.bench.studies import growth

if TYPE_CHECKING:
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.node import Node
    from mqttree.broker.wire.packets import Packet

_TURNS = 5
_PAYLOAD = b"x" * 64

Case = tuple[str, int, Callable[[], object]]
"""A name, how many operations one call does, and the call."""


def main(seconds: float) -> int:
    """Measure every case for about `seconds` and print a table; then what rules and wildcard
    filters cost, and how subscribing and matching grow, which takes about 20 s more. Returns 1 if
    one failed."""
    failed = False
    for part in (_wire, _trie, _fanout, _counted, _links):
        try:
            for name, operations, call in part():
                print(f"{name:<52}{_measure(call, operations, seconds):>12,.1f} ns/op", flush=True)
        except Exception as error:  # one part that cannot be measured must not hide the others
            print(
                f"mqttree bench: {part.__name__[1:]} failed: {type(error).__name__}: {error}",
                file=sys.stderr,
            )
            failed = True
    print()
    for line in _burdens(seconds):
        print(line, flush=True)
    print()
    return growth.table() or int(failed)


def _measure(call: Callable[[], object], operations: int, seconds: float) -> float:
    """Return ns per operation in the best of some turns, which is the one that was disturbed
    least."""
    call()
    start = time.perf_counter_ns()
    call()
    once = max(1, time.perf_counter_ns() - start)
    repeat = max(1, int(seconds * 1e9 / _TURNS / once))
    best = float("inf")
    for _ in range(_TURNS):
        start = time.perf_counter_ns()
        for _ in range(repeat):
            call()
        best = min(best, time.perf_counter_ns() - start)
    return best / repeat / operations


def _publish(
    topic: str, qos: int = 0, version: int = 4, user_properties: int = 0, identifier: int = 1
) -> bytes:
    whole, at, _ = packets.publish(topic, _PAYLOAD, qos, version, user_properties)
    return whole[:at] + identifier.to_bytes(2, "big") + whole[at + 2 :] if qos else whole


def _wire() -> Iterator[Case]:
    """Decode a chunk of packets, encode one."""
    from mqttree.broker.wire.decode import decode_packet
    from mqttree.broker.wire.encode import encode_packet
    from mqttree.broker.wire.packets import Publish
    from mqttree.broker.wire.reader import PacketReader

    def decode(chunk: bytes, version: int) -> list[Packet]:
        return [decode_packet(*raw, version) for raw in PacketReader().feed(chunk)]

    for title, version, qos, properties in (
        ("PUBLISH QoS 0, 3.1.1", 4, 0, 0),
        ("PUBLISH QoS 1, 3.1.1", 4, 1, 0),
        ("PUBLISH QoS 0, MQTT 5", 5, 0, 0),
        ("PUBLISH QoS 0, MQTT 5, 4 user properties", 5, 0, 4),
    ):
        chunk = _publish("load/00001", qos, version, properties) * 500
        yield (
            f"decode {title}",
            500,
            partial(decode, chunk, version),
        )
    acks = b"\x40\x02\x00\x01" * 500
    yield "decode PUBACK, 3.1.1", 500, lambda: decode(acks, 4)
    packet = Publish("load/00001", _PAYLOAD, 1, False, False, 1, None)
    yield "encode PUBLISH QoS 1, 3.1.1", 1, lambda: encode_packet(packet, 4)
    yield "encode PUBLISH QoS 1, MQTT 5", 1, lambda: encode_packet(packet, 5)


def _trie() -> Iterator[Case]:
    """Match, insert and remove among 100,000 subscriptions."""
    from mqttree.routing.subscription_trie import SubscriptionTrie, TopicTrie

    rng = random.Random(1)
    subscriptions: SubscriptionTrie[int] = SubscriptionTrie()
    retained: TopicTrie[int] = TopicTrie()
    names = [
        f"site/{a}/floor/{b}/sensor/{c}" for a in range(40) for b in range(50) for c in range(40)
    ]
    for number, name in enumerate(names):
        subscriptions.insert(name, number, number)
        retained.set(name, number)
    some = rng.sample(names, 1000)
    yield (
        "trie match, exact filters only",
        1000,
        lambda: [subscriptions.match(name) for name in some],
    )
    for number in range(20_000):
        levels = names[rng.randrange(len(names))].split("/")
        levels[rng.choice((1, 3, 5))] = "+"
        subscriptions.insert("/".join(levels), -number, number)
    yield (
        "trie match, with 20,000 wildcard filters",
        1000,
        lambda: [subscriptions.match(name) for name in some],
    )

    def change(topic_filter: str) -> bool:
        subscriptions.insert(topic_filter, "probe", 0)
        return subscriptions.remove(topic_filter, "probe")

    yield "trie insert and remove, exact", 1000, lambda: [change(name) for name in some]
    yield "trie insert and remove, wildcard", 1000, lambda: [change(name + "/#") for name in some]
    yield (
        "retained match, site/+/floor/7/sensor/9 (40 found)",
        1,
        lambda: retained.match("site/+/floor/7/sensor/9"),
    )


class _Sink:
    """A transport that takes everything."""

    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Keep bytes until they are asked for."""
        self.taken.append(data)

    def close(self) -> None:
        """Do nothing."""

    abort = pause_reading = resume_reading = close

    def unread(self) -> bool:
        """Nothing comes."""
        return False

    def unsent(self) -> int:
        """Nothing waits."""
        return 0


def _fanout() -> Iterator[Case]:
    """Take a chunk from a publisher through the whole node to its subscribers' transports; ns per
    PUBLISH received."""
    for subscribers in (1, 50):
        for title, topics, version, qos, properties in (
            ("QoS 0, one topic", 1, 4, 0, 0),
            ("QoS 0, 50 topics in turn", 50, 4, 0, 0),
            ("QoS 0, MQTT 5, 4 user properties", 1, 5, 0, 4),
            ("QoS 1, one topic", 1, 4, 1, 0),
        ):
            call = _node_call(subscribers, topics, version, qos, properties)
            yield f"node, 1 to {subscribers}, {title}", 500, call


def _counted() -> Iterator[Case]:
    """Take chunks of 20 messages to topics drawn from 1,000 through a node that counts how often
    topics are published to, and through one that does not; ns per PUBLISH received."""
    from mqttree.broker.config.node_config import NodeConfig
    from mqttree.broker.node import Node

    names = [f"load/{number:05d}" for number in range(1000)]
    for counted in (False, True):
        rng = random.Random(5)
        node = Node(NodeConfig(discovery="off", topic_rates=counted), 0.0, 0.0, random.Random(1))
        sinks = [_Sink() for _ in range(11)]
        clients = [node.connection_registry.made("127.0.0.1:1", "default", s, 0.0) for s in sinks]
        for number, client in enumerate(clients):
            _feed(node, client, packets.connect(f"c{number}", 4))
            for name in names[(number - 1) * 100 : number * 100] if number else ():
                _feed(node, client, packets.subscribe(name, 0, 4))
        chunks = [b"".join(_publish(rng.choice(names)) for _ in range(20)) for _ in range(200)]

        def call(
            node: Node = node,
            client: Connection = clients[0],
            sinks: list[_Sink] = sinks,
            chunks: list[bytes] = chunks,
        ) -> None:
            for sink in sinks:
                sink.taken.clear()
            for chunk in chunks:
                _feed(node, client, chunk)

        yield f"node, topics drawn of 1,000, {'' if counted else 'not '}counted", 4000, call


def _links() -> Iterator[Case]:
    """What a link between two brokers costs: its handshake at both ends together, until they have
    come up, and its records."""
    from mqttree.broker.cluster.link.record_layer import Cipher
    from mqttree.broker.limits import DEFAULTS

    for title, proofs in (
        ("no key", (False, False)),
        ("keys", (True, False)),
        ("keys and a secret", (True, True)),
    ):
        yield f"link handshake, both ends, {title}", 1, _handshake(*proofs)
    packets_of_a_record = b"x" * 65_536
    one, other = (Cipher(b"k" * 32, DEFAULTS.records_per_key) for _ in range(2))
    yield (
        "record of 64 KiB, sealed and opened",
        1,
        lambda: other.open(memoryview(one.seal(packets_of_a_record))),
    )
    yield (
        "record of 100 bytes, sealed and opened",
        1,
        lambda: other.open(memoryview(one.seal(b"x" * 100))),
    )


def _handshake(keys: bool, secret: bool) -> Callable[[], None]:
    from mqttree.broker.base.broker_key import make_key
    from mqttree.broker.config.node_config import NodeConfig
    from mqttree.broker.core.effects import Dial
    from mqttree.broker.node import Node

    made = [make_key(bytes((number,)) * 32) for number in (1, 2)]
    nodes = [
        Node(
            NodeConfig(
                id=key.id,
                key=key if keys else None,
                secret=b"s" * 32 if secret else None,
                discovery="static",
                routing="flood",
                host=f"10.0.0.{number}",
            ),
            0.0,
            1.7e9,
            random.Random(number),
        )
        for number, key in enumerate(made)
    ]

    def call() -> None:
        sinks = [_Sink(), _Sink()]
        conns = [
            nodes[0].connection_registry.made(
                "10.0.0.1:1883", "link", sinks[0], 0.0, Dial("10.0.0.1", 1883)
            ),
            nodes[1].connection_registry.made("10.0.0.0:40000", "default", sinks[1], 0.0),
        ]
        while True:
            for node in nodes:
                node.output.flush()
                node.take_effects()
            if all(
                any(link.conn is conn and link.up for link in node.cluster.links.values())
                for node, conn in zip(nodes, conns, strict=True)
            ):
                break
            moved = [b"".join(sink.taken) for sink in sinks]
            for sink, conn, data in zip(sinks, conns, reversed(moved), strict=True):
                sink.taken.clear()
                if data:
                    conn.receive(data, 0.0)
            if not any(moved):
                raise RuntimeError("the two brokers do not link")
        for node, conn in zip(nodes, conns, strict=True):
            node.connection_lost(conn, "done", 0.0)
            node.output.flush()
            node.take_effects()

    return call


def _burdens(seconds: float) -> Iterator[str]:
    """Measure the whole node with a file of topic rules in force, and with many wildcard filters in
    place, beside without.

    In turn, and by the process's own time, since a few percent are looked for.
    """
    for title, topics, qos in (
        ("QoS 0, one topic", 1, 0),
        ("QoS 0, 50 topics in turn", 50, 0),
        ("QoS 1, one topic", 1, 1),
    ):
        calls = [
            _node_call(10, topics, 4, qos, 0),
            _node_call(10, topics, 4, qos, 0, rules=1000),
            _node_call(10, topics, 4, qos, 0, wildcards=10_000),
        ]
        start = time.process_time_ns()
        calls[0]()
        repeat = max(1, int(seconds * 1e9 / 20 / max(1, time.process_time_ns() - start)))
        best = [math.inf] * len(calls)
        for _ in range(20):
            for number, call in enumerate(calls):
                start = time.process_time_ns()
                for _ in range(repeat):
                    call()
                best[number] = min(best[number], time.process_time_ns() - start)
        rates = [500 * repeat / value * 1e9 for value in best]
        with_rules, with_wildcards = (f"{rate:,.0f} ({rate / rates[0]:.0%})" for rate in rates[1:])
        yield f"node, 1 to 10, {title}: {rates[0]:,.0f} messages/s in"
        yield f"    with 1,000 rules {with_rules}, with 10,000 wildcard filters {with_wildcards}"


def _rules(count: int) -> str:
    """Return a rules file of which half is about all users; the last rule lets all publish and
    subscribe what is measured."""
    lines = []
    for number in range(count // 2):
        lines += [
            f"user u{number}",
            f"allow all plant/{number}/%u/#",
            "everyone",
            f"deny publish plant/{number}/+/limits",
        ]
    lines[-1] = "allow all load/#"
    return "\n".join(lines)


def _feed(node: Node, conn: Connection, data: bytes) -> None:
    """Have bytes come in and go as a driver does: what costs much goes on in further turns."""
    turns = node.turns
    turns.work = 0
    conn.receive(data, node.now)
    node.output.flush()
    while conn.held:
        node.tick(node.now + 0.001)
        node.output.flush()


def _node_call(
    subscribers: int,
    topics: int,
    version: int,
    qos: int,
    properties: int,
    *,
    rules: int = 0,
    wildcards: int = 0,
) -> Callable[[], object]:
    """Make a node with connected clients; return what feeds it 500 PUBLISH packets and their
    PUBACKs.

    `rules`: so many topic rules are in force; `wildcards`: so many wildcard filters of another
    client are in place.
    """
    from mqttree.broker.auth.acl_file import parse_rules
    from mqttree.broker.auth.authorization import Access
    from mqttree.broker.config.node_config import NodeConfig
    from mqttree.broker.node import Node

    node = Node(NodeConfig(discovery="off"), 0.0, 0.0, random.Random(1))
    if rules:
        node.set_access(Access(rules=parse_rules("rules", _rules(rules), limits=node.limits)), 0.0)
    names = [f"load/{number:05d}" for number in range(topics)]
    sinks = [_Sink() for _ in range(subscribers + 1)]
    clients = [node.connection_registry.made("127.0.0.1:1", "default", sink, 0.0) for sink in sinks]
    for number, client in enumerate(clients):
        _feed(node, client, packets.connect(f"c{number}", version))
        for name in names if number else ():
            _feed(node, client, packets.subscribe(name, qos, version))
    if wildcards:
        other = node.connection_registry.made("127.0.0.1:2", "default", _Sink(), 0.0)
        _feed(node, other, packets.connect("other", version))
        for number in range(wildcards):
            _feed(
                node, other, packets.subscribe(f"other/{number % 100}/+/{number}/#", qos, version)
            )
    packet, at, _ = packets.publish(names[0], _PAYLOAD, qos, version, properties)
    size = len(packet)
    chunk = b"".join(
        _publish(names[i % topics], qos, version, properties, i + 1) for i in range(500)
    )
    before = node.counters.delivered

    def call() -> None:
        for sink in sinks:
            sink.taken.clear()
        _feed(node, clients[0], chunk)
        if qos:
            acks = bytearray(b"\x40\x02\x00\x00" * 500)
            for client, sink in zip(clients[1:], sinks[1:], strict=True):
                data = b"".join(sink.taken)
                acks[2::4], acks[3::4] = data[at::size], data[at + 1 :: size]
                _feed(node, client, bytes(acks))

    call()
    if node.counters.delivered - before != 500 * subscribers:
        raise RuntimeError(
            f"{node.counters.delivered - before} of {500 * subscribers} messages were delivered"
        )
    return call
