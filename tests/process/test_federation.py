"""Brokers as real processes that act as one, seen by real clients. What happens when some of them
die, hang or come late: process/test_chaos.py and tests/sim/test_federation.py."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.brokers import Broker, Cluster, secret_file
from tests.kit.clients import Make
from tests.kit.waiting import until

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
def base() -> str:
    """A topic that no other test uses."""
    return f"test/{next(_runs)}"


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


# ------------------------------------------------------------------ what a message carries


@pytest.mark.parametrize(("size", "number"), [(1_000_000, 5), (20_000_000, 2)])
def test_large_payloads_leave_the_tree_alone(
    five: Cluster, make: Make, base: str, size: int, number: int
) -> None:
    five.settle()
    one, other = five.two_hops()
    before = [(b.view()["epoch"], b.counter("links_closed")) for b in five.brokers]
    subscriber = make(other.port).subscribed(f"{base}/#", 1)
    publisher = make(one.port)
    payloads = [bytes([65 + n]) * size for n in range(number)]
    for n, payload in enumerate(payloads):
        publisher.publish(f"{base}/{n}", payload, 1 + n % 2)
    assert subscriber.got(number) == payloads
    assert [(b.view()["epoch"], b.counter("links_closed")) for b in five.brokers] == before
    five.agree()


# ------------------------------------------------------------------ without multicast


def test_seeds_may_be_host_names(tmp_path: Path) -> None:
    with Cluster(tmp_path, "--discovery", "dns") as cluster:
        first = cluster.add()
        cluster.add("--seed", f"localhost:{first.port}")
        assert len(cluster.agree()) == 2


# ------------------------------------------------------------------ who is not invited


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
        subscriber = make(pair[1].port).subscribed("t", 1)
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
