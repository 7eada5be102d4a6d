"""Which of several gateways of one name is active, and what `/healthz` says of a leg."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from mqttree.broker.cluster.directory.link_state_directory import DRAINING
from mqttree.broker.io.admin_http import leg_health
from mqttree.broker.io.leg_turns import LEG, SETTLE, LegTurns


class LinkStateDirectory:
    """What brokers post."""

    def __init__(self) -> None:
        self.database = self
        self.own: list[bytes] = []
        self.others: dict[bytes, list[bytes]] = {}
        self.gone: set[bytes] = set()
        self.draining: set[bytes] = set()

    def post(self, key: bytes) -> None:
        self.own.append(key)

    def withdraw(self, key: bytes) -> None:
        self.own.remove(key)

    def entries_of(self, key: bytes) -> list[tuple[bytes, bytes]]:
        return [(each, b"") for each, keys in self.others.items() if key in keys]

    def reaches(self, broker_id: bytes) -> bool:
        return broker_id not in self.gone

    def entry(self, broker_id: bytes, key: bytes) -> bytes | None:
        if key == DRAINING:
            return b"1" if broker_id in self.draining else None
        return b"other"


def turns(directory: LinkStateDirectory, *, federates: bool = True) -> LegTurns:
    node = SimpleNamespace(
        config=SimpleNamespace(id=b"m", discovery_time=2.0),
        cluster=SimpleNamespace(directory=directory),
        drain=object() if b"m" in directory.draining else None,
    )
    return LegTurns(cast(Any, node), 10.0, federates=federates)


def test_the_lowest_id_that_can_be_reached_is_active() -> None:
    directory = LinkStateDirectory()
    found = turns(directory)
    found.post({"plant"})
    assert directory.own == [LEG + b"plant"]
    assert found.rival("plant") is None
    directory.others = {b"z": [LEG + b"plant"], b"b": [LEG + b"plant"], b"a": [LEG + b"else"]}
    assert found.rival("plant") == b"b"
    assert found.title(b"b") == "other (62)"
    directory.gone = {b"b"}
    assert found.rival("plant") is None
    found.post(set())
    assert directory.own == []


def test_a_gateway_that_drains_gives_its_turn_to_any_other_one() -> None:
    """Its session is fetched before it goes. Without another gateway it goes on."""
    directory = LinkStateDirectory()
    directory.others = {b"a": [LEG + b"plant"]}
    directory.draining = {b"a"}
    assert turns(directory).rival("plant") is None
    directory.draining = {b"m"}
    assert turns(directory).rival("plant") == b"a"
    directory.others = {b"z": [LEG + b"plant"], b"m": [LEG + b"plant"]}
    assert turns(directory).rival("plant") == b"z"
    directory.draining = {b"m", b"z"}
    assert turns(directory).rival("plant") is None


def test_a_gateway_that_sees_no_other_one_may_follow_one_that_is_gone() -> None:
    """What waits for the other one at the foreign broker would be lost with a new session there."""
    assert turns(LinkStateDirectory()).shared
    assert not turns(LinkStateDirectory(), federates=False).shared


def test_a_broker_that_may_find_others_waits_for_them() -> None:
    found = turns(LinkStateDirectory())
    assert not found.settled(12.0)
    assert found.settled(12.0 + SETTLE)
    assert turns(LinkStateDirectory(), federates=False).settled(10.0)


def test_health_says_why_a_leg_is_not_up_and_which_filters_are_refused() -> None:
    leg = {"state": "up", "last_error": "", "refused_filters": ["a/#"], "same_broker": []}
    assert leg_health(leg) == "up; refused filters: 'a/#'"
    leg |= {"state": "waiting", "last_error": "no route", "refused_filters": []}
    assert leg_health(leg) == "waiting; no route"
    leg |= {"state": "up", "same_broker": ["plant"]}
    assert leg_health(leg) == "up; leg_loops: leads to the same broker as leg plant"
