"""Each mend of what outages and kills in merges broke, taken out again: drawn schedules have to say
so. Those of `test_outages.ONCE_BAD`, and some that were looked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mqttree.broker.cluster.delivery.answers import Answers
from mqttree.broker.cluster.delivery.gap_recovery import GapRecovery
from mqttree.broker.cluster.retained_comparison import RetainedComparison
from mqttree.broker.cluster.retained_sync import RetainedSync
from mqttree.broker.cluster.sharing.shared_subscriptions import SharedSubscriptions
from mqttree.broker.core.message import Message
from mqttree.broker.persistence.absent_members import AbsentMembers
from mqttree.broker.persistence.durable_sessions import DurableSessions
from mqttree.broker.persistence.log_tail import LogTail
from tests.sim.mutants import Mutant, leaves_out
from tests.sim.outages import run_outage

Plant = Callable[[Mutant], None]


def deletes_the_tail(patch: Mutant) -> None:
    """At a start, as soon as one broker is not away any more."""
    forget = LogTail._forget_broker

    def wrong(self: LogTail, broker_id: bytes) -> None:
        forget(self, broker_id)
        if not any(True for _ in self._away()):
            self._drop_all()

    patch.setattr(LogTail, "_forget_broker", wrong)


def keeps_nothing_for_groups(patch: Mutant) -> None:
    patch.setattr(AbsentMembers, "pieces", lambda self, broker_id: iter(()))


def forgets_claims(patch: Mutant) -> None:
    patch.setattr(AbsentMembers, "patience", lambda self, least: least)


def knows_no_member(patch: Mutant) -> None:
    """An origin that the directory does not know is waited for one second only."""
    longest = GapRecovery._longest

    def wrong(self: GapRecovery, feed: object) -> float:
        self._is_member = lambda broker_id: False
        return longest(self, feed)  # type: ignore[arg-type]

    patch.setattr(GapRecovery, "_longest", wrong)


def brings_old_retained_messages(patch: Mutant) -> None:
    """As if no tail had what is older than the log."""
    patch.setattr(
        RetainedSync, "_oldest", lambda self, now: self.clock.physical(now) - 420.0 * 1000
    )


def takes_twins_for_others(patch: Mutant) -> None:
    """What a session had at other brokers is not known after a restart."""
    patch.setattr(DurableSessions, "delivered_elsewhere", lambda self, session: {})


def gives_to_nobody(patch: Mutant) -> None:
    """An old message for a group whose members went counts as given."""
    give_late = SharedSubscriptions.give_late

    def wrong(self: SharedSubscriptions, group_id: bytes, message: Message) -> bool:
        give_late(self, group_id, message)
        return True

    patch.setattr(SharedSubscriptions, "give_late", wrong)


def seeds(*numbers: int, story: str = "") -> Callable[[], bool]:
    return lambda: any(run_outage(seed, story=story).violations for seed in numbers)


MUTANTS: dict[str, tuple[Plant, Callable[[], bool]]] = {
    # At a start nobody is away but those whom the tail names.
    "knows of nobody at a start": (leaves_out(AbsentMembers, "expect"), seeds(*range(40, 60))),
    # A debt that is paid is not recorded as paid.
    "leaves a paid debt in the journal": (
        leaves_out(DurableSessions, "record_owed"),
        seeds(10018, 10205),
    ),
    "deletes the tail at a start": (deletes_the_tail, seeds(1613)),
    "gives groups nothing of the tail": (keeps_nothing_for_groups, seeds(92, 172)),
    "forgets claims after 120 s": (forgets_claims, seeds(92)),
    "waits for a known origin for one second": (knows_no_member, seeds(1106, story="join")),
    "takes retained messages of the tail for new": (brings_old_retained_messages, seeds(2282)),
    "takes a twin for another session": (takes_twins_for_others, seeds(1871, story="merge")),
    "gives old messages to members that went": (gives_to_nobody, seeds(406490)),
    # Neighbours are not compared with after an answer brought a retained message.
    "keeps retained messages of answers to itself": (
        leaves_out(RetainedComparison, "kept"),
        seeds(504674),
    ),
    "takes what is before a piece for old": (leaves_out(Answers, "_past"), seeds(100252)),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mend_that_is_taken_out_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, caught = MUTANTS[name]
    with Mutant(monkeypatch) as mutant:
        plant(mutant)
        assert caught()
