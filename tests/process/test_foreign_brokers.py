"""Legs to brokers of other products, as far as they are installed: `scripts/setup foreign` installs
RabbitMQ and aedes, amqtt comes with the project's own dependencies.

What each of them can do is in docs/bridging.md.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.kit.brokers import Cluster
from tests.kit.clients import Client, clients
from tests.kit.foreign import (
    AEDES,
    AMQTT,
    RABBITMQ,
    AedesBroker,
    AmqttBroker,
    ForeignBroker,
    RabbitBroker,
)
from tests.kit.waiting import until
from tests.process.test_legs import Gateway, legs, up, url

pytestmark = pytest.mark.interop

COUNT = 20
"""Messages of each direction and QoS."""


@dataclass(frozen=True, slots=True)
class Product:
    """What a foreign broker can do."""

    make: Callable[[Path, str], ForeignBroker]
    there: bool
    """Whether it is installed."""
    flags: tuple[str, ...]
    """Of a gateway beside it."""
    qos: int
    """The highest one."""
    keeps: bool
    """Whether sessions and retained messages outlast its restart."""
    waits: bool = True
    """Whether messages wait there for a client that was lost."""
    wildcards: bool = True
    """Whether a filter with wildcards brings what is retained."""


PRODUCTS = {
    "rabbitmq": Product(
        RabbitBroker,
        RABBITMQ is not None,
        ("--mqtt", "3.1.1-plain", "--max-qos", "1"),
        1,
        True,
        wildcards=False,
    ),
    "aedes": Product(AedesBroker, AEDES is not None, ("--mqtt", "3.1.1-plain"), 2, False),
    "amqtt": Product(AmqttBroker, AMQTT is not None, ("--mqtt", "3.1.1-plain"), 2, False, False),
}


class Pair:
    """A foreign broker and its gateway, with a client at each."""

    def __init__(self, product: Product, folder: Path, stack: ExitStack) -> None:
        """`folder`: for their files; `stack`: ends them. Before the gateway starts, a message is
        retained at the foreign broker."""
        self.foreign = stack.enter_context(product.make(folder, "theirs"))
        self.make: Callable[..., Client] = stack.enter_context(clients())
        self.there = self.make_there()
        self.there.done(self.there.publish("kept/there", b"there", 1, retain=True))
        cluster = stack.enter_context(Cluster(folder / "ours"))
        flags = ["--discovery", "off", *product.flags]
        self.gateway = Gateway(cluster.folder, "g", flags, cluster=cluster.cluster)
        self.gateway.foreign = url(self.foreign.port)
        cluster.brokers.append(self.gateway)
        self.gateway.start().up()
        up(self.gateway, "g")
        self.here = self.make(self.gateway.port)

    def make_there(self, **more: Any) -> Client:
        """A client of the foreign broker."""
        return self.make(self.foreign.port, protocol=4, **more)


@contextmanager
def pair(name: str, folder: Path) -> Iterator[tuple[Product, Pair]]:
    """Give a product and a pair with it; skip the test if it is not installed."""
    product = PRODUCTS[name]
    if not product.there:
        pytest.skip(f"{name} is not installed")
    with ExitStack() as stack:
        yield product, Pair(product, folder, stack)


@pytest.mark.parametrize("name", PRODUCTS)
def test_messages_cross_both_ways_without_echoes(name: str, tmp_path: Path) -> None:
    with pair(name, tmp_path) as (product, two):
        here, there = two.here, two.there
        here.subscribe("t/#", 2)
        there.subscribe("t/#", product.qos)
        for qos in range(product.qos + 1):
            sent = [b"%d" % number for number in range(COUNT)]
            mids = []
            for payload in sent:
                mids.append(here.publish(f"t/here/{qos}", payload, qos))
                there.publish(f"t/there/{qos}", payload, qos)
            here.done(*mids)
            assert here.got(COUNT, f"t/there/{qos}") == sent
            assert there.got(COUNT, f"t/here/{qos}") == sent
        # Echoes would have come ahead of these.
        there.done(there.publish("t/end", b"there", 1))
        here.done(here.publish("t/end", b"here", 1))
        for client in (here, there):
            client.got(2, "t/end")
            for qos in range(product.qos + 1):
                assert len(client.payloads(f"t/here/{qos}")) == COUNT
                assert len(client.payloads(f"t/there/{qos}")) == COUNT
        assert legs(two.gateway)["g"]["failures"] == 0


@pytest.mark.parametrize("name", PRODUCTS)
def test_what_is_retained_is_merged(name: str, tmp_path: Path) -> None:
    with pair(name, tmp_path) as (product, two):
        until(lambda: legs(two.gateway)["g"]["retained_merges"], "a merge")
        two.there.subscribe("kept/#", 1)
        two.here.done(two.here.publish("kept/here", b"here", 1, retain=True))
        two.there.got(1, "kept/here")

        def retained(port: int, topic: str) -> set[bytes]:
            client = two.make(port, protocol=4).subscribed(topic, 1)
            found = set(client.got(1, topic))
            assert all(message.retain for message in client.messages)
            return found

        assert retained(two.foreign.port, "kept/here") == {b"here"}
        if product.wildcards:
            assert retained(two.gateway.port, "kept/there") == {b"there"}
        report = legs(two.gateway)["g"]
        assert report["retained_deleted_here"] == report["retained_deleted_there"] == 0


@pytest.mark.parametrize("name", PRODUCTS)
def test_messages_wait_for_a_gateway_that_was_killed(name: str, tmp_path: Path) -> None:
    with pair(name, tmp_path) as (product, two):
        if not product.waits:
            pytest.skip(f"{name} forgets the session of a client that is lost")
        here = two.make(two.gateway.port, client_id="c", clean=False, expiry=600)
        here.subscribe("t/there", 2)
        here.close()
        two.gateway.kill()
        sent = [b"%d" % number for number in range(COUNT)]
        for payload in sent:
            two.there.publish("t/there", payload, product.qos)
        two.there.done(two.there.publish("other", b"", 1))
        two.gateway.start().up()
        up(two.gateway, "g")
        back = two.make(two.gateway.port, client_id="c", clean=False, expiry=600)
        got = back.got(COUNT, "t/there")
        assert got == sent or (product.qos == 1 and set(got) == set(sent))


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_foreign_broker_is_restarted(name: str, tmp_path: Path) -> None:
    """What is published here meanwhile waits for it. What it keeps itself comes as well."""
    with pair(name, tmp_path) as (product, two):
        two.here.subscribe("t/there", 2)
        before, while_away, after = (
            [b"%d-%d" % (part, number) for number in range(COUNT)] for part in range(3)
        )
        keeper = two.make_there(client_id="keeper", clean=False)
        keeper.subscribe("t/here", product.qos)
        for payload in before:
            two.here.publish("t/here", payload, product.qos)
        assert keeper.got(COUNT, "t/here") == before
        two.foreign.end(signal.SIGTERM, 60)
        for payload in while_away:
            two.here.publish("t/here", payload, product.qos)
        two.foreign.start()
        again = two.make_there(client_id="keeper", clean=False)
        if not product.keeps:
            again.subscribe("t/here", product.qos)
        up(two.gateway, "g")
        there = two.make_there()
        for payload in after:
            two.here.publish("t/here", payload, product.qos)
            there.publish("t/there", payload, product.qos)
        assert two.here.got(COUNT, "t/there") == after
        wanted = {*while_away, *after}
        until(lambda: wanted <= set(again.payloads("t/here")), "what waited, and what is new")
        # At QoS 1 what the foreign broker had not seen acknowledged may come again.
        if product.qos == 2:
            assert again.payloads("t/here") == while_away + after
        lost = legs(two.gateway)["g"]["sessions_lost"]
        assert lost == (0 if product.keeps else 1)


@pytest.mark.parametrize("rule", ["# both 2", "# out 2"])
def test_rabbitmq_gets_what_is_published_at_qos_2_at_qos_1(rule: str, tmp_path: Path) -> None:
    """Without max-qos. Its SUBACK shows that it has QoS 1 only; where the leg subscribes to nothing
    there, its answer to the first message does."""
    if RABBITMQ is None:
        pytest.skip("rabbitmq is not installed")
    product = replace(PRODUCTS["rabbitmq"], flags=("--mqtt", "3.1.1-plain", "--topic", rule))
    with ExitStack() as stack:
        two = Pair(product, tmp_path, stack)
        there = two.there
        there.subscribe("t/#", 1)
        sent = [b"%d" % number for number in range(COUNT)]
        two.here.done(*[two.here.publish("t/here", payload, 2) for payload in sent])
        until(lambda: set(there.payloads("t/here")) >= set(sent), "all messages", 60)
        more = [b"more %d" % number for number in range(COUNT)]
        two.here.done(*[two.here.publish("t/more", payload, 2) for payload in more])
        assert there.got(COUNT, "t/more") == more
        report = legs(two.gateway)["g"]
        assert report["max_qos"] == 1
        assert report["failures"] == (0 if rule == "# both 2" else 1)
        assert len(two.gateway.lines("leg g: the foreign broker takes QoS 1 at most")) == 1
