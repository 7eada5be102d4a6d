"""Each mend of what outages and kills in merges broke, taken out again: the schedules have to say
so. Those of `test_outages.ONCE_BAD`, and some that were looked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mqttree.broker.base.sequence_set import Ranges
from mqttree.broker.cluster.cluster import Cluster
from mqttree.broker.cluster.delivery.answers import Answers
from mqttree.broker.cluster.delivery.forwarder import Forwarder
from mqttree.broker.cluster.delivery.gap_recovery import GapRecovery
from mqttree.broker.cluster.retained_comparison import RetainedComparison
from mqttree.broker.cluster.retained_sync import RetainedSync
from mqttree.broker.cluster.sessions.evaluated import Evaluated
from mqttree.broker.cluster.sharing.shared_subscriptions import SharedSubscriptions
from mqttree.broker.core.message import Message
from mqttree.broker.core.session import Session
from mqttree.broker.persistence.absent_members import AbsentMembers
from mqttree.broker.persistence.durable_sessions import DurableSessions
from mqttree.broker.persistence.log_tail import LogTail
from mqttree.broker.persistence.recovery import Recovery
from tests.sim import test_outages
from tests.sim.mutants import Mutant
from tests.sim.outages import run_outage
from tests.sim.test_debts import Owed
from tests.sim.test_outages import EVENTS
from tests.unit.persistence import test_log_tail

Plant = Callable[[Mutant], None]


def meets_nobody(patch: Mutant) -> None:
    """Having met others is not kept: a broker that is alone for 10 s keeps nothing for them."""
    sweep = Cluster._sweep

    def wrong(self: Cluster, now: float) -> None:
        self.expects_others = False
        sweep(self, now)

    patch.setattr(Cluster, "_sweep", wrong)


def expects_nobody(patch: Mutant) -> None:
    """At a start nobody is away but those whom the tail names."""
    patch.setattr(AbsentMembers, "expect", lambda self, broker_ids, since: None)


def sees_nothing_at_a_start(patch: Mutant) -> None:
    """What has been seen of others is restored where there are sessions only."""
    see = Recovery._see

    def wrong(self: Recovery) -> None:
        if self.node.sessions:
            see(self)

    patch.setattr(Recovery, "_see", wrong)


def records_no_debts(patch: Mutant) -> None:
    patch.setattr(Evaluated, "owed", lambda self, session: {})


def owes_everybody(patch: Mutant) -> None:
    """What one session is owed is delivered to all."""
    patch.setattr(Evaluated, "owe", lambda self, session, key, ranges: None)


def forgets_debts(patch: Mutant) -> None:
    """After 120 s, as if no log had the messages any more."""
    owe = Evaluated.owe

    def wrong(self: Evaluated, session: Session, key: bytes, ranges: Ranges) -> None:
        owe(self, session, key, ranges)
        node = self._node

        def forget(now: float) -> None:
            self._owed.pop(key, None)

        node.timers.schedule(node.now + 120.0, forget)

    patch.setattr(Evaluated, "owe", wrong)


def leaves_debts_in_the_journal(patch: Mutant) -> None:
    """A debt that is paid is not recorded as paid."""
    patch.setattr(DurableSessions, "record_owed", lambda self, key: None)


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


def forgets_quiet_origins(patch: Mutant) -> None:
    patch.setattr(Forwarder, "_expected", lambda self, keys: set())


def brings_old_retained_messages(patch: Mutant) -> None:
    """As if no tail had what is older than the log."""
    patch.setattr(
        RetainedSync, "_oldest", lambda self, now: self.clock.physical(now) - 420.0 * 1000
    )


def takes_twins_for_others(patch: Mutant) -> None:
    """What a session had at other brokers is not known after a restart."""
    patch.setattr(DurableSessions, "delivered_elsewhere", lambda self, session: {})


def counts_from_the_first_absence(patch: Mutant) -> None:
    member_gone = AbsentMembers.member_gone

    def wrong(self: AbsentMembers, event: object) -> None:
        since = {broker_id: absent.since for broker_id, absent in self.absent.items()}
        member_gone(self, event)  # type: ignore[arg-type]
        for broker_id, at in since.items():
            self.absent[broker_id].since = at

    patch.setattr(AbsentMembers, "member_gone", wrong)


def takes_what_is_before_a_piece_for_old(patch: Mutant) -> None:
    patch.setattr(Answers, "_past", lambda self, key: None)


def lacks_since_the_last_absence(patch: Mutant) -> None:
    """What is put back into the log at a start counts from when a broker was there last."""
    patch.setattr(
        AbsentMembers,
        "earliest",
        lambda self: min((absent.since for absent in self.absent.values()), default=None),
    )


def gives_to_nobody(patch: Mutant) -> None:
    """An old message for a group whose members went counts as given."""
    give_late = SharedSubscriptions.give_late

    def wrong(self: SharedSubscriptions, group_id: bytes, message: Message) -> bool:
        give_late(self, group_id, message)
        return True

    patch.setattr(SharedSubscriptions, "give_late", wrong)


def keeps_answers_to_itself(patch: Mutant) -> None:
    """Neighbours are not compared with after an answer brought a retained message."""
    patch.setattr(RetainedComparison, "kept", lambda self, now: None)


def seeds(*numbers: int, story: str = "") -> Callable[[], bool]:
    return lambda: any(run_outage(seed, story=story).violations for seed in numbers)


def raises(test: Callable[[], object]) -> Callable[[], bool]:
    """Whether a test of `test_outages`, `test_debts` or `test_log_tail` fails."""

    def caught() -> bool:
        try:
            test()
        except AssertionError:
            return True
        return False

    return caught


def alone(number: int) -> Callable[[], bool]:
    name = list(EVENTS)[number]
    return raises(
        lambda: test_outages.test_a_broker_that_is_alone_keeps_what_the_others_lack(name, "topic")
    )


def owed(
    restarts: int, wait: float = 0.0, *, beside: bool = True, emptied: bool = True
) -> Callable[[], bool]:
    def story() -> None:
        told = Owed("topic", beside=beside, emptied=emptied)
        told.row.run(wait)
        for _ in range(restarts):
            told.restart(2, "c", *["beside"] * beside)
        told.end()

    return raises(story)


def quiet() -> None:
    test_outages.test_an_origin_that_was_quiet_before_an_outage_loses_nothing("topic")


MUTANTS: dict[str, tuple[Plant, Callable[[], bool]]] = {
    "keeps nothing after ten seconds": (meets_nobody, alone(0)),
    "knows of nobody at a start": (expects_nobody, seeds(*range(40, 60))),
    "records no debts": (records_no_debts, owed(1)),
    "delivers a debt to all": (owes_everybody, owed(0)),
    "forgets a debt after 120 s": (forgets_debts, owed(0, 400.0)),
    "leaves a paid debt in the journal": (leaves_debts_in_the_journal, seeds(10018, 10205)),
    "deletes the tail at a start": (deletes_the_tail, seeds(1613)),
    "gives groups nothing of the tail": (keeps_nothing_for_groups, seeds(92, 172)),
    "forgets claims after 120 s": (forgets_claims, seeds(92)),
    "waits for a known origin for one second": (knows_no_member, seeds(1106, story="join")),
    "forgets quiet origins": (forgets_quiet_origins, raises(quiet)),
    "takes retained messages of the tail for new": (brings_old_retained_messages, seeds(2282)),
    "takes a twin for another session": (takes_twins_for_others, seeds(1871, story="merge")),
    "counts an hour from the first absence": (
        counts_from_the_first_absence,
        raises(test_outages.test_an_hour_counts_from_when_a_broker_was_there_last),
    ),
    "puts back what the last absence lacks": (
        lacks_since_the_last_absence,
        raises(
            test_log_tail.test_a_broker_that_was_back_for_a_moment_lacks_messages_since_it_went_first
        ),
    ),
    "gives old messages to members that went": (gives_to_nobody, seeds(406490)),
    "keeps retained messages of answers to itself": (keeps_answers_to_itself, seeds(504674)),
    "takes what is before a piece for old": (
        takes_what_is_before_a_piece_for_old,
        seeds(100252),
    ),
    "restores nothing without a session": (
        sees_nothing_at_a_start,
        raises(lambda: test_outages.test_a_broker_without_sessions_knows_the_others("topic")),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mend_that_is_taken_out_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, caught = MUTANTS[name]
    with Mutant(monkeypatch) as mutant:
        plant(mutant)
        assert caught()
