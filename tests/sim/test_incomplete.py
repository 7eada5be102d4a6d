"""A session moves, or is merged, while its broker lacks some of what was published for it, and no
broker has noticed."""

from __future__ import annotations

from tests.sim.test_merge import away, judge, kept_row
from tests.sim.test_position import Feed
from tests.sim.test_takeover import Row
from tests.sim.world import End


def swallow(row: Row, a: int, b: int) -> None:
    """Have the link between two brokers swallow everything: it is noticed after two seconds."""
    for end in row.world.streams.values():
        if isinstance(end, End) and {end.host, end.peer.host} == {row.host(a), row.host(b)}:
            end.black = True


def direct(row: Row, a: int, b: int) -> bool:
    """Whether what two brokers say to each other takes the link between them."""
    ends = [row.host(number).node.cluster for number in (a, b)]
    return all(
        one.directory.database.listings[other.own.id].via == other.own.id
        for one, other in (ends, ends[::-1])
    )


def test_a_session_that_moves_gets_what_a_faulty_link_swallowed() -> None:
    """The client goes before its broker can know that something is missing, and no client of the
    next one wanted it."""
    rows = (Row(3, seed, routing="topic", meshed=True) for seed in range(20))
    # Otherwise the request for the session would be swallowed, too.
    row = next(one for one in rows if direct(one, 0, 1))
    first = away(row)
    feed = Feed(row, 2)
    row.run(0.3)
    swallow(row, 1, 2)
    row.run(0.3)
    second = row.client(0)
    row.until(lambda: second.connacks, 6.0)
    assert second.present
    row.run(3.0)
    feed.end()
    judge(feed, first, second)
    assert second.payloads == sorted(second.payloads)
    row.one_session()


def test_a_session_from_a_journal_keeps_its_subscription_start() -> None:
    """Its broker published before it subscribed, and was killed: an older session has that, and it
    is not taken for its own."""
    row = kept_row("topic")
    away(row)
    row.world.partition([[1]])
    row.run(6.0)
    row.connect(2, "p").publish("a", b"before")
    row.run(0.1)
    second = row.connect(2).subscribed("a")
    row.connect(2, "q").publish("a", b"after")
    row.run(0.1)
    second.cut()
    row.host(2).kill()
    row.run(0.5)
    row.host(2).start()
    third = row.connect(2)
    row.world.heal()
    row.join()
    row.run(3.0)
    row.one_session()
    assert second.payloads + third.payloads == [b"after", b"before"]


def test_merged_sessions_get_what_their_broker_still_lacked() -> None:
    """It was published after the older one subscribed and before the newer one did; the broker of
    both lacks it as they meet."""
    row = Row(3, routing="topic", meshed=True)
    first = away(row)
    feed = Feed(row, 0)
    row.run(0.3)
    swallow(row, 0, 1)
    row.host(1).pause()
    second = row.client(2)
    row.until(lambda: second.connacks)
    assert not second.present
    row.host(1).resume()
    second.subscribe("a")
    second.cut()
    third = row.client(1)
    row.until(lambda: third.connacks, 6.0)
    row.run(3.0)
    feed.end()
    got = [*first.payloads, *second.payloads, *third.fresh(second.payloads)]
    assert len(got) == len(set(got)), "twice"
    assert not set(feed.sent) - set(got), "lost"
    row.one_session()
