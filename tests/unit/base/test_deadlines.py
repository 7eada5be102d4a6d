"""What is due comes in order, whatever was left out on the way; and that never takes long."""

from __future__ import annotations

import random

from mqttree.broker.base.deadlines import MIN_OUTDATED, MOVES, Deadlines, Entry


def test_valid_deadlines_come_in_order() -> None:
    rng = random.Random(1)
    last: dict[bytes, int] = {}
    asked = 0

    def true(entry: Entry) -> bool:
        nonlocal asked
        asked += 1
        return last.get(entry[1]) == entry[0]

    deadlines = Deadlines(true)
    for number in range(20_000):
        what, when = b"%d" % rng.randrange(300), number + rng.randrange(10_000)
        last[what] = when
        before = asked
        deadlines.add((when, what, 0), len(last))
        assert asked - before <= MOVES
        assert len(deadlines) <= 2 * (2 * len(last) + MIN_OUTDATED)
    found = []
    while (first := deadlines.first()) is not None:
        when, what, _ = deadlines.pop()
        assert when == first
        if true((when, what, 0)):
            found.append((when, what))
    assert [when for when, _ in found] == sorted(last.values())
    assert len(deadlines) == 0
