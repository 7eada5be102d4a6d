"""A subscription that was made while an origin could not be asked, and went with its session: to
the journal of a broker that was killed, or to another broker. What was published before it is still
not for it, what was published after it is."""

from __future__ import annotations

import pytest

from tests.sim.disk import Disk
from tests.sim.test_position import Feed, judge, subscribed
from tests.sim.test_takeover import Client, Row


def parted(
    routing: str, count: int = 3, *, known: bool = True
) -> tuple[Row, Feed, Client, Client, float]:
    """A client that had what was published on the publisher's side of a split, and begins again on
    the other one."""
    row = Row(count, routing=routing, meshed=True)
    for index in (0, *range(2, count)):
        row.host(index).kill()
        disk = Disk(row.world, row.host(index), sync=False)
        row.world.on_start.append(
            lambda host, disk=disk: disk.started() if host is disk.host else None
        )
        row.host(index).start()
    row.join()
    for index in range(2, count) if known else ():
        row.connect(index, f"other{index}").subscribe(
            "a"
        )  # so that it knows the origin after a restart
    feed = Feed(row, 0)
    first, _ = subscribed(row, 1, expiry=0)
    row.run(0.5)
    row.world.partition([list(range(2, count))])
    row.run(3.0)
    first.leave()
    second, since = subscribed(row, 2)
    return row, feed, first, second, since


@pytest.mark.parametrize("routing", ["interest", "topic"])
@pytest.mark.parametrize("origin", [False, True])
def test_an_open_subscription_start_survives_the_kill_of_its_broker(
    routing: str, origin: bool
) -> None:
    """`origin`: so is the publisher's, and starts again with what its journal has."""
    row, feed, first, second, since = parted(routing)
    row.host(2).kill()
    row.run(0.5)
    row.host(2).start()
    row.run(1.0)
    third = row.connect(2)
    assert third.present
    if origin:
        feed.ended = True
        row.run(0.05)
        row.host(0).kill()
        row.run(0.5)
        row.host(0).start()
        row.run(0.5)
    row.world.heal()
    row.join()
    feed.end()
    assert not second.payloads
    judge(first, third, feed, since)


@pytest.mark.parametrize("routing", ["interest", "topic"])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("wait", [0.0, 0.03, 0.1])
def test_an_open_subscription_start_moves_with_its_session(
    routing: str, wait: float, known: bool
) -> None:
    """So long after the split's end. `known`: others there want what it wants, so that the origin
    is asked for it anyway."""
    row, feed, first, second, since = parted(routing, 4, known=known)
    second.leave()
    row.world.after(1.0, row.world.heal)
    row.run(1.0 + wait)
    third = row.connect(3)
    assert third.present
    row.join()
    feed.end()
    assert not second.payloads
    judge(first, third, feed, since)


@pytest.mark.parametrize("routing", ["interest", "topic"])
@pytest.mark.parametrize("killed", [False, True])
def test_an_open_subscription_start_survives_a_merge(routing: str, killed: bool) -> None:
    """`killed`: its broker meanwhile."""
    row, feed, first, second, since = parted(routing, 4)
    second.leave()
    row.world.partition([[2], [3]])
    row.run(3.0)
    third = row.connect(3)
    assert not third.present
    third.subscribe("a")
    if killed:
        row.host(2).kill()
        row.run(0.5)
        row.host(2).start()
    row.run(0.5)
    row.world.heal()
    row.join()
    row.until(lambda: row.node(3).counters.sessions_merged, 20.0)
    feed.end()
    row.one_session()
    got = third.payloads  # what waited comes behind what is newer
    assert not second.payloads
    assert not {*first.payloads} & {*got}, "had before"
    assert len(got) == len({*got}), "twice"
    assert not feed.since(since) - {*got}, "lost"
