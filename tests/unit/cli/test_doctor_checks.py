"""The rules of `mqttree doctor`: what each observation means, and that each fault has a remedy."""

from __future__ import annotations

from typing import Any

import pytest

from mqttree.broker.base.address import Address
from mqttree.broker.base.counters import Counters
from mqttree.broker.cli import doctor_checks as checks
from mqttree.broker.cli.doctor_checks import ERROR, NOTE, OK, WARNING, Finding, Heard
from mqttree.broker.cli.link_probe import Answer
from mqttree.broker.cluster.link.peer import Peer
from mqttree.discovery.announcement import Announcement

TARGET = Address("10.0.0.2", 1883)
PEER = Peer(b"\2" * 8, 1, "10.0.0.2", 1883, "other", "c", 1.0, 4, "topic")


def state(name: str = "here", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"id": "01" * 8, "name": name, "listen": "10.0.0.1:1883"}
    found |= {"cluster": "c", "version": "1", "routing": "topic", "id_conflict": None}
    return found | {"links": [], "members": [], "counters": {}} | more


def bad(findings: list[Finding]) -> list[tuple[str, str]]:
    """Check and level of what is no good news; each has a remedy."""
    assert all(finding.remedy for finding in findings if finding.level != OK)
    assert all("\n" not in finding.text for finding in findings)
    return [(finding.check, finding.level) for finding in findings if finding.level != OK]


@pytest.mark.parametrize(
    ("small", "large", "found"),
    [
        (Answer("unreachable", "Connection refused"), None, [("port", ERROR)]),
        (Answer("unreachable", "timed out"), None, [("port", ERROR)]),
        (Answer("unreachable", "No route to host"), None, [("port", ERROR)]),
        (Answer("unreachable", "Name or service not known"), None, [("port", ERROR)]),
        (Answer("silent", "no answer"), None, [("broker", ERROR)]),
        (Answer("closed", "Connection reset by peer"), None, [("broker", ERROR)]),
        (Answer("foreign", "it answers with PUBACK"), None, [("broker", ERROR)]),
        (Answer("tls", "it wants TLS"), None, [("secret", ERROR)]),
        (Answer("wrong-secret", peer=PEER), None, [("secret", ERROR)]),
        (Answer("wrong-id", peer=PEER), None, [("id", ERROR)]),
        (Answer("proven", peer=PEER, proof=True), Answer("proven", peer=PEER), []),
        (Answer("proven", peer=PEER), Answer("silent"), [("mtu", ERROR)]),
        (Answer("proven", peer=PEER), Answer("closed"), [("mtu", ERROR)]),
        (Answer("proven", peer=PEER), Answer("refused", "too large"), [("mtu", NOTE)]),
        (Answer("refused", "", 0x84), None, [("broker", ERROR)]),
        (Answer("refused", "of a mood", 0x87), None, [("broker", ERROR)]),
    ],
)
def test_an_attempt_to_link_is_judged(
    small: Answer, large: Answer | None, found: list[tuple[str, str]]
) -> None:
    assert bad(list(checks.check_probe(TARGET, small, large))) == found


@pytest.mark.parametrize(
    ("said", "check"),
    [
        ("your broker is of cluster 'a', not 'b'", "cluster"),
        ("your broker speaks link protocol 3, not 4", "version"),
        ("your broker routes by srt, which does not mix with topic", "routing"),
        ("your broker has no cluster secret", "secret"),
        ("your broker requires a cluster secret", "secret"),
        ("your broker dials a broker that does not federate", "broker"),
        ("your broker does not prove its id", "id"),
    ],
)
def test_a_refusal_is_judged_by_what_it_says(said: str, check: str) -> None:
    found = list(checks.check_probe(TARGET, Answer("refused", said, 0x87), None))
    assert bad(found) == [(check, ERROR)]


def test_a_broker_that_announces_loopback_is_told_so() -> None:
    peer = Peer(b"\2" * 8, 1, "127.0.0.1", 1883, "other", "c", 1.0, 4, "topic")
    found = list(checks.check_probe(TARGET, Answer("proven", peer=peer), None))
    assert bad(found) == [("port", WARNING)]


def test_each_refusal_that_a_broker_counted_has_a_remedy() -> None:
    known = Counters().as_dict().keys()
    for name, (check, _, remedy) in checks.COUNTED.items():
        assert name in known or name.startswith("discovery_"), name
        assert remedy
        assert bad(list(checks.check_counters({name: 2}))) == [(check, WARNING)]
        assert list(checks.check_counters({name: 0})) == []


UP = {"links": [{"up": True}]}


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({}, []),
        ({"cluster": "d"}, [("cluster", WARNING)]),
        ({"version": "2"}, [("version", WARNING)]),
        ({"listen": "127.0.0.1:1883"}, [("port", WARNING)]),
        ({"listen": "::1:1883"}, [("port", WARNING)]),
        ({"id_conflict": "10.0.0.9:1883"}, [("id", ERROR)]),
        ({"counters": {"link_wrong_secret": 1}}, [("secret", WARNING)]),
        ({"standby": {"alone_s": 9.9}} | UP, []),
        # Without a neighbour there can be none.
        ({"standby": {"alone_s": 10.0}}, []),
        ({"standby": {"alone_s": 10.0}} | UP, [("standby", WARNING)]),
        ({"standby": {"wanted": 1, "standbys": [{"same_host": False}]}} | UP, []),
        ({"standby": {"wanted": 2, "standbys": [{}]}} | UP, [("standby", WARNING)]),
        (
            {"standby": {"standbys": [{"same_host": True}, {"same_host": False}]}} | UP,
            [("standby", WARNING)],
        ),
    ],
)
def test_the_broker_of_this_machine_is_judged(
    more: dict[str, Any], found: list[tuple[str, str]]
) -> None:
    assert bad(list(checks.check_state(state(**more), "c", "1"))) == found


def heard(ahead: float = 0.0, broker: bytes = b"\2" * 8) -> Heard:
    announcement = Announcement("c", broker, 1, 1, 5.0, Address("", 1883), "other")
    return Heard("10.0.0.2", announcement, ahead=ahead)


@pytest.mark.parametrize(
    ("datagrams", "found"),
    [
        ([heard()], []),
        ([heard(-0.9)], []),
        ([heard(1.5)], [("clock", WARNING)]),
        ([heard(-61.0)], [("clock", ERROR)]),
        ([], [("multicast", WARNING)]),
        ([heard(broker=b"\1" * 8)], [("multicast", WARNING)]),
        ([Heard("10.0.0.3", None, "doctor")], []),
        ([Heard("10.0.0.3", None, "secret", "not signed")], [("secret", ERROR)]),
        ([Heard("10.0.0.3", None, "version", "version 9")], [("version", ERROR)]),
        ([Heard("10.0.0.3", None, "source", "sent again")], [("multicast", ERROR)]),
        (
            [Heard("10.0.0.3", None, "cluster", "of cluster 'd'")],
            [("cluster", NOTE), ("multicast", WARNING)],
        ),
        (
            [Heard("10.0.0.3", None, "garbage", "no announcement")],
            [("multicast", NOTE), ("multicast", WARNING)],
        ),
    ],
)
def test_what_the_discovery_group_brings_is_judged(
    datagrams: list[Heard], found: list[tuple[str, str]]
) -> None:
    here = ["10.0.0.1"]
    assert bad(list(checks.check_heard(datagrams, here, here, "01" * 8, 18830))) == found


@pytest.mark.parametrize(
    ("joined", "echoed", "found"),
    [
        ([], [], [("multicast", ERROR)]),
        (["10.0.0.1"], [], [("multicast", ERROR)]),
        (["10.0.0.1", "10.1.0.1"], ["10.0.0.1"], [("multicast", NOTE)]),
    ],
)
def test_a_machine_that_does_not_hear_itself_has_a_fault(
    joined: list[str], echoed: list[str], found: list[tuple[str, str]]
) -> None:
    assert bad(list(checks.check_heard([heard()], joined, echoed, "", 18830))) == found


OTHER = {"id": "02" * 8, "name": "other", "listen": "10.0.0.2:1883"}


def linked() -> tuple[dict[str, Any], dict[str, Any]]:
    own = state(links=[{"peer": "02" * 8, "up": True}])
    return own, state(**OTHER, links=[{"peer": "01" * 8, "up": True}])


@pytest.mark.parametrize(
    ("changed", "ahead", "found"),
    [
        ({}, 0.0, []),
        ({}, 0.04, []),
        ({}, 2.0, [("clock", WARNING)]),
        ({}, -90.0, [("clock", ERROR)]),
        ({"cluster": "d"}, 0.0, [("cluster", ERROR)]),
        ({"version": "2"}, 0.0, [("version", WARNING)]),
        ({"routing": "flood"}, 0.0, [("routing", WARNING)]),
        ({"links": []}, 0.0, [("multicast", ERROR)]),
        ({"links": [], "members": [{"id": "01" * 8}]}, 0.0, [("broker", NOTE)]),
    ],
)
def test_two_brokers_are_compared(
    changed: dict[str, Any], ahead: float, found: list[tuple[str, str]]
) -> None:
    own, other = linked()
    assert bad(list(checks.check_other(own, other | changed, ahead, 0.05))) == found


@pytest.mark.parametrize(
    ("discovery", "targets", "found"),
    [
        ("multicast", 0, []),
        ("static", 1, []),
        ("static", 0, [("broker", WARNING)]),
        ("dns", 0, [("broker", WARNING)]),
        ("off", 5, [("broker", WARNING)]),
    ],
)
def test_the_way_to_find_brokers_is_judged(
    discovery: str, targets: int, found: list[tuple[str, str]]
) -> None:
    assert bad(list(checks.check_found(discovery, targets))) == found


def test_brokers_without_a_link_are_asked() -> None:
    members = [
        {"id": "02" * 8, "addresses": ["10.0.0.2:1883", "10.9.0.2:1883"]},
        {"id": "03" * 8, "addresses": ["[fe80::3]:1884"]},
        {"id": "04" * 8, "addresses": []},
    ]
    known = state(links=[{"peer": "02" * 8, "up": True}], members=members)
    assert checks.addresses_of(known) == [Address("fe80::3", 1884)]
