"""A new session begins where it subscribed: what was published before comes neither from logs nor
from origins. What was published after comes, though its broker was cut off from the publisher's
then."""

from __future__ import annotations

import pytest

from mqttree.broker.cluster.delivery.origin_feeds import PATIENCE_S
from mqttree.broker.cluster.delivery.pull_messages import ENTRIES, ENTRIES_PIECE
from mqttree.broker.cluster.delivery.subscription_start import SubscriptionStarts
from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
from mqttree.broker.cluster.link.link import Link
from mqttree.broker.wire.packets import Publish
from tests.sim.disk import Disk
from tests.sim.schedule import run_seed
from tests.sim.test_takeover import Client, Row

RATE = 0.01
"""s between two messages."""


class Feed:
    """A publisher that goes on, and when each of its messages was published."""

    def __init__(self, row: Row, index: int) -> None:
        self.row = row
        self.client = row.connect(index, "publisher")
        self.sent: dict[bytes, float] = {}
        self.ended = False
        self._next()

    def _next(self) -> None:
        if not self.ended:
            payload = b"%06d" % len(self.sent)
            self.sent[payload] = self.row.world.now
            self.client.publish("a", payload)
            self.row.world.after(RATE, self._next)

    def end(self) -> None:
        """Publish no more, and let everything arrive."""
        self.ended = True
        self.row.run(2.0)

    def since(self, begin: float) -> set[bytes]:
        return {payload for payload, at in self.sent.items() if at >= begin}


def subscribed(row: Row, index: int, **options: int) -> tuple[Client, float]:
    """A client that subscribes, and when it heard of it."""
    client = row.connect(index, **options).subscribed("a")
    return client, row.world.now - 0.3  # `subscribe` goes on for so long


def judge(first: Client, second: Client, feed: Feed, since: float) -> None:
    got = second.payloads
    assert not set(first.payloads) & set(got), "twice"
    assert got == sorted(set(got)), "twice, or out of order"
    assert not feed.since(since) - set(got), "lost"


# A cut of 1.5 s breaks no link: no broker notices, and what is late then is distinguished from what
# is new by the numbers at SUBACK.
CUTS = [
    ("interest", 1.5),
    ("interest", 4.5),
    ("topic", 1.5),
    ("topic", 4.5),
    ("topic", 10.0),
]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("routing", "cut"), CUTS)
def test_a_client_that_moves_across_a_split_gets_each_message_once(
    routing: str, cut: float, known: bool
) -> None:
    """It was on the publisher's side of the split for a part of it, and had what was published
    there. `known`: another client at the broker that it comes to has its filter."""
    row = Row(3, routing=routing, meshed=True)
    if known:
        row.connect(2, "other").subscribe("a")
    feed = Feed(row, 0)
    first, _ = subscribed(row, 1, expiry=0)
    row.run(0.5)
    row.world.partition([[2]])
    began = row.world.now
    row.run(cut * 0.8)
    first.leave()
    row.world.at(began + cut, row.world.heal)  # SUBACK may wait for that
    second, since = subscribed(row, 2, expiry=0)
    row.run(max(0.0, began + cut + 0.01 - row.world.now))
    row.join()
    feed.end()
    judge(first, second, feed, since)


@pytest.mark.parametrize("routing", ["interest", "topic"])
def test_a_retained_message_still_on_its_way_comes_as_retained(routing: str) -> None:
    """It is not there when a client that moves gets what is retained, and was published before
    that: it comes as retained."""
    row = Row(3, routing=routing, meshed=True)
    row.connect(2, "other").subscribe("r")
    first = row.connect(1, expiry=0).subscribed("r")
    row.world.partition([[2]])
    row.connect(0, "p").send(Publish("r", b"on", 2, retain=True, packet_id=1))
    row.until(lambda: first.payloads)
    first.leave()
    row.world.after(0.8, row.world.heal)  # no broker has noticed the cut
    second = row.connect(2, expiry=0).subscribed("r")
    row.run(2.0)
    assert [
        (packet.payload, packet.retain) for packet in second.packets if isinstance(packet, Publish)
    ] == [(b"on", True)]


def test_a_publisher_that_began_beyond_a_split_is_heard_from_the_start() -> None:
    """No broker on this side has heard of its broker when the client subscribes."""
    row = Row(3, routing="topic", meshed=True)
    row.host(0).kill()
    row.run(3.0)
    row.world.partition([[2]])
    row.host(0).start()
    row.run(3.0)
    feed = Feed(row, 0)
    first, _ = subscribed(row, 1, expiry=0)
    row.run(1.0)
    first.leave()
    second, since = subscribed(row, 2, expiry=0)
    row.run(1.0)
    row.world.heal()
    row.join()
    feed.end()
    judge(first, second, feed, since)


def test_a_second_filter_leaves_the_start_of_the_first_as_it_is() -> None:
    """Each subscription has its own begin; one that is repeated keeps its own."""
    row = Row(3, routing="topic", meshed=True)
    feed = Feed(row, 0)
    row.world.partition([[2]])
    row.run(3.0)
    client, since = subscribed(row, 2)
    row.run(1.0)
    client.subscribe("+")
    client.subscribe("a")
    row.world.heal()
    row.join()
    feed.end()
    got = client.payloads
    assert got == sorted(set(got))
    assert not feed.since(since) - set(got)
    assert not set(got) - feed.since(since - 0.02)


def test_a_subscription_start_holds_though_its_origin_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No broker says where a subscription begins that was made in a split; neighbours replay what
    is missing, and how old it is."""
    row = Row(3, routing="interest", meshed=True)
    feed = Feed(row, 0)
    row.connect(1, "other").subscribe("a")
    row.world.partition([[2]])
    row.run(2.5)
    client, since = subscribed(row, 2)
    row.run(1.0)
    route = UnicastBus._route
    lost = {ENTRIES, ENTRIES_PIECE}
    monkeypatch.setattr(
        UnicastBus,
        "_route",
        lambda self, message, **how: message[17] not in lost and route(self, message, **how),
    )
    row.world.heal()
    row.run(PATIENCE_S + 5.0)
    got = set(client.payloads)
    assert len(feed.since(since)) - len(got) < 50, (
        "those on their way to who waits for what is before them"
    )
    lost.clear()
    row.join()
    feed.end()
    assert not feed.since(since) - set(client.payloads), "lost"
    assert not set(client.payloads) - feed.since(since - 0.1), "from before"


@pytest.mark.parametrize("routing", ["interest", "topic"])
def test_a_subscription_gets_nothing_from_before_its_publisher_was_down(routing: str) -> None:
    """The log of the publisher's broker does not count the time in which it was down: to a
    subscription that was made meanwhile what is in it is older all the same."""
    row = Row(3, routing=routing, meshed=True)
    for index in (0, 2):
        row.host(index).kill()
        disk = Disk(row.world, row.host(index), sync=False)
        row.world.on_start.append(
            lambda host, disk=disk: disk.started() if host is disk.host else None
        )
        row.host(index).start()
    row.join()
    row.connect(2, "other").subscribe("other")
    first, _ = subscribed(row, 1, expiry=0)
    feed = Feed(row, 0)
    row.run(0.5)
    feed.ended = True
    row.run(0.05)
    assert set(first.payloads) == set(feed.sent)
    for index in (0, 1, 2):
        row.host(index).kill()
    row.run(1.0)
    row.host(1).start()
    row.run(2.0)
    second, _ = subscribed(row, 1, expiry=0)
    row.run(1.0)
    row.host(2).start()
    row.run(0.5)
    row.host(0).start()
    row.join()
    row.run(2.0)
    assert not second.payloads
    later = Feed(row, 0)
    row.run(0.2)
    later.end()
    assert second.payloads == sorted(later.sent)


@pytest.mark.parametrize("seed", [161001128, 161001136])
def test_ages_of_messages_do_not_circulate_in_loops(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """While a tree forms links make circles. Copies of copies filled them, and a tree of nine
    brokers never formed."""
    hops: list[int] = []
    received = SubscriptionStarts.ages_received

    def note(
        self: SubscriptionStarts, link: Link, body: bytes, now: float, *, holes: bool = False
    ) -> None:
        hops.append(body[0])
        received(self, link, body, now, holes=holes)

    monkeypatch.setattr(SubscriptionStarts, "ages_received", note)
    result = run_seed(seed)
    assert result.violations == []
    assert max(hops) < result.brokers
