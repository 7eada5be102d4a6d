"""Limits of what every package builds on, and what all limits have in common.

Each package that has limits has a record of its own here and above, `limits.py`, that extends the
one of the package below it: a `Node` and its drivers are handed one object (`mqttree.Limits`), and
a module sees the limits of its package and of those below it (docs/decisions/0039). What happens at
a limit is said beside it and counted under the name given in brackets. What is never set is a
constant of the module that keeps to it.
"""

from __future__ import annotations

from mqttree.broker.base.record import Record


class BaseLimits(Record, kw_only=True):
    """Limits of the turns of the event loop."""

    turn_work: int = 10_000
    """steps of work of about a microsecond that one turn of the event loop does by what costs more
    than its bytes: topics without a route, packets that no run takes. Who goes beyond is not read
    for the rest of the turn, nothing is lost [turns_cut]. Half of `LONG_TURN_S`, also on a machine
    that is half as fast."""
