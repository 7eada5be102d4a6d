"""`mqttree status`: only links that let messages through are drawn as the tree."""

from __future__ import annotations

from typing import Any

import pytest

from mqttree.broker.cli.status import MAX_CELLS, render
from mqttree.broker.cli.tree_view import Seen, draw


def link(number: int, role: str, **values: Any) -> dict[str, Any]:
    forwarding = values.get("forwarding", role != "blocked")
    found = {
        "peer": f"{number}",
        "name": f"b{number}",
        "address": f"10.0.0.{number}:1883",
        "up": True,
        "role": role,
    }
    return found | {"forwarding": forwarding, "carries": forwarding, "rtt_ms": 0.25} | values


def state(*links: dict[str, Any], parent: str | None = None, **more: Any) -> dict[str, Any]:
    root = "0" if parent is None else parent
    return {
        "id": "0",
        "name": "b0",
        "listen": "10.0.0.9:1883",
        "root": root,
        "parent": parent,
        "links": list(links),
    } | more


def drawn(found: dict[str, Any]) -> list[str]:
    return render(found).partition("\n\n")[2].splitlines()


def test_links_whose_other_end_is_blocked_are_no_branches() -> None:
    found = state(
        link(1, "designated"), link(2, "designated", forwarding=False), link(3, "blocked")
    )
    assert (
        drawn(found)
        == [
            "b0 (10.0.0.9:1883)  (this broker)",
            "└─ b1 (10.0.0.1:1883)  designated, 0.25 ms",
            "",
            "links beside the tree:",
            "  b2 (10.0.0.2:1883)  designated, 0.25 ms",
            "  b3 (10.0.0.3:1883)  blocked, 0.25 ms",
            "",
            "",
            "",
        ][: len(drawn(found))]
    )


def test_the_status_shows_the_parent_and_the_children() -> None:
    found = state(
        link(1, "root"),
        link(2, "designated"),
        link(3, "designated", up=False, forwarding=False),
        parent="1",
    )
    assert drawn(found)[:6] == [
        "b1 (10.0.0.1:1883)  root, 0.25 ms",
        "└─ b0 (10.0.0.9:1883)  (this broker)",
        "   └─ b2 (10.0.0.2:1883)  designated, 0.25 ms",
        "",
        "links beside the tree:",
        "  b3 (10.0.0.3:1883)  designated, down",
    ]


def member(number: int, name: str, *addresses: str, alive: bool = False) -> dict[str, Any]:
    return {"id": f"{number}", "name": name, "addresses": list(addresses), "alive": alive}


def known(*members: dict[str, Any], **more: Any) -> list[str]:
    """What is said of brokers without a link by one that is linked to b1."""
    lines = drawn(
        state(link(1, "designated"), members=[member(1, "b1", alive=True), *members], **more)
    )
    return lines[3:] if len(lines) > 2 else []


def test_a_broker_that_is_gone_is_said_to_be_so() -> None:
    text = "b3 is gone since 14:29 (crash seen by b1)"
    gone = [{"id": "3", "name": "b3", "text": text}]
    # It crashed twice, and the first id of it is remembered, too.
    members = [member(3, "b3", "10.0.0.3:1883"), member(30, "b3")]
    assert known(*members, gone=gone) == ["known, without a link:", f"  {text}"]


def test_earlier_ids_of_brokers_that_are_there_are_left_out() -> None:
    """Those of this broker, of one that is linked and of one that is not."""
    old = [member(10, "b1"), member(11, ""), member(12, "", "10.0.0.1:1883"), member(13, "b0")]
    assert known(*old) == []
    there = member(2, "b2", "10.0.0.2:1883", alive=True)
    assert known(*old, there, member(20, "b2"), member(21, "", "10.0.0.2:1883")) == [
        "known, without a link:",
        "  b2 (10.0.0.2:1883)",
    ]


def test_a_broker_that_is_silent_has_one_line() -> None:
    members = [member(4, "b4", "10.0.0.4:1883"), member(40, "b4"), member(5, "", "10.0.0.5:1883")]
    assert known(*members, member(6, "", alive=True)) == [
        "known, without a link:",
        "  6",
        "  b4 (10.0.0.4:1883)  silent",
        "  10.0.0.5:1883  silent",
    ]


def test_with_shortest_ways_it_says_which_links_carry_messages() -> None:
    links = [link(1, "designated"), link(2, "blocked", carries=True), link(3, "blocked")]
    text = render(
        state(
            *links,
            source_trees={"active": True, "receiver_sets": [], "topics": 0, "relayed_origins": 0},
        )
    )
    assert "b1 (10.0.0.1:1883)  designated, 0.25 ms, carries messages\n" in text
    assert "b2 (10.0.0.2:1883)  blocked, 0.25 ms, carries messages\n" in text
    assert "b3 (10.0.0.3:1883)  blocked, 0.25 ms\n" in text
    assert "carries messages" not in render(state(*links))


def test_with_overlays_it_says_of_how_many_this_broker_is_part() -> None:
    text = render(
        state(
            link(1, "root", forwarding=True, carries=True),
            link(2, "blocked", carries=True),
            routing="ort",
            topic_overlays={"topics": 5, "root_of": 2, "forming": 1, "in_parts": 0},
        )
    )
    assert "paths    overlays of 5 topics; this broker is the root of 2, and 1 are forming" in text
    assert text.count("carries messages") == 2


def test_the_live_view_tells_blocked_links_from_direct_ones() -> None:
    found = state(link(1, "blocked", carries=True, source_trees=True), link(2, "blocked"))
    lines = draw([Seen(1883, 7, None, found)], "c", moving=False)
    assert "  1883  root  direct to 10.0.0.1:1883  blocked to 10.0.0.2:1883  pid 7" in lines


HOSTILE = "b\x1b[2J\r\nroot     forged\u202e\x7f\u2066"


def test_names_and_answers_of_others_are_shown_on_their_lines_as_text() -> None:
    leg = {"name": HOSTILE, "broker": HOSTILE, "state": HOSTILE, "last_error": HOSTILE}
    found = state(
        link(1, "root", name=HOSTILE, address=HOSTILE),
        parent="1",
        root_address=HOSTILE,
        cluster=HOSTILE,
        legs=[leg | {"refused_filters": [HOSTILE * 9999]}],
        drain={"state": HOSTILE},
        members=[{"id": "7", "name": HOSTILE, "addresses": [HOSTILE], "alive": True}],
        gone=[{"id": "8", "name": HOSTILE, "text": HOSTILE}],
    )
    lines = render(found).split("\n")
    assert all(line.isprintable() and len(line) <= MAX_CELLS for line in lines)
    assert len(lines) == len(render(state(link(1, "root"), parent="1")).split("\n")) + 8


def test_the_live_view_shows_names_of_others_as_text() -> None:
    found = state(link(1, "blocked", address=HOSTILE))
    lines = draw([Seen(1883, 7, HOSTILE, None), Seen(1884, 8, None, found)], HOSTILE, moving=True)
    assert all(line.isprintable() for line in lines)


def leg_line(**more: Any) -> str:
    """The line of a leg in the status."""
    leg = {
        "name": "plant",
        "broker": "mqtt://h:1883",
        "state": "up",
        "mqtt": "5",
        "messages_in": 1,
        "messages_out": 2,
    }
    (line,) = [line for line in render(state(legs=[leg | more])).splitlines() if "plant" in line]
    return line


@pytest.mark.parametrize(
    ("found", "line"),
    [
        ({"enabled": False, "sent": 0}, None),
        ({"enabled": True, "sent": 0}, "sent 0 clients to other brokers"),
        ({"enabled": False, "sent": 1}, "sent 1 client to other brokers"),
        (
            {"enabled": True, "sent": 3, "ignored": 2, "forgone": 1, "topics_invalid": 4},
            "sent 3 clients to other brokers, 2 came back; 1 not sent for lack of room; "
            "mqttree-topics invalid in 4 CONNECTs",
        ),
        (
            {"enabled": True, "sent": 1, "waiting": 2, "quiet": True},
            "sent 1 client to other brokers; 2 clients to be asked about; "
            "rests, as brokers have just come or gone",
        ),
    ],
)
def test_the_status_says_how_many_clients_were_sent_elsewhere(
    found: dict[str, Any], line: str | None
) -> None:
    lines = [each for each in render(state(redirection=found)).splitlines() if "redirect" in each]
    assert lines == ([] if line is None else [f"redirect {line}"])


def test_the_status_says_what_a_leg_knows_of_foreign_clients() -> None:
    assert leg_line().endswith("out 2")
    rules = {"a/#": 4, "b": 1}
    line = leg_line(answered=9, no_subscribers=5, no_subscribers_by_rule=rules)
    assert "no subscriber there for 5 of 9 (a/# 4, b 1)" in line
    assert "leads to the same broker as leg g" in leg_line(same_broker=["g"])
