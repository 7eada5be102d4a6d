"""Clients that were elsewhere a moment ago (docs/decisions/0024)."""

from __future__ import annotations

import pytest

from broker import limits
from broker.whereabouts import LATELY
from tests.unit.node_harness import World

OTHER = b"another!"


def test_who_left_is_remembered_for_a_while() -> None:
    world = World(link_timeout=2.0)
    whereabouts = world.node.federation.whereabouts
    whereabouts._posted(OTHER, b"c", None)
    assert whereabouts.elsewhere("c")
    assert not whereabouts.elsewhere("d")
    world.advance(2.0 + LATELY)
    assert whereabouts.elsewhere("c")
    world.advance(0.1)
    assert not whereabouts.elsewhere("c")
    whereabouts._posted(OTHER, b"d", None)
    assert len(whereabouts) == 1


def test_of_very_many_the_last_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LEFT", 100)
    whereabouts = World().node.federation.whereabouts
    for number in range(1000):
        whereabouts._posted(OTHER, b"c%d" % number, None)
    assert len(whereabouts) == 100
    assert whereabouts.elsewhere("c900")
    assert not whereabouts.elsewhere("c899")
