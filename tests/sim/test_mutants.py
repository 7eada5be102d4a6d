"""Brokers with one fault each, under the schedules that look for it: some seed of the first few has
to say so.

Each is a fault that the checkers once excused, or could have: they judge by what the world did, not
by what brokers say of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mqttree.broker.cluster.delivery.gap_recovery import GapRecovery
from mqttree.broker.cluster.delivery.paced_release import PacedRelease
from mqttree.broker.cluster.delivery.remote_flow_control import RemoteFlowControl
from mqttree.broker.cluster.delivery.replay_log import NEVER, ReplayLog
from mqttree.broker.cluster.sessions.evaluated import Evaluated
from mqttree.broker.cluster.sessions.queue_merge import QueueMerge
from mqttree.broker.cluster.sessions.recently_elsewhere import RecentlyElsewhere
from mqttree.broker.cluster.sessions.takeover import Takeover
from mqttree.broker.cluster.sharing.assignments import Assignments
from mqttree.broker.cluster.strategy.subscription_barrier import SubscriptionBarrier
from mqttree.broker.core.connection import Connection
from mqttree.broker.core.session import Session
from mqttree.broker.limits import Limits
from tests.kit.journal_harness import Files
from tests.sim import test_durability
from tests.sim.mutants import Mutant, leaves_out
from tests.sim.strains import Strain, run_strain
from tests.sim.test_relays import Relays
from tests.sim.test_sessions import Roaming
from tests.sim.test_slow_links import broken_link
from tests.sim.world import World

Found = list[tuple[str, str]]


def gives_up_at_once(patch: Mutant) -> None:
    """Feeds hold what came for 50 ms instead of five seconds."""
    patch.setattr(GapRecovery, "_longest", lambda self, feed: 0.05)


def answers_at_once(patch: Mutant) -> None:
    """SUBACK is sent when the filter is posted."""
    expect = SubscriptionBarrier.expect

    def wrong(self: SubscriptionBarrier, filters: Any, then: Any, **options: bool) -> bool:
        if expect(self, filters, lambda now: None, **options):
            self._waiters.clear()
        return False

    patch.setattr(SubscriptionBarrier, "expect", wrong)


def waits_for_nobody(patch: Mutant) -> None:
    """A client goes on with an older session when its newest one does not come within a second, as
    links are slow, or begins a new one, whose SUBACK does not wait for what is on its way
    either."""
    patch.setattr(Takeover, "_has_to_wait", lambda self, pending, now: False)
    patch.setattr(RecentlyElsewhere, "elsewhere", lambda self, client_id: False)


def forgets_the_last_record(patch: Mutant) -> None:
    """A journal loses the end of its last file when it is read."""
    image = Files.image

    def wrong(self: Files, cut: int | None = None) -> Any:
        return image(
            self,
            -1 if self.segments and len(self.segments[max(self.segments)]) > 64 else None,
        )

    patch.setattr(Files, "image", wrong)


def counts_no_drops(patch: Mutant) -> None:
    """What is dropped because too much waits for a client is not counted."""
    append = Session._append

    def wrong(self: Session, *arguments: Any) -> Any:
        before = self.node.counters.dropped_queue_full
        found = append(self, *arguments)
        self.node.counters.dropped_queue_full = before
        return found

    patch.setattr(Session, "_append", wrong)


def drops_early(patch: Mutant) -> None:
    """5,000 messages wait for a client that is away, not 10,000."""
    patch.setattr(World, "limits", Limits(max_queued=5_000))


def trims_what_neighbours_lack(patch: Mutant) -> None:
    """The log keeps nothing for neighbours that have not acknowledged it."""
    trim = ReplayLog.trim

    def wrong(self: ReplayLog, *source: Connection) -> bool:
        floor, self.floor = self.floor, NEVER
        try:
            return trim(self, *source)
        finally:
            self.floor = floor

    patch.setattr(ReplayLog, "trim", wrong)


def holds_no_publisher(patch: Mutant) -> None:
    """All that is held is delivered at once, and no publisher waits for its subscribers."""
    patch.setattr(World, "limits", Limits(release_step=1 << 30))
    patch.setattr(PacedRelease, "_behind", lambda self, *_: False)
    for name in ("note", "note_for", "hold_origin"):
        patch.setattr(RemoteFlowControl, name, lambda self, *_: None)


def relays() -> Iterator[Found]:
    for seed in range(6):
        yield Relays(seed, just_behind=bool(seed % 2)).run().violations


def slow_roams() -> Iterator[Found]:
    for seed in (5500149, 7710005):
        yield run_strain(seed).violations


def split_roams() -> Iterator[Found]:
    for seed in (*range(7700000, 7700006), 7700010):
        yield Roaming(seed, routing="flood").run().violations


def leaves_behind() -> Iterator[Found]:
    for routing, seed in (("topic", 64019), ("interest", 65011), ("flood", 67031)):
        yield Roaming(seed, routing=routing).run().violations


def strains(load: str, *seeds: int) -> Callable[[], Iterator[Found]]:
    """Federations under load: seeds that show the fault, of the first 40."""
    return lambda: (Strain(seed, load=load).run().violations for seed in seeds)


def broken_links() -> Iterator[Found]:
    yield broken_link("topic").run().violations


def journals() -> Iterator[Found]:
    for seed in range(6):
        yield test_durability.play(seed)


MUTANTS: dict[str, tuple[Callable[[Mutant], None], Callable[[], Iterator[Found]], str]] = {
    "gives feeds up after 50 ms": (gives_up_at_once, relays, "order"),
    "SUBACK at once": (answers_at_once, relays, "lost"),
    # The queue of an older session is added, whether the newer one has had it or not.
    "adds all of an older session": (
        leaves_out(Evaluated, "had", False),
        split_roams,
        "QoS 2 twice",
    ),
    "goes on with an older session at once": (waits_for_nobody, slow_roams, "QoS 2 twice"),
    # The queue of an older session of a client is thrown away.
    "throws older sessions away": (leaves_out(QueueMerge, "absorb"), leaves_behind, "left behind"),
    "drops for who is away uncounted": (counts_no_drops, strains("away", 0), "uncounted"),
    "drops for who is away beyond 5,000": (drops_early, strains("away", 0), "too few"),
    "delivers what is held at once": (
        holds_no_publisher,
        strains("fast", 24, 35, *range(8)),
        "lost",
    ),
    "trims what neighbours lack": (trims_what_neighbours_lack, broken_links, "lost"),
    "gives shared messages once": (
        # What was given to members at a broker that dies is not given again.
        leaves_out(Assignments, "given"),
        strains("", 21, 33, *range(8)),
        "lost",
    ),
    "forgets the journal's last record": (forgets_the_last_record, journals, "lost"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, schedules, kind = MUTANTS[name]
    with Mutant(monkeypatch) as mutant:
        plant(mutant)
        assert any(found == kind for violations in schedules() for found, _ in violations)
