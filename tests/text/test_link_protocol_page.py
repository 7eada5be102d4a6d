"""docs/reference/link-protocol.md names everything that brokers tell each other by a number, and
nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from mqttree.broker.cluster.delivery import pull_messages, pulls, remote_flow_control
from mqttree.broker.cluster.directory import questions, unicast_bus
from mqttree.broker.cluster.link import control_records
from mqttree.broker.cluster.link.handshake import LINK_PROTOCOL
from mqttree.broker.cluster.placement import placement_messages
from mqttree.broker.cluster.sessions import fence_messages, takeover_messages
from mqttree.broker.cluster.sharing import assignments, catchup
from mqttree.broker.cluster.strategy import path_change
from mqttree.broker.config.routing_modes import ROUTINGS
from mqttree.routing import link_state
from tests.kit.link_harness import lone

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "link-protocol.md").read_text()

Numbers = dict[int, str]


def rows(heading: str, column: str) -> Numbers:
    """Number -> name of the rows of the first table in a section that has such a first column."""
    section = PAGE.partition(f"\n{heading}\n")[2]
    table = section.partition(f"\n| {column} |")[2].partition("\n\n")[0]
    found = re.findall(r"^\| (0x[0-9a-f]{2}|\d+) \| `(\w+)` \|", table, re.M)
    assert found, heading
    numbers = {int(number, 0): name for number, name in found}
    assert len(numbers) == len(found), heading
    return numbers


def named(module: ModuleType, *names: str) -> Numbers:
    return {getattr(module, name): name for name in names}


def test_the_page_has_every_record_and_no_other() -> None:
    defined = {record.number: record.name for record in control_records.RECORDS}
    assert defined == {
        number: name
        for name, number in vars(control_records).items()
        if name.isupper() and type(number) is int and not name.startswith("MAX_")
    }
    assert rows("## Records", "number") == defined
    for record in control_records.RECORDS:
        sender = f"receiver of {record.answers}" if record.answers else "each"
        assert f"\n| {record.number} | `{record.name}` | {sender} |" in PAGE
    taken = {number for mode in ROUTINGS for number in lone(routing=mode).node.cluster.records}
    assert taken == defined.keys() - {control_records.PING}


def test_every_record_has_its_fields_and_its_faults() -> None:
    for heading in ("### Fields", "### Limits and faults"):
        section = PAGE.partition(f"\n{heading}\n")[2].partition("\n### ")[0]
        firsts = re.findall(r"^\| ([^|]*) \|", section, re.M)
        assert {name for first in firsts for name in re.findall(r"`(\w+)`", first)} == set(
            rows("## Records", "number").values()
        ), heading


ROUTED = {
    "sessions/takeover_messages": named(
        takeover_messages,
        *("SESSION_REQUEST", "SESSION_ANSWER", "SESSION_ENDED", "SESSION_PART"),
    ),
    "delivery/pull_messages": named(pull_messages, "PULL", "ENTRIES", "ENTRIES_PIECE"),
    "strategy/path_change": named(path_change, "BREAK", "CHANGED"),
    "delivery/pulls": named(pulls, "OFFER"),
    "sharing/assignments": named(assignments, "REPORT", "RULING", "QUERY"),
    "sharing/catchup": named(catchup, "GROUP_ASK", "GROUP_AGES"),
    "placement/placement_messages": named(
        placement_messages,
        *("PLACEMENT_QUESTION", "PLACEMENT_ANSWER", "ASK_RATES", "RATES"),
        *("ASK_CLIENTS", "CLIENTS", "REDIRECT"),
    ),
    "directory/questions": named(questions, "ADMIN_QUESTION", "ADMIN_ANSWER"),
    "sessions/fence_messages": named(fence_messages, "ASK_FENCE", "FENCE", "CLAIMED"),
    "remote_flow_control": named(remote_flow_control, "HOLD"),
}


def test_the_page_has_every_routed_message_and_no_other() -> None:
    told = rows("## Routed messages", "kind")
    assert told == {number: name for kinds in ROUTED.values() for number, name in kinds.items()}
    for module, kinds in ROUTED.items():
        for number, name in kinds.items():
            assert f"\n| 0x{number:02x} | `{name}` | `{module}` |" in PAGE
    assert told.keys() == lone(routing="topic").node.cluster.bus._receivers.keys()
    assert named(unicast_bus, "BEHIND", "LIVE", "KNOWN") == rows("## Routed messages", "bit")


@pytest.mark.parametrize(
    ("heading", "column", "numbers"),
    [
        (
            "### Directory",
            "kind",
            named(
                link_state,
                *("STAMPS", "ASK_LISTINGS", "LISTING", "CHANGES"),
                *("STAMPS_DIGEST", "ASK_ALL", "ALL"),
            ),
        ),
        (
            "### Fields of sessions",
            "request",
            named(takeover_messages, "TAKE", "MERGE", "DONE"),
        ),
        (
            "### Fields of sessions",
            "answer",
            named(takeover_messages, "NOTHING", "MOVED", "NEWER", "ENDED", "COMING", "FOREIGN"),
        ),
        (
            "### Fields of shared subscriptions and backpressure",
            "operation",
            named(
                assignments,
                *("CLAIM", "DONE", "DECLINE", "UNKNOWN", "GRANT", "REFUSE", "ASKED", "DENY"),
            ),
        ),
    ],
)
def test_the_page_has_the_numbers_of_the_code(heading: str, column: str, numbers: Numbers) -> None:
    assert rows(heading, column) == numbers


def test_rows_fit_a_screen() -> None:
    assert [line for line in PAGE.splitlines() if len(line) > 120] == []


def test_pages_name_the_version_that_brokers_speak() -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs/guides/operations.md").read_text()
    assert f"this release speaks {LINK_PROTOCOL}." in " ".join(guide.split())
