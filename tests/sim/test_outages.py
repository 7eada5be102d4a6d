"""Outages with restarts inside them: what was acknowledged meanwhile reaches the brokers that were
away, for an hour, in whatever order brokers are restarted.

With SEEDS set all of it in all routing modes, without in one of them where it takes longer.
"""

from __future__ import annotations

import pytest

from tests.sim.test_federation import Event, kill, part, start
from tests.sim.test_log_tail import ROUTINGS, Away, played

EVENTS: dict[str, tuple[int, float, list[Event]]] = {
    "both are killed, and the publisher's is started first": (
        2,
        30.0,
        [(4.0, kill(0, 1)), (5.0, start(0)), (30.0, start(1))],
    ),
    "the publisher's is restarted while the other one is down": (
        2,
        30.0,
        [(4.0, kill(1)), (7.0, kill(0)), (8.0, start(0)), (30.0, start(1))],
    ),
    "the publisher's is restarted inside a split": (
        3,
        30.0,
        [(4.0, part((0,), (1, 2))), (6.0, kill(0)), (7.0, start(0)), (28.0, part())],
    ),
    "the other one is down for six minutes": (2, 370.0, [(4.0, kill(1)), (366.0, start(1))]),
    "the other one is cut off for six minutes": (
        2,
        370.0,
        [(4.0, part((0,), (1,))), (366.0, part())],
    ),
}
"""Brokers, s of publishing, faults."""


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("name", EVENTS)
def test_a_broker_that_is_alone_keeps_what_the_others_lack(name: str, routing: str) -> None:
    """A broker that has met others keeps messages for them, however long it is alone and whatever
    was restarted meanwhile."""
    brokers, length, events = EVENTS[name]
    pause = 0.25 if length < 100 else 2.0
    scene = Away(brokers, round(length / pause), 100, pause, events, routing=routing)
    scene.kept = True
    played(scene, length + 8.0).check(order=False)
    assert scene.counted("replay_log_lost") == 0
