"""A client begins a new session as its broker is silent; when the broker is back, what waited there
comes, once, in order."""

from __future__ import annotations

import pytest

from mqttree.broker.cluster.directory.link_state_directory import CLIENT
from mqttree.broker.node import Node
from mqttree.broker.wire.packets import Publish, Subscribe, SubscriptionRequest
from tests.sim.disk import Disk
from tests.sim.test_position import Feed
from tests.sim.test_takeover import Client, Row
from tests.sim.world import World


def away(row: Row, index: int = 1, **options: int) -> Client:
    """A client that has subscribed, had some messages, and is away; the next ones wait for it."""
    client = row.connect(index, **options).subscribed("a")
    row.run(0.3)
    client.leave()
    row.run(0.3)
    return client


def parted(row: Row) -> tuple[Row, Client, Feed]:
    """The same, with a publisher; the client's broker has been cut off."""
    first = away(row)
    feed = Feed(row, 0)
    row.run(0.5)
    row.world.partition([[1]])
    row.run(3.0)
    return row, first, feed


def judge(feed: Feed, *clients: Client, since: float = 0.0, until: float = 1e9) -> None:
    """All messages came once, to one of these connections, each in order."""
    got = [payload for client in clients for payload in client.payloads]
    assert len(got) == len(set(got)), "twice"
    lost = {payload for payload, at in feed.sent.items() if since <= at < until} - set(got)
    assert not lost, f"lost {sorted(lost)}"


def settle(row: Row, feed: Feed) -> None:
    row.join()
    row.run(1.0)
    feed.end()
    row.one_session()


@pytest.mark.parametrize("routing", ["interest", "topic"])
@pytest.mark.parametrize("silent", [1.6, 4.0])
def test_a_session_is_merged_when_its_broker_hangs_no_more(routing: str, silent: float) -> None:
    row = Row(3, routing=routing, meshed=True)
    first = away(row)
    feed = Feed(row, 0)
    row.run(0.5)
    row.host(1).pause()
    began = row.world.now
    second = row.client(2)
    row.until(lambda: second.connacks)
    assert not second.present
    second.subscribe("a")
    row.run(began + silent - row.world.now)
    row.host(1).resume()
    settle(row, feed)
    judge(feed, first, second)
    assert row.node(2).counters.sessions_merged == 1
    assert "c" not in row.node(1).sessions


@pytest.mark.parametrize("routing", ["interest", "topic"])
def test_a_merge_repeats_nothing_though_large_messages_emptied_the_logs(routing: str) -> None:
    """What comes to the older session when its broker is back waits there, and the newer one has
    delivered it; large messages that are published at both leave nothing of it in either log."""
    row, first, feed = parted(Row(3, routing=routing, meshed=True))
    row.world.rate = 1.25e9
    publishers = [row.connect(index, f"p{index}") for index in (1, 2)]
    second = row.connect(2)
    assert not second.present
    second.subscribe("a")
    row.world.heal()
    # As long as its client subscribes nothing is added, until brokers keep nothing any more for
    # those that they have lost (5 s).
    for number in range(2, 50):
        second.send(Subscribe(number, [SubscriptionRequest(f"c{number}", 2)]))
        if number == 41:
            feed.ended = True
        elif number == 42:
            for publisher in publishers:
                publisher.publish("b", *[bytes(1_000_000)] * 40)
        row.run(0.2)
    assert not row.node(2).counters.sessions_merged
    for index in (1, 2):
        assert all(
            topic == b"b"
            for entry in row.node(index).cluster.forwarder.log.latest()
            for topic in entry.topics()
        )
    row.until(lambda: row.node(2).counters.sessions_merged, 20.0)
    settle(row, feed)
    judge(feed, first, second)


@pytest.mark.parametrize("routing", ["interest", "topic"])
@pytest.mark.parametrize("then", ["stays", "leaves", "moves"])
def test_after_a_split_the_merge_follows_the_newest_session(routing: str, then: str) -> None:
    """The merge follows the newest session, wherever it is, and whether its client is there or
    not."""
    row, first, feed = parted(Row(4, routing=routing))
    second = row.connect(2)
    assert not second.present
    second.subscribe("a")
    row.run(0.5)
    if then != "stays":
        second.leave()
    third = row.connect(3) if then == "moves" else None
    row.world.heal()
    settle(row, feed)
    if third is None and then == "leaves":
        third = row.connect(1)
    row.run(1.0)
    assert third is None or third.present
    judge(feed, first, second, *([third] if third is not None else []))
    row.one_session()


def test_a_client_that_was_on_both_sides_gets_both_queues_once() -> None:
    """It goes to the other half and comes back: the queue there is added to the session that it has
    come back to."""
    row, first, feed = parted(Row(3, routing="topic", meshed=True))
    second = row.connect(2, answers=False).subscribed("a")
    row.run(0.2)
    second.cut()
    third = row.connect(1)
    assert third.present
    row.world.heal()
    settle(row, feed)
    unsure = set(second.payloads)  # sent, and not answered: it may have had them
    got = third.payloads
    assert len(got) == len(set(got))
    assert set(feed.sent) - set(got) <= unsure
    assert first


def test_a_clean_start_elsewhere_is_not_undone() -> None:
    row, first, feed = parted(Row(3, routing="topic", meshed=True))
    second = row.connect(2, clean=True).subscribed("a")
    since = row.world.now - 0.3
    row.world.heal()
    settle(row, feed)
    judge(feed, second, since=since)
    assert not set(second.payloads) & {
        payload for payload, at in feed.sent.items() if at < since - 0.1
    }
    assert first
    assert "c" not in row.node(1).sessions


@pytest.mark.parametrize("again", [False, True])
def test_a_session_that_ended_elsewhere_does_not_come_back(again: bool) -> None:
    """Its broker is away while the client ends its session elsewhere; nor does it when the client
    begins another one there."""
    row = Row(3, routing="topic", meshed=True)
    away(row)
    row.connect(0, "p").publish("a", b"old")
    row.run()
    row.world.partition([[1]])
    row.run(3.0)
    row.connect(2, clean=True, expiry=0).leave()
    row.run(0.1)
    assert len(row.node(2).cluster.tombstones) == 1
    new = row.connect(0) if again else None
    row.world.heal()
    row.join()
    row.run(2.0)
    assert "c" not in row.node(1).sessions
    if new is not None:
        assert not new.payloads
    else:
        assert not row.connect(1).present
    row.run(1.0)
    assert not len(row.node(2).cluster.tombstones)
    entries = [host.running.cluster.directory.database.own.entries for host in row.world.hosts]
    assert sum(CLIENT + b"c" in mine for mine in entries) == 1


def kept_row(routing: str, disks: dict[int, Disk] | None = None) -> Row:
    """Three brokers with journals, all linked. `disks`: takes their disks."""
    row = Row.__new__(Row)
    row.world = world = World(7)
    world.skew, world.rate, world.loss = 0.0, 1.25e7, 0.0
    disks = {} if disks is None else disks
    world.on_start.append(lambda host: disks[host.index].started())
    for index in range(3):
        host = world.add(discovery="multicast", capability=float(9 - index), routing=routing)
        disks[index] = Disk(world, host, sync=False)
        host.start()
    row.join()
    return row


def killed(routing: str) -> tuple[Row, Client, Feed, Client]:
    """The broker of a client with a session is killed, and has it in its journal; the client begins
    a new one elsewhere."""
    row = kept_row(routing)
    first = away(row)
    feed = Feed(row, 0)
    row.run(0.5)
    row.host(1).kill()
    row.run(0.5)
    second = row.connect(2)
    assert not second.present
    second.subscribe("a")
    return row, first, feed, second


class StuckDisk(Disk):
    """A disk that writes nothing more once it is stuck: a kill loses what it has not written."""

    stuck = False

    def _written(self, count: int, node: Node, life: int) -> None:
        if not self.stuck:
            super()._written(count, node, life)

    def started(self) -> None:
        """Give a node what was written."""
        if self.stuck:
            self.under_way.clear()
            self.stuck = False
        super().started()


def stuck_row() -> tuple[Row, StuckDisk]:
    """Three brokers with journals, and the disk of the last one."""
    row = kept_row("flood")
    host = row.host(2)
    host.kill()
    disk = StuckDisk(row.world, host, sync=True)
    row.world.on_start.clear()
    row.world.on_start.append(lambda started: disk.started() if started is host else None)
    host.start()
    row.join()
    return row, disk


def test_a_session_is_forgotten_by_its_holder_when_the_taker_has_written_it() -> None:
    row, disk = stuck_row()
    away(row)
    row.connect(0, "p").publish("a", b"1", b"2")
    row.run(0.5)
    disk.stuck = True
    second = row.client(2)
    row.until(lambda: "c" in row.node(2).sessions and row.node(2).sessions["c"].stamp)
    row.run(0.5)
    assert not second.connacks
    row.host(2).kill()
    row.run(0.5)
    third = row.connect(1)
    assert third.present
    row.run(0.5)
    assert third.payloads == [b"1", b"2"]


def test_an_older_session_is_forgotten_when_what_was_in_it_is_written() -> None:
    row, disk = stuck_row()
    away(row)
    row.connect(0, "p").publish("a", b"1", b"2")
    row.run(0.5)
    row.world.partition([[1]])
    row.run(3.0)
    second = row.connect(2)
    assert not second.present
    second.subscribe("a")
    second.leave()
    row.run(0.5)
    disk.stuck = True
    row.world.partition([])
    row.until(lambda: row.node(2).counters.sessions_merged)
    row.run(0.5)
    row.host(2).kill()
    row.host(2).start()
    row.join()
    third = row.connect(2)
    row.until(lambda: len(third.payloads) >= 2)
    assert third.payloads == [b"1", b"2"]
    row.one_session()


@pytest.mark.parametrize("after", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("routing", ["interest", "topic"])
def test_a_client_keeps_its_newer_session_at_a_broker_that_just_restarted(
    routing: str, after: float
) -> None:
    """Its broker was killed, and has an older session of its in the journal: the client goes on
    with the newer one, which it has had elsewhere meanwhile, though its broker has still to join
    the others."""
    row, first, feed, second = killed(routing)
    row.run(1.0)
    row.host(1).start()
    row.run(after)
    second.leave()
    third = row.connect(1)
    assert third.present
    settle(row, feed)
    judge(feed, first, second, third)


def test_two_sessions_of_a_client_use_different_packet_identifiers() -> None:
    """Before both are one, its client may get the older one: what it has of one must not be
    taken for the other's."""
    row, first, feed = parted(Row(3, routing="topic", meshed=True))
    second = row.connect(2).subscribed("a")
    row.run(0.5)
    ids = [
        {p.packet_id for p in client.packets if isinstance(p, Publish)}
        for client in (row.connect(1), second)
    ]
    assert all(ids)
    assert not ids[0] & ids[1]
    assert first
    row.world.heal()
    settle(row, feed)


@pytest.mark.parametrize("routing", ["interest", "topic"])
def test_messages_not_for_the_newer_session_come_from_the_older_one(routing: str) -> None:
    """The newer one moves. Its taker's log has messages that its holder had not been offered, and
    that are not for it."""
    row, first, feed = parted(Row(4, routing=routing, meshed=True))
    row.client(3, "other").subscribe("a")  # so that they come there
    row.world.slowest = 0.03
    second = row.connect(2).subscribed("b")
    row.run(0.5)
    third = row.connect(3)
    assert third.present
    row.world.heal()
    row.until(lambda: row.node(3).counters.sessions_merged, 20.0)
    merged = row.world.now
    feed.end()
    judge(feed, first, second, third, until=merged - 0.3)


@pytest.mark.parametrize("routing", ["interest", "topic"])
def test_a_client_that_is_back_first_gets_what_was_published_meanwhile(routing: str) -> None:
    """It takes its newer session to the broker of the older one, to which what was published
    between the two comes later."""
    row, first, feed = parted(Row(3, routing=routing, meshed=True))
    second = row.connect(2).subscribed("a")
    row.run(0.5)
    second.leave()
    row.host(0).pause()  # the publisher's broker: nothing comes from there
    row.world.heal()
    row.until(lambda: row.node(1).cluster.posted_sessions.elsewhere("c"), 10.0)
    third = row.connect(1)
    row.host(0).resume()
    assert third.present
    settle(row, feed)
    judge(feed, first, second, third)


@pytest.mark.parametrize("routing", ["interest", "topic"])
@pytest.mark.parametrize("killed", [False, True])
def test_a_merge_while_the_origin_hangs_loses_and_repeats_nothing(
    routing: str, killed: bool
) -> None:
    """What was published before the newer session subscribed comes to neither of them before both
    are one."""
    row = kept_row(routing)
    first = away(row)
    feed = Feed(row, 0)
    row.run(0.5)
    if killed:
        row.host(1).kill()
    else:
        row.world.partition([[1]])
    row.run(3.0)
    second = row.connect(2)
    assert not second.present
    second.subscribe("a")
    row.run(0.5)
    row.host(0).pause()
    if killed:
        row.host(1).start()
    else:
        row.world.heal()
    row.until(lambda: row.node(2).counters.sessions_merged, 20.0)
    row.host(0).resume()
    settle(row, feed)
    judge(feed, first, second)


@pytest.mark.parametrize("routing", ["interest", "topic"])
def test_a_session_goes_on_when_the_broker_of_its_queue_hangs(routing: str) -> None:
    """A client comes back to where its older session is; that is added to the newer one, of which
    the queue is at a broker that hangs then. The client lacks nothing of what has been published
    meanwhile."""
    row, first, feed = parted(Row(3, routing=routing, meshed=True))
    second = row.connect(2)
    assert not second.present
    second.subscribe("a")
    second.leave()
    row.world.heal()
    row.until(lambda: row.node(1).cluster.posted_sessions.elsewhere("c"), 20.0)
    third = row.connect(1)
    row.host(2).pause()
    assert third.present
    row.run(12.0)
    row.host(2).resume()
    settle(row, feed)
    judge(feed, first, second, third)
