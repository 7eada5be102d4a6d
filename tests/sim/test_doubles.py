"""Brokers with two standbys: a broker dies, and its first standby after it. Rules that are left
out, one each, which these stories have to find.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from mqttree.broker.cluster.directory import link_state_directory
from mqttree.broker.cluster.sessions import posted_sessions
from mqttree.broker.cluster.sessions.posted_sessions import PostedSessions
from mqttree.broker.persistence.fences import Fences
from mqttree.broker.persistence.succession import Succession, Successor
from tests.kit.core import needs_python
from tests.sim.clients import Ledger, SimClient
from tests.sim.mutants import Mutant, leaves_out
from tests.sim.successions import Refugee, play, standbys_of, standing
from tests.sim.test_durability import check, check_order
from tests.sim.world import Host, World


def doubled(
    seed: int, count: int = 4, routing: str = "flood"
) -> tuple[World, Ledger, Host, list[Host], list[Host]]:
    """A world in which each broker has two standbys; returns the first one, its standbys, and the
    others, too."""
    world = standing(seed, count, 2, routing)
    owner = world.hosts[0]
    standbys = standbys_of(owner)
    assert len(standbys) == 2
    others = [host for host in world.hosts if host not in (owner, *standbys)]
    return world, Ledger(), owner, standbys, others


def leaving(world: World, ledger: Ledger, owner: Host, seconds: float) -> Refugee:
    """A client with a session at the `owner` that has just left, for so many `seconds`."""
    client = Refugee(world, ledger, "c", owner, clean=False, filters=[("t", 2)])
    client.connect()
    world.run(1.0)
    client.leave_for(seconds)
    world.run(0.2)
    return client


@pytest.mark.parametrize("after", [0.0, 0.05, 0.5, 1.5, 2.2, 3.0])
@pytest.mark.parametrize("routing", ["flood", "interest", "topic"])
def test_sessions_outlive_their_broker_and_its_first_standby(
    routing: str, after: float, away: float = 8.0
) -> None:
    """Absent clients find them, with their queues, also at the time in which they are adopted."""
    world, ledger, owner, (first, second), (other,) = doubled(1, routing=routing)
    clients = [
        Refugee(world, ledger, f"c{number}", owner, clean=False, filters=[("t", 2)])
        for number in range(12)
    ]
    publisher = Refugee(world, ledger, "p", other, clean=False)
    for client in (*clients, publisher):
        client.connect()
    world.run(1.0)
    for client in clients:
        client.leave_for(away)
    for _ in range(5):
        publisher.publish("t", 2)
    world.run(1.0)
    owner.kill(reset=True)
    publisher.publish("t", 2)
    world.run(after)
    first.kill(reset=True)
    publisher.publish("t", 2)
    world.run(12.0)
    for client in clients:
        assert client.host in (second, other)
        check(world, ledger, client)
        check_order(world, ledger, client)
    assert not world.violations


@pytest.mark.parametrize("after", [1.0, 3.5])
@pytest.mark.parametrize("seed", range(3))
def test_a_will_is_published_once(seed: int, after: float) -> None:
    """By the first standby, or by the second one if the first has died before."""
    world, ledger, owner, (first, _), (other,) = doubled(seed)
    listener = SimClient(world, ledger, "l", other, filters=[("will", 2)])
    device = SimClient(world, ledger, "d", owner, clean=False, will=("will", 2, False))
    listener.connect()
    device.connect()
    world.run(2.0)
    owner.kill(reset=True)
    world.run(after)
    first.kill(reset=True)
    world.run(8.0)
    assert len(listener.got) == 1


@pytest.mark.parametrize("seed", range(3))
def test_an_owner_hears_from_the_second_standby_what_the_first_has_given_away(seed: int) -> None:
    """It hung meanwhile, and has its client's connection still."""
    world, ledger, owner, (first, second), (other,) = doubled(seed)
    client = Refugee(world, ledger, "c", owner, clean=False, filters=[("t", 2)])
    publisher = Refugee(world, ledger, "p", other, clean=False)
    client.connect()
    publisher.connect()
    world.run(1.0)
    owner.pause()
    client.publish("t", 2)  # it is not read
    world.run(2.5)
    client.flee("hop")
    assert client.host is not owner
    if client.host is first:
        client.host = other
    world.run(0.3)
    first.kill(reset=True)
    world.run(0.05)
    owner.resume()
    world.run(6.0)
    publisher.publish("t", 2)
    world.run(2.0)
    check(world, ledger, client)
    assert not world.violations
    counters = [host.running.counters for host in (owner, second)]
    assert sum(each.fences for each in counters) >= 1


@pytest.mark.parametrize("seed", range(3))
def test_the_second_standby_takes_no_place_as_long_as_the_first_lives(seed: int) -> None:
    """It drops the image when the first one has taken care of all sessions."""
    world, ledger, owner, (first, second), _ = doubled(seed)
    leaving(world, ledger, owner, 1e6)
    owner.kill(reset=True)
    world.run(10.0)
    assert "c" in first.running.sessions
    assert (first.running.counters.promotions, second.running.counters.promotions) == (1, 0)
    assert owner.id in second.running.images.valid()
    world.run(70.0)
    assert owner.id not in second.running.images.valid()


def test_a_first_standby_that_starts_again_has_no_image() -> None:
    """The second one takes the owner's place, although the first can be reached."""
    world, ledger, owner, (first, _), _ = doubled(2)
    client = leaving(world, ledger, owner, 1.0)
    first.kill(reset=True)
    owner.kill(reset=True)
    world.run(0.02)
    first.start()
    world.run(8.0)
    assert (client.state, client.session) == ("up", 1)


# -------------------------------------------------------------------- rules that are left out


def asks_the_first_alone(patch: Mutant) -> None:
    """The second standby is not asked."""
    found = link_state_directory.standbys_of
    patch.setattr(posted_sessions, "standbys_of", lambda *of: found(*of)[:1])


def counts_any_incarnation(patch: Mutant) -> None:
    """A first standby that has started again counts as one with the image."""

    def wrong(database: Any, broker_id: bytes) -> list[bytes]:
        entry = database.entry(broker_id, link_state_directory.STANDBY)
        return [each.id for each in link_state_directory.decode_posted(entry)[1]]

    patch.setattr(PostedSessions, "standbys", lambda self, of: wrong(self._directory.database, of))


def does_not_wait_for_the_first(patch: Mutant) -> None:
    """The second takes the owner's place at once, too."""
    patch.setattr(Succession, "_ahead", lambda self, owner: [])


def forgets_a_taker(patch: Mutant) -> None:
    """DONE of an adoption ends what a client's broker is still taking."""

    def wrong(self: Succession, asked: Any) -> bool:
        self._lent.pop(asked.client_id, None)
        return done(self, asked)

    done = Succession._done
    patch.setattr(Succession, "_done", wrong)


def holds(seed: int) -> None:
    """Check a schedule."""
    assert play(seed, "doubles") == []


OUTLIVE = test_sessions_outlive_their_broker_and_its_first_standby

MUTANTS: list[tuple[Callable[[Mutant], None], Callable[[], None]]] = [
    (asks_the_first_alone, partial(OUTLIVE, "flood", 0.5, away=2.0)),
    (counts_any_incarnation, test_a_first_standby_that_starts_again_has_no_image),
    (
        does_not_wait_for_the_first,
        partial(test_the_second_standby_takes_no_place_as_long_as_the_first_lives, 0),
    ),
    # The first keeps its claims for itself.
    (leaves_out(Fences, "_relay"), partial(test_a_will_is_published_once, 0, 3.5)),
    # The second does not heed what the first has made of it.
    (leaves_out(Successor, "inherit"), partial(test_a_will_is_published_once, 0, 3.5)),
    # DONE for the session that is here ends the one in an image.
    (leaves_out(Succession, "_own_copy", 0), partial(OUTLIVE, "flood", 2.2)),
    (forgets_a_taker, partial(holds, 136)),
]
"""Faults, each with a story that shows it."""


@pytest.mark.parametrize(
    ("plant", "story"), MUTANTS, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_fault_is_found(
    plant: Callable[[Mutant], None], story: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_python("the faults are planted in methods")
    with Mutant(monkeypatch) as mutant:
        plant(mutant)
        with pytest.raises(AssertionError):
            story()
