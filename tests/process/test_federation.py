"""Brokers as real processes that act as one, seen by real clients; and what happens when some of
them die, hang or come late."""

from __future__ import annotations

import itertools
import random
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from mqttree.broker.base.link_keys import cluster_key
from mqttree.discovery.announcement import decode
from mqttree.discovery.drivers.multicast import GROUP, PORT
from tests.kit.brokers import Broker, Cluster
from tests.kit.clients import Client, Mosquitto, clients, mosquitto_pub, repeated
from tests.kit.waiting import PATIENCE, until

Make = Callable[..., Client]

_runs = itertools.count()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("five"), link_timeout=4.0) as cluster:
        for _ in range(5):
            cluster.add()
        yield cluster


@pytest.fixture
def five(shared: Cluster) -> Iterator[Cluster]:
    """Five brokers that agree, whatever the test before did to them."""
    for broker in shared.brokers:
        if broker.paused:
            broker.resume()
        if not broker.running:
            broker.start()
    shared.agree(shared.brokers)
    yield shared
    shared.show()


@pytest.fixture
def make() -> Iterator[Make]:
    with clients() as maker:
        yield maker


@pytest.fixture
def base() -> str:
    """A topic that no other test uses."""
    return f"test/{next(_runs)}"


def wait_subscribed(publisher: Client, subscribers: list[Client], topic: str) -> None:
    """Return when what is published here reaches all of these: probes are repeated until they
    have."""

    def reached() -> bool:
        publisher.publish(topic, b"probe", 1)
        return all(subscriber.payloads(topic) for subscriber in subscribers)

    until(reached, f"{topic} reaches everybody")


# ------------------------------------------------------------------ everybody gets everything


@pytest.mark.statement("3.1.1/MQTT-7.0.0-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_subscriber_gets_each_message_exactly_once(
    five: Cluster, make: Make, base: str, qos: int
) -> None:
    number = 40
    five.settle()
    subscribers = []
    for broker, protocol in itertools.product(five.brokers, (4, 5)):
        subscriber = make(broker.port, protocol=protocol)
        assert subscriber.subscribe(f"{base}/#", qos) == [qos]
        subscribers.append(subscriber)
    publishers = [
        make(broker.port, protocol=5 if index % 2 else 4)
        for index, broker in enumerate(five.brokers)
    ]
    for index, publisher in enumerate(publishers):
        publisher.done(
            *[publisher.publish(f"{base}/{index}", f"{index} {n}", qos) for n in range(number)]
        )
    expected = {f"{base}/{i}": [f"{i} {n}".encode() for n in range(number)] for i in range(5)}
    whole = qos > 0 or five.arrived(
        lambda: all(len(s.payloads()) >= 5 * number for s in subscribers), "all messages everywhere"
    )
    if qos:
        for subscriber in subscribers:
            subscriber.got(5 * number)
    # What came twice would come at the latest with this, which every publisher sends last.
    for publisher in publishers:
        publisher.publish(f"{base}/end", b"end", max(qos, 1))
    for subscriber in subscribers:
        subscriber.got(5, f"{base}/end")
        for topic, messages in expected.items():
            found = subscriber.payloads(topic)
            assert found == [message for message in messages if whole or message in found]
        assert len(subscriber.messages) == 5 * number + 5 or not whole
        assert {message.qos for message in subscriber.messages} == {qos}
        assert not any(message.retain or message.dup for message in subscriber.messages)


def test_mosquittos_clients_at_every_broker_get_each_message(
    five: Cluster, base: str, tmp_path: Path
) -> None:
    number = 50
    five.settle()
    listening = []
    try:
        for index, broker in enumerate(five.brokers):
            version = ("311", "5", "31")[index % 3]
            flags = [
                "-t",
                f"{base}/+",
                "-q",
                str(index % 3),
                "-V",
                f"mqttv{version}",
                "-F",
                "%t %p",
            ]
            listening.append(Mosquitto(tmp_path, broker.port, *flags).__enter__())
        lines = [str(n) for n in range(number)]
        for index, broker in enumerate(five.brokers):
            mosquitto_pub(
                broker.port, "-t", f"{base}/{index}", "-q", str((index + 1) % 3), "-l", lines=lines
            )

        def came(subscriber: Mosquitto, index: int) -> list[str]:
            return [
                line.split()[1]
                for line in subscriber.lines()
                if line.startswith(f"{base}/{index} ")
            ]

        sure = [index for index in range(5) if (index + 1) % 3]  # published at QoS 1 or 2
        for subscriber, index in itertools.product(listening, sure):
            until(lambda s=subscriber, i=index: len(came(s, i)) >= number, f"the lines of {index}")
        if five.arrived(
            lambda: all(len(s.lines()) >= 5 * number for s in listening), "all lines everywhere"
        ):
            sure = list(range(5))
        for subscriber, index in itertools.product(listening, sure):
            assert came(subscriber, index) == lines
    finally:
        for subscriber in listening:
            subscriber.__exit__()


def test_messages_come_at_the_lower_of_published_and_granted_qos(
    five: Cluster, make: Make, base: str
) -> None:
    five.settle()
    one, other = five.two_hops()
    subscribers = {}
    for granted in (0, 1, 2):
        subscribers[granted] = make(other.port)
        subscribers[granted].subscribe(f"{base}/#", granted)
    publisher = make(one.port)
    for published in (0, 1, 2):
        publisher.done(publisher.publish(f"{base}/{published}", b"x", published))
    whole = five.arrived(
        lambda: all(len(s.payloads()) >= 3 for s in subscribers.values()), "three messages each"
    )
    for granted, subscriber in subscribers.items():
        until(
            lambda s=subscriber: s.payloads(f"{base}/1") and s.payloads(f"{base}/2"),
            "what was published at QoS 1 and 2",
        )
        qos = {m.topic[-1]: m.qos for m in subscriber.messages}
        assert qos == {str(p): min(p, granted) for p in (0, 1, 2) if whole or str(p) in qos}


# ------------------------------------------------------------------ retained messages and wills


def test_retained_messages_are_everywhere(five: Cluster, make: Make, base: str) -> None:
    five.settle()
    live = [make(broker.port) for broker in five.brokers]
    for subscriber in live:
        subscriber.subscribe(f"{base}/#", 1)
    publisher = live[0]
    publisher.publish(f"{base}/kept", b"old", 1, retain=True)
    publisher.publish(f"{base}/kept", b"new", 1, retain=True)
    publisher.publish(f"{base}/zero", b"qos 0", 0, retain=True)
    for subscriber in live:
        assert subscriber.got(3) == [b"old", b"new", b"qos 0"]
        assert not any(m.retain for m in subscriber.messages)
    for broker in five.brokers:
        late = make(broker.port)
        late.subscribe(f"{base}/#", 1)
        late.got(2)
        assert {(m.topic, m.payload, m.qos, m.retain) for m in late.messages} == {
            (f"{base}/kept", b"new", 1, True),
            (f"{base}/zero", b"qos 0", 0, True),
        }
    # deleted from another broker than the one where it was published
    live[3].publish(f"{base}/kept", b"", 1, retain=True)
    live[3].publish(f"{base}/zero", b"", 0, retain=True)
    for subscriber in live:
        subscriber.got(5)
    for broker in five.brokers:
        late = make(broker.port)
        late.subscribe(f"{base}/#", 1)
        mine = f"mine {broker.name}".encode()
        late.publish(f"{base}/mine", mine, 1)
        assert late.got(1) == [mine]
        until(
            lambda m=mine: all(m in s.payloads(f"{base}/mine") for s in live),
            "the marker is everywhere",
        )


def test_wills_reach_the_other_brokers(five: Cluster, make: Make, base: str) -> None:
    subscribers = [make(broker.port) for broker in five.brokers]
    for subscriber in subscribers:
        subscriber.subscribe(f"{base}/#", 2)
    one, other = five.two_hops()
    properties = Properties(PacketTypes.WILLMESSAGE)
    properties.UserProperty = [("why", "gone")]
    will = (f"{base}/will", b"last words", 2, True)
    make(one.port, will=will, will_properties=properties).break_off()
    for subscriber in subscribers:
        assert subscriber.got(1) == [b"last words"]
        assert subscriber.messages[0].qos == 2
        assert subscriber.messages[0].properties.UserProperty == [("why", "gone")]
    late = make(other.port)
    late.subscribe(f"{base}/will")
    assert late.got(1) == [b"last words"]
    assert late.messages[0].retain
    # who says goodbye leaves no will
    make(one.port, will=(f"{base}/none", b"never", 1, False)).close()
    publisher = make(one.port)
    publisher.publish(f"{base}/end", b"end", 1)
    publisher.publish(f"{base}/will", b"", 1, retain=True)
    for subscriber in subscribers:
        assert subscriber.got(3) == [b"last words", b"end", b""]


# ------------------------------------------------------------------ what a message carries


def test_properties_survive_two_hops(five: Cluster, make: Make, base: str) -> None:
    five.settle()
    one, other = five.two_hops()
    subscriber = make(other.port)
    subscriber.subscribe(f"{base}/#", 2)
    publisher = make(one.port)
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [("b", "2"), ("a", "1"), ("b", "1"), ("o", "mine"), ("é", "")]
    properties.ContentType = "text/plain; charset=utf-8"
    properties.ResponseTopic = f"{base}/answer"
    properties.CorrelationData = bytes(range(256))
    properties.MessageExpiryInterval = 1000
    properties.PayloadFormatIndicator = 1
    for qos in (0, 1, 2):
        publisher.publish(f"{base}/{qos}", "grün", qos, properties=properties)
        publisher.publish(f"{base}/{qos}", "plain", qos)
    subscriber.got(6)
    for message in subscriber.messages:
        found = message.properties.json()
        if message.payload == b"plain":
            assert found == {}
            continue
        assert 900 <= found.pop("MessageExpiryInterval") <= 1000
        assert found == {
            "UserProperty": properties.UserProperty,
            "ContentType": properties.ContentType,
            "ResponseTopic": properties.ResponseTopic,
            "CorrelationData": properties.CorrelationData.hex(),
            "PayloadFormatIndicator": 1,
        }


def test_wildcards_and_unsubscribe(five: Cluster, make: Make, base: str) -> None:
    one, other = five.two_hops()
    filters = {
        "+": {"a"},
        "a/+": {"a/b", "a/"},
        "a/#": {"a", "a/", "a/b", "a/b/c"},
        "+/b/#": {"a/b", "a/b/c"},
        "x": set(),
    }
    topics = ["a", "a/", "a/b", "a/b/c", "end"]
    subscribers = {}
    for wanted in filters:
        subscribers[wanted] = make(other.port)
        subscribers[wanted].subscribe(f"{base}/{wanted}", 1)
        subscribers[wanted].subscribe(f"{base}/end/of/it", 1)
    everything = make(other.port)
    everything.subscribe("#")
    publisher = make(one.port)
    for topic in topics:
        publisher.publish(f"{base}/{topic}", topic, 1)
    publisher.publish(f"{base}/end/of/it", b"end of it", 1)
    for wanted, subscriber in subscribers.items():
        until(lambda s=subscriber: s.payloads(f"{base}/end/of/it"), "the end")
        expected = (
            {t.encode() for t in filters[wanted]}
            | {b"end of it"}
            | ({b"end"} if wanted == "+" else set())
        )
        assert set(subscriber.payloads()) == expected
        assert not repeated(subscriber.payloads())
    assert not any(m.topic.startswith("$") for m in everything.messages)
    subscribers["+"].unsubscribe(f"{base}/+")
    publisher.publish(f"{base}/a", b"again", 1)
    publisher.publish(f"{base}/end/of/it", b"again", 1)
    until(lambda: subscribers["+"].payloads(f"{base}/end/of/it")[-1] == b"again", "the end again")
    assert b"again" not in subscribers["+"].payloads(f"{base}/a")


@pytest.mark.parametrize(("size", "number"), [(1_000_000, 5), (20_000_000, 2)])
def test_large_payloads_leave_the_tree_alone(
    five: Cluster, make: Make, base: str, size: int, number: int
) -> None:
    five.settle()
    one, other = five.two_hops()
    before = [(b.view()["epoch"], b.counter("links_closed")) for b in five.brokers]
    subscriber = make(other.port)
    subscriber.subscribe(f"{base}/#", 1)
    publisher = make(one.port)
    payloads = [bytes([65 + n]) * size for n in range(number)]
    for n, payload in enumerate(payloads):
        publisher.publish(f"{base}/{n}", payload, 1 + n % 2)
    assert subscriber.got(number) == payloads
    assert [(b.view()["epoch"], b.counter("links_closed")) for b in five.brokers] == before
    five.agree()


# ------------------------------------------------------------------ deaths, silences, late ones


class Traffic:
    """Numbered messages at QoS 1 and 2 from two brokers to a subscriber at each."""

    def __init__(self, make: Make, brokers: list[Broker], base: str) -> None:
        self.base = base
        self.subscribers = [make(broker.port) for broker in brokers]
        self.publishers = {(i, qos): make(brokers[i].port) for i in (0, 1) for qos in (1, 2)}
        for subscriber in self.subscribers:
            subscriber.subscribe(f"{base}/#", 2)
        self.sent: dict[tuple[int, int], list[int]] = {key: [] for key in self.publishers}
        wait_subscribed(self.publishers[0, 1], self.subscribers, f"{base}/probe")
        wait_subscribed(self.publishers[1, 1], self.subscribers, f"{base}/probe")

    def step(self) -> bool:
        """Publish one message by each; never far ahead of the acknowledgements."""
        for key, publisher in self.publishers.items():
            mids = self.sent[key]
            if len(publisher.acknowledged.intersection(mids)) + 20 >= len(mids):
                mids.append(
                    publisher.publish(f"{self.base}/{key[0]}/{key[1]}", str(len(mids)), key[1])
                )
        return False

    def flow(self, number: int) -> None:
        """Publish until everybody has so many more of each publisher."""
        aims = {key: len(mids) + number for key, mids in self.sent.items()}

        def arrived() -> bool:
            self.step()
            return all(
                len(set(subscriber.payloads(f"{self.base}/{i}/{qos}"))) >= aim
                for subscriber in self.subscribers
                for (i, qos), aim in aims.items()
            )

        until(arrived, "messages flow")

    def check(self) -> None:
        """Everything acknowledged is everywhere; at QoS 2 once; the first of each in order."""
        for key, publisher in self.publishers.items():
            publisher.done(*self.sent[key])
        for (i, qos), mids in self.sent.items():
            expected = [str(n).encode() for n in range(len(mids))]
            for subscriber in self.subscribers:
                topic = f"{self.base}/{i}/{qos}"
                until(
                    lambda s=subscriber, t=topic, e=expected: set(s.payloads(t)) >= set(e),
                    f"all of {topic}",
                )
                found = subscriber.payloads(topic)
                assert list(dict.fromkeys(found)) == expected
                if qos == 2:
                    assert not repeated(found)


def test_killing_each_broker_in_turn_loses_nothing_elsewhere(
    five: Cluster, make: Make, base: str
) -> None:
    for victim in five.brokers:
        before = victim.view()
        survivors = [b for b in five.brokers if b is not victim]
        traffic = Traffic(make, survivors, f"{base}/{victim.name}")
        traffic.flow(10)
        victim.kill()
        traffic.flow(20)
        five.agree(survivors)
        traffic.flow(5)
        traffic.check()
        victim.start().up()
        five.agree(five.brokers)
        traffic.flow(5)
        traffic.check()
        after = victim.view()
        assert after["id"] == before["id"]
        assert after["boot"] > before["boot"]


@pytest.mark.parametrize("who", ["root", "leaf"])
def test_a_broker_that_hangs_and_goes_on_loses_nothing_elsewhere(
    five: Cluster, make: Make, base: str, who: str
) -> None:
    root = five.root()
    victim = root if who == "root" else five.two_hops()[0]
    survivors = [b for b in five.brokers if b is not victim]
    frozen = make(victim.port)
    frozen.subscribe(f"{base}/#", 2)
    traffic = Traffic(make, survivors, base)
    traffic.flow(10)
    victim.pause()
    five.agree(survivors)
    traffic.flow(20)
    victim.resume()
    five.agree(five.brokers)
    traffic.flow(5)
    traffic.check()
    # A client of the one that was stopped misses nothing either.
    for (i, qos), mids in traffic.sent.items():
        topic = f"{base}/{i}/{qos}"
        until(
            lambda t=topic, m=mids: len(set(frozen.payloads(t))) == len(m),
            f"{topic} at the one that was stopped",
        )
        assert list(dict.fromkeys(frozen.payloads(topic))) == [
            str(n).encode() for n in range(len(mids))
        ]
        assert qos == 1 or not repeated(frozen.payloads(topic))


def test_a_broker_that_joins_late_and_leaves_disturbs_no_other(
    five: Cluster, make: Make, base: str
) -> None:
    others = list(five.brokers)
    traffic = Traffic(make, others, base)
    traffic.flow(5)
    before = {key: len(mids) for key, mids in traffic.sent.items()}
    sixth = five.add().up()
    try:
        early = make(sixth.port)  # perhaps before there is any link
        early.subscribe(f"{base}/#", 2)
        five.agree([*others, sixth])
        late = make(sixth.port)
        late.subscribe(f"{base}/late/#", 2)
        for index, broker in enumerate(others):
            publisher = make(broker.port)
            publisher.publish(f"{base}/late/{index}", str(index), 2)
        assert sorted(late.got(5)) == [b"0", b"1", b"2", b"3", b"4"]
        late.publish(f"{base}/from", b"sixth", 1)
        for subscriber in [*traffic.subscribers, early]:
            assert subscriber.got(1, f"{base}/from") == [b"sixth"]
        traffic.flow(5)
        for (i, qos), mids in traffic.sent.items():
            topic, last = f"{base}/{i}/{qos}", str(len(mids) - 1).encode()
            until(
                lambda t=topic, m=last: m in early.payloads(t),
                f"the newest of {topic} at the sixth",
            )
            numbers = [int(payload) for payload in early.payloads(topic)]
            assert min(numbers) >= before[i, qos], "older than the broker"
            assert numbers == list(range(numbers[0], len(mids)))
        assert sixth.terminate() == 0
        five.agree(others)
        traffic.flow(5)
        traffic.check()
        until(
            lambda: all(broker.counter("discovery_leaves") for broker in others),
            "all have heard the goodbye",
        )
        assert not repeated(late.payloads())
    finally:
        five.brokers.remove(sixth)
        if sixth.running:
            sixth.kill()
        print(sixth.log())


def test_brokers_restarted_in_any_order_federate_again(
    five: Cluster, make: Make, base: str
) -> None:
    ids = {broker.name: broker.view()["id"] for broker in five.brokers}
    order = list(five.brokers)
    random.shuffle(order)
    print("killed and started in this order:", [broker.name for broker in order])
    for broker in order:
        broker.end(random.choice([signal.SIGKILL, signal.SIGTERM]))
    random.shuffle(order)
    for broker in order:
        broker.start()
    five.agree(five.brokers)
    assert {broker.name: broker.view()["id"] for broker in five.brokers} == ids
    traffic = Traffic(make, five.brokers, base)
    traffic.flow(5)
    traffic.check()


# ------------------------------------------------------------------ without multicast


def test_one_seed_for_each_broker_is_enough(tmp_path: Path, make: Make) -> None:
    with Cluster(tmp_path, "--discovery", "static") as cluster:
        first = cluster.add()
        second = cluster.add("--seed", first.address)
        cluster.add("--seed", second.address)
        dead = Broker(tmp_path, "dead", [], cluster="").address
        cluster.add("--seed", dead, "--seed", f"localhost:{first.port}")
        # Each knows one other at most; gossip tells the rest, and everybody has a link to
        # everybody.
        assert len(cluster.agree()) == 4
        subscribers = [make(broker.port) for broker in cluster.brokers]
        for subscriber in subscribers:
            subscriber.subscribe("t", 1)
        make(cluster.brokers[3].port).publish("t", b"x", 1)
        for subscriber in subscribers:
            assert subscriber.got(1) == [b"x"]


def test_seeds_may_be_host_names(tmp_path: Path) -> None:
    with Cluster(tmp_path, "--discovery", "dns") as cluster:
        first = cluster.add()
        cluster.add("--seed", f"localhost:{first.port}")
        assert len(cluster.agree()) == 2


# ------------------------------------------------------------------ who is not invited


def secret_file(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def alone(broker: Broker) -> bool:
    view = broker.view()
    return view["state"] == "runtime" and view["root"] == view["id"] and not view["links"]


def outsiders(cluster: Cluster, inside: Broker, right: str, wrong: str) -> dict[str, Broker]:
    """Brokers that do not belong to the cluster of `inside`, each alone; by what is wrong."""
    static = ["--discovery", "static", "--seed", inside.address]
    outside = {
        "wrong secret": cluster.add("--secret-file", wrong),
        "no secret": cluster.add(),
        "other cluster": cluster.add("--secret-file", right, cluster=f"{cluster.cluster}-other"),
        "wrong secret, seed": cluster.add("--secret-file", wrong, *static),
        "no secret, seed": cluster.add(*static),
        "other cluster, seed": cluster.add(
            "--secret-file", right, *static, cluster=f"{cluster.cluster}-another"
        ),
    }
    for what, broker in outside.items():
        broker.up()
        until(lambda b=broker: alone(b), f"{what}: alone")
    return outside


def refused_and_counted(cluster: Cluster, a: Broker, outside: dict[str, Broker]) -> None:
    """What `a` and those outside say of each other, in counters and log lines."""
    until(lambda: a.counter("discovery_wrong_secret"), "datagrams with a wrong secret are counted")
    until(lambda: a.counter("discovery_wrong_cluster"), "datagrams of another cluster are counted")
    until(lambda: a.counter("link_wrong_secret"), "links without a secret are counted")
    until(
        lambda: a.counter("links_refused"),
        "links that another one refused, as our secret is not its own, are counted",
    )
    until(lambda: a.counter("link_wrong_cluster"), "links of another cluster are counted")
    for what in ("wrong secret", "no secret"):
        until(
            lambda w=what: outside[w].counter("discovery_wrong_secret"),
            f"{what}: it counts as well",
        )
        assert 1 <= len(outside[what].lines("WARNING")) <= cluster.minutes()
    for what in ("wrong secret, seed", "no secret, seed", "other cluster, seed"):
        # the broker that dials learns why, too
        until(lambda w=what: outside[w].lines("WARNING", a.address), f"{what}: a line")
    # However often they try, one line for each kind of fault and host a minute; none for other
    # clusters' datagrams.
    until(
        lambda: a.counter("link_wrong_cluster") >= 3 and a.counter("link_wrong_secret") >= 3,
        "they try again",
    )
    warnings = a.lines("WARNING")
    assert 4 <= len(warnings) <= 4 * cluster.minutes()
    for words in (
        "not signed|another cluster secret",
        "refused the link",
        "no cluster secret",
        "-another'",
    ):
        assert any(word in line for line in warnings for word in words.split("|"))
    for what, broker in outside.items():
        lines = broker.lines("WARNING")
        assert not lines if what == "other cluster" else 1 <= len(lines) <= cluster.minutes(), what


def test_only_brokers_with_the_secret_federate(tmp_path: Path, make: Make) -> None:
    right = secret_file(tmp_path, "right", "correct horse battery\n")
    wrong = secret_file(tmp_path, "wrong", "wrong horse battery\n")
    with Cluster(tmp_path, link_timeout=10.0) as cluster:
        pair = [cluster.add("--secret-file", right) for _ in range(2)]
        cluster.agree(pair)
        before = [(b.view()["root"], b.counter("links_opened")) for b in pair]
        subscriber = make(pair[1].port)
        subscriber.subscribe("t", 1)
        outside = outsiders(cluster, pair[0], right, wrong)
        a = pair[0]
        refused_and_counted(cluster, a, outside)
        # The other links are not disturbed.
        assert [(b.view()["root"], b.counter("links_opened")) for b in pair] == before
        cluster.agree(pair)
        make(a.port).publish("t", b"inside", 1)
        for what, broker in outside.items():
            make(broker.port).publish("t", what, 1)
            assert alone(broker)
        make(a.port).publish("t", b"end", 1)
        assert subscriber.got(2) == [b"inside", b"end"]


def overhear() -> socket.socket:
    """Begin to hear the group on the loopback interface."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((GROUP, PORT))
    sock.setsockopt(
        socket.IPPROTO_IP,
        socket.IP_ADD_MEMBERSHIP,
        socket.inet_aton(GROUP) + socket.inet_aton("127.0.0.1"),
    )
    sock.settimeout(PATIENCE)
    return sock


def heard_of(sock: socket.socket, secret: bytes, cluster: str, wanted: str) -> bytes:
    """An announcement of the broker with this id, heard before or now."""

    def found() -> bytes:
        data = sock.recv(2048)
        try:
            return data if decode(data, secret, cluster).id.hex() == wanted else b""
        except ValueError:
            return b""

    datagram: bytes = until(found, f"an announcement of {wanted}")
    return datagram


def send_group(data: bytes) -> None:
    """Send a datagram to the group on the loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, struct.pack("b", 1))
        sock.sendto(data, (GROUP, PORT))


def test_a_replayed_announcement_changes_nothing(tmp_path: Path) -> None:
    secret = "correct horse battery"
    with Cluster(tmp_path, "--secret-file", secret_file(tmp_path, "secret", secret)) as cluster:
        stay = [cluster.add() for _ in range(2)]
        with overhear() as group:
            gone = cluster.add()
            cluster.agree()
            datagram = heard_of(
                group,
                cluster_key(secret.encode(), cluster.cluster),
                cluster.cluster,
                gone.view()["id"],
            )
        assert gone.terminate() == 0
        cluster.agree(stay)
        until(
            lambda: all(broker.counter("discovery_leaves") for broker in stay),
            "both have heard the goodbye",
        )

        def facts() -> list[Any]:
            counted = ("links_opened", "links_closed", "discovery_dials")
            return [
                (
                    v["root"],
                    v["links"][0]["peer"],
                    v["members"],
                    [v["counters"][c] for c in counted],
                )
                for v in views()
            ]

        def views() -> list[dict[str, Any]]:
            return [broker.view() for broker in stay]

        before = facts()

        def replayed() -> bool:
            send_group(datagram)
            return all(v["counters"]["discovery_replayed"] for v in views())

        until(replayed, "the replay is refused")
        assert facts() == before
        assert all(1 <= len(broker.lines("datagram")) <= cluster.minutes() for broker in stay)
        cluster.agree(stay)
