"""Every constant of time in cluster, persistence and discovery, and what it may cut short.

`PROMISES` has those after which something is given up, taken for gone or for granted: below the
words of docs/promises.md that they could break, and a test that shows that they do not. `PACES`
has all others: how often something is done, how soon it is repeated, how long one waits before the
same is done in another way. Longer or shorter, they cost time and work, and no message.

A new constant fails here until it is entered.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mqttree.broker.limits import DEFAULTS
from mqttree.discovery.effects import MembershipConfig
from tests.kit.source import parse

ROOT = Path(__file__).parents[2]
DISCOVERY = MembershipConfig()
FOLDERS = ("broker/cluster", "broker/persistence", "discovery")
FILES = ("broker/base/hybrid_clock.py", "broker/core/flow_control.py")
"""What these folders read of others."""
UNITS = re.compile(r"(s|ms|Seconds)\b")
"""How the docstring of a time begins."""

PROMISES: dict[tuple[str, str], dict[str, float]] = {
    (
        "however long the broker is alone",
        "test_a_broker_that_is_alone_keeps_what_the_others_lack",
    ): {
        "settings.forget_after": 300.0,
    },
    ("The order also holds through repairs", "test_the_tree_is_repaired_after_cuts_and_kills"): {
        "mqttree.broker.cluster.link_registry.SUSPENDED_S": 1.0,
    },
    (
        "It does so across restarts of both brokers, in any order",
        "test_a_broker_that_is_alone_keeps_what_the_others_lack",
    ): {
        "mqttree.broker.cluster.cluster.ALONE_S": 10.0,
    },
    ("an hour", "test_an_origin_that_was_quiet_before_an_outage_loses_nothing"): {
        "mqttree.broker.cluster.delivery.forwarder.FORGET_S": 3600.0,
    },
    ("The order also holds through repairs", "test_outages_that_once_broke_a_promise_keep_it"): {
        "mqttree.broker.cluster.delivery.gap_recovery.UNKNOWN_ORIGIN_S": 1.0,
    },
    (
        "reaches subscribers elsewhere within a second",
        "test_the_last_messages_of_a_broker_that_dies_are_not_waited_for",
    ): {
        "mqttree.broker.cluster.delivery.gap_recovery.SUCCEEDED_S": 0.2,
    },
    (
        "The disk keeps what no longer fits into the memory",
        "test_an_outage_longer_than_the_log_loses_nothing",
    ): {
        "mqttree.broker.cluster.delivery.pulls.OFFER_INTERVAL": 1.0,
    },
    ("Nothing is lost by that", "test_more_than_the_log_holds_waits_for_a_slow_link"): {
        "mqttree.broker.cluster.delivery.origin_feeds.PATIENCE_S": 30.0,
    },
    ("splits of up to five seconds", "test_a_broker_that_hung_gets_all_messages_in_order"): {
        "mqttree.broker.cluster.delivery.tree_paths.SPLIT": 5.0,
        "mqttree.broker.cluster.delivery.tree_paths.RELINK": 3.5,
        "mqttree.broker.cluster.delivery.tree_paths.HOLD_S": 8.5,
    },
    ("A client id has one session in the federation", "test_roaming_clients_lose_nothing"): {
        "mqttree.broker.cluster.sessions.handover.GIVEN_TIME": 5.0,
        "mqttree.broker.cluster.sessions.handover.LINGER_S": 1.0,
    },
    ("Nothing that waited is lost", "test_drawn_outages_keep_all_promises"): {
        "mqttree.broker.cluster.sessions.handover.EXPORT_TIME": 30.0,
    },
    (
        "Nothing that waited is lost",
        "test_a_merge_while_the_origin_hangs_loses_and_repeats_nothing",
    ): {
        "mqttree.broker.cluster.sessions.merge.UNSUBSCRIBED_S": 2.0,
        "mqttree.broker.cluster.sessions.merge.UNSETTLED_S": 10.0,
    },
    (
        "Nothing that waited is lost",
        "test_a_client_that_was_on_both_sides_gets_both_queues_once",
    ): {},
    ("A client that connects to another broker finds its", "test_roaming_clients_lose_nothing"): {
        "mqttree.broker.cluster.sessions.messages_under_way.COMPLETE_TIME": 5.0,
        "mqttree.broker.cluster.sessions.merge.SETTLE_S": 0.1,
    },
    ("Nothing that waited is lost", "test_what_a_merged_session_is_owed_waits_for_its_origin"): {
        "mqttree.broker.cluster.sessions.messages_under_way.MERGE_TIME": 30.0,
        "mqttree.broker.cluster.sessions.messages_under_way.MERGE_AWAY_S": 10.0,
    },
    (
        "is silent for one second, or cannot be reached",
        "test_messages_published_during_a_takeover_come_once",
    ): {
        "mqttree.broker.cluster.sessions.takeover.REPAIR_S": 0.1,
    },
    (
        "SUBACK also waits for a client that was at another broker",
        "test_messages_published_during_a_takeover_come_once",
    ): {
        "mqttree.broker.cluster.sessions.recently_elsewhere.REPAIR_S": 1.0,
    },
    (
        "In a split, QoS 2 messages may reach a member on both sides",
        "test_the_two_sides_of_a_split_do_not_both_rule_on_a_message_of_a_group",
    ): {
        "mqttree.broker.cluster.sharing.deputies.TOGETHER_S": 5.0,
    },
    ("cut off for two seconds", "test_messages_given_to_a_broker_that_is_cut_off_wait_for_it"): {
        "mqttree.broker.cluster.sharing.assignments.GONE": 2.0,
    },
    (
        "delivers each message to one receiver",
        "test_groups_with_journals_keep_all_promises_beside_faults",
    ): {
        "mqttree.broker.cluster.sharing.assignments.QUEUE_TIME": 30.0,
        "mqttree.broker.cluster.sharing.catchup.PATIENCE_S": 5.0,
        "mqttree.broker.cluster.sharing.custody.DOUBT_S": 10.0,
        "mqttree.broker.cluster.sharing.custody.SILENT_S": 3.0,
    },
    (
        "If all members are away with their brokers",
        "test_outages_that_once_broke_a_promise_keep_it",
    ): {
        "mqttree.broker.cluster.sharing.group_table.CUT_OFF_S": 5.0,
        "mqttree.broker.cluster.sharing.assignments.MEMBER_WAIT_S": 120.0,
    },
    (
        "Neighbours replay in order what a repaired tree missed",
        "test_messages_survive_the_kill_of_a_relay",
    ): {
        "mqttree.broker.cluster.strategy.astray_brokers.AWAY": 5.0,
        "mqttree.broker.cluster.strategy.astray_brokers.UNHEARD": 0.1,
    },
    (
        "SUBACK waits until every broker that can be",
        "test_messages_published_during_a_takeover_come_once",
    ): {
        "mqttree.broker.cluster.strategy.subscription_barrier.ADMITS": 1.0,
    },
    (
        "SUBACK waits until every broker that can be",
        "test_a_client_that_moves_across_a_split_gets_each_message_once",
    ): {
        "mqttree.broker.cluster.strategy.subscription_barrier.LOST": 1.0,
    },
    ("survive its death", "test_time_passes_while_the_broker_is_down"): {
        "mqttree.broker.persistence.journal.CLOCK_STEP_S": 5.0,
    },
    (
        "nothing that was published before",
        "test_another_clock_says_nothing_of_when_a_session_began",
    ): {
        "mqttree.broker.persistence.recovery.SAME_CLOCK_S": 5.0,
    },
    (
        "reads nothing for half a second",
        "test_a_slow_subscriber_loses_nothing_and_delays_no_other",
    ): {
        "mqttree.broker.core.flow_control.HOLD_TIMEOUT_S": 0.5,
    },
    ("by a hybrid logical clock", "test_after_a_split_the_last_write_is_everywhere"): {
        "mqttree.broker.base.hybrid_clock.MAX_CLOCK_AHEAD_S": 300.0,
    },
    ("survive its death", "test_another_clock_says_nothing_of_when_a_session_began"): {
        "mqttree.broker.persistence.recovery.BEAT_INTERVAL_S": 20.0,
    },
    ("120 s", "test_a_broker_that_is_alone_keeps_what_the_others_lack"): {
        "limits.log_age_s": 120.0,
    },
    ("half a minute", "test_more_than_the_log_holds_waits_for_a_slow_link"): {
        "limits.log_large_s": 30.0,
    },
    (
        "Neighbours replay in order what a repaired tree missed",
        "test_more_than_the_log_holds_waits_for_a_slow_link",
    ): {
        "mqttree.broker.cluster.delivery.link_acks.PARTITION_GRACE_S": 5.0,
        "mqttree.broker.cluster.delivery.link_acks.REPAIR_TIMEOUT_S": 30.0,
    },
    (
        "Messages on slow links may be lost as their path changes",
        "test_messages_queued_for_a_slow_link_that_is_cut_arrive_later",
    ): {
        "mqttree.broker.persistence.absent_members.CUT_GRACE_S": 5.0,
    },
    ("an hour", "test_an_hour_counts_from_when_a_broker_was_there_last"): {
        "limits.absent_max_s": 3600.0,
    },
    (
        "across restarts of both brokers, in any order",
        "test_outages_that_once_broke_a_promise_keep_it",
    ): {
        "mqttree.broker.persistence.absent_members.RETURN_GRACE_S": 5.0,
        "mqttree.broker.persistence.absent_members.TAIL_RETURN_S": 60.0,
    },
    (
        "it serves no client before it knows which sessions are elsewhere, for 3 s at most",
        "test_a_broker_that_hangs_leaves_a_session_to_the_one_that_has_it",
    ): {
        "mqttree.broker.persistence.fencing.DOUBT_S": 3.0,
    },
    ("is silent for one second", "test_messages_published_during_a_takeover_come_once"): {
        "mqttree.broker.cluster.sessions.handover.TAKEOVER_SILENCE_S": 1.0,
    },
    ("for 10 seconds at most", "test_messages_published_during_a_takeover_come_once"): {
        "mqttree.broker.cluster.sessions.handover.TAKEOVER_MAX_S": 10.0,
    },
    (
        "A client id has one session in the federation",
        "test_a_session_that_ended_elsewhere_does_not_come_back",
    ): {
        "mqttree.broker.cluster.sessions.tombstones.TOMBSTONE_AGE_S": 86400.0,
    },
    (
        "It takes at most five seconds",
        "test_a_client_that_moves_across_a_split_gets_each_message_once",
    ): {
        "limits.suback_wait_s": 5.0,
    },
    (
        "in the 0.3 s in which it looks around at its start",
        "test_a_connection_that_waited_to_be_admitted_is_not_read_while_its_session_comes",
    ): {
        "mqttree.broker.cluster.strategy.subscription_barrier.LINKED_S": 2.0,
    },
}

GUARDED = {name: seconds for times in PROMISES.values() for name, seconds in times.items()}

PACES: dict[str, Any] = {
    "settings.discovery_time": 0.3,
    "mqttree.broker.persistence.succession.SWEEP_S": 60.0,
    "settings.beacon": 5.0,
    "settings.dial_patience": 0.1,
    "settings.dial_timeout": 5.0,
    "settings.clock_window": 60.0,
    "mqttree.broker.cluster.agenda.TIMER_DELAY": 0.1,
    "mqttree.broker.cluster.delivery.forwarder.QUIET_S": 1800.0,
    "mqttree.broker.cluster.gone_brokers.GRACE_S": 5.0,
    "mqttree.broker.cluster.delivery.gap_recovery.ASK_PAUSE": 0.005,
    "mqttree.broker.cluster.delivery.pulls.MAX_PAUSE_S": 10.0,
    "mqttree.broker.cluster.delivery.pulls.ROOM_CHECK_INTERVAL_S": 0.005,
    "mqttree.broker.cluster.delivery.resync.DIRECTORY_WAIT_S": 0.5,
    "mqttree.broker.cluster.delivery.ordered_feed.RETRY": 0.1,
    "mqttree.broker.cluster.delivery.ordered_feed.MAX_RETRY_S": 2.0,
    "mqttree.broker.cluster.delivery.paced_release.STEP_INTERVAL": 0.001,
    "mqttree.broker.cluster.delivery.paced_release.SLOW_CHECK_INTERVAL": 0.005,
    "mqttree.broker.cluster.delivery.paced_release.SLOW_WAIT": 0.1,
    "mqttree.broker.cluster.delivery.remote_flow_control.HOLD_LIFE": 10.0,
    "mqttree.broker.cluster.delivery.subscription_start.UNSURE_S": 0.2,
    "mqttree.broker.cluster.delivery.subscription_start.DRIFT_S": 0.0001,
    "mqttree.broker.cluster.delivery.subscription_start.NOTED": 0.1,
    "mqttree.broker.cluster.delivery.subscription_start.NOTES": 2048,
    "mqttree.broker.cluster.delivery.subscription_start.NOTED_OLD": 10.0,
    "mqttree.broker.cluster.delivery.subscription_start.OLD_NOTES": 512,
    "mqttree.broker.cluster.drain.STEP_S": 0.05,
    "mqttree.broker.cluster.id_conflict.CALL_PAUSE": 1.0,
    "mqttree.broker.cluster.id_conflict.GONE_S": 5.0,
    "mqttree.broker.cluster.link.message_batch.OLDEST": 4294967295,
    "mqttree.broker.cluster.placement.decider.PERIOD_S": 10.0,
    "mqttree.broker.cluster.placement.decider.GATHER_WAIT": 0.5,
    "mqttree.broker.cluster.placement.decider.QUIET_S": 600.0,
    "mqttree.broker.cluster.directory.questions.WAIT_S": 2.0,
    "mqttree.broker.cluster.placement.rebalancer.ROUND_S": 60.0,
    "mqttree.broker.cluster.placement.rebalancer.ANSWER_WAIT": 2.0,
    "mqttree.broker.cluster.placement.redirect_table.DAY": 86400.0,
    "mqttree.broker.cluster.placement.redirector.CONNECT_WAIT": 0.5,
    "mqttree.broker.cluster.placement.redirector.OUTLIVES_S": 30.0,
    "mqttree.broker.cluster.placement.redirector.SAME_HOST_S": 600.0,
    "mqttree.broker.cluster.placement.redirector.LOOK_AGAIN_S": 0.02,
    "mqttree.broker.cluster.placement.topic_knowledge.FRESH_S": 5.0,
    "mqttree.broker.cluster.placement.topic_knowledge.MAX_LATE": 0.5,
    "mqttree.broker.cluster.retained_comparison.BUSY_S": 0.05,
    "mqttree.broker.cluster.retained_comparison.MISSED_S": 1.0,
    "mqttree.broker.cluster.sessions.merge.AWAY_S": 0.3,
    "mqttree.broker.cluster.sessions.merge.CHECK_INTERVAL": 0.05,
    "mqttree.broker.cluster.sessions.merge.FETCH_S": 3.0,
    "mqttree.broker.cluster.sessions.merge.IDLE_INTERVAL": 1.0,
    "mqttree.broker.cluster.sessions.session_history.DECODED_S": 1.0,
    "mqttree.broker.persistence.succession.HEADS_S": 0.05,
    "mqttree.broker.persistence.succession.HEADS_AT_MOST_S": 2.0,
    "mqttree.broker.cluster.sessions.merge.SUBSCRIBING_S": 0.25,
    "mqttree.broker.cluster.sessions.merge.TURN_S": 0.005,
    "mqttree.broker.cluster.sessions.pending_merge.RETRY": 0.25,
    "mqttree.broker.cluster.sessions.pending_merge.MAX_RETRY_S": 1.0,
    "mqttree.broker.cluster.sessions.pending_takeover.RETRY": 0.25,
    "mqttree.broker.cluster.sessions.session_head.LATEST": 10000000000.0,
    "mqttree.broker.cluster.sessions.session_parts.RESEND_PAUSE": 1.0,
    "mqttree.broker.cluster.sessions.session_parts.MAX_RESEND_PAUSE": 30.0,
    "mqttree.broker.cluster.sharing.assignments.SWEEP_S": 0.25,
    "mqttree.broker.cluster.sharing.assignments.PAUSE": 0.001,
    "mqttree.broker.cluster.sharing.assignments.SILENCE_S": 10.0,
    "mqttree.broker.cluster.sharing.assignments.REASK_S": 5.0,
    "mqttree.broker.cluster.sharing.assignments.SUCCESSOR_S": 0.5,
    "mqttree.broker.cluster.sharing.assignments.MAX_RETRY_S": 16.0,
    "mqttree.broker.cluster.sharing.catchup.PAUSE": 0.001,
    "mqttree.broker.cluster.sharing.catchup.RETRY": 1.0,
    "mqttree.broker.cluster.sharing.custody.REPORT_DELAY": 0.002,
    "mqttree.broker.cluster.sharing.custody.ROOM_CHECK_INTERVAL": 0.05,
    "mqttree.broker.cluster.sharing.custody.CHECK_INTERVAL_S": 1.0,
    "mqttree.broker.cluster.directory.link_state_directory.POST_INTERVAL": 0.005,
    "mqttree.broker.cluster.directory.link_state_directory.DIGEST_INTERVAL_S": 5.0,
    "mqttree.broker.cluster.strategy.interest_table.LINGER": 0.5,
    "mqttree.broker.cluster.strategy.new_filters.MAX_COMPARED_AGE": 5.0,
    "mqttree.broker.cluster.strategy.new_filters.MAX_COMPARED": 300,
    "mqttree.broker.cluster.strategy.new_filters.MAX_COMPARED_FILTERS": 16,
    "mqttree.broker.cluster.strategy.path_costs.REVIEW": 2.0,
    "mqttree.broker.cluster.strategy.published_topics.PACE": 0.01,
    "mqttree.broker.cluster.strategy.source_trees.MIN_PAUSE_S": 0.01,
    "mqttree.broker.cluster.strategy.source_trees.PAUSE": 0.02,
    "mqttree.broker.cluster.strategy.srt_prt.MAX_AGE": 4294967295,
    "mqttree.broker.cluster.strategy.subscription_barrier.AT_ONCE": 0.1,
    "mqttree.broker.cluster.strategy.subscription_barrier.PAUSE": 0.02,
    "mqttree.broker.cluster.strategy.subscription_barrier.MAX_PAUSE_S": 0.5,
    "mqttree.broker.persistence.log_tail.RETRY": 1.0,
    "mqttree.broker.persistence.write_ahead_log.STEP_PAUSE": 0.01,
    "mqttree.broker.persistence.write_ahead_log.SHORT_STEP_PAUSE": 0.001,
    "mqttree.broker.persistence.write_ahead_log.RETRY": 1.0,
    "mqttree.broker.persistence.images.POST_INTERVAL_S": 10.0,
    "limits.adoption_s": 2.0,
    "mqttree.broker.persistence.succession.PROMOTION_S": 0.1,
    "mqttree.broker.persistence.succession.WILL_WAIT_S": 1.5,
    "mqttree.broker.persistence.succession.SETTLING_S": 1.0,
    "mqttree.broker.persistence.fences.REPEAT_S": 0.25,
    "mqttree.broker.persistence.fences.KEPT_S": 30.0,
    "mqttree.broker.persistence.fencing.ASK_S": 0.1,
    "mqttree.broker.persistence.fencing.LOOK_S": 0.02,
    "mqttree.broker.persistence.fencing.PULL_S": 0.5,
    "mqttree.broker.persistence.fencing.RESUMING_S": 0.1,
    "mqttree.broker.persistence.stream.SILENCE_S": 0.5,
    "mqttree.broker.persistence.stream.MAX_SILENCE_S": 2.0,
    "mqttree.broker.persistence.stream.LACK_S": 0.3,
    "mqttree.broker.persistence.stream.LATE_S": 0.1,
    "mqttree.broker.persistence.stream.CHECK_INTERVAL_S": 1.0,
    "mqttree.broker.persistence.stream.ALONE_INTERVAL_S": 0.1,
    "mqttree.broker.persistence.stream.BETTER_S": 60.0,
    "mqttree.broker.persistence.stream.SLOW_WITHIN_S": 60.0,
    "mqttree.broker.persistence.stream.SLOW_S": 600.0,
    "mqttree.broker.persistence.stream.REST_S": 10.0,
    "mqttree.discovery.announcement.MAX_WALL": 4503599627370496,
    "mqttree.discovery.announcement_filter.REPEAT_WINDOW": 2.0,
    "mqttree.discovery.beacon.BURST": (0.03, 0.05, 0.06, 0.07),
    "mqttree.discovery.beacon.ANSWER_JITTER": (0.002, 0.02),
    "mqttree.discovery.beacon.ANSWER_SPACING": 0.05,
    "mqttree.discovery.dialler.BACKOFF_LATE": 60.0,
    "mqttree.discovery.dialler.REDIAL_FLOOR": 0.1,
    "mqttree.discovery.dialler.FIRST_TRY": 1.0,
    "mqttree.discovery.drivers.dns.INTERVAL": 30.0,
    "mqttree.discovery.drivers.dns.RETRY": 1.0,
    "mqttree.discovery.drivers.multicast.RESCAN": 10.0,
    "mqttree.discovery.effects.DISCOVERY_TIME": 0.3,
    "mqttree.discovery.member_table.SELF_RETRY": 300.0,
    "mqttree.discovery.member_table.ADDRESS_STAGGER": 0.15,
    "mqttree.discovery.member_table.REDIAL_JITTER": 0.02,
    "mqttree.discovery.membership.STABLE_LINK": 1.0,
    "mqttree.discovery.neighbour_selection.SETTLE": 0.1,
    "mqttree.discovery.neighbour_selection.SETTLE_AT_MOST": 0.5,
    "mqttree.discovery.neighbour_selection.REVIEW": 5.0,
    "mqttree.discovery.neighbour_selection.STRAY_AFTER": 10.0,
    "mqttree.discovery.neighbour_selection.SURPLUS_AFTER": 30.0,
    "mqttree.broker.core.flow_control.HOLD_RECHECK_S": 0.02,
    "mqttree.broker.cluster.delivery.remote_flow_control.HOLD_INTERVAL_S": 0.02,
    "mqttree.broker.cluster.delivery.remote_flow_control.HOLD_REPEAT_S": 0.2,
    "limits.hold_max_s": 300.0,
    "limits.redirect_settle_s": 5.0,
    "limits.redirect_quiet_s": 60.0,
    "limits.retained_check_s": 60.0,
    "mqttree.broker.cluster.retained_comparison.STEP_INTERVAL_S": 0.005,
    "mqttree.broker.cluster.retained_comparison.REFUSED_PAUSE_S": 600.0,
    "limits.journal_linger_s": 0.01,
    "mqttree.broker.cluster.topology.GOSSIP_INTERVAL_S": 0.05,
    "mqttree.broker.cluster.delivery.resync.SEEN_INTERVAL_S": 0.05,
    "limits.advertised_s": 600.0,
    "mqttree.broker.cluster.drain.DRAIN_TIMEOUT_S": 30.0,
    "mqttree.broker.cluster.drain.SESSIONS_GRACE_S": 5.0,
    "mqttree.broker.cluster.drain.TREE_TIMEOUT_S": 4.0,
    "mqttree.broker.cluster.drain.ASK_INTERVAL_S": 0.2,
}


def times(folder: str) -> Iterator[str]:
    """The names of the constants of time in a folder, as of `PACES`."""
    for path in sorted((ROOT / folder).rglob("*.py")) or [ROOT / folder]:
        module = ".".join(("mqttree", *path.relative_to(ROOT).with_suffix("").parts))
        body = parse(path.read_text()).body
        for node, after in pairwise(body):
            if isinstance(node, ast.Assign):
                targets = [n for target in node.targets for n in ast.walk(target)]
            elif isinstance(node, ast.AnnAssign):
                targets = [node.target]
            else:
                continue
            text = after.value if isinstance(after, ast.Expr) else None
            said = text.value if isinstance(text, ast.Constant) else ""
            if isinstance(said, str) and UNITS.match(said):
                for target in targets:
                    if isinstance(target, ast.Name) and target.id.isupper():
                        yield f"{module}.{target.id}"


def limits() -> Iterator[str]:
    """The names of the limits of time that the folders use."""
    used = "".join(path.read_text() for f in FOLDERS[:2] for path in (ROOT / f).rglob("*.py"))
    records = [
        node
        for path in (*ROOT.glob("broker/*/limits.py"), ROOT / "routing/limits.py")
        for node in parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    ]
    for node, after in (pair for record in records for pair in pairwise(record.body)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name, text = node.target.id, getattr(after, "value", None)
            said = text.value if isinstance(text, ast.Constant) else ""
            timed = isinstance(said, str) and UNITS.match(said)
            if (timed or f"limits.{name}" in GUARDED) and re.search(rf"limits\.{name}\b", used):
                yield f"limits.{name}"


def settings() -> Iterator[str]:
    """The names of the settings of discovery, all of which are times."""
    names: tuple[str, ...] = MembershipConfig.__slots__
    for name in names:
        if isinstance(getattr(DISCOVERY, name), float):
            yield f"settings.{name}"


def value(name: str) -> Any:
    module, _, constant = name.rpartition(".")
    where = {"limits": DEFAULTS, "settings": DISCOVERY}.get(module)
    return getattr(where or importlib.import_module(module), constant)


def test_every_constant_of_time_is_in_the_table() -> None:
    found = {name for place in (*FOLDERS, *FILES) for name in times(place)}
    found |= {*limits(), *settings()}
    assert found == {*GUARDED, *PACES}
    assert not GUARDED.keys() & PACES.keys()


@pytest.mark.parametrize("name", [*GUARDED, *PACES])
def test_a_time_is_what_the_table_says(name: str) -> None:
    assert value(name) == (GUARDED | PACES)[name]


def test_the_promises_of_the_table_and_their_tests_are_there() -> None:
    text = " ".join((ROOT / "docs/promises.md").read_text().split())
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for promise, test in PROMISES:
        assert promise in text
        assert f"def {test}(" in tests
