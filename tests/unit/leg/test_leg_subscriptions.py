"""What a leg asks for at the foreign broker, and when all that is retained there has come."""

from __future__ import annotations

import pytest

from mqttree.broker.leg.subscriptions import Subscriptions
from mqttree.broker.wire.packets import Suback
from tests.kit.leg_harness import settings


def asked(version: int) -> Subscriptions:
    """The subscriptions of a leg that has just asked a foreign broker for everything."""
    found = Subscriptions(settings("# both 2"))
    found.begin(version, (True, True), {})
    assert found.subscribe_there({})
    return found


@pytest.mark.parametrize("version", [4, 5])
def test_all_that_is_retained_has_come_with_pingresp_behind_suback(version: int) -> None:
    found = asked(version)
    assert found.brings_stored is (version == 4)
    found.answered_there(Suback(0xFFFF, [2]))
    assert not found.asks_again()
    assert not found.accepted_there
    found.pinged()
    assert found.accepted_there
    assert not found.brings_stored


def test_pingresp_ahead_of_suback_says_nothing_about_what_is_retained() -> None:
    """A broker of mqttree that is busy answers so: SUBACK waits until other brokers know."""
    found = asked(4)
    found.pinged()
    assert found.brings_stored
    found.answered_there(Suback(0xFFFF, [2]))
    assert found.asks_again()
    assert not found.asks_again()
    assert found.brings_stored
    assert not found.accepted_there
    found.pinged()
    assert found.accepted_there
    assert not found.brings_stored
