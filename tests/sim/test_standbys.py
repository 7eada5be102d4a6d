"""Standbys in simulation: what streams and images have to keep, and brokers with one fault each,
which the checkers have to find.

SEEDS=n runs n schedules instead of the default, FIRST=k begins with seed k.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from mqttree.broker.persistence.images import StandbyImage
from mqttree.broker.persistence.journal import Journal
from mqttree.broker.persistence.stream import NEVER, Stream, Target
from mqttree.broker.persistence.stream_states import State
from tests.kit.core import needs_python
from tests.sim.devices import run_devices
from tests.sim.mutants import Mutant
from tests.sim.outages import run_outage
from tests.sim.schedule import Result, run_seed
from tests.sim.standbys import StandbySchedule, run_standbys
from tests.sim.strains import run_strain
from tests.sim.world import World

SEEDS = int(os.environ.get("SEEDS", "8"))
FIRST = int(os.environ.get("FIRST", "0"))


@pytest.fixture(autouse=True)
def python() -> None:
    needs_python("checkers look into streams and images")


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_output_waits_for_standbys_and_images_are_right(seed: int) -> None:
    assert run_standbys(seed).violations == []


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_output_waits_for_two_standbys(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandbySchedule, "replicas", 2)
    assert run_standbys(seed).violations == []


@pytest.mark.parametrize(
    ("run", "seed"),
    [(run_seed, seed) for seed in (7001, 7057, 7273, 41018, 90000)]
    + [(run_strain, 70002)]
    + [(run_outage, seed) for seed in (70000, 70001, 70002, 7027, 43149, 81094)]
    + [(run_devices, seed) for seed in (80025, 80043, 71018, 72063)],
)
def test_other_schedules_hold_with_standbys(
    run: Callable[[int], Result], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A will that is published while its client stays (7001), a broker that is succeeded twice
    (7057), a neighbour that is known before any filter or path changes (7273), messages of 20 MB on
    slow links (70002), devices at a broker that is cut off (80025), or hangs: those that connect in
    its doubt (71018), or elsewhere meanwhile (72063). What a broker's disk lacks and its standby
    has (7027), also in flight (43149), and to a member of a group (81094); what is wanted behind a
    standby and not at it, and its broker is back soon (41018)."""
    monkeypatch.setattr(World, "replicas", 1)
    assert run(seed).violations == []


def test_schedules_compare_images_and_change_standbys() -> None:
    schedule = StandbySchedule(1)
    schedule.run()
    assert schedule.standbys.compared > 20
    assert schedule.standbys.synced > 3


def waits_for_nobody(patch: Mutant) -> None:
    """Output waits for the disk alone."""
    weigh = Stream._weigh

    def wrong(self: Stream) -> None:
        weigh(self)
        self.lsn = NEVER

    patch.setattr(Stream, "_weigh", wrong)


def waits_for_one_of_two(patch: Mutant) -> None:
    """Output waits for the standby that is faster."""
    weigh = Stream._weigh

    def wrong(self: Stream) -> None:
        weigh(self)
        if self.state is State.SYNCED:
            self.lsn = max(standby.lsn for standby in self.standbys)

    patch.setattr(StandbySchedule, "replicas", 2)
    patch.setattr(Stream, "_weigh", wrong)


def goes_on_before_it_is_posted(patch: Mutant) -> None:
    """What one of two had that is lost does not count from then on."""
    lose = Stream._lose

    def wrong(self: Stream, target: Target, why: str, *, slow: bool = False) -> None:
        target.lsn = NEVER
        lose(self, target, why, slow=slow)

    patch.setattr(StandbySchedule, "replicas", 2)
    patch.setattr(Stream, "_lose", wrong)


def numbers_messages_once(patch: Mutant) -> None:
    """A stream refers to messages that came before it."""
    patch.setattr(Journal, "everything", lambda self: self._everything())


def skips_a_frame(patch: Mutant) -> None:
    """The standby says that it has a frame that it has not applied."""
    apply = StandbyImage.apply

    def wrong(self: StandbyImage, lsn: int, frame: bytes) -> None:
        if lsn % 50:
            apply(self, lsn, frame)
        else:
            self.lsn = lsn

    patch.setattr(StandbyImage, "apply", wrong)


def ends_at_once(patch: Mutant) -> None:
    """The first frame counts as the whole snapshot."""
    patch.setattr(Target, "may_end", property(lambda self: not self.end and self.lsn > self._first))


MUTANTS: list[tuple[Callable[[Mutant], None], str]] = [
    (waits_for_nobody, "let out"),
    (waits_for_one_of_two, "let out"),
    (goes_on_before_it_is_posted, "let out"),
    (numbers_messages_once, "image fault"),
    (skips_a_frame, "image"),
    (ends_at_once, "image"),
]


@pytest.mark.parametrize(
    ("plant", "kind"), MUTANTS, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_fault_is_found(plant: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Mutant(monkeypatch) as mutant:
        plant(mutant)
        for seed in range(12):
            if any(found == kind for found, _ in run_standbys(seed).violations):
                return
    raise AssertionError(f"no schedule found {plant.__name__}")
