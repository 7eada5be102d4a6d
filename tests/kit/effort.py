"""How much the tests try: what `make test` has time for, or, with MQTTREE_TESTS=long, all of it."""

from __future__ import annotations

import os

LONG = os.environ.get("MQTTREE_TESTS") == "long"
"""Whether this is `make test-long`."""

DAILY = 20
"""examples of a property in `make test`."""


def examples(count: int) -> int:
    """Return how many examples of a property to try, `count` of them in `make test-long`."""
    return count if LONG else min(count, DAILY)
