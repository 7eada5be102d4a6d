"""Brokers with one fault each, under the schedules that look for it: some seed of the first few has to say so.

Each is a fault that the checkers once excused, or could have: they judge by what the world did, not by what brokers say of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.fanout import Fanout
from broker.merging import Merging
from broker.moving import Moving
from broker.propagation import Propagation
from broker.release import Release
from broker.repeats import Repeats
from broker.session import Session
from broker.streams import Streams
from tests.sim import test_durability
from tests.sim.test_relays import Relays
from tests.sim.test_sessions import Roaming
from tests.unit.journal_harness import Files

Patch = pytest.MonkeyPatch
Found = list[tuple[str, str]]


def gives_up_at_once(patch: Patch) -> None:
    """Feeds hold what came for 50 ms instead of five seconds."""
    patch.setattr(Streams, "_longest", lambda self, stream: 0.05)


def answers_at_once(patch: Patch) -> None:
    """SUBACK is sent when the filter is posted."""
    expect = Propagation.expect

    def wrong(self: Propagation, filters: Any, then: Any) -> bool:
        if expect(self, filters, lambda now: None):
            self._waiters.clear()
        return False

    patch.setattr(Propagation, "expect", wrong)


def releases(patch: Patch, change: Callable[[list[Any]], list[Any]]) -> None:
    """What feeds held, and what origins answered, is delivered otherwise."""
    step, ways = Release._step, {Fanout: ("publish", Fanout.publish), Repeats: ("deliver", Repeats.deliver)}

    def wrong(self: Release, *arguments: Any) -> bool:
        found: list[Any] = []
        for owner, (name, call) in ways.items():
            patch.setattr(owner, name, lambda *rest, call=call: found.append((call, rest)))
        try:
            return step(self, *arguments)
        finally:
            for owner, (name, call) in ways.items():
                patch.setattr(owner, name, call)
            for call, rest in change(found):
                call(*rest)

    patch.setattr(Release, "_step", wrong)


def drops_some(patch: Patch) -> None:
    """Every third of what is released together is lost."""
    releases(patch, lambda found: [rest for number, rest in enumerate(found, 1) if number % 3])


def releases_backwards(patch: Patch) -> None:
    releases(patch, lambda found: found[::-1])


def delivers_again(patch: Patch) -> None:
    """What a session gets from a log when it has moved, it gets twice."""
    offer = Moving._offer

    def wrong(self: Moving, session: Session, message: Any) -> None:
        offer(self, session, message)
        if message.qos == 2:
            offer(self, session, message)

    patch.setattr(Moving, "_offer", wrong)


def forgets_what_was_left_behind(patch: Patch) -> None:
    """What waits in an older session of a client is thrown away."""
    patch.setattr(Merging, "absorb", lambda self, session, old, now: None)


def forgets_the_last_record(patch: Patch) -> None:
    """A journal loses the end of its last file when it is read."""
    image = Files.image

    def wrong(self: Files, cut: int | None = None) -> Any:
        return image(self, -1 if self.generations and len(self.generations[max(self.generations)]) > 64 else None)

    patch.setattr(Files, "image", wrong)


def relays() -> Iterator[Found]:
    for seed in range(6):
        yield Relays(seed, just_behind=bool(seed % 2)).run().violations


def roams() -> Iterator[Found]:
    for seed in range(4):
        yield Roaming(seed, routing=("interest", "topic")[seed % 2]).run().violations


def leaves_behind() -> Iterator[Found]:
    for routing, seed in (("topic", 64019), ("interest", 65011), ("flood", 67031)):
        yield Roaming(seed, routing=routing).run().violations


def journals() -> Iterator[Found]:
    for seed in range(6):
        yield test_durability.play(seed)


MUTANTS: dict[str, tuple[Callable[[Patch], None], Callable[[], Iterator[Found]], str]] = {
    "gives feeds up after 50 ms": (gives_up_at_once, relays, "order"),
    "SUBACK at once": (answers_at_once, relays, "lost"),
    "drops every third held message": (drops_some, relays, "lost"),
    "releases out of order": (releases_backwards, relays, "order"),
    "delivers twice after a takeover": (delivers_again, roams, "QoS 2 twice"),
    "throws older sessions away": (forgets_what_was_left_behind, leaves_behind, "left behind"),
    "forgets the journal's last record": (forgets_the_last_record, journals, "lost"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str, monkeypatch: Patch) -> None:
    plant, schedules, kind = MUTANTS[name]
    plant(monkeypatch)
    assert any(found == kind for violations in schedules() for found, _ in violations)
